"""Complementary losses: plain functions of logits and excluded classes.

Every loss is ``f(logits [B, K], excluded [B, K], transition=None) -> [B]``. ``excluded`` may be one-hot
(one label), multi-hot (several) or soft (after mixing); a row of zeros costs nothing. All arithmetic is
float32, whatever the logits' type, and values and gradients are finite for any finite logits.

    >>> import torch
    >>> from complementary.losses import s_nl
    >>> logits, excluded = torch.zeros(1, 4), torch.tensor([[0., 1., 0., 0.]])
    >>> s_nl(logits, excluded)          # -log(1 - 1/4)
    tensor([0.2877])
"""

from collections.abc import Callable

import torch
from torch import Tensor

from complementary.errors import UserError

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def s_nl(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Surrogate negative learning, -sum_k t_k log(1 - p_k + 1e-6). [B, K], [B, K] -> [B].

    Kim et al. 2019 (NLNL), Chou et al. 2020 (SCL-NL).
    """
    p = logits.float().softmax(1)
    return -(excluded.float() * torch.log(1 - p + 1e-6)).sum(1)


def s_exp(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Surrogate exponential, sum_k t_k exp(p_k). [B, K], [B, K] -> [B]. Chou et al. 2020 (SCL-EXP)."""
    p = logits.float().softmax(1)
    return (excluded.float() * p.exp()).sum(1)


def fwd(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Forward correction, -sum_k t_k log (p T)_k. [B, K], [B, K], T [K, K] -> [B]. Yu et al. 2018.

    Needs the matrix by which the labels arise (see `complementary.transitions`).
    """
    if transition is None:
        raise UserError("The loss fwd needs a transition matrix [K, K], such as transitions.uniform(K).")
    with torch.autocast(logits.device.type, enabled=False):  # else the product would be bfloat16
        predicted = logits.float().softmax(1) @ transition.to(logits.device, torch.float32)
    return -(excluded.float() * predicted.clamp_min(1e-8).log()).sum(1)


def dm(logits: Tensor, excluded: Tensor, transition: Tensor | None = None) -> Tensor:
    """Discriminative model with a weighted part. [B, K], [B, K] -> [B]. Gao and Zhang 2021 (L-W).

    With s = 1 - p and q = softmax(s): -sum_k t_k log q_k - sum_k t_k s_k log q_k / (K - 1).
    """
    s = 1 - logits.float().softmax(1)
    log_q = s.log_softmax(1)
    return -(excluded.float() * log_q * (1 + s / (logits.shape[1] - 1))).sum(1)


LOSSES: dict[str, Loss] = {"s-nl": s_nl, "s-exp": s_exp, "fwd": fwd, "dm": dm}
