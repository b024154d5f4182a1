"""Estimates from complementary labels against counts with true labels."""

import math

import numpy as np
import pytest
import torch

from complementary import labels, scores, transitions
from complementary.reports.confusions import (
    class_estimates,
    estimate_accuracy,
    estimate_confusions,
    estimate_prior,
    model_confusions,
    oracle_confusions,
)

K = 4
MATRIX = 0.95 * transitions.biased(K, 3) + 0.05 * torch.eye(K, dtype=torch.float64)


def simulate(count=20_000, seed=0):
    source = torch.Generator().manual_seed(seed)
    truth = torch.multinomial(torch.tensor([0.4, 0.3, 0.2, 0.1]), count, replacement=True, generator=source)
    slips = torch.rand(count, generator=source) < 0.25
    predicted = torch.where(slips, (truth + 1) % K, truth)
    return truth, predicted, labels.draw(truth, MATRIX, seed=seed)


def test_estimates_agree_with_true_labels_within_their_errors():
    truth, predicted, excluded = simulate()
    estimated, counted = estimate_confusions(predicted, excluded, MATRIX), oracle_confusions(predicted, truth, K)
    assert (np.abs(estimated.share - counted.share) < 4 * estimated.error).all()
    assert estimated.share.sum() == pytest.approx(1)
    assert (estimated.source, counted.source) == ("labels", "oracle")
    for found, wanted in zip(estimated.precision(), counted.precision(), strict=True):
        assert found.value == pytest.approx(wanted.value, abs=4 * found.error)
    shares = torch.bincount(truth).double() / len(truth)
    for found, wanted in zip(estimate_prior(excluded, MATRIX), shares.tolist(), strict=True):
        assert found.value == pytest.approx(wanted, abs=4 * found.error)
        assert found.error < 0.03
    accuracy = estimate_accuracy(predicted, excluded, MATRIX)
    assert accuracy.value == pytest.approx(float((predicted == truth).double().mean()), abs=4 * accuracy.error)


def test_errors_are_the_spread_over_draws_of_the_labels():
    draws = [estimate_confusions(p, e, MATRIX) for _, p, e in (simulate(1000, seed) for seed in range(60))]
    spread = np.stack([d.share for d in draws]).std(0)
    assert spread == pytest.approx(np.mean([d.error for d in draws], 0), rel=0.4)


def test_worst_confusions_are_the_planted_ones():
    _, predicted, excluded = simulate()
    worst = estimate_confusions(predicted, excluded, MATRIX).worst(3)
    assert [(i, j) for i, j, _ in worst] == [(0, 1), (1, 2), (2, 3)]


def test_estimated_accuracy_without_a_contrary_label_has_an_error():
    found = estimate_accuracy(torch.zeros(100).long(), torch.eye(10)[torch.full((100,), 3)], transitions.uniform(10))
    assert found.value == pytest.approx(1)
    assert found.error == pytest.approx(0.09), "what one contrary label of 100 changes"


def test_estimate_accuracy_agrees_with_scores():
    _, predicted, excluded = simulate(500)
    logits = torch.nn.functional.one_hot(predicted, K).float()
    wanted = float(scores.estimated_accuracy(logits, excluded, MATRIX))
    assert estimate_accuracy(predicted, excluded, MATRIX).value == pytest.approx(wanted, abs=1e-5)


def test_class_estimates_of_a_singular_matrix_are_unknown():
    flat = torch.full((K, K), 1 / K)
    assert class_estimates(torch.eye(K), flat).isnan().all()
    assert math.isnan(estimate_accuracy(torch.arange(K), torch.eye(K), flat).value)


def test_precision_of_a_class_that_is_never_predicted_is_unknown():
    found = oracle_confusions(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 0]), 2).precision()
    assert found[0].value == pytest.approx(2 / 3)
    assert math.isnan(found[1].value)


def test_model_confusions_of_a_calibrated_model_agree_with_true_labels():
    source = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(20_000, K, generator=source)).softmax(1)
    truth = torch.multinomial(probabilities, 1, generator=source)[:, 0]
    predicted = probabilities.argmax(1)
    found, wanted = model_confusions(predicted, probabilities), oracle_confusions(predicted, truth, K)
    assert found.share == pytest.approx(wanted.share, abs=0.01)
    assert (found.error < wanted.error).all()
