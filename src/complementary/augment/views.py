"""Two-view augmentation on the device, one random draw per image: what self-supervised encoders learn from.

Drawing and applying are separate: `draw` takes the generator, `apply` is a pure function of fixed shapes
that can be compiled and captured. Geometry is done with small matrices: a bilinear crop-and-resize (and
mirror) is ``rows @ image @ columns.T`` with two non-zeros a row, and a blur is the same with Gaussian rows.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Draw(NamedTuple):
    """The random numbers of one view, all [B]: crop box, mirror, colour factors, and who gets what."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    jitter: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grey: Tensor
    blur: Tensor
    sigma: Tensor
    solarise: Tensor


NUMBERS = 14  # random numbers that one view of an image takes


@dataclass(frozen=True)
class Views:
    """Random resized crop, mirror, colour jitter, grey, and optionally blur and solarise.

    Defaults are SimSiam's for CIFAR. Probabilities of 0 switch a part off. Grey-scale images get brightness
    and contrast only. Colour changes come in a fixed order: brightness, contrast, saturation, hue.
    """

    smallest: float = 0.2
    flip: float = 0.5
    jitter: float = 0.8
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    grey: float = 0.2
    blur: float = 0.0
    solarise: float = 0.0

    def draw(self, count: int, size: tuple[int, int], device: torch.device, random: torch.Generator | None) -> Draw:
        """Draw the parameters of one view of ``count`` images of ``size`` (height, width)."""
        return self.read(torch.rand(NUMBERS, count, device=device, generator=random), size)

    def read(self, u: Tensor, size: tuple[int, int]) -> Draw:
        """The parameters that random numbers in 0 .. 1 stand for: u [NUMBERS, B], size (height, width) -> a draw."""
        area = self.smallest + (1 - self.smallest) * u[0]
        reach = (-area.log()).clamp_max(math.log(4 / 3))  # a box of this area fits the image up to this proportion
        aspect = torch.exp((2 * u[1] - 1) * reach)
        height = (size[0] * (area / aspect).sqrt()).round().clamp(1, size[0])
        width = (size[1] * (area * aspect).sqrt()).round().clamp(1, size[1])
        b, c, s, h = self.strength
        return Draw(
            top=(u[2] * (size[0] - height + 1)).floor(),
            left=(u[3] * (size[1] - width + 1)).floor(),
            height=height,
            width=width,
            flip=u[4] < self.flip,
            jitter=u[5] < self.jitter,
            brightness=1 + b * (2 * u[6] - 1),
            contrast=1 + c * (2 * u[7] - 1),
            saturation=1 + s * (2 * u[8] - 1),
            hue=h * (2 * u[9] - 1),
            grey=u[10] < self.grey,
            blur=u[11] < self.blur,
            sigma=0.1 + 1.9 * u[12],
            solarise=u[13] < self.solarise,
        )

    def apply(self, images: Tensor, draw: Draw) -> Tensor:
        """Images uint8 [B, C, H, W] -> one view, float32 in 0 .. 1, same shape."""
        x = images.float() / 255
        rows = resize_rows(draw.top, draw.height, images.shape[2])
        columns = resize_rows(draw.left, draw.width, images.shape[3])
        columns = torch.where(draw.flip[:, None, None], columns.flip(1), columns)
        x = rows[:, None] @ x @ columns[:, None].transpose(2, 3)
        x = _where(draw.jitter, self._jittered(x, draw), x)
        if x.shape[1] == 3 and self.grey > 0:
            x = _where(draw.grey, luminance(x).expand_as(x), x)
        if self.blur > 0:
            x = _where(draw.blur, blurred(x, draw.sigma), x)
        if self.solarise > 0:
            x = _where(draw.solarise, torch.where(x < 0.5, x, 1 - x), x)
        return x.clamp(0, 1)  # weights sum to one only up to rounding

    def _jittered(self, x: Tensor, draw: Draw) -> Tensor:
        x = (x * _wide(draw.brightness)).clamp(0, 1)
        mean = (luminance(x) if x.shape[1] == 3 else x).mean((1, 2, 3), keepdim=True)
        x = torch.lerp(mean.expand_as(x), x, _wide(draw.contrast)).clamp(0, 1)
        if x.shape[1] != 3:
            return x
        x = torch.lerp(luminance(x).expand_as(x), x, _wide(draw.saturation)).clamp(0, 1)
        return shift_hue(x, draw.hue)


def _wide(value: Tensor) -> Tensor:
    return value[:, None, None, None]


def _where(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(_wide(chosen), yes, no)


def resize_rows(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Bilinear weights that stretch ``length`` pixels from ``start`` over ``size``. [B], [B] -> [B, size, size].

    Row i holds the weights of the source pixels of output pixel i: a tent around its centre, kept inside the
    crop. The same as cropping and resizing (bilinear, corners not aligned).
    """
    place = torch.arange(size, device=start.device)
    centre = (place + 0.5) * (length[:, None] / size) - 0.5  # inside the crop
    centre = torch.minimum(centre.clamp_min(0), length[:, None] - 1) + start[:, None]
    return (1 - (centre[:, :, None] - place).abs()).clamp_min(0)


def blurred(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with ``sigma`` [B] pixels, renormalised at the border. [B, C, H, W] -> same."""
    rows, columns = (_gauss(sigma, size) for size in x.shape[2:])
    return rows[:, None] @ x @ columns[:, None].transpose(2, 3)


def _gauss(sigma: Tensor, size: int) -> Tensor:
    place = torch.arange(size, device=sigma.device, dtype=torch.float32)
    weight = torch.exp(-((place[:, None] - place) ** 2) / (2 * sigma[:, None, None] ** 2))
    return weight / weight.sum(2, keepdim=True)


def luminance(x: Tensor) -> Tensor:
    """ITU-R 601 grey value. [B, 3, H, W] -> [B, 1, H, W]."""
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def shift_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of RGB images [B, 3, H, W] in 0 .. 1 by ``turn`` [B], in fractions of the colour circle."""
    red, green, blue = x.unbind(1)
    value, low = x.amax(1), x.amin(1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(value == red, (green - blue) / safe % 6, (red - green) / safe + 4)
    hue = torch.where((value == green) & (value != red), (blue - red) / safe + 2, hue)
    hue = torch.where(chroma > 0, hue, 0.0) + 6 * turn[:, None, None]

    def channel(n: int) -> Tensor:
        k = (n + hue) % 6
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1)
