"""Studies as figures in the paper's form, made from stored results alone."""

import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from complementary.config import MIXED_WITHIN
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.paper.compare import EntryResult, common, comparable, conditions, entry_results, lengths
from complementary.paper.published import EPOCHS
from complementary.paper.store import GRADIENT_METRICS, GRADIENT_SCALE, Results, Runs
from complementary.paper.studies import NOISE, PROTOCOLS, STUDIES, Protocol, Study
from complementary.reports.figures import COLORS, INK, new_figure, png
from complementary.reports.tables import Spread, counted

MORE_COLORS = (
    *("#7a5aa6", "#b3485b", "#4a8fa3", "#8c7a2c", "#5b6570", "#c46a9a", "#3f6b3f"),
    *("#a3a0d8", "#e0a3ad", "#9fd0de", "#d6c980", "#b0b8c0", "#7d3c98", "#1f4e5f"),
)
WIDE = 12  # settings side by side; more are split into one row per dataset
DPI = 120  # of the figures in the repository
Figures = Mapping[tuple[str, Protocol], bytes]  # by study and protocol, as PNG


class NoFigure(UserError):
    """There is not enough to draw yet."""


def draw(study: Study, results: Results, protocol: Protocol) -> Any:
    """Draw the figure of a study; settings of which nothing was run are left out.

    Returns:
        A matplotlib figure.

    Raises:
        NoFigure: nothing was run, or too little to compare.
    """
    if study.runner == "gradients":
        return _gradients(study, results, protocol)
    found = [each for each in entry_results(study, results, protocol) if each.ours is not None]
    if study.plot == "none" or not comparable(study, found):
        raise _no_figure(study, protocol)
    if study.plot in ("bars", "classes"):
        counts = Counter(each.entry.where for each in found)
        found = [each for each in found if counts[each.entry.where] > 1]  # a single bar compares nothing
    return PLOTS[study.plot](study, found, protocol)


def _no_figure(study: Study, protocol: Protocol) -> NoFigure:
    return NoFigure(f"There are too few results of the study {study.name} under the protocol {protocol} for a figure.")


def draw_all(results: Results) -> Figures:
    """All figures that can be drawn, as PNG."""
    found: dict[tuple[str, Protocol], bytes] = {}
    for study in STUDIES.values():
        for protocol in study.protocols:
            try:
                found[study.name, protocol] = png(draw(study, results, protocol), DPI)
            except NoFigure:
                continue
    return found


def write_all(figures: Figures, folder: Path) -> None:
    """Write the figures to a folder; figures of an earlier call that are not among them are removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created ({error.strerror}); name another one.") from None
    known = {file_name(study, protocol) for study in STUDIES for protocol in PROTOCOLS}
    for old in known - {file_name(*key) for key in figures}:
        (folder / old).unlink(missing_ok=True)
    for key, content in figures.items():
        atomic_write(folder / file_name(*key), content)


def file_name(study: str, protocol: Protocol) -> str:
    """``main-ours.png``."""
    return f"{study}-{protocol}.png"


def links(figures: Figures, folder: Path, page: Path) -> dict[tuple[str, Protocol], str]:
    """The links to figures in ``folder`` from a page, relative to that page."""
    there = os.path.relpath(folder, page.parent)
    return {key: Path(there, file_name(*key)).as_posix() for key in figures}


# --- plots ----------------------------------------------------------------------------------------------------------


def _color(method: str, among: Sequence[str]) -> str:
    return COLORS.get(method) or MORE_COLORS[among.index(method) % len(MORE_COLORS)]


def _label(each: EntryResult) -> str:
    """The text below a group of bars."""
    s = each.entry.setting
    ratios = [f"ρ={s.tail:g}"] * (s.tail > 1) + [f"bias {s.bias:g}"] * (s.bias > 1)
    length = [f"{epochs} ep."] if (epochs := each.runs.epochs or EPOCHS) != EPOCHS else []
    loss = "" if list(each.spreads) == list(NOISE) else s.loss  # it does not change the noise
    return "\n".join(part for part in (s.data, *ratios, loss, each.entry.group, *length) if part)


def _mean(each: EntryResult) -> float:
    assert each.ours is not None
    return 100 * each.ours.mean


def _deviation(each: EntryResult) -> float:
    return 100 * (each.ours.deviation or 0.0) if each.ours is not None else 0.0


def _bars(study: Study, found: list[EntryResult], protocol: Protocol) -> Any:
    """A group of bars per setting, a bar per method, a mark at the published value."""
    methods = list(dict.fromkeys(each.entry.method for each in found))
    names = list(dict.fromkeys(each.entry.setting.data for each in found))
    split = len({_label(each) for each in found}) > WIDE and len(names) > 1
    panels = [[each for each in found if each.entry.setting.data == name] for name in names] if split else [found]
    most = max(len({_label(each) for each in panel}) for panel in panels)
    width = max(5.0, 1.0 + max(0.75, 0.22 * (len(methods) + 1)) * most)
    figure, axes = new_figure(width, 3.0 * len(panels), rows=len(panels))
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        _groups(axis, panel, methods)
    return _finish(figure, axes[0][0], study, found, protocol)


def _groups(axis: Any, found: list[EntryResult], methods: list[str]) -> None:
    groups, width, seen = list(dict.fromkeys(map(_label, found))), 0.8 / len(methods), set[str]()
    for each in found:
        method, number = each.entry.method, each.entry.published
        x = groups.index(_label(each)) + (methods.index(method) + 0.5) * width - 0.4
        label = None if method in seen else method
        seen.add(method)
        error = {"yerr": _deviation(each), "ecolor": INK} if _deviation(each) else {}
        axis.bar(x, _mean(each), width * 0.92, color=_color(method, methods), label=label, **error)
        axis.text(x, 0, str(len(each.runs.seeds)), fontsize=6, color="white", ha="center", va="bottom")
        if number is not None:
            axis.plot([x], [number.mean], "D", color="white", markeredgecolor=INK, markersize=4)
    axis.set_xticks(range(len(groups)), groups, fontsize=8)
    axis.set_xlim(-0.6, len(groups) - 0.4)


def _classes(study: Study, found: list[EntryResult], protocol: Protocol) -> Any:
    """A panel per setting, a group of bars per class, a bar per method: accuracy at the last epoch.

    A setting in which no method learned anything about the smallest classes has no panel.
    """
    panels: dict[str, list[EntryResult]] = {}
    for each in found:
        panels.setdefault(_label(each).replace("\n", ", "), []).append(each)
    panels = {title: members for title, members in panels.items() if any(map(_learned_tail, members))}
    if not panels:
        raise _no_figure(study, protocol)
    figure, axes = new_figure(7.5, 2.6 * len(panels), rows=len(panels))
    for axis, (title, members) in zip(axes[:, 0], panels.items(), strict=True):
        methods = [each.entry.method for each in members]
        for i, each in enumerate(members):
            per_run = [json.loads(row["per_class_accuracy_last"]) for row in each.runs.rows]
            spreads = [Spread.of([100 * value for value in values]) for values in zip(*per_run, strict=True)]
            means = [spread.mean for spread in spreads]
            places = [k + (i + 0.5) * 0.8 / len(members) - 0.4 for k in range(len(means))]
            errors = {"yerr": [spread.deviation for spread in spreads]} if len(per_run) > 1 else {}
            label = f"{methods[i]} (n = {len(per_run)})"
            axis.bar(places, means, 0.74 / len(members), color=_color(methods[i], methods), label=label, **errors)
        axis.set_xticks(range(len(means)), [str(k) for k in range(len(means))], fontsize=8)
        axis.set_title(title, fontsize=9, loc="left", color=INK)
        axis.set_ylabel("test accuracy (last epoch), %", fontsize=9, color=INK)
    axes[-1][0].set_xlabel("class, the largest first", fontsize=9, color=INK)
    axes[0][0].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(_title(study, found, protocol, False), fontsize=10, x=0.01, ha="left", color=INK)
    return figure


def _learned_tail(each: EntryResult) -> bool:
    """Whether some example of the last third of the classes was recognized at the last epoch."""
    return any(value > 0 for value in each.runs.values("tail_accuracy_last"))


def _rows(study: Study, found: list[EntryResult], protocol: Protocol) -> Any:
    """For many methods: a row of a panel per method, a panel per dataset and group, a mark at the published value."""
    panels: dict[str, list[EntryResult]] = {}
    for each in found:
        title = ", ".join(part for part in (each.entry.setting.data, each.entry.group) if part)
        panels.setdefault(title, []).append(each)
    counts = [len(members) for members in panels.values()]
    figure, axes = new_figure(7.5, 0.6 * len(panels) + 0.26 * sum(counts), rows=len(panels), height_ratios=counts)
    for axis, (title, members) in zip(axes[:, 0], panels.items(), strict=True):
        colors = [_color(each.entry.setting.mix, []) for each in members]
        axis.barh(range(len(members)), list(map(_mean, members)), 0.75, color=colors)
        axis.set_yticks(range(len(members)), [each.entry.method for each in members], fontsize=8)
        axis.invert_yaxis()
        for place, each in enumerate(members):
            axis.text(0.5, place, f"n = {len(each.runs.seeds)}", fontsize=6, color="white", va="center")
            if _deviation(each):
                axis.errorbar(_mean(each), place, xerr=_deviation(each), ecolor=INK)
            if each.entry.published is not None:
                axis.plot([each.entry.published.mean], [place], "D", color="white", markeredgecolor=INK, markersize=4)
        axis.set_title(title, fontsize=9, loc="left", color=INK)
    axes[-1][0].set_xlabel("test accuracy (best epoch), %", fontsize=9, color=INK)
    figure.suptitle(_title(study, found, protocol, True), fontsize=10, x=0.01, ha="left", color=INK)
    return figure


def _lines(study: Study, found: list[EntryResult], protocol: Protocol) -> Any:
    """A line per dataset and mixer over the values of the option that is varied."""
    groups: dict[str, list[EntryResult]] = {}
    for each in found:
        groups.setdefault(f"{each.entry.setting.data} {each.entry.group}", []).append(each)
    figure, axes = new_figure(5.6, 3.6)
    axis = axes[0][0]
    for name, members in groups.items():
        xs = [_value(each.entry.method) for each in members]
        ys, errors = [_mean(each) for each in members], [_deviation(each) for each in members]
        mixer = members[0].entry.group if len({each.entry.setting.data for each in found}) == 1 else name
        color = COLORS.get(mixer) or _color(name, list(groups))
        counts = sorted({len(each.runs.seeds) for each in members})
        label = f"{name} (n = {' to '.join(map(str, counts[:1] + counts[1:][-1:]))})"
        axis.errorbar(xs, ys, yerr=errors, marker="o", markersize=4, label=label, color=color)
    values = [_value(entry.method) for entry in study.entries]
    margin = 0.05 * (max(values) - min(values))
    axis.set_xlim(min(values) - margin, max(values) + margin)  # the whole sweep, however much of it was run
    axis.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
    axis.set_xlabel(found[0].entry.method.partition("=")[0], fontsize=9)
    return _finish(figure, axis, study, found, protocol)


def _value(method: str) -> float:
    """``K=50`` -> 50."""
    return float(method.partition("=")[2])


def _scatter(study: Study, found: list[EntryResult], protocol: Protocol) -> Any:
    """Accuracy over the noise ratio; a published accuracy at the published noise ratio, else at ours.

    Methods without noise by construction (no mixing, oracles) are drawn even if we did not run them.
    """
    figure, axes = new_figure(5.2, 3.6)
    axis, methods = axes[0][0], [entry.method for entry in study.entries]
    ours = {each.entry.method: each for each in found if each.runs.spread("oracle_noise_ratio") is not None}
    for entry in study.entries:
        each, color, label = ours.get(entry.method), _color(entry.method, methods), entry.method
        noise = None if each is None else each.runs.spread("oracle_noise_ratio")
        x = None if noise is None else 100 * noise.mean
        if each is not None:
            label = f"{label} (n = {len(each.runs.seeds)})"
            error = {"yerr": _deviation(each)} if _deviation(each) else {}
            axis.errorbar([x], [_mean(each)], fmt="o", label=label, color=color, **error)
        free = entry.setting.mix == "none" or MIXED_WITHIN[entry.setting.mix] == "truth"
        place = entry.noise.mean if entry.noise else 0.0 if free else x
        if entry.published is not None and place is not None:
            shown = {"label": label if each is None else None, "markeredgecolor": color, "markersize": 5}
            axis.plot([place], [entry.published.mean], "D", color="white", **shown)
    axis.set_xlabel("noisy mixes, % (oracle)", fontsize=9)
    return _finish(figure, axis, study, found, protocol)


def _gradients(study: Study, results: Results, protocol: Protocol) -> Any:
    """MSE, bias² and variance, each divided by |f|², over epochs: a row of panels per dataset, a curve per method.

    Curves are means over the seeds. Only measurements with the target of the paper (clean) are drawn.
    """
    known = {entry.setting.data: runs for entry, runs in results.of(study, protocol).items() if runs.rows}
    if not known:
        raise _no_figure(study, protocol)
    figure, axes = new_figure(11, 2.9 * len(known), rows=len(known), columns=len(GRADIENT_METRICS))
    for row, (data, runs) in zip(axes, known.items(), strict=True):
        methods = list(dict.fromkeys(measured["method"] for measured in runs.measurements()))
        per_epoch = float(runs.rows[0].get("steps_per_epoch") or 1)
        n = f"n = {len(runs.seeds)}"
        for axis, (metric, title) in zip(row, GRADIENT_METRICS.items(), strict=True):
            for method in methods:
                axis.plot(*_curve(runs, method, metric, per_epoch), label=method, color=_color(method, methods))
            axis.set_title(f"{title} / |f|²; {data}, {n}", fontsize=10, loc="left", color=INK)
            axis.set_xlabel("epoch", fontsize=9)
    axes[0][-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    rows = [row for each in known.values() for row in each.rows]
    draws = counted(max(row["draws"] for row in rows), "draw")
    below = f"protocol {protocol}, balanced, s-nl; {conditions(list(known.values()))}; {draws}"
    figure.suptitle(f"{study.title}\n{below}", fontsize=10, x=0.01, ha="left", color=INK)
    return figure


def _curve(runs: Runs, method: str, metric: str, per_epoch: float) -> tuple[list[float], list[float]]:
    values: dict[int, list[float]] = {}
    for measured in runs.measurements():
        if (measured["method"], measured["target"]) == (method, "clean"):
            values.setdefault(int(measured["step"]), []).append(measured[metric] / measured[GRADIENT_SCALE])
    steps = sorted(values)
    return [step / per_epoch for step in steps], [statistics.fmean(values[step]) for step in steps]


def _title(study: Study, found: list[EntryResult], protocol: Protocol, marks: bool) -> str:
    """What is shown, what all of ``found`` have in common, and the number of seeds."""
    known, counts = lengths(found), sorted({len(each.runs.seeds) for each in found})
    several = f"{' or '.join(map(str, known))} epochs (the paper: {EPOCHS})" if len(known) > 1 else ""
    seeds = f"n = {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
    below = ", ".join(part for part in (common(found), several, seeds) if part)
    below += " (number in each bar)" * (study.plot == "bars" and len(counts) > 1)
    below += "; error bars: standard deviation" * any(map(_deviation, found))
    return f"{study.title}; protocol {protocol}{'; ◇ published' if marks else ''}\n{below}"


def _finish(figure: Any, axis: Any, study: Study, found: list[EntryResult], protocol: Protocol) -> Any:
    """Add title, label and legend."""
    accuracy = "test accuracy (best epoch), %"
    axis.set_ylabel("noisy mixes, %" if study.runner == "noise" else accuracy, fontsize=9, color=INK)
    marks = any(line.get_marker() == "D" for each in figure.axes for line in each.lines)
    axis.set_title(_title(study, found, protocol, marks), fontsize=10, loc="left", color=INK)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


PLOTS: dict[str, Callable[[Study, list[EntryResult], Protocol], Any]] = {
    "bars": _bars,
    "rows": _rows,
    "classes": _classes,
    "lines": _lines,
    "scatter": _scatter,
}
