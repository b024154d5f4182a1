"""Losses for several complementary labels: Feng, Kaneko, Han, Niu, An and Sugiyama 2020, Learning with Multiple
Complementary Labels.

With s labels and P, the probability of all classes that are not excluded, a loss is a factor times g(P). As published,
the factor is (K - 1) / s for EXP and LOG and 2 (K - 1) / s for MAE, and the batch is averaged. libcll takes the factor
2 (K - 1) / s for all three and adds up the batch.
"""

import torch
from torch import Tensor

from complementary.losses.base import as_float


def mcl_mae(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Mean absolute error: 2 (K - 1) / s (1 - P).

    For uniform labels it is an unbiased estimate of the ordinary MAE, 2 - 2 p_y. It is bounded, and therefore robust.

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K]. Soft labels count as fractions: s = sum t, P = sum (1 - t) p.
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    factor, rest = _parts(logits, excluded)
    return 2 * factor * rest


def mcl_exp(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Exponential loss: (K - 1) / s exp(-P). Arguments as `mcl_mae`."""
    factor, rest = _parts(logits, excluded)
    return factor * (rest - 1).exp()


def mcl_log(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Logarithmic loss: -(K - 1) / s log P. Arguments as `mcl_mae`. For one label it is (K - 1) times `s_nl`."""
    f, t = as_float(logits, excluded)
    factor = _parts(logits, excluded)[0]
    remaining = (1 - t).clamp_min(0)
    # log P = logsumexp(f + log(1 - t)) - logsumexp(f)
    inside = torch.where(remaining > 0, f + remaining.clamp_min(1e-30).log(), -1e30)
    inside = torch.where((remaining > 0).any(1, keepdim=True), inside, f)  # rows that exclude every class: 0
    return factor * (f.logsumexp(1) - inside.logsumexp(1))


def _parts(logits: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """(K - 1) / s, 0 for rows without a label, and 1 - P: [B, K], [B, K] -> [B], [B]."""
    f, t = as_float(logits, excluded)
    count = t.sum(1)
    factor = torch.where(count > 0, (f.shape[1] - 1) / torch.where(count > 0, count, 1.0), 0.0)
    return factor, (t * f.softmax(1)).sum(1)
