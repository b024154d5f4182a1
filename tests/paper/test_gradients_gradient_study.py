"""The study end to end on the digits: identity, same weights for all, trained by the true gradient alone."""

import dataclasses
import json

import pytest
import torch

from complementary import data, networks, transitions
from complementary.augment.crop import normalise
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.errors import UserError
from complementary.labels import draw
from complementary.losses import s_nl
from complementary.paper import gradients
from complementary.paper.gradients import STUDY_METHODS, _batch, study
from complementary.training.task import validation_split

CONFIG = Config.of(data="digits", model="linear", batch=64, clusters=20, restarts=1)


@pytest.mark.parametrize(("loss", "model"), [("s-nl", "mlp"), ("fwd", "linear"), ("dm", "linear")])
def test_every_row_holds_the_identity(loss, model):
    methods = (*STUDY_METHODS, "mixup-noise-free", "intra-class")
    rows = study(CONFIG.with_(loss=loss, model=model, batch=32), methods=methods, steps=2, every=2, device="cpu")
    assert [(row["step"], row["method"]) for row in rows] == [(step, m) for step in (0, 2) for m in methods]
    for row in json.loads(json.dumps(rows)):  # plain values
        assert row["oracle_mse"] == pytest.approx(row["oracle_bias_squared"] + row["oracle_variance"], rel=1e-6)
        assert row["oracle_variance"] > 0
        assert row["loss"] == loss


def test_the_network_follows_the_true_gradient_alone():
    """The second measurement, by hand: one SGD step on cross-entropy, then the moments of the second batch."""
    digits = data.load("digits")
    found = study(CONFIG, digits, methods=("none",), steps=1, every=1, lr=0.5, device="cpu")
    train, _ = validation_split(len(digits.train), CONFIG.dataset.holdout, CONFIG.seed)
    inputs, truth = digits.train.inputs[train], digits.train.truth[train]
    x = normalise(inputs, torch.tensor(digits.mean), torch.tensor(digits.std))
    model = networks.build("linear", (1, 8, 8), 10, CONFIG.seed)
    for step in range(2):
        index = _batch(CONFIG, len(train), step)
        wanted = gradients.exact(model, s_nl, gradients.mixed(None, x[index], truth[index]), transitions.uniform(10))
        assert found[step]["oracle_mse"] == pytest.approx(float(wanted.mse), rel=1e-4)
        loss = torch.nn.functional.cross_entropy(model(x[index]), truth[index])
        for weight, slope in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            weight.data -= 0.5 * slope
    assert found[0]["oracle_mse"] != pytest.approx(found[1]["oracle_mse"], rel=1e-3)


def test_methods_do_not_disturb_each_other():
    together = study(CONFIG, methods=STUDY_METHODS, steps=2, every=1, device="cpu")
    alone = study(CONFIG, methods=("micm",), steps=2, every=1, device="cpu")
    assert [row for row in together if row["method"] == "micm"] == alone


def test_every_step_mixes_anew_and_all_methods_alike(monkeypatch):
    seeds, mixed = [], gradients.mixed

    def watched(mixer, x, truth, cluster, generator):
        seeds.append(generator.initial_seed())
        return mixed(mixer, x, truth, cluster, generator)

    monkeypatch.setattr(gradients, "mixed", watched)
    study(CONFIG, methods=("none", "mixup"), steps=1, every=1, device="cpu")
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_drawing_labels_gives_nearly_the_same():
    exact, drawn = (study(CONFIG, methods=("icm",), steps=0, draws=n, device="cpu")[0] for n in (None, 500))
    assert drawn["oracle_variance"] == pytest.approx(exact["oracle_variance"], rel=0.1)
    assert drawn["oracle_bias_squared"] == pytest.approx(exact["oracle_bias_squared"], rel=1e-4)


def given_labels(transition):
    digits = data.load("digits").train
    split = Split(digits.inputs, digits.truth, draw(digits.truth, transition, seed=5))
    return Dataset("given", split, None, tuple("0123456789"), (0.3,), (0.4,))


def test_labels_that_came_with_the_data_are_counted():
    """Annotators who always name the next class leave nothing to chance."""
    shifted = torch.eye(10, dtype=torch.float64).roll(1, dims=1)
    row = study(CONFIG, given_labels(shifted), methods=("none",), steps=0, device="cpu")[0]
    assert row["oracle_variance"] == pytest.approx(0, abs=1e-9)
    row = study(CONFIG, given_labels(transitions.uniform(10)), methods=("none",), steps=0, device="cpu")[0]
    assert row["oracle_variance"] > 1e-4


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"methods": ("mixdown",)}, {}, "The method 'mixdown' is not known; choose one of: none, mixup"),
        ({"methods": ("extra-class",)}, {}, "chooses partners by their labels"),
        ({"every": 0}, {}, "every 0"),
        ({}, {"per_example": 3}, "one label per example, but here examples have up to 3"),
        ({}, {"model": "cnn"}, "use draws=64"),
    ],
)
def test_bad_input_is_a_sentence(options, settings, message):
    with pytest.raises(UserError, match=message):
        study(CONFIG.with_(**settings), **{"steps": 0, "device": "cpu", "methods": ("none",)} | options)


def test_without_true_labels_there_is_no_study():
    blind = dataclasses.replace(given_labels(transitions.uniform(10)), name="blind")
    blind = dataclasses.replace(blind, train=dataclasses.replace(blind.train, truth=None))
    with pytest.raises(UserError, match="has no true labels, which an oracle study needs"):
        study(CONFIG, blind, methods=("none",), steps=0, device="cpu")
