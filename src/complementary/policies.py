"""Stronger augmentation of uint8 images on the device: cutout, RandAugment, AutoAugment.

A policy maps images uint8 [B, C, H, W] to the same shape, with one random draw per image, all from one
generator; shapes are fixed and nothing waits for the device, so it can be part of a captured step (the first
call on a device must not be inside a capture: it puts the policy's table there). It belongs after crop and
mirror and before normalisation. `draw` takes the generator; `apply` is a pure function of what was drawn.

    >>> import torch
    >>> from complementary.policies import RandAugment
    >>> from complementary.rng import generator
    >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> RandAugment()(images, generator(0, "step")).shape
    torch.Size([4, 3, 32, 32])

For 512 colour images of 32 x 32 pixels, one CPU core: cutout 5 ms, RandAugment and AutoAugment 60 to 80 ms.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary.errors import UserError, one_of
from complementary.operations import SIGNED, Operation, magnitudes, operate

Shape = tuple[int, int, int]


class Draw(NamedTuple):
    """What happens to each image, one layer after the other: codes int64 [L, B], signed magnitudes float32 [L, B]."""

    operation: Tensor
    magnitude: Tensor


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """The common part. fill: the level of what is cut out or comes in at the border, for all or for each channel."""

    fill: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        levels = self.fill if isinstance(self.fill, tuple) else (self.fill,)
        if not levels or not all(0 <= level <= 255 for level in levels):
            raise UserError(f"The fill of {type(self).__name__} is {self.fill}, but levels lie between 0 and 255.")

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images uint8 [B, C, H, W] -> the same shape and layout in memory."""
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(
                f"{type(self).__name__} needs uint8 images [B, C, H, W], found {images.dtype} "
                f"{list(images.shape)}; augment before normalising."
            )
        count, channels, height, width = images.shape
        drawn = self.draw(count, (channels, height, width), images.device, generator)
        return torch.empty_like(images).copy_(self.apply(images, drawn))

    @abstractmethod
    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Any:
        """Draw what happens to ``count`` images of ``shape`` (channels, height, width)."""

    @abstractmethod
    def apply(self, images: Tensor, drawn: Any) -> Tensor:
        """Do what was drawn: images uint8 [B, C, H, W] -> uint8 [B, C, H, W]."""

    def _fill(self, images: Tensor) -> int | Tensor:
        if isinstance(self.fill, int):
            return self.fill
        if len(self.fill) != images.shape[1]:
            raise UserError(f"The fill {self.fill} has {len(self.fill)} levels for {images.shape[1]} channels.")
        return _constant(self.fill, torch.uint8, images.device)[:, None, None]


@dataclass(frozen=True)
class Cutout(Policy):
    """Blank a square around a random pixel, cut off at the border (DeVries and Taylor 2017).

    size: pixels on a side; None: half the height, 16 for CIFAR-10 as published. There the square is 0 after
    normalisation, which is ``fill`` = the mean of the set; `build` does that.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and self.size < 1:
            raise UserError(f"The size of Cutout is {self.size}, but it must be at least 1 pixel.")

    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Tensor:
        """The middle of each square, (row, column): int64 [2, B]."""
        rows, columns = (torch.randint(n, (count,), device=device, generator=generator) for n in shape[1:])
        return torch.stack([rows, columns])

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Blank the squares around ``drawn`` int64 [2, B]."""
        size = self.size or max(1, images.shape[2] // 2)
        rows, columns = (_within(middle, size, length) for middle, length in zip(drawn, images.shape[2:], strict=True))
        hole = rows[:, None, :, None] & columns[:, None, None, :]
        return torch.where(hole, self._fill(images), images)


def _within(middle: Tensor, size: int, length: int) -> Tensor:
    """Which places are among the ``size`` around ``middle`` int [B] -> bool [B, length]."""
    offset = torch.arange(length, device=middle.device) - middle[:, None] + size // 2
    return (offset >= 0) & (offset < size)


@dataclass(frozen=True)
class Layered(Policy):
    """A policy that does one operation after the other."""

    def apply(self, images: Tensor, drawn: Draw) -> Tensor:
        """Do the drawn operations, layer by layer."""
        fill = self._fill(images)
        for operation, magnitude in zip(drawn.operation, drawn.magnitude, strict=True):
            images = operate(images, operation, magnitude, fill)
        return images


@dataclass(frozen=True)
class RandAugment(Layered):
    """Two random operations, all of one strength (Cubuk et al. 2020).

    layers: how many operations (N). magnitude: their strength (M) on a scale of 0 .. bins - 1. Fourteen
    operations are equally likely; signs are random. Grey-scale images do without color.
    """

    layers: int = 2
    magnitude: int = 9
    bins: int = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < 1:
            raise UserError(f"RandAugment has {self.layers} layers, but it needs at least 1.")
        if self.bins < 2 or not 0 <= self.magnitude < self.bins:
            raise UserError(
                f"The magnitude of RandAugment is {self.magnitude} of {self.bins} bins; it must lie between 0 and "
                "bins - 1, with 2 bins or more."
            )

    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Draw:
        """An operation and a sign for each image and layer."""
        channels, height, width = shape
        choices = RANDAUGMENT if channels == 3 else tuple(op for op in RANDAUGMENT if op is not Operation.COLOR)
        strength = tuple(magnitudes(op, self.bins, height, width)[self.magnitude] for op in choices)
        picked = torch.randint(len(choices), (self.layers, count), device=device, generator=generator)
        operation = _constant(choices, torch.long, device)[picked]
        return Draw(operation, _signed(operation, _constant(strength, torch.float32, device)[picked], generator))


@dataclass(frozen=True)
class AutoAugment(Layered):
    """One of the 25 sub-policies learnt on CIFAR-10, each two operations with their probabilities (Cubuk et al. 2019).

    Color does nothing to grey-scale images.
    """

    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Draw:
        """A sub-policy for each image, which of its operations happen, and their signs."""
        codes, chances, strengths = _cifar10(shape[1], shape[2], device)
        picked = torch.randint(len(CIFAR10), (count,), device=device, generator=generator)
        happens = torch.rand(2, count, device=device, generator=generator) < chances[:, picked]
        operation = torch.where(happens, codes[:, picked], int(Operation.IDENTITY))
        return Draw(operation, _signed(operation, strengths[:, picked], generator))


def _signed(operation: Tensor, strength: Tensor, generator: torch.Generator | None) -> Tensor:
    """Turn half of the magnitudes round, where an operation has a sign. int64 [L, B], float32 [L, B] -> [L, B]."""
    turn = torch.rand(operation.shape, device=operation.device, generator=generator) < 0.5
    signed = (operation >= min(SIGNED)) & (operation <= max(SIGNED))
    return torch.where(turn & signed, -strength, strength)


@functools.cache
def _constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small table on the device, put there once: a copy from the host cannot be captured."""
    return torch.tensor(values, dtype=dtype, device=device)


@functools.cache
def _cifar10(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """AutoAugment's table: codes int64, probabilities and magnitudes float32, each [2, 25]."""
    rows = [[pair[i] for pair in CIFAR10] for i in range(2)]
    strengths = [[magnitudes(op, 10, height, width)[bin] for op, _, bin in row] for row in rows]
    codes = torch.tensor([[int(op) for op, _, _ in row] for row in rows], device=device)
    chances = torch.tensor([[chance for _, chance, _ in row] for row in rows], device=device)
    return codes, chances, torch.tensor(strengths, dtype=torch.float32, device=device)


RANDAUGMENT = tuple(op for op in Operation if op is not Operation.INVERT)

_Step = tuple[Operation, float, int]  # operation, probability, strength on a scale of 0 .. 9


def _steps(text: str) -> tuple[_Step, _Step]:
    first, second = ((Operation[name], float(chance), int(bin)) for name, chance, bin in _words(text))
    return first, second


def _words(text: str) -> list[list[str]]:
    return [part.split() for part in text.upper().split(",")]


CIFAR10: tuple[tuple[_Step, _Step], ...] = tuple(
    _steps(line)
    for line in """
invert .1 0, contrast .2 6
rotate .7 2, translate_x .3 9
sharpness .8 1, sharpness .9 3
shear_y .5 8, translate_y .7 9
autocontrast .5 0, equalize .9 0
shear_y .2 7, posterize .3 7
color .4 3, brightness .6 7
sharpness .3 9, brightness .7 9
equalize .6 0, equalize .5 0
contrast .6 7, sharpness .6 5
color .7 7, translate_x .5 8
equalize .3 0, autocontrast .4 0
translate_y .4 3, sharpness .2 6
brightness .9 6, color .2 8
solarize .5 2, invert 0 0
equalize .2 0, autocontrast .6 0
equalize .2 0, equalize .6 0
color .9 9, equalize .6 0
autocontrast .8 0, solarize .2 8
brightness .1 3, color .7 0
solarize .4 5, autocontrast .9 0
translate_y .9 9, translate_y .7 9
autocontrast .9 0, solarize .8 3
equalize .8 0, invert .1 0
translate_y .7 9, autocontrast .9 0
""".strip().splitlines()
)

POLICIES: dict[str, type[Policy] | None] = {
    "none": None,
    "cutout": Cutout,
    "autoaugment": AutoAugment,
    "randaugment": RandAugment,
}


def build(name: str, mean: Sequence[float] | None = None) -> Policy | None:
    """Make the named policy (None for ``none``). ``mean``: of the set, 0 .. 1 per channel; cutout fills with it."""
    maker = POLICIES[one_of("The augmentation", name, POLICIES)]
    if maker is Cutout and mean is not None:
        return Cutout(fill=tuple(round(255 * m) for m in mean))
    return None if maker is None else maker()
