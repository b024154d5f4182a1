"""Figures in one style, and self-contained HTML pages with embedded images."""

import base64
import html
import io
import statistics
from typing import Any

INK, GRID = "#22272e", "#d9dee4"
COLORS = {"none": "#8a939e", "mixup": "#d1843a", "icm": "#2f6fb3", "micm": "#2c8c6b"}

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; color: #22272e;
  max-width: 60rem; margin: 2.5rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.7rem; margin-bottom: .2rem; }} h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .4rem; }}
p {{ max-width: 46rem; }} .small {{ color: #5b6570; font-size: .88rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }} th, td {{ padding: .35rem .9rem; text-align: right; }}
th {{ font-weight: 600; border-bottom: 2px solid #22272e; }} td {{ border-bottom: 1px solid #d9dee4; }}
th:first-child, td:first-child {{ text-align: left; }} img {{ max-width: 100%; height: auto; }}
code {{ background: #f1f3f5; padding: .1rem .3rem; border-radius: 3px; }}
</style></head><body>
{body}
</body></html>
"""


def page(title: str, parts: list[str]) -> str:
    """Make a complete HTML page.

    Args:
        title: Plain text.
        parts: The content of the body, as HTML.
    """
    return PAGE.format(title=html.escape(title), body="\n".join(parts))


def table(header: list[str], rows: list[list[str]]) -> str:
    """Make an HTML table from plain text; the first column is left-aligned, the others right-aligned."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def image_tag(figure: Any, description: str) -> str:
    """Make an HTML image from a matplotlib figure; the PNG is part of the tag."""
    data = base64.b64encode(png(figure)).decode()
    width = round(96 * figure.get_size_inches()[0])
    return f'<img width="{width}" alt="{html.escape(description)}" src="data:image/png;base64,{data}">'


def png(figure: Any, dpi: int = 150) -> bytes:
    """Render a matplotlib figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Make a matplotlib figure in the style of this package, without pyplot's global state.

    Args:
        width: In inches.
        height: In inches.
        rows: Rows of axes.
        columns: Columns of axes.
        options: Passed to ``Figure.subplots``.

    Returns:
        The figure, and its axes as an array [rows, columns].
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(INK)
        axis.tick_params(colors=INK, labelsize=9)
        axis.grid(axis="y", color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def show_image(axis: Any, image: Any, cmap: str = "gray") -> None:
    """Draw an image tensor [C, H, W] with values in 0 .. 1, without ticks and frame."""
    pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
    axis.imshow(pixels, cmap=cmap, vmin=0, vmax=1, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def curves(histories: dict[str, list[list[dict[str, Any]]]], keys: dict[str, str]) -> Any:
    """Draw learning curves: one color per mixer, a thin line per seed and a thick one for the mean.

    Args:
        histories: Mixer -> one history (rows of metrics) per seed.
        keys: Metric -> title of its panel.

    Returns:
        The matplotlib figure.
    """
    figure, axes = new_figure(4.6 * len(keys), 3.4, columns=len(keys))
    for axis, (key, title) in zip(axes[0], keys.items(), strict=True):
        for name, runs in histories.items():
            series = [[row[key] for row in run] for run in runs]
            epochs = range(1, len(series[0]) + 1)
            for one in series:
                axis.plot(epochs, one, color=COLORS.get(name, INK), alpha=0.25, linewidth=0.8)
            mean = [statistics.fmean(values) for values in zip(*series, strict=True)]
            axis.plot(epochs, mean, color=COLORS.get(name, INK), linewidth=2, label=name)
        axis.set_title(title, fontsize=10, loc="left", color=INK)
        axis.set_xlabel("epoch", fontsize=9)
    axes[0][0].legend(frameon=False, fontsize=9)
    return figure


def bars(values: dict[str, list[float]], title: str) -> Any:
    """Draw one bar per name: the mean of its values in percent, and each value as a dot."""
    figure, axes = new_figure(4.6, 2.6)
    axis = axes[0][0]
    for place, (name, numbers) in enumerate(values.items()):
        percent = [100 * n for n in numbers]
        axis.bar(place, statistics.fmean(percent), color=COLORS.get(name, INK), width=0.6)
        axis.plot([place] * len(percent), percent, "o", color=INK, markersize=3)
        axis.text(place, max(percent) + 0.3, f"{statistics.fmean(percent):.1f} %", ha="center", fontsize=9, color=INK)
    axis.set_xticks(range(len(values)), list(values))
    axis.set_title(title, fontsize=10, loc="left", color=INK)
    axis.margins(y=0.15)
    return figure
