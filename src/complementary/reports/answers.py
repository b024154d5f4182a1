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
from complementary.reports.confusions import Estimated
from complementary.scores import log_sums

RankName = Literal["posterior", "self_confidence", "normalized_margin"]
FilterName = Literal["posterior", "prune_by_noise_rate", "predicted_class"]
RANKS = ("posterior", "self_confidence", "normalized_margin")
FILTERS = ("posterior", "prune_by_noise_rate", "predicted_class")
MAX_RATE = 0.5  # that may be given: an answer is wrong less often than right
NOT, YES = 0, 1  # the kinds of answers
LARGEST = 0.9  # of 1/K, the largest estimated rate: at 1/K answers are random and carry no information
SIGNIFICANCE = 0.05
ASSUMED_RATE = 0.01  # of wrong answers, to rank them if nothing is known
LOG_TEMPERATURES = tuple(x / 4 for x in range(-6, 11))  # the first search: temperatures from 0.22 to 12


@dataclass(frozen=True)
class AnswerNoise:
    """How often answers are wrong, estimated without true labels.

    "Not" and "yes" answers have rates of their own. An example whose answers exclude all classes but one of at least
    three has a "yes" answer.

    Attributes:
        rate: Share of the "not" answers that exclude the true class; NaN: unknown.
        error: Standard error of the rate; infinite if the likelihood is flat, 0 if the rate was given.
        p_value: Probability of such a likelihood ratio if no "not" answer were wrong. Above `SIGNIFICANCE`, no such
            answer counts as an issue.
        temperature: The probabilities are p^(1 / temperature), normalized: above 1, the model was too confident.
        temperature_error: Standard error of the logarithm of the temperature.
        log_likelihood: Mean log-likelihood of the answers of an example.
        transition: The probability of each answer given the class, float64 [K, K], with an error rate that is one
            standard error lower: it decides about single answers, and a right answer should not be flagged.
        label_rate: Probability that an excluded class, drawn from those of a random example, is the true one. A rate
            that is not significant counts as 0.
        yes_rate: Share of the "yes" answers that are wrong.
        yes_error: Standard error of ``yes_rate``; infinite without such answers.
        yes_p_value: As ``p_value``, for "yes" answers.
    """

    rate: float
    error: float
    p_value: float
    temperature: float
    temperature_error: float
    log_likelihood: float
    transition: NDArray[np.float64]
    label_rate: Estimated
    yes_rate: float = 0.0
    yes_error: float = math.inf
    yes_p_value: float = 1.0

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known about errors, see `unknown_noise`."""
        return math.isnan(self.rate)

    @property
    def is_significant(self) -> bool:
        """Whether the answers show that some of them are wrong."""
        return min(self.p_value, self.yes_p_value) <= SIGNIFICANCE


@dataclass(frozen=True)
class RankedAnswers:
    """All answers, the one that is most likely wrong first. M answers of N examples.

    Attributes:
        example: Position of the example, int [M].
        answer: The class that the answer excludes, int [M]; for a "yes" answer, the most probable of those classes.
        is_yes: Whether it is a "yes" answer (see `AnswerNoise`), bool [M].
        quality: Probability that the answer is right, [M].
        predicted: The most probable class of the example, before its answers are considered, int [M].
        probability: Probability of the excluded class, after calibration and before the answers are considered, [M].
        is_issue: Whether the answer looks wrong, bool [M].
        noise: The estimated errors.
    """

    example: NDArray[np.int64]
    answer: NDArray[np.int64]
    is_yes: NDArray[np.bool_]
    quality: NDArray[np.float64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float64]
    is_issue: NDArray[np.bool_]
    noise: AnswerNoise

    @property
    def expected_precision(self) -> float:
        """Expected share of wrong answers among the issues, by their own probabilities; NaN without issues."""
        return float((1 - self.quality[self.is_issue]).mean()) if self.is_issue.any() else math.nan


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
    return 1 - _of_worst(given, wrong, method == "posterior").numpy()


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
    example, answer = _single_answers(given, wrong).nonzero(as_tuple=True)
    yes = is_yes(given)[example]
    score = torch.where(yes, _of_worst(given, wrong, summed=True)[example], wrong[example, answer])
    order = score.argsort(descending=True, stable=True)
    example, answer, yes, score = example[order], answer[order], yes[order], score[order]
    if filter_by == "posterior":
        issue = score > 0.5
    elif filter_by == "prune_by_noise_rate":
        expected = noise.rate * int((~yes).sum()) + noise.yes_rate * int(yes.sum())
        issue = torch.arange(len(score)) < round(expected)
    else:
        issue = (given[example, predicted[example]] > 0) & (yes | (predicted[example] == answer))
    if filter_by != "predicted_class":
        issue &= torch.where(yes, noise.yes_p_value <= SIGNIFICANCE, noise.p_value <= SIGNIFICANCE)
    calibrated = (probabilities.clamp_min(1e-12).log() / noise.temperature).softmax(1)
    return RankedAnswers(
        example.numpy(),
        answer.numpy(),
        yes.numpy(),
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

    A "not" answer is drawn from ``(1 - rate) transition + rate identity``; a "yes" answer names the true class with
    probability ``1 - yes_rate``, else any other one. The rates and the temperature of the probabilities maximize the
    likelihood of all answers, with a wide normal prior of the log-temperature (mean 0, deviation 1). The temperature is
    needed because the confident mistakes of a model look like wrong answers.

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

    model, yes = _NoiseModel.of(logs, given, base), is_yes(given)
    log_temperature, value = model.best_temperature()
    rates, _ = model.best_rates(log_temperature)
    error, yes_error, temperature_error = _standard_errors(logs, given, base, rates, log_temperature)
    share = model.share_of_wrong_labels(rates[NOT], log_temperature)
    p_values = [model.p_value(kind, rates[kind], value) for kind in (NOT, YES)]
    found = (Estimated(share, error), Estimated(rates[YES], yes_error))
    significant = [e if p <= SIGNIFICANCE else Estimated(0.0, 0.0) for e, p in zip(found, p_values, strict=True)]
    return AnswerNoise(
        rate=share,
        error=error,
        p_value=p_values[NOT],
        temperature=math.exp(log_temperature),
        temperature_error=temperature_error,
        log_likelihood=value,
        transition=with_errors(base, _cautious(rates[NOT], error)).numpy(),
        label_rate=_label_rate(yes, len(base), *significant),
        yes_rate=rates[YES],
        yes_error=yes_error,
        yes_p_value=p_values[YES],
    )


def unknown_noise(transition: Tensor) -> AnswerNoise:
    """What is known about errors without out-of-sample predictions: nothing. It ranks answers, and flags none.

    A model that was trained on an answer hides its error, and a weak one contradicts many right answers. So neither a
    rate nor a temperature follows from its predictions.

    Args:
        transition: The transition matrix, [K, K].
    """
    matrix = transition.double().cpu()
    matrix = matrix if float(matrix.diagonal().max()) > 0 else with_errors(matrix, ASSUMED_RATE)
    return AnswerNoise(
        rate=math.nan,
        error=math.inf,
        p_value=1.0,
        temperature=1.0,
        temperature_error=math.inf,
        log_likelihood=math.nan,
        transition=matrix.numpy(),
        label_rate=Estimated(0.0, 0.0),
        yes_rate=ASSUMED_RATE,
    )


def class_posterior(excluded: object, pred_probs: ArrayLike | Tensor, noise: AnswerNoise) -> NDArray[np.float64]:
    """Class probabilities [N, K] that combine calibrated predictions and answers by Bayes' rule."""
    posterior: NDArray[np.float64] = _posterior(*_check(excluded, pred_probs), noise).numpy()
    return posterior


def with_errors(transition: Tensor, rate: float) -> Tensor:
    """The matrix [K, K] in which a share ``rate`` of the answers excludes the true class."""
    return (1 - rate) * _without_errors(transition) + rate * torch.eye(len(transition), dtype=torch.float64)


# --- the parts --------------------------------------------------------------------------------------------------------


def _is_numeric(values: NDArray[Any] | Tensor) -> bool:
    return isinstance(values, Tensor) or values.dtype.kind in "biuf"


def _check(
    excluded: object, pred_probs: ArrayLike | Tensor, classes: Sequence[Hashable] | None = None
) -> tuple[Tensor, Tensor]:
    """Answers and probabilities as float64 [N, K] on the CPU."""
    probabilities = _probabilities(pred_probs)
    if isinstance(excluded, (np.ndarray, Tensor)) and excluded.ndim == 2 and _is_numeric(excluded):
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
        return _log_likelihoods((logs / math.exp(log_temperature)).log_softmax(1), given, matrix, rate)

    best, value = _golden(lambda x: float(likelihoods(x).mean()) - x**2 / 2 / max(1, len(logs)), -1.5, 2.5, 0.01)
    slope = (likelihoods(best + 1e-3) - likelihoods(best - 1e-3)) / 2e-3
    error = 1 / math.sqrt(float((slope**2).sum()) + 1)
    return AnswerNoise(
        rate=rate,
        error=0.0,
        p_value=0.0,
        temperature=math.exp(best),
        temperature_error=error,
        log_likelihood=value,
        transition=matrix.numpy(),
        label_rate=_label_rate(is_yes(given), len(matrix), Estimated(rate, 0.0), Estimated(rate, 0.0)),
        yes_rate=rate,
        yes_error=0.0,
        yes_p_value=0.0,
    )


def _posterior(given: Tensor, probabilities: Tensor, noise: AnswerNoise) -> Tensor:
    """Class probabilities [N, K] given the prediction and the answers; for an answer, that it is wrong."""
    prediction = (probabilities.clamp_min(1e-12).log() / noise.temperature).log_softmax(1)
    yes_rate = _cautious(noise.yes_rate, noise.yes_error)
    return (prediction + likelihood_of_classes(given, torch.from_numpy(noise.transition), yes_rate)).softmax(1)


def _cautious(rate: float, error: float) -> float:
    """The rate that decides about single answers: a standard error lower, so that right ones are not flagged."""
    return max(rate - error, rate / 2)


def _label_rate(yes: Tensor, classes: int, no: Estimated, confirmed: Estimated) -> Estimated:
    """How often an excluded class is the true one, from the rates of "not" and "yes" answers."""
    share = float(yes.double().mean()) if len(yes) else 0.0
    weights = (1 - share, share / (classes - 1))
    value = weights[0] * no.value + weights[1] * confirmed.value
    return Estimated(value, math.hypot(weights[0] * min(no.error, 1.0), weights[1] * min(confirmed.error, 1.0)))


def is_yes(given: Tensor) -> Tensor:
    """The examples with a "yes" answer: the rows of [N, K] that leave one class of at least three, bool [N]."""
    return (given.sum(1) == given.shape[1] - 1) & torch.tensor(given.shape[1] > 2)


def _single_answers(given: Tensor, wrong: Tensor) -> Tensor:
    """The answers, bool [N, K]; of a "yes" answer, which excludes many classes, only the most probable class."""
    worst = torch.where(given > 0, wrong, -1.0).argmax(1)
    only = torch.nn.functional.one_hot(worst, given.shape[1]).bool()
    return (given > 0) & (only | ~is_yes(given)[:, None])


def _of_worst(given: Tensor, wrong: Tensor, summed: bool) -> Tensor:
    """The largest value in ``wrong`` of the answers of each example, [N]; ``summed``: the sum for "yes" answers."""
    excluded = torch.where(given > 0, wrong, 0.0)
    worst = excluded.amax(1)
    return torch.where(is_yes(given), excluded.sum(1).clamp_max(1), worst) if summed else worst


@dataclass(frozen=True)
class _NoiseModel:
    """The likelihood of answers, given how often "not" and "yes" answers are wrong and how confident the model is.

    Attributes:
        logs: Logarithm of the class probabilities of the examples with "not" and with "yes" answers, [N, K] each.
        given: Their answers, [N, K] each.
        highest: The highest rate of wrong answers of both kinds.
        base: The transition matrix of right answers, [K, K].
        count: Number of examples of both kinds.
    """

    logs: tuple[Tensor, Tensor]
    given: tuple[Tensor, Tensor]
    highest: tuple[float, float]
    base: Tensor
    count: int

    @classmethod
    def of(cls, logs: Tensor, given: Tensor, base: Tensor) -> "_NoiseModel":
        """Divide the examples into those with a "not" and those with a "yes" answer."""
        yes = is_yes(given)
        highest = LARGEST / len(base), LARGEST * (1 - 1 / len(base))
        return cls((logs[~yes], logs[yes]), (given[~yes], given[yes]), highest, base, len(given))

    def best_rates(
        self, log_temperature: float, precision: float = 1e-4, without: int | None = None
    ) -> tuple[list[float], float]:
        """The most likely rates at a temperature.

        Args:
            log_temperature: Logarithm of the temperature of the probabilities.
            precision: Of the rates.
            without: The kind of answers, `NOT` or `YES`, that has no errors; None: neither.

        Returns:
            The rates of both kinds, and the mean log-likelihood with that of the prior of the temperature.
        """
        rates, total = [0.0, 0.0], -(log_temperature**2) / 2 / self.count
        for kind in (NOT, YES):
            if not len(self.given[kind]):
                continue
            likelihood = _likelihood(self.logs[kind] / math.exp(log_temperature), self.given[kind], self.base)
            if kind == without:
                value = likelihood(0.0)
            else:
                rates[kind], value = _golden(likelihood, 0.0, self.highest[kind], precision)
            total += value * len(self.given[kind]) / self.count
        return rates, total

    def best_temperature(self) -> tuple[float, float]:
        """The logarithm of the most likely temperature, and the mean log-likelihood there."""
        start = max(LOG_TEMPERATURES, key=lambda value: self.best_rates(value, 0.01)[1])
        return _golden(lambda x: self.best_rates(x)[1], start - 0.25, start + 0.25, 0.01)

    def share_of_wrong_labels(self, rate: float, log_temperature: float) -> float:
        """The share of "not" labels that are wrong: ``rate``, unless examples have several, which all differ."""
        if rate <= 0:
            return 0.0
        prediction, matrix = self.logs[NOT] / math.exp(log_temperature), with_errors(self.base, rate)
        given = self.given[NOT]
        wrong = given * (prediction + likelihood_of_classes(given, matrix, 0.0)).softmax(1)
        return float(wrong.sum() / given.sum())

    def p_value(self, kind: int, rate: float, value: float) -> float:
        """Significance of a ``rate`` above zero: a likelihood-ratio test against no errors of this kind.

        Without errors any temperature is allowed: a model at chance level must not count as a sign of errors.

        Args:
            kind: `NOT` or `YES`.
            rate: The most likely rate of this kind.
            value: The mean log-likelihood with it.
        """
        if rate <= 0:
            return 1.0

        def likelihood(log_temperature: float) -> float:
            found = self.best_rates(log_temperature, without=kind)[1]
            return found + log_temperature**2 / 2 / self.count

        _, without = _golden(likelihood, -1.5, 6.0, 0.01)
        ratio = 2 * self.count * max(0.0, value - without)
        return 0.5 * math.erfc(math.sqrt(ratio / 2))  # half: a rate is never below zero


def _likelihood(logs: Tensor, given: Tensor, base: Tensor) -> Callable[[float], float]:
    """The mean log-likelihood of answers of one kind as a function of the error rate; predictions softmax(logs)."""
    prediction = logs.softmax(1)
    if bool(is_yes(given).all()):
        named = ((1 - given) * prediction).sum(1)
        other = (1 - named) / (len(base) - 1)
        return lambda rate: float(((1 - rate) * named + rate * other).clamp_min(1e-12).log().mean())
    if bool((given.sum(1) == 1).all()):  # then the probability of an answer is linear in the rate
        right = (given * (prediction @ base)).sum(1)
        wrong = (given * prediction).sum(1)
        return lambda rate: float(((1 - rate) * right + rate * wrong).clamp_min(1e-12).log().mean())
    log_prediction = logs.log_softmax(1)
    return lambda rate: float(_log_likelihoods(log_prediction, given, with_errors(base, rate), 0.0).mean())


def _log_likelihoods(log_prediction: Tensor, given: Tensor, matrix: Tensor, yes_rate: float) -> Tensor:
    """Log-probability of the answers of each example, [N]."""
    return (log_prediction + likelihood_of_classes(given, matrix, yes_rate)).logsumexp(1)


def likelihood_of_classes(given: Tensor, matrix: Tensor, yes_rate: float) -> Tensor:
    """Log-probability [N, K] of the answers of each example for each class.

    "Not" answers are independent given the class, and those of an example differ: a set of m answers has the product of
    their probabilities, divided by the sum of these products over all sets of m classes. A "yes" answer names the class
    with probability ``1 - yes_rate``, else any other one.
    """
    matrix, sizes, yes = matrix.clamp_min(1e-12), given.sum(1).long(), is_yes(given)
    sizes = torch.where(yes, 0, sizes)
    several = given @ matrix.log().T - log_sums(matrix, int(sizes.max()) if len(sizes) else 0).T[sizes]
    right, wrong = 1 - yes_rate, yes_rate / max(1, len(matrix) - 1)
    confirmed = torch.where(given > 0, math.log(max(wrong, 1e-12)), math.log(max(right, 1e-12)))
    return torch.where(yes[:, None], confirmed, several)


def _standard_errors(
    logs: Tensor, given: Tensor, base: Tensor, rates: list[float], log_temperature: float
) -> tuple[float, float, float]:
    """Of both rates and the log-temperature: from the spread of the slopes of the log-likelihood (outer product)."""
    rates = [max(rate, 1e-4) for rate in rates]

    def each(no: float, yes: float, log_temperature: float) -> Tensor:
        prediction = (logs / math.exp(log_temperature)).log_softmax(1)
        return _log_likelihoods(prediction, given, with_errors(base, no), yes)

    slopes = []
    for place, step in enumerate((rates[0] / 10, rates[1] / 10, 1e-3)):
        low, high = [*rates, log_temperature], [*rates, log_temperature]
        low[place], high[place] = low[place] - step, high[place] + step
        slopes.append((each(*high) - each(*low)) / (2 * step))
    matrix = torch.stack(slopes, 1)
    information = matrix.T @ matrix + torch.diag(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))  # 1: of the prior
    known = [place for place in range(3) if float(information[place, place]) > 1e-12]  # else: no such answers
    errors = [math.inf, math.inf, 1 / math.sqrt(float(information[2, 2]))]
    part = information[known][:, known]
    if float(torch.linalg.det(part)) > 1e-12:
        for place, variance in zip(known, torch.linalg.inv(part).diagonal().tolist(), strict=True):
            errors[place] = math.sqrt(variance)
    return errors[0], errors[1], errors[2]


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
