"""Your own loss, mixer, encoder and dataset, without a change to the package

In Python, pass the function or class. On the command line, name it as module:name. If this file is own_parts.py:
`PYTHONPATH=. cll train --data own_parts:stripes --loss own_parts:squared --mix own_parts:SameAnswer`.
"""

import torch
from torch import Tensor

from complementary import ICM, run
from complementary.config import Config
from complementary.data import Dataset, Split


def squared(logits: Tensor, excluded: Tensor) -> Tensor:
    """A loss: [B, K], [B, K] -> [B]."""
    return (excluded * logits.float().softmax(1).square()).sum(1)


class SameAnswer(ICM):
    """A mixer: partners have the same cluster and the same complementary label."""

    within = "clusters"  # what it needs

    def group_ids(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        return excluded.argmax(1) + excluded.shape[1] * super().group_ids(excluded, cluster)


def edges(images: Tensor) -> Tensor:
    """An encoder: [N, 1, 8, 8] -> [N, 112]."""
    return torch.cat([images.float().diff(dim=d).flatten(1) for d in (2, 3)], 1)


def stripes() -> Dataset:
    """A dataset: noisy images with a bright row; the class is the row divided by 2."""
    source = torch.Generator().manual_seed(0)
    rows, images = torch.randint(8, (2500,), generator=source), torch.randint(160, (2500, 1, 8, 8), generator=source)
    images[torch.arange(2500), 0, rows] += 60
    train, test = (Split(images[part].to(torch.uint8), rows[part] // 2) for part in (slice(2000), slice(2000, None)))
    return Dataset("stripes", train, test, ("top", "upper", "lower", "bottom"), (0.35,), (0.2,), flip=True)


if __name__ == "__main__":
    config = Config.of(data=stripes, loss=squared, mix=SameAnswer, encoder=edges, clusters=8, epochs=15, batch=128)
    print(f"{config.training.loss}: test accuracy {run(config, device='cpu')['accuracy_last']:.3f}")

# The configuration stores the names, so that the run can be repeated where the module can be imported. A package can
# register short names as entry points (see the guide on methods).
