"""The cluster assignments in results/clusters."""

from pathlib import Path

import pytest

from complementary.clusters.assign import read_assignment
from complementary.paper.protocols import with_assignments
from complementary.paper.store import RunSettings, read
from complementary.paper.studies import STUDIES

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "results" / "clusters").glob("*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_stored_clusters_can_be_read_and_say_how_they_were_made(path):
    assignment, record = read_assignment(path)
    count = int(path.stem.rpartition("-k")[2])
    assert record["clusters"] == count
    assert assignment.unique().tolist() == list(range(count))  # none is empty
    assert record["made_by"]


def test_stored_clusters_of_one_dataset_belong_to_the_same_images():
    fingerprints = {}
    for path in FILES:
        name = "-".join(path.stem.split("-")[:2])  # cifar10-rho100
        fingerprints.setdefault(name, set()).add(read_assignment(path)[1]["inputs_sha256"])
    assert {name: len(found) for name, found in fingerprints.items()} == dict.fromkeys(fingerprints, 1)


def test_stored_clusters_of_the_stored_runs_exist():
    results = read([ROOT / "results" / "paper"])
    used = {row["assignments"] for row in (*results.rows, *results.noise) if row["assignments"]}
    assert {Path(name).name for name in used} <= {path.name for path in FILES}


def test_stored_clusters_are_found_by_the_studies():
    settings, folder = RunSettings(), ROOT / "results" / "clusters"
    configs = [settings.config(e, "paper") for name in ("main", "encoders", "clusters") for e in STUDIES[name].entries]
    used = {with_assignments(config, folder).cluster.assignments for config in configs} - {None}
    assert {Path(path).name for path in used} == {
        *(f"cifar10-rho1-{encoder}-k50.safetensors" for encoder in ("simsiam", "byol", "mocov3", "random")),
        *(
            f"{name}-rho100-simsiam-k{k}.safetensors"
            for name in ("cifar10", "mnist", "fmnist", "cifar20")
            for k in (30, 50, 90)
        ),
        "fmnist-rho1-simsiam-k50.safetensors",
    }
