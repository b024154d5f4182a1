import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from complementary.clusters.assign import write_assignment
from complementary.errors import UserError
from complementary.paper.protocols import config_of
from complementary.paper.store import (
    Results,
    RunSettings,
    cells_of,
    encoder_epochs,
    export,
    identity,
    progress,
    read,
    read_measurement,
)
from complementary.paper.studies import STUDIES
from complementary.sweeps.results import Damaged, read_result, row_of
from tests.paper.conftest import entry_of

ICM = entry_of("main", "icm", data="cifar10", tail=1.0, loss="dm")
MIXUP = entry_of("main", "mixup", data="cifar10", tail=1.0, loss="dm")

# --- cells ----------------------------------------------------------------------------------------------------------


def test_cells_that_two_studies_need_are_there_once():
    both = cells_of([STUDIES["main"], STUDIES["losses"]], "ours", RunSettings(seeds=2))
    assert len(both) == 2 * 160
    assert [cell.config.seed for cell in both] == [0] * 160 + [1] * 160
    assert len(cells_of([STUDIES["losses"]], "ours", RunSettings(seeds=2))) == 2 * 16
    assert both[0].name == "cifar10 s-nl none ours seed=0"


def test_cells_are_selected_by_where():
    where = {"data": ["cifar10"], "long_tail": [100.0], "mix": ["icm", "micm"]}
    cells = cells_of([STUDIES["main"]], "paper", RunSettings(seeds=1, epochs=7, pretrain_epochs=9), where)
    assert len(cells) == 4 * 2
    assert {cell.config.training.epochs for cell in cells} == {7}
    assert {cell.config.cluster.pretrain_epochs for cell in cells} == {9}
    with pytest.raises(UserError, match="data=digits") as caught:
        cells_of([STUDIES["main"]], "ours", RunSettings(), {"data": ["digits"]})
    assert caught.value.option == "where"


# --- results --------------------------------------------------------------------------------------------------------


def test_runs_are_found_by_what_they_are(add_run, store):
    for seed in (2, 0):
        add_run(ICM, 0.5 + seed / 10, seed=seed)
    add_run(ICM, 0.9, "paper")
    add_run(MIXUP, 0.1)
    runs = read([store]).find(ICM.setting, "ours")
    assert runs.values("accuracy_last") == [0.5, 0.7]
    assert (runs.seeds, runs.epochs) == ({0, 2}, 300)
    assert read([store]).find(ICM.setting, "paper").values("accuracy_best_on_test") == [0.9]
    assert read([store]).find(replace(ICM.setting, loss="s-nl"), "ours").rows == ()


def test_runs_of_different_length_or_clusters_are_never_averaged(add_run, store):
    short = RunSettings(pretrain_epochs=400)
    add_run(ICM, 0.1, epochs=100, seed=0), add_run(ICM, 0.2, epochs=100, seed=1)
    add_run(ICM, 0.6, seed=0)
    add_run(ICM, 0.7, seed=0, settings=short), add_run(ICM, 0.8, seed=1, settings=short)
    assert read([store]).find(ICM.setting, "ours").values("accuracy_last") == [0.7, 0.8]
    assert read([store], epochs=100).find(ICM.setting, "ours").values("accuracy_last") == [0.1, 0.2]
    assert read([store], epochs=50).find(ICM.setting, "ours").rows == ()


def test_runs_of_one_seed_count_once(add_run, store):
    add_run(MIXUP, 0.1)
    add_run(replace(MIXUP, setting=MIXUP.setting.with_(encoder="byol")), 0.2)  # plays no part for Mixup
    runs = read([store]).find(MIXUP.setting, "ours")
    assert len(runs.values("accuracy_last")) == len(runs.seeds) == 1


def test_identity_ignores_clusters_where_they_are_not_used():
    plain = config_of(MIXUP.setting, "ours")
    assert identity(plain) == identity(plain.with_(clusters=7, encoder="byol", epochs=3, seed=9))
    assert identity(plain) != identity(plain.with_(alpha=0.9))
    mixed = config_of(ICM.setting, "ours")
    assert identity(mixed) == identity(mixed.with_(assignments="a/b.safetensors", seed=4))
    assert identity(mixed) != identity(mixed.with_(clusters=51))


def test_encoder_epochs_are_read_from_the_file_of_the_clusters(add_run, store, tmp_path):
    """The file is found beside the results, even if its path belongs to another working folder."""
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    (tmp_path / "clusters").mkdir()
    made_by = {"pretrain": {"epochs": 400}}
    write_assignment(tmp_path / "clusters" / "x.safetensors", torch.arange(4) % 2, 2, images, made_by)
    entry = entry_of("main", "icm", data="cifar10", tail=100.0, loss="s-nl")
    path = add_run(entry, 0.3)
    assert encoder_epochs(row_of(path)) == 800
    config = RunSettings().config(entry, "ours").with_(assignments="results/clusters/x.safetensors")
    content = json.loads(path.read_text()) | {"config": asdict(config), "config_hash": config.hash()}
    path.write_text(json.dumps(content))
    assert encoder_epochs(row_of(path)) == 400
    assert read([store]).find(entry.setting, "ours").short == ["1 seed", "encoder of 400 epochs"]
    assert encoder_epochs(row_of(add_run(entry_of("main", "none", data="mnist", tail=1.0, loss="dm"), 0.3))) is None


def test_noise_ratio_counts_once_per_seed_whether_measured_alone_or_by_a_run(add_run, add_noise, store, tmp_path):
    for seed in (0, 1):
        add_noise(ICM, 0.06 + seed / 100, seed=seed)
    add_run(ICM, 0.9, seed=1, oracle_noise_ratio=0.5), add_run(ICM, 0.9, seed=2, oracle_noise_ratio=0.08)
    add_run(ICM, 0.9, seed=2, epochs=100, oracle_noise_ratio=0.5)  # noise does not depend on the length
    shutil.copytree(store / "noise", tmp_path / "copy")
    results = read([store, tmp_path / "copy"])
    runs = results.find_noise(ICM.setting, "ours")
    assert runs.values("oracle_noise_ratio") == pytest.approx([0.06, 0.07, 0.08])
    assert (runs.seeds, runs.epochs) == ({0, 1, 2}, None)
    assert results.find_noise(ICM.setting, "paper").rows == results.find_noise(MIXUP.setting, "ours").rows == ()
    assert (len(results.noise), len(results.rows)) == (2, 3)
    assert results.find(ICM.setting, "ours").seeds == {1, 2}
    assert read([store], epochs=5).find_noise(ICM.setting, "ours").seeds == {0, 1, 2}


def test_noise_ratios_of_different_clusters_are_never_averaged(add_run, add_noise, store):
    short = RunSettings(pretrain_epochs=400)
    add_noise(ICM, 0.06), add_noise(ICM, 0.1, settings=short)
    add_run(ICM, 0.9, seed=1, settings=short, oracle_noise_ratio=0.2)
    assert read([store]).find_noise(ICM.setting, "ours").values("oracle_noise_ratio") == [0.1, 0.2]


def test_noise_ratios_are_read_by_the_study_of_noise_only(add_noise, store):
    entry = entry_of("noise", "icm", data="cifar10", tail=100.0)
    add_noise(entry, 0.06)
    found = read([store])
    assert [e for e, runs in found.of(STUDIES["noise"], "ours").items() if runs.rows] == [entry]
    assert not any(runs.rows for runs in found.of(STUDIES["noise-accuracy"], "ours").values())


def test_progress_counts_runs_and_seeds(add_run, add_noise, store):
    study = STUDIES["intra"]
    for seed in (0, 1):
        add_run(study.entries[0], 0.3, seed=seed)
    now = progress(study, read([store]), "ours")
    assert (now.started, now.settings, now.runs, now.wanted, now.seeds) == (1, 2, 2, 6, (0, 2))
    assert now.minutes == pytest.approx(2.0)
    assert progress(study, read([store]), "ours", seeds=1).runs == 1
    assert progress(study, read([store], epochs=5), "ours").started == 0
    add_noise(STUDIES["noise"].entries[0], 0.16)
    now = progress(STUDIES["noise"], read([store]), "ours")
    assert (now.started, now.runs, now.wanted, now.minutes) == (1, 1, 96, pytest.approx(3 / 60))


def test_progress_counts_gradients_by_dataset_and_seed(add_gradients, store, tmp_path):
    study = STUDIES["gradients"]
    nothing = progress(study, Results(), "ours", 2)
    assert (nothing.started, nothing.settings, nothing.runs, nothing.seeds) == (0, 3, 0, (0, 0))
    add_gradients("mnist"), add_gradients("mnist", seed=1), add_gradients("cifar10", protocol="paper")
    shutil.copytree(store, tmp_path / "copy")  # the same once more
    results = read([store, tmp_path / "copy"])
    now = progress(study, results, "ours", 2)
    assert (now.started, now.runs, now.wanted, now.seeds, now.minutes) == (1, 2, 6, (0, 2), 4.0)
    assert progress(study, replace(results, epochs=5, _known={}, _noise={}), "ours").runs == 0
    assert progress(study, results, "paper").runs == 1


# --- files ----------------------------------------------------------------------------------------------------------


def test_read_of_missing_and_damaged_stores(store, add_run, add_noise):
    assert read([]).rows == read([store]).rows == ()
    with pytest.raises(UserError, match="nowhere"):
        read([Path("nowhere")])
    add_run(ICM, 0.5)
    half, odd = add_noise(ICM, 0.06), add_noise(ICM, 2.0, seed=1)
    half.write_text("{")
    with pytest.raises(Damaged, match=str(half)):
        read([store])
    found = read([store], skip_damaged=True)
    assert (len(found.rows), found.noise) == (1, ())
    assert [message.partition(" is damaged")[0] for message in found.skipped] == [str(half), str(odd)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"oracle_noise_ratio": 1.5}, "1.5.*between 0 and 1"),
        ({"oracle_noise_ratio": None}, "None"),
        ({"config": {"seed": 0, "mixing": {"colour": "red"}}}, "colour"),
        ({"config": 3}, "int"),
        ({"data": None}, "NoneType"),
    ],
)
def test_read_of_a_damaged_measurement_says_why(add_noise, change, reason):
    path = add_noise(ICM, 0.1)
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | change))
    with pytest.raises(Damaged, match=reason):
        read_measurement(path)
    path.write_text(json.dumps({name: value for name, value in good.items() if name != "seconds"}))
    with pytest.raises(Damaged, match="seconds"):
        read_measurement(path)


def test_read_of_damaged_gradients_says_why(add_gradients):
    path = add_gradients("mnist")
    assert read_measurement(path)["data"] == "mnist"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gradients": [{}]}))
    with pytest.raises(Damaged, match="step"):
        read_measurement(path)


def test_export_writes_one_small_file_per_result(add_run, store, tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        export(Path("nowhere"), tmp_path / "to")
    with pytest.raises(UserError, match="no finished run"):
        export(store, tmp_path / "to")
    paths = [add_run(ICM, 0.5, seed=seed) for seed in (0, 1)]
    for path in paths:
        folder = store / "runs" / path.stem
        folder.mkdir(parents=True)
        path.rename(folder / "result.json")
    made = export(store, tmp_path / "to")
    assert made == export(store, tmp_path / "to")
    assert sorted(path.name.rpartition("-")[2] for path in made) == ["seed0.json", "seed1.json"]
    assert all(path.name.startswith("cifar10-rho1-dm-icm-") for path in made)
    assert [read_result(path)["accuracy_last"] for path in made] == [0.5, 0.5]
    assert read([tmp_path / "to"]).find(ICM.setting, "ours").seeds == {0, 1}
    (store / "runs" / paths[0].stem / "result.json").write_text(json.dumps({"config": 3}))
    with pytest.raises(UserError, match="not the result of a training run"):
        export(store, tmp_path / "to")


def test_export_includes_noise_ratios_and_gradients(add_noise, add_gradients, store, tmp_path):
    entry = STUDIES["noise"].entries[0]
    paths = [add_noise(entry, 0.16, seed=seed) for seed in (0, 1)]
    paths.append(add_gradients("mnist"))
    made = export(store, tmp_path / "to")
    assert {path.name for path in made} == {path.name for path in paths}
    again = read([tmp_path / "to"])
    assert again.find_noise(entry.setting, "ours").values("oracle_noise_ratio") == [0.16, 0.16]
    assert len(again.gradients) == 1
    paths[0].write_text("{}")
    with pytest.raises(Damaged, match="protocol"):
        export(store, tmp_path / "to")
