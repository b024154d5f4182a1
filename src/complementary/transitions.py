"""Transition matrices: the distribution of complementary labels.

An example of class y gets the label "not k" with probability T[y, k]. Rows of T [K, K] sum to 1; the diagonal is the
probability of a wrong label, one that excludes the true class.

    >>> from complementary import transitions
    >>> transitions.uniform(3).tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from complementary.errors import UserError
from complementary.rng import generator

# --- standard matrices ------------------------------------------------------------------------------------------------


def uniform(classes: int) -> Tensor:
    """Every wrong class with the same probability: float64 [K, K], zero diagonal."""
    return _without_diagonal(torch.ones(classes, dtype=torch.float64))


def biased(classes: int, ratio: float) -> Tensor:
    """Labels with a long-tailed distribution (setup 2 of the paper).

    Args:
        classes: Number of classes K.
        ratio: How many times more likely the label "not 0" is than "not K-1" (1 to 100).

    Returns:
        float64 [K, K], zero diagonal.
    """
    if not ratio >= 1:
        raise UserError(f"The bias ratio is {ratio}, but it must be at least 1 (1: uniform).")
    weight = torch.tensor([float(int(100 * r + 1e-9)) for r in decay(ratio, classes)], dtype=torch.float64)
    if weight[-1] == 0:
        raise UserError(
            f"The bias ratio is {ratio:g}, so the weight of class {classes - 1}, 100/ratio rounded down, is 0; "
            "use a ratio of at most 100."
        )
    return _without_diagonal(weight)


def noisy(classes: int, rate: float) -> Tensor:
    """Uniform labels of which some are wrong.

    Args:
        classes: Number of classes K.
        rate: Probability that a label names the *true* class.

    Returns:
        float64 [K, K] with ``rate`` on the diagonal.
    """
    if not 0 <= rate < 1:
        raise UserError(f"The noise rate is {rate}, but it must be at least 0 and below 1.")
    return (1 - rate) * uniform(classes) + rate * torch.eye(classes, dtype=torch.float64)


def designed(classes: int, allowed: int, main: float | None = None) -> Tensor:
    """Labels that are restricted on purpose: each class may be excluded by a few other classes only.

    With many classes a uniform label has little information (K = 100: 0.014 bit), so labels are designed with a known
    bias instead (BICL, Mai et al. 2026). If the classes have equal sizes, a label carries log2(K) bits less the entropy
    of a row: 4.6 bits for K = 100 and four allowed labels. One allowed label names the class: that is a relabeled true
    label.

    The published matrices draw the allowed labels of each class independently. Here the design is balanced (every label
    is used equally often) and can be inverted: label = class + d along a random circle of the classes, for ``allowed``
    distances d. Of 200 random choices of distances the one with the largest smallest singular value is kept. The matrix
    depends on the arguments only.

    Args:
        classes: Number of classes K.
        allowed: Number of labels that a class can get (1 to K - 1; K - 1 without ``main``: uniform).
        main: Probability of one of them, and the others share the rest; None: all are equally likely.

    Returns:
        float64 [K, K], zero diagonal; rows and columns sum to 1.
    """
    if not 1 <= allowed < classes:
        raise UserError(
            f"A design allows {allowed} labels per class, but with {classes} classes it must be between 1 and "
            f"{classes - 1}."
        )
    if main is not None and allowed == 1:
        raise UserError(
            f"A design with one label per class gives it the probability 1, but {main:g} was given; leave it out."
        )
    if main is not None and not 1 / allowed <= main < 1:
        raise UserError(
            f"The main label of a design has probability {main:g}, but with {allowed} allowed labels it must be at "
            f"least {1 / allowed:.3g} and below 1."
        )
    weight = torch.full((allowed,), 1 / allowed, dtype=torch.float64)
    if main is not None:
        weight[0], weight[1:] = main, (1 - main) / (allowed - 1)
    source = generator(0, "designed", classes, allowed)
    circle = torch.randperm(classes, generator=source)
    best, margin = torch.zeros(classes, dtype=torch.float64), 0.0
    for _ in range(200):
        row = torch.zeros(classes, dtype=torch.float64)
        row[1 + torch.randperm(classes - 1, generator=source)[:allowed]] = weight
        smallest = float(torch.fft.rfft(row).abs().min())  # the singular values of a circulant matrix
        if smallest > margin:
            best, margin = row, smallest
    if margin < 1e-6:
        raise UserError(
            f"No design with {classes} classes and {allowed} equally likely labels has an invertible matrix; use "
            "another number of labels, or give one of them a larger probability."
        )
    place = torch.arange(classes)
    matrix = torch.empty(classes, classes, dtype=torch.float64)
    matrix[circle[:, None], circle[None, :]] = best[(place[None, :] - place[:, None]) % classes]
    return matrix


def decay(ratio: float, classes: int) -> list[float]:
    """The long-tail profile ratio^(-k / (K - 1)) for k = 0 .. K - 1, from 1 down to 1/ratio."""
    if classes < 2:
        raise UserError(f"There must be at least 2 classes, found {classes}.")
    return [ratio ** (-k / (classes - 1)) for k in range(classes)]


def _without_diagonal(weight: Tensor) -> Tensor:
    classes = len(weight)
    if classes < 2:
        raise UserError(f"There must be at least 2 classes, found {classes}.")
    matrix = weight.expand(classes, classes) * (1 - torch.eye(classes, dtype=torch.float64))
    return matrix / matrix.sum(1, keepdim=True)


# --- matrices from users ----------------------------------------------------------------------------------------------


def check_transition(matrix: Tensor, classes: int | None = None, name: str = "The transition matrix") -> Tensor:
    """Check that a matrix has the right shape and that its rows are probabilities.

    Args:
        matrix: [K, K], a tensor or anything that `torch.as_tensor` accepts. Rows may be off 1 by rounding (1e-3).
        classes: Number of classes K, if known.
        name: Start of error messages.

    Returns:
        float64 [K, K] with rows normalized to sum to 1.
    """
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    size = classes or (len(matrix) if matrix.ndim else 0)
    if size < 2:
        raise UserError(f"{name} has shape {list(matrix.shape)}; it must be [K, K] for at least 2 classes.")
    if matrix.ndim != 2 or tuple(matrix.shape) != (size, size):
        raise UserError(f"{name} has shape {list(matrix.shape)}, but {size} classes need [{size}, {size}].")
    if not torch.isfinite(matrix).all():
        raise UserError(f"{name} contains NaN or infinity; every entry must be a probability.")
    if (matrix < 0).any():
        row, column = (int(i) for i in (matrix < 0).nonzero()[0])
        value = float(matrix[row, column])
        raise UserError(f"{name} has {value:g} in row {row}, column {column}; every entry must be a probability.")
    sums = matrix.sum(1)
    worst = int((sums - 1).abs().argmax())
    if abs(float(sums[worst]) - 1) > 1e-3:
        raise UserError(f"{name}: row {worst} sums to {float(sums[worst]):.4f}, but each row must sum to 1.")
    return matrix / sums[:, None]


def describe_true_labels(matrix: Tensor, names: Sequence[str]) -> str | None:
    """A message if labels of some classes name the true class more often than chance, 1 / K; [K, K]."""
    own, chance = matrix.diagonal().tolist(), 1 / len(matrix)
    wrong = [k for k, share in enumerate(own) if share > chance + 1e-6]
    if not wrong:
        return None
    first = wrong[0]
    return (
        f"The transition matrix says that labels name the true class more often than chance, for {len(wrong)} of "
        f"{len(matrix)} classes (not {names[first]} for an example of class {names[first]}: {100 * own[first]:.0f} %). "
        "Such labels are not complementary. Row y, column k must be the probability that an example of class y is "
        "labeled not k."
    )


def read_transition(path: str | Path, classes: int | None = None) -> Tensor:
    """Read and check a matrix.

    Args:
        path: A CSV file of numbers without a header: a row per true class, a column per complementary label.
        classes: Number of classes K, if known.

    Returns:
        float64 [K, K].
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"The transition matrix {path} cannot be read ({error.strerror or error}).") from None
    matrix = parse_matrix(content, str(path))
    return check_transition(torch.from_numpy(matrix), classes, name=f"The transition matrix {path}")


def parse_matrix(content: bytes, name: str) -> NDArray[np.float64]:
    """Parse a CSV file of numbers -> float64 [rows, columns], [0, 0] if it is empty. ``name`` is for messages."""
    try:
        text = content.decode()
        return np.loadtxt(text.splitlines(), delimiter=",", ndmin=2) if text.strip() else np.zeros((0, 0))
    except ValueError as error:
        raise UserError(f"{name} is not a matrix of numbers separated by commas: {error}.") from None


def to_text(matrix: ArrayLike) -> str:
    """A matrix [K, K] in the form that `parse` reads."""
    try:
        values = np.asarray(matrix, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"transition is {matrix!r}; expected a name or a matrix of numbers.", "transition") from None
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise UserError(f"transition has shape {list(values.shape)}; expected a matrix [K, K].", "transition")
    return f"matrix:{json.dumps(values.tolist())}"


def parse(spec: str, classes: int, option: str | None = None) -> Tensor:
    """Build the matrix that a string describes.

    Args:
        spec: ``uniform``, ``biased:RATIO``, ``noisy:RATE``, ``designed:COUNT``, ``designed:COUNT:SHARE``,
            ``matrix:FILE.csv`` or ``matrix:[[...], ...]``.
        classes: Number of classes K.
        option: The option that ``spec`` is the value of, for error messages.

    Returns:
        float64 [K, K].
    """
    try:
        return _parse(spec, classes)
    except UserError as error:
        raise UserError(str(error), option) from None


def _parse(spec: str, classes: int) -> Tensor:
    kind, _, value = spec.partition(":")
    if kind == "uniform" and not value:
        return uniform(classes)
    if kind == "matrix" and value.startswith("[["):
        try:
            matrix = torch.tensor(json.loads(value), dtype=torch.float64)
        except (TypeError, ValueError):
            raise UserError(f"{spec!r} is not a matrix; expected rows of numbers, such as [[0, 1], [1, 0]].") from None
        return check_transition(matrix, classes)
    if kind == "matrix" and value:
        return read_transition(value, classes)
    if kind == "designed":
        return _parse_design(spec, value, classes)
    makers = {"biased": (biased, "biased:10"), "noisy": (noisy, "noisy:0.05")}
    if kind in makers:
        make, example = makers[kind]
        try:
            number = float(value)
        except ValueError:
            raise UserError(f"{spec!r} needs a number after the colon, such as {example}.") from None
        return make(classes, number)
    raise UserError(
        f"{spec!r} is not known; use uniform, biased:RATIO, noisy:RATE, designed:COUNT, matrix:FILE.csv, or, for "
        "labels, setup-1:RATIO, setup-2:BIAS, setup-3:BIAS:RATIO or given (labels that come with the data)."
    )


def _parse_design(spec: str, value: str, classes: int) -> Tensor:
    count, _, share = value.partition(":")
    try:
        numbers = int(count), float(share) if share else None
    except ValueError:
        raise UserError(
            f"{spec!r} needs the number of allowed labels, such as designed:4, or also the probability of the main "
            "one, such as designed:4:0.9."
        ) from None
    return designed(classes, *numbers)


# --- estimation -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransitionEstimate:
    """An estimated transition matrix and its sampling error.

    Attributes:
        matrix: The estimate, shrunk toward a simple matrix (see `estimate_transition`), float64 [K, K].
        unshrunk: The maximum-likelihood estimate, float64 [K, K].
        blocks: Inverse information of each column of T without the constraint on row sums, float64 [K, K, K].
        examples: Expected number of examples of each class, float64 [K].
        likelihood: Mean log-likelihood of the labels. It compares estimates by different classifiers.
    """

    matrix: Tensor
    unshrunk: Tensor
    blocks: Tensor
    examples: Tensor
    likelihood: float

    def variance(self, gradient: Tensor) -> float:
        """Variance of a function of ``unshrunk`` whose derivative by T[y, k] is ``gradient[y, k]`` (delta method)."""
        pulled = torch.einsum("kyz,zk->ky", self.blocks, gradient.double())
        total = pulled.sum(0)
        return max(0.0, float((pulled * gradient.double().T).sum() - total @ torch.linalg.solve(self._sum, total)))

    @property
    def error(self) -> Tensor:
        """Standard errors of the entries of ``unshrunk``, [K, K]."""
        coupled = self.blocks @ torch.linalg.solve(self._sum, self.blocks)
        variance: Tensor = (self.blocks - coupled).diagonal(dim1=1, dim2=2).T
        return variance.clamp_min(0).sqrt()

    @property
    def separation(self) -> float:
        """Distance from the nearest singular matrix in standard errors: the smallest singular value over its error.

        Below 2, the estimate does not show that the labels determine the classes.
        """
        left, values, right = torch.linalg.svd(self.unshrunk)
        return float(values[-1]) / max(1e-12, math.sqrt(self.variance(torch.outer(left[:, -1], right[-1]))))

    @property
    def exchangeable(self) -> list[tuple[int, int]]:
        """Pairs of a class and a label that examples of the class get as rarely as the class itself (two errors).

        The class of an example shows as the label that it does not get. If there are two such labels, the estimate may
        have exchanged classes.
        """
        error, own = self.error, self.unshrunk.diagonal()[:, None]
        distance = (self.unshrunk - own) / (error**2 + error.diagonal()[:, None] ** 2).sqrt().clamp_min(1e-12)
        found = (distance < 2).fill_diagonal_(False).nonzero()
        return [(int(i), int(j)) for i, j in found]

    @property
    def _sum(self) -> Tensor:
        return self.blocks.sum(0)


def estimate_transition(probabilities: Tensor, excluded: Tensor, iterations: int = 200) -> TransitionEstimate:
    """Estimate the matrix without true labels, by maximum likelihood.

    P(label k | x) = sum_y P(y | x) T[y, k]. With the class probabilities of a classifier in place of P(y | x), the
    likelihood of the labels is concave in T, and EM finds its maximum. Class sizes enter through the probabilities.
    Flat probabilities with a sharp T explain the labels as well as sharp probabilities with a flat T, so the
    probabilities are first calibrated: by the temperature at which the matrix of the anchor points
    (`anchor_transition`) makes the labels most likely.

    The result is then shrunk toward the closest matrix of the form "wrong with probability d, else proportional to
    m_k", which covers uniform, biased and noisy labels, by as much as its sampling error demands (empirical Bayes).

    The labels of an example must not have been used to train the classifier that predicts the example. Otherwise a
    wrong label makes its example look like another class, and label noise is not seen.

    Args:
        probabilities: Class probabilities by cross-fitting, [N, K].
        excluded: Complementary labels, [N, K]. Several labels of an example share a weight of 1.
        iterations: Upper bound of the number of EM steps.
    """
    share, matrix = label_shares(excluded.cpu()), anchor_transition(probabilities, excluded)
    q = _calibrate(probabilities.double().cpu(), share, matrix)
    matrix = 0.99 * matrix + 0.01 * share.mean(0)  # EM leaves an entry of 0 at 0
    for _ in range(iterations):
        ratio = share / (q @ matrix).clamp_min(1e-12)
        updated = _normalize_rows(matrix * (q.T @ ratio), matrix)
        change = float((updated - matrix).abs().max())
        matrix = updated
        if change < 1e-6:
            break
    likelihood = float((share * (q @ matrix).clamp_min(1e-9).log()).sum(1).mean())
    result = TransitionEstimate(matrix, matrix, _blocks(q, matrix), q.sum(0), likelihood)
    return replace(result, matrix=_shrink(matrix, result.error**2, result.examples))


def _calibrate(q: Tensor, share: Tensor, matrix: Tensor) -> Tensor:
    """Apply the temperature, .1 to 4, at which the labels are most likely: [N, K], [N, K], [K, K] -> [N, K]."""
    logits = q.clamp_min(1e-12).log()

    def likelihood(exponent: float) -> float:
        predicted = (logits * 2**-exponent).softmax(1) @ matrix
        return float((share * (predicted + 1e-6).log()).sum())

    best = max(torch.linspace(-3.25, 2, 22).tolist(), key=likelihood)
    return torch.softmax(logits * 2**-best, 1)


def anchor_transition(probabilities: Tensor, excluded: Tensor, share: float = 0.5) -> Tensor:
    """Estimate the matrix from anchor points: row k is the mean label of the examples most certainly of class k.

    Args:
        probabilities: Class probabilities by cross-fitting (see `estimate_transition`), [N, K].
        excluded: Complementary labels, [N, K].
        share: Share of the examples *predicted* to be of a class that count as its anchor points.

    Returns:
        float64 [K, K], shrunk as by `estimate_transition`.
    """
    q, labels = probabilities.double().cpu(), label_shares(excluded.cpu())
    classes = q.shape[1]
    predicted, rows, counts = q.argmax(1), [], []
    for k in range(classes):
        own = (predicted == k).nonzero()[:, 0]
        anchors = own[q[own, k].topk(math.ceil(share * len(own))).indices]
        rows.append(labels[anchors].mean(0) if len(anchors) else labels.mean(0))
        counts.append(len(anchors))
    matrix, count = torch.stack(rows), torch.tensor(counts, dtype=torch.float64)
    smooth = (matrix * count[:, None] + labels.mean(0)) / (count[:, None] + 1)  # so that no variance is zero
    variance = smooth * (1 - smooth) / count[:, None].clamp_min(0.01)
    return _shrink(matrix, variance, torch.bincount(predicted, minlength=classes).double())


def label_shares(excluded: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The labels of each example share a weight of 1; NaN for an example without labels. [N, K] -> [N, K]."""
    excluded = excluded.to(dtype)
    return excluded / excluded.sum(1, keepdim=True)


def _normalize_rows(matrix: Tensor, otherwise: Tensor) -> Tensor:
    """Rows that sum to 1; a row of zeros is taken from ``otherwise``."""
    sums = matrix.sum(1, keepdim=True)
    return torch.where(sums > 0, matrix / sums.clamp_min(1e-300), otherwise)


def _blocks(q: Tensor, matrix: Tensor) -> Tensor:
    """Inverse expected information, one block [K, K] per label: a label depends on one column of T only. [K, K, K].

    The constraint that rows sum to 1 couples the columns. With V = diag(V_k) the covariance of all entries is
    V - V A' (A V A')^-1 A V, where A V A' = sum_k V_k.
    """
    weight = 1 / (q @ matrix).clamp_min(len(matrix) / len(q))  # a label that was never seen may have that probability
    information = torch.stack([(q * weight[:, k : k + 1]).T @ q for k in range(q.shape[1])])
    blocks: Tensor = torch.linalg.inv(information + torch.eye(len(matrix), dtype=q.dtype))  # finite for empty classes
    return blocks


def _shrink(matrix: Tensor, variance: Tensor, examples: Tensor) -> Tensor:
    """Shrink a noisy matrix toward the closest matrix with one noise rate and one weight per label.

    Args:
        matrix: [K, K].
        variance: Sampling variance of each entry, [K, K].
        examples: Examples of each class, [K].

    Returns:
        float64 [K, K]. The relative deviation of the entries from the simple matrix has a variance that is estimated
        by what the deviations have in excess of ``variance``.
    """
    classes = len(matrix)
    precise = (examples / matrix.shape[0] + 1e-9)[:, None] * matrix.clamp_min(0)  # expected counts
    eye = torch.eye(classes, dtype=torch.bool)
    rate = float(precise[eye].sum() / precise.sum())
    off = precise.masked_fill(eye, 0)
    weight = off.sum(0) / off.sum()
    for _ in range(100):  # the MM algorithm for Luce's choice model: T[y, k] = m_k / (1 - m_y)
        row_rate = off.sum(1) / (1 - weight).clamp_min(1e-12)
        weight = off.sum(0) / (row_rate.sum() - row_rate).clamp_min(1e-300)
        weight = weight / weight.sum()
    simple = (1 - rate) * _without_diagonal(weight.clamp_min(1e-12)) + rate * torch.eye(classes, dtype=matrix.dtype)
    information = 1 / variance.clamp_min(1e-12)
    certainty = (simple**2 * information).clamp_max(1e6)  # entries weigh by how well their relative deviation is known
    deviation = (matrix - simple) ** 2 / simple.clamp_min(1e-6) ** 2
    noise = variance / simple.clamp_min(1e-6) ** 2
    spread = float(((deviation - noise) * certainty).sum() / certainty.sum())
    kept = max(spread, 0.0) * simple**2
    shrunk = simple + kept / (kept + variance.clamp_min(1e-15)) * (matrix - simple)
    return _normalize_rows(shrunk.clamp_min(0), simple)


# --- rank -------------------------------------------------------------------------------------------------------------


def rank(transition: Tensor) -> int:
    """Rank of a transition matrix [K, K]; below K, the labels do not determine the classes."""
    return int(torch.linalg.matrix_rank(transition.double().cpu(), rtol=1e-6))


def is_singular(transition: Tensor) -> bool:
    """Whether the labels of a transition matrix [K, K] do not determine the classes."""
    return rank(transition) < len(transition)
