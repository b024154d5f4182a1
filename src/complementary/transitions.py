"""Transition matrices: how complementary labels arise.

A transition T [K, K] says that an example of class y is given the label "not k" with probability
T[y, k]. Rows sum to 1; the diagonal is the chance that an annotator wrongly excludes the true class.

    >>> from complementary import transitions
    >>> transitions.uniform(3).tolist()
    [[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from complementary.errors import UserError


def uniform(classes: int) -> Tensor:
    """Every wrong class equally likely: [K, K], zero diagonal."""
    return _without_diagonal(torch.ones(classes, dtype=torch.float64))


def biased(classes: int, ratio: float) -> Tensor:
    """The paper's setup 2: the label "not k" grows rarer with k, ``ratio`` times from first to last. [K, K]."""
    if not ratio >= 1:
        raise UserError(f"The bias ratio is {ratio}, but it must be at least 1 (1 means uniform).")
    weight = torch.tensor([float(int(100 * r)) for r in decay(ratio, classes)], dtype=torch.float64)
    if weight[-1] == 0:
        raise UserError(
            f"A bias ratio of {ratio:g} leaves class {classes - 1} no weight (it is 100/ratio, rounded "
            "down): use a ratio of at most 100."
        )
    return _without_diagonal(weight)


def noisy(classes: int, rate: float) -> Tensor:
    """Annotators who name the *true* class with probability ``rate``, else a wrong one uniformly. [K, K]."""
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


def check_transition(matrix: Tensor, classes: int | None = None, name: str = "The transition matrix") -> Tensor:
    """Return ``matrix`` as float64 [K, K] if its rows are probabilities, else say what is wrong with it."""
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    size = classes or (len(matrix) if matrix.ndim else 0)
    if size < 2:
        raise UserError(f"{name} has shape {list(matrix.shape)}; it must be [K, K] for at least 2 classes.")
    if matrix.ndim != 2 or tuple(matrix.shape) != (size, size):
        raise UserError(f"{name} has shape {list(matrix.shape)}, but {size} classes need [{size}, {size}].")
    if not torch.isfinite(matrix).all():
        raise UserError(f"{name} holds NaN or infinity; every entry must be a probability.")
    if (matrix < 0).any():
        row, column = (int(i) for i in (matrix < 0).nonzero()[0])
        value = float(matrix[row, column])
        raise UserError(f"{name} has {value:g} in row {row}, column {column}; no probability is negative.")
    sums = matrix.sum(1)
    worst = int((sums - 1).abs().argmax())
    if abs(float(sums[worst]) - 1) > 1e-3:
        raise UserError(f"{name}: row {worst} sums to {float(sums[worst]):.4f}, but each row must sum to 1.")
    return matrix / sums[:, None]


def read_transition(path: str | Path, classes: int | None = None) -> Tensor:
    """Read a matrix [K, K] from a CSV file: row = true class, column = complementary label."""
    try:
        text = Path(path).read_text(encoding="utf-8")  # not by name: NumPy would fetch a URL
        matrix = np.loadtxt(text.splitlines(), delimiter=",", ndmin=2) if text.strip() else np.zeros((0, 0))
    except OSError as error:
        raise UserError(f"The transition matrix {path} cannot be read ({error.strerror or error}).") from None
    except ValueError as error:
        raise UserError(f"{path} is not a matrix of numbers separated by commas: {error}.") from None
    return check_transition(torch.from_numpy(matrix), classes, name=f"The transition matrix {path}")


def parse(spec: str, classes: int) -> Tensor:
    """Turn ``uniform``, ``biased:10``, ``noisy:0.05`` or ``matrix:FILE.csv`` into a matrix [K, K]."""
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
            raise UserError(f"Labels {spec!r} need a number after the colon, such as {example}.") from None
        return make(classes, number)
    raise UserError(
        f"Labels {spec!r} are not known; use uniform, biased:RATIO, noisy:RATE, matrix:FILE.csv, "
        "setup-1:RATIO, setup-2:BIAS, setup-3:BIAS:RATIO, or given (labels that came with the data)."
    )


def estimate_transition(probabilities: Tensor, excluded: Tensor, share: float = 0.25) -> Tensor:
    """Estimate the matrix without true labels, from anchor points.

    ``probabilities`` [N, K]: class probabilities of a classifier trained on the complementary labels;
    ``excluded`` [N, K]. Row k is the mean label of the examples it is surest are of class k: the
    ``share`` of the most confident among an even N/K. -> [K, K]
    """
    classes = excluded.shape[1]
    count = max(1, min(len(excluded), int(share * len(excluded) / classes)))
    anchors = probabilities.topk(count, dim=0).indices.T  # [K, count]
    rows = excluded.double()[anchors].mean(1)
    return rows / rows.sum(1, keepdim=True)
