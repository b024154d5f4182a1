"""An encoder without gradient descent: spectral embedding of whitened patches, fitted in a minute on a CPU.

    image -> whitened patches -> similarity to a dictionary of patches -> linear map -> means over 3 x 3 cells

The linear map is what is learned. It finds the directions in which patches of one image agree and patches of different
images differ (a generalized eigenvalue problem), so that the mean over an image says what the image shows. This is the
sparse manifold transform (Chen, Paiton and Olshausen 2018; Chen et al. 2022) with the patches of an image as neighbors,
on the whitened patches of Coates and Ng (2011). Everything is one small network, so it can be stored and exported.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary.augment.crop import normalize
from complementary.data.rows import Rows
from complementary.errors import UserError
from complementary.networks import Network
from complementary.rng import generator

KIND, VERSION = "patches", 1  # a change of what is fitted must change the version, which cached features depend on
PATCH, WORDS, FEATURES, GRID = 8, 1024, 128, 3  # side of a patch, size of the dictionary, features of a cell, cells
THRESHOLD = 0.05  # of the cosine similarity to a word
SAMPLED, IMAGES = 100_000, 1500  # patches that the whitening, and images that the linear map is fitted on
WHITENING, RIDGE = 0.01, 1e-3  # added to the eigenvalues of both problems, relative to their mean
BLOCK = 32  # images at a time
SECONDS = 0.01 / 25**2  # CPU time per patch, on an AMD EPYC


class PatchNetwork(Network):
    """The encoder as a network; without a last layer.

    Args:
        shape: Shape of an image, [C, H, W].
        settings: ``patch``, ``words``, ``features`` and ``reduce``, as `settings_for` returns them.

    Attributes:
        whiten: Whitens a patch: a convolution.
        words: The dictionary: a convolution of 1 x 1.
        project: The linear map: a convolution of 1 x 1.
    """

    kind = KIND
    largest_batch = 128  # similarities of 128 images of 32 pixels have 330 MB

    def __init__(self, shape: tuple[int, ...], settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        size = shape[0] * settings["patch"] ** 2
        self.whiten = nn.Conv2d(shape[0], size, settings["patch"])
        self.words = nn.Conv2d(size, settings["words"], 1)
        self.project = nn.Conv2d(settings["words"], settings["features"], 1)
        self.requires_grad_(False)

    def codes(self, x: Tensor) -> Tensor:
        """Normalized images [B, C, H, W] -> similarity of each patch to each word [B, words, h, w]."""
        if self.settings["reduce"] > 1:
            x = F.avg_pool2d(x, self.settings["reduce"])
        return F.relu(self.words(F.normalize(self.whiten(x))))

    def features(self, x: Tensor) -> Tensor:
        """Normalized images [B, C, H, W] -> features [B, D * cells]: the means over a grid of cells."""
        patches = F.normalize(self.project(self.codes(x)))
        rows, columns = (_cells(side) for side in patches.shape[2:])
        return torch.cat([patches[:, :, row, column].mean((2, 3)) for row in rows for column in columns], 1)


def _cells(side: int) -> list[slice]:
    """Divide positions 0 .. side - 1 into up to `GRID` parts, which overlap by one if they would not be equal."""
    count = min(GRID, side)
    return [slice(i * side // count, -(-(i + 1) * side // count)) for i in range(count)]


def settings_for(shape: tuple[int, ...]) -> dict[str, Any]:
    """What the network needs to know besides the shape [C, H, W] of the images."""
    reduce = max(1, min(shape[1:]) // 32)
    patch = min(PATCH, min(shape[1:]) // reduce // 2)
    if patch < 2:
        raise UserError(
            f"The images have {shape[1]} x {shape[2]} pixels, too few for patches; use pixels as encoder.", "encoder"
        )
    return {"patch": patch, "words": WORDS, "features": FEATURES, "reduce": reduce}


def expected_seconds(count: int, shape: tuple[int, ...]) -> float:
    """CPU seconds that fitting the encoder and computing the features of ``count`` images [C, H, W] take, roughly."""
    settings = settings_for(shape)
    positions: int = math.prod(side // settings["reduce"] - settings["patch"] + 1 for side in shape[1:])
    return SECONDS * positions * (count + 1.5 * min(count, IMAGES))


@torch.no_grad()
def fit_patches(images: Rows, mean: Tensor, std: Tensor, seed: int) -> PatchNetwork:
    """Fit the encoder to images, without any label. The same images and seed give the same encoder.

    Args:
        images: uint8 [N, C, H, W].
        mean: Mean of each channel on a 0 to 1 scale, [C]; it decides the device.
        std: Standard deviation of each channel, [C].
        seed: Determines which patches and images are used.
    """
    network = PatchNetwork(tuple(images.shape[1:]), settings_for(tuple(images.shape[1:])))
    chosen = chosen_images(images, seed)
    patches = _sample_patches(network, chosen, mean, std, seed)
    _fit_whitening(network, patches)
    _fit_projection(network.to(mean.device), chosen, mean, std)
    return network.cpu()


def chosen_images(images: Rows, seed: int) -> Rows:
    """The images that `fit_patches` uses."""
    order = torch.randperm(len(images), generator=generator(seed, "patches"))
    return images.take(order[:IMAGES].sort().values)


def _reduced(network: PatchNetwork, part: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    x, reduce = normalize(part.to(mean.device), mean, std), network.settings["reduce"]
    return F.avg_pool2d(x, reduce) if reduce > 1 else x


def _sample_patches(network: PatchNetwork, images: Rows, mean: Tensor, std: Tensor, seed: int) -> Tensor:
    """Random patches of the images, the same number of each, float32 [P, C * patch * patch] on the CPU."""
    source, side, parts = generator(seed, "patch positions"), network.settings["patch"], list[Tensor]()
    each = max(1, -(-SAMPLED // len(images)))
    for part in images.split(BLOCK):
        columns = F.unfold(_reduced(network, part, mean, std), side).cpu()  # [B, C * patch * patch, positions]
        place = torch.randint(columns.shape[2], (len(part), 1, each), generator=source)
        parts.append(columns.gather(2, place.expand(-1, columns.shape[1], -1)).transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)


def _fit_whitening(network: PatchNetwork, patches: Tensor) -> None:
    """Set the whitening of patches less their mean brightness, and the dictionary: the first whitened patches."""
    size = patches.shape[1]
    center = torch.eye(size, dtype=torch.float64) - 1 / size  # removes the mean brightness of a patch
    centered = patches.double() @ center
    middle = centered.mean(0)
    centered -= middle
    values, vectors = torch.linalg.eigh(centered.T @ centered / len(centered))
    scale = (values.clamp_min(0) + WHITENING * values.mean()).clamp_min(1e-12).rsqrt()
    whitening = vectors @ (scale[:, None] * vectors.T)
    network.whiten.weight.copy_((whitening @ center).view_as(network.whiten.weight))
    network.whiten.bias.copy_(-whitening @ middle)  # type: ignore[union-attr]
    words = network.settings["words"]
    few = torch.linspace(0, len(patches) - 1, words).round().long()
    network.words.weight.copy_(F.normalize(centered[few] @ whitening).view_as(network.words.weight))
    network.words.bias.fill_(-THRESHOLD)  # type: ignore[union-attr]


def _fit_projection(network: PatchNetwork, images: Rows, mean: Tensor, std: Tensor) -> None:
    """Set the linear map: the directions with the largest share of variance between images."""
    words, count, device = network.settings["words"], 0, mean.device
    square = torch.zeros(words, words, dtype=torch.float64, device=device)
    means = list[Tensor]()
    for part in images.split(BLOCK):
        codes = network.codes(normalize(part.to(device), mean, std)).movedim(1, -1).flatten(1, 2)
        means.append(codes.mean(1))
        codes = codes.flatten(0, 1)
        square += (codes.T @ codes).double()
        count += len(codes)
    mean_codes = torch.cat(means).double()
    middle = mean_codes.mean(0)
    total = square / count - middle[:, None] * middle
    between = (mean_codes - middle).T @ (mean_codes - middle) / len(mean_codes)
    total += RIDGE * total.diagonal().mean().clamp_min(1e-12) * torch.eye(words, dtype=total.dtype, device=device)
    root = torch.linalg.cholesky(total)
    half = torch.linalg.solve_triangular(root, between, upper=False)
    _, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.T, upper=False))
    best = torch.linalg.solve_triangular(root.T, vectors.flip(1)[:, : network.settings["features"]], upper=True).T
    best = best * best[torch.arange(len(best)), best.abs().argmax(1)].sign()[:, None]  # eigenvectors have no sign
    network.project.weight.copy_(best.view_as(network.project.weight))
    network.project.bias.copy_(-best @ middle)  # type: ignore[union-attr]
