"""The four losses of the ICM paper."""

from collections.abc import Callable

import torch
from torch import Tensor

from complementary.errors import UserError

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def s_nl(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Surrogate negative learning: -sum_k t_k log(1 - p_k + 1e-6).

    Kim et al. 2019 (NLNL), Chou et al. 2020 (SCL-NL).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    p = logits.float().softmax(1)
    return -(excluded.float() * torch.log(1 - p + 1e-6)).sum(1)


def s_exp(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Surrogate exponential loss: sum_k t_k exp(p_k).

    Chou et al. 2020 (SCL-EXP).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    p = logits.float().softmax(1)
    return (excluded.float() * p.exp()).sum(1)


def fwd(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Forward correction: -sum_k t_k log (p T)_k.

    Yu et al. 2018.

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Transition matrix T of the labels, [K, K]; required. See `complementary.transitions`.

    Returns:
        The loss of each example, float32 [B].
    """
    if transition is None:
        raise UserError("The loss fwd needs a transition matrix [K, K], such as transitions.uniform(K).")
    with torch.autocast(logits.device.type, enabled=False):  # otherwise the product would be bfloat16
        predicted = logits.float().softmax(1) @ transition.to(logits.device, torch.float32)
    return -(excluded.float() * predicted.clamp_min(1e-8).log()).sum(1)


def dm(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Discriminative model with a weighted term.

    With s = 1 - p and q = softmax(s): -sum_k t_k log q_k - sum_k t_k s_k log q_k / (K - 1).
    Gao and Zhang 2021 (L-W).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    s = 1 - logits.float().softmax(1)
    log_q = s.log_softmax(1)
    return -(excluded.float() * log_q * (1 + s / (logits.shape[1] - 1))).sum(1)


LOSSES: dict[str, Loss] = {"s-nl": s_nl, "s-exp": s_exp, "fwd": fwd, "dm": dm}
"""Losses by the name that the option ``loss`` has for them."""
