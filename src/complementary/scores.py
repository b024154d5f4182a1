"""Scores of classifiers and clusters that need no true label, and the accuracy of classes where truth exists.

A complementary label with a known transition matrix T is an unbiased view of the true class: for the label "not k", row
k of T^-1 has the one-hot vector of the true class as its mean. Unbiased estimates of the accuracy and of how often two
members of a cluster are of the same class follow from that.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# --- classifiers ------------------------------------------------------------------------------------------------------


def scel(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Surrogate complementary estimation loss (Lin and Lin 2023): how well complementary labels are predicted.

    It needs no true label, so it may choose the epoch.

    Args:
        logits: [N, K].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        A scalar, the mean of -log (p T)_k over the labels of each example; lower is better.
    """
    with torch.autocast(logits.device.type, enabled=False):  # otherwise the product would be bfloat16
        predicted = logits.float().softmax(1) @ transition.to(logits.device, torch.float32)
    return -(_per_label(excluded) * torch.log(predicted + 1e-6)).sum(1).mean()


def ure(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Unbiased estimate of the cross-entropy on the true labels (Ishida et al. 2019).

    It can be negative, and its variance is large.

    Args:
        logits: [N, K].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        A scalar; NaN if the transition is singular.
    """
    return (_corrected(excluded, transition, logits) * -logits.float().log_softmax(1)).sum(1).mean()


def estimated_accuracy(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Unbiased estimate of the accuracy from complementary labels: the URE of the 0-1 loss.

    For uniform labels it is 1 - (K - 1) x (share of predictions that name an excluded class).

    Args:
        logits: [N, K].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        A scalar; NaN if the transition is singular (such as 10 classes with a tenth of the labels wrong), because the
        labels then carry no information.
    """
    return _estimates(logits, excluded, transition).mean()


def estimated_accuracy_error(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Standard error of `estimated_accuracy`.

    It adds the change that one more, contrary example would make, so that it is never zero, even if all examples agree.
    """
    estimates = _estimates(logits, excluded, transition)
    inverse = _inverse(transition, logits)
    widest = (inverse.max() - inverse.min()) / len(estimates)
    return (estimates.var(unbiased=False) / len(estimates) + widest**2).sqrt()


def _estimates(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """For each example, an unbiased estimate of "the prediction is right". -> [N]."""
    return _corrected(excluded, transition, logits).gather(1, logits.argmax(1, keepdim=True))[:, 0]


def _per_label(excluded: Tensor) -> Tensor:
    """The labels of each example share a weight of 1. [N, K] -> float [N, K]."""
    excluded = excluded.float()
    return excluded / excluded.sum(1, keepdim=True)


def _corrected(excluded: Tensor, transition: Tensor, like: Tensor) -> Tensor:
    """Rows of T^-1 for the labels of each example; their mean is the one-hot vector of the true class.

    Args:
        excluded: Complementary labels, [N, K].
        transition: T, [K, K].
        like: A tensor on the wanted device.

    Returns:
        float32 [N, K].
    """
    with torch.autocast(like.device.type, enabled=False):
        return _per_label(excluded) @ _inverse(transition, like)


def _inverse(transition: Tensor, like: Tensor) -> Tensor:
    """T^-1 on the device of ``like``, NaN if T is singular. [K, K]."""
    matrix = transition.double().cpu()
    inverse = torch.full_like(matrix, math.nan) if _is_singular(matrix) else torch.linalg.pinv(matrix)
    return inverse.to(like.device, torch.float32)


def _is_singular(transition: Tensor) -> bool:
    """Whether the labels of a transition matrix [K, K] do not determine the classes."""
    return int(torch.linalg.matrix_rank(transition.double().cpu(), rtol=1e-6)) < len(transition)


# --- clusters ---------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A value and its standard error; both are NaN if the labels do not allow an estimate."""

    value: float
    error: float


def estimated_same_class(assignment: Tensor, excluded: Tensor, transition: Tensor) -> Estimate:
    """Unbiased estimate of how often two members of a cluster are of the same class, from complementary labels.

    It needs thousands of examples to be precise. The standard error is conservative: up to 1.6 times the spread over
    draws of the labels, larger only if the labels are nearly unambiguous.

    Args:
        assignment: The cluster of each example, int [N].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        The estimate over examples that are not alone in their cluster. NaN if there are none, or if the transition is
        singular (such as 10 classes with a tenth of the labels wrong): then the labels carry no information.
    """
    assignment, excluded, transition = assignment.cpu(), excluded.cpu(), transition.cpu()
    unknown = Estimate(float("nan"), float("nan"))
    if _is_singular(transition):
        return unknown
    view = _corrected(excluded, transition, torch.zeros(1)).double()  # [N, K], mean: the one-hot vector of the class
    count = torch.bincount(assignment)
    total = torch.zeros(len(count), view.shape[1], dtype=torch.float64).index_add_(0, assignment, view)
    others = (count[assignment] - 1).clamp_min(1)
    agreement = (view * (total[assignment] - view)).sum(1) / others  # of each example with the others, on average
    paired = count[assignment] > 1
    if not paired.any():
        return unknown
    agreement = agreement[paired]
    error = 2 * agreement.std() / len(agreement) ** 0.5  # 2: each label is counted for its example and for partners
    return Estimate(float(agreement.mean()), float(error))


def recommend(estimates: dict[int, Estimate], precision: float = 0.08) -> int | None:
    """Choose the number of clusters: the smallest whose estimate lies within one standard error of the best.

    Args:
        estimates: `estimated_same_class` for each number of clusters.
        precision: Largest standard error of the best estimate that still allows a recommendation.

    Returns:
        The number of clusters; None without any estimate, or if the best one is not precise enough.
    """
    known = {k: e for k, e in estimates.items() if not math.isnan(e.value)}
    if not known:
        return None
    best = max(known.values(), key=lambda e: e.value)
    if best.error > precision:
        return None
    return min(k for k, e in known.items() if e.value >= best.value - best.error)


# --- accuracy of classes ----------------------------------------------------------------------------------------------


def class_accuracy(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Accuracy of each class: predicted, truth int [N] -> float64 [K]; NaN for a class without examples."""
    hits = torch.bincount(truth[predicted == truth], minlength=classes).double()
    return hits / torch.bincount(truth, minlength=classes).double()


def thirds(accuracy: Tensor, counts: Tensor) -> dict[str, float]:
    """Mean accuracy of the head, middle and tail third of the classes.

    Args:
        accuracy: Accuracy of each class, [K].
        counts: Training examples of each class, int [K].
    """
    order = torch.argsort(counts, descending=True, stable=True)
    parts = torch.tensor_split(accuracy[order], 3)
    return {name: float(part.nanmean()) for name, part in zip(("head", "middle", "tail"), parts, strict=True)}
