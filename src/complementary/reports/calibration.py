"""Whether a model is right as often as its probabilities say, judged with complementary labels or with true ones."""

import math
from dataclasses import dataclass

from torch import Tensor

from complementary.reports.confusions import Estimated, estimate_accuracy

PER_BIN = 100  # examples at least, or the estimate of a bin says nothing


@dataclass(frozen=True)
class Bin:
    """Examples of similar confidence.

    Attributes:
        count: Number of examples.
        confidence: Mean probability of the predicted class.
        accuracy: Share of right predictions, with its standard error.
    """

    count: int
    confidence: float
    accuracy: Estimated


@dataclass(frozen=True)
class Calibration:
    """Confidence against accuracy.

    Attributes:
        bins: From the least to the most confident examples, as many in each.
        confidence: Mean confidence of all examples.
        accuracy: Accuracy of all examples.
        gap: Mean over the examples of \\|confidence - accuracy\\| of their bins (the expected calibration error). The
            noise of the accuracies makes it larger, so it is an upper bound on average.
        oracle: Whether true labels were used.
        assumption: What the accuracies assume about wrong answers, to follow a name.
    """

    bins: list[Bin]
    confidence: float
    accuracy: Estimated
    gap: float
    oracle: bool
    assumption: str = ""


def calibration(
    probabilities: Tensor,
    excluded: Tensor | None = None,
    transition: Tensor | None = None,
    truth: Tensor | None = None,
    bins: int = 10,
) -> Calibration:
    """Compare the confidence of predictions with how often they are right.

    Args:
        probabilities: Class probabilities of examples that the model was not trained on, [N, K].
        excluded: Their complementary labels, [N, K]; needed without ``truth``.
        transition: [K, K]; needed without ``truth``.
        truth: Their true labels, int [N]; the result is an oracle then.
        bins: Number of bins at most; each has 100 examples or more.
    """
    best = probabilities.cpu().double().max(1)
    order = best.values.argsort(stable=True)
    parts = order.tensor_split(max(1, min(bins, len(order) // PER_BIN)))

    def accuracy(part: Tensor) -> Estimated:
        if truth is not None:
            right = (best.indices == truth.cpu())[part].double()
            return Estimated(float(right.mean()), float(right.std(unbiased=False)) / math.sqrt(len(right)))
        assert excluded is not None
        assert transition is not None
        return estimate_accuracy(best.indices[part], excluded.cpu()[part], transition)

    found = [Bin(len(part), float(best.values[part].mean()), accuracy(part)) for part in parts if len(part)]
    gap = sum(b.count * abs(b.confidence - b.accuracy.value) for b in found) / max(1, len(order))
    overall = accuracy(order) if len(order) else Estimated(math.nan, math.nan)
    return Calibration(found, float(best.values.mean()), overall, float(gap), truth is not None)


def with_temperature(probabilities: Tensor, temperature: float) -> Tensor:
    """The probabilities [N, K] of a softmax whose logits are divided by ``temperature``."""
    return (probabilities.double().clamp_min(1e-30).log() / temperature).softmax(1).to(probabilities.dtype)
