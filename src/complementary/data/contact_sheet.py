"""The contact sheet: examples with their labels, class counts, and the transition matrix."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from complementary.data.dataset import Dataset, Split
from complementary.errors import UserError, import_optional
from complementary.oracle import empirical_transition
from complementary.rng import generator

COLUMNS, ROWS = 6, 6
TRUE_COLOR, NOT_COLOR, WRONG_COLOR = "#2f6f9f", "#c0392b", "#e67e22"


def draw_sheet(dataset: Dataset, title: str, path: Path, seed: int = 0) -> None:
    """Draw the train split of ``dataset`` to ``path`` (PNG, PDF or SVG); ``seed`` selects the examples."""
    matplotlib, figures = (import_optional(m, "The contact sheet") for m in ("matplotlib", "matplotlib.figure"))
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():  # a class may be called "$"
        warnings.filterwarnings("ignore", "Glyph .* missing")  # class names may need other fonts
        figure = figures.Figure(figsize=(17, 11), dpi=110, facecolor="white")
        figure.suptitle(title, x=0.015, y=0.982, ha="left", fontsize=15, fontweight="bold")
        left, right = figure.subfigures(1, 2, width_ratios=(1.0, 1.05))
        (_draw_images if dataset.train.inputs.ndim == 4 else _draw_scatter)(left, dataset, seed)
        top, bottom = right.subfigures(2, 1, height_ratios=(1.0, 1.45))
        names = [_shorten(name, 24) for name in dataset.classes]
        _draw_counts(top, dataset.train, names)
        _draw_matrix(bottom, dataset.train, names)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise UserError(f"The contact sheet {path} cannot be written ({reason}).") from None


# --- examples ------------------------------------------------------------------------------------


def choose(split: Split, classes: int, count: int, seed: int) -> Tensor:
    """Indices int [count] of random examples, equally many of each true class if those are known."""
    order = torch.randperm(len(split), generator=generator(seed, "sheet"))
    if split.truth is None:
        return order[:count]
    truth = split.truth[order]
    rank = torch.zeros(len(truth), dtype=torch.long)  # position of each example within its class
    for k in range(classes):
        members = (truth == k).nonzero()[:, 0]
        rank[members] = torch.arange(len(members))
    chosen = order[torch.argsort(rank, stable=True)[:count]]
    return chosen[torch.argsort(split.truth[chosen], stable=True)]


def _draw_images(area: Any, dataset: Dataset, seed: int) -> None:
    split = dataset.train
    axes = area.subplots(ROWS, COLUMNS, squeeze=False).ravel()
    area.subplots_adjust(left=0.02, right=0.985, top=0.935, bottom=0.05, wspace=0.06, hspace=0.47)
    for axis in axes:
        axis.set_axis_off()
    for axis, index in zip(axes, choose(split, len(dataset.classes), len(axes), seed).tolist(), strict=False):
        image = split.inputs[index].permute(1, 2, 0).numpy()
        axis.imshow(image, cmap="gray" if image.shape[2] == 1 else None, vmin=0, vmax=255)
        _add_caption(axis, dataset, index)


def _add_caption(axis: Any, dataset: Dataset, index: int) -> None:
    split, names = dataset.train, dataset.classes
    excluded = [] if split.excluded is None else split.excluded[index].nonzero()[:, 0].tolist()
    truth = None if split.truth is None else int(split.truth[index])
    if truth is not None:
        axis.set_title(_shorten(names[truth], 18), fontsize=8, color=TRUE_COLOR, pad=2.5)
    if excluded:
        lines, color = wrap([names[k] for k in excluded], 25), WRONG_COLOR if truth in excluded else NOT_COLOR
        style = {"ha": "center", "va": "top", "fontsize": 6.8, "linespacing": 1.08, "color": color}
        axis.text(0.5, -0.04, "\n".join(lines), transform=axis.transAxes, **style)
    if truth in excluded:
        axis.set_axis_on()
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(edgecolor=WRONG_COLOR, linewidth=3)


def wrap(names: list[str], width: int, most: int = 3) -> list[str]:
    """Format "not a, b, c" in at most ``most`` lines of about ``width`` characters."""
    lines = ["not "]
    for i, name in enumerate(names):
        word = _shorten(name, width - 4) + (", " if i + 1 < len(names) else "")
        if len(lines[-1]) > 4 and len(lines[-1] + word) > width:
            if len(lines) == most:
                lines[-1] += f"+{len(names) - i}"
                return lines
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _shorten(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _draw_scatter(area: Any, dataset: Dataset, seed: int) -> None:
    """Vectors on their first two principal components."""
    split = dataset.train
    index = choose(split, len(dataset.classes), 2000, seed)
    scaled = (split.inputs[index].numpy() - np.asarray(dataset.mean)) / np.asarray(dataset.std)
    _, _, components = np.linalg.svd(scaled - scaled.mean(0), full_matrices=False)
    projected = scaled @ components[:2].T
    axis = area.subplots()
    area.subplots_adjust(left=0.08, right=0.97, top=0.92, bottom=0.07)
    known = {} if split.truth is None else {"c": split.truth[index].numpy(), "cmap": "tab20"}
    axis.scatter(projected[:, 0], projected[:, -1], s=8, alpha=0.7, **known)
    what = "true classes unknown" if split.truth is None else "colors: true classes"
    axis.set_title(f"{len(index):,} vectors on their first two principal components, {what}", fontsize=10, loc="left")


# --- counts and transition matrix ----------------------------------------------------------------


def _font_size(classes: int) -> float:
    return 8.5 if classes <= 12 else max(3.0, 6.6 * (20 / classes) ** 0.5)


def _draw_counts(area: Any, split: Split, names: list[str]) -> None:
    axes = area.subplots(1, 2, sharey=True)
    area.subplots_adjust(left=0.21, right=0.97, top=0.86, bottom=0.08, wspace=0.08)
    truth = None if split.truth is None else torch.bincount(split.truth, minlength=len(names)).numpy()
    labels = None if split.excluded is None else split.excluded.sum(0, dtype=torch.long).numpy()
    total = 0 if labels is None else int(labels.sum())
    _draw_bars(axes[0], names, truth, f"classes: {len(split):,} examples", TRUE_COLOR)
    _draw_bars(axes[1], names, labels, f"“not …”: {total:,} labels, {total / len(split):.2f} per example", NOT_COLOR)


def _draw_bars(axis: Any, names: list[str], counts: Any, title: str, color: str) -> None:
    axis.set_title(title if counts is not None else title.split(":")[0] + ": not known", fontsize=10, loc="left")
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0)
    axis.set_yticks(range(len(names)), names, fontsize=_font_size(len(names)))
    axis.set_ylim(len(names) - 0.5, -0.5)
    if counts is not None:
        bars = axis.barh(range(len(names)), counts, color=color, height=0.72)
        axis.bar_label(bars, [f"{int(c):,}" for c in counts], padding=3, fontsize=_font_size(len(names)) - 0.5)
        axis.set_xlim(0, max(1, float(counts.max())) * 1.18)


def _draw_matrix(area: Any, split: Split, names: list[str]) -> None:
    axis = area.subplots()
    if split.truth is None or split.excluded is None:
        axis.set_axis_off()
        reason = "no complementary labels" if split.excluded is None else "the true classes are not known"
        axis.text(0.5, 0.5, f"no transition matrix: {reason}", ha="center", color="#777777")
        return
    area.subplots_adjust(left=0.21, right=0.97, top=0.93, bottom=0.22)
    matrix = empirical_transition(split.truth, split.excluded).numpy() * 100
    most, size = max(2 * 100 / (len(names) - 1), float(matrix.max())), _font_size(len(names))
    shown = axis.imshow(matrix, cmap="Reds", vmin=0, vmax=most, aspect="auto")
    axis.set_xticks(range(len(names)), names, fontsize=size, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), names, fontsize=size)
    axis.set_ylabel("true class", fontsize=9)
    axis.set_xlabel("labeled “not …”", fontsize=9)
    axis.tick_params(length=0)
    noise = float(split.excluded.gather(1, split.truth[:, None]).sum() / split.excluded.sum())
    axis.set_title(f"transition matrix in % (oracle; wrong labels: {noise:.2%})", fontsize=10, loc="left")
    if len(names) > 25:
        area.colorbar(shown, ax=axis)
        return
    for (row, column), value in np.ndenumerate(matrix):
        style = {"fontsize": size - 0.8, "color": "white" if value > 0.6 * most else "#333333"}
        axis.text(column, row, "·" if value == 0 else f"{value:.1f}", ha="center", va="center", **style)
