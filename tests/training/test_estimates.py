"""Estimated accuracies of a training: each half of the validation split is measured at the epoch of the other half."""

import dataclasses

import pytest
import torch

from complementary import files, labels, scores, transitions
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.encoders.seen import KEY
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training.estimates import ASSUMED_UNIFORM, UNKNOWN, cross_fitted_predictions
from complementary.training.run import build_trainer, run, summarize
from tests.helpers import narrow_networks

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
    assert result["estimate_notes"] == [ASSUMED_UNIFORM]


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
    assert len(result["estimate_notes"]) == 2
    config = Config.of(**OPTIONS | {"holdout": 0.0})
    assert run(config, dataset=clouds([200] * 3, transitions.uniform(3)))["estimated_accuracy_selected"] is None


def test_result_says_that_answers_are_assumed_to_be_right_and_uniform():
    own, config = clouds([200] * 3, transitions.uniform(3)), Config.of(**OPTIONS | {"estimate_epochs": 1})
    for options, noted in (
        ({}, True),
        ({"transition": "uniform"}, False),  # the user says so
        ({"transition": "estimate", "loss": "fwd"}, False),
        ({"labels": "uniform"}, False),  # drawn
        ({"holdout": 0.0}, False),  # no estimate
    ):
        notes = run(config.with_(**options), device="cpu", dataset=own)["estimate_notes"]
        assert (ASSUMED_UNIFORM in notes) is noted


@pytest.mark.slow
def test_result_with_an_estimated_matrix_has_the_matrix_and_its_error():
    matrix = transitions.noisy(3, 0.1)
    config = Config.of(**OPTIONS, transition="estimate", loss="fwd", estimate_epochs=4)
    trainer = build_trainer(config, "cpu", clouds([800] * 3, matrix))
    trainer.run()
    result = summarize(trainer)
    found, error = (torch.tensor(result["data"][key]) for key in ("transition", "transition_error"))
    assert float((found - matrix).abs().max()) < 5 * float(error.max())
    assert float(found.diagonal().mean()) == pytest.approx(0.1, abs=0.03)
    assert result["estimated_accuracy_low"] < result["accuracy_selected"] < result["estimated_accuracy_high"]


def test_held_out_images_that_the_encoder_has_seen_are_a_population_of_their_own():
    """Each population is estimated from its own examples, with its own labels."""
    trainer = build_trainer(Config.of(**OPTIONS), "cpu", clouds([900] * 3, transitions.uniform(3)))
    trainer.run()
    task, count = trainer.task, len(trainer.task.validation)
    seen = torch.arange(count) % 3 == 0
    trainer.task = dataclasses.replace(task, validation_seen=seen)
    result = summarize(trainer)
    predicted = cross_fitted_predictions(trainer, lambda history: history[history[-1]["selected"] - 1])
    for name, rows in (("estimated_accuracy", ~seen), ("estimated_seen_accuracy", seen)):
        wanted = scores.accuracy_interval(predicted[rows], task.validation_excluded[rows], task.transition)
        found = tuple(result[f"{name}_{part}"] for part in ("selected", "low", "high"))
        assert found == (wanted.value, wanted.low, wanted.high)
    trainer.task = dataclasses.replace(task, validation_seen=torch.ones(count, dtype=torch.bool))
    result = summarize(trainer)
    assert result["estimated_accuracy_selected"] is None
    assert result["estimated_seen_accuracy_selected"] is not None


def test_estimate_of_an_encoder_made_elsewhere_says_what_it_assumes():
    dataset = clouds([200] * 3, transitions.uniform(3))
    trainer = build_trainer(Config.of(**OPTIONS), "cpu", dataset)
    trainer.run()
    assert len(summarize(trainer)["estimate_notes"]) == 1
    trainer.encoder = object()
    assert len(summarize(trainer)["estimate_notes"]) == 2
    assert summarize(trainer)["estimated_accuracy_selected"] is not None


@pytest.mark.slow
def test_run_whose_encoder_has_not_seen_the_held_out_images_has_a_number_for_new_images(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    narrow_networks(monkeypatch)
    options = {"inputs": "features", "mix": "none", "epochs": 1, "holdout": 0.5, "pretrain_epochs": 1, "per_example": 3}
    counts = []
    for encoder, images in (("random", "all"), ("simsiam", "training"), ("simsiam", "all")):
        config = Config.of(**options, encoder=encoder, pretrain_images=images)
        result = run(config, tmp_path / f"{encoder}-{images}", device="cpu")
        new, seen = (result[f"estimated_{name}accuracy_selected"] for name in ("", "seen_"))
        assert (new is None) == (encoder == "simsiam" and images == "all")
        assert (seen is None) != (new is None)
        assert len(result["estimate_notes"]) == (new is None)
        counts.append(result["data"]["held_out_seen"])
    assert counts == [0, 0, round(0.5 * 1437)]
    other = Config.of(**options, encoder=f"run:{tmp_path / 'simsiam-training'}", seed=1)
    result = run(other, device="cpu")  # the encoder of another seed has seen some of the held-out images
    assert 0.4 < result["data"]["held_out_seen"] / result["data"]["held_out"] < 0.6
    assert result["estimated_accuracy_selected"] is not None
    assert result["estimated_seen_accuracy_selected"] is not None
    path = tmp_path / "older.safetensors"
    tensors, record = files.read_checkpoint(tmp_path / "simsiam-training" / "encoder.safetensors")
    files.write_checkpoint(path, {k: v for k, v in tensors.items() if k != KEY}, record)
    result = run(Config.of(**options, encoder=f"file:{path}"), device="cpu")
    assert result["estimated_accuracy_selected"] is None, "an older file does not say what the encoder has seen"
    assert result["estimate_notes"] == [UNKNOWN]
    with pytest.raises(UserError) as caught:
        run(Config.of(**options, encoder="simsiam", pretrain_images="training", encoder_seed=5), device="cpu")
    assert caught.value.option == "encoder_seed"
