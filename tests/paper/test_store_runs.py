import json
from dataclasses import replace

import pytest

from complementary.errors import UserError
from complementary.paper.protocols import config_of, examples
from complementary.paper.store import Amount, Results, cells_of, export, minutes, progress, read
from complementary.paper.studies import STUDIES
from complementary.sweeps.results import read_result
from tests.paper.conftest import entry_of

ICM = entry_of("main", "icm", data="cifar10", tail=1.0, loss="s-nl")


def test_what_two_studies_need_is_one_cell():
    both = cells_of([STUDIES["main"], STUDIES["losses"]], "ours", Amount(seeds=2))
    assert len(both) == 2 * 160
    assert [cell.config.seed for cell in both] == [0] * 160 + [1] * 160
    assert len(cells_of([STUDIES["losses"]], "ours", Amount(seeds=2))) == 2 * 16
    assert both[0].name == "cifar10 s-nl none ours seed=0"


def test_where_narrows_a_study():
    where = {"data": ["cifar10"], "long_tail": [100.0], "mix": ["icm", "micm"]}
    cells = cells_of([STUDIES["main"]], "paper", Amount(seeds=1, epochs=7, pretrain_epochs=9), where)
    assert len(cells) == 4 * 2
    assert {cell.config.training.epochs for cell in cells} == {7}
    assert {cell.config.cluster.pretrain_epochs for cell in cells} == {9}
    with pytest.raises(UserError, match=r"^No cell of the study is as --where asks \(data=digits\); see them with"):
        cells_of([STUDIES["main"]], "ours", Amount(), {"data": ["digits"]})


def test_the_time_that_is_left_comes_from_the_measured_speed(fake, store):
    study, amount = STUDIES["intra"], Amount(seeds=3)
    first, _ = study.entries
    fake(first, 0.3, train_seconds=90.0, images_per_second=2000.0)
    fake(first, 0.3, seed=1, train_seconds=30.0, images_per_second=4000.0)
    found = read([store])
    now = progress(study, found, "ours", amount)
    assert (now.started, now.entries, now.runs, now.wanted, now.seeds) == (1, 2, 2, 6, (0, 2))
    assert now.minutes == pytest.approx(2.0)
    images = 300 * (11165 // 512) * 512  # 12,406 less a tenth, whole batches
    assert round(examples(config_of(first.setting, "ours")) * 0.9) == 11165
    assert minutes(amount.config(first, "ours"), {("resnet18",): 3000.0}) == pytest.approx(images / 3000 / 60)
    assert minutes(amount.config(first, "ours"), {("mlp",): 3000.0}) is None
    assert now.left == pytest.approx(4 * images / 3000 / 60)  # one more of the first, three of the second
    assert progress(study, read([store], epochs=5), "ours", amount).started == 0
    assert progress(study, replace(found, rows=(), _known={}), "ours", amount).left is None


def test_noise_ratios_need_no_training_time(counted, store):
    study, amount = STUDIES["noise"], Amount(seeds=3)
    assert progress(study, read([store]), "ours", amount).left is None
    for seed in (0, 1):
        counted(study.entries[0], 0.16, seed=seed)
    now = progress(study, read([store]), "ours", amount)
    assert (now.started, now.runs, now.wanted, now.seeds, now.epochs) == (1, 2, 96, (0, 2), ())
    assert now.minutes == pytest.approx(2 * 3 / 60)
    assert now.left == pytest.approx((1 + 31 * 3) * 3 / 60)  # three seconds each
    whole = replace(study, entries=study.entries[:1])
    assert progress(whole, read([store]), "ours", Amount(seeds=2)).left == 0


def measured(folder, data, seed=0, epochs=300, protocol="ours"):
    settings = {"source": {"data": data}, "seed": seed, "training": {"epochs": epochs}}
    content = {"gradients": [], "protocol": protocol, "settings": settings, "seconds": 120.0}
    folder.mkdir(exist_ok=True)
    (folder / f"gradients-{data}-{protocol}-{epochs}-seed{seed}.json").write_text(json.dumps(content))


def test_gradients_are_counted_by_their_files(store, tmp_path):
    study, amount, stores = STUDIES["gradients"], Amount(seeds=2), [store, tmp_path / "copy"]
    nothing = progress(study, Results(), "ours", amount, stores)
    assert (nothing.started, nothing.entries, nothing.runs, nothing.seeds, nothing.left) == (0, 3, 0, (0, 0), None)
    measured(store, "mnist"), measured(store, "mnist", seed=1), measured(store, "cifar10", protocol="paper")
    measured(tmp_path / "copy", "mnist")  # the same once more
    now = progress(study, Results(), "ours", amount, stores)
    assert (now.started, now.runs, now.wanted, now.seeds, now.epochs) == (1, 2, 6, (0, 2), (300,))
    assert (now.minutes, now.left) == (4.0, 8.0)
    assert progress(study, Results(epochs=5), "ours", amount, stores).runs == 0
    assert progress(study, Results(), "paper", amount, stores).runs == 1


def test_noise_ratios_are_exported_too(counted, store, tmp_path):
    entry = STUDIES["noise"].entries[0]
    paths = [counted(entry, 0.16, seed=seed) for seed in (0, 1)]
    made = export(store, tmp_path / "to")
    assert [path.name for path in made] == sorted(path.name for path in paths)
    again = read([tmp_path / "to"])
    assert again.noise(entry.setting, "ours").values("noise_ratio") == [0.16, 0.16]
    assert again.measured == tuple(
        row | {"path": str(path)} for row, path in zip(read([store]).measured, made, strict=True)
    )
    paths[0].write_text("{}")
    with pytest.raises(UserError, match="is damaged: it has no noise_ratio"):
        export(store, tmp_path / "to")


def test_results_are_exported_one_small_file_each(fake, store, tmp_path):
    with pytest.raises(UserError, match=r"^There is no store nowhere;"):
        export(tmp_path.joinpath("nowhere").relative_to(tmp_path), tmp_path / "to")
    with pytest.raises(UserError, match=r"^There is no finished run in .*store to export\.$"):
        export(store, tmp_path / "to")
    paths = [fake(ICM, 0.5, seed=seed) for seed in (0, 1)]
    for path in paths:
        folder = store / "runs" / path.stem
        folder.mkdir(parents=True)
        path.rename(folder / "result.json")
    made = export(store, tmp_path / "to")
    assert made == export(store, tmp_path / "to")
    assert sorted(path.name.rpartition("-")[2] for path in made) == ["seed0.json", "seed1.json"]
    assert all(path.name.startswith("cifar10-rho1-s-nl-icm-") for path in made)
    assert [read_result(path)["accuracy_last"] for path in made] == [0.5, 0.5]
    again = read([tmp_path / "to"]).find(ICM.setting, "ours")
    assert again.seeds == {0, 1}
    (store / "runs" / paths[0].stem / "result.json").write_text(json.dumps({"config": 3}))
    with pytest.raises(UserError, match="not the result of a training run"):
        export(store, tmp_path / "to")
