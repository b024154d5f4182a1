"""Pairwise comparison is an unbiased estimate of the ordinary pairwise loss."""

import torch

from complementary.losses import pc
from tests.losses.test_unbiased import LOGITS, MATRICES, TRUTH, expected


def test_pc_is_the_ordinary_pairwise_loss_in_expectation():
    margin = LOGITS[torch.arange(5), TRUTH][:, None] - LOGITS
    ordinary = torch.sigmoid(-margin).sum(1) - 0.5  # without the class itself
    torch.testing.assert_close(expected(pc, MATRICES["uniform"]), ordinary, rtol=1e-4, atol=1e-4)
    assert float((expected(pc, MATRICES["biased"]) - ordinary).abs().max()) > 0.1
