"""Mean and standard deviation of inputs, read in pieces so that a memory map stays on the disk."""

import numpy as np
from numpy.typing import NDArray


def channel_moments(images: NDArray[np.generic]) -> tuple[list[float], list[float]]:
    """Images uint8 [N, C, H, W] -> mean and std of each channel on a 0-1 scale, exact (from histograms)."""
    channels = images.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    rows = max(1, 2**24 // max(1, images[:1].nbytes))
    for start in range(0, len(images), rows):
        piece = images[start : start + rows]
        for channel in range(channels):
            counts[channel] += np.bincount(piece[:, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    total = counts.sum(1)
    mean = counts @ values / total
    variance = np.maximum(counts @ values**2 / total - mean**2, 0)
    return _plain(mean), _plain(np.sqrt(variance))


def feature_moments(vectors: NDArray[np.generic]) -> tuple[list[float], list[float]]:
    """Vectors float32 [N, D] -> mean and std of each feature; a constant feature gets std 1."""
    values = vectors.astype(np.float64)
    std = values.std(0)
    return _plain(values.mean(0)), _plain(np.where(std > 0, std, 1.0))


def _plain(values: NDArray[np.float64]) -> list[float]:
    return [round(float(v), 6) for v in values]
