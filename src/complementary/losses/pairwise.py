"""Pairwise comparison (PC): Ishida, Niu, Hu and Sugiyama 2017, Learning from Complementary Labels."""

import torch
from torch import Tensor

from complementary.losses.base import as_float


def pc(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Pairwise comparison with the sigmoid loss.

    For one label k it is (K - 1) sum_{j != k} sigmoid(f_k - f_j) - K (K - 1) / 2 + K - 1. For uniform labels this is an
    unbiased estimate of the ordinary loss sum_{j != y} sigmoid(f_j - f_y). It can be negative.

    Args:
        logits: f, [B, K].
        excluded: Complementary labels, [B, K]; the losses of several labels are added up.
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    classes = f.shape[1]
    wins = torch.sigmoid(f[:, :, None] - f[:, None, :]).sum(2) - 0.5  # [B, K]; 0.5: the class against itself
    risk = (classes - 1) * wins - classes * (classes - 1) / 2 + classes - 1
    return (t * risk).sum(1)
