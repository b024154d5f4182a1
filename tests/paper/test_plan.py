import dataclasses
import math

import pytest

from complementary.config import Config
from complementary.data import cache
from complementary.paper import plan
from complementary.paper.plan import KINDS, OpenRun, Speeds, encoder_name, fit, open_runs
from complementary.paper.store import Results, RunSettings, read
from complementary.paper.studies import STUDIES
from complementary.sweeps.grid import Cell
from tests.paper.conftest import entry_of

SPEEDS = Speeds("a GPU", {"resnet18": 50_000.0})


@pytest.fixture(autouse=True)
def _cifar10_and_mnist_in_the_cache(monkeypatch):
    monkeypatch.setattr(cache, "read_manifest", lambda root, name: {} if name in ("cifar10", "mnist") else None)


def runs_of(results=None, seeds=1, epochs=300, **more):
    found = open_runs(results or Results(), RunSettings(seeds, epochs), SPEEDS, **more)
    return found.runs


def a_run(name, minutes, comparison="c", encoder="", encoder_minutes=0.0):
    cell = Cell(Config.of(seed=hash(name) % 10**6), name)
    return OpenRun(cell, "main", KINDS[0], comparison, minutes, encoder, encoder_minutes)


# --- open runs ------------------------------------------------------------------------------------------------------


def test_open_runs_are_those_of_datasets_in_the_cache():
    found = open_runs(Results(), RunSettings(1), SPEEDS)
    assert {run.cell.config.dataset.data for run in found.runs} == {"cifar10", "mnist"}
    assert "kmnist" in found.unavailable
    assert "cifar10" not in found.unavailable
    assert len({run.cell.key for run in found.runs}) == len(found.runs)


def test_open_runs_name_the_networks_whose_speed_is_not_known():
    found = open_runs(Results(), RunSettings(1), SPEEDS, studies=[STUDIES["models"]])
    assert {run.cell.config.network.model for run in found.runs} == {"resnet18"}
    assert set(found.unmeasured) == {"mlp", "linear"}


def test_open_runs_skip_what_was_run_with_the_wanted_length(add_run, store):
    entry = entry_of("intra", "intra-class")
    key = RunSettings().config(entry, "plain").hash()[:16]
    assert key in {run.cell.key for run in runs_of()}
    add_run(entry, 0.4, "plain")
    assert key not in {run.cell.key for run in runs_of(read([store]))}
    again = RunSettings(epochs=200).config(entry, "plain").hash()[:16]
    assert again in {run.cell.key for run in runs_of(read([store]), epochs=200)}  # another length


def test_open_runs_have_settings_of_the_paper_then_first_seeds_then_published_cells_first():
    found = runs_of(seeds=2)
    order = [(run.kind == KINDS[-1], run.cell.config.seed, KINDS.index(run.kind)) for run in found]
    assert order == sorted(order)
    assert found[0].kind == "published cell"
    assert found[-1].kind == "not in the paper"


def test_open_runs_complete_a_comparison_before_they_begin_another(add_run, store):
    where = {"data": "mnist", "tail": 1.0, "loss": "dm", "bias": 10.0}
    for method in ("none", "mixup", "micm"):
        add_run(entry_of("setup2-mnist", method, **where), 0.5, "plain")
    trained = {encoder_name(run.cell.config) for run in runs_of()}
    first = runs_of(read([store]), cached_encoders=trained)[:3]
    assert entry_of("setup2-mnist", "icm", **where).name in {
        run.cell.name.removesuffix(" plain seed=0") for run in first
    }


def test_open_runs_have_the_protocol_that_is_nearest_to_the_paper():
    protocols = {run.study: run.cell.name.split()[-2] for run in runs_of(studies=STUDIES.values())}
    assert protocols.pop("as-coded") == "paper"
    assert protocols.pop("augment") == "ours"
    assert set(protocols.values()) == {"plain"}
    assert {run.cell.name.split()[-2] for run in runs_of(protocol="ours")} == {"ours"}


@pytest.mark.parametrize("protocol", ["ours", "paper"])
def test_open_runs_begin_with_settings_without_a_run_under_any_protocol(add_run, store, protocol):
    studies, only = [STUDIES["main"]], {"data": ["mnist"], "mix": ["none", "mixup"]}
    first = runs_of(studies=studies, only=only)[0]
    name = first.cell.name.removesuffix(" plain seed=0")
    (entry,) = [entry for entry in STUDIES["main"].entries if entry.name == name]
    add_run(entry, 0.5, protocol, epochs=100)  # another protocol, and shorter: but it has a run
    found = runs_of(read([store]), studies=studies, only=only, seeds=2)
    assert [run.tried for run in found] == sorted(run.tried for run in found)
    assert [run.cell.key for run in found if run.tried][:1] == [first.cell.key]
    assert found[-2].cell.key == first.cell.key, "after the second seeds of settings without a run"
    assert not any(run.tried for run in runs_of(studies=studies))


def test_open_runs_count_an_encoder_that_is_not_cached():
    (run,) = [r for r in runs_of() if r.study == "main" and r.cell.name == "cifar10 ρ=100 s-nl icm plain seed=0"]
    images = 12_406 * 800
    assert run.encoder_minutes == pytest.approx(plan.MARGIN * plan.PRETRAINING * images / 50_000 / 60)
    found = runs_of(cached_encoders={run.encoder})
    (same,) = [r for r in found if r.cell.key == run.cell.key]
    assert (same.encoder, same.encoder_minutes) == ("", 0.0)
    assert not any(r.encoder for r in runs_of() if r.cell.config.mixing.mix in ("none", "mixup"))


def test_open_runs_whose_encoder_would_take_an_unknown_time_are_left_out():
    cpu = Speeds("cpu (2 threads)", {"mlp": 9_000.0, "linear": 50_000.0})  # no ResNet-18, which the encoder is
    found = open_runs(Results(), RunSettings(1), cpu, studies=[STUDIES["models"]])
    methods = {run.cell.config.mixing.mix for run in found.runs if run.encoder}
    assert methods == {"icm"}
    assert all(run.encoder_minutes == math.inf for run in found.runs if run.encoder)
    left = found.with_known_costs()
    assert {run.cell.config.mixing.mix for run in left.runs} == {"none", "mixup"}
    assert left.unmeasured == ("resnet18", "resnet18 (pretraining)")
    cached = {run.encoder for run in found.runs}
    known = open_runs(Results(), RunSettings(1), cpu, cached_encoders=cached, studies=[STUDIES["models"]])
    assert known.with_known_costs() == known


def test_open_runs_of_chosen_studies_and_settings():
    found = runs_of(studies=[STUDIES["main"]], only={"loss": ["dm"], "long_tail": [100.0]})
    assert {(run.study, run.cell.config.training.loss, run.cell.config.dataset.long_tail) for run in found} == {
        ("main", "dm", 100.0)
    }
    assert len(found) == 8  # four methods on two datasets


# --- costs ----------------------------------------------------------------------------------------------------------


def test_speeds_are_those_of_this_device_or_of_one_of_its_kind():
    measured = [(0.1, 40_000.0), (0.1, 60_000.0), (0.0, 30_000.0)]
    rows = [
        {"device": "NVIDIA H200", "model": "resnet18", "images_per_second": speed, "holdout": holdout}
        for holdout, speed in measured
    ]
    rows += [{"device": "cpu (2 threads)", "model": "mlp", "images_per_second": 9_000.0, "holdout": 0.1}]
    slower = [{"device": "cpu (1 thread)", "model": "linear", "images_per_second": 5_000.0, "holdout": 0.1}]
    assert Speeds.of(rows + slower, "cpu (2 threads)").by_model == {"mlp": 9_000.0, "linear": 5_000.0}
    found = Speeds.of(rows, "NVIDIA H200")
    assert found == Speeds("NVIDIA H200", {"resnet18": pytest.approx(48_000.0)}, {"resnet18": 30_000.0})  # harmonic
    assert Speeds.of(rows[2:3], "NVIDIA H200").by_model == {"resnet18": 30_000.0}
    assert Speeds.of(rows, "another GPU").device == "NVIDIA H200"
    assert Speeds.of(rows, "cpu (1 thread)").by_model == {"mlp": 9_000.0}
    assert Speeds.of(rows[3:], "NVIDIA H200") is None
    config = RunSettings().config(entry_of("main", "none", data="cifar10", tail=100.0, loss="s-nl"), "ours")
    steps = 300 * (round(12_406 * 0.9) // 512)
    assert SPEEDS.minutes(config) == pytest.approx(plan.MARGIN * steps * 512 / 50_000 / 60)
    assert SPEEDS.minutes(config.with_(model="mlp")) is None
    coded = RunSettings().config(entry_of("main", "none", data="cifar10", tail=100.0, loss="s-nl"), "paper")
    assert found.minutes(coded) == pytest.approx(plan.MARGIN * 300 * (12_406 // 512) * 512 / 30_000 / 60)


# --- what fits ------------------------------------------------------------------------------------------------------


def test_fit_never_plans_what_cannot_end_in_time():
    runs = [a_run("a", 4.0, "1"), a_run("b", 4.0, "2"), a_run("c", 4.0, "3"), a_run("d", 1.5, "4")]
    chosen = fit(runs, 6.0, lanes=2)
    assert [run.cell.name for run in chosen.runs] == ["a", "b", "d"]  # c would end after 8 minutes
    assert chosen.minutes == 5.5
    assert fit(runs, 1.0, lanes=2).runs == ()
    assert [run.cell.name for run in fit(runs, 6.0, lanes=2, start=1.0).runs] == ["a", "b"]  # d would end after 6.5


def test_fit_prefers_complete_comparisons_and_fills_up_with_single_runs():
    runs = [a_run("a1", 2.0, "a"), a_run("a2", 2.0, "a"), a_run("a3", 2.0, "a"), a_run("b1", 2.0, "b")]
    assert [run.cell.name for run in fit(runs, 4.0, lanes=1).runs] == ["b1", "a1"]
    assert [run.cell.name for run in fit(runs, 6.0, lanes=1).runs] == ["a1", "a2", "a3"]


def test_fit_pays_for_an_encoder_once():
    runs = [a_run(name, 1.0, name, "simsiam", 5.0) for name in "abc"]
    assert fit(runs, 5.9, lanes=1).runs == ()
    assert [run.cell.name for run in fit(runs, 7.0, lanes=1).runs] == ["a", "b"]
    assert fit(runs, 6.0, lanes=3).minutes == 6.0  # the others wait for it
    assert len(fit(runs, 6.0, lanes=3).runs) == 3
    assert plan.cost(runs, 2) == 4.0


def test_encoder_name_is_the_same_for_runs_that_share_an_encoder():
    icm, micm = (
        RunSettings().config(entry_of("main", mix, data="cifar10", tail=100.0, loss="s-nl"), "ours")
        for mix in ("icm", "micm")
    )
    assert encoder_name(icm) == encoder_name(micm) != ""
    assert encoder_name(icm.with_(seed=3, loss="dm")) == encoder_name(icm)
    assert encoder_name(icm.with_(long_tail=10)) != encoder_name(icm)
    assert encoder_name(icm.with_(encoder="pixels")) == encoder_name(icm.with_(assignments="x")) == ""
    assert encoder_name(icm.with_(mix="none")) == ""


def test_every_study_with_training_has_open_runs(monkeypatch):
    monkeypatch.setattr(cache, "read_manifest", lambda root, name: {})
    every = dataclasses.replace(SPEEDS, by_model=dict.fromkeys(("resnet18", "mlp", "linear"), 1e4))
    keys = {run.cell.key for run in open_runs(Results(), RunSettings(1), every).runs}
    for study in STUDIES.values():
        for entry in study.entries if study.runner == "training" else ():
            assert RunSettings().config(entry, study.planned).hash()[:16] in keys
