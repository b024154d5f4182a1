"""Draw the figures of README and docs from stored results: ``python docs/make_pictures.py [NAME ...]``.

docs/encoders.png comes from results/encoders/*.json, docs/bench.png from results/bench/h200.json, docs/photographs.png
from CIFAR-10 (``cll data get cifar10``) and results/photographs.csv.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for the benchmarks

from benchmarks.report import bench_figure  # noqa: E402
from complementary import data, labels, transitions  # noqa: E402
from complementary.reports import figures  # noqa: E402


def encoders() -> bytes:
    """Loss, collapse gauge and kNN accuracy while pretraining, of the runs in results/encoders."""
    runs = {p.stem: json.loads(p.read_text()) for p in sorted((ROOT / "results/encoders").glob("*-*.json"))}
    figure, axes = figures.new_figure(13, 3.6, columns=4, width_ratios=[1, 1, 1, 0.62])
    panels = {
        "loss": "loss (negative cosine; MoCo v3's is another)",
        "gauge": "collapse gauge (healthy: near 1)",
        "oracle_knn": "kNN accuracy (oracle)",
    }
    for color, (name, run) in enumerate((n, r) for n, r in runs.items() if r.get("metrics")):
        for axis, (key, title) in zip(axes[0][:3], panels.items(), strict=True):
            points = [(row["epoch"], row[key]) for row in run["metrics"] if row.get(key) is not None]
            if key == "loss" and "mocov3" in name:  # a cross-entropy above 2 would compress the others
                points = []
            style = {"linestyle": "-" if color < 10 else "--", "marker": "o" if len(points) == 1 else None}
            axis.plot([e for e, _ in points], [v for _, v in points], color=f"C{color}", label=name, lw=1.4, **style)
            _title(axis, title)
            axis.set_xlabel("epoch", fontsize=9)
    axes[0][3].legend(*axes[0][0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="center left")
    axes[0][3].axis("off")
    return figures.png(figure)


def bench() -> bytes:
    """Images per second and milliseconds per stage, of results/bench/h200.json (``cll bench --json``)."""
    return figures.png(bench_figure(json.loads((ROOT / "results/bench/h200.json").read_text())))


def photographs(count: int = 8) -> bytes:
    """The first training images with their only label, and the first test images with their prediction.

    Predictions are those of a linear layer on the stored encoder, ``cll train --data cifar10 --labels uniform --loss
    s-nl --recipe features`` (a minute on a CPU, 89.0 %), by ``cll predict RUN first-eight.npy --out
    results/photographs.csv``.
    """
    cifar10 = data.load("cifar10")
    assert cifar10.test is not None
    assert cifar10.train.truth is not None
    assert cifar10.test.truth is not None
    names, truth = cifar10.classes, cifar10.test.truth.tolist()
    excluded = labels.draw(cifar10.train.truth, transitions.uniform(len(names)), 1, seed=0)
    with (ROOT / "results/photographs.csv").open() as file:
        predicted = [row["class"] for row in csv.DictReader(file)]
    figure, axes = figures.new_figure(10, 3.6, columns=count, rows=2)
    for i in range(count):
        label = names[int(excluded[i].argmax())]
        _photograph(axes[0][i], cifar10.train.inputs[i], f"not {_article(label)}", figures.INK)
        wrong = predicted[i] != names[truth[i]]
        caption = f"{predicted[i]} (wrong: {names[truth[i]]})" if wrong else predicted[i]
        _photograph(axes[1][i], cifar10.test.inputs[i], caption, "#b3261e" if wrong else figures.INK)
    figure.set_layout_engine(None)  # row titles are wider than an image
    figure.subplots_adjust(left=0, right=1, top=0.9, bottom=0.08, wspace=0.1, hspace=0.6)
    for axis, text in (
        (axes[0][0], "training: 50,000 images, one complementary label each"),
        (axes[1][0], "predictions for new images (the first eight of the test set)"),
    ):
        _title(axis, text)
    return figures.png(figure)


def _photograph(axis: Any, image: Any, caption: str, color: str) -> None:
    axis.imshow(image.permute(1, 2, 0).numpy(), interpolation="lanczos")
    axis.set_xlabel(caption, fontsize=10, color=color)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=10, loc="left", color=figures.INK)


FIGURES = {make.__name__: make for make in (encoders, bench, photographs)}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        (ROOT / "docs" / f"{name}.png").write_bytes(FIGURES[name]())
