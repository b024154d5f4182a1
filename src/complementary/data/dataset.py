"""`Dataset` and `Split`: inputs, class names and, where known, true or complementary labels."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from complementary.errors import UserError
from complementary.labels import check_classes, check_excluded

log = logging.getLogger(__name__)
CHECKED = 2**16  # rows that are checked for NaN at a time
MANY_VALUES = 2**25  # of vectors; the moments of more are computed in parts
FEW_ROWS = 1000  # that are checked for lost precision
PRECISION = 0.5  # largest step between float32 values, in standard deviations of a feature


@dataclass(frozen=True)
class Split:
    """The examples of one split.

    Attributes:
        inputs: Images uint8 [N, C, H, W] or vectors float32 [N, D].
        truth: True classes int64 [N], or None if unknown.
        excluded: Complementary labels that came with the data, uint8 [N, K], or None. A 1 means "not this class".
        names: Names of the examples, such as files, text [N], or None.
    """

    inputs: Tensor
    truth: Tensor | None = None
    excluded: Tensor | None = None
    names: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor) -> "Split":
        """Select the examples at ``index`` int [M]."""
        truth = None if self.truth is None else self.truth[index]
        excluded = None if self.excluded is None else self.excluded[index]
        names = None if self.names is None else self.names[index.numpy()]
        return Split(self.inputs[index], truth, excluded, names)


@dataclass(frozen=True)
class Answers:
    """The answers that the complementary labels of a training split were combined from, one per row.

    Attributes:
        example: Position of the example in the training split, int64 [A].
        excluded: The classes that the answer excludes, uint8 [A, K]; "it is a cat" excludes K-1 classes.
        annotator: Position in ``annotators``, int64 [A]; -1: not named.
        time: Seconds since 1970, float64 [A]; NaN: not known.
        annotators: Names of the annotators, sorted.
    """

    example: Tensor
    excluded: Tensor
    annotator: Tensor
    time: Tensor
    annotators: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.example)

    def take(self, index: Tensor) -> "Answers":
        """The answers about the examples at ``index`` int [M], which are numbered from 0."""
        highest = max([int(each.max()) for each in (self.example, index) if len(each)], default=-1)
        place = torch.full((highest + 1,), -1, dtype=torch.int64)
        place[index] = torch.arange(len(index))
        rows = place[self.example] >= 0
        parts = (self.excluded[rows], self.annotator[rows], self.time[rows])
        return Answers(place[self.example[rows]], *parts, self.annotators)

    def annotator_names(self) -> list[str]:
        """The annotator of each answer, or "" [A]."""
        return ["" if i < 0 else self.annotators[i] for i in self.annotator.tolist()]


@dataclass(frozen=True)
class Dataset:
    """A named dataset. Shapes, labels and values are checked when it is created.

    Attributes:
        name: Name for messages and file names.
        train: Training split.
        test: Test split with true labels, or None.
        classes: Names of the K classes; empty for a dataset without labels.
        mean: Mean per channel (images, on a 0-1 scale) or per feature (vectors).
        std: Standard deviation, as ``mean``.
        flip: Whether a horizontal flip keeps the class. False for digits and text.
        head: Size of the largest class in the paper's long tails, where the paper fixes it.
        answers: The single answers behind ``train.excluded``, if there are several or if annotators are known.
        features: Names of the features of vectors, if they are known.
    """

    name: str
    train: Split
    test: Split | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True
    head: int | None = None
    answers: Answers | None = None
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            if split is not None:
                _check_inputs(f"{self.name} ({part})", split.inputs)
                _check_labels(f"{self.name} ({part})", split, len(self.classes))
        if self.answers is not None:
            _check_answers(self.name, self.answers, len(self.train), len(self.classes))
        if self.test is not None and self.test.inputs.shape[1:] != self.train.inputs.shape[1:]:
            raise UserError(
                f"{self.name}: test examples have shape {list(self.test.inputs.shape[1:])}, but train examples "
                f"{list(self.train.inputs.shape[1:])}; both must have the same shape."
            )


def _check_inputs(name: str, inputs: Tensor) -> None:
    images = inputs.dtype == torch.uint8 and inputs.ndim == 4
    vectors = inputs.dtype == torch.float32 and inputs.ndim == 2
    if not (images or vectors):
        raise UserError(
            f"{name}: inputs must be images uint8 [N, C, H, W] or vectors float32 [N, D], "
            f"found {str(inputs.dtype).removeprefix('torch.')} {list(inputs.shape)}."
        )
    if inputs.numel() == 0:
        raise UserError(f"{name} contains no examples: its inputs have shape {list(inputs.shape)}.")
    check_finite(name, inputs)


def check_finite(name: str, inputs: Tensor, columns: Sequence[object] | None = None) -> None:
    """Raise if a vector contains NaN or infinity.

    Args:
        name: Start of the message.
        inputs: As in `Split`.
        columns: Names of the features; None: their numbers.
    """
    for start in range(0, len(inputs) if inputs.is_floating_point() else 0, CHECKED):
        finite = torch.isfinite(inputs[start : start + CHECKED])
        if bool(finite.all()):
            continue
        row, column = (int(i) for i in (~finite).nonzero()[0])
        where = f"example {start + row} contains NaN or infinity (column {columns[column] if columns else column})"
        raise UserError(f"{name}: {where}; clean or drop such rows first.")


def _check_labels(name: str, split: Split, classes: int) -> None:
    for kind, labels in (("true", split.truth), ("complementary", split.excluded)):
        if labels is not None and len(labels) != len(split):
            raise UserError(f"{name}: {len(split)} examples but {len(labels)} {kind} labels; the numbers must match.")
    if split.truth is not None:
        if split.truth.ndim != 1:
            raise UserError(f"{name}: true labels have shape {list(split.truth.shape)}, expected [N].")
        check_classes(split.truth, classes, f"{name}: a true label")
    if split.excluded is not None:
        if split.excluded.shape[1:] != (classes,):
            shape = list(split.excluded.shape)
            raise UserError(f"{name}: complementary labels have shape {shape}, expected [N, {classes}].")
        check_excluded(split.excluded)


def _check_answers(name: str, answers: Answers, examples: int, classes: int) -> None:
    count = len(answers)
    shapes = [list(part.shape) for part in (answers.excluded, answers.annotator, answers.time)]
    if shapes != [[count, classes], [count], [count]]:
        raise UserError(f"{name}: {count} answers, but their parts have shapes {shapes}, expected one row per answer.")
    for part, limit in ((answers.example, examples), (answers.annotator, len(answers.annotators))):
        if count and not -1 <= int(part.min()) <= int(part.max()) < limit:
            raise UserError(f"{name}: an answer refers to number {int(part.max())}, but there are only {limit}.")


def as_inputs(X: ArrayLike, name: str = "X", contiguous: bool = True) -> Tensor:
    """Convert an array to the inputs of a `Split`.

    Args:
        X: Images uint8 [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels, or vectors of numbers [N, D].
            An array that already has the right layout is not copied.
        name: What messages call the array.
        contiguous: Copy images whose channels are last. False: return a view, so that a memory map stays on the disk.

    Returns:
        Images uint8 [N, C, H, W], or vectors float32 [N, D]. Values beyond the range of float32 become infinity.

    Raises:
        UserError: The shape, the type or the number of channels is not supported.
    """
    array = np.asarray(X)
    found = f"{name} has type {array.dtype} and shape {list(array.shape)}"
    if array.dtype.kind == "O" and any(isinstance(value, str | bytes) for value in array.flat):
        raise UserError(f"{name} contains text, that is, values that are not numbers; encode them first.")
    if array.ndim == 2 and array.dtype.kind in "fiubO":
        try:
            with np.errstate(over="ignore"):
                vectors = array.astype(np.float32, copy=False)
        except (TypeError, ValueError):
            raise UserError(f"{name} contains values that are not numbers; encode them first.") from None
        if (message := describe_lost_precision(array, name)) is not None:
            log.warning(message)
        return to_tensor(vectors)
    if array.ndim not in (3, 4):
        raise UserError(f"{found}; expected vectors of numbers [N, D], or images uint8 [N, H, W] or [N, H, W, C].")
    if array.dtype != np.uint8:
        raise UserError(f"{found}; images must be uint8 (0 to 255): convert them, or flatten them to vectors [N, D].")
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    elif array.shape[1] not in (1, 3):
        raise UserError(f"{found}; images must have 1 or 3 channels, first or last.")
    return to_tensor(array, contiguous)


def describe_lost_precision(vectors: NDArray[np.generic], name: str) -> str | None:
    """Say if float32 cannot represent how the values of a feature differ, such as seconds since 1970.

    Args:
        vectors: [N, D].
        name: What the message calls them.

    Returns:
        Two sentences, or None if nothing is lost.
    """
    if vectors.dtype.kind not in "fiu" or np.can_cast(vectors.dtype, np.float32):
        return None
    some = np.asarray(vectors[:: max(1, len(vectors) // FEW_ROWS)], np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        largest, spread = np.abs(some).max(0, initial=0), some.std(0) if len(some) else np.zeros(some.shape[1])
        lost = (spread > 0) & (largest * np.finfo(np.float32).eps > PRECISION * spread)
    if not lost.any():
        return None
    k = int(lost.argmax())
    return (
        f"{name}: {int(lost.sum())} of {len(lost)} features have large values that differ little (feature {k}: up to "
        f"{largest[k]:.4g}, standard deviation {spread[k]:.2g}). In float32 these differences are lost; subtract the "
        "mean first, for example with StandardScaler."
    )


def to_tensor(array: NDArray[np.generic], contiguous: bool = True) -> Tensor:
    """Convert; only an array that must become contiguous is copied. The tensor must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array) if contiguous else array)


def moments(inputs: Tensor | NDArray[np.generic]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the inputs, for normalization.

    Args:
        inputs: Images uint8 [N, C, H, W] or vectors float32 [N, D].

    Returns:
        Mean and standard deviation per channel (on a 0-1 scale) or per feature. A channel or feature that is constant
        gets a standard deviation of 1.
    """
    array = np.asarray(inputs)
    if array.dtype == np.uint8:
        return _image_moments(array)
    if array.size > MANY_VALUES:
        return _vector_moments(array)
    values = array.astype(np.float64)
    std = np.where(np.ptp(values, 0) > 0, values.std(0), 1.0)
    return tuple(values.mean(0).tolist()), tuple(std.tolist())


def _vector_moments(vectors: NDArray[np.generic]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In parts, so that a memory map stays on disk: first the mean, then the deviations from it."""
    rows = max(1, 2**20 // max(1, vectors.shape[1]))
    parts = [slice(start, start + rows) for start in range(0, len(vectors), rows)]
    mean = sum((vectors[part].astype(np.float64).sum(0) for part in parts), np.zeros(vectors.shape[1])) / len(vectors)
    squares, constant = np.zeros(vectors.shape[1]), np.ones(vectors.shape[1], bool)
    for part in parts:
        values = vectors[part].astype(np.float64)
        squares += ((values - mean) ** 2).sum(0)
        constant &= (vectors[part] == vectors[0]).all(0)
    std = np.where(constant, 1.0, np.sqrt(squares / len(vectors)))
    return tuple(mean.tolist()), tuple(std.tolist())


def _image_moments(images: NDArray[np.generic]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact, from a histogram per channel; images are read in parts, so a memory map stays on disk."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    rows = max(1, 2**24 // max(1, images[:1].nbytes))
    for start in range(0, len(images), rows):
        part = images[start : start + rows]
        for channel, histogram in enumerate(counts):
            histogram += np.bincount(part[:, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    constant = (counts > 0).sum(1) == 1
    return tuple(mean.tolist()), tuple(np.where(constant, 1.0, np.sqrt(variance)).tolist())
