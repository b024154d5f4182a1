"""Class priors, estimated from complementary labels without true labels.

With the transition matrix T, the labels have the distribution ``T' p`` for the class prior p. Solving for p gives an
unbiased estimate, but a noisy one: for 10 classes, uniform labels and 12,000 examples its standard error is .025, more
than the share of a rare class. The mean of a classifier's predictions, combined with the labels, has little noise but
an unknown bias. `estimate` weighs both by their errors.
"""

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.transitions import is_singular

log = logging.getLogger(__name__)
FLOOR = 0.05  # no class gets less than this part of an equal share in `estimate`
COUNTS_FLOOR = 0.02  # the same in `from_labels`
ROUNDS = 10  # of EM; more rounds take the share of a rare class from an underconfident classifier


class Prior(NamedTuple):
    """An estimated class prior.

    Attributes:
        share: Of each class, [K]; positive, with the sum 1.
        error: Standard error of each share, [K]; NaN if the labels do not determine the classes. Of `estimate`: an
            upper limit, with the bias of the classifier that the labels could not have shown.
    """

    share: Tensor
    error: Tensor


def from_labels(excluded: Tensor, transition: Tensor) -> Prior:
    """Estimate the class prior from complementary labels alone.

    Args:
        excluded: Complementary labels, [N, K]. The labels of an example share a weight of 1.
        transition: How labels arise from classes, [K, K]; rows sum to 1. For several labels per example, the
            distribution of one of them.

    Returns:
        The unbiased estimate, projected to positive shares; its error is that of the unbiased estimate. If the
        transition is singular: equal shares.
    """
    raw, covariance = _unbiased(excluded, transition)
    if raw is None:
        classes = excluded.shape[1]
        return Prior(torch.full((classes,), 1 / classes), torch.full((classes,), float("nan")))
    return Prior(_project(raw).float(), covariance.diagonal().clamp_min(0).sqrt().float())


def estimate(probabilities: Tensor, excluded: Tensor, transition: Tensor) -> Prior:
    """Estimate the class prior from complementary labels and the predictions of a classifier.

    EM finds the prior under which predictions and labels are most likely. Its relative bias, assumed to be of the same
    size for all classes, shows in its distance from the unbiased estimate of `from_labels`, if that is significant.
    The result is the average of both, weighted by the inverse of squared bias and noise. The share of a rare class,
    which is lost in the noise of the unbiased estimate, therefore comes from EM. Before that, EM's prior is shrunk
    towards equal shares: completely, if the labels do not contradict equal shares (chi-square test at 5 %).

    Args:
        probabilities: Class probabilities of a classifier that was trained on these or similar examples, [N, K].
        excluded: Complementary labels, [N, K].
        transition: How labels arise from classes, [K, K].
    """
    found = _expectation_maximization(probabilities, excluded, transition)
    raw, covariance = _unbiased(excluded, transition)
    if raw is None:
        return Prior(_normalize(found), torch.full((len(found),), float("nan")))
    equal = torch.full_like(raw, 1 / len(raw))
    shrunk = (found.clamp_min(1e-9) / equal) ** _evidence(raw - equal, covariance)
    shrunk = shrunk / shrunk.sum()
    noise = covariance.diagonal().clamp_min(1e-12)
    distance, size = (raw - shrunk).square().sum(), shrunk.square()
    bias = distance * _evidence(raw - shrunk, covariance) * size / size.sum()  # squared
    weight = bias / (noise + bias)  # of the unbiased estimate
    share = (1 - weight) * shrunk + weight * raw
    chance = (2 * covariance.square().sum()).sqrt()  # standard deviation of the distance of an unbiased `shrunk`
    possible = ((distance - noise.sum()).clamp_min(0) + chance) * size / size.sum() + (found - shrunk).square()
    error = (1 - weight).square() * torch.minimum(possible, noise) + weight.square() * noise
    lost = share < FLOOR / len(share)  # the classifier never predicts the class, so its predictions say nothing
    return Prior(_normalize(share), torch.where(lost, noise, error).sqrt().float())


def given(shares: tuple[float, ...], classes: int) -> Prior:
    """A prior that the user gives."""
    if len(shares) != classes:
        raise UserError(f"The prior has {len(shares)} shares, but there are {classes} classes.", "prior")
    share = torch.tensor(shares)
    return Prior(share / share.sum(), torch.zeros(classes))


def uniform(classes: int) -> Prior:
    """Classes of equal size."""
    return Prior(torch.full((classes,), 1 / classes), torch.zeros(classes))


def _unbiased(excluded: Tensor, transition: Tensor) -> tuple[Tensor | None, Tensor]:
    """The unbiased estimate [K] and its covariance [K, K]; None if the transition is singular."""
    matrix = transition.double().cpu()
    if is_singular(matrix):
        return None, torch.empty(0)
    labels = excluded.double().cpu()
    labels = labels / labels.sum(1, keepdim=True).clamp_min(1)
    each = labels[labels.sum(1) > 0] @ torch.linalg.inv(matrix)  # [N, K]: the mean of row i is one-hot at the class
    centered = each - each.mean(0)
    return each.mean(0), centered.T @ centered / max(1, len(each) - 1) / max(1, len(each))


def _expectation_maximization(probabilities: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """The prior [K] that makes predictions and labels most likely. Predictions assume the prior that is their mean."""
    q = probabilities.double().cpu().clamp_min(1e-9)
    logarithm = excluded.double().cpu() @ transition.double().cpu().clamp_min(1e-9).log().T  # [N, K]
    likelihood = (logarithm - logarithm.amax(1, keepdim=True)).exp()
    implied = (q / q.sum(1, keepdim=True)).mean(0)
    weights, prior = q * likelihood / implied, implied
    for _ in range(ROUNDS):
        joint = weights * prior
        prior = (joint / joint.sum(1, keepdim=True)).mean(0)
    return prior


def _evidence(difference: Tensor, covariance: Tensor) -> Tensor:
    """How clearly the labels contradict a prior: 0 (not at the 5 % level) to 1; a scalar.

    It is quadratic in 1 / statistic, so that a prior is hardly shrunk if the contradiction is overwhelming.

    Args:
        difference: The unbiased estimate minus that prior, [K].
        covariance: Of the unbiased estimate, [K, K]; singular, because shares have the sum 1.
    """
    statistic, free = difference @ torch.linalg.pinv(covariance, rtol=1e-9) @ difference, len(difference) - 1
    critical = free * (1 - 2 / (9 * free) + 1.645 * (2 / (9 * free)) ** 0.5) ** 3  # Wilson and Hilferty
    return torch.clamp(1 - (critical / statistic.clamp_min(1e-12)) ** 2, min=0)


def _normalize(share: Tensor) -> Tensor:
    """Shares in proportion, but none below the floor. float64 [K] -> float32 [K]."""
    share = share.clamp_min(FLOOR / len(share))
    return (share / share.sum()).float()


def _project(share: Tensor) -> Tensor:
    """The nearest shares that are positive and have the sum 1. [K] -> [K]."""
    classes = len(share)
    floor = COUNTS_FLOOR / classes
    ordered = (share - floor).sort(descending=True).values
    excess = (ordered.cumsum(0) - (1 - COUNTS_FLOOR)) / torch.arange(1, classes + 1, dtype=share.dtype)
    last = int((ordered > excess).sum()) - 1
    return (share - floor - excess[last]).clamp_min(0) + floor
