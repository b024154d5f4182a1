"""The four losses of the ICM paper."""

import torch
from torch import Tensor

from complementary.losses.base import SMALLEST, as_float, complement, multiply, require_matrix


def s_nl(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Surrogate negative learning: -sum_k t_k log(1 - p_k + 1e-6).

    Kim et al. 2019 (NLNL), Chou et al. 2020 (SCL-NL).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    return -(t * torch.log(complement(f.softmax(1)) + 1e-6)).sum(1)


def s_exp(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Surrogate exponential loss: sum_k t_k exp(p_k).

    Chou et al. 2020 (SCL-EXP).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    p = f.softmax(1)
    p = torch.where(p > 0.5, 1 - complement(p), p)  # the same value, with a gradient that does not cancel
    return (t * p.exp()).sum(1)


def fwd(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Forward correction: -sum_k t_k log (p T)_k.

    Yu et al. 2018.

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Transition matrix T of the labels, [K, K]; required. See `complementary.transitions`.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    predicted = multiply(f.softmax(1), require_matrix(transition, f, "fwd"))
    return -(t * predicted.clamp_min(SMALLEST).log()).sum(1)


def dm(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Discriminative model with a weighted term.

    With s = 1 - p and q = softmax(s): -sum_k t_k log q_k - sum_k t_k s_k log q_k / (K - 1).
    Gao and Zhang 2021 (L-W).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    s = complement(f.softmax(1))
    return -(t * s.log_softmax(1) * (1 + s / (f.shape[1] - 1))).sum(1)
