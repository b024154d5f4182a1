"""``cll pretrain``."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from complementary import data
from complementary.cli.options import RunOptions, parse_run
from complementary.config import PretrainConfig
from complementary.data import Dataset
from complementary.encoders.pretrain import check_images, chosen_images, pretrain, views_for
from complementary.engine.distributed import joined
from complementary.files import atomic_write
from complementary.reports import figures
from complementary.reports.terminal import training_progress
from complementary.rng import generator


@dataclass(frozen=True)
class Pretrain(RunOptions, PretrainConfig):
    """Pretrain an encoder on images alone, without any label: SimSiam, BYOL or MoCo v3.

    Example: cll pretrain --data cifar10 --encoder simsiam --epochs 800 --out runs/simsiam
    """

    show_views: Path | None = None
    """Draw two views each of eight images to this PNG file, and stop."""


def main(arguments: list[str]) -> None:
    """The command ``cll pretrain``."""
    options, config = parse_run(Pretrain, PretrainConfig, arguments, "cll pretrain")
    console = Console()
    if options.show_views is not None:
        atomic_write(options.show_views, draw_views(config, data.load(config.data)))
        console.print(f"Two views each of eight images: {options.show_views}", soft_wrap=True)
        return
    with joined("cll pretrain", options.device) as processes:
        out = options.folder(config.data, config.encoder, config.seed)
        shown = {"loss": "loss", "gauge": "gauge", "oracle_knn": "kNN (oracle)"}
        with training_progress(shown) if processes.is_main else nullcontext() as progress:
            result = pretrain(config, out, progress=progress, **options.run_arguments(processes))
    if not processes.is_main:
        return
    knn = "" if result["oracle_knn"] is None else f", kNN {100 * result['oracle_knn']:.2f} % (oracle)"
    console.print(f"loss {result['loss_last']:.4f}, collapse gauge {result['gauge_last']:.2f} (healthy: near 1){knn}")
    console.print(f"{result['views_per_second']:,.0f} views/s on {result['device']}")
    console.print(f"cll cluster --data {config.data} --encoder run:{out} clusters by it.", soft_wrap=True)


def draw_views(config: PretrainConfig, dataset: Dataset, count: int = 8) -> bytes:
    """A PNG: images in the first row, two views of each below."""
    check_images(dataset, 1, len(dataset.train))
    chosen = chosen_images(config, dataset)
    images = dataset.train.inputs[chosen[torch.linspace(0, len(chosen) - 1, count).long()]]
    views, random = views_for(config, dataset), generator(config.seed, "show")
    size = (images.shape[2], images.shape[3])
    seen = [views.apply(images, views.draw(count, size, torch.device("cpu"), random)) for _ in range(2)]
    figure, axes = figures.new_figure(1.1 * count, 3.6, rows=3, columns=count)
    for row, stack in enumerate([images.float() / 255, *seen]):
        for axis, image in zip(axes[row], stack, strict=True):
            figures.show_image(axis, image)
    return figures.png(figure)
