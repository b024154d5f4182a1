"""Many runs: every cell of a grid ends exactly once, done or failed, whoever does the work.

A cell is done when its result.json is there; nothing else is remembered, so a sweep that was stopped in any way
goes on when it is started again: what is done is skipped, what was under way is resumed, what failed is tried again.
"""

import dataclasses
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from complementary import files
from complementary.errors import UserError
from complementary.sweeps.executors import Ended, Executor, Task
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.grid import Cell
from complementary.sweeps.plan import Unit, make_plan
from complementary.sweeps.results import Row
from complementary.sweeps.worker import How, RunCells, RunStage

Happening = Literal["starts", "goes on", "done", "failed", "found"]
Tell = Callable[[Happening, str, str, bool], None]
"""Called with what happened, to whom (a name for people), the sentence of a failure or of a worker's death, and
whether it is a cell."""


@contextmanager
def claimed(folder: SweepFolder) -> Iterator[None]:
    """Hold the folder of a sweep; a second sweep is turned away."""
    folder.make()
    try:
        with files.lock(folder.lock, timeout=1.0):  # `cll sweep status` may be checking the lock
            yield
    except files.Locked:
        raise UserError(
            f"Another sweep is running in {folder.root}; see it with 'cll sweep status {folder.root}', wait for "
            "it, or choose another --out."
        ) from None


class Sweep:
    """A sweep under way. ``outcome``: the key of each cell that ended -> "" or why it failed."""

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: SweepFolder,
        executor: Executor,
        how: How | None = None,
        pack: int = 1,
        tell: Tell = lambda *_: None,
    ) -> None:
        self.cells, self.folder, self.executor = cells, folder, executor
        self.how, self.pack, self.tell = how or How(), pack, tell
        self.name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self.outcome: dict[str, str] = {}
        self._stages: dict[str, str] = {}  # stages that ended -> "" or why they failed
        self._waiting: list[Unit] = []
        self._running: dict[str, Unit] = {}
        executor.on_death = self._tell_of_death

    def run(self) -> dict[str, str]:
        """Run all that is left -> `outcome`. The folder must be `claimed`."""
        self._write_plan()
        finished = self.folder.finished()
        for cell in self.cells:
            self._look(cell, finished.get(cell.key))
        self._waiting = make_plan([cell for cell in self.cells if cell.key not in self.outcome], self.pack)
        while self._waiting or self._running:
            self._submit()
            for ended in self.executor.wait(1.0) if self._running else []:
                self._close(self._running.pop(ended.key), ended)
        return self.outcome

    def _write_plan(self) -> None:
        cells = [{"key": c.key, "name": c.name, "config": dataclasses.asdict(c.config)} for c in self.cells]
        self.folder.write_plan({"sweep": self.name, "workers": self.executor.workers, "cells": cells})

    def _look(self, cell: Cell, finished: Row | str | None) -> None:
        """Skip a cell that is done; one whose result is damaged has failed."""
        if isinstance(finished, str):
            self._end(cell, finished, "failed")
        elif finished is not None:
            self._end(cell, "", "found")
        elif self.folder.note(cell.key):
            self.folder.write_note(cell.key)  # it may have failed before: now it waits

    def _submit(self) -> None:
        """Begin what can begin; cells whose stage failed end here."""
        blocked = []
        for unit in self._waiting:
            reasons = [self._stages.get(key) for key in unit.needs]
            if failed := next((reason for reason in reasons if reason), None):
                self._close(unit, Ended(unit.key, lost=f"What it shares with other cells could not be made: {failed}"))
            elif None in reasons or not self.executor.free:
                blocked.append(unit)
            else:
                self._begin(unit)
        self._waiting = blocked

    def _begin(self, unit: Unit) -> None:
        self._running[unit.key] = unit
        work: Any
        if unit.stage is not None:
            work = RunStage(unit.stage, self.folder, self.how)
            self.tell("starts", unit.stage.name, "", False)
        else:
            work = RunCells(unit.cells, self.folder, self.how, self.name)
            for cell in unit.cells:
                self.tell("starts", cell.name, "", True)
        self.executor.submit(Task(unit.key, work))

    def _tell_of_death(self, key: str, why: str) -> None:
        unit = self._running[key]
        for name in [unit.stage.name] if unit.stage is not None else [cell.name for cell in unit.cells]:
            self.tell("goes on", name, why, unit.stage is None)

    def _close(self, unit: Unit, ended: Ended) -> None:
        if unit.stage is not None:
            why = ended.failures.get(unit.key, ended.lost)
            self._stages[unit.key] = why
            self.tell("failed" if why else "done", unit.stage.name, why, False)
        for cell in unit.cells:
            lost = "" if self.folder.result(cell.key).exists() else ended.lost
            why = ended.failures.get(cell.key, lost)
            self._end(cell, why, "failed" if why else "done")

    def _end(self, cell: Cell, why: str, happening: Happening) -> None:
        assert cell.key not in self.outcome, f"{cell.name} ended twice"
        self.outcome[cell.key] = why
        if why:
            self.folder.write_note(cell.key, failed=why)
        self.tell(happening, cell.name, why, True)
