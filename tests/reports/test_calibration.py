"""Calibration from complementary labels against calibration from true labels."""

import pytest
import torch

from complementary import labels, transitions
from complementary.reports.calibration import calibration, with_temperature

MATRIX = transitions.uniform(5)


def simulate(count=20_000, sharpness=1.0):
    source = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 5, generator=source, dtype=torch.float64)
    truth = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    return (sharpness * logits).softmax(1), truth, labels.draw(truth, MATRIX, seed=1)


def test_estimated_accuracies_of_bins_agree_with_true_labels():
    probabilities, truth, excluded = simulate(sharpness=3.0)
    estimated, oracle = calibration(probabilities, excluded, MATRIX), calibration(probabilities, truth=truth)
    assert (estimated.oracle, oracle.oracle) == (False, True)
    assert [b.count for b in estimated.bins] == [2000] * 10
    for found, wanted in zip(estimated.bins, oracle.bins, strict=True):
        assert found.confidence == wanted.confidence
        assert found.accuracy.value == pytest.approx(wanted.accuracy.value, abs=4 * found.accuracy.error)


def test_gap_is_small_for_calibrated_and_large_for_confident_models():
    calibrated, confident = (calibration(p, truth=truth) for p, truth, _ in (simulate(), simulate(sharpness=4.0)))
    assert calibrated.gap < 0.02
    assert confident.gap > 0.1


def test_temperature_undoes_too_much_confidence():
    probabilities, truth, _ = simulate(sharpness=3.0)
    assert calibration(with_temperature(probabilities, 3.0), truth=truth).gap < 0.02
    assert torch.allclose(with_temperature(probabilities, 1.0), probabilities)


def test_few_examples_make_one_bin():
    probabilities, _, excluded = simulate(150)
    assert [b.count for b in calibration(probabilities, excluded, MATRIX).bins] == [150]
