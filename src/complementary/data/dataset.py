"""What a dataset is: inputs, class names and, where known, true or complementary labels."""

from dataclasses import dataclass

import torch
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


def _check(name: str, split: Split, classes: int) -> None:
    inputs = split.inputs
    images = inputs.dtype == torch.uint8 and inputs.ndim == 4
    vectors = inputs.dtype == torch.float32 and inputs.ndim == 2
    if not (images or vectors):
        raise UserError(
            f"{name}: inputs must be images uint8 [N, C, H, W] or vectors float32 [N, D], "
            f"found {str(inputs.dtype).removeprefix('torch.')} {list(inputs.shape)}."
        )
    if len(inputs) == 0:
        raise UserError(f"{name} holds no examples.")
    if vectors and not bool(torch.isfinite(inputs).all()):
        row = int((~torch.isfinite(inputs)).any(1).nonzero()[0])
        raise UserError(f"{name}: example {row} holds NaN or infinity; clean or drop such rows first.")
    for what, labels in (("true", split.truth), ("complementary", split.excluded)):
        if labels is not None and len(labels) != len(inputs):
            raise UserError(f"{name}: {len(inputs)} examples but {len(labels)} {what} labels; they must match.")
    if split.truth is not None:
        check_classes(split.truth, classes, f"{name}: a true label")
    if split.excluded is not None:
        if split.excluded.shape[1:] != (classes,):
            raise UserError(
                f"{name}: complementary labels have shape {list(split.excluded.shape)}, wanted [N, {classes}]."
            )
        check_excluded(split.excluded)
