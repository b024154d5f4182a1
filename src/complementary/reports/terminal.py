"""What the command line shows: log lines, progress bars and tables.

Library code does not print. It logs lines with ``logging.getLogger(__name__)`` and the progress of counted work (files,
bytes, epochs of a pretraining) with `log_progress`. The command line shows both with `log_to_stderr`.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from complementary.reports.tables import align

if TYPE_CHECKING:  # rich is imported on first use: commands that only print help need to start quickly
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 15.0  # in a log file; on a terminal there is a progress bar


class Training(Protocol):
    """What a progress bar reads from a training loop."""

    stage: str
    epochs: int
    steps_per_epoch: int
    epoch: int
    step_in_epoch: int
    seconds: float
    history: list[dict[str, Any]]


# --- logging ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Count:
    what: str
    done: int
    total: int | None
    unit: str

    def __str__(self) -> str:
        show = format_size if self.unit == "bytes" else "{:,}".format
        return show(self.done) if self.total is None else f"{show(self.done)} of {show(self.total)}"


def log_progress(logger: logging.Logger, what: str, done: int, total: int | None = None, unit: str = "") -> None:
    """Log how far some counted work is. Cheap enough to call for every item.

    The record has level DEBUG, so it is only visible under `log_to_stderr`: as a progress bar on a terminal, as a line
    every 15 seconds elsewhere.

    Args:
        logger: The logger of the calling module.
        what: The work, such as "decoding images"; it identifies the bar.
        done: Items finished so far. The bar ends when this equals ``total``.
        total: All items, or None if unknown.
        unit: "bytes" for sizes such as 1.5 MB; anything else counts items.
    """
    if logger.isEnabledFor(logging.DEBUG):
        count = _Count(what, done, total, unit)
        logger.debug("%s: %s", what, count, extra={"progress": count})


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Show what the package logs on stderr while the block runs: info and warnings as lines, progress as bars.

    Under torchrun only the first process shows anything. If logging is configured so that lines appear on the screen
    anyway, they are not shown twice.
    """
    logger, handler = logging.getLogger("complementary"), _Handler()
    level, configured = logger.level, _is_on_screen(logger)
    shown = logging.INFO if configured else logging.DEBUG
    logger.setLevel(shown if os.environ.get("RANK", "0") == "0" else logging.ERROR)
    if not configured:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        _BARS.close_all()


def _is_on_screen(logger: logging.Logger) -> bool:
    """Whether a handler of the logger, or of one that it propagates to, writes info lines to stdout or stderr."""
    found: logging.Logger | None = logger
    while found is not None:
        for handler in found.handlers:
            on_screen = getattr(handler, "stream", None) in (sys.stdout, sys.stderr) or hasattr(handler, "console")
            if on_screen and handler.level <= logging.INFO:
                return True
        found = found.parent if found.propagate else None
    return False


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.throttle = _Throttle()

    def emit(self, record: logging.LogRecord) -> None:
        count = getattr(record, "progress", None)
        if isinstance(count, _Count):
            self._show(count)
        elif record.levelno >= logging.INFO:
            _print_line(("warning: " if record.levelno >= logging.WARNING else "") + self.format(record))

    def _show(self, count: _Count) -> None:
        if not _is_terminal():
            if self.throttle.due():
                _print_line(f"{count.what}: {count}")
        elif count.done == count.total:
            _BARS.close(count.what)
        else:
            _BARS.show(count.what, count.what, count.done, count.total, str(count))


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _is_terminal() -> bool:
    return _BARS.display is not None or sys.stderr.isatty()  # while it draws, rich replaces sys.stderr


class _Throttle:
    """Limits how often lines are written."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def due(self, force: bool = False) -> bool:
        """True if the interval has passed (or ``force``); restarts the interval."""
        now = time.monotonic()
        if not force and now - self.last < SECONDS_BETWEEN_LINES:
            return False
        self.last = now
        return True


# --- progress bars ------------------------------------------------------------------------------------------------


class _Bars:
    """The progress bars on stderr: one live display of rich, which disappears with the last bar."""

    def __init__(self) -> None:
        self.display: Progress | None = None
        self.tasks: dict[str, TaskID] = {}

    def show(self, key: str, text: str, done: int, total: int | None, count: str = "", note: str = "") -> None:
        if self.display is None:
            self.display = _new_display()
            self.display.start()
        if key not in self.tasks:
            self.tasks[key] = self.display.add_task(text, total=total, count=count, note=note)
        self.display.update(self.tasks[key], description=text, completed=done, total=total, count=count, note=note)

    def close(self, key: str) -> None:
        if self.display is not None and key in self.tasks:
            self.display.remove_task(self.tasks.pop(key))
            if not self.tasks:
                self.display.stop()
                self.display = None

    def close_all(self) -> None:
        for key in list(self.tasks):
            self.close(key)


_BARS = _Bars()


def _new_display() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    fields = ("description", "fields[count]", "fields[note]")
    text, count, note = (TextColumn(f"{{task.{field}}}", markup=False) for field in fields)  # file names may have [/b]
    return Progress(text, BarColumn(), count, TimeRemainingColumn(), note, console=Console(stderr=True), transient=True)


@contextmanager
def training_progress(shown: Mapping[str, str]) -> Iterator[Callable[[Training], None]]:
    """Show the progress of a training on stderr: a bar on a terminal, a line every 15 seconds elsewhere.

    Args:
        shown: The metrics of the last epoch to show: key in the history -> name on screen.

    Yields:
        The function to call after each training step.
    """
    if not _is_terminal():
        yield _TrainingLines(shown)
        return

    def show(loop: Training) -> None:
        text, metrics = f"{loop.stage}epoch {loop.epoch}/{loop.epochs}", _metrics(loop, shown)
        _BARS.show("training", text, _steps(loop), loop.epochs * loop.steps_per_epoch, note=metrics)

    _BARS.show("training", "epoch -", 0, None, note="preparing")
    try:
        yield show
    finally:
        _BARS.close("training")


class _TrainingLines:
    """The same for a log file: a line after the first epoch, then at most one every 15 seconds."""

    def __init__(self, shown: Mapping[str, str]) -> None:
        self.shown, self.throttle, self.first = shown, _Throttle(), True

    def __call__(self, loop: Training) -> None:
        first_epoch = self.first and loop.step_in_epoch == 0
        if loop.epoch >= loop.epochs or not self.throttle.due(force=first_epoch):
            return
        self.first = self.first and not first_epoch
        place = f"{loop.stage}epoch {loop.epoch}/{loop.epochs}"
        if loop.step_in_epoch:
            place += f", step {loop.step_in_epoch}/{loop.steps_per_epoch}"
        steps = _steps(loop)
        left = timedelta(seconds=round(loop.seconds / steps * (loop.epochs * loop.steps_per_epoch - steps)))
        parts = (place, _metrics(loop, self.shown), f"about {left} left")
        _print_line(" · ".join(part for part in parts if part))


def _steps(loop: Training) -> int:
    return loop.epoch * loop.steps_per_epoch + loop.step_in_epoch


def _metrics(loop: Training, shown: Mapping[str, str]) -> str:
    row = loop.history[-1] if loop.history else {}
    return " · ".join(f"{name} {row[key]:.3f}" for key, name in shown.items() if row.get(key) is not None)


# --- tables -------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+]?[\d.,]+( ± [\d.,]+)?( %)?|[?–-]?")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print an aligned table on stdout; columns of numbers are right-aligned. ``header`` may be empty."""
    lines = [*([header] if header else []), *rows]
    numeric = [i > 0 and all(map(_NUMBER.fullmatch, column)) for i, column in enumerate(zip(*rows, strict=True))]
    print("\n".join([*([title] if title else []), *align(lines, numeric or [False] * len(header))]))


def format_size(count: float) -> str:
    """Format a number of bytes: 170.5 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
