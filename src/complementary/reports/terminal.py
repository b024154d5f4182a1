"""What the user sees: lines, progress bars and tables; and a sentence where an optional package is missing.

How often lines of progress are written: at most every so many seconds.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from complementary.errors import UserError

Say = Callable[[str], None]


def need(module: str, purpose: str) -> Any:
    """Import ``module``, or say what it is wanted for and how to install it."""
    try:
        return import_module(module)
    except ImportError:
        package = {"PIL": "pillow", "sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
        raise UserError(f"{purpose} needs {package}: pip install 'complementary[cli]'.") from None


def pillow_image() -> Any:
    """Pillow's ``Image`` module."""
    return need("PIL.Image", "Decoding pictures")


def rich_or_none(name: str) -> Callable[..., Any] | None:
    """A class of rich such as ``rich.table.Table``, or None where rich is not installed."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    except ImportError:
        return None


def to_stderr(line: str) -> None:
    """Print one line where it does not mix with results."""
    print(line, file=sys.stderr, flush=True)


def size(count: float) -> str:
    """Bytes for people: 170.5 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@contextmanager
def bar(what: str, total: int | None, of_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar on a terminal while the block runs; yields a function to advance it.

    Nothing is drawn where stderr is not a terminal or rich is not installed.
    """
    make = rich_or_none("rich.progress.Progress") if sys.stderr.isatty() else None
    if make is None:
        yield lambda _: None
        return
    console = need("rich.console", "A progress bar").Console(stderr=True)
    with make(*_columns(of_bytes), console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _columns(of_bytes: bool) -> list[object]:
    from rich import progress as p

    text, drawn, left = p.TextColumn("{task.description}"), p.BarColumn(), p.TimeRemainingColumn()
    if of_bytes:
        return [text, drawn, p.DownloadColumn(), p.TransferSpeedColumn(), left]
    return [text, drawn, p.MofNCompleteColumn(), left]


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table: drawn by rich where it is installed, in plain columns otherwise."""
    make, console = rich_or_none("rich.table.Table"), rich_or_none("rich.console.Console")
    if make is None or console is None:
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        for row in [header, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = make(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(header):
        numeric = i > 0 and all(row[i].replace(",", "").isdigit() or row[i] in "?-" for row in rows)
        table.add_column(title, justify="right" if numeric else "left", no_wrap=i < len(header) - 1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    screen = console(markup=False, highlight=False)
    if not screen.is_terminal:
        screen.width = 120  # a file or pipe has no width of its own, and rich would take 80
    screen.print(table)


EVERY = 15.0  # seconds between two lines in a log: few enough to be read


class Pace:
    """Says whether the next line is due: not sooner than ``seconds`` after the last one.

    The first is due after as long a time too, or ``at_once``.

        >>> from complementary.reports.terminal import Pace
        >>> pace = Pace(60.0, at_once=True)
        >>> [pace.due(), pace.due(), pace.due(anyway=True)]
        [True, False, True]
    """

    def __init__(self, seconds: float = EVERY, at_once: bool = False) -> None:
        self.seconds, self.last = seconds, -math.inf if at_once else time.monotonic()

    def due(self, anyway: bool = False) -> bool:
        """Whether it is time, or a line is written ``anyway``; if so, the next interval begins now."""
        now = time.monotonic()
        if not anyway and now - self.last < self.seconds:
            return False
        self.last = now
        return True
