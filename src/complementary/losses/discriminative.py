"""The unweighted discriminative loss (L-UW): Gao and Zhang 2021. The weighted one, L-W, is `standard.dm`."""

from torch import Tensor

from complementary.losses.base import as_float


def l_uw(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Discriminative model without the weighted term: -sum_k t_k log q_k with q = softmax(1 - p).

    Gao and Zhang 2021, equation 5 (L-UW).

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    return -(t * (1 - f.softmax(1)).log_softmax(1)).sum(1)
