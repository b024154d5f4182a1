"""How good are clusters for mixing? With true labels (oracle), and, up to noise, without.

Without truth: a complementary label with a known transition matrix T is an unbiased view of the true one:
row k of T^-1, for the label "not k", has the true class's one-hot vector as its mean. For two members of a
cluster the product of their rows is then an unbiased estimate of "both are of the same class".
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from complementary.validate import corrected


class Estimate(NamedTuple):
    """A value and its standard error; both NaN where nothing can be told."""

    value: float
    error: float


def estimated_same_class(assignment: Tensor, excluded: Tensor, transition: Tensor) -> Estimate:
    """How often a random partner from the same cluster is of the same class, from complementary labels alone.

    assignment int [N], excluded [N, K], transition [K, K]. Unbiased; needs thousands of examples to be sharp.
    Examples alone in their cluster do not count. The error is conservative: up to 1.6 times the spread over draws
    of the labels, more only where labels leave next to no doubt. NaN where nobody has a partner, and where the
    transition is singular (10 classes, a tenth of the labels wrong): such labels tell nothing.
    """
    assignment, excluded, transition = assignment.cpu(), excluded.cpu(), transition.cpu()
    nothing = Estimate(float("nan"), float("nan"))
    if int(torch.linalg.matrix_rank(transition.double(), rtol=1e-6)) < len(transition):
        return nothing
    view = corrected(excluded, transition, torch.zeros(1)).double()  # [N, K], mean: the true one-hot vector
    count = torch.bincount(assignment)
    total = torch.zeros(len(count), view.shape[1], dtype=torch.float64).index_add_(0, assignment, view)
    others = (count[assignment] - 1).clamp_min(1)
    agreement = (view * (total[assignment] - view)).sum(1) / others  # of each example with the others, on average
    paired = count[assignment] > 1
    if not paired.any():
        return nothing
    agreement = agreement[paired]
    error = 2 * agreement.std() / len(agreement) ** 0.5  # 2: each label counts as own and as partner's
    return Estimate(float(agreement.mean()), float(error))


def same_class(assignment: Tensor, truth: Tensor) -> float:
    """How often a random partner from the same cluster is of the same class: the oracle. int [N], int [N]."""
    table = contingency(assignment, truth).double()
    size = table.sum(1)
    rate = ((table * (table - 1)).sum(1) / (size - 1).clamp_min(1))[size > 1].sum()
    return float(rate / size[size > 1].sum())


def purity(assignment: Tensor, truth: Tensor) -> float:
    """Share of examples that are of their cluster's most frequent class: an oracle. int [N], int [N]."""
    return float(contingency(assignment, truth).amax(1).sum() / len(truth))


def contingency(assignment: Tensor, truth: Tensor) -> Tensor:
    """How many examples of each class are in each cluster: int [clusters, K]."""
    assignment, truth = assignment.cpu(), truth.cpu()
    classes = int(truth.max()) + 1
    flat = torch.bincount(assignment * classes + truth, minlength=(int(assignment.max()) + 1) * classes)
    return flat.view(-1, classes)


def recommend(estimates: dict[int, Estimate], sharp: float = 0.08) -> int | None:
    """The smallest number of clusters whose estimate lies within one standard error of the best.

    None where nothing can be told: no estimate, or a standard error of the best one above ``sharp``.
    """
    known = {k: e for k, e in estimates.items() if not math.isnan(e.value)}
    if not known:
        return None
    best = max(known.values(), key=lambda e: e.value)
    if best.error > sharp:
        return None
    return min(k for k, e in known.items() if e.value >= best.value - best.error)
