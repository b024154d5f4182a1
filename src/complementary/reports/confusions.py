"""Which classes a model confuses, and how good it is for each class, estimated from complementary labels.

With a transition matrix T, the row of T^-1 that belongs to the label "not k" has the one-hot vector of the true class
as its mean. Counting these rows instead of true classes gives unbiased estimates, whose standard errors are given, too.
They hold for examples that the model was not trained on.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complementary.transitions import is_singular

Values = NDArray[np.float64]


class Estimated(NamedTuple):
    """A value and its standard error; NaN if the labels do not allow an estimate."""

    value: float
    error: float


@dataclass(frozen=True)
class Confusions:
    """Joint distribution of true and predicted classes.

    Attributes:
        share: Estimated share of the examples with this true class (row) and predicted class (column), [K, K]. The
            estimate of a small share may be negative.
        error: Standard error of each share, [K, K].
        predicted: Number of predictions of each class, int [K].
        source: Where the true classes come from: ``labels`` (estimated from complementary labels by T^-1: unbiased, but
            noisy), ``model`` (probabilities of the calibrated model, combined with the labels; little noise, but no
            more accurate than the model) or ``oracle`` (true labels).
    """

    share: Values
    error: Values
    predicted: NDArray[np.int64]
    source: Literal["labels", "model", "oracle"]

    def precision(self) -> list[Estimated]:
        """For each predicted class: how many of these predictions are right."""
        total = self.predicted.sum()
        shares = [(float(self.share[k, k]), float(self.error[k, k]), n) for k, n in enumerate(self.predicted)]
        return [Estimated(v * total / n, e * total / n) if n else _unknown() for v, e, n in shares]

    def worst(self, count: int = 5) -> list[tuple[int, int, Estimated]]:
        """The pairs (true, predicted) that are confused most, if the estimate is above its standard error."""
        pairs = [
            (i, j, Estimated(float(self.share[i, j]), float(self.error[i, j])))
            for i in range(len(self.share))
            for j in range(len(self.share))
            if i != j and self.share[i, j] > max(self.error[i, j], 1e-9)
        ]
        return sorted(pairs, key=lambda pair: -pair[2].value)[:count]


def estimate_confusions(predicted: Tensor, excluded: Tensor, transition: Tensor) -> Confusions:
    """Estimate the confusions from complementary labels.

    Args:
        predicted: Predicted classes of examples that were not trained on, int [N].
        excluded: Their complementary labels, [N, K].
        transition: [K, K].
    """
    view, classes = class_estimates(excluded, transition), excluded.shape[1]
    chosen = torch.nn.functional.one_hot(predicted.cpu(), classes).double()
    count = len(view)
    share = view.T @ chosen / count
    square = (view**2).T @ chosen / count
    error = ((square - share**2).clamp_min(0) / count).sqrt()
    return Confusions(share.numpy(), error.numpy(), chosen.sum(0).long().numpy(), "labels")


def model_confusions(predicted: Tensor, posterior: Tensor) -> Confusions:
    """The confusions that a calibrated model expects.

    Args:
        predicted: Predicted classes, int [N].
        posterior: Class probabilities of the examples, given prediction and labels, [N, K].
    """
    chosen = torch.nn.functional.one_hot(predicted.cpu(), posterior.shape[1]).double()
    posterior, count = posterior.cpu().double(), len(posterior)
    share = posterior.T @ chosen / count
    error = (((posterior**2).T @ chosen / count - share**2).clamp_min(0) / count).sqrt()
    return Confusions(share.numpy(), error.numpy(), chosen.sum(0).long().numpy(), "model")


def oracle_confusions(predicted: Tensor, truth: Tensor, classes: int) -> Confusions:
    """Count the confusions with true labels: int [N], int [N]."""
    count = len(truth)
    table = torch.bincount(truth.cpu() * classes + predicted.cpu(), minlength=classes**2).view(classes, classes)
    share = table.double() / count
    error = (share * (1 - share) / count).sqrt()
    return Confusions(share.numpy(), error.numpy(), table.sum(0).numpy(), "oracle")


def estimate_prior(excluded: Tensor, transition: Tensor) -> list[Estimated]:
    """Estimated share of each class among the examples, from their complementary labels [N, K] alone."""
    view = class_estimates(excluded, transition)
    error = view.std(0, unbiased=False) / math.sqrt(len(view))
    return [Estimated(v, e) for v, e in zip(view.mean(0).tolist(), error.tolist(), strict=True)]


def estimate_accuracy(predicted: Tensor, excluded: Tensor, transition: Tensor) -> Estimated:
    """Estimated share of right predictions: int [N], [N, K], [K, K].

    The error is never 0: it includes the change that one more, contrary label would make.
    """
    if len(predicted) == 0:
        return _unknown()
    right = class_estimates(excluded, transition).gather(1, predicted.cpu()[:, None])[:, 0]
    inverse = class_estimates(torch.eye(len(transition)), transition)
    widest = float(inverse.max() - inverse.min()) / len(right)
    return Estimated(float(right.mean()), math.hypot(float(right.std(unbiased=False)) / math.sqrt(len(right)), widest))


def class_estimates(excluded: Tensor, transition: Tensor) -> Tensor:
    """For each example an unbiased estimate of the one-hot vector of its class.

    Args:
        excluded: Complementary labels, [N, K]; the labels of an example share a weight of 1.
        transition: [K, K].

    Returns:
        float64 [N, K] on the CPU; NaN if the matrix is singular, because the labels then carry no information.
    """
    matrix, given = transition.double().cpu(), excluded.cpu().double()
    if is_singular(matrix):
        return torch.full_like(given, math.nan)
    inverse: Tensor = torch.linalg.inv(matrix)
    return given / given.sum(1, keepdim=True) @ inverse


def _unknown() -> Estimated:
    return Estimated(math.nan, math.nan)
