"""What a worker does: run cells, each with its own log, and report errors instead of raising them."""

import contextlib
import functools
import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from complementary import files
from complementary.engine.backend import Engine, together
from complementary.engine.loop import TrainingLoop
from complementary.errors import UserError
from complementary.sweeps.grid import Cell
from complementary.sweeps.sweep import Errors, SweepFolder
from complementary.training.run import run

log = logging.getLogger(__name__)

LOCK_SECONDS = 60.0  # a process on a node that Ray considers dead may hold the lock for a while


@dataclass(frozen=True)
class RunCells:
    """Runs cells in the folder of a sweep; picklable. The other fields are as in ``cll train``."""

    folder: SweepFolder
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = True
    deterministic: bool = False
    checkpoint_seconds: float = 30.0

    def __call__(self, cells: Sequence[Cell], device: str) -> Errors:
        """Run the cells to the end, or resume them; several run side by side in threads.

        Args:
            cells: What to run.
            device: Name of the device.

        Returns:
            The key of each cell that failed -> message.
        """
        try:
            engine = Engine.choose(device, self.precision, self.compile, self.deterministic)
        except UserError as error:
            return dict.fromkeys((cell.key for cell in cells), str(error))
        tasks = [functools.partial(self._run_logged, cell, engine) for cell in cells]
        messages = [tasks[0]()] if len(tasks) == 1 else together(tasks, engine.device)
        return {cell.key: str(message) for cell, message in zip(cells, messages, strict=True) if message}

    def _run_logged(self, cell: Cell, engine: Engine) -> str:
        path = self.folder.log(cell.key)
        try:
            with _logging_to(path):
                try:
                    self._run(cell, engine)
                except UserError as error:
                    log.error("failed: %s", error)
                    return str(error)
                except Exception as error:
                    log.exception("failed:")
                    first = (str(error).splitlines() or [""])[0]
                    return f"{type(error).__name__}: {first} (see {path})"
        except OSError as error:
            return f"{path} cannot be written ({files.reason_of(error)})."
        return ""

    def _run(self, cell: Cell, engine: Engine) -> None:
        host, process, folder = socket.gethostname(), os.getpid(), self.folder.run(cell.key)
        self.folder.write_note(cell.key, host=host, process=process)
        log.info("%s on %s, process %d, device %s", cell.name, host, process, engine.device)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(files.Locked), files.lock(folder / ".lock", LOCK_SECONDS):
            pass  # free now; otherwise `run` reports that it is locked
        result = run(
            cell.config,
            folder,
            resume=True,
            device=engine,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=_log_epoch,
        )
        log.info("finished, accuracy_last %s", result["accuracy_last"])


def _log_epoch(loop: TrainingLoop) -> None:
    if loop.step_in_epoch == 0 and loop.history:
        row = loop.history[-1]
        shown = [f"{name} {row[name]:.4f}" for name in ("loss", "scel", "accuracy") if row.get(name) is not None]
        log.info("%sepoch %d/%d %s", loop.stage, loop.epoch, loop.epochs, " ".join(shown))


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Append what this thread logs to a file; Python warnings too."""
    handler, thread = logging.FileHandler(path, encoding="utf-8"), threading.get_ident()
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    handler.addFilter(lambda record: record.thread == thread)
    package = logging.getLogger("complementary")
    if not package.isEnabledFor(logging.INFO):
        package.setLevel(logging.INFO)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
