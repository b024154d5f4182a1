"""Estimated accuracies of a training: each half of the validation split is measured at the epoch of the other half."""

import dataclasses

import pytest
import torch

from complementary import labels, transitions
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.rng import generator
from complementary.training.estimates import cross_fitted_predictions
from complementary.training.run import build_trainer, run, summarize

OPTIONS = {"labels": "given", "model": "linear", "mix": "none", "epochs": 4, "batch": 100, "lr": 0.03, "holdout": 0.4}


def clouds(sizes, matrix, seed=0, spread=1.0):
    """Vectors around one center per class, with complementary labels and a test set of the same population."""
    parts = []
    for part in range(2):
        source = generator(seed, "clouds", part)
        truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        inputs = 3 * torch.eye(len(sizes))[truth] + spread * torch.randn(len(truth), len(sizes), generator=source)
        parts.append(Split(inputs, truth, labels.draw(truth, matrix, seed=seed)))
    names, zeros, ones = tuple("abcdefgh"[: len(sizes)]), (0.0,) * len(sizes), (1.0,) * len(sizes)
    return Dataset("clouds", parts[0], dataclasses.replace(parts[1], excluded=None), names, zeros, ones)


def test_cross_fitted_predictions_come_from_the_epoch_of_the_other_half():
    trainer = build_trainer(Config.of(**OPTIONS), "cpu", clouds([200] * 3, transitions.uniform(3)))
    trainer.run()
    second, chosen = trainer.second_half, (2, 4)
    rows = iter(chosen)
    found = cross_fitted_predictions(trainer, lambda history: history[next(rows) - 1])
    for half, epoch in ((second, 2), (~second, 4)):
        assert torch.equal(found[half], trainer.validation_predictions[epoch - 1][half].long())
    assert abs(int(second.sum()) - len(second) / 2) < 1
    last = trainer.logits(trainer.task.validation).argmax(1)
    assert torch.equal(trainer.validation_predictions[-1].long(), last)


def test_result_has_the_accuracy_on_data_like_the_training_data():
    result = run(Config.of(**OPTIONS), dataset=clouds([900] * 4, transitions.uniform(4)))
    assert result["estimated_accuracy_low"] < result["accuracy_selected"] < result["estimated_accuracy_high"]
    assert result["estimated_balanced_accuracy_selected"] is None, "class sizes do not differ"
    assert result["estimate_notes"] == []


def test_result_of_classes_of_different_size_has_two_populations():
    dataset = clouds([6000, 3000, 1500], transitions.uniform(3), spread=2.0)
    result = run(Config.of(**OPTIONS), dataset=dataset)
    assert result["accuracy_selected"] > result["macro_accuracy_selected"] + 0.03
    on_data, balanced = (
        (result[f"{name}_low"], result[f"{name}_high"])
        for name in ("estimated_accuracy", "estimated_balanced_accuracy")
    )
    assert on_data[0] < result["accuracy_selected"] < on_data[1]
    assert balanced[0] < result["macro_accuracy_selected"] < balanced[1]
    assert balanced[1] < result["accuracy_selected"]


def test_result_says_why_there_is_no_estimate():
    result = run(Config.of(**OPTIONS), dataset=clouds([4000, 400, 60, 60, 60], transitions.uniform(5)))
    assert result["estimated_accuracy_selected"] is not None
    assert result["estimated_balanced_accuracy_selected"] is None
    assert len(result["estimate_notes"]) == 1
    config = Config.of(**OPTIONS | {"holdout": 0.0})
    assert run(config, dataset=clouds([200] * 3, transitions.uniform(3)))["estimated_accuracy_selected"] is None


@pytest.mark.slow
def test_result_with_an_estimated_matrix_has_the_matrix_and_its_error():
    matrix = transitions.noisy(3, 0.1)
    config = Config.of(**OPTIONS, transition="estimate", loss="fwd", estimate_epochs=4)
    trainer = build_trainer(config, "cpu", clouds([1200] * 3, matrix))
    trainer.run()
    result = summarize(trainer)
    found, error = (torch.tensor(result["data"][key]) for key in ("transition", "transition_error"))
    assert float((found - matrix).abs().max()) < 5 * float(error.max())
    assert float(found.diagonal().mean()) == pytest.approx(0.1, abs=0.03)
    assert result["estimated_accuracy_low"] < result["accuracy_selected"] < result["estimated_accuracy_high"]


@pytest.mark.slow
def test_result_says_that_an_encoder_has_seen_the_held_out_images():
    options = {"inputs": "features", "mix": "none", "epochs": 1, "holdout": 0.3}
    random = run(Config.of(**options, encoder="random"), device="cpu")
    assert not any("encoder" in note for note in random["estimate_notes"])
    seen = run(Config.of(**options, encoder="simsiam", pretrain_epochs=1), device="cpu")
    assert any("encoder" in note for note in seen["estimate_notes"])
