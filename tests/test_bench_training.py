import dataclasses

import pytest
import torch

from complementary import bench_training
from complementary.bench_setting import QUICK, Net, Setting
from complementary.engine.backend import Engine
from complementary.training.trainer import Trainer


@pytest.fixture
def setting():
    tiny = dataclasses.replace(QUICK, networks=(Net("linear", 32, 2, 2),), packs=(1, 3))
    return Setting(Engine.choose("cpu"), tiny, lambda _: None)


def test_a_stepper_trains_for_ever_and_never_evaluates(setting, monkeypatch):
    job = Trainer(setting.config(setting.scale.networks[0], "icm"), setting.task, setting.engine)
    orders = []
    monkeypatch.setattr(Trainer, "evaluate", lambda _: pytest.fail("evaluated"))
    monkeypatch.setattr(Trainer, "open_epoch", lambda job: orders.append(job.epoch))
    step = bench_training.stepper(job)
    for _ in range(14):
        step()
    assert int(job.steps_taken) == 14
    assert job.steps_per_epoch == 3
    assert len(orders) == 7  # shuffled again after every two


def test_steps_compare_every_mixer_with_none(setting):
    rows = bench_training.steps(setting)
    assert [row["mix"] for row in rows] == ["none", "mixup", "icm", "micm"]
    assert rows[0]["speed_to_none"] == 1.0
    for row in rows:
        assert row["images_per_second"] == pytest.approx(32 / row["ms"] * 1e3)
        assert row["first_step_s"] > 0
        assert (row["network"], row["batch"], row["rounds"]) == ("linear", 32, 2)


def test_stages_are_those_of_the_step(setting):
    rows = {row["stage"]: row for row in bench_training.stages(setting)}
    assert list(rows) == [
        "load",
        "mix (icm)",
        "forward + backward",
        "optimiser",
        "mix (micm)",
        "whole step (icm)",
        "evaluate the test set",
    ]
    assert rows["whole step (icm)"]["share_of_step"] == 1.0
    assert rows["evaluate the test set"]["share_of_step"] is None
    assert rows["load"]["share_of_step"] == pytest.approx(rows["load"]["ms"] / rows["whole step (icm)"]["ms"])


def test_the_stages_one_after_the_other_are_the_step(setting):
    """Load, mix, forward + backward and update on one stream of random numbers end in the weights of `step`."""
    whole, parts = (bench_training.trainer_of(setting, setting.scale.networks[0], "icm")() for _ in range(2))
    index = torch.arange(32)
    whole.step(index, torch.Generator().manual_seed(5))
    random = torch.Generator().manual_seed(5)
    x, excluded = parts.load(index, random)
    x, excluded = bench_training.mixed(parts, x, excluded, index, random)
    assert bool((excluded.sum(1) > 0).all())  # nobody alone: the mean over all is the mean over the labelled
    bench_training.forward_backward(parts, parts.model, x, excluded)
    parts.optimiser.step()
    torch.testing.assert_close(dict(parts.model.state_dict()), dict(whole.model.state_dict()))


def test_packing_counts_the_images_of_all(setting):
    rows = bench_training.packing(setting)
    assert [row["trainings"] for row in rows] == [1, 3]
    assert rows[0]["times_alone"] == 1.0
    assert rows[1]["images_per_second"] == pytest.approx(3 * 32 / rows[1]["ms"] * 1e3)


def test_a_failure_of_a_packed_training_is_not_hidden(setting, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(Trainer, "step", fail)
    with pytest.raises(RuntimeError, match="no"):
        bench_training.packing(setting)


@pytest.mark.parametrize("encoder", ["simsiam", "byol", "mocov3"])
def test_encoders_count_two_views_of_each_image(setting, encoder):
    [row] = getattr(bench_training, encoder)(setting)
    assert (row["encoder"], row["body"]) == (encoder, "cnn")
    assert row["views_per_second"] == pytest.approx(2 * 16 / row["ms"] * 1e3)
