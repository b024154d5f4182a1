"""How far a sweep is: which cells are done, running, failed or waiting, and how long the rest will take."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from complementary import files
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.results import Row

State = Literal["done", "running", "failed", "waiting"]
STATES: tuple[State, ...] = ("done", "running", "failed", "waiting")


@dataclass(frozen=True)
class CellStatus:
    """One cell: ``share`` of its epochs that is done, ``seconds`` it took if it is done, ``why`` it failed."""

    name: str
    state: State
    config: dict[str, Any]
    share: float = 0.0
    seconds: float | None = None
    why: str = ""

    @property
    def epochs(self) -> int:
        """All epochs of the cell that its metrics count."""
        return _epochs(self.config)

    def likeness(self) -> list[tuple[Any, ...]]:
        """What cells of about the same speed have in common, from very much to nothing."""
        c = self.config
        refines = c["training"].get("self_training", 0) > 0
        work = (c["dataset"]["data"], c["dataset"]["long_tail"], c["network"]["model"], c["training"]["batch"], refines)
        return [(*work, c["mixing"]["mix"]), work, ()]


@dataclass(frozen=True)
class Earlier:
    """Runs of earlier grids: how many are finished and how many not, and a sentence for each damaged result."""

    finished: int
    unfinished: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """A whole sweep; ``alive``: a process is at it right now; ``workers``: how many cells run at once.

    ``earlier``: runs in this folder that are not cells of the grid that was started last.
    """

    alive: bool
    workers: int
    cells: tuple[CellStatus, ...]
    earlier: "Earlier"

    def count(self, state: State) -> int:
        """How many cells are in that state."""
        return sum(cell.state == state for cell in self.cells)

    def seconds_left(self) -> float | None:
        """How long the cells that run or wait will take, judged by those that are done; None while none is."""
        if not any(cell.seconds for cell in self.cells):
            return None
        left = [cell for cell in self.cells if cell.state in ("running", "waiting")]
        costs = [(1 - cell.share) * cell.epochs * self._seconds_per_epoch(cell) for cell in left]
        return max(sum(costs) / max(1, self.workers), max(costs, default=0.0))

    def _seconds_per_epoch(self, cell: CellStatus) -> float:
        """The mean of the finished cells that are most like this one."""
        done = [other for other in self.cells if other.seconds]
        for level, shared in enumerate(cell.likeness()):
            alike = [(c.seconds or 0.0) / c.epochs for c in done if c.likeness()[level] == shared]
            if alike:
                return statistics.fmean(alike)
        raise AssertionError("the last likeness holds for all cells")


def read_status(root: str | Path) -> Status:
    """Look at the folder of a sweep; nothing in it is changed."""
    folder = SweepFolder(Path(root))
    plan = folder.plan()
    alive = files.is_locked(folder.lock)
    finished, sweep = folder.finished(), plan["sweep"] if alive else None
    cells = tuple(_look(folder, cell, finished.get(cell["key"]), sweep) for cell in plan["cells"])
    running = sum(cell.state == "running" for cell in cells)
    earlier = _look_for_earlier(folder, finished, {cell["key"] for cell in plan["cells"]})
    return Status(alive, plan["workers"] or max(1, running), cells, earlier)


def _look_for_earlier(folder: SweepFolder, finished: dict[str, Row | str], planned: set[str]) -> Earlier:
    """What is in the folder besides the cells that are ``planned``; ``finished``: see `SweepFolder.finished`."""
    others = [found for key, found in finished.items() if key not in planned]
    damaged = tuple(found for found in others if isinstance(found, str))
    return Earlier(len(others) - len(damaged), len(folder.unfinished() - planned), damaged)


def _look(folder: SweepFolder, cell: dict[str, Any], finished: Row | str | None, sweep: str | None) -> CellStatus:
    """The state of one cell; ``finished``: what is known of its result; ``sweep``: the one that is alive, if any."""
    key, name, config = cell["key"], cell["name"], cell["config"]
    note = folder.note(key)
    if isinstance(finished, dict):
        seconds = max(finished.get("train_seconds") or 0.0, note.get("seconds", 0.0))
        return CellStatus(name, "done", config, 1.0, seconds)
    if why := finished or note.get("failed"):
        return CellStatus(name, "failed", config, why=why)
    state: State = "running" if sweep is not None and note.get("sweep") == sweep else "waiting"
    return CellStatus(name, state, config, _share(folder.run(key), config))


def _share(run: Path, config: dict[str, Any]) -> float:
    try:
        epochs = (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0.0
    return min(1.0, epochs / _epochs(config))


def _epochs(config: dict[str, Any]) -> int:
    return int(config["training"].get("self_training", 0) or config["training"]["epochs"])
