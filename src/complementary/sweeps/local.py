"""Run cells in processes on this machine: one process per GPU (or share of it) or CPU core, with one or more lanes.

Why not `concurrent.futures` or loky: both give up the whole pool when one worker dies. Here a dead worker loses only
its own tasks, which a new process resumes, and each lane of a process takes the next task as soon as one ends.
"""

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from complementary.engine.backend import choose_device, release_memory, together
from complementary.engine.run_folder import Stopped
from complementary.reports.tables import counted
from complementary.sweeps.grid import Cell
from complementary.sweeps.sweep import Ended, Errors

log = logging.getLogger(__name__)

Work = Callable[[Sequence[Cell], str], Errors]
"""Runs cells on a device and returns the errors of those that failed; must be picklable and not raise."""

CONTEXT = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
EXIT_SECONDS = 10.0  # for a process to exit by itself when the executor is closed: an idle one, or after a checkpoint


def devices(device: str, workers: int | None, gpus_per_run: float | None) -> list[str]:
    """The device of each worker process.

    Args:
        device: As in ``cll train``: auto, cpu, cuda, cuda:1 …
        workers: Number of processes; None: one per CPU core, or as many as fit on the GPUs.
        gpus_per_run: Share of a GPU that a process uses; None: a whole one.
    """
    if choose_device(device).type != "cuda":
        return ["cpu"] * (workers or cores())
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device in ("auto", "cuda") else [device]
    count = workers or max(1, int(len(gpus) / (gpus_per_run or 1.0)))
    return [gpus[i % len(gpus)] for i in range(count)]


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalExecutor:
    """Processes that run one task after another in each of their lanes (threads).

    If a process dies, a new one runs its tasks again, each up to ``retries`` times. With several lanes it is unknown
    which task killed the process, so a task makes its last attempt alone: no task is lost because of another (unless
    ``retries`` is 0: then all tasks of the process are lost).

    Args:
        work: What to do with the cells of a task.
        devices: One process per entry, each on that device.
        retries: How often a task is run again after its process died.
        lanes: Tasks that each process runs side by side.
        logs: Folder for the output of the processes (worker-N.log); None: they share that of this process.
    """

    def __init__(
        self, work: Work, devices: Sequence[str], retries: int = 2, lanes: int = 1, logs: Path | None = None
    ) -> None:
        threads = max(1, cores() // (len(devices) * lanes))
        outputs = [None if logs is None else logs / f"worker-{i}.log" for i in range(len(devices))]
        arguments = [(work, device, threads, lanes, output) for device, output in zip(devices, outputs, strict=True)]
        self._workers = [_Worker(each, lanes, retries) for each in arguments]

    @property
    def free(self) -> bool:
        """Whether a lane is free."""
        return any(worker.free_lanes > 0 for worker in self._workers)

    def submit(self, key: str, cells: Sequence[Cell]) -> None:
        """Give the task to the process with the most free lanes."""
        worker = max(self._workers, key=lambda worker: worker.free_lanes)
        worker.tasks[key] = _Task(cells)
        worker.send()

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that ended, or whose process died too often."""
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers if worker.tasks}
        return [ended for pipe in connection.wait(list(busy), seconds) for ended in busy[pipe].receive()]

    def close(self) -> None:
        """End all processes: idle ones exit, busy ones write a checkpoint first; after a while they are killed.

        No file is left half written: every file is replaced in one step.
        """
        for worker in self._workers:  # all start to exit before the first is waited for
            if worker.tasks:
                worker.terminate()
            else:
                worker.close_pipe()
        ends = time.monotonic() + EXIT_SECONDS
        for worker in self._workers:
            worker.stop(max(0.0, ends - time.monotonic()))


@dataclass
class _Task:
    cells: Sequence[Cell]
    sent: bool = False
    deaths: int = 0  # processes that died with this task


class _Worker:
    """A process, the pipe to it and its tasks. The process is started when it is needed, and again after it died."""

    def __init__(self, arguments: tuple[Any, ...], lanes: int, retries: int) -> None:
        self._arguments, self._lanes, self._retries = arguments, lanes, retries
        self._process: BaseProcess | None = None
        self.pipe: Any = None
        self.tasks: dict[str, _Task] = {}

    @property
    def free_lanes(self) -> int:
        return 0 if self._last_attempts() else self._lanes - len(self.tasks)

    def _last_attempts(self) -> list[str]:
        return [key for key, task in self.tasks.items() if 0 < task.deaths == self._retries]

    def send(self) -> None:
        """Start the tasks that were not sent yet; last attempts one by one, when nothing else is running."""
        last = self._last_attempts()
        for key in [key for key in self.tasks if key not in last] or last[:1]:
            task = self.tasks[key]
            if not task.sent:
                if self._process is None:
                    self._start()
                task.sent = True
                with contextlib.suppress(OSError):  # the process just died: `receive` will find the pipe closed
                    self.pipe.send((key, task.cells))

    def _start(self) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        with _sigint_blocked():
            self._process.start()
        theirs.close()  # the pipe then ends with the process

    def receive(self) -> list[Ended]:
        """Read one message of the process. If it died, run its tasks again, except for those that are lost."""
        try:
            ended = [Ended(*self.pipe.recv())]
        except (EOFError, OSError):
            ended = self._after_death()
        for each in ended:
            del self.tasks[each.key]
        self.send()
        return ended

    def _after_death(self) -> list[Ended]:
        """Clean up after the process died, and return the tasks that are lost."""
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.stop()
        lost = []
        for key, task in self.tasks.items():
            task.deaths, task.sent = task.deaths + task.sent, False
            if task.deaths > self._retries:
                message = f"Its worker process died {counted(task.deaths, 'time')}, the last time by {cause}."
                lost.append(Ended(key, dict.fromkeys((cell.key for cell in task.cells), message)))
            else:
                names = ", ".join(cell.name for cell in task.cells)
                log.warning("%s: the worker process died (%s); continuing in a new one", names, cause)
        return lost

    def close_pipe(self) -> None:
        if self._process is not None:
            self.pipe.close()  # the process exits

    def terminate(self) -> None:
        """Send SIGTERM: a run in the main thread of the process writes a checkpoint, anything else ends at once."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, seconds: float = 0.0) -> None:
        """Kill the process, after it had some time to exit by itself."""
        if self._process is not None:
            self._process.join(seconds)  # torch's compiler removes its temporary files
            self._process.kill()
            self._process.join()
            self._process = None
            self.pipe.close()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT while a process starts, so that Ctrl-C reaches only the parent; `_serve` then ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # otherwise it starts with the first process and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the worker process ----------------------------------------------------------------------------------------


def _serve(pipe: Any, work: Work, device: str, threads: int, lanes: int, output: Path | None) -> None:
    """Receive tasks and send back how they ended, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if output is not None:
        with output.open("ab") as file:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
    logging.captureWarnings(True)  # into the logs of the cells
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    run_lane = functools.partial(_run_lane, pipe, work, device, threading.Lock(), threading.Lock())
    if lanes == 1:
        run_lane()
    else:
        together([run_lane] * lanes, torch.device(device))


def _run_lane(pipe: Any, work: Work, device: str, receiving: threading.Lock, sending: threading.Lock) -> None:
    """Run one task after another; an unexpected exception ends the process, so that the task is not lost silently."""
    try:
        while True:
            with receiving:
                try:
                    key, cells = pipe.recv()
                except EOFError:
                    return
            errors = work(cells, device)
            with sending:
                pipe.send((key, errors))
            release_memory()
    except Stopped:  # SIGTERM; the checkpoint is written
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _exit_with_parent() -> None:
    """If the sweep is killed, its workers exit too and release their locks."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
