"""Bounded losses, which tolerate wrong complementary labels (labels that exclude the true class)."""

import torch
from torch import Tensor

from complementary.losses.base import as_float

Q = 0.7  # of `s_gce`; the value of Zhang and Sabuncu


def s_lin(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Linear loss: sum_k t_k p_k.

    Chou et al. 2020 (SCL-LIN). Half the complementary form of the mean absolute error, whose sum over classes is
    constant: symmetric label noise does not change its minimizer (Ghosh et al. 2017; Ishiguro et al. 2022 for
    complementary labels).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    return (t * f.softmax(1)).sum(1)


def s_gce(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Generalized cross-entropy of "not k": sum_k t_k (1 - (1 - p_k)^q) / q with q = 0.7.

    Zhang and Sabuncu 2018, applied to the probability 1 - p_k of the complementary label. Between `s_nl` (q = 0) and
    `s_lin` (q = 1); bounded by 1 / q.

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    rest = (1 - f.softmax(1)).clamp_min(1e-6)  # the gradient of its power is infinite at 0
    return (t * (1 - torch.pow(rest, Q)) / Q).sum(1)
