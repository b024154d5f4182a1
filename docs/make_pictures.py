"""Draw the figures of README and docs from stored results: ``python docs/make_pictures.py``.

docs/demo.png comes from runs/demo/results.json (``cll demo``), docs/encoders.png from results/encoders/*.json,
docs/bench.png from results/bench/h200.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for the benchmarks

from benchmarks.report import bench_figure  # noqa: E402
from complementary.cli.demo import MIXES  # noqa: E402
from complementary.reports import figures  # noqa: E402


def demo() -> bytes:
    """Accuracy curves and the noise ratio of each mixer, of the demo in runs/demo."""
    results = json.loads((ROOT / "runs/demo/results.json").read_text())
    figure, axes = figures.new_figure(9, 3.2, columns=2, width_ratios=[1.7, 1])
    for name in MIXES:
        runs = [[row["accuracy"] for row in r["history"]] for r in results if r["mix"] == name]
        mean = [100 * sum(values) / len(values) for values in zip(*runs, strict=True)]
        axes[0][0].plot(range(1, len(mean) + 1), mean, color=figures.COLOURS[name], label=name, linewidth=1.8)
    noise = {n: [r["oracle_noise_ratio"] for r in results if r["mix"] == n] for n in MIXES[1:]}
    for place, (name, values) in enumerate(noise.items()):
        height = 100 * sum(values) / len(values)
        axes[0][1].bar(place, height, color=figures.COLOURS[name], width=0.6)
        axes[0][1].text(place, height + 0.3, f"{height:.1f} %", ha="center", fontsize=9)
    axes[0][1].set_xticks(range(len(noise)), list(noise))
    axes[0][0].set_xlabel("epoch", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=9, loc="lower right")
    _title(axes[0][0], f"test accuracy, %, mean of {len(results) // len(MIXES)} seeds")
    _title(axes[0][1], "mixes with a wrong label")
    return figures.png(figure)


def encoders() -> bytes:
    """Loss, collapse gauge and kNN accuracy while pretraining, of the runs in results/encoders."""
    runs = {p.stem: json.loads(p.read_text()) for p in sorted((ROOT / "results/encoders").glob("*.json"))}
    figure, axes = figures.new_figure(13, 3.6, columns=4, width_ratios=[1, 1, 1, 0.62])
    panels = {
        "loss": "loss (negative cosine; MoCo v3's is another)",
        "gauge": "collapse gauge (healthy: near 1)",
        "oracle_knn": "kNN accuracy (oracle)",
    }
    for colour, (name, run) in enumerate((n, r) for n, r in runs.items() if r.get("metrics")):
        for axis, (key, title) in zip(axes[0][:3], panels.items(), strict=True):
            points = [(row["epoch"], row[key]) for row in run["metrics"] if row.get(key) is not None]
            if key == "loss" and "mocov3" in name:  # a cross-entropy above 2 would compress the others
                points = []
            style = "-" if colour < 10 else "--"
            axis.plot([e for e, _ in points], [v for _, v in points], f"C{colour}", linestyle=style, label=name, lw=1.4)
            _title(axis, title)
            axis.set_xlabel("epoch", fontsize=9)
    axes[0][3].legend(*axes[0][0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="center left")
    axes[0][3].axis("off")
    return figures.png(figure)


def bench() -> bytes:
    """Images per second and milliseconds per stage, of results/bench/h200.json (``cll bench --json``)."""
    return figures.png(bench_figure(json.loads((ROOT / "results/bench/h200.json").read_text())))


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=10, loc="left", color=figures.INK)


if __name__ == "__main__":
    for make in (demo, encoders, bench):
        (ROOT / "docs" / f"{make.__name__}.png").write_bytes(make())
