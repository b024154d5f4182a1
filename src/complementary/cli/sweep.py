"""``cll sweep`` and ``cll sweep status``."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from complementary.cli.options import parse
from complementary.config import ADVANCED
from complementary.errors import require
from complementary.reports.tables import counted
from complementary.sweeps.grid import Cell, read_grid
from complementary.sweeps.sweep import STATES, Executor, Status, Sweep, SweepFolder, TimeLimit, read_status


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where the runs are made and how many at once. Except for rounding, none of this changes their results."""

    on: Literal["local", "ray"] = "local"
    """local: processes on this machine; ray: a Ray cluster (pip install '.[ray]' in the checkout)."""
    workers: int | None = None
    """Number of processes; by default one per core or GPU (local), or as many as fit (ray)."""
    address: str | None = None
    """Ray: HOST:PORT of the cluster; by default $RAY_ADDRESS, else a cluster on this machine, started if needed."""
    device: str = "auto"
    """auto (GPUs if there are any), cpu, cuda, cuda:1 …"""
    gpus_per_run: float | None = None
    """Share of a GPU that a process uses, such as 0.25; by default a whole one."""
    pack: int = 1
    """Runs that share one process, side by side: for small networks on a large GPU."""
    retries: int = 2
    """How often a run is resumed in a new process after its process died."""
    precision: Literal["auto", "bf16", "fp32"] = field(default="auto", metadata=ADVANCED)
    """As in cll train."""
    compile: bool = field(default=True, metadata=ADVANCED)
    """As in cll train."""
    deterministic: bool = field(default=False, metadata=ADVANCED)
    """As in cll train."""
    checkpoint_seconds: float = field(default=30.0, metadata=ADVANCED)
    """As in cll train."""

    def check(self) -> None:
        """Raise if an option has an impossible value."""
        require(self.workers is None or self.workers >= 1, "workers", self.workers, "at least 1")
        require(self.gpus_per_run is None or self.gpus_per_run > 0, "gpus_per_run", self.gpus_per_run, "above 0")
        require(self.pack >= 1, "pack", self.pack, "at least 1")
        require(self.retries >= 0, "retries", self.retries, "0 or more")
        require(self.address is None or self.on == "ray", "address", self.address, "left out unless on is ray")

    def executor(self, folder: SweepFolder) -> Executor:
        """Make the executor that runs cells in ``folder``."""
        from complementary.sweeps.worker import RunCells

        work = RunCells(folder, self.precision, self.compile, self.deterministic, self.checkpoint_seconds)
        if self.on == "local":
            from complementary.sweeps.local import LocalExecutor, devices

            per_worker = devices(self.device, self.workers, self.gpus_per_run)
            return LocalExecutor(work, per_worker, self.retries, self.pack, folder.root / "logs")
        from complementary.sweeps.ray import RayExecutor, connect

        return RayExecutor(work, connect(self.address), self.device, self.gpus_per_run, self.retries, self.workers)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Execution):
    """Run every cell of a grid of configurations, on this machine or on a Ray cluster.

    Finished cells are skipped, interrupted ones resumed, failed ones retried: after Ctrl-C, or with more seeds in the
    grid, run the same command again. docs/guide/sweeps.md describes the format of a grid.

    Examples: cll sweep grid.toml --out runs/grid --workers 2
              cll sweep status runs/grid
    """

    grid: tyro.conf.Positional[Path]
    """A TOML file: options, [grid], [[case]], seeds."""
    out: Path | None = None
    """Folder of the sweep; by default runs/ and the name of the grid. With Ray, all nodes must share it."""


@dataclass(frozen=True)
class StatusOptions:
    """Show the state of a sweep: cells done, running, failed and waiting, and why cells failed."""

    folder: tyro.conf.Positional[Path]
    """The --out of the sweep."""


def main(arguments: list[str]) -> None:
    """The command ``cll sweep``."""
    if arguments[:1] == ["status"]:
        _print_status(read_status(parse(StatusOptions, arguments[1:], "cll sweep status").folder))
    else:
        _run_grid(parse(SweepOptions, arguments, "cll sweep"))


def _run_grid(options: SweepOptions) -> None:
    """Run all cells of a grid."""
    options.check()
    cells = read_grid(options.grid)
    folder = SweepFolder(options.out or Path("runs") / options.grid.stem)
    if options.on == "local":  # the nodes of a cluster may have other datasets
        _check_data([cell for cell in cells if not folder.result(cell.key).exists()])
    run_cells(cells, folder, options, "cll sweep")
    _print_others(read_status(folder.root))
    print(f"Tables: cll report {folder.root}")


def _check_data(cells: list[Cell]) -> None:
    """Raise if a dataset is neither known nor imported. Nothing is downloaded, and no large file is read."""
    from complementary import data

    for name in dict.fromkeys(cell.config.dataset.data for cell in cells):
        known = Path(name).exists() if name.endswith(".npz") else name == "digits" or name in data.REGISTRY
        if not known:
            data.load(name)  # imported by the user, or an error


def run_cells(
    cells: list[Cell], folder: SweepFolder, options: Execution, prog: str, limit: TimeLimit | None = None
) -> None:
    """Run cells and print a summary. Exits with status 1 if some failed, with 130 if it was stopped.

    Args:
        cells: What to run.
        folder: The folder of the sweep.
        options: Where and how.
        prog: Name of the command, for the message about Ctrl-C.
        limit: Time after which the sweep ends; what is left then can be run later.
    """
    with folder.claim():
        executor = options.executor(folder)
        try:
            with _sigterm_as_ctrl_c():
                # on Ray a task is a whole pack; a local process gives each of its lanes one cell after another
                pack = options.pack if options.on == "ray" else 1
                outcome = Sweep(cells, folder, executor, pack, limit).run()
        except KeyboardInterrupt:
            done = sum(folder.result(cell.key).exists() for cell in cells)
            print(
                f"{prog}: stopped with {done} of {len(cells)} cells done; the same command continues.", file=sys.stderr
            )
            raise SystemExit(130) from None
        finally:
            executor.close()
    failed = sum(bool(error) for error in outcome.values())
    print(f"{len(outcome) - failed} of {counted(len(cells), 'cell')} done, {failed} failed: {folder.root}")
    if failed:
        print(f"cll sweep status {folder.root} shows why; the same command retries them.")
        raise SystemExit(1)


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM, which batch systems send, like Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_status(status: Status) -> None:
    """Print the state of a sweep."""
    counts = ", ".join(f"{status.count(state)} {state}" for state in STATES)
    print(f"{counted(len(status.cells), 'cell')}: {counts}" + ("" if status.alive else " (no sweep is running)"))
    for cell in status.cells:
        if cell.state == "running":
            print(f"running: {cell.name} ({100 * cell.share:.0f} %)")
    for cell in status.cells:
        if cell.state == "failed":
            print(f"failed: {cell.name}: {cell.error}")
    _print_others(status)


def _print_others(status: Status) -> None:
    """Print what else is in the folder, because `cll report` reads that too."""
    for message in status.damaged:
        print(f"damaged, of an earlier grid: {message}")
    if status.others:
        runs = counted(status.others, "finished run")
        print(f"The folder also has {runs} of earlier grids, which cll report includes.")
