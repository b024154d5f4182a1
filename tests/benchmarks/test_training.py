import dataclasses

import pytest
import torch

from benchmarks import training
from benchmarks.setting import QUICK, Net, Setting
from complementary.engine.backend import Engine
from complementary.training.trainer import Trainer


@pytest.fixture
def setting():
    tiny = dataclasses.replace(QUICK, networks=(Net("linear", 32, 2, 2),), packs=(1, 3))
    return Setting(Engine.choose("cpu"), tiny)


def test_stepper_never_ends_an_epoch_and_never_evaluates(setting, monkeypatch):
    trainer = Trainer(setting.config(setting.scale.networks[0], "icm"), setting.task, setting.engine)
    orders = []
    monkeypatch.setattr(Trainer, "evaluate", lambda _: pytest.fail("evaluated"))
    monkeypatch.setattr(Trainer, "on_epoch_start", lambda trainer: orders.append(trainer.epoch))
    step = training.stepper(trainer)
    for _ in range(14):
        step()
    assert int(trainer.steps_taken) == 14
    assert trainer.steps_per_epoch == 3
    assert len(orders) == 7  # shuffled again after every two


def test_steps_compare_every_mixer_with_none(setting):
    rows = training.steps(setting)
    assert [row["mix"] for row in rows] == ["none", "mixup", "icm", "micm"]
    assert rows[0]["speed_to_none"] == 1.0
    for row in rows:
        assert row["images_per_second"] == pytest.approx(32 / row["ms"] * 1e3)
        assert row["first_step_s"] > 0
        assert (row["network"], row["batch"], row["rounds"]) == ("linear", 32, 2)


def test_stages_cover_the_step(setting):
    rows = {row["stage"]: row for row in training.stages(setting)}
    assert list(rows) == [
        "load",
        "mix (icm)",
        "forward + backward",
        "optimizer",
        "mix (micm)",
        "whole step (icm)",
        "evaluate the test set",
    ]
    assert rows["whole step (icm)"]["share_of_step"] == 1.0
    assert rows["evaluate the test set"]["share_of_step"] is None
    assert rows["load"]["share_of_step"] == pytest.approx(rows["load"]["ms"] / rows["whole step (icm)"]["ms"])


def test_stages_in_sequence_equal_the_step(setting):
    whole, parts = (training.trainer_of(setting, setting.scale.networks[0], "icm")() for _ in range(2))
    index = torch.arange(32)
    whole.step(index, torch.Generator().manual_seed(5))
    random = torch.Generator().manual_seed(5)
    x, excluded = parts.load(index, random)
    x, excluded = training.mixed(parts, x, excluded, index, random)
    assert bool((excluded.sum(1) > 0).all())  # every example has a partner, so the mean is over all
    training.forward_backward(parts, parts.model, x, excluded)
    parts.optimizer.step()
    torch.testing.assert_close(dict(parts.model.state_dict()), dict(whole.model.state_dict()))


def test_packing_counts_the_images_of_all_trainings(setting):
    rows = training.packing(setting)
    assert [row["trainings"] for row in rows] == [1, 3]
    assert rows[0]["times_alone"] == 1.0
    assert rows[1]["images_per_second"] == pytest.approx(3 * 32 / rows[1]["ms"] * 1e3)


def test_packing_raises_the_error_of_a_training(setting, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(Trainer, "step", fail)
    with pytest.raises(RuntimeError, match="no"):
        training.packing(setting)


@pytest.mark.parametrize("encoder", ["simsiam", "byol", "mocov3"])
def test_pretraining_counts_two_views_per_image(setting, encoder):
    [row] = getattr(training, encoder)(setting)
    assert (row["encoder"], row["body"]) == (encoder, "cnn")
    assert row["views_per_second"] == pytest.approx(2 * 16 / row["ms"] * 1e3)
