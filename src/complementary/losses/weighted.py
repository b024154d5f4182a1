"""Losses for labels or classes of different frequency, if accuracy on a balanced test set counts."""

from torch import Tensor

from complementary.losses.base import as_float, labeled_count, multiply, per_label, require_matrix, require_prior

FLOOR = 1e-8


def s_nl_w(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    share: Tensor | None = None,
) -> Tensor:
    """Surrogate negative learning with weighted labels: -sum_k w_k t_k log(1 - p_k + 1e-6).

    The weight of a label is inverse to its share among the labels, w_k = 1 / (K share_k), so that every label has the
    same total weight. This removes a bias that belongs to the label, whether it comes from the classes (a long tail) or
    from how labels are given, and needs neither the matrix nor the prior. It does not remove a bias of pairs of class
    and label. Weighted losses for imbalance are the idea of Wei et al. 2023 (WCLL); their weights may differ in detail.

    Args:
        logits: [B, K].
        excluded: Complementary labels t, [B, K].
        transition: Not used.
        prior: Not used.
        share: Share of each label in the training set, [K]; None: in the batch.

    Returns:
        The loss of each example, float32 [B].
    """
    f, t = as_float(logits, excluded)
    share = per_label(t).sum(0) / labeled_count(t) if share is None else share.to(f.device)
    weight = 1 / (f.shape[1] * share).clamp_min(FLOOR)
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
