"""Processes on this machine: each has its own card, or its own share of the cores."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from complementary.device import choose_device
from complementary.executors import Ended, Task


def devices(device: str, workers: int | None, gpus_per_run: float | None) -> list[str]:
    """One device name per worker: cards in turn, ``gpus_per_run`` of one each; or the CPU, one worker per core."""
    if choose_device(device).type != "cuda":
        return ["cpu"] * (workers or cores())
    cards = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device in ("auto", "cuda") else [device]
    count = workers or max(1, int(len(cards) / (gpus_per_run or 1.0)))
    return [cards[i % len(cards)] for i in range(count)]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalExecutor:
    """One process per entry of ``devices``; a task whose process dies is tried ``retries`` times more."""

    def __init__(self, devices: Sequence[str], retries: int = 2) -> None:
        threads = max(1, cores() // len(devices))
        self.workers: int | None = len(devices)
        self._retries = retries
        self._crew = [_Worker(device, threads) for device in devices]

    @property
    def free(self) -> bool:
        """Whether a worker has nothing to do."""
        return any(worker.task is None for worker in self._crew)

    def submit(self, task: Task) -> None:
        """Give the task to an idle worker."""
        idle = next(worker for worker in self._crew if worker.task is None)
        idle.deaths = 0
        idle.begin(task)

    def wait(self, seconds: float) -> list[Ended]:
        """What ended meanwhile, and whose process died once too often."""
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._crew if worker.task is not None}
        ended = [self._listen(busy[pipe]) for pipe in connection.wait(list(busy), seconds)]
        return [end for end in ended if end is not None]

    def _listen(self, worker: "_Worker") -> Ended | None:
        task = worker.task
        assert task is not None  # only busy workers are listened to
        try:
            ended = Ended(task.key, worker.pipe.recv())
        except (EOFError, OSError):  # the other end is gone, and with it the process
            cause = worker.bury()
            if worker.deaths <= self._retries:
                worker.begin(task)
                return None
            ended = Ended(task.key, lost=f"Its process died {_times(worker.deaths)}, at last by {cause}.")
        worker.task = None
        return ended

    def close(self) -> None:
        """Kill all processes; what they wrote is whole, since every file is replaced in one step."""
        for worker in self._crew:
            worker.stop()


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


class _Worker:
    """A process and the pipe to it, started when it is first needed and again when it died."""

    def __init__(self, device: str, threads: int) -> None:
        self._device, self._threads = device, threads
        self._process: BaseProcess | None = None
        self.pipe: Any = None
        self.task: Task | None = None
        self.deaths = 0

    def begin(self, task: Task) -> None:
        if self._process is None:
            self._start()
        self.task = task
        try:
            self.pipe.send(task)
        except OSError:  # it died this very moment: `wait` will find the pipe closed
            return

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit a card's state, and break it
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self._device, self._threads)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _deaf_to_ctrl_c():
            self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def bury(self) -> str:
        """Forget the process, which died -> by what: ``SIGKILL``, ``exit status 1``."""
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        self.deaths += 1
        self.stop()
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
            self.pipe.close()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process started meanwhile never hears of Ctrl-C, which a terminal tells all; the sweep answers it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _serve(pipe: Any, device: str, threads: int) -> None:
    """The life of a worker process: tasks in, failures out, until the sweep is gone."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if "OMP_NUM_THREADS" not in os.environ:  # whoever sets it means it
        torch.set_num_threads(threads)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(task.work(device))
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the next task may be in another process on this card


def _die_with_parent() -> None:
    """A sweep that is killed takes its workers along, so that the next one finds no lock held."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
