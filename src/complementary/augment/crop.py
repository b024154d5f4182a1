"""Random crop and horizontal flip, normalization, and what the other augmentations share."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class CropDraw(NamedTuple):
    """The random numbers of a batch: shifts in pixels, int [B, 1], and whether images are flipped, bool [B, 1]."""

    down: Tensor
    right: Tensor
    flipped: Tensor


@dataclass(frozen=True)
class CropAndFlip:
    """Random crop with reflected padding, and horizontal flip: the weak augmentation of the paper.

    Attributes:
        padding: Largest shift of a crop in each direction, in pixels; 0: no crop.
        flip: Whether to flip half of the images.
    """

    padding: int = 4
    flip: bool = True

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None) -> CropDraw:
        """Draw the random numbers of ``count`` images."""
        down, right = (self._shift(count, device, generator) for _ in range(2))
        if not self.flip:
            return CropDraw(down, right, torch.zeros(count, 1, dtype=torch.bool, device=device))
        return CropDraw(down, right, torch.rand(count, 1, device=device, generator=generator) < 0.5)

    def _shift(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        if self.padding == 0:
            return torch.zeros(count, 1, dtype=torch.long, device=device)
        return torch.randint(-self.padding, self.padding + 1, (count, 1), device=device, generator=generator)

    def apply(self, images: Tensor, index: Tensor, draw: CropDraw) -> Tensor:
        """Select images and augment them.

        Selection, crop, padding and flip are one gather, so the bytes are read once. The result is uint8, a quarter of
        the bytes of float32, and channels last, the layout that convolutions prefer.

        Args:
            images: uint8 [N, C, H, W].
            index: The images to select, int [B].
            draw: Random numbers of B images.

        Returns:
            uint8 [B, C, H, W], channels last in memory.
        """
        height, width = images.shape[2:]
        rows, columns = _reflect(height, draw.down), _reflect(width, draw.right)
        if self.flip:
            columns = torch.where(draw.flipped, columns.flip(1), columns)
        channels = torch.arange(images.shape[1], device=index.device)
        selected = images[index[:, None, None, None], channels, rows[:, :, None, None], columns[:, None, :, None]]
        return selected.permute(0, 3, 1, 2)


def _reflect(size: int, shift: Tensor) -> Tensor:
    """Source position of every pixel along one axis, reflected at the border. shift int [B, 1] -> [B, size]."""
    place = torch.arange(size, device=shift.device) + shift
    return size - 1 - (size - 1 - place.abs()).abs()


def default_padding(height: int) -> int:
    """An eighth of the height: 4 for 28 and 32 pixels, as in the paper; 0 below 16 pixels."""
    return round(height / 8) if height >= 16 else 0


def normalize(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Subtract the mean and divide by the standard deviation.

    Args:
        inputs: Images, uint8 [B, C, H, W], or vectors, [B, D].
        mean: [C] on a 0 to 1 scale, or [D].
        std: [C] on a 0 to 1 scale, or [D].

    Returns:
        float32, of the same shape as the inputs.
    """
    if inputs.ndim == 2:
        return (inputs.float() - mean) / std
    return (inputs.float() - 255 * mean[:, None, None]) / (255 * std[:, None, None])


def luminance(images: Tensor) -> Tensor:
    """ITU-R 601 luminance of RGB images.

    Args:
        images: uint8 or float [B, 3, H, W].

    Returns:
        [B, 1, H, W]: int32, rounded as in Pillow, for uint8 images, otherwise float.
    """
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    if images.dtype == torch.uint8:
        value: Tensor = (19595 * red.int() + 38470 * green.int() + 7471 * blue.int() + 0x8000) >> 16
        return value
    return 0.299 * red + 0.587 * green + 0.114 * blue


def per_image(value: Tensor) -> Tensor:
    """[B] -> [B, 1, 1, 1], to broadcast over images [B, C, H, W]."""
    return value[:, None, None, None]
