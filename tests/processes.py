"""Processes that are forked from the one of the tests, which spares them the 3 to 6 seconds of imports.

A few tests per room still start a new interpreter: those of ``python -m complementary``, torchrun, Ray and the wheel.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from complementary.cli import main


def start_forked(work: Callable[[], object], **how: Any) -> "subprocess.Popen[str]":
    """Start ``work`` in a fork of this process. Its exit status is the one that Python would have set.

    Args:
        work: What to do there.
        how: More for `subprocess.Popen`, such as pipes, ``cwd`` and ``start_new_session``; not ``env``.
    """
    _import_before_forks()
    own = _open_files()

    def instead_of_exec() -> None:
        """`Popen` has redirected the output. It waits until its pipe is closed, as it would be by exec."""
        status = 70
        try:
            for descriptor in _open_files() - own - {0, 1, 2}:
                os.close(descriptor)
            gc.enable()
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
            status = _status_of(work)
        finally:
            os._exit(status)

    return subprocess.Popen(["forked"], preexec_fn=instead_of_exec, restore_signals=False, text=True, **how)


def start_cll(*arguments: object, **how: Any) -> "subprocess.Popen[str]":
    """Start the command line in a fork of this process; ``arguments`` are what follows ``cll``."""
    return start_forked(lambda: main([str(argument) for argument in arguments]), **how)


def run_cll(*arguments: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a fork of this process until it ends, with its output."""
    process = start_cll(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    out, error = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def kill_until_finished(start: Callable[[], int], folder: Path, seconds: Callable[[int], float]) -> int:
    """Kill a run with -9 at random moments, and start it again, until it has a result -> the number of kills.

    Args:
        start: Starts or resumes the run in a child process -> its process id.
        folder: Where the result appears.
        seconds: The latest moment of a kill, from the number of kills so far.
    """
    moments, kills = random.Random(1126), 0
    while not (folder / "result.json").exists():
        child = start()
        time.sleep(seconds(kills) * moments.random() + 0.02)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), "a resumed run must not fail"
        kills += status == signal.SIGKILL
    return kills


class ForkContext:
    """Starts the processes of `LocalExecutor` as forks. As a spawned one, each holds only its own end of its pipe."""

    def __init__(self) -> None:
        self._fork, self._ours = multiprocessing.get_context("fork"), []

    def Pipe(self) -> tuple[Any, Any]:
        ours, theirs = self._fork.Pipe()
        self._ours.append(ours)
        return ours, theirs

    def Process(self, target: Any, args: tuple[Any, ...], **how: Any) -> Any:
        _import_before_forks()
        return self._fork.Process(target=self._serve, args=(target, args), **how)

    def _serve(self, target: Any, arguments: tuple[Any, ...]) -> None:
        for end in self._ours:
            if not end.closed:
                end.close()
        torch.set_num_threads(torch.get_num_threads())  # renews the pool before lanes race for it
        target(*arguments)


def _import_before_forks() -> None:
    """The first optimizer of a process imports the compiler, which takes more than a second: here once for all."""
    importlib.import_module("torch._dynamo")


def _status_of(work: Callable[[], object]) -> int:
    try:
        work()
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _open_files() -> set[int]:
    """The descriptors of this process, without that of the listing."""
    found = set()
    for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found
