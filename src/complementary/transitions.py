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
        spec: ``uniform``, ``biased:RATIO``, ``noisy:RATE`` or ``matrix:FILE.csv``.
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
    makers = {"biased": (biased, "biased:10"), "noisy": (noisy, "noisy:0.05")}
    if kind in makers:
        make, example = makers[kind]
        try:
            number = float(value)
        except ValueError:
            raise UserError(f"{spec!r} needs a number after the colon, such as {example}.") from None
        return make(classes, number)
    raise UserError(
        f"{spec!r} is not known; use uniform, biased:RATIO, noisy:RATE, matrix:FILE.csv, or, for labels, "
        "setup-1:RATIO, setup-2:BIAS, setup-3:BIAS:RATIO or given (labels that come with the data)."
    )


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
