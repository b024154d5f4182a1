"""Complementary probability estimates (CPE): Lin and Lin 2023, Reduction from Complementary-Label Learning to
Probability Estimates.

The network estimates the distribution of the *label*. The class is the row of the transition matrix that is nearest to
the estimate (L1 distance), see `nearest_row`.

| name | estimate of the label's distribution |
|---|---|
| CPE-I | softmax(f) itself |
| CPE-F | softmax(f) T, with the given matrix T |
| CPE-T | softmax(f) T, with a matrix that is learned too, beginning at T |
"""

from torch import Tensor

from complementary.losses.base import as_float, multiply, require_matrix

START = 1e-6  # the smallest probability of a label at which learning of the matrix starts


def cpe_i(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Cross-entropy of the label itself: -sum_k t_k log softmax(f)_k. The matrix is needed for decoding only.

    Args:
        logits: f, [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    return -(t * f.log_softmax(1)).sum(1)


def cpe_f(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Cross-entropy of the label through the given matrix: -sum_k t_k log((softmax(f) T)_k + 1e-6).

    Args:
        logits: f, [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Transition matrix T of the labels, [K, K]; required.
        prior: Not used.

    Returns:
        The loss of each example, float32 [B].
    """
    return _through(logits, excluded, transition, "cpe-f")


def cpe_t(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """As `cpe_f`, with a learned matrix: pass softmax(parameters) [K, K], as `bound.BoundLoss` does."""
    return _through(logits, excluded, transition, "cpe-t")


def _through(logits: Tensor, excluded: Tensor, transition: Tensor | None, name: str) -> Tensor:
    f, t = as_float(logits, excluded)
    predicted = multiply(f.softmax(1), require_matrix(transition, f, name))
    return -(t * (predicted + 1e-6).log()).sum(1)


def nearest_row(distribution: Tensor, transition: Tensor) -> Tensor:
    """Decode: how near each row of the matrix is to the estimated distribution of the label.

    Args:
        distribution: [N, K].
        transition: T, [K, K].

    Returns:
        Minus the L1 distance to row k, [N, K]: its largest entry is the class.
    """
    matrix = transition.to(distribution.device, distribution.dtype)
    return -(distribution[:, None, :] - matrix).abs().sum(2)
