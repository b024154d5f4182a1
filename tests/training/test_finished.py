"""A finished run with its data."""

import numpy as np
import pytest
import torch

from complementary import data, transitions
from complementary.config import Config
from complementary.errors import UserError
from complementary.training.finished import open_run
from complementary.training.run import run
from complementary.training.task import build_task

CONFIG = Config.of(data="digits", labels="biased:5", mix="none", epochs=2, batch=128)


def test_open_run_has_the_examples_of_the_training(tmp_path):
    run(CONFIG, tmp_path, device="cpu")
    found, task = open_run(tmp_path, device="cpu"), build_task(CONFIG)
    assert torch.equal(found.index[found.held_out], task.validation_index)
    assert torch.equal(found.index[~found.held_out], task.train_index)
    assert torch.equal(found.excluded[found.held_out], task.validation_excluded)
    assert torch.allclose(found.transition, transitions.biased(10, 5))
    assert torch.equal(found.truth, data.load("digits").train.truth)
    rows = torch.tensor([3, 700, 12])
    assert torch.allclose(found.probabilities(rows), found.predictor(data.load("digits").train.inputs[rows]))


def test_open_run_does_not_warn_of_some_dark_images(tmp_path, caplog):
    run(CONFIG, tmp_path, device="cpu")
    found = open_run(tmp_path, device="cpu")
    found.dataset.train.inputs[found.index[:2]] //= 16
    found.probabilities(torch.tensor([0, 1]))
    assert "largest pixel value" not in caplog.text


def test_open_run_knows_an_estimated_matrix(tmp_path):
    result = run(CONFIG.with_(transition="estimate", estimate_epochs=2), tmp_path, device="cpu")
    assert open_run(tmp_path).transition.tolist() == result["data"]["transition"]


def test_open_run_of_a_long_tail_with_an_oracle_matrix(tmp_path):
    config = CONFIG.with_(long_tail=5.0, loss="fwd", transition="oracle")
    run(config, tmp_path, device="cpu")
    assert torch.equal(open_run(tmp_path).transition, build_task(config).transition)


def test_weights_are_named(tmp_path):
    run(CONFIG.with_(holdout=0.0), tmp_path, device="cpu")
    assert open_run(tmp_path).weights == "last"
    assert open_run(tmp_path).temperature() is None
    assert not open_run(tmp_path).held_out.any()


def test_dataset_with_other_classes_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    for names in (("a", "b", "c"), ("a", "b", "d")):
        np.savez(tmp_path / "x.npz", inputs=rng.normal(size=(90, 4)), not_y=rng.integers(0, 3, 90), classes=names)
        if names[2] == "c":
            run(CONFIG.with_(data=str(tmp_path / "x.npz"), labels="given", batch=16), tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="a, b, d"):
        open_run(tmp_path / "run")
