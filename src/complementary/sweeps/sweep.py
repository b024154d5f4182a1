"""A sweep: an executor runs every cell of a grid exactly once, in one folder.

| file | content |
|---|---|
| sweep.json | the cells of the grid that was started last |
| runs/KEY/ | the run of one cell, as ``cll train`` writes it; KEY: the first 16 digits of its configuration's hash |
| logs/KEY.log | its log, epoch by epoch |
| logs/worker-N.log | what libraries print in the worker processes |
| notes/KEY.note | which process runs it, or why it failed; JSON |
| .lock | held while a sweep runs here |

A cell is done when its result.json exists. No other state is kept, so a sweep that was stopped in any way continues
when it is started again: finished cells are skipped, interrupted ones resumed, failed ones retried.

Encoders and clusters that several cells share are computed once: workers wait for each other's locks in the cache.
This module does not import torch.
"""

import contextlib
import json
import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from complementary import files
from complementary.config import Config
from complementary.errors import UserError
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import Damaged, read_config

log = logging.getLogger(__name__)

Errors = dict[str, str]
"""Key of each cell that failed -> message."""


@dataclass(frozen=True)
class Ended:
    """A task that ended, with the errors of its cells."""

    key: str
    errors: Errors = field(default_factory=dict)


class Executor(Protocol):
    """Runs tasks in other processes. A task is a pack of cells; its key is that of the first one.

    If a worker dies, the executor runs its tasks again, so each submitted task is reported as ended exactly once.
    """

    @property
    def free(self) -> bool:
        """Whether another task can be submitted now."""

    def submit(self, key: str, cells: Sequence[Cell]) -> None:
        """Start a task. Only call this while `free`."""

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that ended since the last call; waits at most ``seconds`` for the first one."""

    def close(self) -> None:
        """Stop all workers immediately; interrupted runs can be resumed."""


# --- the folder ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepFolder:
    """The files of a sweep."""

    root: Path

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Create the folder and hold its lock; a second sweep in the same folder is an error."""
        with files.reading(self.root, option="out"):
            is_run = (self.root / "config.toml").exists()
        if is_run:
            raise UserError(f"{self.root} is the folder of a single run; choose another folder for the sweep.", "out")
        for name in ("runs", "logs", "notes"):
            files.make_folder(self.root / name, "out")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(files.lock(self.lock, timeout=1.0))  # `read_status` holds it for a moment
            except files.Locked:
                message = f"Another sweep is running in {self.root}; wait for it or choose another folder."
                raise UserError(message, "out") from None
            yield

    @property
    def lock(self) -> Path:
        """Held while a sweep runs."""
        return self.root / ".lock"

    def run(self, key: str) -> Path:
        """The folder of a cell's run."""
        return self.root / "runs" / key

    def result(self, key: str) -> Path:
        """The file that exists once the cell is done."""
        return self.run(key) / "result.json"

    def finished(self) -> dict[str, str]:
        """The keys of all cells with a result -> '' or, if the file is damaged, a message."""
        found: dict[str, str] = {}
        for path in sorted((self.root / "runs").glob("*/result.json")):
            try:
                found[_key_of(read_config(path), path.parent.name)] = ""
            except Damaged as error:
                found.setdefault(path.parent.name, f"{error.fact} Restore it, or delete it to run the cell again.")
        return found

    def log(self, key: str) -> Path:
        """The log of a cell."""
        return self.root / "logs" / f"{key}.log"

    def note(self, key: str) -> dict[str, Any]:
        """What is known about a cell that is not done; {} if nothing."""
        try:
            found = json.loads(self._note(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_note(self, key: str, **facts: Any) -> None:
        """Replace the note of a cell; without facts, remove it."""
        if facts:
            files.atomic_write(self._note(key), json.dumps(facts))
        else:
            with contextlib.suppress(OSError):
                self._note(key).unlink(missing_ok=True)

    def _note(self, key: str) -> Path:
        return self.root / "notes" / f"{key}.note"  # not .json: results are searched by that ending

    def plan(self) -> list[dict[str, Any]]:
        """The cells of the grid that was started last: key, name and number of epochs."""
        path = self.root / "sweep.json"
        with files.reading(path, "start the sweep again to replace it"):
            try:
                content = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise UserError(
                    f"There is no sweep in {self.root} (no sweep.json); name the folder of a sweep."
                ) from None
            cells = [{name: cell[name] for name in ("key", "name", "epochs")} for cell in json.loads(content)]
            for cell in cells:
                if not (isinstance(cell["key"], str) and cell["key"].isalnum() and isinstance(cell["name"], str)):
                    raise ValueError("a cell has no key or name")
                if type(cell["epochs"]) is not int or cell["epochs"] < 1:
                    raise ValueError(f"the number of epochs of a cell is {cell['epochs']}")
            return cells

    def write_plan(self, cells: Sequence[Cell]) -> None:
        """Replace sweep.json."""
        plan = [{"key": cell.key, "name": cell.name, "epochs": _epochs(cell)} for cell in cells]
        files.atomic_write(self.root / "sweep.json", json.dumps(plan, indent=1) + "\n")


def _epochs(cell: Cell) -> int:
    """The number of lines that metrics.jsonl will have."""
    config = cell.config
    epochs = config.training.total_epochs
    two_parts = config.training.recipe == "plnl" and config.dataset.inputs == "raw"  # see `PlnlTrainer`
    return config.pseudo_labels.self_training or (2 if two_parts else 1) * epochs


# --- running ------------------------------------------------------------------------------------------------------


LATEST = 4  # tasks by which the speed is judged: the first ones of a process also wait for its compilation


@dataclass(frozen=True)
class TimeLimit:
    """A time after which a sweep ends. A task is left out if it is not expected to end in time.

    If the latest tasks took longer than expected, for example because the device is shared, this is expected of the
    next ones, too. If all of them were faster, the next ones are expected to take as long as the slowest of these. Only
    tasks count that started from their first epoch and finished: others show less time than a run takes.

    Attributes:
        ends: When the sweep ends, on the clock of `time.monotonic`. Tasks that still run then can be resumed later.
        seconds: Key of each cell -> seconds that it is expected to take.
    """

    ends: float
    seconds: Mapping[str, float]
    _slower: list[float] = field(default_factory=list, repr=False)  # seconds taken / expected of complete tasks

    def admits(self, cells: Sequence[Cell]) -> bool:
        """Whether a task is expected to end in time if it starts now."""
        return time.monotonic() + self._factor() * self._expected(cells) <= self.ends

    def _factor(self) -> float:
        latest = self._slower[-LATEST:]
        if len(latest) == LATEST and max(latest) < 1:
            return max(latest)
        return max(1.0, statistics.median(latest)) if latest else 1.0

    def took(self, cells: Sequence[Cell], seconds: float) -> None:
        """Note how long a complete task took."""
        self._slower.append(seconds / self._expected(cells))

    def _expected(self, cells: Sequence[Cell]) -> float:
        return max(self.seconds[cell.key] for cell in cells)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.ends


@dataclass(frozen=True)
class _Task:
    """Cells that were submitted together, whether all of them start from their first epoch, and when this was."""

    cells: list[Cell]
    is_new: bool
    started: float


class Sweep:
    """One execution of a grid.

    Args:
        cells: The cells, each with its own key.
        folder: Where to run; the caller must have claimed it (`SweepFolder.claim`).
        executor: Runs the cells.
        pack: Cells per task. More than one run side by side in one worker, and end together.
        limit: Time after which the sweep ends, even if cells are left; None: none.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: SweepFolder,
        executor: Executor,
        pack: int = 1,
        limit: TimeLimit | None = None,
    ) -> None:
        self.cells, self.folder, self.executor, self.pack, self.limit = cells, folder, executor, pack, limit
        self.outcome: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Run all cells that are not done.

        Returns:
            The key of each cell -> '' or why it failed. Cells that the time limit left out are not in it.
        """
        self.folder.write_plan(self.cells)
        finished = self.folder.finished()
        for cell in self.cells:
            self.folder.write_note(cell.key)  # a cell that failed before is waiting again
            if cell.key in finished:
                self._end(cell, finished[cell.key], new=False)
        left = [cell for cell in self.cells if cell.key not in self.outcome]
        waiting = [left[i : i + self.pack] for i in range(0, len(left), self.pack)]
        running: dict[str, _Task] = {}
        while waiting or running:
            if self.limit is not None and self.limit.is_over:
                break
            while waiting and self.executor.free:
                cells = waiting.pop(0)
                if self.limit is not None and not self.limit.admits(cells):
                    continue
                running[cells[0].key] = _Task(cells, self._is_new(cells), time.monotonic())
                self.executor.submit(cells[0].key, cells)
            for ended in self.executor.wait(1.0):
                task = running.pop(ended.key)
                done = {cell.key: self.folder.result(cell.key).exists() for cell in task.cells}
                if self.limit is not None and task.is_new and all(done.values()):
                    self.limit.took(task.cells, time.monotonic() - task.started)
                for cell in task.cells:
                    error = "" if done[cell.key] else ended.errors.get(cell.key, "It ended without a result.")
                    self._end(cell, error)
        return self.outcome

    def _is_new(self, cells: Sequence[Cell]) -> bool:
        """Whether none of the cells was started before, and will be resumed."""
        return not any(self.folder.run(cell.key).exists() for cell in cells)

    def _end(self, cell: Cell, error: str, new: bool = True) -> None:
        assert cell.key not in self.outcome, f"{cell.name} ended twice"
        self.outcome[cell.key] = error
        count = f"[{len(self.outcome)}/{len(self.cells)}]"
        if error:
            self.folder.write_note(cell.key, failed=error)
            log.warning("%s %s failed: %s", count, cell.name, error)
        elif new:
            log.info("%s %s done", count, cell.name)


def _key_of(config: Config, folder: str) -> str:
    """The key of the cell that a result in a run folder belongs to: that of its configuration, or of the configuration
    before the run adapted its recipe to the data."""
    keys = [Cell(given, "").key for given in config.before_adaptation()]
    return folder if folder in keys else keys[0]


# --- status -------------------------------------------------------------------------------------------------------

State = Literal["done", "running", "failed", "waiting"]
STATES: tuple[State, ...] = ("done", "running", "failed", "waiting")


@dataclass(frozen=True)
class CellStatus:
    """The state of one cell, the share of its epochs that is done, and why it failed."""

    name: str
    state: State
    share: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Status:
    """The state of a sweep."""

    alive: bool
    """Whether a sweep is running in the folder."""
    cells: tuple[CellStatus, ...]
    others: int
    """Finished runs in the folder that belong to earlier grids."""
    damaged: tuple[str, ...]
    """Messages about damaged results of earlier grids."""

    def count(self, state: State) -> int:
        """The number of cells in a state."""
        return sum(cell.state == state for cell in self.cells)


def read_status(root: str | Path) -> Status:
    """Read the state of a sweep from its folder, without changing anything.

    Args:
        root: The folder of the sweep.
    """
    folder = SweepFolder(Path(root))
    plan, finished, alive = folder.plan(), folder.finished(), files.is_locked(folder.lock)
    cells = tuple(_cell_status(folder, cell, finished.pop(cell["key"], None), alive) for cell in plan)
    damaged = tuple(error for error in finished.values() if error)
    return Status(alive, cells, len(finished) - len(damaged), damaged)


def _cell_status(folder: SweepFolder, cell: dict[str, Any], finished: str | None, alive: bool) -> CellStatus:
    note = folder.note(cell["key"])
    if finished == "":
        return CellStatus(cell["name"], "done", 1.0)
    if error := finished or note.get("failed"):
        return CellStatus(cell["name"], "failed", error=error)
    try:
        lines = (folder.run(cell["key"]) / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        lines = 0
    # notes of earlier sweeps are removed when a sweep starts
    return CellStatus(cell["name"], "running" if alive and note else "waiting", min(1.0, lines / cell["epochs"]))
