"""Processes on this machine: each has its own card, or its own share of the cores, for one task or several at once."""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from complementary.engine.backend import choose_device, give_memory_back, together
from complementary.sweeps.executors import Ended, OnDeath, Task, silent

PATIENCE = 10.0  # seconds that a dismissed process has to end by itself


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
    """One process per entry of ``devices``, each with ``lanes``: threads that do one task after another.

    When a process dies, its tasks are begun again in a new one, each up to ``retries`` times. Nobody knows which of
    several tasks killed it; so a task's last try is alone in the process, and no task is lost by another's fault
    (unless ``retries`` is 0: then all that the process had are lost).
    """

    def __init__(self, devices: Sequence[str], retries: int = 2, lanes: int = 1) -> None:
        at_once = len(devices) * lanes
        self.workers: int | None = at_once
        self.on_death: OnDeath = silent
        self._crew = [_Worker(device, max(1, cores() // at_once), lanes, retries) for device in devices]

    @property
    def free(self) -> bool:
        """Whether a worker has room for a task."""
        return any(worker.room for worker in self._crew)

    def submit(self, task: Task) -> None:
        """Give the task to the worker with the most room."""
        worker = max(self._crew, key=lambda worker: worker.room)
        worker.tasks[task.key] = _Given(task)
        worker.begin()

    def wait(self, seconds: float) -> list[Ended]:
        """What ended meanwhile, and whose process died once too often."""
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._crew if worker.tasks}
        return [end for pipe in connection.wait(list(busy), seconds) for end in busy[pipe].listen(self.on_death)]

    def close(self) -> None:
        """End processes that have nothing to do, kill the others: what they wrote is whole, since every file is
        replaced in one step."""
        for worker in self._crew:
            worker.dismiss()
        for worker in self._crew:
            worker.stop()


@dataclass(eq=False)
class _Given:
    """A task of a worker. ``begun``: its process has it; ``deaths``: how many processes had it and died."""

    task: Task
    begun: bool = False
    deaths: int = 0


class _Worker:
    """A process, the pipe to it and its tasks by key. It is started when it is first needed and again when it died."""

    def __init__(self, device: str, threads: int, lanes: int, retries: int) -> None:
        self._device, self._threads, self._lanes, self._retries = device, threads, lanes, retries
        self._process: BaseProcess | None = None
        self.pipe: Any = None
        self.tasks: dict[str, _Given] = {}

    @property
    def room(self) -> int:
        """How many tasks more it can take; none while one of its own has, or waits for, its last try."""
        return 0 if self._last_tries() else self._lanes - len(self.tasks)

    def _last_tries(self) -> list[_Given]:
        return [given for given in self.tasks.values() if 0 < given.deaths == self._retries]

    def begin(self) -> None:
        """Begin what is not begun; last tries one at a time, once nothing else is under way."""
        last = self._last_tries()
        for given in [given for given in self.tasks.values() if given not in last] or last[:1]:
            if not given.begun:
                self._send(given)

    def _send(self, given: _Given) -> None:
        if self._process is None:
            self._start()
        given.begun = True
        with contextlib.suppress(OSError):  # it died this very moment: `listen` will find the pipe closed
            self.pipe.send(given.task)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit a card's state, and break it
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self._device, self._threads, self._lanes)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _deaf_to_ctrl_c():
            self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def listen(self, on_death: OnDeath) -> list[Ended]:
        """What the process says -> the tasks that ended. If it died, all but those that are lost go on in a new one."""
        try:
            ended = [Ended(*self.pipe.recv())]
        except (EOFError, OSError):  # the other end is gone, and with it the process
            ended = self._bury(on_death)
        for end in ended:
            del self.tasks[end.key]
        self.begin()
        return ended

    def _bury(self, on_death: OnDeath) -> list[Ended]:
        """Forget the process, which died -> the tasks that are lost."""
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.stop()
        for key, given in self.tasks.items():
            if given.begun and given.deaths < self._retries:
                on_death(key, f"Its process died by {cause}; a new one takes it up.")
            given.deaths, given.begun = given.deaths + given.begun, False
        deaths = {key: given.deaths for key, given in self.tasks.items() if given.deaths > self._retries}
        return [Ended(key, lost=f"Its process died {_times(n)}, at last by {cause}.") for key, n in deaths.items()]

    def dismiss(self) -> None:
        """Let an idle process go; one that is killed would leave what torch's compiler has to tidy up."""
        if self._process is not None and not self.tasks:
            self.pipe.close()

    def stop(self) -> None:
        """Kill the process, if there is one; after it was dismissed, once it has had its time."""
        if self._process is not None:
            if self.pipe.closed:
                self._process.join(PATIENCE)
            self._process.kill()
            self._process.join()
            self._process = None
            self.pipe.close()


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A process started meanwhile does not hear of Ctrl-C, which a terminal tells all; the sweep answers it.

    This holds while the process starts; `_serve` then ignores it for good.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it starts with the first process, and lets the signal in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Any, device: str, threads: int, lanes: int) -> None:
    """The life of a worker process: tasks in, how they ended out, until the sweep is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whatever lets it in again; what this process starts is deaf, too
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if "OMP_NUM_THREADS" not in os.environ:  # whoever sets it means it
        torch.set_num_threads(threads)
    work = functools.partial(_work, pipe, device, threading.Lock(), threading.Lock())
    if lanes == 1:
        work()
    else:
        together([work] * lanes, torch.device(device))


def _work(pipe: Any, device: str, taking: threading.Lock, giving: threading.Lock) -> None:
    """Do one task after another, beside other threads that do the same; a mistake in one ends the process."""
    try:
        while (task := _next(pipe, taking)) is not None:
            failures = task.work(device)
            with giving:
                pipe.send((task.key, failures))
            give_memory_back()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _next(pipe: Any, taking: threading.Lock) -> Task | None:
    with taking:
        try:
            task: Task = pipe.recv()
        except EOFError:
            return None
        return task


def _die_with_parent() -> None:
    """A sweep that is killed takes its workers along, so that the next one finds no lock held."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
