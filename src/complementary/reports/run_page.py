"""The report of a run as one HTML page that needs no other file and is readable on a phone."""

import base64
import html
import io
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from complementary.errors import import_optional
from complementary.reports import figures
from complementary.reports.calibration import Calibration
from complementary.reports.confusions import Confusions
from complementary.reports.run_report import Accuracy, ClassRow, RunReport, describe_noise, percent
from complementary.reports.tables import percent_with_error

SOURCES = {
    "labels": "Estimated from complementary labels (unbiased)",
    "model": "As the calibrated model and the answers expect; too few answers for an estimate without the model",
    "oracle": "With the true labels of the test set (oracle)",
}
MAX_CLASSES = 20  # with more classes, only the worst confusions are shown
STYLE = """<style>
.wide { overflow-x: auto; }
.lead { font-size: 2.6rem; font-weight: 700; line-height: 1.1; margin: .6rem 0 .2rem; }
.bar { position: relative; height: .55rem; background: #e8ecf0; border-radius: 3px; margin: .5rem 0; max-width: 30rem; }
.bar i { position: absolute; top: 0; bottom: 0; background: #9dbfe3; border-radius: 3px; }
.bar b { position: absolute; top: -.2rem; bottom: -.2rem; width: 3px; background: #2f6fb3; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.4rem, 1fr)); gap: .9rem; }
.tile { font-size: .82rem; line-height: 1.35; overflow-wrap: anywhere; }
.tile img { width: 100%; aspect-ratio: 1; object-fit: contain; background: #f1f3f5; image-rendering: pixelated; }
.tile b { font-weight: 600; } .flag { color: #b3372f; font-weight: 600; }
.oracle { color: #7a4ea3; } td.cell { text-align: center; min-width: 2.4rem; padding: .3rem; }
td:not(:first-child) { white-space: nowrap; } table.facts td:not(:first-child) { white-space: normal; }
svg { max-width: 100%; height: auto; } th { vertical-align: bottom; }
table.facts td { text-align: left; overflow-wrap: anywhere; } table.facts td:first-child { white-space: nowrap; }
@media (max-width: 600px) {
  body { margin: 1rem auto; } h1 { font-size: 1.35rem; } th, td { padding: .3rem .45rem; font-size: .9rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); } .lead { font-size: 2.1rem; }
}
</style>"""


def page(report: RunReport, csv_name: str | None = None, uncertain_name: str | None = None, top: int = 24) -> str:
    """Make the page.

    Args:
        report: The content.
        csv_name: Name of the CSV file of suspicious answers beside the page; None: there is none.
        uncertain_name: The same for the file of uncertain examples.
        top: Number of suspicious answers and of uncertain examples to show.
    """
    parts = [STYLE, f"<h1>{html.escape(report.title)}</h1>", *_lead(report)]
    parts += _section("Wrong answers", _answers(report, csv_name, top))
    parts += _section("Classes", _classes(report.by_class))
    parts += _section("Confusions", [part for c in report.confusions for part in _confusions(c, report.classes)])
    parts += _section("Calibration", [part for c in report.calibrations for part in _calibration(c)])
    parts += _section("Most uncertain examples", _uncertain(report, uncertain_name, top))
    parts += _section("Annotators", _annotators(report))
    parts += _section("What the model rests on", [_facts(report.basis)] if report.basis else [])
    return figures.page(report.title, parts)


def _section(title: str, parts: list[str]) -> list[str]:
    return [f"<h2>{html.escape(title)}</h2>", *parts] if any(parts) else []


# --- accuracy ---------------------------------------------------------------------------------------------------------


def _lead(report: RunReport) -> list[str]:
    parts: list[str] = []
    if (head := report.headline) is not None:
        parts += [
            f'<p class="lead">{100 * head.value:.0f} %</p>',
            _bar(head),
            f"<p>{html.escape(head.name)}, 95 % interval <b>{head.interval_text()}</b>, for "
            f"{html.escape(head.population)}. {_method(head)}</p>",
        ]
    elif report.accuracies:
        parts.append("<p>The accuracy is not known.</p>")
    else:
        parts.append("<p>There is no held-out example and no test set, so the accuracy is not known.</p>")
    rows = [_accuracy_row(a) for a in report.accuracies] + [_accuracy_row(a, "Baseline: ") for a in report.baselines]
    titles = "<tr><th></th><th>accuracy</th><th>95 % interval</th></tr>"
    parts.append(f'<div class="wide"><table><thead>{titles}</thead><tbody>{"".join(rows)}</tbody></table></div>')
    parts += [f'<p class="small">{html.escape(note)}</p>' for note in report.notes]
    return parts


def _accuracy_row(accuracy: Accuracy, prefix: str = "") -> str:
    value, interval = "not known", html.escape(accuracy.reason)
    if not math.isnan(accuracy.estimate.value):
        value, interval = f"{100 * accuracy.value:.1f} %", accuracy.interval_text()
    oracle = ' <span class="oracle">(oracle)</span>' if accuracy.oracle else ""
    name = f"{html.escape(prefix + accuracy.name)}{oracle}<br>"
    place = f'<span class="small">for {html.escape(accuracy.population)}</span>'
    return f"<tr><td>{name}{place}</td><td>{value}</td><td>{interval}</td></tr>"


def _method(accuracy: Accuracy) -> str:
    if accuracy.oracle:
        return '<span class="oracle">Counted with true labels (oracle).</span>'
    return "Estimated from complementary labels alone; it holds if answers follow the transition matrix below."


def _bar(accuracy: Accuracy) -> str:
    low, high = accuracy.interval()
    return (
        f'<div class="bar" role="img" aria-label="interval"><i style="left:{100 * low:.1f}%;width:'
        f'{100 * (high - low):.1f}%"></i><b style="left:{100 * accuracy.value:.1f}%"></b></div>'
    )


def _cut(value: float) -> float:
    return max(0.0, min(1.0, value))


# --- answers ----------------------------------------------------------------------------------------------------------


def _answers(report: RunReport, csv_name: str | None, top: int) -> list[str]:
    ranked = report.answers
    if ranked is None:
        return []
    link = _link(csv_name)
    parts = [f"<p>{html.escape(describe_noise(ranked, report.issues)).capitalize()}.{link}</p>"]
    tiles = []
    significant = ranked.noise.is_significant
    for found in report.ranked(top):
        place = found.place
        wrong = f"{100 * (1 - float(ranked.quality[place])):.0f} % likely wrong"
        wrong += "" if ranked.is_issue[place] else " (not flagged)"
        says = report.classes[int(ranked.predicted[place])]
        if not significant:
            says += "" if says == found.excluded else f"; {found.excluded}:"
            says += f" {100 * float(ranked.probability[place]):.0f} %"
        lines = [
            f"<b>{html.escape(report.name_of(found.example))}</b>",
            f'answer: <span class="flag">{html.escape(found.text)}</span>',
            f"model: {html.escape(says)}",
            *([wrong] if significant else []),
            *([f"by {html.escape(found.annotator)}"] if found.annotator else []),
            *([] if report.out_of_sample[place] else ["<i>in sample</i>"]),
        ]
        tiles.append(_tile(report, found.example, lines))
    return [*parts, f'<div class="tiles">{"".join(tiles)}</div>']


def _link(name: str | None) -> str:
    """Where the rest of a list is, if it was written."""
    return "" if name is None else f' More of them: <a href="{html.escape(name)}">{html.escape(name)}</a>.'


def _uncertain(report: RunReport, name: str | None, top: int) -> list[str]:
    if not report.uncertain:
        return []
    tiles = []
    for row in report.uncertain[:top]:
        pairs = zip(row.classes, row.probabilities, strict=True)
        lines = [f"<b>{html.escape(report.name_of(row.example))}</b>"]
        lines += [f"{html.escape(name)} {100 * value:.0f} %" for name, value in pairs]
        tiles.append(_tile(report, row.example, lines))
    text = f"<p>Ask for one more answer about these first; their predictions are the least certain.{_link(name)}</p>"
    return [text, f'<div class="tiles">{"".join(tiles)}</div>']


def _tile(report: RunReport, example: int, lines: Sequence[str]) -> str:
    image = report.images.get(example)
    picture = "" if image is None else f'<img alt="{html.escape(report.name_of(example))}" src="{data_url(image)}">'
    return f'<div class="tile">{picture}{"<br>".join(lines)}</div>'


def data_url(image: Tensor) -> str:
    """An image uint8 [C, H, W] as a PNG that is part of the page."""
    pillow = import_optional("PIL.Image", "Showing images")
    pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
    buffer = io.BytesIO()
    pillow.fromarray(pixels.contiguous().to(torch.uint8).cpu().numpy()).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _annotators(report: RunReport) -> list[str]:
    rows = [[name, f"{count:,}", percent(rate)] for name, count, rate in report.annotators]
    return [_table(["annotator", "answers", "estimated wrong"], rows)] if rows else []


# --- classes ----------------------------------------------------------------------------------------------------------


def _classes(rows: list[ClassRow]) -> list[str]:
    if not rows:
        return []
    oracle = any(row.oracle_accuracy is not None for row in rows)
    header = ["class", "predictions right", "predicted", "share of the class", "answers “not this”"]
    header += ["recognized in the test set (oracle)"] if oracle else []
    cells = [
        [
            row.name,
            percent(row.precision) if row.predicted else "never predicted",
            f"{row.predicted:,}",
            percent(row.share),
            f"{row.excluded:,}",
            *([] if not oracle else ["" if row.oracle_accuracy is None else f"{100 * row.oracle_accuracy:.0f} %"]),
        ]
        for row in rows
    ]
    text = "± one standard error. Predictions right: how many predictions of this class hold for unseen examples."
    return [_table(header, cells), f'<p class="small">{text}</p>']


def _confusions(found: Confusions, classes: tuple[str, ...]) -> list[str]:
    parts = [f"<p><b>{SOURCES[found.source]}</b></p>"]
    if len(classes) <= MAX_CLASSES:
        parts.append(_heat(found, classes))
    pairs = found.worst()
    if pairs:
        shown = "; ".join(f"{classes[i]} taken for {classes[j]}: {percent_with_error(*e)}" for i, j, e in pairs)
        parts.append(f"<p>Largest: {html.escape(shown)} of all examples.</p>")
    else:
        parts.append("<p>No confusion is larger than its standard error.</p>")
    return parts


def _heat(found: Confusions, classes: tuple[str, ...]) -> str:
    """Rows: true class; columns: predicted class; in percent of all examples, faint where the error is larger."""
    highest = max(float(found.share.max()), 1e-9)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("true \\ predicted", *classes))
    body = ""
    for i, name in enumerate(classes):
        cells = ""
        for j in range(len(classes)):
            value, error = float(found.share[i, j]), float(found.error[i, j])
            if math.isnan(value):
                cells += '<td class="cell">?</td>'
                continue
            strength = _cut(value / highest)
            color = f"rgba({'47,111,179' if i == j else '179,55,47'},{0.75 * strength:.2f})"
            faint = "opacity:.45;" if value < 2 * error else ""
            cells += f'<td class="cell" style="background:{color};{faint}">{100 * value:.1f}</td>'
        body += f"<tr><td>{html.escape(name)}</td>{cells}</tr>"
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        '<p class="small">In percent of all examples. Faint: less than two standard errors from zero.</p>'
    )


# --- calibration ------------------------------------------------------------------------------------------------------


def _calibration(found: Calibration) -> list[str]:
    if math.isnan(found.accuracy.value):
        return []
    title = "With the true labels of the test set (oracle)" if found.oracle else "Estimated from complementary labels"
    text = (
        f"mean confidence {100 * found.confidence:.0f} %, accuracy {percent(found.accuracy)}, mean gap over "
        f"{len(found.bins)} groups {100 * found.gap:.0f} points"
    )
    return [f"<p><b>{title}</b>{found.assumption}: {text}.</p>", _diagram(found)]


def _diagram(found: Calibration, size: int = 300, margin: int = 42) -> str:
    """Confidence (x) against accuracy with error bars (y), as SVG; on the diagonal is calibrated."""

    def x(value: float) -> float:
        return margin + _cut(value) * (size - 2 * margin)

    def y(value: float) -> float:
        return size - margin - _cut(value) * (size - 2 * margin)

    color = "#7a4ea3" if found.oracle else "#2f6fb3"
    marks = ""
    for bin_ in found.bins:
        value, error = bin_.accuracy
        if not math.isnan(value):
            top, bottom = y(value + 1.96 * error), y(value - 1.96 * error)
            marks += (
                f'<line x1="{x(bin_.confidence):.1f}" x2="{x(bin_.confidence):.1f}" y1="{top:.1f}" y2="{bottom:.1f}" '
                f'stroke="{color}" stroke-width="1.5"/><circle cx="{x(bin_.confidence):.1f}" cy="{y(value):.1f}" r="4" '
                f'fill="{color}"/>'
            )
    ticks = ""
    for value in (0.0, 0.5, 1.0):
        ticks += f'<text x="{x(value):.0f}" y="{size - margin + 16}" text-anchor="middle">{100 * value:.0f}</text>'
        ticks += f'<text x="{margin - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{100 * value:.0f}</text>'
    return (
        f'<svg viewBox="0 0 {size} {size}" width="{size}" height="{size}" font-size="12" fill="{figures.INK}" '
        f'role="img" aria-label="Calibration">'
        f'<rect x="{margin}" y="{margin}" width="{size - 2 * margin}" height="{size - 2 * margin}" fill="none" '
        f'stroke="{figures.GRID}"/>'
        f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" stroke="{figures.GRID}" stroke-width="1.5"/>'
        f"{marks}{ticks}"
        f'<text x="{size / 2}" y="{size - 6}" text-anchor="middle">confidence, %</text>'
        f'<text x="12" y="{size / 2}" text-anchor="middle" transform="rotate(-90 12 {size / 2})">accuracy, %</text>'
        "</svg>"
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(header: list[str], rows: list[list[str]]) -> str:
    return f'<div class="wide">{figures.table(header, rows)}</div>'


def _facts(rows: list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in rows)
    return f'<table class="facts"><tbody>{body}</tbody></table>'
