"""Scores of a classifier: those that need no true label (SCEL, URE), and accuracy where truth exists."""

import torch
from torch import Tensor


def scel(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Surrogate complementary estimation loss: how well the complementary labels are predicted; lower is better.

    logits [N, K], excluded [N, K], transition [K, K] -> scalar, mean of -log (p T)_k over each example's
    labels. Lin and Lin 2023. Needs no true label, so it may choose the epoch.
    """
    with torch.autocast(logits.device.type, enabled=False):  # else the product would be bfloat16
        predicted = logits.float().softmax(1) @ transition.to(logits.device, torch.float32)
    return -(_per_label(excluded) * torch.log(predicted + 1e-6)).sum(1).mean()


def ure(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Unbiased estimate of the cross-entropy on the true labels, from complementary ones alone.

    logits [N, K], excluded [N, K], transition [K, K] -> scalar. Ishida et al. 2019; it can be negative,
    and its variance is large.
    """
    return (corrected(excluded, transition, logits) * -logits.float().log_softmax(1)).sum(1).mean()


def estimated_accuracy(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Unbiased estimate of the accuracy from complementary labels alone: the URE of the 0-1 loss.

    logits [N, K], excluded [N, K], transition [K, K] -> scalar. For uniform labels it is
    1 - (K - 1) x (share of predictions that name an excluded class).
    """
    return _estimates(logits, excluded, transition).mean()


def estimated_accuracy_error(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Standard error of `estimated_accuracy`; never zero, even where all examples agree. -> scalar.

    To the usual variance it adds what one more, contrary example would change.
    """
    estimates = _estimates(logits, excluded, transition)
    inverse = _inverse(transition, logits)
    widest = (inverse.max() - inverse.min()) / len(estimates)
    return (estimates.var(unbiased=False) / len(estimates) + widest**2).sqrt()


def _estimates(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Each example's unbiased estimate of "the prediction is right". -> [N]."""
    return corrected(excluded, transition, logits).gather(1, logits.argmax(1, keepdim=True))[:, 0]


def _per_label(excluded: Tensor) -> Tensor:
    """Each example's labels share a weight of 1. [N, K] -> float [N, K]."""
    excluded = excluded.float()
    return excluded / excluded.sum(1, keepdim=True)


def corrected(excluded: Tensor, transition: Tensor, like: Tensor) -> Tensor:
    """Each example's view of its true class: rows of T^-1, whose mean is the true one-hot vector. [N, K] -> [N, K]."""
    with torch.autocast(like.device.type, enabled=False):
        return _per_label(excluded) @ _inverse(transition, like)


def _inverse(transition: Tensor, like: Tensor) -> Tensor:
    """T^-1 (the pseudo-inverse if T is singular), on the device of ``like``. [K, K]."""
    inverse: Tensor = torch.linalg.pinv(transition.double().cpu())
    return inverse.to(like.device, torch.float32)


def class_accuracy(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Accuracy of each class, float64 [K], NaN for a class without examples. predicted, truth int [N]."""
    hits = torch.bincount(truth[predicted == truth], minlength=classes).double()
    return hits / torch.bincount(truth, minlength=classes).double()


def thirds(accuracy: Tensor, counts: Tensor) -> dict[str, float]:
    """Mean accuracy of the head, middle and tail third of the classes, by how many train examples each has.

    accuracy [K], counts int [K].
    """
    order = torch.argsort(counts, descending=True, stable=True)
    parts = torch.tensor_split(accuracy[order], 3)
    return {name: float(part.nanmean()) for name, part in zip(("head", "middle", "tail"), parts, strict=True)}
