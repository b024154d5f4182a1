"""``cll demo``: the whole method on 1,797 small digits, in about a minute on two cores, no download.

Three stages, as in the paper: SimSiam learns from the images alone (once), k-means groups its features (for each
seed), and a classifier is trained with each way of mixing.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from complementary import data, oracle
from complementary.augment.crop import normalise
from complementary.clusters.features import stage
from complementary.config import Config, PretrainConfig
from complementary.engine.backend import device_name, versions
from complementary.engine.loop import TrainingLoop
from complementary.engine.run_folder import loop
from complementary.files import atomic_write
from complementary.reports import figures
from complementary.rng import generator
from complementary.training.run import start, summarise
from complementary.training.task import build_mixer, prepare, training_truth

MIXES = ("none", "mixup", "icm", "micm")
HEADER = ["mixing", "accuracy, last epoch", "accuracy, chosen epoch", "noise ratio", "seconds"]


@dataclass(frozen=True)
class Demo:
    """See it work: handwritten digits, each with one label that says which digit it is *not*.

    Trains a small network without mixing, with Mixup, and with the paper's ICM and MICM, and writes
    one page with curves and pictures. Shows what comes out, whoever wins.
    """

    out: Path = Path("runs/demo")
    """Folder for report.html and results.json; those two files are replaced."""
    seeds: int = 3
    """Runs per mixer; each has its own labels, clusters and initial weights."""
    epochs: int = 150
    """Passes over the training images."""
    clusters: int = 50
    """Number of clusters (k-means)."""
    pretrain_epochs: int = 60
    """Passes of SimSiam over the images, before all else; kept in the cache for the next time."""


def main(arguments: list[str]) -> None:
    """The command ``cll demo``."""
    options = tyro.cli(Demo, args=arguments, prog="cll demo")
    console = Console()
    console.print(
        "1,797 handwritten digits of 8 x 8 pixels. Each training image carries one label: a digit that it is not.\n"
        "SimSiam learns what looks alike, from the images alone; ICM and MICM mix inside clusters of that.\n"
        f"A small network learns from the labels: {len(MIXES)} mixers, {options.seeds} seeds, {options.epochs} epochs."
    )
    started = time.perf_counter()
    with one_thread():
        results = run_all(options)
    console.print(as_table(results))
    console.print(encoder_sentence(results))
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write(options.out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    encoder = next(r["config"]["cluster"]["encoder"] for r in results)
    atomic_write(options.out / "report.html", page(results, setting(options, encoder, "icm", 0)).encode())
    seconds = time.perf_counter() - started
    console.print(
        f"{seconds:.0f} s in all. Curves and pictures of mixed digits: {options.out / 'report.html'}", soft_wrap=True
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For networks as small as these a second thread gains nothing, and on a busy machine it loses minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pretraining(options: Demo) -> PretrainConfig:
    """SimSiam for images of 8 x 8 pixels: gentler crops and a higher learning rate than for photographs."""
    return PretrainConfig(epochs=options.pretrain_epochs, batch=256, lr=0.2, min_scale=0.6)


def setting(options: Demo, encoder: str, name: str, seed: int) -> Config:
    """The configuration of one of the demo's runs."""
    chosen: dict[str, Any] = {"clusters": options.clusters, "encoder": encoder, "mix": name}
    return Config.of(data="digits", epochs=options.epochs, batch=128, seed=seed, **chosen)


def run_all(options: Demo) -> list[dict[str, Any]]:
    """Pretrain once, then train every mixer with every seed -> one result each, with its history."""
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    results = []
    with Progress(*columns) as bar:
        first = bar.add_task("SimSiam", total=options.pretrain_epochs)
        advance = _each_epoch(lambda: bar.update(first, advance=1))
        encoder = f"run:{stage(pretraining(options), data.load('digits'), 'cpu', advance)}"
        bar.update(first, completed=options.pretrain_epochs)
        task = bar.add_task("", total=len(MIXES) * options.seeds * options.epochs)
        for seed in range(options.seeds):
            for name in MIXES:
                bar.update(task, description=f"{name}, seed {seed}")
                advance = _each_epoch(lambda: bar.update(task, advance=1))
                results.append(_run_one(setting(options, encoder, name, seed), advance))
    return results


def _each_epoch(advance: Callable[[], None]) -> Callable[[TrainingLoop], None]:
    def progress(job: TrainingLoop) -> None:
        if job.step_in_epoch == 0:
            advance()

    return progress


def _run_one(config: Config, progress: Callable[[TrainingLoop], None]) -> dict[str, Any]:
    started = time.perf_counter()
    trainer = start(config, device="cpu")
    loop(trainer, progress=progress)
    result = {"mix": config.mixing.mix, "seconds": time.perf_counter() - started, "history": trainer.history}
    if config.mixing.mix == "icm":  # what the encoder is worth: the same with clusters of raw pixels
        result["noise_ratio_pixels"] = prepare(config.with_(encoder="pixels")).facts["oracle_noise_ratio"]
    return result | summarise(trainer)


def encoder_sentence(results: list[dict[str, Any]]) -> str:
    """What SimSiam is worth here, against no encoder at all."""
    found = [r for r in results if r["mix"] == "icm"]
    learnt, raw = (_spread([100 * r[key] for r in found]) for key in ("noise_ratio", "noise_ratio_pixels"))
    return f"Noisy mixes of ICM (oracle): {learnt} with clusters by SimSiam; with clusters of raw pixels {raw}."


def rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """The table's cells: mean ± standard deviation over seeds, in percent."""
    table = []
    for name in MIXES:
        runs = [r for r in results if r["mix"] == name]
        cells = [_spread([100 * r[key] for r in runs]) for key in ("accuracy_last", "accuracy_selected", "noise_ratio")]
        table.append([name, *cells, f"{statistics.fmean(r['seconds'] for r in runs):.1f}"])
    return table


def _spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation} %"


def as_table(results: list[dict[str, Any]]) -> Table:
    """The table on the screen."""
    table = Table(title=f"Test accuracy on 360 digits, mean ± std over {len(results) // len(MIXES)} seeds")
    for place, title in enumerate(HEADER):
        table.add_column(title, justify="right" if place else "left")
    for row in rows(results):
        table.add_row(*row)
    return table


# --- the page -------------------------------------------------------------------------------------


def page(results: list[dict[str, Any]], config: Config) -> str:
    """The whole report as HTML."""
    histories = {name: [r["history"] for r in results if r["mix"] == name] for name in MIXES}
    noise = {name: [r["noise_ratio"] for r in results if r["mix"] == name] for name in MIXES[1:]}
    titles = {"accuracy": "test accuracy", "scel": "SCEL on held-out labels (lower is better)"}
    lines = [
        "<h1>Learning what a digit is from what it is not</h1>",
        "<p>Each training image of scikit-learn's handwritten digits carries one <em>complementary</em> label, drawn "
        "uniformly: a digit that it is <b>not</b>. A small network (one hidden layer of 500 units) sees nothing else. "
        "ICM and MICM mix inside clusters of the features of SimSiam, which saw the images and no label at all. "
        "The true labels are used only to "
        "measure: accuracy on 360 test images, and the noise ratio (an oracle figure).</p>",
        figures.table(HEADER, rows(results)),
        '<p class="small">Mean ± standard deviation over seeds; each seed has its own labels, clusters and initial '
        "weights. <b>Chosen epoch</b>: the one with the lowest SCEL on held-out <em>complementary</em> labels, so no "
        "true label took part in the choice.</p>",
        "<h2>Learning curves</h2>",
        figures.picture(figures.curves(histories, titles), "Learning curves of the four ways of mixing"),
        "<h2>How often mixing tells a lie</h2>",
        "<p>Mixing two images also mixes what they are not. If one is labelled “not 3” and the other <em>is</em> a 3, "
        "the mix is told something false. Mixing only inside clusters of similar images makes this rare.</p>",
        figures.picture(figures.bars(noise, "noisy mixes, % (oracle)"), "Noise ratio of each mixer"),
        f"<p>{encoder_sentence(results)} Digits of 8 × 8 pixels are so simple that raw pixels already tell them apart; "
        "photographs are not.</p>",
        "<h2>Real mixed digits</h2>",
        "<p>From one training batch: an image, its partners, the mix the network sees, and what it is told about the "
        "mix. Red: the label is false for one of the mixed images.</p>",
        *[figures.picture(mixed_digits(config, name), f"Digits mixed by {name}") for name in MIXES[1:]],
        f'<p class="small">Made by <code>cll demo</code> on {device_name(torch.device("cpu"))}, '
        + ", ".join(f"{k} {v}" for k, v in versions().items())
        + ". All figures of this page are in results.json beside it.</p>",
    ]
    return figures.page("cll demo", lines)


def mixed_digits(config: Config, name: str, count: int = 8) -> Any:
    """A figure of mixes as the training step makes them: member images, the mix, and its soft label."""
    task = prepare(config.with_(mix=name))
    mixer = build_mixer(config.with_(mix=name), task, None)
    assert mixer is not None  # "none" is not drawn
    x = normalise(task.inputs, task.mean, task.std)[: config.training.batch]
    excluded = task.excluded[: len(x)].float()
    group = None if task.group is None else task.group[: len(x)]
    # the same address twice: first to see which partners are drawn, then to mix with exactly those
    chosen, found = mixer.choose(excluded, group, generator=generator(config.seed, "picture"))
    mixed, soft = mixer(x, excluded, group, generator=generator(config.seed, "picture"))
    members = torch.cat([torch.arange(len(x))[:, None], chosen], 1)
    shown = found.nonzero()[:count, 0]
    lies = oracle.is_noisy(members, training_truth(config), task.excluded)
    return _draw(name, [*x[members].unbind(1), mixed], soft, lies, shown)


def _draw(name: str, images: list[Tensor], soft: Tensor, lies: Tensor, shown: Tensor) -> Any:
    """images: per row of the figure [B, 1, H, W], the mix last; soft [B, K]; lies bool [B]; shown int: columns."""
    depth = len(images)
    figure, axes = figures.new_figure(9.5, 1.05 * depth + 0.7, rows=depth, columns=len(shown))
    for column, i in enumerate(shown.tolist()):
        for axis, stack in zip(axes[:, column], images, strict=True):
            axis.imshow(stack[i, 0], cmap="gray_r", interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        label = "\n".join(
            f"not {k} ({soft[i, k]:.2f})" for k in soft[i].argsort(descending=True).tolist() if soft[i, k] > 0.005
        )
        axes[-1][column].set_xlabel(label, fontsize=8, labelpad=3, color="#c0392b" if lies[i] else figures.INK)
    for row, title in enumerate([*["image", "partner", "partner"][: depth - 1], "mix"]):
        axes[row][0].text(-0.35, 0.5, title, transform=axes[row][0].transAxes, ha="right", va="center", fontsize=9)
    figure.suptitle(name, x=0.01, ha="left", fontsize=11, color=figures.INK)
    return figure
