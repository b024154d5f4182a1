"""The rules of the comparison, on logits whose quality is known."""

import torch

from benchmarks.selection import choices, runs, table
from complementary import labels, transitions
from complementary.rng import generator


def test_choices_find_the_best_epoch_and_default_is_the_rule_of_training():
    matrix, truth = transitions.uniform(10), torch.arange(10).repeat(800)
    excluded = labels.draw(truth, matrix)
    noise = torch.randn(8000, 10, generator=generator(0, "noise"))
    one_hot = torch.eye(10)[truth]
    # the classes are told apart better and better, with more and more confidence; the last two epochs collapse
    epochs = [(1 + e) * (noise + s * one_hot) for e, s in enumerate([0.5, 1.0, 2.0, 3.0, 0.2, 0.1])]
    found = choices(torch.stack(epochs), excluded, matrix)
    assert found["last epoch"] == 5
    assert found["lowest calibrated SCEL"] == 3
    assert found["the default: calibrated SCEL with a margin"] == 3
    stored = {"c16-cnn-x": {"accuracy": [0.1, 0.2, 0.3, 0.5, 0.2, 0.1], "selected": {}}}
    accuracy = stored["c16-cnn-x"]["accuracy"]
    stored["c16-cnn-x"]["selected"] = {r: {"epoch": e + 1, "accuracy": accuracy[e]} for r, e in found.items()}
    assert "| lowest calibrated SCEL | +40.0 (+40.0) |" in table(stored)


def test_suites_have_the_stated_number_of_runs():
    assert {s: len(list(runs(s))) for s in ("digits", "features", "mlp", "cnn", "resnet")} == {
        "digits": 96,
        "features": 24,
        "mlp": 15,
        "cnn": 15,
        "resnet": 12,
    }
