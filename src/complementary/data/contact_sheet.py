"""The contact sheet: examples with what they are (where known) and what they are not, counts, and a heat map."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from complementary.data.dataset import Dataset, Split
from complementary.errors import UserError
from complementary.oracle import empirical_transition
from complementary.reports.terminal import need
from complementary.rng import generator

COLUMNS, ROWS = 6, 6
IS_COLOUR, NOT_COLOUR, WRONG_COLOUR = "#2f6f9f", "#c0392b", "#e67e22"


def draw_sheet(dataset: Dataset, title: str, path: Path, seed: int = 0) -> None:
    """Draw the train split of ``dataset`` to ``path`` (PNG, PDF or SVG); ``seed`` picks the examples."""
    matplotlib, figure_class = (need(name, "Drawing a contact sheet") for name in ("matplotlib", "matplotlib.figure"))
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():  # a class may be called "$"
        warnings.filterwarnings("ignore", "Glyph .* missing")  # or in a script that the font does not have
        _draw(figure_class.Figure, dataset, title, path, seed)


def _draw(figure_class: Any, dataset: Dataset, title: str, path: Path, seed: int) -> None:
    figure = figure_class(figsize=(17, 11), dpi=110, facecolor="white")
    figure.suptitle(title, x=0.015, y=0.982, ha="left", fontsize=15, fontweight="bold")
    left, right = figure.subfigures(1, 2, width_ratios=(1.0, 1.05))
    if dataset.train.inputs.ndim == 4:
        _pictures(left, dataset, seed)
    else:
        _scatter(left, dataset, seed)
    _counts_and_matrix(right, dataset)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"The sheet cannot be written to {path} ({reason}).") from None


# --- examples ------------------------------------------------------------------------------------


def choose(split: Split, classes: int, count: int, seed: int) -> Tensor:
    """Indices of ``count`` random examples, spread over the true classes where these are known. int [count]."""
    order = torch.randperm(len(split), generator=generator(seed, "sheet"))
    if split.truth is None:
        return order[:count]
    truth = split.truth[order]
    seen = torch.zeros(len(truth), dtype=torch.long)  # how many of its class come before each example
    for k in range(classes):
        members = (truth == k).nonzero()[:, 0]
        seen[members] = torch.arange(len(members))
    chosen = order[torch.argsort(seen, stable=True)[:count]]
    return chosen[torch.argsort(split.truth[chosen], stable=True)]


def _pictures(area: Any, dataset: Dataset, seed: int) -> None:
    split = dataset.train
    axes = area.subplots(ROWS, COLUMNS, squeeze=False).ravel()
    area.subplots_adjust(left=0.02, right=0.985, top=0.935, bottom=0.05, wspace=0.06, hspace=0.47)
    for axis in axes:
        axis.set_axis_off()
    for axis, index in zip(axes, choose(split, len(dataset.classes), len(axes), seed).tolist(), strict=False):
        image = split.inputs[index].permute(1, 2, 0).numpy()
        grey = image.shape[2] == 1
        axis.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=255)
        _caption(axis, dataset, index)


def _caption(axis: Any, dataset: Dataset, index: int) -> None:
    split, names = dataset.train, dataset.classes
    excluded = [] if split.excluded is None else split.excluded[index].nonzero()[:, 0].tolist()
    wrong = split.truth is not None and int(split.truth[index]) in excluded
    if split.truth is not None:
        axis.set_title(_cut(names[int(split.truth[index])], 18), fontsize=8, color=IS_COLOUR, pad=2.5)
    if excluded:
        lines = _wrap([names[k] for k in excluded], 25)
        axis.text(
            0.5,
            -0.04,
            "\n".join(lines),
            transform=axis.transAxes,
            ha="center",
            va="top",
            fontsize=6.8,
            linespacing=1.08,
            color=WRONG_COLOUR if wrong else NOT_COLOUR,
        )
    if wrong:
        axis.set_axis_on()
        axis.set_xticks([])
        axis.set_yticks([])
        for spine in axis.spines.values():
            spine.set(edgecolor=WRONG_COLOUR, linewidth=3)


def _wrap(names: list[str], width: int, most: int = 3) -> list[str]:
    """ "not a, b, c" in at most ``most`` lines of about ``width`` letters."""
    lines = ["not "]
    for i, name in enumerate(names):
        word = _cut(name, width - 4) + (", " if i + 1 < len(names) else "")
        if len(lines[-1]) > 4 and len(lines[-1] + word) > width:
            if len(lines) == most:
                lines[-1] += f"+{len(names) - i}"
                return lines
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _scatter(area: Any, dataset: Dataset, seed: int) -> None:
    """Vectors have no picture: their two main directions, coloured by truth where known."""
    split = dataset.train
    index = choose(split, len(dataset.classes), 2000, seed)
    scaled = (split.inputs[index].numpy() - np.asarray(dataset.mean)) / np.asarray(dataset.std)
    _, _, directions = np.linalg.svd(scaled - scaled.mean(0), full_matrices=False)
    flat = scaled @ directions[:2].T
    axis = area.subplots()
    area.subplots_adjust(left=0.08, right=0.97, top=0.92, bottom=0.07)
    known = {} if split.truth is None else {"c": split.truth[index].numpy(), "cmap": "tab20"}
    axis.scatter(flat[:, 0], flat[:, -1], s=8, alpha=0.7, **known)
    what = "coloured by true class" if split.truth is not None else "true classes unknown"
    axis.set_title(f"{len(index):,} vectors on their two main directions, {what}", fontsize=10, loc="left")


# --- counts --------------------------------------------------------------------------------------


def _counts_and_matrix(area: Any, dataset: Dataset) -> None:
    split, names = dataset.train, [_cut(name, 24) for name in dataset.classes]
    top, bottom = area.subfigures(2, 1, height_ratios=(1.0, 1.45))
    axes = top.subplots(1, 2, sharey=True)
    top.subplots_adjust(left=0.21, right=0.97, top=0.86, bottom=0.08, wspace=0.08)
    classes = len(names)
    truth = None if split.truth is None else torch.bincount(split.truth, minlength=classes).numpy()
    labels = None if split.excluded is None else split.excluded.sum(0, dtype=torch.long).numpy()
    total = 0 if labels is None else int(labels.sum())
    _bars(axes[0], names, truth, f"classes: {len(split):,} examples", IS_COLOUR)
    _bars(axes[1], names, labels, f"“not …”: {total:,} labels, {total / len(split):.2f} per example", NOT_COLOUR)
    _matrix(bottom, dataset, names)


def _bars(axis: Any, names: list[str], counts: Any, title: str, colour: str) -> None:
    axis.set_title(title if counts is not None else title.split(":")[0] + ": not known", fontsize=10, loc="left")
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0)
    small = 8.5 if len(names) <= 12 else max(3.0, 6.6 * (20 / len(names)) ** 0.5)
    axis.set_yticks(range(len(names)), names, fontsize=small)
    axis.set_ylim(len(names) - 0.5, -0.5)
    if counts is not None:
        bars = axis.barh(range(len(names)), counts, color=colour, height=0.72)
        axis.bar_label(bars, [f"{int(c):,}" for c in counts], padding=3, fontsize=small - 0.5)
        axis.set_xlim(0, max(1, float(counts.max())) * 1.18)


def _matrix(area: Any, dataset: Dataset, names: list[str]) -> None:
    split = dataset.train
    axis = area.subplots()
    if split.truth is None or split.excluded is None:
        axis.set_axis_off()
        reason = "no complementary labels" if split.excluded is None else "the true classes are not known"
        axis.text(0.5, 0.5, f"no transition matrix: {reason}", ha="center", color="#777777")
        return
    area.subplots_adjust(left=0.21, right=0.97, top=0.93, bottom=0.22)
    matrix = empirical_transition(split.truth, split.excluded).numpy() * 100
    even = 100 / (len(names) - 1)  # twice as dark as this means twice as often as by pure chance
    shown = axis.imshow(matrix, cmap="Reds", vmin=0, vmax=max(2 * even, float(matrix.max())), aspect="auto")
    small = 8.5 if len(names) <= 12 else max(3.0, 6.6 * (20 / len(names)) ** 0.5)
    axis.set_xticks(range(len(names)), names, fontsize=small, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), names, fontsize=small)
    axis.set_ylabel("true class", fontsize=9)
    axis.set_xlabel("labelled “not …”", fontsize=9)
    axis.tick_params(length=0)
    noise = float(split.excluded.gather(1, split.truth[:, None]).sum() / split.excluded.sum())
    axis.set_title(
        f"transition matrix in %, counted with the true labels (labels that are wrong: {noise:.2%})",
        fontsize=10,
        loc="left",
    )
    if len(names) <= 25:
        _numbers(axis, matrix, small - 0.8, dark=0.6 * shown.get_clim()[1])
    else:
        area.colorbar(shown, ax=axis)


def _numbers(axis: Any, matrix: Any, fontsize: float, dark: float) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        text = "·" if value == 0 else f"{value:.1f}"
        colour = "white" if value > dark else "#333333"
        axis.text(column, row, text, ha="center", va="center", fontsize=fontsize, color=colour)
