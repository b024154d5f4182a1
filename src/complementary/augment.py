"""From resident uint8 images to augmented float batches, in one gather, one random draw per image."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augment:
    """Random crop with reflected padding, and mirror: weak augmentation as in the paper.

    ``padding``: how many pixels a crop may move in each direction (0: no crop). ``flip``: mirror half of
    the images.
    """

    padding: int = 4
    flip: bool = True

    def gather(self, images: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images uint8 [N, C, H, W], index int [B] -> augmented uint8 [B, C, H, W].

        Crop, padding, mirror and batch selection are all row and column indices, so the bytes are read
        once; uint8 because a quarter of float32's bytes is moved.
        """
        height, width = images.shape[2:]
        rows = self._shifted(height, len(index), index, generator)
        columns = self._shifted(width, len(index), index, generator)
        if self.flip:
            mirrored = torch.rand(len(index), 1, device=index.device, generator=generator) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        channels = torch.arange(images.shape[1], device=index.device)
        return images[
            index[:, None, None, None],
            channels[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]

    def _shifted(self, size: int, count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """The source position of every pixel along one axis, reflected at the border. -> int [count, size]."""
        place = torch.arange(size, device=like.device).expand(count, size)
        if self.padding == 0:
            return place
        shift = torch.randint(-self.padding, self.padding + 1, (count, 1), device=like.device, generator=generator)
        return size - 1 - (size - 1 - (place + shift).abs()).abs()


def default_padding(height: int) -> int:
    """An eighth of the height: 4 for 28 and 32 pixels as in the paper; none below 16, where a pixel is much."""
    return round(height / 8) if height >= 16 else 0


def normalise(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images uint8 [B, C, H, W] with mean and std [C] on a 0–1 scale, or vectors [B, D] with [D] -> float32."""
    if inputs.ndim == 2:
        return (inputs.float() - mean) / std
    return (inputs.float() - 255 * mean[:, None, None]) / (255 * std[:, None, None])
