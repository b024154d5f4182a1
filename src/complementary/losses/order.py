"""Order-preserving losses: Liu, Cao, Zhang, Feng and An 2023, Consistent Complementary-Label Learning via
Order-Preserving Losses."""

from torch import Tensor

from complementary.losses.base import as_float


def op(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Order-preserving loss: -sum_k t_k log softmax(-f)_k. It is never negative.

    Args:
        logits: f, [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    return -(t * (-f).log_softmax(1)).sum(1)


def op_w(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Weighted order-preserving loss: -sum_k t_k w_k log q_k with q = softmax(-f).

    The weights are w = p softmax(1 / q) + 1e-6 with p = softmax(f), as in the implementations that are public. They
    are differentiated, too.

    Args:
        logits: f, [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    log_q = (-f).log_softmax(1).clamp_min(-41.4)  # q is at least 1e-18
    w = f.softmax(1) * (-log_q).exp().softmax(1) + 1e-6
    return -(t * w * log_q).sum(1)
