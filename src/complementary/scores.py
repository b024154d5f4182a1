"""Scores of classifiers and clusters that need no true label, and the accuracy of classes where truth exists.

A complementary label with a known transition matrix T is an unbiased view of the true class: for the label "not k", row
k of T^-1 has the one-hot vector of the true class as its mean. Unbiased estimates of the accuracy and of how often two
members of a cluster are of the same class follow from that.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.transitions import TransitionEstimate, is_singular, label_shares

# --- classifiers ------------------------------------------------------------------------------------------------------


def scel(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Surrogate complementary estimation loss (Lin and Lin 2023): how well complementary labels are predicted.

    It needs no true label, so it may choose the epoch.

    Args:
        logits: [N, K].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        A scalar, the mean of -log (p T)_k over the labels of each example; lower is better.
    """
    with torch.autocast(logits.device.type, enabled=False):  # otherwise the product would be bfloat16
        predicted = logits.float().softmax(1) @ transition.to(logits.device, torch.float32)
    return -(label_shares(excluded, torch.float32) * torch.log(predicted + 1e-6)).sum(1).mean()


def ure(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Unbiased estimate of the cross-entropy on the true labels (Ishida et al. 2019).

    It can be negative, and its variance is large.

    Args:
        logits: [N, K].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        A scalar; NaN if the transition is singular.
    """
    return (_corrected(excluded, transition, logits) * -logits.float().log_softmax(1)).sum(1).mean()


def estimated_accuracy(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Estimate of the accuracy from complementary labels: the URE of the 0-1 loss.

    It is unbiased for predictions that do not depend on these labels; `accuracy_interval` says how precise it is. For
    uniform labels it is 1 - (K - 1) x (share of predictions that name an excluded class).

    Args:
        logits: [N, K].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        A scalar; NaN if the transition is singular (such as 10 classes with a tenth of the labels wrong), because the
        labels then carry no information.
    """
    return _estimates(logits, excluded, transition).mean()


def estimated_accuracy_error(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Standard error of `estimated_accuracy`.

    It adds the change that one more, contrary example would make, so that it is never zero, even if all examples agree.
    """
    estimates = _estimates(logits, excluded, transition)
    inverse = _inverse(transition, logits)
    widest = (inverse.max() - inverse.min()) / len(estimates)
    return (estimates.var(unbiased=False) / len(estimates) + widest**2).sqrt()


class Contradictions(NamedTuple):
    """How often predictions name an excluded class, compared with predictions that were assigned to examples at random.

    Attributes:
        found: Number of predictions that name an excluded class.
        expected: The same by chance.
        z: (expected - found) in standard deviations of chance; above 2 the predictions say something about the labels.
    """

    found: int
    expected: float
    z: float


def contradictions(predicted: Tensor, excluded: Tensor) -> Contradictions:
    """Compare predictions with complementary labels that they do not depend on.

    Chance is a random permutation of the predictions, so that neither frequent predictions nor frequent labels matter,
    and no transition matrix is needed.

    Args:
        predicted: Classes, int [N].
        excluded: Complementary labels, [N, K].
    """
    labels, count = excluded.double(), len(predicted)
    shares = torch.bincount(predicted, minlength=labels.shape[1]).to(labels) / max(1, count)  # of each prediction
    found = float(labels.gather(1, predicted[:, None]).sum())
    deviation = labels - labels @ shares[:, None] - labels.mean(0) + labels.mean(0) @ shares  # doubly centered
    variance = float((deviation.square() @ shares).sum()) * count / max(1, count - 1)  # Hoeffding 1951
    expected = float(labels.sum(0) @ shares)
    return Contradictions(int(found), expected, (expected - found) / math.sqrt(variance) if variance > 0 else 0.0)


def correctness(predicted: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """An unbiased estimate of "the prediction is right" for each example and each of several predictions.

    Args:
        predicted: Classes, int [E, N]: E predictions of N examples.
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        float32 [E, N]; NaN if the transition is singular. The mean over the examples is `estimated_accuracy`.
    """
    return _corrected(excluded, transition, excluded).T[predicted.long(), torch.arange(len(excluded))]


def _estimates(logits: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """For each example, an unbiased estimate of "the prediction is right". -> [N]."""
    return _corrected(excluded, transition, logits).gather(1, logits.argmax(1, keepdim=True))[:, 0]


def _corrected(excluded: Tensor, transition: Tensor, like: Tensor) -> Tensor:
    """Rows of T^-1 for the labels of each example; their mean is the one-hot vector of the true class.

    Args:
        excluded: Complementary labels, [N, K].
        transition: T, [K, K].
        like: A tensor on the wanted device.

    Returns:
        float32 [N, K].
    """
    with torch.autocast(like.device.type, enabled=False):
        return label_shares(excluded, torch.float32) @ _inverse(transition, like)


def _inverse(transition: Tensor, like: Tensor) -> Tensor:
    """T^-1 on the device of ``like``, NaN if T is singular. [K, K]."""
    matrix = transition.double().cpu()
    inverse = torch.full_like(matrix, math.nan) if is_singular(matrix) else torch.linalg.pinv(matrix)
    return inverse.to(like.device, torch.float32)


# --- accuracy with an interval ----------------------------------------------------------------------------------------


class AccuracyEstimate(NamedTuple):
    """An accuracy estimated from complementary labels, with a 95 % confidence interval.

    Attributes:
        value: The estimate, cut to 0 to 1, so that it is always in the interval; NaN if there is none.
        low: Lower end of the interval, within 0 to 1.
        high: Upper end.
        examples: Number of examples.
        population: ``data`` (examples like those that were given) or ``balanced`` (classes of equal size).
        reason: Why there is no number; empty if there is one.
        unbiased: The estimate before it was cut. Its mean over many draws of labels is the accuracy, so use it for
            averages of several runs. It may lie outside 0 to 1.
    """

    value: float
    low: float
    high: float
    examples: int
    population: Literal["data", "balanced"] = "data"
    reason: str = ""
    unbiased: float = math.nan

    @property
    def error(self) -> float:
        """Standard error, a quarter of the interval."""
        return (self.high - self.low) / (2 * Z)


Z = 1.959964  # 95 % of a normal distribution
MISFIT = "The estimate is outside 0 to 100 %, so the transition matrix does not fit the labels."
WIDEST = 0.8  # of an interval; a wider one carries almost no information and is reported as no number
MATRIX_ERROR = 1.25  # factor: the errors of an estimated matrix leave out that class probabilities may be wrong
FEW = 30  # examples of a class: with fewer, the accuracy of the class is not normally distributed
RARE = 4.0  # standard errors: a class whose share is smaller has no accuracy of its own


def accuracy_interval(
    predicted: Tensor, excluded: Tensor, transition: Tensor, estimated: TransitionEstimate | None = None
) -> AccuracyEstimate:
    """Estimate the accuracy on data like the given examples, from complementary labels.

    The interval is a score interval: it contains the accuracies that the labels do not reject, with the variance that
    belongs to each of these accuracies. For uniform labels it is Wilson's. It holds for predictions that do not depend
    on the labels given here.

    The unbiased estimate may lie outside 0 to 1, for example above 1 if few labels contradict the predictions. The
    interval then starts from the nearest possible accuracy, 0 or 1, which it contains: otherwise it would reject an
    accuracy of 1 because of an estimate that is too high, and could become arbitrarily narrow. This makes it wider,
    never narrower. If all accuracies from 0 to 1 are rejected, the matrix does not fit the labels, and there is no
    number.

    Args:
        predicted: Predicted classes, int [N].
        excluded: Complementary labels, [N, K].
        transition: [K, K].
        estimated: If the matrix was estimated: the estimate, whose error enters the interval.
    """
    predicted, share = predicted.long().cpu(), label_shares(excluded.cpu(), torch.float32).double()
    matrix, count = transition.double().cpu(), len(share)
    if (reason := _not_invertible(matrix, estimated)) or count < 2:
        return _no_estimate(count, "data", reason or "There are fewer than 2 labeled examples.")
    chosen = torch.zeros_like(share).scatter_(1, predicted[:, None], 1)
    joint = chosen.T @ share / count  # how often a class is predicted for an example with a label

    def accuracy(transition: Tensor) -> Tensor:
        return torch.sum(joint * torch.linalg.inv(transition).T)

    value, extra = float(accuracy(matrix)), _matrix_variance(accuracy, matrix, estimated)
    nearest = min(1.0, max(0.0, value))
    right, wrong = _second_moments(chosen, excluded, share, matrix, nearest)
    half_step = (1 + wrong) / (2 * count)  # continuity correction: half of what one contrary label changes

    def ends(value: float) -> tuple[float, float]:
        """Solve (value - A)^2 = Z^2 (variance of one example at the accuracy A / N + variance due to the matrix)."""
        a, b = 1 + Z**2 / count, -2 * value - Z**2 * (right - wrong) / count
        c = value**2 - Z**2 * (wrong / count + extra)
        square = b**2 - 4 * a * c  # negative: no accuracy solves it; never for a value from 0 to 1
        root = math.sqrt(square) if square >= 0 else math.nan
        return (-b - root) / (2 * a), (-b + root) / (2 * a)

    first, last = ends(value)
    if not (first <= 1 and last >= 0):
        return _no_estimate(count, "data", MISFIT)
    corrected = min(1.0, nearest + half_step)
    low, high = min(nearest, ends(nearest)[0]), max(corrected, ends(corrected)[1])  # equal but for rounding
    return _checked(AccuracyEstimate(value, low, high, count))


def balanced_accuracy_interval(
    predicted: Tensor,
    excluded: Tensor,
    transition: Tensor,
    estimated: TransitionEstimate | None = None,
    further: Tensor | None = None,
    shares: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> AccuracyEstimate:
    """Estimate the accuracy on data with classes of equal size, from complementary labels of classes of any sizes.

    It is the mean over the classes of P(predicted k, is k) / P(is k). Both come from the labels through the inverse of
    the transition matrix; the interval uses the delta method.

    Args:
        predicted: Predicted classes, int [N].
        excluded: Complementary labels, [N, K].
        transition: [K, K].
        estimated: If the matrix was estimated: the estimate, whose error enters the interval.
        further: Labels of further examples from the same population, [M, K]. They make P(is k) more precise.
        shares: P(is k), [K], if it is known.
        names: Of the classes, for messages; None: their numbers.

    Returns:
        No number if a class is too rare: its share is below four standard errors, or it has fewer than 30 examples.
    """
    predicted, share = predicted.long().cpu(), label_shares(excluded.cpu(), torch.float32).double()
    matrix, count = transition.double().cpu(), len(share)
    if (reason := _not_invertible(matrix, estimated)) or count < 2:
        return _no_estimate(count, "balanced", reason or "There are fewer than 2 labeled examples.")
    classes = len(matrix)
    everything = share if further is None else torch.cat([share, label_shares(further.cpu(), torch.float32).double()])
    view = everything @ torch.linalg.inv(matrix)
    sizes = view.mean(0) if shares is None else shares.double().cpu()
    error = view.std(0) / len(view) ** 0.5
    if shares is None and bool((sizes < RARE * error).any()):
        k = int((sizes / error).argmin())
        found = f"{100 * max(0.0, float(sizes[k])):.1f} ± {100 * float(error[k]):.1f} %"
        return _no_estimate(count, "balanced", f"The share of class {_name(k, names)}, {found}, is too uncertain.")
    if (least := float(sizes.min()) * count) < FEW:
        rarest = _name(int(sizes.argmin()), names)
        return _no_estimate(count, "balanced", f"Class {rarest} has only about {least:.0f} examples.")
    chosen = torch.zeros_like(share).scatter_(1, predicted[:, None], 1)
    joint, marginal = chosen.T @ share / count, everything.mean(0)

    def accuracy(transition: Tensor) -> Tensor:
        inverse = torch.linalg.inv(transition)
        return torch.mean((joint @ inverse).diagonal() / (sizes if shares is not None else marginal @ inverse))

    value, extra = float(accuracy(matrix)), _matrix_variance(accuracy, matrix, estimated)
    per_class = (chosen * view[:count]).mean(0) / sizes
    hits = (chosen * view[:count] / (classes * sizes)).sum(1)
    variance = float(hits.var()) / count + extra
    if shares is None:
        size = -(view * (per_class / (classes * sizes))).sum(1)
        covariance = float(torch.cov(torch.stack([hits, size[:count]]))[0, 1])
        variance += (float(size.var()) + 2 * covariance) / len(view)
    widest = float(hits.max() - hits.min()) / count  # one more, contrary example
    half = Z * math.sqrt(max(0.0, variance) + widest**2)
    return _checked(AccuracyEstimate(value, value - half, value + half, count, "balanced"))


def _name(k: int, names: Sequence[str] | None) -> str:
    return str(k) if names is None else names[k]


def classes_differ_in_size(excluded: Tensor, transition: Tensor, level: float = 0.01) -> bool:
    """Whether complementary labels [N, K] show that classes are not of equal size (a chi-squared test)."""
    share, matrix = label_shares(excluded.cpu(), torch.float32).double(), transition.double().cpu()
    if is_singular(matrix):
        return False
    expected, known = matrix.mean(0), matrix.mean(0) > 0
    if bool((share[:, ~known] > 0).any()):
        return True
    free = int(known.sum()) - 1
    statistic = len(share) * ((share.mean(0) - expected)[known] ** 2 / expected[known]).sum()
    # the labels of an example share a weight, so they vary less than single ones (Rao and Scott 1981)
    variance = (share.var(0, unbiased=False)[known] / expected[known]).sum() / free
    half = torch.tensor(free / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / variance.clamp_min(1e-12) / 2)) < level


def _second_moments(
    chosen: Tensor, excluded: Tensor, share: Tensor, matrix: Tensor, value: float
) -> tuple[float, float]:
    """Mean square of the estimate of one example, given that its prediction is right, and that it is wrong.

    The first follows from the matrix, the second from the matrix if wrong predictions do not depend on the class. How
    they do depend on it shows in the mean square over all examples, if enough of them are wrong.

    Args:
        chosen: Predicted classes, one-hot [N, K].
        excluded: Complementary labels, [N, K].
        share: The same, with a sum of 1 per example, [N, K].
        matrix: The transition matrix, [K, K].
        value: The estimated accuracy.
    """
    classes, inverse = len(matrix), torch.linalg.inv(matrix)
    eye = torch.eye(classes, dtype=torch.float64)
    variance = matrix @ inverse**2 - eye  # of one label, given the true (row) and the predicted (column) class
    labels = excluded.cpu().double().sum(1)
    reduction = float(((classes - labels) / ((classes - 1) * labels)).mean())  # mean of labels without replacement
    sizes = (share.mean(0) @ inverse).clamp_min(0.1 / classes)
    others = sizes[:, None] * (1 - eye)
    others, predicted = others / others.sum(0), chosen.mean(0)
    right = 1 + reduction * float(predicted @ variance.diagonal())
    wrong = reduction * float(predicted @ (others * variance).sum(0))
    square = float((share @ inverse * chosen).sum(1).square().mean())
    count = max(0.0, 1 - value) * len(share)  # of wrong predictions
    observed = (square - value * right) / max(1 - value, 1e-9) if count > 0 else wrong
    weight = count / (count + 10 * classes)
    return right, max(0.0, (1 - weight) * wrong + weight * observed)


def _matrix_variance(
    function: Callable[[Tensor], Tensor], matrix: Tensor, estimated: TransitionEstimate | None
) -> float:
    """Variance of a function of the transition matrix because the matrix was estimated."""
    if estimated is None:
        return 0.0
    variable = matrix.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(function(variable), variable)
    return MATRIX_ERROR**2 * estimated.variance(gradient)


def _not_invertible(matrix: Tensor, estimated: TransitionEstimate | None) -> str:
    if is_singular(matrix):
        return "The transition matrix is singular, so the labels do not determine the classes."
    if estimated is not None and estimated.separation < 2:
        return (
            "The estimated transition matrix is too uncertain to be inverted; use more labels, or give the matrix, for "
            "example transition = uniform."
        )
    return ""


def _no_estimate(count: int, population: Literal["data", "balanced"], reason: str) -> AccuracyEstimate:
    return AccuracyEstimate(math.nan, math.nan, math.nan, count, population, reason)


def _checked(estimate: AccuracyEstimate) -> AccuracyEstimate:
    """No number if the interval is too wide to be of use, or misses 0 to 1: then the matrix does not fit the labels."""
    low, high, width = max(0.0, estimate.low), min(1.0, estimate.high), estimate.high - estimate.low
    if low > high:
        return _no_estimate(estimate.examples, estimate.population, MISFIT)
    if width > WIDEST:
        width_text = f"{100 * width:.0f} points wide"
        reason = f"There are too few labels: with {estimate.examples} its 95 % interval would be {width_text}."
        return _no_estimate(estimate.examples, estimate.population, reason)
    value = min(1.0, max(0.0, estimate.value))
    return estimate._replace(value=value, low=low, high=high, unbiased=estimate.value)


# --- clusters ---------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A value and its standard error; both are NaN if the labels do not allow an estimate."""

    value: float
    error: float


def estimated_same_class(assignment: Tensor, excluded: Tensor, transition: Tensor) -> Estimate:
    """Unbiased estimate of how often two members of a cluster are of the same class, from complementary labels.

    It needs thousands of examples to be precise. The standard error is conservative: up to 1.6 times the spread over
    draws of the labels, larger only if the labels are nearly unambiguous.

    Args:
        assignment: The cluster of each example, int [N].
        excluded: Complementary labels, [N, K].
        transition: [K, K].

    Returns:
        The estimate over examples that are not alone in their cluster. NaN if there are none, or if the transition is
        singular (such as 10 classes with a tenth of the labels wrong): then the labels carry no information.
    """
    assignment, excluded, transition = assignment.cpu(), excluded.cpu(), transition.cpu()
    unknown = Estimate(float("nan"), float("nan"))
    if is_singular(transition):
        return unknown
    view = _corrected(excluded, transition, torch.zeros(1)).double()  # [N, K], mean: the one-hot vector of the class
    count = torch.bincount(assignment)
    total = torch.zeros(len(count), view.shape[1], dtype=torch.float64).index_add_(0, assignment, view)
    others = (count[assignment] - 1).clamp_min(1)
    agreement = (view * (total[assignment] - view)).sum(1) / others  # of each example with the others, on average
    paired = count[assignment] > 1
    if not paired.any():
        return unknown
    agreement = agreement[paired]
    error = 2 * agreement.std() / len(agreement) ** 0.5  # 2: each label is counted for its example and for partners
    return Estimate(float(agreement.mean()), float(error))


def recommend(estimates: dict[int, Estimate], precision: float = 0.08) -> int | None:
    """Choose the number of clusters: the smallest whose estimate lies within one standard error of the best.

    Args:
        estimates: `estimated_same_class` for each number of clusters.
        precision: Largest standard error of the best estimate that still allows a recommendation.

    Returns:
        The number of clusters; None without any estimate, or if the best one is not precise enough.
    """
    known = {k: e for k, e in estimates.items() if not math.isnan(e.value)}
    if not known:
        return None
    best = max(known.values(), key=lambda e: e.value)
    if best.error > precision:
        return None
    return min(k for k, e in known.items() if e.value >= best.value - best.error)


# --- annotators -------------------------------------------------------------------------------------------------------


class ErrorRate(NamedTuple):
    """How often an annotator is wrong: the rate, its standard error and the number of answers."""

    value: float
    error: float
    answers: int


def annotator_error_rates(
    excluded: Tensor, annotator: Sequence[Hashable], probabilities: Tensor, transition: Tensor
) -> dict[Hashable, ErrorRate]:
    """Estimate how often each annotator excludes the true class, without true labels.

    An answer is a mixture of two cases: it is right, and the excluded classes are drawn with the transition matrix
    among those that are not the true class; or it is wrong, and the true class is among them. How likely the answer is
    in each case follows from the model's probabilities. The rate is the most likely weight of the second case. It is
    found separately for answers that leave one class ("it is a cat") and for others ("not a cat"): an annotator who
    is asked "is it a cat?" is wrong in a larger share of the first ones.

    The probabilities must come from a model that was not trained on the answer in question (cross-fitting), and must be
    calibrated: overconfident probabilities make the rates too high, since every mistake of the model counts against the
    annotator. A model at chance level gives large standard errors.

    Args:
        excluded: The classes that each answer excludes, 0/1 [A, K]. The answer "it is class k" excludes K-1 classes.
        annotator: The annotator of each answer, [A].
        probabilities: Class probabilities of the example of each answer, [A, K].
        transition: Transition matrix of the answers, [K, K]. Its diagonal is ignored.

    Returns:
        For each annotator the rate, its standard error and the number of answers. The standard error is computed as if
        there were one more right and one more wrong answer, so it is never zero.
    """
    if not len(excluded) == len(annotator) == len(probabilities):
        raise UserError(
            f"There are {len(excluded)} answers, {len(annotator)} annotators and {len(probabilities)} rows of "
            "probabilities; the numbers must match."
        )
    excluded, classes = excluded.bool().cpu(), excluded.shape[1]
    right, wrong = _answer_likelihoods(excluded, probabilities.double().cpu(), transition.double().cpu())
    is_yes = ((excluded.sum(1) == classes - 1) & (classes > 2)).tolist()
    kinds = list(zip(annotator, is_yes, strict=True))
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    group = torch.tensor([number[kind] for kind in kinds], dtype=torch.int64)
    rate, error = _mixture_weights(right, wrong, group, len(number))
    count = torch.bincount(group, minlength=len(number))
    found: dict[Hashable, ErrorRate] = {}
    for name in dict.fromkeys(annotator):
        own = [number[kind] for kind in ((name, False), (name, True)) if kind in number]
        total = int(count[own].sum())
        value = float((count[own] * rate[own]).sum()) / total
        found[name] = ErrorRate(value, float((count[own] * error[own]).square().sum().sqrt()) / total, total)
    return found


def _mixture_weights(right: Tensor, wrong: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The most likely share of wrong answers in each group, and its standard error.

    Args:
        right: Likelihood of each answer if it is right, float64 [A].
        wrong: The same if it is wrong.
        group: Group of each answer, int [A].
        groups: Number of groups G.

    Returns:
        float64 [G] each.
    """

    def slope(rate: Tensor, extra: float) -> Tensor:
        """Derivative of the log-likelihood, with ``extra`` certain right and wrong answers in each group."""
        mixed = right + rate[group] * (wrong - right)
        total = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, (wrong - right) / mixed)
        return total + extra / rate - extra / (1 - rate)

    def best(extra: float) -> Tensor:
        """Where the slope, which falls with the rate, is zero: by bisection."""
        low, high = torch.zeros(groups, dtype=torch.float64), torch.ones(groups, dtype=torch.float64)
        for _ in range(60):
            middle = (low + high) / 2
            rising = slope(middle, extra) > 0
            low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
        return (low + high) / 2

    near = best(1.0)
    squared = ((wrong - right) / (right + near[group] * (wrong - right))).square()
    curvature = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, squared)
    return best(0.0), (curvature + near**-2 + (1 - near) ** -2).rsqrt()


def _answer_likelihoods(excluded: Tensor, probabilities: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    """Likelihood of each answer if it is right and if it is wrong, up to a factor: float64 [A] each.

    A set of s classes is drawn with a probability proportional to the product of their transition probabilities; a
    wrong answer is the true class and s - 1 such classes.
    """
    classes = excluded.shape[1]
    chance = transition * (1 - torch.eye(classes, dtype=torch.float64))
    chance = chance / chance.sum(1, keepdim=True)
    sizes = excluded.sum(1)
    per_class = log_sums(chance, int(sizes.max()) if len(sizes) else 0)  # [K, s + 1]
    logs = chance.clamp_min(1e-300).log()
    right = torch.empty(len(excluded), dtype=torch.float64)
    wrong = torch.empty_like(right)
    for rows in torch.arange(len(excluded)).split(max(1, 2**22 // classes)):  # bounded memory
        chosen, size = excluded[rows], sizes[rows]
        others = chosen.double() @ logs.T - chosen * logs.diagonal()  # [B, K]: product over the set without the class
        total = torch.where(chosen, per_class[:, (size - 1).clamp_min(0)].T, per_class[:, size].T)
        log = torch.where(total.isinf(), -math.inf, others - total)
        top = log.amax(1, keepdim=True).clamp_min(-1e6)  # a factor, against underflow
        both = probabilities[rows] * (log - top).exp()
        right[rows] = (both * ~chosen).sum(1).clamp_min(1e-12)
        wrong[rows] = (both * chosen).sum(1).clamp_min(1e-12)
    return right, wrong


def log_sums(chance: Tensor, largest: int) -> Tensor:
    """Logarithm of the sum over all sets of s classes of the product of their entries in a row: [K, K] -> [K, S+1]."""
    sums = torch.full((len(chance), largest + 1), -math.inf, dtype=torch.float64)
    sums[:, 0] = 0
    for column in chance.log().T:
        sums[:, 1:] = torch.logaddexp(sums[:, 1:], sums[:, :-1] + column[:, None])
    return sums


# --- accuracy of classes ----------------------------------------------------------------------------------------------


def class_accuracy(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Accuracy of each class: predicted, truth int [N] -> float64 [K]; NaN for a class without examples."""
    hits = torch.bincount(truth[predicted == truth], minlength=classes).double()
    return hits / torch.bincount(truth, minlength=classes).double()


def thirds(accuracy: Tensor, counts: Tensor) -> dict[str, float | None]:
    """Mean accuracy of the head, middle and tail third of the classes.

    Args:
        accuracy: Accuracy of each class, [K]; NaN for a class without test examples.
        counts: Training examples of each class, int [K].

    Returns:
        A third without test examples has the value None; with fewer than three classes, all thirds have.
    """
    order = torch.argsort(counts, descending=True, stable=True)
    means = [float(part.nanmean()) for part in torch.tensor_split(accuracy[order], 3)]
    known = [None if len(accuracy) < 3 or math.isnan(mean) else mean for mean in means]
    return dict(zip(("head", "middle", "tail"), known, strict=True))
