"""From resident uint8 images to augmented float batches, in one gather, one random draw per image."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Moves(NamedTuple):
    """How each picture is moved: down and right by so many pixels, int [B, 1], and whether mirrored, bool [B, 1]."""

    down: Tensor
    right: Tensor
    mirrored: Tensor


@dataclass(frozen=True)
class Augment:
    """Random crop with reflected padding, and mirror: weak augmentation as in the paper.

    ``padding``: how many pixels a crop may move in each direction (0: no crop). ``flip``: mirror half of
    the images.
    """

    padding: int = 4
    flip: bool = True

    def gather(self, images: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw and take: images uint8 [N, C, H, W], index int [B] -> augmented uint8 [B, C, H, W]."""
        return self.take(images, index, self.draw(len(index), index.device, generator))

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None) -> Moves:
        """The random numbers of a batch of ``count``."""
        down, right = (self._shift(count, device, generator) for _ in range(2))
        if not self.flip:
            return Moves(down, right, torch.zeros(count, 1, dtype=torch.bool, device=device))
        return Moves(down, right, torch.rand(count, 1, device=device, generator=generator) < 0.5)

    def _shift(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        if self.padding == 0:
            return torch.zeros(count, 1, dtype=torch.long, device=device)
        return torch.randint(-self.padding, self.padding + 1, (count, 1), device=device, generator=generator)

    def take(self, images: Tensor, index: Tensor, moves: Moves) -> Tensor:
        """Images uint8 [N, C, H, W], index int [B] -> augmented uint8 [B, C, H, W], channels last in memory.

        Crop, padding, mirror and batch selection are all row and column indices, so the bytes are read
        once; uint8 because a quarter of float32's bytes is moved; channels last because convolutions want it.
        """
        height, width = images.shape[2:]
        rows, columns = reflected(height, moves.down), reflected(width, moves.right)
        if self.flip:
            columns = torch.where(moves.mirrored, columns.flip(1), columns)
        channels = torch.arange(images.shape[1], device=index.device)
        taken = images[index[:, None, None, None], channels, rows[:, :, None, None], columns[:, None, :, None]]
        return taken.permute(0, 3, 1, 2)


def reflected(size: int, shift: Tensor) -> Tensor:
    """The source position of every pixel along one axis, reflected at the border. shift int [B, 1] -> [B, size]."""
    place = torch.arange(size, device=shift.device) + shift
    return size - 1 - (size - 1 - place.abs()).abs()


def default_padding(height: int) -> int:
    """An eighth of the height: 4 for 28 and 32 pixels as in the paper; none below 16, where a pixel is much."""
    return round(height / 8) if height >= 16 else 0


def normalise(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images uint8 [B, C, H, W] with mean and std [C] on a 0–1 scale, or vectors [B, D] with [D] -> float32."""
    if inputs.ndim == 2:
        return (inputs.float() - mean) / std
    return (inputs.float() - 255 * mean[:, None, None]) / (255 * std[:, None, None])
