"""Resizing inside an exported graph, pixel by pixel as Pillow does it when images are imported.

Pillow's filter is separable: each pass is a matrix product. Its weights are rounded to 22 bits and its sums to uint8,
so float64 reproduces them exactly.
"""

import math

import torch
from torch import Tensor, nn

LOBES = 3  # of the Lanczos filter
BITS = 22  # precision of Pillow's weights


class PillowResize(nn.Module):
    """Crop the center of images and resize them to squares, as `data.images.to_square` does.

    Args:
        size: Side of the result, in pixels.
        fit: ``crop`` scales the short side and crops the center; ``stretch`` ignores the aspect ratio.
    """

    def __init__(self, size: int, fit: str = "crop") -> None:
        super().__init__()
        self.size, self.fit = size, fit

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [B, C, H, W] -> uint8 [B, C, size, size]."""
        height, width = (_length(side, images.device) for side in images.shape[2:])
        crop = torch.minimum(height, width)
        box = (crop, crop) if self.fit == "crop" else (height, width)
        across = _weights(images.shape[3], self.size, width, box[1])
        down = _weights(images.shape[2], self.size, height, box[0])
        return _to_pixels(down @ _to_pixels(images.double() @ across.T)).to(torch.uint8)


def _length(side: int, device: torch.device) -> Tensor:
    """A side as a number of the graph, float64 []: it may be known only when the graph is run."""
    return torch.arange(side, dtype=torch.float64, device=device).amax(0) + 1


def _weights(side: int, size: int, length: Tensor, box: Tensor) -> Tensor:
    """Weights of the pixels of a row of ``side`` in a row of ``size``, which shows ``box`` pixels of its center.

    Args:
        side: Number of pixels.
        size: Number of pixels of the result.
        length: The same as ``side``, [].
        box: How many pixels are shown, [].

    Returns:
        float64 [size, side], multiples of 2^-22.
    """
    scale = box / size
    stretch = scale.clamp_min(1)  # a smaller result averages over more pixels
    centers = (length - box) / 2 + (torch.arange(size, dtype=torch.float64, device=length.device) + 0.5) * scale
    place = torch.arange(side, dtype=torch.float64, device=length.device) + 0.5
    x = (place - centers[:, None]) / stretch
    weights = torch.where(x.abs() < LOBES, _sinc(x) * _sinc(x / LOBES), torch.zeros_like(x))
    rounded: Tensor = (weights / weights.sum(1, keepdim=True) * 2**BITS).round() / 2**BITS
    return rounded


def _sinc(x: Tensor) -> Tensor:
    angle = math.pi * x
    return torch.where(x == 0, torch.ones_like(x), angle.sin() / torch.where(x == 0, torch.ones_like(x), angle))


def _to_pixels(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)
