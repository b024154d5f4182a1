import dataclasses

import pytest
import torch

from benchmarks.setting import (
    CPU,
    GPU,
    QUICK,
    Net,
    Setting,
    Timing,
    by_clock,
    by_events,
    clustered,
    in_turn,
    reserved_memory,
    synthetic,
    times_as_fast,
)
from complementary.engine.backend import Engine


def test_clustered_task_has_the_shape_of_cifar_and_no_validation_split():
    task = clustered(synthetic(100, 30), 7)
    assert task.inputs.dtype == torch.uint8
    assert task.inputs.shape == (100, 3, 32, 32)
    assert task.excluded.sum(1).tolist() == [1] * 100
    assert set(task.cluster.tolist()) == set(range(7))
    assert len(task.validation) == 0
    assert len(task.test_inputs) == 30


def test_config_names_network_mixer_and_batch():
    setting = Setting(Engine.choose("cpu"), QUICK)
    config = setting.config(Net("resnet18", 8, 1, 1, max_pool=False), "micm", seed=3)
    assert (config.network.model, config.network.max_pool) == ("resnet18", False)
    assert (config.mixing.mix, config.training.batch, config.seed) == ("micm", 8, 3)


@pytest.mark.parametrize("scale", [GPU, CPU, QUICK])
def test_scale_has_enough_images_for_its_steps(scale):
    for net in (*scale.networks, *scale.no_max_pool):
        assert scale.images >= 2 * net.batch
        assert scale.images >= scale.reference_steps * net.batch
        assert "none" in net.mixers
    assert dataclasses.asdict(scale)["images"] == scale.images


def test_timing_gives_median_and_quartiles():
    timing = Timing((0.005, 0.001, 0.003, 0.002, 0.004))
    assert timing.row() == pytest.approx({"ms": 3.0, "ms_low": 2.0, "ms_high": 4.0, "rounds": 5})
    assert Timing((0.25,)).row() == pytest.approx({"ms": 250.0, "ms_low": 250.0, "ms_high": 250.0, "rounds": 1})
    assert timing.per(10).median == pytest.approx(0.0003)


def test_times_as_fast_compares_neighboring_rounds():
    # the machine was ten times as slow in the last round
    fast, slow = Timing((1.0, 1.1, 10.0)), Timing((2.0, 2.2, 20.0))
    assert times_as_fast(fast, slow) == pytest.approx(2.0)
    assert times_as_fast(slow, fast) == pytest.approx(0.5)


def test_in_turn_rotates_the_order_of_the_variants():
    seen = []
    variants = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    timings = in_turn(variants, rounds=2, calls=2, device=torch.device("cpu"))
    assert "".join(seen) == "abc" + "aabbcc" + "bbccaa"
    assert {name: len(t.seconds) for name, t in timings.items()} == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("clock", [by_clock, by_events])
def test_timers_count_the_seconds_of_one_call(clock, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("benchmarks.setting.time.perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 2.0

    assert clock(call, 5, torch.device("cpu")) == 2.0


def test_reserved_memory_grows_with_allocations():
    before = reserved_memory(torch.device("cpu"))
    block = torch.ones(before // 4 + 50_000_000)  # float32: as much again, and 200 MB
    assert reserved_memory(torch.device("cpu")) >= before + 150_000_000
    del block
