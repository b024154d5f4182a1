"""The two views of self-supervised learning: random resized crop, flip, color jitter, grayscale, blur, solarization.

`Views.draw` uses the generator; `Views.apply` is a pure function of fixed shapes that can be compiled and captured.
Geometry is done with small matrices: a bilinear resized crop (and flip) is ``rows @ image @ columns.T`` with two
non-zeros per row, and a blur is the same with Gaussian rows.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from complementary.augment.crop import luminance, per_image


class Draw(NamedTuple):
    """The parameters of one view, all [B]: crop box, color factors, and which images each part applies to."""

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
    grayscale: Tensor
    blur: Tensor
    sigma: Tensor
    solarize: Tensor


TRIES = 10  # draws of area and aspect ratio before the crop falls back to the center of the image
MAX_ASPECT = 4 / 3  # of a crop: width to height, or height to width
NUMBERS = 2 * TRIES + 12  # random numbers per image and view


@dataclass(frozen=True)
class Views:
    """The augmentation of a view. The defaults are those of SimSiam for CIFAR.

    Grayscale images get brightness and contrast only. The order of color jitter is fixed: brightness, contrast,
    saturation, hue.

    Attributes:
        min_scale: Smallest share of the area that a crop keeps.
        flip: Probability of a horizontal flip.
        jitter: Probability of color jitter.
        strength: Strength of brightness, contrast, saturation and hue jitter.
        grayscale: Probability of conversion to grayscale.
        blur: Probability of a Gaussian blur.
        solarize: Probability of solarization.
    """

    min_scale: float = 0.2
    flip: float = 0.5
    jitter: float = 0.8
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    grayscale: float = 0.2
    blur: float = 0.0
    solarize: float = 0.0

    def draw(self, count: int, size: tuple[int, int], device: torch.device, random: torch.Generator | None) -> Draw:
        """Draw the parameters of a view of ``count`` images of ``size`` (height, width)."""
        return self.read(torch.rand(NUMBERS, count, device=device, generator=random), size)

    def read(self, u: Tensor, size: tuple[int, int]) -> Draw:
        """Convert uniform random numbers to the parameters of a view.

        Args:
            u: Numbers between 0 and 1, [NUMBERS, B].
            size: Height and width of the images.
        """
        top, left, height, width = crop_boxes(u[: 2 * TRIES + 2], size, self.min_scale)
        u = u[2 * TRIES + 2 :]
        b, c, s, h = self.strength
        return Draw(
            top=top,
            left=left,
            height=height,
            width=width,
            flip=u[0] < self.flip,
            jitter=u[1] < self.jitter,
            brightness=1 + b * (2 * u[2] - 1),
            contrast=1 + c * (2 * u[3] - 1),
            saturation=1 + s * (2 * u[4] - 1),
            hue=h * (2 * u[5] - 1),
            grayscale=u[6] < self.grayscale,
            blur=u[7] < self.blur,
            sigma=0.1 + 1.9 * u[8],
            solarize=u[9] < self.solarize,
        )

    def apply(self, images: Tensor, draw: Draw) -> Tensor:
        """Images uint8 [B, C, H, W] -> a view, float32 [B, C, H, W] between 0 and 1."""
        x = images.float() / 255
        rows = resize_rows(draw.top, draw.height, images.shape[2])
        columns = resize_rows(draw.left, draw.width, images.shape[3])
        columns = torch.where(draw.flip[:, None, None], columns.flip(1), columns)
        x = rows[:, None] @ x @ columns[:, None].transpose(2, 3)
        x = _where(draw.jitter, self._jitter(x, draw), x)
        if x.shape[1] == 3 and self.grayscale > 0:
            x = _where(draw.grayscale, luminance(x).expand_as(x), x)
        if self.blur > 0:
            x = _where(draw.blur, gaussian_blur(x, draw.sigma), x)
        if self.solarize > 0:
            x = _where(draw.solarize, torch.where(x < 0.5, x, 1 - x), x)
        return x.clamp(0, 1)  # the weights sum to 1 up to rounding

    def _jitter(self, x: Tensor, draw: Draw) -> Tensor:
        x = (x * per_image(draw.brightness)).clamp(0, 1)
        mean = (luminance(x) if x.shape[1] == 3 else x).mean((1, 2, 3), keepdim=True)
        x = torch.lerp(mean.expand_as(x), x, per_image(draw.contrast)).clamp(0, 1)
        if x.shape[1] != 3:
            return x
        x = torch.lerp(luminance(x).expand_as(x), x, per_image(draw.saturation)).clamp(0, 1)
        return shift_hue(x, draw.hue)


def crop_boxes(u: Tensor, size: tuple[int, int], min_scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes of random resized crops, with the distribution of torchvision's ``RandomResizedCrop``.

    Area and aspect ratio are drawn together, up to `TRIES` times, until the box fits the image. If none fits, the box
    is the largest one at the center that has an allowed aspect ratio. All draws are made at once, so there is no
    data-dependent control flow.

    Args:
        u: Numbers between 0 and 1, [2 * TRIES + 2, B]: areas, aspect ratios, position from the top and the left.
        size: Height and width of the images.
        min_scale: Smallest share of the area.

    Returns:
        Top, left, height and width, in whole pixels, each [B].
    """
    area = size[0] * size[1] * (min_scale + (1 - min_scale) * u[:TRIES])  # [TRIES, B]
    aspect = torch.exp((2 * u[TRIES : 2 * TRIES] - 1) * math.log(MAX_ASPECT))
    heights, widths = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (heights >= 1) & (heights <= size[0]) & (widths >= 1) & (widths <= size[1])
    height = torch.full_like(u[0], min(size[0], round(size[1] * MAX_ASPECT)))
    width = torch.full_like(u[0], min(size[1], round(size[0] * MAX_ASPECT)))
    top, left = torch.floor((size[0] - height) / 2), torch.floor((size[1] - width) / 2)
    for i in reversed(range(TRIES)):  # so that the first box that fits is kept
        height, width = torch.where(fits[i], heights[i], height), torch.where(fits[i], widths[i], width)
    some = fits.any(0)
    top = torch.where(some, (u[2 * TRIES] * (size[0] - height + 1)).floor(), top)
    left = torch.where(some, (u[2 * TRIES + 1] * (size[1] - width + 1)).floor(), left)
    return top, left, height, width


def _where(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(per_image(chosen), yes, no)


def resize_rows(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Matrices of a bilinear resized crop along one axis (corners not aligned).

    Args:
        start: First pixel of the crop, [B].
        length: Length of the crop in pixels, [B].
        size: Pixels of the image and of the result.

    Returns:
        [B, size, size]; row i holds the weights of the source pixels of output pixel i.
    """
    place = torch.arange(size, device=start.device)
    center = (place + 0.5) * (length[:, None] / size) - 0.5  # inside the crop
    center = torch.minimum(center.clamp_min(0), length[:, None] - 1) + start[:, None]
    return (1 - (center[:, :, None] - place).abs()).clamp_min(0)


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with ``sigma`` [B] in pixels, renormalized at the border. [B, C, H, W] -> [B, C, H, W]."""
    rows, columns = (_gaussian_rows(sigma, size) for size in x.shape[2:])
    return rows[:, None] @ x @ columns[:, None].transpose(2, 3)


def _gaussian_rows(sigma: Tensor, size: int) -> Tensor:
    place = torch.arange(size, device=sigma.device, dtype=torch.float32)
    weight = torch.exp(-((place[:, None] - place) ** 2) / (2 * sigma[:, None, None] ** 2))
    return weight / weight.sum(2, keepdim=True)


def shift_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue of RGB images [B, 3, H, W] between 0 and 1 by ``turn`` [B], in fractions of the color circle."""
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
