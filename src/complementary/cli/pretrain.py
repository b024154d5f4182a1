"""``cll pretrain``."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from complementary.cli.options import RunOptions, is_given, parse_run
from complementary.config import PretrainConfig
from complementary.reports.terminal import training_progress

if TYPE_CHECKING:  # imports torch
    from complementary.data import Dataset


@dataclass(frozen=True)
class Pretrain(RunOptions, PretrainConfig):
    """Pretrain an encoder on images, without any label: SimSiam, BYOL or MoCo v3.

    Example: cll pretrain --data cifar10 --encoder simsiam --epochs 800 --out runs/simsiam
    """

    show_views: Path | None = None
    """Only draw eight images and two augmented views of each, to this PNG file."""


def main(arguments: list[str]) -> None:
    """Run ``cll pretrain``."""
    options, config = parse_run(Pretrain, PretrainConfig, arguments, "cll pretrain")
    from complementary import data, files
    from complementary.data.selection import fit_batch
    from complementary.encoders.pretrain import pretrain
    from complementary.engine.distributed import join_processes

    if options.show_views is not None:
        files.atomic_write(options.show_views, _draw_views(config, data.load(config.data)))
        print(f"Eight images and two views of each: {options.show_views}")
        return
    with join_processes(options.device) as processes:
        dataset = None
        if not is_given("batch", options, arguments):
            dataset = data.load(config.data)
            config = fit_batch(config, dataset, processes.world_size)
        out = options.folder(config.data, config.encoder, config.seed)
        shown = {"loss": "loss", "gauge": "gauge", "oracle_knn": "kNN (oracle)"}
        with training_progress(shown) if processes.is_main else nullcontext() as progress:
            result = pretrain(config, out, progress=progress, dataset=dataset, **options.run_arguments(processes))
    if processes.is_main:
        knn = "" if result["oracle_knn"] is None else f", kNN {100 * result['oracle_knn']:.2f} % (oracle)"
        print(f"loss {result['loss_last']:.4f}, collapse gauge {result['gauge_last']:.2f} (healthy: near 1){knn}")
        print(f"{result['views_per_second']:,.0f} views/s on {result['device']}")
        print(f"To cluster with this encoder: cll cluster --data {config.data} --encoder run:{out}")


def _draw_views(config: PretrainConfig, dataset: "Dataset", count: int = 8) -> bytes:
    """Draw a PNG: images in the first row, two views of each below."""
    import torch

    from complementary.data.selection import Subset
    from complementary.encoders.pretrain import check_images, views_for
    from complementary.reports import figures
    from complementary.rng import generator

    check_images(dataset, 1, len(dataset.train))
    chosen = Subset.of(config).index(dataset)
    images = dataset.train.inputs[chosen[torch.linspace(0, len(chosen) - 1, count).long()]]
    views, random = views_for(config, dataset), generator(config.seed, "show")
    size = (images.shape[2], images.shape[3])
    drawn = [views.apply(images, views.draw(count, size, torch.device("cpu"), random)) for _ in range(2)]
    figure, axes = figures.new_figure(1.1 * count, 3.6, rows=3, columns=count)
    for row, stack in enumerate([images.float() / 255, *drawn]):
        for axis, image in zip(axes[row], stack, strict=True):
            figures.show_image(axis, image)
    return figures.png(figure)
