"""Studies as pictures in the paper's form, from the results of a store alone."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from complementary.config import MIXED_WITHIN
from complementary.errors import UserError
from complementary.paper import gradients
from complementary.paper.captions import EPOCHS, common, lengths
from complementary.paper.compare import Contrast, Line, contrasts, lines
from complementary.paper.protocols import Protocol
from complementary.paper.store import Results
from complementary.paper.studies import Study
from complementary.reports.figures import COLOURS, INK, new_figure
from complementary.reports.tables import counted

MORE = (
    *("#7a5aa6", "#b3485b", "#4a8fa3", "#8c7a2c", "#5b6570", "#c46a9a", "#3f6b3f"),
    *("#a3a0d8", "#e0a3ad", "#9fd0de", "#d6c980", "#b0b8c0", "#7d3c98", "#1f4e5f"),
)


WIDE = 12  # settings side by side


class NoPicture(UserError):
    """There is nothing to draw yet."""


def draw(study: Study, results: Results, protocol: Protocol, stores: Sequence[Path] = ()) -> Any:
    """The picture of a study; settings of which nothing was run are left out. Raises `NoPicture`."""
    if study.plot == "gradients":
        return _gradients(study, stores, protocol)
    found = [line for line in lines(study, results, protocol) if line.ours is not None]
    if not found:
        raise _nothing(study, protocol)
    if study.plot == "p-values":
        return _p_values(study, found, contrasts(study, results, protocol), protocol)
    return PLOTS[study.plot](study, found, protocol)


def _nothing(study: Study, protocol: Protocol) -> NoPicture:
    return NoPicture(
        f"Nothing of the study {study.name} was run under the protocol {protocol}, so there is no picture of it yet."
    )


def _colour(method: str, among: list[str]) -> str:
    return COLOURS.get(method) or MORE[among.index(method) % len(MORE)]


def _place(line: Line) -> str:
    """What stands below a group of bars."""
    s = line.entry.setting
    ratios = [f"ρ={s.tail:g}"] * (s.tail > 1) + [f"bias {s.bias:g}"] * (s.bias > 1)
    short = [f"{epochs} ep."] if (epochs := line.runs.epochs or EPOCHS) != EPOCHS else []
    return "\n".join(part for part in (s.data, *ratios, s.loss, line.entry.group, *short) if part)


def _mean(line: Line) -> float:
    assert line.ours is not None
    return 100 * line.ours.mean


def _deviation(line: Line) -> float:
    return 100 * (line.ours.deviation or 0.0) if line.ours is not None else 0.0


def _bars(study: Study, found: list[Line], protocol: Protocol) -> Any:
    """A group of bars per setting, a bar per method, a mark at the paper's value; a row per dataset if many."""
    methods = list(dict.fromkeys(line.entry.method for line in found))
    names = list(dict.fromkeys(line.entry.setting.data for line in found))
    split = len({_place(line) for line in found}) > WIDE and len(names) > 1
    panels = [[line for line in found if line.entry.setting.data == name] for name in names] if split else [found]
    most = max(len({_place(line) for line in panel}) for panel in panels)
    width = max(5.0, 1.0 + max(0.75, 0.22 * (len(methods) + 1)) * most)
    figure, axes = new_figure(width, 3.0 * len(panels), rows=len(panels))
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        _groups(axis, panel, methods)
    return _finish(figure, axes[0][0], study, found, protocol)


def _groups(axis: Any, found: list[Line], methods: list[str]) -> None:
    places, width, seen = list(dict.fromkeys(map(_place, found))), 0.8 / len(methods), set[str]()
    for line in found:
        method, number = line.entry.method, line.entry.published
        x = places.index(_place(line)) + (methods.index(method) + 0.5) * width - 0.4
        label = None if method in seen else method
        seen.add(method)
        error = {"yerr": _deviation(line), "ecolor": INK} if _deviation(line) else {}
        axis.bar(x, _mean(line), width * 0.92, color=_colour(method, methods), label=label, **error)
        if number is not None:
            axis.plot([x], [number.mean], "D", color="white", markeredgecolor=INK, markersize=4)
    axis.set_xticks(range(len(places)), places, fontsize=8)
    axis.set_xlim(-0.6, len(places) - 0.4)


def _lines(study: Study, found: list[Line], protocol: Protocol) -> Any:
    """A line per dataset (and mixer) over the values of the option that is varied."""
    groups: dict[str, list[Line]] = {}
    for line in found:
        groups.setdefault(f"{line.entry.setting.data} {line.entry.group}", []).append(line)
    figure, axes = new_figure(5.6, 3.6)
    axis = axes[0][0]
    for name, members in groups.items():
        xs = [_swept(line.entry.method) for line in members]
        ys, errors = [_mean(line) for line in members], [_deviation(line) for line in members]
        axis.errorbar(xs, ys, yerr=errors, marker="o", markersize=4, label=name, color=_colour(name, list(groups)))
    whole = [_swept(entry.method) for entry in study.entries]
    margin = 0.05 * (max(whole) - min(whole))
    axis.set_xlim(min(whole) - margin, max(whole) + margin)  # however little of the sweep was run
    axis.set_xlabel(found[0].entry.method.partition("=")[0], fontsize=9)
    return _finish(figure, axis, study, found, protocol)


def _swept(method: str) -> float:
    """``K=50`` -> 50."""
    return float(method.partition("=")[2])


def _scatter(study: Study, found: list[Line], protocol: Protocol) -> Any:
    """Accuracy over the noise of the mixes; published accuracies at the published noise, or else at ours.

    Those without noise by construction (no mixing, oracles) are drawn even if nothing of ours is there.
    """
    figure, axes = new_figure(5.2, 3.6)
    axis, methods = axes[0][0], [entry.method for entry in study.entries]
    ours = {line.entry.method: line for line in found if line.runs.spread("noise_ratio") is not None}
    for entry in study.entries:
        line, colour, label = ours.get(entry.method), _colour(entry.method, methods), entry.method
        noise = None if line is None else line.runs.spread("noise_ratio")
        x = None if noise is None else 100 * noise.mean
        if line is not None:
            axis.plot([x], [_mean(line)], "o", label=label, color=colour)
        free = entry.setting.mix == "none" or MIXED_WITHIN[entry.setting.mix] == "truth"
        place = entry.noise.mean if entry.noise else 0.0 if free else x
        if entry.published is not None and place is not None:
            shown = {"label": label if line is None else None, "markeredgecolor": colour, "markersize": 5}
            axis.plot([place], [entry.published.mean], "D", color="white", **shown)
    axis.set_xlabel("noisy mixes, % (oracle)", fontsize=9)
    return _finish(figure, axis, study, found, protocol)


def _p_values(study: Study, known: list[Line], pairs: Sequence[Contrast], protocol: Protocol) -> Any:
    """The p of each pair, on a logarithmic axis."""
    found = [(_place(pair.first), pair.ours.p, pair.ours) for pair in pairs if pair.ours and pair.ours.p is not None]
    if not found:
        seeds = [len(line.runs.seeds) for line in known]
        most = counted(max(seeds), "seed") if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)} seeds"
        raise NoPicture(
            f"No test of the study {study.name} can be made under the protocol {protocol} yet, so there is no picture "
            f"of it: each needs 2 seeds or more of both methods; {counted(len(known), 'setting')} with {most} can be "
            "shown, but not tested."
        )
    figure, axes = new_figure(max(5.0, 0.7 * len(found)), 3.6)
    axis = axes[0][0]
    for x, (_, p, test) in enumerate(found):
        axis.bar(x, max(p, 1e-300), color=COLOURS["icm"], width=0.6)
        axis.text(x, max(p, 1e-300), f"n = {test.first}, {test.second}", fontsize=7, ha="center", va="bottom")
    axis.set_yscale("log")
    axis.axhline(0.05, color=INK, linewidth=0.8, linestyle="--", label="0.05")
    axis.set_xticks(range(len(found)), [place for place, _, _ in found], fontsize=8)
    tested = [line for pair in pairs if pair.ours and pair.ours.p is not None for line in (pair.first, pair.second)]
    return _finish(figure, axis, study, tested, protocol, unit="p")


def _gradients(study: Study, stores: Sequence[Path], protocol: Protocol) -> Any:
    """MSE, bias² and variance over steps: a row of panels per dataset, the mean of its seeds per method."""
    known: dict[str, list[dict[str, Any]]] = {}
    for content in map(gradients.read, gradients.files(stores)):
        if content["protocol"] == protocol:
            known.setdefault(content["settings"]["dataset"]["data"], []).append(content)
    if not known:
        raise _nothing(study, protocol)
    figure, axes = new_figure(11, 2.9 * len(known), rows=len(known), columns=len(gradients.FIGURES))
    for row, (data, contents) in zip(axes, known.items(), strict=True):
        for axis, (name, title) in zip(row, gradients.FIGURES.items(), strict=True):
            for method in gradients.METHODS:
                steps, means = _curve(contents, method, name)
                axis.plot(steps, means, label=method, color=_colour(method, list(gradients.METHODS)))
            axis.set_title(f"{title}, {data}", fontsize=10, loc="left", color=INK)
            axis.set_xlabel("step", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def _curve(contents: list[dict[str, Any]], method: str, name: str) -> tuple[list[int], list[float]]:
    values: dict[int, list[float]] = {}
    for row in (row for content in contents for row in content["gradients"] if row["method"] == method):
        values.setdefault(int(row["step"]), []).append(float(row[name]))
    steps = sorted(values)
    return steps, [statistics.fmean(values[step]) for step in steps]


def _finish(figure: Any, axis: Any, study: Study, found: list[Line], protocol: Protocol, unit: str = "") -> Any:
    """Title, with what all of ``found`` have in common, and legend."""
    what = unit or ("noisy mixes, %" if study.value == "noise" else "test accuracy, %")
    axis.set_ylabel(what, fontsize=9, color=INK)
    marks = any(line.get_marker() == "D" for each in figure.axes for line in each.lines)
    title = f"{study.title}; protocol {protocol}{'; ◇ published' if marks else ''}"
    axis.set_title(f"{title}\n{_below(found)}", fontsize=10, loc="left", color=INK)
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _below(found: list[Line]) -> str:
    """The second line of a title: what is common, and epochs that differ, or differ from the paper's."""
    known = lengths(found)
    several = f"{' or '.join(map(str, known))} epochs where the paper has {EPOCHS}" if len(known) > 1 else ""
    return ", ".join(part for part in (common(found), several) if part)


PLOTS: dict[str, Callable[[Study, list[Line], Protocol], Any]] = {"bars": _bars, "lines": _lines, "scatter": _scatter}
