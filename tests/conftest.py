"""Shared by all tests: one thread per worker, and small problems that train in a fraction of a second."""

import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from complementary.config import Config
from tests.processes import ForkContext

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two workers share two cores

torch.set_num_threads(1)
# A real fsync takes 5 ms, thousands of times, and matters for power failures only: a killed process loses nothing that
# it has written. tests/test_files.py shows that it is called; new interpreters call the real one.
os.fsync = lambda descriptor: None
# a shell starts a background job with SIGINT ignored, and its processes inherit it: tests of Ctrl-C would hang
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Python 3.12 warns of every fork of a process with threads, such as those of pytest-xdist."""
    config.addinivalue_line("filterwarnings", "ignore:This process .* is multi-threaded:DeprecationWarning")


def pytest_collection_modifyitems(items):
    """Tests marked ``gpu`` are skipped where there is none; ``pytest -m gpu`` runs just those.

    Torch's compiler warns now and then, of its own affairs; that a step runs eagerly is a failure.
    """
    for item in (item for item in items if "gpu" in item.keywords):
        item.add_marker(pytest.mark.filterwarnings("default", "error:The step could not be"))
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """What was imported stays until the end, so the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def quick() -> Config:
    """Two epochs on the digits with ICM."""
    return Config.of(data="digits", mix="icm", clusters=20, restarts=1, epochs=2, batch=256)


@pytest.fixture
def cll(capsys):
    """Call the command line in this process -> (exit status, stdout, stderr)."""
    from complementary.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return call


@pytest.fixture
def mounted(tmp_path):
    """A function that mounts a file system of a size, such as 64k -> its folder. Skips where that is not allowed."""
    folders = []

    def mount(size: str) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if not shutil.which("mount") or os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting needs root")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def forked_workers(monkeypatch):
    """Processes of sweeps are forked, not spawned, which spares each the seconds that importing torch takes."""
    monkeypatch.setattr("complementary.sweeps.local.CONTEXT", ForkContext())


@pytest.fixture
def in_child():
    """Run work in a forked child -> its process id. Forking spares the seconds that importing torch takes."""

    def start(work) -> int:
        child = os.fork()
        if child == 0:
            try:
                work()
                os._exit(0)
            except BaseException:
                os._exit(1)
        return child

    return start
