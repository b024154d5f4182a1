"""Answers that look wrong: "not k" for an example that most likely is of class k.

The functions follow cleanlab's conventions: arrays in, arrays out; scores between 0 (certainly wrong) and 1; a mask of
examples, or their indices with the worst first. No true label is used.

The probabilities must be *out-of-sample*: the model that made them was not trained on the answers of the same examples.
A model that has seen the answer "not k" predicts k less, and so hides exactly the errors that are wanted.
`complementary.training.cross_fit` makes such probabilities for a run, and scikit-learn's
``cross_val_predict(model, X, not_y, method="predict_proba")`` for an estimator.

    >>> import numpy as np
    >>> from complementary.reports.answers import find_answer_issues
    >>> rng = np.random.default_rng(1)
    >>> logits = 6 * rng.normal(size=(1000, 4))
    >>> pred_probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    >>> truth = (rng.random((1000, 1)) > pred_probs.cumsum(1)).sum(1)
    >>> not_y = (truth + rng.integers(1, 4, 1000)) % 4
    >>> not_y[:40] = truth[:40]  # forty wrong answers
    >>> found = find_answer_issues(not_y, pred_probs, return_indices_ranked_by="posterior")
    >>> int((found[:10] < 40).sum())  # of the ten worst
    10
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from complementary import labels, transitions
from complementary.errors import UserError, one_of

RankName = Literal["posterior", "self_confidence", "normalized_margin"]
FilterName = Literal["posterior", "prune_by_noise_rate", "predicted_class"]
RANKS = ("posterior", "self_confidence", "normalized_margin")
FILTERS = ("posterior", "prune_by_noise_rate", "predicted_class")
MAX_RATE = 0.5  # that may be given: an answer is wrong less often than right
LARGEST = 0.9  # of 1/K, the largest estimated rate: at 1/K answers are random and carry no information
SIGNIFICANCE = 0.05
LOG_TEMPERATURES = tuple(x / 4 for x in range(-6, 11))  # the first search: temperatures from 0.22 to 12


@dataclass(frozen=True)
class AnswerNoise:
    """How often answers are wrong, estimated without true labels.

    Attributes:
        rate: Share of the answers that exclude the true class.
        error: Standard error of the rate; infinite if the likelihood is flat, 0 if the rate was given.
        p_value: Probability of such a likelihood ratio if no answer were wrong. Above `SIGNIFICANCE`, no answer counts
            as an issue.
        temperature: The probabilities are p^(1 / temperature), normalized: above 1, the model was too confident.
        temperature_error: Standard error of the logarithm of the temperature.
        log_likelihood: Mean log-likelihood of the answers of an example.
        transition: The probability of each answer given the class, float64 [K, K], with an error rate that is one
            standard error lower: it is used to accuse single answers, so it errs on the side of the annotators.
    """

    rate: float
    error: float
    p_value: float
    temperature: float
    temperature_error: float
    log_likelihood: float
    transition: NDArray[np.float64]


@dataclass(frozen=True)
class RankedAnswers:
    """All answers, the one that is most likely wrong first. M answers of N examples.

    Attributes:
        example: Position of the example, int [M].
        answer: The class that the answer excludes, int [M].
        quality: Probability that the answer is right, [M].
        predicted: The most probable class of the example, before its answers are considered, int [M].
        probability: Probability of the excluded class, after calibration and before the answers are considered, [M].
        is_issue: Whether the answer looks wrong, bool [M].
        noise: The estimated errors.
    """

    example: NDArray[np.int64]
    answer: NDArray[np.int64]
    quality: NDArray[np.float64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float64]
    is_issue: NDArray[np.bool_]
    noise: AnswerNoise

    @property
    def expected_precision(self) -> float:
        """Expected share of wrong answers among the issues, by their own probabilities; NaN without issues."""
        return float((1 - self.quality[self.is_issue]).mean()) if self.is_issue.any() else math.nan

    @property
    def expected_wrong(self) -> float:
        """Expected number of wrong answers in all."""
        return float((1 - self.quality).sum())


# --- the functions of the module --------------------------------------------------------------------------------------


def find_answer_issues(
    excluded: object,
    pred_probs: ArrayLike | Tensor,
    transition: ArrayLike | Tensor | None = None,
    *,
    return_indices_ranked_by: RankName | None = None,
    filter_by: FilterName = "posterior",
    frac_noise: float = 1.0,
    noise_rate: float | None = None,
    classes: Sequence[Hashable] | None = None,
) -> NDArray[Any]:
    """Find the examples that have an answer that looks wrong.

    Args:
        excluded: Complementary labels: class numbers or names [N], a list of sets of them, or a 0/1 matrix [N, K].
        pred_probs: Out-of-sample class probabilities, [N, K].
        transition: How answers arise from the true class, [K, K]; None: every wrong class is equally likely. If its
            diagonal is not zero, it says how often answers are wrong, and no rate is estimated.
        return_indices_ranked_by: None: return a mask. Otherwise return indices, ranked by the score of this name (see
            `get_answer_quality_scores`).
        filter_by: Which answers are issues. ``posterior``: those that are wrong with a probability above one half.
            ``prune_by_noise_rate``: as many of the worst ones as answers are expected to be wrong. ``predicted_class``:
            those that exclude the predicted class. The first two find none if the answers do not show any errors
            (see `AnswerNoise.p_value`).
        frac_noise: Share of the issues to return, the most severe ones.
        noise_rate: Share of the answers that are wrong; None: estimated (see `estimate_answer_noise`).
        classes: Names of the columns of ``pred_probs`` (``model.classes_``); required if the answers are names.

    Returns:
        bool [N], or int [issues] with the most severe issue first.
    """
    if return_indices_ranked_by is not None:
        one_of("The score", return_indices_ranked_by, RANKS, "return_indices_ranked_by")
    if not 0 <= frac_noise <= 1:
        raise UserError(f"frac_noise is {frac_noise}, but it must be between 0 and 1.", "frac_noise")
    ranked = rank_answers(excluded, pred_probs, transition, filter_by=filter_by, noise_rate=noise_rate, classes=classes)
    found = ranked.example[ranked.is_issue]
    found = found[np.sort(np.unique(found, return_index=True)[1])]  # an example may have several such answers
    found = found[: round(frac_noise * len(found))]
    if return_indices_ranked_by is None:
        mask = np.zeros(len(_probabilities(pred_probs)), dtype=bool)
        mask[found] = True
        return mask
    if return_indices_ranked_by != "posterior":
        scores = get_answer_quality_scores(
            excluded, pred_probs, transition, method=return_indices_ranked_by, noise_rate=noise_rate, classes=classes
        )
        found = found[np.argsort(scores[found], kind="stable")]
    return found


def get_answer_quality_scores(
    excluded: object,
    pred_probs: ArrayLike | Tensor,
    transition: ArrayLike | Tensor | None = None,
    *,
    method: RankName = "posterior",
    noise_rate: float | None = None,
    classes: Sequence[Hashable] | None = None,
) -> NDArray[np.float64]:
    """Score the answers of each example: 0 is certainly wrong, 1 certainly right.

    Args:
        excluded: As in `find_answer_issues`.
        pred_probs: Out-of-sample class probabilities, [N, K].
        transition: As in `find_answer_issues`.
        method: ``posterior``: the probability that the answer is right, given the prediction, all answers of the
            example and the error rate of answers. ``self_confidence``: 1 - p_k for the answer "not k".
            ``normalized_margin``: the margin of p_k over the best other class, scaled to 0 .. 1.
        noise_rate: As in `find_answer_issues`; for ``posterior``.
        classes: As in `find_answer_issues`.

    Returns:
        float64 [N]: the score of the worst answer of each example; 1 for an example without answers.
    """
    one_of("The score", method, RANKS, "method")
    given, probabilities = _check(excluded, pred_probs, classes)
    if method == "posterior":
        noise = _noise(given, probabilities, transition, noise_rate)
        wrong = _posterior(given, probabilities, noise)
    elif method == "self_confidence":
        wrong = probabilities
    else:
        wrong = (probabilities - _best_other(probabilities) + 1) / 2
    worst: NDArray[np.float64] = torch.where(given > 0, wrong, 0.0).amax(1).numpy()
    return 1 - worst


def rank_answers(
    excluded: object,
    pred_probs: ArrayLike | Tensor,
    transition: ArrayLike | Tensor | None = None,
    *,
    filter_by: FilterName = "posterior",
    noise_rate: float | None = None,
    noise: AnswerNoise | None = None,
    classes: Sequence[Hashable] | None = None,
) -> RankedAnswers:
    """Rank every single answer by the probability that it is wrong.

    Args:
        excluded: As in `find_answer_issues`.
        pred_probs: Out-of-sample class probabilities, [N, K].
        transition: As in `find_answer_issues`.
        filter_by: As in `find_answer_issues`.
        noise_rate: As in `find_answer_issues`.
        noise: Errors that were estimated with other examples of the same kind; nothing is estimated then.
        classes: As in `find_answer_issues`.
    """
    one_of("The filter", filter_by, FILTERS, "filter_by")
    given, probabilities = _check(excluded, pred_probs, classes)
    noise = noise or _noise(given, probabilities, transition, noise_rate)
    wrong = _posterior(given, probabilities, noise)
    predicted = probabilities.argmax(1)
    example, answer = given.nonzero(as_tuple=True)
    score = wrong[example, answer]
    order = score.argsort(descending=True, stable=True)
    example, answer, score = example[order], answer[order], score[order]
    if filter_by == "posterior":
        issue = score > 0.5
    elif filter_by == "prune_by_noise_rate":
        issue = torch.arange(len(score)) < round(noise.rate * len(score))
    else:
        issue = predicted[example] == answer
    if filter_by != "predicted_class" and noise.p_value > SIGNIFICANCE:
        issue = torch.zeros_like(issue)
    calibrated = (probabilities.clamp_min(1e-12).log() / noise.temperature).softmax(1)
    return RankedAnswers(
        example.numpy(),
        answer.numpy(),
        1 - score.numpy(),
        predicted[example].numpy(),
        calibrated[example, answer].numpy(),
        issue.numpy(),
        noise,
    )


def estimate_answer_noise(
    excluded: object,
    pred_probs: ArrayLike | Tensor,
    transition: ArrayLike | Tensor | None = None,
    *,
    classes: Sequence[Hashable] | None = None,
) -> AnswerNoise:
    """Estimate how often answers are wrong, without true labels.

    An answer is drawn from ``(1 - rate) transition + rate identity``. The rate and the temperature of the probabilities
    maximize the likelihood of all answers, with a wide normal prior of the log-temperature (mean 0, deviation 1). The
    temperature is needed because the confident mistakes of a model look like wrong answers.

    Args:
        excluded: As in `find_answer_issues`.
        pred_probs: Out-of-sample class probabilities, [N, K].
        transition: How right answers arise, [K, K]; its diagonal is ignored. None: uniform.
        classes: As in `find_answer_issues`.
    """
    given, probabilities = _check(excluded, pred_probs, classes)
    base = _without_errors(_matrix(transition, given.shape[1]))
    keep = given.sum(1) > 0
    given, logs = given[keep], probabilities[keep].clamp_min(1e-12).log()
    if len(given) == 0:
        raise UserError("There are no answers; each example needs at least one class that it is not.")

    def best_rate(log_temperature: float, precision: float = 1e-4) -> tuple[float, float]:
        likelihood = _likelihood(logs / math.exp(log_temperature), given, base)
        highest = LARGEST / len(base)
        return _golden(lambda rate: likelihood(rate) - log_temperature**2 / 2 / len(given), 0.0, highest, precision)

    start = max(LOG_TEMPERATURES, key=lambda value: best_rate(value, 0.01)[1])
    log_temperature, value = _golden(lambda x: best_rate(x)[1], start - 0.25, start + 0.25, 0.01)
    rate, _ = best_rate(log_temperature)
    # without errors any temperature is allowed: a model that knows nothing must not count as a sign of wrong answers
    _, without = _golden(lambda x: _likelihood(logs / math.exp(x), given, base)(0.0), -1.5, 6.0, 0.01)
    ratio = 2 * len(given) * max(0.0, value - without)
    p_value = 0.5 * math.erfc(math.sqrt(ratio / 2)) if rate > 0 else 1.0  # half: a rate is never below zero
    error, temperature_error = _standard_errors(logs, given, base, rate, log_temperature)
    matrix = with_errors(base, rate)
    wrong = (given * (logs / math.exp(log_temperature) + _given_class(given, matrix)).softmax(1)).sum() / given.sum()
    share = float(wrong) if rate > 0 else 0.0  # the rate, unless examples have several answers, which all differ
    cautious = with_errors(base, max(rate - error, rate / 2)).numpy()
    return AnswerNoise(share, error, p_value, math.exp(log_temperature), temperature_error, value, cautious)


def class_posterior(excluded: object, pred_probs: ArrayLike | Tensor, noise: AnswerNoise) -> NDArray[np.float64]:
    """Class probabilities [N, K] that combine calibrated predictions and answers by Bayes' rule."""
    posterior: NDArray[np.float64] = _posterior(*_check(excluded, pred_probs), noise).numpy()
    return posterior


def with_errors(transition: Tensor, rate: float) -> Tensor:
    """The matrix [K, K] in which a share ``rate`` of the answers excludes the true class."""
    return (1 - rate) * _without_errors(transition) + rate * torch.eye(len(transition), dtype=torch.float64)


# --- the parts --------------------------------------------------------------------------------------------------------


def _check(
    excluded: object, pred_probs: ArrayLike | Tensor, classes: Sequence[Hashable] | None = None
) -> tuple[Tensor, Tensor]:
    """Answers and probabilities as float64 [N, K] on the CPU."""
    probabilities = _probabilities(pred_probs)
    if getattr(excluded, "ndim", 0) == 2:
        given = torch.as_tensor(excluded)
    else:
        names = probabilities.shape[1] if classes is None else list(classes)
        given, found = labels.encode(excluded, names)
        if classes is None and any(isinstance(name, str) for name in found):
            raise UserError(
                "The answers are names of classes, so the order of the columns of pred_probs must be known; pass "
                "classes, for example model.classes_.",
                "classes",
            )
    given = given.detach().cpu().double()
    if given.shape != probabilities.shape:
        raise UserError(
            f"pred_probs has shape {list(probabilities.shape)}, but the answers have {list(given.shape)}; there must "
            "be one row per example and one column per class."
        )
    if not bool(((given == 0) | (given == 1)).all()):
        raise UserError("A matrix of answers must contain only 0 and 1 (1: not this class).")
    return given, probabilities


def _probabilities(pred_probs: ArrayLike | Tensor) -> Tensor:
    found = torch.as_tensor(np.asarray(pred_probs) if not isinstance(pred_probs, Tensor) else pred_probs)
    found = found.detach().cpu().double()
    if found.ndim != 2 or found.shape[1] < 2:
        raise UserError(f"pred_probs has shape {list(found.shape)}; it must be [N, K] for at least 2 classes.")
    sums = found.sum(1)
    if not bool(torch.isfinite(found).all()) or bool((found < 0).any()) or bool(((sums - 1).abs() > 1e-2).any()):
        raise UserError("pred_probs must hold probabilities: finite, not negative, and rows that sum to 1.")
    return found / sums[:, None]


def _matrix(transition: ArrayLike | Tensor | None, classes: int) -> Tensor:
    if transition is None:
        return transitions.uniform(classes)
    matrix = transition if isinstance(transition, Tensor) else torch.as_tensor(np.asarray(transition))
    return transitions.check_transition(matrix.detach().cpu(), classes)


def _without_errors(transition: Tensor) -> Tensor:
    """The distribution of the right answers: zero diagonal, rows that sum to 1."""
    matrix = transition.double().clone()
    matrix.fill_diagonal_(0)
    sums = matrix.sum(1, keepdim=True)
    if bool((sums < 1e-6).any()):
        worst = int(sums.argmin())
        raise UserError(f"The transition matrix says that every answer for class {worst} is wrong.", "transition")
    return matrix / sums


def _noise(
    given: Tensor, probabilities: Tensor, transition: ArrayLike | Tensor | None, rate: float | None
) -> AnswerNoise:
    """The given errors, or the estimated ones."""
    matrix = _matrix(transition, given.shape[1])
    if rate is not None:
        if not 0 <= rate <= MAX_RATE:
            raise UserError(f"noise_rate is {rate}, but it must be between 0 and {MAX_RATE}.", "noise_rate")
        matrix = with_errors(matrix, rate)
    _without_errors(matrix)  # checks it
    if rate is None and float(matrix.diagonal().max()) <= 0:
        return estimate_answer_noise(given, probabilities, matrix)
    logs, rate = probabilities.clamp_min(1e-12).log(), float(matrix.diagonal().mean())
    keep = given.sum(1) > 0
    given, logs = given[keep], logs[keep]

    def likelihoods(log_temperature: float) -> Tensor:
        return _log_likelihoods((logs / math.exp(log_temperature)).log_softmax(1), given, matrix)

    best, value = _golden(lambda x: float(likelihoods(x).mean()) - x**2 / 2 / max(1, len(logs)), -1.5, 2.5, 0.01)
    slope = (likelihoods(best + 1e-3) - likelihoods(best - 1e-3)) / 2e-3
    error = 1 / math.sqrt(float((slope**2).sum()) + 1)
    return AnswerNoise(rate, 0.0, 0.0, math.exp(best), error, value, matrix.numpy())


def _posterior(given: Tensor, probabilities: Tensor, noise: AnswerNoise) -> Tensor:
    """Class probabilities [N, K] given the prediction and the answers; for an answer, that it is wrong."""
    prediction = (probabilities.clamp_min(1e-12).log() / noise.temperature).log_softmax(1)
    return (prediction + _given_class(given, torch.from_numpy(noise.transition))).softmax(1)


def _likelihood(logs: Tensor, given: Tensor, base: Tensor) -> Callable[[float], float]:
    """The mean log-likelihood of the answers as a function of the error rate, for predictions softmax(logs) [N, K]."""
    prediction = logs.softmax(1)
    if bool((given.sum(1) == 1).all()):  # then the probability of an answer is linear in the rate
        right = (given * (prediction @ base)).sum(1)
        wrong = (given * prediction).sum(1)
        return lambda rate: float(((1 - rate) * right + rate * wrong).clamp_min(1e-12).log().mean())
    log_prediction = logs.log_softmax(1)
    return lambda rate: float(_log_likelihoods(log_prediction, given, with_errors(base, rate)).mean())


def _log_likelihoods(log_prediction: Tensor, given: Tensor, matrix: Tensor) -> Tensor:
    """Log-probability of the answers of each example, [N]."""
    return (log_prediction + _given_class(given, matrix)).logsumexp(1)


def _given_class(given: Tensor, matrix: Tensor) -> Tensor:
    """Log-probability [N, K] of the answers of each example for each class.

    Answers are independent given the class, and those of an example differ: a set of m answers has the product of their
    probabilities, divided by the sum of these products over all sets of m classes.
    """
    matrix = matrix.clamp_min(1e-12)
    sizes = given.sum(1).long()
    sums = torch.zeros(int(sizes.max()) + 1, len(matrix), dtype=torch.float64)  # [m, true class]
    sums[0] = 1
    for column in matrix.T:  # elementary symmetric polynomials of each row
        sums[1:] = sums[1:] + column * sums[:-1].clone()
    return given @ matrix.log().T - sums[sizes].log()


def _standard_errors(
    logs: Tensor, given: Tensor, base: Tensor, rate: float, log_temperature: float
) -> tuple[float, float]:
    """Of rate and log-temperature: from the spread of the derivatives of the log-likelihood (outer-product form)."""
    rate = max(rate, 1e-4)

    def each(rate: float, log_temperature: float) -> Tensor:
        prediction = (logs / math.exp(log_temperature)).log_softmax(1)
        return _log_likelihoods(prediction, given, with_errors(base, rate))

    step = rate / 10
    by_rate = (each(rate + step, log_temperature) - each(rate - step, log_temperature)) / (2 * step)
    by_temperature = (each(rate, log_temperature + 1e-3) - each(rate, log_temperature - 1e-3)) / 2e-3
    slopes = torch.stack([by_rate, by_temperature], 1)
    information = slopes.T @ slopes + torch.diag(torch.tensor([0.0, 1.0], dtype=torch.float64))  # 1: of the prior
    if float(torch.linalg.det(information)) <= 1e-12:
        return math.inf, 1 / math.sqrt(float(information[1, 1]))
    variance = torch.linalg.inv(information).diagonal().sqrt().tolist()
    return variance[0], variance[1]


def _best_other(probabilities: Tensor) -> Tensor:
    """For each class, the probability of the best other class. [N, K]."""
    best = probabilities.topk(2, dim=1)
    first, second = best.values[:, :1], best.values[:, 1:]
    is_best = torch.nn.functional.one_hot(best.indices[:, 0], probabilities.shape[1]).bool()
    return torch.where(is_best, second, first)


def _golden(function: Callable[[float], float], low: float, high: float, precision: float) -> tuple[float, float]:
    """Maximize a function with a single maximum by golden-section search -> (place, value); the ends are tried, too."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    ends = [(function(low), low), (function(high), high)]
    at_a, at_b = function(a), function(b)
    while high - low > precision:
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    value, place = max([(at_a, a), (at_b, b), *ends])
    return place, value
