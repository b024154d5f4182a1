"""How good a trained classifier is, estimated from the complementary labels of its validation split.

The labels that select an epoch must not estimate its accuracy: the best of many noisy scores is too good. So the
validation split has two halves. The epoch that one half selects is measured on the other half; the result is the
average of both.

With self-training, this holds for the epochs of self-training alone. The epoch of the first classifier, from which it
starts, is selected with all held-out labels, because a second self-training would be needed otherwise. So the estimate
may be slightly too high (docs/notes/estimates.md).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from complementary import scores
from complementary.scores import AccuracyEstimate
from complementary.training.trainer import Trainer

Rows = list[dict[str, Any]]
NAMES = (
    "estimated_accuracy",
    "estimated_balanced_accuracy",
    "estimated_seen_accuracy",
    "estimated_seen_balanced_accuracy",
)
"""Estimates of a result: for new data, with the classes as they are or of equal size; and the same for images that the
encoder was pretrained on."""
NOTHING_HELD_OUT = (
    "No estimated accuracy: no examples are held out. Set holdout to a share of them, such as 0.1, or add examples."
)
NOT_SELECTED = "No estimated accuracy: the labels do not select an epoch."
NOT_NEW = (
    "No estimated accuracy for new images: the encoder was pretrained on all held-out images, and it represents images "
    "that it has seen better than new ones (CIFAR-10, SimSiam: 2.5 points of accuracy). Pretrain without them: "
    "pretrain_images = training, or holdout in the pretraining."
)
UNKNOWN = (
    "No estimated accuracy for new images: the file of the encoder does not say which images it was pretrained on, so "
    "that the held-out ones may be among them. Pretrain an encoder without them: pretrain_images = training."
)
SOME_NEW = (
    "The encoder was pretrained on {seen:,} of {count:,} held-out images; the others give the estimate for new ones."
)
EXCHANGED = (
    "The estimated accuracy may be far too high, because classes may be exchanged: by the estimated transition matrix, "
    "examples of a class are labeled with another class as rarely as with their own: {classes}. Give the matrix, or "
    "check some predictions by eye."
)
ASSUMED_UNIFORM = (
    "The estimated accuracy and its interval hold if no answer is wrong and all wrong classes are excluded equally "
    "often, because the transition matrix of the answers is not known. The report of the run (cll report) checks "
    "whether answers are wrong. With transition = estimate, the matrix is estimated."
)
LISTED = 6  # pairs of classes in a note
ASSUMED_NEW = "The estimated accuracy holds if the encoder {encoder} was not pretrained on the held-out images."


def estimates(trainer: Trainer, select: Callable[[Rows], dict[str, Any] | None]) -> dict[str, Any]:
    """The estimated accuracies of a finished training, as in result.json.

    Held-out images that the encoder was pretrained on are not new to it. Only the others give the estimate for new
    images; those that it has seen give an estimate of their own, under another name.

    Args:
        trainer: The training.
        select: The rule that selects an epoch: it maps rows of the history to one of them.

    Returns:
        For each of `NAMES` the value, its standard error and the ends of its 95 % interval; None: no number. The value
        is the unbiased one, for averages over runs; it may lie outside 0 to 1, and is cut where it is shown. Classes of
        equal size are a population of their own only if class sizes differ. ``estimate_notes`` says why a number is
        missing, and what the others assume.
    """
    task = trainer.task
    nothing = dict.fromkeys(f"{name}_{part}" for name in NAMES for part in ("selected", "error", "low", "high"))
    if not len(task.validation):
        return nothing | {"estimate_notes": [NOTHING_HELD_OUT]}
    if select(trainer.history) is None:
        return nothing | {"estimate_notes": [NOT_SELECTED]}
    predicted = cross_fitted_predictions(trainer, select)
    seen = torch.zeros(len(predicted), dtype=torch.bool) if task.validation_seen is None else task.validation_seen
    found: dict[str, Any] = {}
    notes: list[str] = []
    for rows, names, fewest in ((~seen, NAMES[:2], 1), (seen, NAMES[2:], 2)):  # it may have seen one by chance
        if int(rows.sum()) >= fewest:
            for name, estimate in zip(names, _estimate(trainer, predicted, rows), strict=False):
                found |= {f"{name}_{key}": value for key, value in _numbers(estimate).items()}
                notes += _reason(name, estimate)
    return nothing | found | {"estimate_notes": notes + _about_matrix(trainer, found) + _about_encoder(trainer, seen)}


def _estimate(trainer: Trainer, predicted: Tensor, rows: Tensor) -> list[AccuracyEstimate]:
    """Estimate the accuracy from some held-out examples.

    Args:
        trainer: The training.
        predicted: Predicted classes of the validation split, int [V].
        rows: The examples, bool [V].

    Returns:
        The estimate and, if class sizes differ, that for classes of equal size.
    """
    task, given = trainer.task, trainer.config.pseudo_labels.shares()
    matrix, estimated, excluded = task.transition, task.transition_estimate, task.validation_excluded.cpu()
    used, predicted = excluded[rows], predicted[rows]
    found = [scores.accuracy_interval(predicted, used, matrix, estimated)]
    shares = None if given is None else torch.tensor(given, dtype=torch.float64) / sum(given)
    others = torch.cat([excluded[~rows], task.excluded.cpu()])
    if shares is not None or scores.classes_differ_in_size(torch.cat([used, others]), matrix):
        found.append(
            scores.balanced_accuracy_interval(predicted, used, matrix, estimated, others, shares, task.classes)
        )
    return found


def cross_fitted_predictions(trainer: Trainer, select: Callable[[Rows], dict[str, Any] | None]) -> Tensor:
    """Predicted classes of the validation split, int [V]: each half by the epoch that the other half selects."""
    history, second = trainer.history, trainer.second_half.cpu()
    predicted = torch.zeros(len(second), dtype=torch.long)
    for own, other in ((0, second), (1, ~second)):
        rows = [row | (row["halves"][own] if "halves" in row else {}) for row in history]
        chosen = select(rows)
        assert chosen is not None
        predicted[other] = trainer.validation_predictions[chosen["epoch"] - 1][other].long()
    return predicted


def _numbers(estimate: AccuracyEstimate) -> dict[str, float]:
    if estimate.reason:
        return {}
    return {"selected": estimate.unbiased, "error": estimate.error, "low": estimate.low, "high": estimate.high}


def _reason(name: str, estimate: AccuracyEstimate) -> list[str]:
    where = " for classes of equal size" if "balanced" in name else ""
    where += " on images that the encoder was pretrained on" if "seen" in name else ""
    return (
        [f"No estimated accuracy{where}: {estimate.reason[0].lower()}{estimate.reason[1:]}"] if estimate.reason else []
    )


def _about_matrix(trainer: Trainer, found: dict[str, Any]) -> list[str]:
    """What the estimated accuracy assumes about the answers, and whether it may be that of exchanged classes."""
    estimate, classes = trainer.task.transition_estimate, trainer.task.classes
    if found and trainer.task.data_summary.get("labels_given") and trainer.config.training.transition == "auto":
        return [ASSUMED_UNIFORM]
    pairs = estimate.exchangeable if found and estimate is not None else []
    if not pairs:
        return []
    named = [f"{classes[k]} (or {classes[label]})" for k, label in pairs[:LISTED]]
    return [EXCHANGED.format(classes=", ".join(named) + (" ..." if len(pairs) > LISTED else ""))]


def _about_encoder(trainer: Trainer, seen: Tensor) -> list[str]:
    """What the numbers mean, if the network computes its inputs with an encoder or was initialized with one."""
    if trainer.encoder is None:
        return []
    if trainer.task.validation_seen is None:
        return [ASSUMED_NEW.format(encoder=trainer.task.data_summary.get("encoder"))]
    if bool(seen.all()):
        return [UNKNOWN if trainer.encoder.seen is None else NOT_NEW]
    return [SOME_NEW.format(seen=int(seen.sum()), count=len(seen))] if bool(seen.any()) else []
