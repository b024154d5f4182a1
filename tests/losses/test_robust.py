"""Bounded losses: wrong labels change neither their scale nor, for the linear loss, the minimizer."""

import torch

from complementary.losses import s_gce, s_lin, s_nl
from tests.losses.test_unbiased import LOGITS, MATRICES, TRUTH, expected


def test_s_lin_is_the_ordinary_linear_loss_in_expectation():
    ordinary = 1 - LOGITS.softmax(1)[torch.arange(5), TRUTH]
    torch.testing.assert_close(4 * expected(s_lin, MATRICES["uniform"]), ordinary, rtol=1e-4, atol=1e-5)


def test_s_lin_with_wrong_labels_is_a_linear_function_of_itself_without():
    """Symmetric noise adds a constant and a positive factor, so the minimizer stays the same."""
    clean, noisy = (expected(s_lin, MATRICES[name]) for name in ("uniform", "noisy"))
    slope = 0.96 - 0.04 * 4  # of four wrong classes and the true one
    torch.testing.assert_close(noisy, slope * clean + 0.04, rtol=1e-4, atol=1e-5)


def test_s_gce_is_bounded_and_s_nl_is_not():
    logits, label = torch.tensor([[0.0, 40.0]]), torch.tensor([[0.0, 1.0]])
    assert float(s_gce(logits, label)) <= 1 / 0.7
    assert float(s_nl(logits, label)) > 10


def test_s_gce_lies_between_s_lin_and_s_nl():
    label = torch.eye(5)
    assert bool((s_lin(LOGITS, label) <= s_gce(LOGITS, label) + 1e-6).all())
    assert bool((s_gce(LOGITS, label) <= s_nl(LOGITS, label) + 1e-4).all())
