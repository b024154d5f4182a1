"""The body of an encoder: a network without its last layer, and the features it gives."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import models
from complementary.augment import normalise
from complementary.feed import pieces
from complementary.models import Network
from complementary.rows import Rows


def body_for(shape: tuple[int, ...]) -> str:
    """The network that ``auto`` stands for, for images of ``shape`` [C, H, W]."""
    return "resnet18" if min(shape[1:]) >= 16 else "cnn"


def build_body(name: str, shape: tuple[int, ...], seed: int, max_pool: bool) -> tuple[Network, int]:
    """A network without its last layer -> (body, number of features)."""
    body = models.build(name, shape, 1, seed, max_pool)
    width = body.fc.in_features
    del body.fc
    return body, width


def describe(body: Network) -> dict[str, Any]:
    """What `build_body` must be told to make such a body again, besides the shape of images."""
    return {"body": body.kind, "max_pool": body.max_pool}


@torch.no_grad()
def features(
    body: Network,
    images: Tensor | Rows,
    mean: Tensor,
    std: Tensor,
    batch: int | None = None,
    tell: Callable[[int], None] = lambda done: None,
    mirror: bool = False,
) -> Tensor:
    """Unit feature vectors in evaluation mode, without augmentation: images uint8 [N, C, H, W] -> float32 [N, D].

    ``tell`` is called with the number of images done so far. ``mirror``: the mean of an image's vector and that of
    its mirror image.
    """
    body.eval()
    batch = batch or (2048 if mean.device.type == "cuda" else 256)  # on a CPU more would only take gigabytes
    parts = list[Tensor]()
    for part in pieces(images, mean.device, batch):
        seen = body.features(normalise(part, mean, std))
        if mirror:
            other = body.features(normalise(part.flip(-1), mean, std))
            seen = F.normalize(seen.float()) + F.normalize(other.float())
        parts.append(seen)
        tell(batch * len(parts))
    return F.normalize(torch.cat(parts).float())
