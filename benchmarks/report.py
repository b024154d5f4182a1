"""Results of a benchmark as tables and as a figure."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from complementary.reports import figures
from complementary.reports.tables import align

Results = dict[str, Any]


class Table(NamedTuple):
    """A table of text with a title and a note."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


def _count(value: Any) -> str:
    return f"{value:,.0f}"


def _ms(row: dict[str, Any]) -> str:
    """Median and quartiles: ``3.14 (3.10-3.19)``."""
    digits = 1 if row["ms"] >= 100 else 2 if row["ms"] >= 1 else 4
    return f"{row['ms']:.{digits}f} ({row['ms_low']:.{digits}f}-{row['ms_high']:.{digits}f})"


def _cell(key: str, form: Callable[[Any], str] = str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "" if row.get(key) is None else form(row[key])


def _times(value: Any) -> str:
    return f"{value:.2f} x"


MS = ("ms, median (quartiles)", lambda row: _ms(row) if "ms" in row else "")
MEMORY = ("peak MB", _cell("peak_bytes", lambda b: f"{b / 1e6:,.0f}"))
FIRST = ("first step, s", _cell("first_step_s", lambda s: f"{s:.1f}"))
PER_SECOND = ("images/s", _cell("images_per_second", _count))
NETWORK, BATCH, MIX = ("network", _cell("network")), ("batch", _cell("batch")), ("mixing", _cell("mix"))
STEPS = [NETWORK, MIX, BATCH, PER_SECOND, MS, ("against none", _cell("speed_to_none", _times)), FIRST, MEMORY]
VIEWS = [("encoder", _cell("encoder")), ("backbone", _cell("body")), BATCH]
VIEWS += [("views/s", _cell("views_per_second", _count)), MS, FIRST, MEMORY]

# section -> (title, its columns: (header, row -> text))
TABLES: dict[str, tuple[str, list[tuple[str, Callable[[dict[str, Any]], str]]]]] = {
    "steps": ("A training step", STEPS),
    "reference": (
        "Against a plain loop",
        [("loop", _cell("loop")), NETWORK, MIX, BATCH, PER_SECOND, MS, ("against plain", _cell("times_plain", _times))],
    ),
    "stages": (
        "Each stage of the step alone",
        [NETWORK, ("stage", _cell("stage")), MS, ("of the step", _cell("share_of_step", lambda s: f"{100 * s:.1f} %"))],
    ),
    "simsiam": ("SimSiam", VIEWS),
    "packing": (
        "Several trainings at once",
        [NETWORK, ("trainings", _cell("trainings")), PER_SECOND, ("against one", _cell("times_alone", _times))],
    ),
    "no-max-pool": ("A training step without max-pool", STEPS),
    "kmeans": (
        "k-means",
        [
            ("by", _cell("by")),
            ("points", lambda row: f"{row['points']:,} x {row['width']}"),
            ("clusters", _cell("clusters")),
            ("inertia", _cell("inertia", _count)),
            MS,
            ("ours against it", _cell("times_as_fast", _times)),
        ],
    ),
    "labels": (
        "Drawing labels",
        [("labels", _cell("labels", _count)), ("labels/s", _cell("labels_per_second", _count)), MS],
    ),
    "scan": (
        "Mixing alone for growing data",
        [
            ("grows", _cell("grows")),
            ("to", _cell("value", _count)),
            MS,
            ("against the first", _cell("times_first", _times)),
        ],
    ),
    "stream": (
        "Images prefetched from a memory map",
        [
            ("network", _cell("model")),
            ("size", _cell("size")),
            BATCH,
            ("data, GB", _cell("gigabytes", lambda v: f"{v:.2f}")),
            ("resident images/s", _cell("resident_images_per_second", _count)),
            ("streamed images/s", _cell("streamed_images_per_second", _count)),
            ("streamed to resident", _cell("streamed_to_resident", _times)),
            ("gather and copy alone, GB/s", _cell("copied_gb_per_second", lambda v: f"{v:.1f}")),
        ],
    ),
    "byol": ("BYOL", VIEWS),
    "mocov3": ("MoCo v3", VIEWS),
}


def tables(results: Results) -> Iterator[Table]:
    """One table for each section that succeeded, and one line for each that failed."""
    for name, section in results["sections"].items():
        title, columns = TABLES[name]
        note = f"{section['seconds']:.0f} s, peak memory {section['peak_bytes'] / 1e6:,.0f} MB"
        if "error" in section:
            yield Table(title, [], [], f"failed: {section['error']}")
        else:
            yield Table(title, [h for h, _ in columns], [[f(row) for _, f in columns] for row in section["rows"]], note)


def heading(results: Results) -> str:
    """Machine, versions and date in one line."""
    v = results["versions"]
    quick = " · quick: the numbers are meaningless" if results["quick"] else ""
    what = f"{results['device']} · torch {v['torch']} · {results['engine']['precision']}"
    return f"{what} · complementary {v['complementary']} · {results['date']}{quick}"


def text(results: Results) -> str:
    """All tables as plain text."""
    return "\n\n".join([heading(results), *map(_plain, tables(results))])


def _plain(table: Table) -> str:
    lines = [table.header, *table.rows] if table.header else []
    return "\n".join([f"{table.title} ({table.note})", *align(lines, [False] * len(table.header))])


# --- a figure -------------------------------------------------------------------------------------


def bench_figure(results: Results) -> Any:
    """A matplotlib figure: images/s of ours and of the plain loop, time per stage, several trainings at once."""
    panels = [(name, draw) for name, draw in PANELS.items() if _rows(results, name)]
    figure, axes = figures.new_figure(max(4.2 * len(panels), 4.2), 3.2, columns=max(1, len(panels)))
    for axis, (name, draw) in zip(axes[0], panels, strict=False):
        draw(axis, _rows(results, name))
    figure.suptitle(heading(results), fontsize=8, color=figures.INK)
    return figure


def _rows(results: Results, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results["sections"].get(name, {}).get("rows", [])
    first = next((row["network"] for row in rows if "ms" in row), None)
    return [row for row in rows if "ms" in row and row["network"] == first]


def _bars(axis: Any, heights: dict[str, float], colors: list[str], form: str = "{:,.0f}") -> None:
    for place, ((_, height), color) in enumerate(zip(heights.items(), colors, strict=True)):
        axis.bar(place, height, color=color, width=0.65)
        axis.text(place, height, form.format(height), ha="center", va="bottom", fontsize=8, color=figures.INK)
    axis.set_xticks(range(len(heights)), list(heights))
    axis.margins(y=0.15)


def _speeds(axis: Any, rows: list[dict[str, Any]]) -> None:
    heights = {row["mix"]: row["images_per_second"] for row in rows}
    _bars(axis, heights, [figures.COLORS[mix] for mix in heights])
    axis.set_title(f"images/s, {rows[0]['network']}, batch {rows[0]['batch']}", fontsize=10, loc="left")


def _against(axis: Any, rows: list[dict[str, Any]]) -> None:
    heights = {f"{row['loop']}\n{row['mix']}": row["images_per_second"] for row in rows}
    _bars(axis, heights, [figures.COLORS[row["mix"]] for row in rows])
    axis.set_title(f"images/s, ours and the plain loop, {rows[0]['network']}", fontsize=10, loc="left")


def _shares(axis: Any, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in rows if row["share_of_step"] is not None][::-1]
    names = [row["stage"] for row in rows]
    axis.barh(names, [row["ms"] for row in rows], color=figures.COLORS["icm"], height=0.65)
    for place, row in enumerate(rows):
        axis.text(row["ms"], place, f" {row['ms']:.2f}", va="center", fontsize=8, color=figures.INK)
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.15)
    axis.set_title("milliseconds of each stage", fontsize=10, loc="left")


def _packs(axis: Any, rows: list[dict[str, Any]]) -> None:
    heights = {str(row["trainings"]): row["images_per_second"] for row in rows}
    _bars(axis, heights, [figures.COLORS["icm"]] * len(heights))
    axis.set_xlabel("trainings at once", fontsize=9)
    axis.set_title("images/s in total", fontsize=10, loc="left")


PANELS: dict[str, Callable[[Any, list[dict[str, Any]]], None]] = {
    "steps": _speeds,
    "reference": _against,
    "stages": _shares,
    "packing": _packs,
}
