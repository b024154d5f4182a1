"""What a worker of a sweep does: run cells, or a stage that cells share. It never raises; it says what failed."""

import contextlib
import functools
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from complementary import data, files
from complementary.clusters.assign import clusters_of, features_of
from complementary.data.selection import supervise
from complementary.engine.backend import Engine, together
from complementary.engine.loop import TrainingLoop
from complementary.errors import UserError
from complementary.sweeps.executors import Failures
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.grid import Cell
from complementary.sweeps.plan import Stage
from complementary.training.run import run

LOCK_PATIENCE = 60.0  # a dead node's process may live on, and hold its run, until it notices


@dataclass(frozen=True)
class How:
    """What all runs of a sweep have in common besides their folder; see ``cll sweep --help``."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = True
    deterministic: bool = False
    checkpoint_seconds: float = 30.0

    def engine(self, device: str) -> Engine:
        """The engine on this device."""
        return Engine.choose(device, self.precision, self.compile, self.deterministic)


@dataclass(frozen=True)
class RunCells:
    """Run the cells, side by side if there are several. ``sweep``: the name of the sweep that wants it."""

    cells: Sequence[Cell]
    folder: SweepFolder
    how: How
    sweep: str

    def __call__(self, device: str) -> Failures:
        """Run each to its end, or go on where it stopped -> the sentences of those that failed."""
        try:
            engine = self.how.engine(device)
        except UserError as error:
            return dict.fromkeys((cell.key for cell in self.cells), str(error))
        tasks = [functools.partial(self._guarded, cell, engine) for cell in self.cells]
        with _OUTPUT.to(self.folder.log(self.cells[0].key)):
            said = [tasks[0]()] if len(tasks) == 1 else [str(s) for s in together(tasks, engine.device)]
        return {cell.key: sentence for cell, sentence in zip(self.cells, said, strict=True) if sentence}

    def _guarded(self, cell: Cell, engine: Engine) -> str:
        return _sentence(self.folder.log(cell.key), lambda say: self._run(cell, engine, say))

    def _run(self, cell: Cell, engine: Engine, say: Callable[[str], None]) -> None:
        key, folder, started = cell.key, self.folder.run(cell.key), time.time()
        facts = {"sweep": self.sweep, "host": socket.gethostname(), "process": os.getpid(), "started": started}
        self.folder.write_note(key, **facts)
        say(f"{cell.name} on {facts['host']}, process {facts['process']}, device {engine.device}")
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(files.Locked), files.lock(folder / ".lock", LOCK_PATIENCE):
            pass  # free now, or `run` says who has it
        result = run(
            cell.config,
            folder,
            resume=True,
            device=engine,
            checkpoint_seconds=self.how.checkpoint_seconds,
            progress=lambda job: _tell_epoch(job, say),
        )
        say(f"finished, accuracy_last {result['accuracy_last']}")
        self.folder.write_note(key, **facts, seconds=time.time() - started)


@dataclass(frozen=True)
class RunStage:
    """Make what several cells share, so that each finds it in the cache."""

    stage: Stage
    folder: SweepFolder
    how: How

    def __call__(self, device: str) -> Failures:
        """-> {} or the sentence of the stage."""
        log = self.folder.log(self.stage.key)
        with _OUTPUT.to(log):
            sentence = _sentence(log, lambda say: self._make(device, say))
        return {self.stage.key: sentence} if sentence else {}

    def _make(self, device: str, say: Callable[[str], None]) -> None:
        say(f"{self.stage.name} on {socket.gethostname()}, process {os.getpid()}, device {device}")
        config = self.stage.config
        dataset = data.load(config.dataset.data)
        chosen, _, _ = supervise(config, dataset)
        make: Any = features_of if self.stage.kind == "encoder" else clusters_of
        make(config, dataset, chosen, str(self.how.engine(device).device))  # sets what holds for the whole process
        say("finished")


def _tell_epoch(job: TrainingLoop, say: Callable[[str], None]) -> None:
    if job.step_in_epoch == 0 and job.history:
        row = job.history[-1]
        shown = [f"{name} {row[name]:.4f}" for name in ("loss", "scel", "accuracy") if row.get(name) is not None]
        say(f"{job.stage}epoch {job.epoch}/{job.epochs} {' '.join(shown)}")


def _sentence(log: Path, do: Callable[[Callable[[str], None]], None]) -> str:
    """Do something that may say things to a log -> "" or, if it failed, why."""
    with log.open("a", encoding="utf-8") as file:

        def say(line: str) -> None:
            print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=file, flush=True)

        try:
            do(say)
        except UserError as error:
            say(f"failed: {error}")
            return str(error)
        except Exception as error:
            say(f"failed:\n{traceback.format_exc()}")
            first = (str(error).splitlines() or [""])[0]
            return f"{type(error).__name__}: {first} (the whole story is in {log})"
    return ""


class _Output:
    """Where the output of this process goes: to one log at a time, though several may work here at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: list[Path] = []
        self._usual: dict[int, int] = {}  # copies of the file descriptors as they were

    @contextlib.contextmanager
    def to(self, log: Path) -> Iterator[None]:
        """Whatever is printed meanwhile, by C code too, goes to the end of ``log``; of several, to the eldest's."""
        try:
            with self._lock:
                self._logs.append(log)
                self._turn()
            yield
        finally:
            with self._lock:
                self._logs.remove(log)
                self._turn()

    def _turn(self) -> None:
        sys.stdout.flush(), sys.stderr.flush()
        if not self._usual:
            self._usual = {number: os.dup(number) for number in (1, 2)}
        if self._logs:
            with self._logs[0].open("ab") as file:
                for number in self._usual:
                    os.dup2(file.fileno(), number)
            return
        for number, copy in self._usual.items():
            os.dup2(copy, number)
            os.close(copy)
        self._usual = {}


_OUTPUT = _Output()
