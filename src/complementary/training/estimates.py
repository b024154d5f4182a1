"""How good a trained classifier is, estimated from the complementary labels of its validation split.

The labels that select an epoch must not estimate its accuracy: the best of many noisy scores is too good. So the
validation split has two halves. The epoch that one half selects is measured on the other half; the result is the
average of both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from complementary import scores
from complementary.scores import AccuracyEstimate
from complementary.training.trainer import Trainer

Rows = list[dict[str, Any]]
SEEN = (
    "The encoder was pretrained on the held-out images too. The estimate is for images that the encoder has seen; "
    "expect less on new images (CIFAR-10, SimSiam: 2.7 points less)."
)
MAYBE_SEEN = "If the encoder was pretrained on the held-out images too, expect less on new images."


def estimates(trainer: Trainer, select: Callable[[Rows], dict[str, Any] | None]) -> dict[str, Any]:
    """The estimated accuracies of a finished training, as in result.json.

    Args:
        trainer: The training.
        select: The rule that selects an epoch: it maps rows of the history to one of them.

    Returns:
        Accuracy on data like the training data and, if class sizes differ, on classes of equal size, each with the ends
        of its 95 % interval; None: no number, and ``estimate_notes`` says why.
    """
    task, names = trainer.task, ("estimated_accuracy", "estimated_balanced_accuracy")
    nothing = dict.fromkeys(f"{name}_{part}" for name in names for part in ("selected", "error", "low", "high"))
    if not len(task.validation) or select(trainer.history) is None:
        return nothing
    predicted, excluded = cross_fitted_predictions(trainer, select), task.validation_excluded
    matrix, estimated = task.transition, task.transition_estimate
    found = [scores.accuracy_interval(predicted, excluded, matrix, estimated)]
    given = trainer.config.pseudo_labels.shares()
    shares = None if given is None else torch.tensor(given, dtype=torch.float64) / sum(given)
    everything = torch.cat([excluded, task.excluded])
    if shares is not None or scores.classes_differ_in_size(everything, matrix):
        arguments = (predicted, excluded, matrix, estimated, task.excluded, shares)
        found.append(scores.balanced_accuracy_interval(*arguments))
    result = nothing | {
        f"{name}_{key}": value
        for name, estimate in zip(names, found, strict=False)
        for key, value in _numbers(estimate).items()
    }
    return result | {"estimate_notes": [*_reasons(found), *_about_encoder(trainer)]}


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
    return {"selected": estimate.value, "error": estimate.error, "low": estimate.low, "high": estimate.high}


def _reasons(found: list[AccuracyEstimate]) -> list[str]:
    what = {"data": "No estimated accuracy", "balanced": "No estimated accuracy for classes of equal size"}
    return [f"{what[e.population]}: {e.reason[0].lower()}{e.reason[1:]}" for e in found if e.reason]


def _about_encoder(trainer: Trainer) -> list[str]:
    """The validation split was held out from the labels, but not from the images that an encoder was pretrained on."""
    encoder = trainer.task.data_summary.get("encoder")
    if trainer.encoder is None or encoder is None or encoder == "random":
        return []
    return [SEEN if encoder.partition(":")[0] in ("simsiam", "byol", "mocov3", "run") else MAYBE_SEEN]
