"""Transition matrices: the distribution of complementary labels.

An example of class y gets the label "not k" with probability T[y, k]. Rows of T [K, K] sum to 1; the diagonal is the
probability of a wrong label, one that excludes the true class.

    >>> from complementary import transitions
    >>> transitions.uniform(3).tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
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
    weight = torch.tensor([float(int(100 * r)) for r in decay(ratio, classes)], dtype=torch.float64)
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

    With many classes a uniform label says little (K = 100: 0.014 bit), so labels are designed with a known bias instead
    (BICL, Mai et al. 2026). If the classes have equal sizes, a label carries log2(K) bits less the entropy of a row:
    4.6 bits for K = 100 and four allowed labels. One allowed label names the class: that is a relabeled true label.

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


def parse(spec: str, classes: int, option: str | None = None) -> Tensor:
    """Build the matrix that a string describes.

    Args:
        spec: ``uniform``, ``biased:RATIO``, ``noisy:RATE``, ``designed:COUNT``, ``designed:COUNT:SHARE`` or
            ``matrix:FILE.csv``.
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


def estimate_transition(probabilities: Tensor, excluded: Tensor, share: float = 0.25) -> Tensor:
    """Estimate the matrix from anchor points, without true labels.

    Row k is the mean complementary label of the examples with the largest probability of class k.

    Args:
        probabilities: Class probabilities of a classifier trained on the complementary labels, [N, K].
        excluded: Complementary labels, [N, K].
        share: Number of anchor points per class, as a share of N/K.

    Returns:
        float64 [K, K].
    """
    classes = excluded.shape[1]
    count = max(1, min(len(excluded), int(share * len(excluded) / classes)))
    anchors = probabilities.topk(count, dim=0).indices.T  # [K, count]
    rows = excluded.double()[anchors].mean(1)
    return rows / rows.sum(1, keepdim=True)
