"""Tasks here are named by strings instead of cells; what they do is up to `Work`."""

import multiprocessing
import multiprocessing.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from complementary.engine import backend
from complementary.sweeps.local import LocalExecutor, cores, devices

slow = pytest.mark.slow  # several processes, each of which imports torch


@dataclass(frozen=True)
class Named:
    """What an executor reads from a cell."""

    name: str

    @property
    def key(self):
        return self.name


@dataclass(frozen=True)
class Work:
    """Adds a line to the file of the task: process, lane, threads. Then it waits for files and acts by its name.

    ``after``: names of other tasks whose files must exist first.
    """

    folder: Path
    after: tuple[str, ...] = ()

    def __call__(self, cells, device):
        (task,) = cells
        file = self.folder / task.name
        with file.open("a") as opened:
            opened.write(f"{os.getpid()} {backend._LANE.number} {torch.get_num_threads()}\n")
        first = len(file.read_text().splitlines()) == 1
        if not appear(self.folder / name for name in self.after):
            return {task.name: f"{self.after} did not start"}
        if "tidy" in task.name:
            multiprocessing.util.Finalize(None, (self.folder / "tidied").touch, exitpriority=1)
        if "deadly" in task.name or ("dies once" in task.name and first):
            os._exit(3)
        if "lingers" in task.name and first:
            time.sleep(60)
        if "raises" in task.name:
            raise EOFError("a bug")
        return {task.name: "an error"} if "fails" in task.name else {}


def appear(paths, seconds=30):
    """Wait until all files hold a line -> whether they do."""
    deadline, paths = time.monotonic() + seconds, list(paths)
    while not (there := all(path.exists() and path.read_text().endswith("\n") for path in paths)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return there


def lines(file):
    """What a task wrote: rows of (process, lane, threads)."""
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()]


@pytest.fixture
def start(tmp_path, forked_workers):
    """A function that starts an executor; it is closed after the test."""
    started = []

    def make(count=1, after=(), **options):
        started.append(LocalExecutor(Work(tmp_path, after), ["cpu"] * count, **options))
        return started[-1]

    yield make
    for executor in started:
        executor.close()


def submit(executor, *names):
    for name in names:
        assert executor.free
        executor.submit(name, [Named(name)])


def finish(executor, count):
    ended, deadline = [], time.monotonic() + 60
    while len(ended) < count:
        assert time.monotonic() < deadline, f"only {[end.key for end in ended]} ended"
        ended += executor.wait(1.0)
    assert executor.wait(0) == []
    return {end.key: end.errors for end in ended}


@slow
def test_tasks_end_once_each_and_dead_processes_are_replaced(start, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("OMP_NUM_THREADS")
    executor, found = start(retries=1), {}
    for name in ("returns", "fails", "dies once", "deadly", "returns again"):
        submit(executor, name)
        assert not executor.free
        found |= finish(executor, 1)
    executor.close()
    assert "2 times" in found["deadly"].pop("deadly")
    assert found == {"returns": {}, "fails": {"fails": "an error"}, "dies once": {}, "deadly": {}, "returns again": {}}
    assert [r.message.partition(":")[0] for r in caplog.records] == ["dies once", "deadly"]
    written = {name: lines(tmp_path / name) for name in found}
    assert [len(rows) for rows in written.values()] == [1, 1, 2, 2, 1]
    assert written["returns"] == written["fails"]  # the same process
    assert written["returns"][0][2] == cores()
    with pytest.raises(ProcessLookupError):
        os.kill(written["returns again"][0][0], 0)


@slow
@pytest.mark.parametrize("lanes", [1, 2])
def test_idle_processes_exit_by_themselves(start, tmp_path, lanes):
    executor = start(lanes=lanes)
    submit(executor, "tidy")
    finish(executor, 1)
    executor.close()
    assert (tmp_path / "tidied").exists()


def test_output_of_processes_goes_to_their_log(tmp_path, capfd):
    executor = LocalExecutor(Work(tmp_path), ["cpu"], retries=0, logs=tmp_path)
    try:
        submit(executor, "raises")
        finish(executor, 1)
    finally:
        executor.close()
    assert "EOFError: a bug" in (tmp_path / "worker-0.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_lanes_take_the_next_task_while_another_is_running(tmp_path, monkeypatch):
    """The slow task ends only when all quick ones have started."""
    monkeypatch.delenv("OMP_NUM_THREADS")

    executor, quick, ended = LocalExecutor(SlowFirst(tmp_path), ["cpu"], lanes=2), ["a", "b", "c"], []
    try:
        waiting = ["slow", *quick]
        while len(ended) < 4:
            while waiting and executor.free:
                submit(executor, waiting.pop(0))
            ended += executor.wait(1.0)
    finally:
        executor.close()
    assert sorted((end.key, end.errors) for end in ended) == [(name, {}) for name in (*quick, "slow")]
    rows = {name: lines(tmp_path / name) for name in ("slow", *quick)}
    assert all(len(row) == 1 for row in rows.values())
    assert len({row[0][0] for row in rows.values()}) == 1  # one process
    assert {rows[name][0][1] for name in quick} == {3 - rows["slow"][0][1]}  # the other lane
    assert {row[0][2] for row in rows.values()} == {max(1, cores() // 2)}


@dataclass(frozen=True)
class SlowFirst:
    """Work in which only the task "slow" waits for the others."""

    folder: Path

    def __call__(self, cells, device):
        after = ("a", "b", "c") if cells[0].name == "slow" else ()
        return Work(self.folder, after)(cells, device)


@slow
def test_tasks_of_a_killed_process_run_again_and_end_once(start, tmp_path, monkeypatch):
    """The processes are spawned, as they are outside of tests."""
    monkeypatch.setattr("complementary.sweeps.local.CONTEXT", multiprocessing.get_context("spawn"))
    executor = start(lanes=2)
    submit(executor, "lingers 1", "lingers 2")
    assert not executor.free
    assert appear([tmp_path / "lingers 1", tmp_path / "lingers 2"])
    victim = lines(tmp_path / "lingers 1")[0][0]
    os.kill(victim, signal.SIGKILL)
    found = finish(executor, 2)
    assert found == {"lingers 1": {}, "lingers 2": {}}
    for name in found:
        first, second = lines(tmp_path / name)
        assert first[0] == victim != second[0]
    assert executor.free


@slow
def test_task_is_not_lost_because_of_another(start, tmp_path):
    """The first death counts for both tasks. Then each has its last attempt alone, and only the deadly one dies."""
    executor = start(after=("deadly", "lingers"), lanes=2, retries=1)
    submit(executor, "deadly", "lingers")
    while not (ended := executor.wait(1.0)):
        pass
    assert [end.key for end in ended] == ["deadly"]
    assert not executor.free  # the last attempt of the other is alone
    assert finish(executor, 1) == {"lingers": {}}
    assert executor.free
    deadly, other = lines(tmp_path / "deadly"), lines(tmp_path / "lingers")
    assert deadly[0][0] == other[0][0]
    assert len({row[0] for row in (*deadly, *other)}) == 3


@slow
def test_tasks_are_lost_with_their_process_without_retries(start):
    executor = start(after=("deadly", "lingers"), lanes=2, retries=0)
    submit(executor, "deadly", "lingers")
    found = finish(executor, 2)
    assert all("1 time," in errors[key] and "exit status 3" in errors[key] for key, errors in found.items())


@slow
def test_tasks_go_to_the_process_with_the_most_free_lanes(start, tmp_path):
    executor = start(count=2, after=("a", "b"), lanes=2)
    submit(executor, "a", "b")
    assert executor.free
    finish(executor, 2)
    assert lines(tmp_path / "a")[0][0] != lines(tmp_path / "b")[0][0]


@dataclass(frozen=True)
class Capture:
    """Captures a step that needs a gibibyte, again and again, and writes how much GPU memory the process holds."""

    file: Path

    def __call__(self, cells, device):
        one = torch.ones((), device=device)
        for _ in range(3):
            step = backend.Engine.choose(device).captured(lambda x: (x.expand(2**28) + 1).amax())
            results = [float(step(one)) for _ in range(6)]
            captured = step.graph is not None
            step.close()
            if not captured or set(results) != {2.0}:
                return {"wrong": f"{captured} {results}"}
        with self.file.open("a") as file:
            file.write(f"{torch.cuda.memory_reserved() >> 20}\n")
        return {}


@pytest.mark.gpu
def test_lanes_release_memory_while_others_are_running(tmp_path):
    """The graphs of a finished task leave nothing behind, although there is no moment at which all lanes are idle."""
    executor, waiting, ended = LocalExecutor(Capture(tmp_path / "held"), ["cuda:0"], lanes=3), list(range(24)), []
    try:
        while len(ended) < 24:
            while waiting and executor.free:
                submit(executor, str(waiting.pop()))
            ended += executor.wait(1.0)
    finally:
        executor.close()
    assert all(end.errors == {} for end in ended)
    assert max(row[0] for row in lines(tmp_path / "held")) < 24 * 1024  # all graphs together would be 72 GiB


SCRIPT = """
import sys, time
from pathlib import Path
from complementary.sweeps.local import LocalExecutor
from tests.sweeps.test_local import Named, Signals, Work
if __name__ == '__main__':
    executor = LocalExecutor({work}, ['cpu'])
    executor.submit('lingers', [Named('lingers')])
    {then}
"""


@pytest.fixture
def script(tmp_path):
    """Start a program whose first worker does ``work`` -> its process."""

    def start(work, then):
        file = tmp_path / "sweep.py"
        file.write_text(SCRIPT.format(work=work, then=then))
        paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen([sys.executable, file], env=os.environ | {"PYTHONPATH": paths})

    return start


@dataclass(frozen=True)
class Signals:
    """Writes whether SIGINT is ignored, and whether it was blocked from the start."""

    file: Path

    def __call__(self, cells, device):
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self.file.write_text(f"{ignored} {signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])}\n")
        return {}


@slow
def test_workers_ignore_sigint_from_the_start(script, tmp_path):
    """Also the first worker of a program, with which Python's resource tracker would start and unblock the signal."""
    process = script(f"Signals(Path({str(tmp_path / 'told')!r}))", "executor.wait(60); executor.close()")
    assert process.wait(60) == 0
    assert (tmp_path / "told").read_text() == "True True\n"


@slow
def test_workers_exit_with_a_killed_sweep(script, tmp_path):
    process = script(f"Work(Path({str(tmp_path)!r}))", "time.sleep(60)")
    assert appear([tmp_path / "lingers"])
    process.kill()
    process.wait()
    worker = lines(tmp_path / "lingers")[0][0]
    for _ in range(100):
        if not alive(worker):
            return
        time.sleep(0.05)
    pytest.fail("the worker is still running")


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_devices_without_a_gpu_are_one_per_core_or_as_many_as_asked():
    assert devices("cpu", None, None) == ["cpu"] * cores()
    assert devices("cpu", 3, None) == ["cpu"] * 3


@pytest.mark.parametrize(
    ("device", "workers", "gpus", "wanted"),
    [
        ("auto", None, None, ["cuda:0", "cuda:1"]),
        ("auto", None, 0.5, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        ("cuda", 3, None, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", None, 0.25, ["cuda:1"] * 4),
    ],
)
def test_devices_are_distributed_over_the_gpus(monkeypatch, device, workers, gpus, wanted):
    monkeypatch.setattr("complementary.sweeps.local.choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices(device, workers, gpus) == wanted
