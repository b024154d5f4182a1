"""Losses for classes of different size, if accuracy on a balanced test set counts. They need the class prior."""

from torch import Tensor

from complementary.losses.base import as_float, multiply, require_matrix, require_prior

FLOOR = 1e-8


def s_nl_w(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Surrogate negative learning with weighted labels: -sum_k w_k t_k log(1 - p_k + 1e-6).

    The weight of a label is inverse to its share among the labels, w_k = 1 / (K (prior T)_k), so that every label has
    the same total weight. Weighted losses for imbalance are the idea of Wei et al. 2023 (WCLL); their weights may
    differ in detail.

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Transition matrix T of the labels, [K, K]; required.
        prior: Share of each class, [K]; required.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    matrix, share = require_matrix(transition, f, "s-nl-w"), require_prior(prior, f, "s-nl-w")
    weight = 1 / (f.shape[1] * multiply(share, matrix)).clamp_min(FLOOR)
    return -(t * weight * (1 - f.softmax(1) + 1e-6).log()).sum(1)


def fwd_la(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Forward correction with logit adjustment: -sum_k t_k log (softmax(f + log prior) T)_k.

    Yu et al. 2018 with Menon et al. 2021. The adjusted logits describe the training data; the logits f themselves
    describe a population with classes of equal size.

    Args:
        logits: f, [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Transition matrix T of the labels, [K, K]; required.
        prior: Share of each class, [K]; required.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    matrix, share = require_matrix(transition, f, "fwd-la"), require_prior(prior, f, "fwd-la")
    adjusted = (f + share.clamp_min(FLOOR).log()).softmax(1)
    return -(t * multiply(adjusted, matrix).clamp_min(FLOOR).log()).sum(1)
