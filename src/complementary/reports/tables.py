"""Answers as tables: plain text, Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from complementary.sweeps.results import Answer, Question, Spread, show


@dataclass(frozen=True)
class Table:
    """Cells as text; the first ``keys`` columns say what a row is."""

    title: str
    header: list[str]
    rows: list[list[str]]
    keys: int


def is_percent(name: str) -> bool:
    """Whether a figure is a fraction that people read in percent."""
    return "accuracy" in name or "noise" in name


def show_spread(spread: Spread | None, percent: bool) -> str:
    """``81.23 ± 0.45 (3)``; "" where there is nothing."""
    if spread is None:
        return ""
    scale, form = (100, ".2f") if percent else (1, ".4g")
    deviation = "" if spread.deviation is None else f" ± {scale * spread.deviation:{form}}"
    return f"{scale * spread.mean:{form}}{deviation} ({spread.count})"


def pivot(answer: Answer) -> list[Table]:
    """One table per combination of ``by``, a row per that of ``rows``, a column per that of ``columns`` and value."""
    q = answer.question
    found = {tuple(group.keys.values()): group.spreads for group in answer.groups}
    columns = [(column, name) for column in answer.levels(q.columns) for name in q.value]
    header = [*q.rows, *(_head(q, [show(v) for v in column], name) for column, name in columns)]
    tables = []
    for by in answer.levels(q.by):
        rows = []
        for row in answer.levels(q.rows):
            spreads = [found.get((*by, *row, *column), {}).get(name) for column, name in columns]
            if any(spreads):
                cells = [show_spread(s, is_percent(name)) for s, (_, name) in zip(spreads, columns, strict=True)]
                rows.append([*(show(value) for value in row), *cells])
        title = ", ".join(f"{name} = {show(value)}" for name, value in zip(q.by, by, strict=True))
        tables.append(Table(title, header, rows, len(q.rows)))
    return tables


def _head(question: Question, column: list[str], name: str) -> str:
    """What stands above a column; the figure is named where there are several, or nothing else."""
    return ", ".join([*column, name] if len(question.value) > 1 or not column else column)


def caption(question: Question) -> str:
    """What the numbers are, in one line."""
    unit = ", in percent" if all(is_percent(name) for name in question.value) else ""
    kept = [f"{name} = {', '.join(map(show, values))}" for name, values in question.where.items()]
    where = f"; {'; '.join(kept)}" if kept else ""
    return f"{', '.join(question.value)}: mean ± standard deviation (number of seeds){unit}{where}"


def as_text(answer: Answer) -> str:
    """Columns aligned by spaces."""
    return text(caption(answer.question), pivot(answer))


def text(heading: str, tables: Sequence[Table]) -> str:
    """The same of any tables."""
    blocks = [heading]
    for table in tables:
        widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
        lines = [_aligned(cells, widths, table.keys) for cells in (table.header, *table.rows)]
        lines.insert(1, "-" * len(max(lines, key=len)))
        blocks.append("\n".join([*([table.title] if table.title else []), *lines]))
    return "\n\n".join(blocks) + "\n"


def _aligned(cells: list[str], widths: list[int], keys: int) -> str:
    padded = [c.ljust(w) if i < keys else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(padded).rstrip()


def as_markdown(answer: Answer) -> str:
    """Tables for a README."""
    return markdown(caption(answer.question), pivot(answer))


def markdown(heading: str, tables: Sequence[Table]) -> str:
    """The same of any tables."""
    blocks = [heading]
    for table in tables:
        rule = ["---" if i < table.keys else "---:" for i in range(len(table.header))]
        lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in (table.header, *table.rows)]
        lines.insert(1, "|" + "|".join(rule) + "|")
        blocks += [f"**{table.title}**"] if table.title else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def as_latex(answer: Answer) -> str:
    """One tabular per table; needs no package."""
    return latex(caption(answer.question), pivot(answer))


def latex(heading: str, tables: Sequence[Table]) -> str:
    """The same of any tables."""
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


def as_csv(answer: Answer) -> str:
    """One line per group and value, as fractions and in full precision: for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*answer.question.keys, "value", "mean", "std", "n"])
    for group in answer.groups:
        for name, spread in group.spreads.items():
            figures = ("", "", 0) if spread is None else (spread.mean, spread.deviation, spread.count)
            writer.writerow([*(show(value) for value in group.keys.values()), name, *figures])
    return out.getvalue()


FORMATS: dict[str, Callable[[Answer], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def counted(number: int, what: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
