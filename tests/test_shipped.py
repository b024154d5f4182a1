"""The cluster assignments under results/clusters: what their names say is what they hold."""

import re
from pathlib import Path

import pytest
import torch

from complementary import data
from complementary.clusters import assignments
from complementary.data.cache import cache_root
from complementary.long_tail import subset

FOLDER = Path(__file__).parent.parent / "results/clusters"
FILES = sorted(FOLDER.glob("*.safetensors"))
NAME = re.compile(
    r"(?P<data>[a-z0-9]+)-rho(?P<rho>\d+)-(?P<encoder>[a-z0-9]+)(?P<bare>-no-max-pool)?(-(?P<epochs>\d+))?"
    r"(?P<again>-again)?(?P<spectral>-spectral)?-k(?P<count>\d+)"
)


def test_there_are_some() -> None:
    assert len(FILES) >= 61


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_file_is_what_its_name_says(path: Path) -> None:
    said = NAME.fullmatch(path.stem)
    assert said is not None
    assignment, record = assignments.read(path)
    made_by = record["made_by"]
    assert record["clusters"] == int(said["count"])
    assert assignment.unique().tolist() == list(range(int(said["count"])))  # none is empty
    made = made_by.get("pretrain") or made_by.get("pretraining") or {}
    if made:
        assert (made["data"], made["long_tail"], made["encoder"]) == (said["data"], float(said["rho"]), said["encoder"])
        assert made["max_pool"] is not bool(said["bare"])
        assert said["epochs"] in (None, str(made["epochs"]))
    how = {**made_by, **made_by.get("kmeans", {})}
    assert how.get("clustering", "kmeans") == ("spectral" if said["spectral"] else "kmeans")


def test_files_of_one_set_belong_to_the_same_images() -> None:
    digests: dict[str, set[str]] = {}
    for path in FILES:
        said = NAME.fullmatch(path.stem)
        assert said is not None
        digests.setdefault(f"{said['data']} {said['rho']}", set()).add(assignments.read(path)[1]["inputs_sha256"])
    assert {name: len(found) for name, found in digests.items()} == dict.fromkeys(digests, 1)


def test_files_of_one_encoder_are_of_one_training() -> None:
    seen: dict[str, set[float]] = {}
    for path in FILES:
        made_by = assignments.read(path)[1]["made_by"]
        if "oracle_knn" in made_by:
            encoder = re.sub(r"(-spectral)?-k\d+$", "", path.stem)
            seen.setdefault(encoder, set()).add(made_by["oracle_knn"])
    assert len(seen) >= 8
    assert {name: len(found) for name, found in seen.items()} == dict.fromkeys(seen, 1)


@pytest.mark.parametrize(("name", "ratio"), [("mnist", 1), ("mnist", 100), ("cifar10", 1), ("cifar10", 100)])
def test_they_fit_the_images_that_the_package_loads(name: str, ratio: int) -> None:
    if not (cache_root(None) / "sets" / name).exists():
        pytest.skip(f"{name} is not in the cache here")
    train = data.load(name).train
    assert train.truth is not None
    chosen = torch.arange(len(train)) if ratio == 1 else subset(train.truth, 10, len(train), ratio, None, 5000, None)
    assignments.read(FOLDER / f"{name}-rho{ratio}-simsiam-k50.safetensors", train.take(chosen).inputs)
