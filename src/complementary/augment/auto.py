"""Stronger augmentation of uint8 images on the device: cutout, RandAugment and AutoAugment.

A policy maps images uint8 [B, C, H, W] to the same shape, with its own random draw for every image. It is applied after
crop and flip and before normalization. `Policy.draw` uses the generator; `Policy.apply` is a pure function. Shapes are
fixed and nothing synchronizes with the device, so a policy can be part of a captured step (except for its first call on
a device, which copies its tables there).

    >>> import torch
    >>> from complementary.augment.auto import RandAugment
    >>> from complementary.rng import generator
    >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> RandAugment()(images, generator(0, "step")).shape
    torch.Size([4, 3, 32, 32])

For 512 color images of 32 x 32 pixels on one CPU core, cutout takes 5 ms, RandAugment and AutoAugment 60 to 80 ms.

The fifteen operations of RandAugment and AutoAugment are batched: every image has its own operation and passes three
stages, at most one of which changes it:

1. an affine gather: shear, translate, rotate (nearest pixel);
2. a lookup table of 256 values per image and channel: brightness, contrast, posterize, solarize, invert, autocontrast,
   equalize;
3. a blend with a degenerate image: color (with its grayscale version), sharpness (with a smoothed version).

They agree with Pillow pixel by pixel, with two exceptions: autocontrast divides integers, where the fractions of Pillow
may round to one level below; a source point on the edge of two pixels may be assigned to the other one.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary.augment.crop import luminance, per_image
from complementary.errors import UserError, one_of

LEVELS = 256


class Operation(IntEnum):
    """An operation on images; the value is its code in a tensor."""

    IDENTITY = 0
    SHEAR_X = 1
    SHEAR_Y = 2
    TRANSLATE_X = 3
    TRANSLATE_Y = 4
    ROTATE = 5
    BRIGHTNESS = 6
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    SOLARIZE = 11
    AUTOCONTRAST = 12
    EQUALIZE = 13
    INVERT = 14


SIGNED = frozenset(range(Operation.SHEAR_X, Operation.SHARPNESS + 1))  # operations whose magnitude may be negative


def magnitudes(operation: Operation, bins: int, height: int, width: int) -> list[float]:
    """The magnitudes of an operation in ``bins`` steps from weak to strong, for images of height x width.

    - shear: tangent of the angle; translate: pixels; rotate: degrees, counterclockwise
    - brightness, color, contrast, sharpness: what is added to a factor of 1
    - posterize: number of bits to keep; solarize: level from which values are inverted
    - all others: 0
    """
    part = [i / (bins - 1) for i in range(bins)]
    if operation is Operation.POSTERIZE:
        return [8.0 - round(4 * p) for p in part]
    if operation is Operation.SOLARIZE:
        return [255 * (1 - p) for p in part]
    largest = {
        Operation.SHEAR_X: 0.3,
        Operation.SHEAR_Y: 0.3,
        Operation.TRANSLATE_X: 150 / 331 * width,
        Operation.TRANSLATE_Y: 150 / 331 * height,
        Operation.ROTATE: 30.0,
    }
    enhances = Operation.BRIGHTNESS <= operation <= Operation.SHARPNESS
    return [p * (0.9 if enhances else largest.get(operation, 0.0)) for p in part]


def operate(images: Tensor, operation: Tensor, magnitude: Tensor, fill: int | Tensor = 0) -> Tensor:
    """Apply one operation to each image.

    Args:
        images: uint8 [B, C, H, W].
        operation: Codes of `Operation`, int64 [B]; color changes images with three channels only.
        magnitude: float32 [B].
        fill: Level of pixels from outside the image, for all channels or uint8 [C, 1, 1].

    Returns:
        uint8 [B, C, H, W].
    """
    images = _warp(images, affine(operation, magnitude, images.shape[2], images.shape[3]), fill)
    images = _look_up(images, tables(images, operation, magnitude))
    return enhance(images, operation, magnitude)


# --- geometry ---------------------------------------------------------------------------------------


def affine(operation: Tensor, magnitude: Tensor, height: int, width: int) -> Tensor:
    """Matrices M that map pixels of the result to the source: (x, y) = M (x', y', 1). [B], [B] -> [B, 2, 3].

    Shears fix the top left corner, rotations the center. All other operations have the identity.
    """

    def of(wanted: Operation) -> Tensor:
        return torch.where(operation == wanted, magnitude, 0.0)

    angle = of(Operation.ROTATE) * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    x_of_y = of(Operation.SHEAR_X) - sin
    y_of_x = of(Operation.SHEAR_Y) + sin
    x, y = width / 2, height / 2
    shift_x = x - cos * x + sin * y - of(Operation.TRANSLATE_X).trunc()
    shift_y = y - cos * y - sin * x - of(Operation.TRANSLATE_Y).trunc()
    return torch.stack([torch.stack([cos, x_of_y, shift_x], 1), torch.stack([y_of_x, cos, shift_y], 1)], 1)


def _warp(images: Tensor, matrix: Tensor, fill: int | Tensor = 0) -> Tensor:
    """Gather the nearest source pixels by ``matrix`` [B, 2, 3]; ``fill`` outside. [B, C, H, W] -> [B, C, H, W]."""
    count, channels, height, width = images.shape
    x = torch.arange(width, device=images.device) + 0.5  # centers of pixels
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    source_x, source_y = (
        (_flat(row[:, 0]) * x + _flat(row[:, 1]) * y + _flat(row[:, 2])).floor().long() for row in matrix.unbind(1)
    )
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    place = source_y.clamp(0, height - 1) * width + source_x.clamp(0, width - 1)
    taken = images.flatten(2).gather(2, place.view(count, 1, -1).expand(-1, channels, -1)).view(images.shape)
    return torch.where(inside[:, None], taken, fill)


def _flat(value: Tensor) -> Tensor:
    return value[:, None, None]


# --- tables of 256 values ---------------------------------------------------------------------------


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace every value by its entry: images uint8 [B, C, H, W], table uint8 [B, C, 256] -> uint8 [B, C, H, W]."""
    return table.gather(2, images.flatten(2).long()).view(images.shape)


def tables(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Lookup tables of all operations that depend on the value of a pixel only -> uint8 [B, C, 256].

    Each stage is the identity for images with another operation, so the stages can be chained.
    """
    count, channels = images.shape[:2]
    code, strength = _flat(operation), _flat(magnitude)
    level = torch.arange(LEVELS, device=images.device, dtype=torch.int32).expand(count, channels, LEVELS)
    brighter, contrasted = code == Operation.BRIGHTNESS, code == Operation.CONTRAST
    middle = torch.where(contrasted, _flat(_mean_luminance(images)), 0)
    table = blend(middle, level, torch.where(brighter | contrasted, 1 + strength, 1.0)).int()
    lost = torch.where(code == Operation.POSTERIZE, 8 - strength, 0).int()
    table = table >> lost << lost
    threshold = torch.where(code == Operation.SOLARIZE, strength, float(LEVELS))
    threshold = torch.where(code == Operation.INVERT, 0.0, threshold)
    table = torch.where(table >= threshold, LEVELS - 1 - table, table)
    pixels = images.flatten(2)
    table = torch.where(code == Operation.AUTOCONTRAST, _stretched(pixels), table)
    return torch.where(code == Operation.EQUALIZE, _equalized(pixels), table).to(torch.uint8)


def _stretched(pixels: Tensor) -> Tensor:
    """Tables that map the darkest value to 0 and the brightest to 255. uint8 [B, C, P] -> int32 [B, C, 256].

    A channel with a single value is not changed.
    """
    low, high = pixels.amin(2, keepdim=True).int(), pixels.amax(2, keepdim=True).int()
    flat = low == high
    low, high = torch.where(flat, 0, low), torch.where(flat, LEVELS - 1, high)
    level = torch.arange(LEVELS, device=pixels.device, dtype=torch.int32)
    return ((level - low) * (LEVELS - 1)).div(high - low, rounding_mode="floor").clamp(0, LEVELS - 1)


def _equalized(pixels: Tensor) -> Tensor:
    """Tables that spread values evenly by rank. uint8 [B, C, P] -> int32 [B, C, 256].

    A channel with fewer than 255 pixels below its brightest value is not changed.
    """
    count = histogram(pixels)
    up_to = count.cumsum(2, dtype=torch.int32)
    brightest = pixels.amax(2, keepdim=True).long()
    step = (pixels.shape[2] - count.gather(2, brightest)).div(LEVELS - 1, rounding_mode="floor")
    spread = (up_to - count + step // 2).div(step.clamp_min(1), rounding_mode="floor").clamp_max(LEVELS - 1)
    level = torch.arange(LEVELS, device=pixels.device, dtype=torch.int32)
    return torch.where(step == 0, level, spread)


def histogram(pixels: Tensor) -> Tensor:
    """Counts of each value: uint8 [B, C, P] -> int32 [B, C, 256]. Integers, so that a GPU gives exact results, too."""
    count = torch.zeros(*pixels.shape[:2], LEVELS, dtype=torch.int32, device=pixels.device)
    one = torch.ones((), dtype=torch.int32, device=pixels.device)
    return count.scatter_add_(2, pixels.long(), one.expand(pixels.shape))


# --- blends -----------------------------------------------------------------------------------------


def enhance(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Color and sharpness: images uint8 [B, C, H, W], [B], [B] -> uint8 [B, C, H, W]."""
    color, sharp = operation == Operation.COLOR, operation == Operation.SHARPNESS
    plain = luminance(images) if images.shape[1] == 3 else images
    degenerate = torch.where(per_image(sharp), smooth(images), plain)
    return blend(degenerate, images.float(), per_image(torch.where(color | sharp, 1 + magnitude, 1.0)))


def blend(degenerate: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """Interpolate from ``degenerate`` (factor 0) to the image (1) and beyond -> uint8, fractions cut off.

    A factor of 1 returns the image exactly.
    """
    return (degenerate + factor * (image - degenerate)).clamp(0, LEVELS - 1).to(torch.uint8)


def _mean_luminance(images: Tensor) -> Tensor:
    """Mean luminance of each image, rounded; without three channels, the mean of all. uint8 -> int64 [B]."""
    values = (luminance(images) if images.shape[1] == 3 else images).flatten(1)
    pixels = values.shape[1]
    return (2 * values.sum(1) + pixels).div(2 * pixels, rounding_mode="floor")


def smooth(images: Tensor) -> Tensor:
    """3 x 3 filter with weights 5/13 in the middle and 1/13 around, rounded; the border is not changed.

    uint8 [B, C, H, W] -> float32 [B, C, H, W].
    """
    narrow = images.short()
    rows = narrow[:, :, :-2] + narrow[:, :, 1:-1] + narrow[:, :, 2:]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    result = images.float()
    result[:, :, 1:-1, 1:-1] = ((around + 4 * narrow[:, :, 1:-1, 1:-1]) / 13).round()  # never a tie
    return result


Shape = tuple[int, int, int]


class Draw(NamedTuple):
    """The operations of each image, layer by layer: codes int64 [L, B], signed magnitudes float32 [L, B]."""

    operation: Tensor
    magnitude: Tensor


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """An augmentation of uint8 images.

    Attributes:
        fill: Level of pixels that are cut out or come from outside the image; for all channels, or for each.
    """

    fill: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        levels = self.fill if isinstance(self.fill, tuple) else (self.fill,)
        if not levels or not all(0 <= level <= 255 for level in levels):
            raise UserError(f"The fill of {type(self).__name__} is {self.fill}, but levels are between 0 and 255.")

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images uint8 [B, C, H, W] -> uint8 [B, C, H, W], in the same memory format."""
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(
                f"{type(self).__name__} needs uint8 images [B, C, H, W], but these are {images.dtype} "
                f"{list(images.shape)}; augment before normalizing."
            )
        count, channels, height, width = images.shape
        drawn = self.draw(count, (channels, height, width), images.device, generator)
        return torch.empty_like(images).copy_(self.apply(images, drawn))

    @abstractmethod
    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Any:
        """Draw the parameters of ``count`` images of ``shape`` (channels, height, width)."""

    @abstractmethod
    def apply(self, images: Tensor, drawn: Any) -> Tensor:
        """Apply the drawn parameters: images uint8 [B, C, H, W] -> uint8 [B, C, H, W]."""

    def _fill(self, images: Tensor) -> int | Tensor:
        if isinstance(self.fill, int):
            return self.fill
        if len(self.fill) != images.shape[1]:
            raise UserError(f"The fill {self.fill} has {len(self.fill)} levels for {images.shape[1]} channels.")
        return _constant(self.fill, torch.uint8, images.device)[:, None, None]


@dataclass(frozen=True)
class Cutout(Policy):
    """Blank a square around a random pixel, cut off at the border (DeVries and Taylor 2017).

    In the paper the square is 0 after normalization: ``fill`` is the mean of the dataset, as `build` sets it.

    Attributes:
        size: Side of the square in pixels; None: half the height (16 for CIFAR-10, as published).
    """

    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and self.size < 1:
            raise UserError(f"The size of Cutout is {self.size}, but it must be at least 1 pixel.")

    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Tensor:
        """Row and column of the center of each square: int64 [2, B]."""
        rows, columns = (torch.randint(n, (count,), device=device, generator=generator) for n in shape[1:])
        return torch.stack([rows, columns])

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Blank the squares with centers ``drawn`` int64 [2, B]."""
        size = self.size or max(1, images.shape[2] // 2)
        rows, columns = (_within(middle, size, length) for middle, length in zip(drawn, images.shape[2:], strict=True))
        hole = rows[:, None, :, None] & columns[:, None, None, :]
        return torch.where(hole, self._fill(images), images)


def _within(middle: Tensor, size: int, length: int) -> Tensor:
    """Which positions are among the ``size`` around ``middle`` int [B] -> bool [B, length]."""
    offset = torch.arange(length, device=middle.device) - middle[:, None] + size // 2
    return (offset >= 0) & (offset < size)


@dataclass(frozen=True)
class _Layered(Policy):
    """A policy that applies operations one after the other."""

    def apply(self, images: Tensor, drawn: Draw) -> Tensor:
        """Apply the drawn operations, layer by layer."""
        fill = self._fill(images)
        for operation, magnitude in zip(drawn.operation, drawn.magnitude, strict=True):
            images = operate(images, operation, magnitude, fill)
        return images


@dataclass(frozen=True)
class RandAugment(_Layered):
    """Random operations, all with the same strength (Cubuk et al. 2020).

    Fourteen operations are equally likely, without color for grayscale images. Signs are random.

    Attributes:
        layers: Number of operations (N).
        magnitude: Their strength (M) on a scale from 0 to bins - 1.
        bins: Number of steps of the scale.
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
        """Draw an operation and a sign for each image and layer."""
        channels, height, width = shape
        choices = RANDAUGMENT if channels == 3 else tuple(op for op in RANDAUGMENT if op is not Operation.COLOR)
        strength = tuple(magnitudes(op, self.bins, height, width)[self.magnitude] for op in choices)
        picked = torch.randint(len(choices), (self.layers, count), device=device, generator=generator)
        operation = _constant(choices, torch.long, device)[picked]
        return Draw(operation, _signed(operation, _constant(strength, torch.float32, device)[picked], generator))


@dataclass(frozen=True)
class AutoAugment(_Layered):
    """One of the 25 sub-policies for CIFAR-10, each two operations with their probabilities (Cubuk et al. 2019)."""

    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Draw:
        """Draw a sub-policy for each image, which of its operations are applied, and their signs."""
        codes, chances, strengths = _cifar10(shape[1], shape[2], device)
        picked = torch.randint(len(CIFAR10), (count,), device=device, generator=generator)
        happens = torch.rand(2, count, device=device, generator=generator) < chances[:, picked]
        operation = torch.where(happens, codes[:, picked], int(Operation.IDENTITY))
        return Draw(operation, _signed(operation, strengths[:, picked], generator))


def _signed(operation: Tensor, strength: Tensor, generator: torch.Generator | None) -> Tensor:
    """Negate half of the magnitudes of operations that have a sign. int64 [L, B], float32 [L, B] -> [L, B]."""
    turn = torch.rand(operation.shape, device=operation.device, generator=generator) < 0.5
    signed = (operation >= min(SIGNED)) & (operation <= max(SIGNED))
    return torch.where(turn & signed, -strength, strength)


@functools.cache
def _constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small table on the device, copied once: a copy from the host cannot be captured."""
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


@dataclass(frozen=True)
class Strong(Policy):
    """RandAugment, then cutout: the strong augmentation of semi-supervised learning (as in FixMatch).

    ``fill`` is that of cutout.
    """

    def draw(self, count: int, shape: Shape, device: torch.device, generator: torch.Generator | None) -> Any:
        """Draw the parameters of both."""
        return RandAugment().draw(count, shape, device, generator), Cutout().draw(count, shape, device, generator)

    def apply(self, images: Tensor, drawn: Any) -> Tensor:
        """Apply both."""
        return Cutout(fill=self.fill).apply(RandAugment().apply(images, drawn[0]), drawn[1])


POLICIES: dict[str, type[Policy] | None] = {
    "none": None,
    "strong": Strong,
    "cutout": Cutout,
    "autoaugment": AutoAugment,
    "randaugment": RandAugment,
}


def build(name: str, mean: Sequence[float] | None = None) -> Policy | None:
    """Build a policy.

    Args:
        name: none, cutout, autoaugment, randaugment or strong.
        mean: Mean of each channel of the dataset on a 0 to 1 scale; cutout fills with it.

    Returns:
        The policy; None for ``none``.
    """
    policy = POLICIES[one_of("The policy", name, POLICIES, "policy")]
    if policy in (Cutout, Strong) and mean is not None:
        return policy(fill=tuple(round(255 * m) for m in mean))
    return None if policy is None else policy()
