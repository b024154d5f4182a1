"""Telling the user what goes on: one line per event, and a bar where the terminal can draw one."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from complementary.data.extras import rich_or_none

Say = Callable[[str], None]


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
    with make(*_columns(of_bytes), console=_stderr_console(), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _stderr_console() -> object:
    console = rich_or_none("rich.console.Console")
    assert console is not None  # rich was found a line earlier
    return console(stderr=True)


def _columns(of_bytes: bool) -> list[object]:
    from rich import progress as p

    text, drawn, left = p.TextColumn("{task.description}"), p.BarColumn(), p.TimeRemainingColumn()
    if of_bytes:
        return [text, drawn, p.DownloadColumn(), p.TransferSpeedColumn(), left]
    return [text, drawn, p.MofNCompleteColumn(), left]
