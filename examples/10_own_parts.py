"""Your own loss, mixer, encoder and dataset, without a change to the package

In Python, pass the function or class. On the command line, name it as module:name. If this file is called
own_parts.py: `PYTHONPATH=. cll train --data own_parts:stripes --loss own_parts:squared --mix own_parts:SameSide`.
"""

from typing import ClassVar

import torch
from torch import Tensor

from complementary import run
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.mixing import ICM


def squared(logits: Tensor, excluded: Tensor) -> Tensor:
    """A loss: the squared probability of excluded classes, [B, K], [B, K] -> [B]."""
    return (excluded * logits.float().softmax(1).square()).sum(1)


class SameSide(ICM):
    """A mixer: as ICM, but in the clusters of an encoder of ours; ``within`` says that it needs clusters."""

    within: ClassVar[str] = "clusters"


def edges(images: Tensor) -> Tensor:
    """An encoder: differences between neighboring pixels, [N, 1, 8, 8] -> [N, 112]."""
    x = images.float()
    return torch.cat([x.diff(dim=2).flatten(1), x.diff(dim=3).flatten(1)], 1)


def stripes() -> Dataset:
    """A dataset: noisy 8 x 8 images with a bright row; the class is the row divided by 2."""
    source = torch.Generator().manual_seed(0)
    rows = torch.randint(8, (2500,), generator=source)
    images = torch.randint(0, 160, (2500, 1, 8, 8), generator=source)
    images[torch.arange(2500), 0, rows] += 60
    train, test = (Split(images[part].to(torch.uint8), rows[part] // 2) for part in (slice(2000), slice(2000, None)))
    return Dataset("stripes", train, test, ("top", "upper", "lower", "bottom"), (0.35,), (0.2,), flip=True)


if __name__ == "__main__":
    config = Config.of(data=stripes, loss=squared, mix=SameSide, encoder=edges, clusters=8, epochs=15, batch=128)
    print(f"{config.training.loss}: test accuracy {run(config, device='cpu')['accuracy_last']:.3f}")

# The configuration stores the names, so that the run can be repeated where the module can be imported. A package can
# register short names as entry points (see the guide on methods).
