"""``cll sweep`` and ``cll sweep status``."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from complementary import data
from complementary.errors import UserError, require
from complementary.reports.tables import counted
from complementary.sweeps.executors import Executor
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.grid import Cell, read_grid
from complementary.sweeps.local import LocalExecutor, devices
from complementary.sweeps.ray import RayExecutor, connect
from complementary.sweeps.status import STATES, Earlier, Status, read_status
from complementary.sweeps.sweep import Happening, Sweep, Tell, claimed
from complementary.sweeps.worker import How


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how many runs are made; none of this changes their outcome, but for rounding."""

    on: Literal["local", "ray"] = "local"
    """local: processes on this machine; ray: a Ray cluster (pip install 'complementary[ray]')."""
    workers: int | None = None
    """How many processes at once; by default one per core or card (local), or as many as fit (ray)."""
    address: str | None = None
    """Ray: HOST:PORT of the cluster; else $RAY_ADDRESS, else one on this machine, started if need be."""
    device: str = "auto"
    """auto (GPUs if there are any), cpu, cuda, cuda:1 …"""
    gpus_per_run: float | None = None
    """How much of a card a run takes, such as 0.25; by default a whole one."""
    pack: int = 1
    """How many runs share one process, side by side: for small networks on a big card."""
    retries: int = 2
    """How often a run goes on in a new process after its own died."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """As in cll train."""
    compile: bool = True
    """As in cll train."""
    deterministic: bool = False
    """As in cll train."""
    checkpoint_seconds: float = 30.0
    """As in cll train."""

    def check(self) -> None:
        """Raise if a number makes no sense."""
        require(self.workers is None or self.workers >= 1, "workers", self.workers, "at least 1")
        gpus = self.gpus_per_run
        require(gpus is None or gpus > 0, "gpus-per-run", gpus, "above 0")
        require(self.pack >= 1, "pack", self.pack, "at least 1")
        require(self.retries >= 0, "retries", self.retries, "0 or more")
        if self.address is not None and self.on != "ray":
            raise UserError(f"--address is {self.address}, but only --on ray uses it; add that, or leave it out.")

    def how(self) -> How:
        """What all runs have in common."""
        return How(self.precision, self.compile, self.deterministic, self.checkpoint_seconds)

    def executor(self) -> Executor:
        """Who does the work."""
        if self.on == "local":
            return LocalExecutor(devices(self.device, self.workers, self.gpus_per_run), self.retries, self.pack)
        ray = connect(self.address)
        return RayExecutor(ray, self.device, self.gpus_per_run, self.retries, self.workers)

    def cells_per_task(self) -> int:
        """How many cells are given out as one: a whole pack to a Ray task, one to each lane of a local process."""
        return self.pack if self.on == "ray" else 1


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Execution):
    """Run every cell of a grid of configurations, on this machine or on a Ray cluster.

    Cells that are done are skipped, killed ones resumed, failed ones tried again: after Ctrl-C, or with more seeds
    in the grid, give the same command again. docs/sweeps.md shows what a grid looks like.

    Examples: cll sweep grid.toml --out runs/grid --workers 2
              cll sweep status runs/grid
    """

    grid: tyro.conf.Positional[Path]
    """A TOML file: options, [grid], [[case]], seeds."""
    out: Path | None = None
    """Folder of the sweep; by default runs/ and the name of the grid. For Ray, all nodes must see it."""


@dataclass(frozen=True)
class StatusOptions:
    """How far a sweep is: cells done, running, failed and waiting, why they failed, and how long it will take."""

    folder: tyro.conf.Positional[Path]
    """The --out of the sweep."""


def main(arguments: list[str]) -> None:
    """The command ``cll sweep``."""
    if arguments[:1] == ["status"]:
        asked = tyro.cli(StatusOptions, args=arguments[1:], prog="cll sweep status")
        print_status(read_status(asked.folder))
    else:
        run_grid(tyro.cli(SweepOptions, args=arguments, prog="cll sweep"))


def run_grid(options: SweepOptions) -> None:
    """Run all cells; ends with status 1 if some failed, and with 130 if it was stopped."""
    options.check()
    cells = read_grid(options.grid)
    folder = SweepFolder(options.out or Path("runs") / options.grid.stem)
    if options.on == "local":  # on a cluster only the nodes know what they have
        check_data([cell for cell in cells if not folder.result(cell.key).exists()])
    run_cells(cells, folder, options, "cll sweep")
    print_earlier(read_status(folder.root).earlier)
    print(f"cll report {folder.root} makes tables of them.")


def check_data(cells: list[Cell]) -> None:
    """Raise if a dataset is neither known nor there; nothing is fetched, and no large file is read."""
    for name in dict.fromkeys(cell.config.dataset.data for cell in cells):
        known = Path(name).exists() if name.endswith(".npz") else name == "digits" or name in data.TABLE
        if not known:
            data.load(name)  # a set of the user's own, or else a sentence


def run_cells(cells: list[Cell], folder: SweepFolder, options: Execution, who: str) -> None:
    """Run these cells; ``who``: the command that the user gave."""
    with claimed(folder):
        try:
            outcome = _sweep(cells, folder, options)
        except KeyboardInterrupt:
            done = sum(folder.result(cell.key).exists() for cell in cells)
            said = f"stopped with {done} of {len(cells)} cells done; the same command goes on from here."
            print(f"{who}: {said}", file=sys.stderr)
            raise SystemExit(130) from None
    failed = sum(bool(why) for why in outcome.values())
    print(f"{len(cells) - failed} of {len(cells)} cells are done, {failed} failed: {folder.root}")
    if failed:
        print(f"cll sweep status {folder.root} says why; the same command tries them again.")
        raise SystemExit(1)


def _sweep(cells: list[Cell], folder: SweepFolder, options: Execution) -> dict[str, str]:
    executor = options.executor()
    try:
        with _terminable(), _screen(len(cells)) as tell:
            return Sweep(cells, folder, executor, options.how(), options.cells_per_task(), tell).run()
    finally:
        executor.close()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Take SIGTERM, which batch systems send, for Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _screen(total: int) -> Iterator[Tell]:
    """A bar in a terminal, with a line for each failure; elsewhere a line for everything."""
    console, ended = Console(highlight=False, markup=False), 0
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def tell(happening: Happening, name: str, why: str, is_cell: bool) -> None:
            nonlocal ended
            ended += is_cell and happening not in ("starts", "goes on")
            bar.update(task, completed=ended, description=name)
            if why or (happening != "found" and not console.is_terminal):
                line = f"[{ended}/{total}] {name} {happening}{': ' if why else ''}{why}"
                console.print(line, soft_wrap=True)

        yield tell


def print_status(status: Status) -> None:
    """What `read_status` found, for people."""
    counts = ", ".join(f"{status.count(state)} {state}" for state in STATES)
    print(f"{counted(len(status.cells), 'cell')}: {counts}" + ("" if status.alive else " (no sweep is running)"))
    for cell in status.cells:
        if cell.state == "running":
            print(f"running: {cell.name} ({100 * cell.share:.0f} %)")
    for cell in status.cells:
        if cell.state == "failed":
            print(f"failed: {cell.name}: {cell.why}")
    left = status.seconds_left()
    if status.count("running") + status.count("waiting"):
        known = "unknown until a cell is done" if left is None else f"about {timedelta(seconds=round(left))}"
        print(f"time left: {known}" + ("" if status.alive or left is None else ", once it is started again"))
    print_earlier(status.earlier)


def print_earlier(earlier: Earlier) -> None:
    """What else is in the folder, which tables count too; nothing if there is nothing."""
    for sentence in earlier.damaged:
        print(f"damaged, of an earlier grid: {sentence}")
    if earlier.finished or earlier.unfinished:
        rest = f" and {earlier.unfinished} unfinished" if earlier.unfinished else ""
        runs = f"{counted(earlier.finished, 'finished run')}{rest}"
        print(f"This folder also has {runs} of earlier grids; cll report counts the finished ones too.")
