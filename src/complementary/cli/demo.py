"""``cll demo``: the whole method on 1,797 small digits, in about a minute on two cores, without a download.

Three stages, as in the paper: SimSiam is pretrained on the images alone (once), k-means clusters its features (for each
seed), and a classifier is trained with each mixer.
"""

import json
import logging
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from complementary.cli.options import parse
from complementary.config import Config, PretrainConfig
from complementary.reports import figures
from complementary.reports.terminal import log_progress, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from complementary.engine.loop import TrainingLoop

logger = logging.getLogger(__name__)
MIXES = ("none", "mixup", "icm", "micm")
HEADER = ["mixing", "accuracy, last epoch", "accuracy, selected epoch", "noise ratio (oracle)", "seconds"]
RED = "#c0392b"


@dataclass(frozen=True)
class Demo:
    """See it work: handwritten digits, each with one label that says which digit it is *not*.

    Trains a small network without mixing, with Mixup, and with ICM and MICM of the paper, and writes one page with
    learning curves and mixed images.
    """

    out: Path = Path("runs/demo")
    """Folder for report.html and results.json; existing ones are replaced."""
    seeds: int = 3
    """Runs per mixer; each has its own labels, clusters and initial weights."""
    epochs: int = 150
    """Passes over the training images."""
    clusters: int = 50
    """Number of clusters (k-means)."""
    pretrain_epochs: int = 60
    """Passes of SimSiam over the images. The encoder is cached."""


def main(arguments: list[str]) -> None:
    """Run ``cll demo``."""
    options = parse(Demo, arguments, "cll demo")
    print(
        "1,797 handwritten digits of 8 x 8 pixels. Each training image has one label: a digit that it is not.\n"
        "SimSiam learns from the images alone which ones look alike. ICM and MICM mix within its clusters.\n"
        f"A small network learns from the labels: {len(MIXES)} mixers, {options.seeds} seeds, {options.epochs} epochs."
    )
    from complementary.engine.backend import one_thread
    from complementary.files import atomic_write

    started = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    with one_thread():
        encoder, results = _run_all(options)
        atomic_write(options.out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        page = _html_page(results, _run_config(options, encoder, "icm", 0))
    atomic_write(options.out / "report.html", page.encode())
    print_table(HEADER, table_rows(results), f"\nTest accuracy on 360 digits, mean ± std over {options.seeds} seeds\n")
    print(f"\n{_encoder_text(results)}")
    seconds = time.perf_counter() - started
    print(f"{seconds:.0f} s in total. Learning curves and mixed digits: {options.out / 'report.html'}")


# --- runs ---------------------------------------------------------------------------------------------------------


def _run_config(options: Demo, encoder: str, mix: str, seed: int) -> Config:
    """The configuration of one run."""
    chosen: dict[str, Any] = {"clusters": options.clusters, "encoder": encoder, "mix": mix}
    return Config.of(data="digits", epochs=options.epochs, batch=128, seed=seed, **chosen)


def _run_all(options: Demo) -> tuple[str, list[dict[str, Any]]]:
    """Pretrain once, then train with every mixer and seed.

    Returns:
        The option ``encoder`` of the runs, and their results, each with the history of its metrics.
    """
    encoder = f"run:{_pretrain(options)}"
    total = len(MIXES) * options.seeds * options.epochs
    results: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for mix in MIXES:
            results.append(_run_one(_run_config(options, encoder, mix, seed), len(results) * options.epochs, total))
    return encoder, results


def _pretrain(options: Demo) -> Path:
    """The folder of the encoder. Images of 8 x 8 pixels need gentler crops and a higher rate than photographs."""
    from complementary import data
    from complementary.clusters.features import cached_encoder

    def progress(loop: "TrainingLoop") -> None:
        log_progress(logger, "SimSiam, epochs", loop.epoch, options.pretrain_epochs)

    config = PretrainConfig(epochs=options.pretrain_epochs, batch=256, lr=0.2, min_scale=0.6)
    return cached_encoder(config, data.load("digits"), "cpu", progress)


def _run_one(config: Config, epochs_before: int, total: int) -> dict[str, Any]:
    """Train once; ``epochs_before`` of ``total`` epochs of the demo are done."""
    from complementary.training.run import run
    from complementary.training.task import build_task

    history: list[dict[str, Any]] = []

    def progress(loop: "TrainingLoop") -> None:
        history[:] = loop.history
        log_progress(logger, "classifiers, epochs", epochs_before + loop.epoch, total)

    started = time.perf_counter()
    result = run(config, device="cpu", progress=progress)
    seconds = time.perf_counter() - started
    result = {"mix": config.mixing.mix, "seconds": seconds, "history": history} | result
    if config.mixing.mix == "icm":  # for comparison: the same with clusters of raw pixels
        result["oracle_noise_ratio_pixels"] = build_task(config.with_(encoder="pixels")).data_summary[
            "oracle_noise_ratio"
        ]
    return result


# --- the report ---------------------------------------------------------------------------------------------------


def table_rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of the table: mean ± standard deviation over seeds, in percent."""
    table = []
    for mix in MIXES:
        runs = [r for r in results if r["mix"] == mix]
        keys = ("accuracy_last", "accuracy_selected", "oracle_noise_ratio")
        cells = [_spread([100 * r[key] for r in runs]) for key in keys]
        table.append([mix, *cells, f"{statistics.fmean(r['seconds'] for r in runs):.1f}"])
    return table


def _spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation} %"


def _encoder_text(results: list[dict[str, Any]]) -> str:
    """What the encoder contributes, compared with raw pixels."""
    runs = [r for r in results if r["mix"] == "icm"]
    keys = ("oracle_noise_ratio", "oracle_noise_ratio_pixels")
    encoder, pixels = (_spread([100 * r[key] for r in runs]) for key in keys)
    return (
        f"Noise ratio of ICM (oracle): {encoder} with clusters of SimSiam features, {pixels} with clusters of pixels."
    )


def _html_page(results: list[dict[str, Any]], config: Config) -> str:
    """The report as one HTML page. ``config``: the run whose first batch is shown mixed."""
    import torch

    from complementary.engine.backend import device_name, versions

    histories = {mix: [r["history"] for r in results if r["mix"] == mix] for mix in MIXES}
    noise = {mix: [r["oracle_noise_ratio"] for r in results if r["mix"] == mix] for mix in MIXES[1:]}
    titles = {"accuracy": "test accuracy", "scel": "SCEL on held-out labels (lower is better)"}
    parts = [
        "<h1>Learning what a digit is from what it is not</h1>",
        "<p>Each training image of scikit-learn's handwritten digits has one <em>complementary</em> label, drawn "
        "uniformly: a digit that it is <b>not</b>. A small network (one hidden layer of 500 units) is trained on these "
        "labels only. ICM and MICM mix within clusters of SimSiam features; SimSiam was pretrained on the images "
        "without any label. True labels are used only for evaluation: the accuracy on 360 test images and the noise "
        "ratio (oracle).</p>",
        figures.table(HEADER, table_rows(results)),
        '<p class="small">Mean ± standard deviation over seeds; each seed has its own labels, clusters and initial '
        "weights. <b>Selected epoch</b>: the one with the lowest SCEL on held-out <em>complementary</em> labels. No "
        "true label is used for the selection.</p>",
        "<h2>Learning curves</h2>",
        figures.image_tag(figures.curves(histories, titles), "Learning curves of the four mixers"),
        "<h2>How often mixing produces a wrong label</h2>",
        "<p>Mixing two images also mixes their labels. If one is labeled “not 3” and the other <em>is</em> a 3, the "
        "mix has a wrong label. This is rare if images are only mixed within clusters of similar ones.</p>",
        figures.image_tag(figures.bars(noise, "mixes with a wrong label, % (oracle)"), "Noise ratio of each mixer"),
        f"<p>{_encoder_text(results)} For digits of 8 × 8 pixels the raw pixels are already good features. For "
        "photographs they are not.</p>",
        "<h2>Mixed digits</h2>",
        "<p>From one training batch: an image, its partners, the mix that the network is trained on, and the label of "
        "the mix. Red: the label is wrong for one of the mixed images.</p>",
        *[figures.image_tag(_draw_mixes(config, mix), f"Digits mixed by {mix}") for mix in MIXES[1:]],
        f'<p class="small">Made by <code>cll demo</code> on {device_name(torch.device("cpu"))}, '
        + ", ".join(f"{name} {version}" for name, version in versions().items())
        + ". The numbers of this page are in results.json in the same folder.</p>",
    ]
    return figures.page("cll demo", parts)


def _draw_mixes(config: Config, mix: str, count: int = 8) -> Any:
    """A figure of mixes as in a training step: the images, the mix and its label."""
    import torch

    from complementary import oracle
    from complementary.augment.crop import normalize
    from complementary.rng import generator
    from complementary.training.task import build_mixer, build_task, training_truth

    task = build_task(config.with_(mix=mix))
    mixer = build_mixer(config.with_(mix=mix), task)
    assert mixer is not None  # "none" is not drawn
    x = normalize(task.inputs, task.mean, task.std)[: config.training.batch]
    excluded = task.excluded[: len(x)].float()
    cluster = None if task.cluster is None else task.cluster[: len(x)]
    # two generators with the same seed: the partners that are shown are those that are mixed
    chosen, found = mixer.choose(excluded, cluster, generator=generator(config.seed, "picture"))
    mixed, soft = mixer(x, excluded, cluster, generator=generator(config.seed, "picture"))
    members = torch.cat([torch.arange(len(x))[:, None], chosen], 1)
    wrong = oracle.is_noisy(members, training_truth(config), task.excluded)
    return _draw(mix, [*x[members].unbind(1), mixed], soft, wrong, found.nonzero()[:count, 0])


def _draw(title: str, images: list["Tensor"], soft: "Tensor", wrong: "Tensor", shown: "Tensor") -> Any:
    """Draw one column per mix.

    Args:
        title: Title of the figure.
        images: One row of the figure each, [B, 1, H, W]; the mix is the last.
        soft: Labels of the mixes [B, K].
        wrong: Whether the label is wrong, bool [B].
        shown: Which of the B mixes are drawn, int.
    """
    depth = len(images)
    figure, axes = figures.new_figure(9.5, 1.05 * depth + 0.7, rows=depth, columns=len(shown))
    for column, i in enumerate(shown.tolist()):
        for axis, stack in zip(axes[:, column], images, strict=True):
            axis.imshow(stack[i, 0], cmap="gray_r", interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        classes = [k for k in soft[i].argsort(descending=True).tolist() if soft[i, k] > 0.005]
        label = "\n".join(f"not {k} ({soft[i, k]:.2f})" for k in classes)
        axes[-1][column].set_xlabel(label, fontsize=8, labelpad=3, color=RED if wrong[i] else figures.INK)
    for row, name in enumerate([*["image", "partner", "partner"][: depth - 1], "mix"]):
        axes[row][0].text(-0.35, 0.5, name, transform=axes[row][0].transAxes, ha="right", va="center", fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=figures.INK)
    return figure
