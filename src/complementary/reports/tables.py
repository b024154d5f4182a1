"""Tables as aligned text, Markdown, LaTeX and CSV, and the mean ± standard deviation that fills them."""

import csv as csv_module
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

ROUNDING = 1e-9  # percent; 57 is not 56.999...


def interval_text(low: float, high: float) -> str:
    """``55 to 73 %`` for the fractions .551 and .729, rounded outward: it contains the value, however it is rounded."""
    return f"{math.floor(100 * low + ROUNDING)} to {math.ceil(100 * high - ROUNDING)} %"


def percent_with_error(value: float, error: float) -> str:
    """``64.2 ± 1.3 %`` for the fractions .642 and .013."""
    return f"{100 * value:.1f} ± {100 * error:.1f} %"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of ``count`` values; the deviation of a single value is None."""

    mean: float
    deviation: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """The spread of one or more values."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return Spread(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Table:
    """Cells as text. The first ``keys`` columns describe the row and are left-aligned."""

    title: str
    header: list[str]
    rows: list[list[str]]
    keys: int


def is_percent(name: str) -> bool:
    """Whether the metric ``name`` is a fraction that is shown in percent."""
    return "accuracy" in name or "noise" in name


def show_spread(spread: Spread | None, percent: bool) -> str:
    """Format as ``81.23 ± 0.45 (3)``; '' for None.

    Args:
        spread: What to show; its values are fractions if ``percent``.
        percent: Multiply by 100 and show two decimals; otherwise four significant digits.
    """
    if spread is None:
        return ""
    scale, form = (100, ".2f") if percent else (1, ".4g")
    deviation = "" if spread.deviation is None else f" ± {scale * spread.deviation:{form}}"
    return f"{scale * spread.mean:{form}}{deviation} ({spread.count})"


def counted(number: int, what: str) -> str:
    """A number with its noun: ``1 seed``, ``2 seeds``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


# --- formats ------------------------------------------------------------------------------------------------------


def text(heading: str, tables: Sequence[Table]) -> str:
    """Columns aligned with spaces."""
    blocks = [heading]
    for table in tables:
        lines = align([table.header, *table.rows], [i >= table.keys for i in range(len(table.header))])
        lines.insert(1, "-" * len(max(lines, key=len)))
        blocks.append("\n".join([*([table.title] if table.title else []), *lines]))
    return "\n\n".join(blocks) + "\n"


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Pad the cells of each column to the same width -> one line per row. ``right``: columns to align on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = list(zip(widths, right, strict=True))
    padded = ([c.rjust(w) if r else c.ljust(w) for c, (w, r) in zip(row, columns, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


def markdown(heading: str, tables: Sequence[Table]) -> str:
    """Tables for a Markdown page."""
    blocks = [heading]
    for table in tables:
        rule = ["---" if i < table.keys else "---:" for i in range(len(table.header))]
        lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in (table.header, *table.rows)]
        lines.insert(1, "|" + "|".join(rule) + "|")
        blocks += [f"**{table.title}**"] if table.title else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def latex(heading: str, tables: Sequence[Table]) -> str:
    """One tabular environment per table; no package is needed."""
    blocks = [f"% {heading}"]
    for table in tables:
        lines = [" & ".join(map(_latex, row)) + r" \\" for row in (table.header, *table.rows)]
        form = "l" * table.keys + "r" * (len(table.header) - table.keys)
        head = [f"% {table.title}"] if table.title else []
        body = [rf"\begin{{tabular}}{{{form}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"]
        blocks.append("\n".join([*head, *body, r"\end{tabular}"]))
    return "\n\n".join(blocks) + "\n"


def _latex(cell: str) -> str:
    for special in "\\&%$#_{}":
        cell = cell.replace(special, r"\textbackslash " if special == "\\" else "\\" + special)
    return cell.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ").replace("±", r"$\pm$")


FORMATS: dict[str, Callable[[str, Sequence[Table]], str]] = {"text": text, "markdown": markdown, "latex": latex}
"""Formats for people: heading and tables -> text."""


def csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated values for other programs; floats in full precision, None as an empty cell."""
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
