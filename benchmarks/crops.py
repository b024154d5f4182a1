"""What the distribution of random resized crops does to an encoder: ``python -m benchmarks.crops``.

SimSiam is pretrained with crops as torchvision draws them, and with the milder ones that this package drew before: area
first, then an aspect ratio that fits. Loss, collapse gauge and kNN accuracy (an oracle metric) of both are stored. The
defaults take minutes on a CPU: 16 x 16 pixels, the small CNN. ``--size 32`` and a GPU come closer to a real encoder.
"""

import argparse
import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import data
from complementary.augment import views
from complementary.config import PretrainConfig
from complementary.data import Dataset, Split
from complementary.encoders.pretrain import Pretrainer

Boxes = Callable[[Tensor, tuple[int, int], float], tuple[Tensor, Tensor, Tensor, Tensor]]


def milder_boxes(u: Tensor, size: tuple[int, int], min_scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The boxes before: a uniform area, then an aspect ratio for which the box fits; arguments as `crop_boxes`."""
    area = min_scale + (1 - min_scale) * u[0]
    reach = (-area.log()).clamp_max(math.log(4 / 3))
    aspect = torch.exp((2 * u[1] - 1) * reach)
    height = (size[0] * (area / aspect).sqrt()).round().clamp(1, size[0])
    width = (size[1] * (area * aspect).sqrt()).round().clamp(1, size[1])
    return (u[2] * (size[0] - height + 1)).floor(), (u[3] * (size[1] - width + 1)).floor(), height, width


BOXES: dict[str, Boxes] = {"as torchvision": views.crop_boxes, "milder (before)": milder_boxes}


@contextlib.contextmanager
def drawing(boxes: Boxes) -> Iterator[None]:
    """Draw crops with ``boxes`` in the block."""
    own = views.crop_boxes
    views.crop_boxes = boxes  # type: ignore[assignment]
    try:
        yield
    finally:
        views.crop_boxes = own


def images(count: int, size: int) -> Dataset:
    """The first ``count`` training and 2,000 test images of CIFAR-10, ``size`` x ``size`` pixels."""
    cifar = data.load("cifar10")
    assert cifar.test is not None

    def part(split: Split, rows: int) -> Split:
        pixels = F.adaptive_avg_pool2d(split.inputs[:rows].float(), size).round().to(torch.uint8)
        return Split(pixels, None if split.truth is None else split.truth[:rows])

    return dataclasses.replace(cifar, train=part(cifar.train, count), test=part(cifar.test, 2000))


def measure(name: str, dataset: Dataset, config: PretrainConfig, device: str) -> dict[str, Any]:
    """Pretrain with the crops ``name``."""
    with drawing(BOXES[name]):
        trainer = Pretrainer(config, dataset, device)
        while not trainer.done:
            trainer.advance()
    last = trainer.history[-1]
    return {"crops": name, "seed": config.seed, **{key: last[key] for key in ("loss", "gauge", "oracle_knn")}}


def main(arguments: list[str] | None = None) -> None:
    """Run all seeds with both kinds of crops and append the results to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/encoders/crops.jsonl"))
    options = parser.parse_args(arguments)
    dataset = images(options.images, options.size)
    for seed in range(options.seeds):
        for name in BOXES:
            backbone: Any = "cnn" if options.size < 32 else "resnet18"
            config = PretrainConfig(
                data="cifar10",
                epochs=options.epochs,
                batch=256,
                backbone=backbone,
                seed=seed,
                probe_every=options.epochs,
            )
            row = {"images": options.images, "size": options.size, "epochs": options.epochs}
            line = json.dumps(row | measure(name, dataset, config, options.device))
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
