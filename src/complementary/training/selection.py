"""Which epoch to use, decided by the complementary labels of the validation split.

SCEL says how well an epoch predicts these labels. As a log loss it punishes confidence, and networks grow more
confident while they still improve, so the lowest SCEL often comes too early. Here SCEL is *calibrated*: the logits of
each epoch are scaled by the temperature at which its SCEL is lowest. What remains is how well it separates classes.

The best epoch is the one with the lowest calibrated SCEL. It is preferred to the last one unless there are too few
labels to know: then the last epoch is used. `docs/notes/selection.md` compares rules.
"""

import math

import torch
from torch import Tensor

from complementary.losses.base import multiply, per_label

SHARPNESS = (0.0, *(2.0 ** (i / 6 - 6) for i in range(61)))
"""Inverse temperatures that are tried: 0 (all classes are equally likely), and 1/64 to 16 in steps of a factor of
2^(1/6), so that the minimum is missed by less than 1e-4 nats."""
CONFIDENCE = 2.5
"""Number of standard errors at which the best epoch must be worse than the last one by at most `MARGIN`."""
MARGIN = 0.5
"""In points of accuracy."""


class Selection:
    """Follows a training and selects the epoch to use, without true labels.

    Args:
        transition: How labels arise, [K, K].

    Attributes:
        best: The epoch with the lowest calibrated SCEL so far, from 1; 0: none yet.
        losses: The calibrated SCEL of each validation example in that epoch, [V].
    """

    def __init__(self, transition: Tensor) -> None:
        self.point = nats_per_point(transition)
        self.best = 0
        self.losses = torch.zeros(0)

    def update(self, epoch: int, losses: Tensor) -> int:
        """Take note of an epoch.

        Args:
            epoch: Its number, from 1.
            losses: Its calibrated SCEL for each validation example, [V].

        Returns:
            The epoch to use if the training ended now: the best one, or this one.
        """
        if self.best == 0 or float(losses.double().mean()) < float(self.losses.double().mean()):
            self.best, self.losses = epoch, losses.clone()
        return self.best if self._is_better_than(losses) else epoch

    def _is_better_than(self, losses: Tensor) -> bool:
        """Whether the best epoch can be preferred to one with these losses [V]."""
        difference = losses.double() - self.losses.double()
        gain, error = float(difference.mean()), float(difference.std(unbiased=False)) / math.sqrt(len(losses))
        return gain > 0 and gain + MARGIN * self.point > CONFIDENCE * error

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has to contain."""
        return {"best": torch.tensor(self.best), "losses": self.losses}

    def load_tensors(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Restore what `tensors` returned."""
        self.best, self.losses = int(tensors["best"]), tensors["losses"].to(device)


CONTRADICTED, LEVEL = 3.0, 1.0
"""An epoch is clearly worse than the best one if its estimated accuracy is lower by more than 3 standard errors, and
close to it if lower by less than 1."""


def last_sound_epoch(estimates: Tensor, spread: float) -> int:
    """Select the last epoch; if it is clearly worse than an earlier one, the last of the epochs close to the best.

    A later epoch only changes which epochs are close to the best one if it becomes the best one itself. So the selected
    epoch was close to the best one when it ended (`is_as_good_as_the_best`), and its weights were kept.

    Args:
        estimates: `scores.correctness` of the validation examples in each epoch, [E, V].
        spread: Largest minus smallest possible estimate of an example.

    Returns:
        Its number, from 1. If the transition is singular, so that the estimates are NaN: the last one.
    """
    distance = _distance_from_best(estimates, spread)
    return int((distance < LEVEL).nonzero().max()) + 1 if bool(distance[-1] > CONTRADICTED) else len(estimates)


def is_as_good_as_the_best(estimates: Tensor, spread: float) -> bool:
    """Whether the last epoch is close to the best one; arguments as in `last_sound_epoch`."""
    return bool(_distance_from_best(estimates, spread)[-1] < LEVEL)


def _distance_from_best(estimates: Tensor, spread: float) -> Tensor:
    """By how many standard errors the estimated accuracy of each epoch is below the best one, [E, V] -> [E].

    The errors are those of differences between two epochs on the same examples.
    """
    estimates = estimates.double()
    worse = estimates[estimates.mean(1).argmax()] - estimates
    one_example = spread / estimates.shape[1]  # the change that one more, contrary example would make
    errors = (worse.var(1, unbiased=False) / estimates.shape[1] + one_example**2).sqrt()
    return worse.mean(1) / errors.clamp_min(1e-12)


def scel_by_sharpness(logits: Tensor, excluded: Tensor, transition: Tensor, log_prior: Tensor | float = 0.0) -> Tensor:
    """SCEL of each example, for logits times each value of `SHARPNESS`.

    Args:
        logits: [V, K].
        excluded: Complementary labels, [V, K].
        transition: [K, K].
        log_prior: Added to the scaled logits if these describe classes of equal size, [K].

    Returns:
        float32 [len(SHARPNESS), V].
    """
    labels, matrix = per_label(excluded.float()), transition.to(logits.device, torch.float32)
    centered = (logits - logits.amax(1, keepdim=True)).float()
    found = []
    for sharpness in SHARPNESS:
        predicted = multiply((sharpness * centered + log_prior).softmax(1), matrix)
        found.append(-(labels * torch.log(predicted + 1e-6)).sum(1))
    return torch.stack(found)


def calibrate(table: Tensor) -> Tensor:
    """The row with the lowest mean: [S, V], as from `scel_by_sharpness`, -> [V]."""
    return table[table.double().mean(1).argmin()]


def nats_per_point(transition: Tensor) -> float:
    """By how much calibrated SCEL falls for a point of accuracy, roughly.

    From chance to always right, SCEL falls by the mutual information of class and label, for classes of equal size.

    Args:
        transition: [K, K].
    """
    matrix = transition.double().cpu()
    information = entropy(matrix.mean(0)) - entropy(matrix).mean()
    return max(0.0, float(information)) / (1 - 1 / len(matrix)) / 100


def entropy(p: Tensor) -> Tensor:
    """Of distributions, in nats: [..., K] -> [...]."""
    found: Tensor = torch.special.entr(p).sum(-1)
    return found
