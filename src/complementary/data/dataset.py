"""What a dataset is: inputs, class names and, where known, true or complementary labels."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complementary.errors import UserError
from complementary.labels import check_classes, check_excluded


@dataclass(frozen=True)
class Split:
    """The examples of one split.

    ``inputs``: images uint8 [N, C, H, W], or vectors float32 [N, D]. ``truth``: int64 [N] or None.
    ``excluded``: complementary labels that came with the data, uint8 [N, K], or None.
    """

    inputs: Tensor
    truth: Tensor | None = None
    excluded: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor) -> "Split":
        """The examples at ``index`` int [M]."""
        truth = None if self.truth is None else self.truth[index]
        excluded = None if self.excluded is None else self.excluded[index]
        return Split(self.inputs[index], truth, excluded)


@dataclass(frozen=True)
class Dataset:
    """A named set. ``mean`` and ``std``: one number per channel (images, on a 0–1 scale) or per feature.

    ``flip``: whether a mirrored image keeps its class (not so for digits). ``head``: the size of the
    largest class in the paper's long tails, where the paper fixes it.
    """

    name: str
    train: Split
    test: Split | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True
    head: int | None = None

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            if split is not None:
                _check(f"{self.name} ({part})", split, len(self.classes))
        if self.test is not None and self.test.inputs.shape[1:] != self.train.inputs.shape[1:]:
            raise UserError(
                f"{self.name}: test examples are {list(self.test.inputs.shape[1:])}, but train examples are "
                f"{list(self.train.inputs.shape[1:])}; both must have the same shape."
            )


def _check(name: str, split: Split, classes: int) -> None:
    inputs = split.inputs
    images = inputs.dtype == torch.uint8 and inputs.ndim == 4
    vectors = inputs.dtype == torch.float32 and inputs.ndim == 2
    if not (images or vectors):
        raise UserError(
            f"{name}: inputs must be images uint8 [N, C, H, W] or vectors float32 [N, D], "
            f"found {str(inputs.dtype).removeprefix('torch.')} {list(inputs.shape)}."
        )
    if inputs.numel() == 0:
        raise UserError(f"{name} holds no examples: its inputs are {list(inputs.shape)}.")
    if vectors and not bool(torch.isfinite(inputs).all()):
        row = int((~torch.isfinite(inputs)).any(1).nonzero()[0])
        raise UserError(f"{name}: example {row} holds NaN or infinity; clean or drop such rows first.")
    for what, labels in (("true", split.truth), ("complementary", split.excluded)):
        if labels is not None and len(labels) != len(inputs):
            raise UserError(f"{name}: {len(inputs)} examples but {len(labels)} {what} labels; they must match.")
    if split.truth is not None:
        if split.truth.ndim != 1:
            raise UserError(f"{name}: true labels have shape {list(split.truth.shape)}, wanted [N].")
        check_classes(split.truth, classes, f"{name}: a true label")
    if split.excluded is not None:
        if split.excluded.shape[1:] != (classes,):
            raise UserError(
                f"{name}: complementary labels have shape {list(split.excluded.shape)}, wanted [N, {classes}]."
            )
        check_excluded(split.excluded)


def moments(inputs: NDArray[np.generic]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel (uint8 [N, C, H, W], on a 0-1 scale) or feature (float32 [N, D]).

    What never varies gets a deviation of 1, so that dividing by it is harmless.
    """
    return _channel_moments(inputs) if inputs.dtype == np.uint8 else _feature_moments(inputs)


def _channel_moments(images: NDArray[np.generic]) -> tuple[list[float], list[float]]:
    """Exact, from histograms; read in pieces so that a memory map stays on the disk."""
    channels = images.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    rows = max(1, 2**24 // max(1, images[:1].nbytes))
    for start in range(0, len(images), rows):
        piece = images[start : start + rows]
        for channel in range(channels):
            counts[channel] += np.bincount(piece[:, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(1)
    variance = np.maximum(counts @ values**2 / counts.sum(1) - mean**2, 0)
    return mean.round(6).tolist(), [std or 1.0 for std in np.sqrt(variance).round(6).tolist()]


def _feature_moments(vectors: NDArray[np.generic]) -> tuple[list[float], list[float]]:
    values = vectors.astype(np.float64)  # not rounded: features may be of any scale
    return values.mean(0).tolist(), np.where(np.ptp(values, 0) > 0, values.std(0), 1.0).tolist()
