"""Losses for several labels: MAE is unbiased for any number of them."""

import pytest
import torch

from complementary.losses import mcl_exp, mcl_log, mcl_mae, s_nl
from tests.losses.test_unbiased import LOGITS, MATRICES, TRUTH, expected


@pytest.mark.parametrize("several", [1, 2, 3, 4])
def test_mcl_mae_is_the_mean_absolute_error_in_expectation(several):
    ordinary = 2 - 2 * LOGITS.softmax(1)[torch.arange(5), TRUTH]
    torch.testing.assert_close(expected(mcl_mae, MATRICES["uniform"], several), ordinary, rtol=1e-4, atol=1e-5)


def test_mcl_log_of_one_label_is_a_multiple_of_s_nl():
    labels = torch.eye(5)
    torch.testing.assert_close(mcl_log(LOGITS, labels), 4 * s_nl(LOGITS, labels), rtol=1e-3, atol=1e-4)


def test_mcl_log_keeps_its_gradient_where_that_of_s_nl_vanishes():
    logits, label = torch.tensor([[0.0, 30.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    slopes = []
    for loss in (mcl_log, s_nl):
        leaf = logits.clone().requires_grad_()
        loss(leaf, label).sum().backward()
        slopes.append(float(leaf.grad.abs().max()))
    assert slopes[0] == pytest.approx(2, rel=1e-4)
    assert slopes[1] < 1e-4


def test_mcl_exp_and_log_are_smaller_the_less_the_excluded_classes_get():
    label = torch.tensor([[1.0, 1.0, 0.0]])
    for loss in (mcl_mae, mcl_exp, mcl_log):
        values = [float(loss(torch.tensor([[0.0, 0.0, z]]), label)) for z in (-3.0, 0.0, 3.0, 6.0)]
        assert values == sorted(values, reverse=True)
