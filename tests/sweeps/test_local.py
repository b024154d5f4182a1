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
from complementary.sweeps.executors import Task
from complementary.sweeps.local import LocalExecutor, cores, devices


@dataclass(frozen=True)
class Remember:
    """Adds a line to a file: the process, its threads, its device; then does as told."""

    file: Path
    then: str = "return"

    def __call__(self, device):
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} {torch.get_num_threads()} {device}\n")
        if self.then == "die once" and len(self.file.read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.then == "linger":
            time.sleep(60)
        if self.then == "die":
            os._exit(3)
        return {"a": "a sentence"} if self.then == "fail" else {}


def finish(executor, count):
    ended, deadline = [], time.monotonic() + 60
    while len(ended) < count:
        assert time.monotonic() < deadline, f"only {[end.key for end in ended]} ended"
        ended += executor.wait(1.0)
    assert executor.wait(0) == []
    return {end.key: end for end in ended}


@dataclass(frozen=True)
class TidyUp:
    """Has a file written when its process ends by itself."""

    file: Path

    def __call__(self, device):
        multiprocessing.util.Finalize(None, self.file.touch, exitpriority=1)
        return {}


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_process_that_has_nothing_to_do_ends_by_itself(tmp_path, lanes):
    executor = LocalExecutor(["cpu"], lanes=lanes)
    executor.submit(Task("a", TidyUp(tmp_path / "tidy")))
    finish(executor, 1)
    executor.close()
    assert (tmp_path / "tidy").exists()


def test_tasks_end_once_each_and_dead_processes_are_replaced(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    executor, deaths = LocalExecutor(["cpu"], retries=1), []
    executor.on_death = lambda *told: deaths.append(told)
    try:
        found = {}
        for then in ("return", "fail", "die once", "die", "return again"):
            assert executor.free
            executor.submit(Task(then, Remember(tmp_path / then, then)))
            assert not executor.free
            found |= finish(executor, 1)
    finally:
        executor.close()
    assert {key: (end.failures, end.lost) for key, end in found.items()} == {
        "return": ({}, ""),
        "fail": ({"a": "a sentence"}, ""),
        "die once": ({}, ""),
        "die": ({}, "Its process died 2 times, at last by exit status 3."),
        "return again": ({}, ""),
    }
    assert deaths == [  # not of the last, which is how the task ended
        ("die once", "Its process died by SIGKILL; a new one takes it up."),
        ("die", "Its process died by exit status 3; a new one takes it up."),
    ]
    lines = {name: (tmp_path / name).read_text().splitlines() for name in found}
    assert {name: len(told) for name, told in lines.items()} == dict.fromkeys(found, 1) | {"die once": 2, "die": 2}
    assert lines["return"] == lines["fail"]  # the same process
    assert lines["return"][0].split()[1:] == [str(cores()), "cpu"]
    pid = int(lines["return again"][0].split()[0])
    with pytest.raises(ProcessLookupError):  # closed means gone
        os.kill(pid, 0)


@dataclass(frozen=True)
class InLane:
    """Adds a line to the file of its name: process, lane, threads. Then it waits for other files, or for its death."""

    folder: Path
    name: str
    after: tuple[str, ...] = ()
    then: str = "return"

    def __call__(self, device):
        file = self.folder / self.name
        with file.open("a") as opened:
            opened.write(f"{os.getpid()} {backend._LANE.number} {torch.get_num_threads()}\n")
        if not appear(self.folder / other for other in self.after):
            return {self.name: "waited in vain"}
        if self.then == "raise":
            raise EOFError("a mistake of ours")
        if self.then == "die":
            os._exit(3)
        if self.then == "linger at first" and len(file.read_text().splitlines()) == 1:
            time.sleep(60)
        return {}


def appear(files, seconds=30):
    """Wait until all files hold a whole line -> whether they do."""
    deadline, files = time.monotonic() + seconds, list(files)
    while not (there := all(file.exists() and file.read_text().endswith("\n") for file in files)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return there


@pytest.fixture
def lanes(tmp_path):
    """A function that starts an executor of one process with two lanes, given ``retries``."""
    started = []

    def start(retries=1):
        started.append(LocalExecutor(["cpu"], retries, lanes=2))
        return started[-1]

    yield start
    for executor in started:
        executor.close()


def told(file):
    """What tasks wrote, as rows of numbers."""
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()]


def test_a_lane_takes_the_next_task_while_another_is_busy(lanes, tmp_path, monkeypatch):
    """The slow task ends only once all quick ones have begun: were they to wait for it, none would end."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    executor, quick = lanes(), ["a", "b", "c"]
    assert executor.workers == 2
    waiting = [Task("slow", InLane(tmp_path, "slow", tuple(quick))), *(Task(n, InLane(tmp_path, n)) for n in quick)]
    ended = []
    while len(ended) < 4:
        while waiting and executor.free:
            executor.submit(waiting.pop(0))
        ended += executor.wait(1.0)
    assert sorted((end.key, end.failures, end.lost) for end in ended) == [(n, {}, "") for n in (*quick, "slow")]
    rows = {name: told(tmp_path / name) for name in ("slow", *quick)}
    assert all(len(row) == 1 for row in rows.values())
    assert len({row[0][0] for row in rows.values()}) == 1  # one process
    assert {row[0][1] for row in rows.values()} == {1, 2}
    assert {rows[name][0][1] for name in quick} == {3 - rows["slow"][0][1]}  # a lane of its own
    assert {row[0][2] for row in rows.values()} == {max(1, cores() // 2)}


def test_all_tasks_of_a_killed_process_are_begun_again_and_end_once(lanes, tmp_path):
    executor = lanes()
    for name in ("a", "b"):
        executor.submit(Task(name, InLane(tmp_path, name, then="linger at first")))
    assert not executor.free
    assert appear([tmp_path / "a", tmp_path / "b"])
    victim = told(tmp_path / "a")[0][0]
    os.kill(victim, signal.SIGKILL)
    found = finish(executor, 2)
    assert {key: (end.failures, end.lost) for key, end in found.items()} == {"a": ({}, ""), "b": ({}, "")}
    for name in found:
        first, second = told(tmp_path / name)
        assert first[0] == victim != second[0]
    assert executor.free


def test_a_task_is_not_lost_by_the_fault_of_another(lanes, tmp_path):
    """The first death is that of both; then each has its last try alone, in which only the deadly one dies again."""
    executor = lanes(retries=1)
    executor.submit(Task("deadly", InLane(tmp_path, "deadly", ("innocent",), "die")))
    executor.submit(Task("innocent", InLane(tmp_path, "innocent", ("deadly",), "linger at first")))
    while not (ended := executor.wait(1.0)):
        pass
    assert [(end.key, end.lost) for end in ended] == [("deadly", "Its process died 2 times, at last by exit status 3.")]
    assert not executor.free  # nobody joins the innocent now
    assert finish(executor, 1)["innocent"].lost == ""
    assert executor.free
    deadly, innocent = told(tmp_path / "deadly"), told(tmp_path / "innocent")
    assert deadly[0][0] == innocent[0][0]
    assert len({row[0] for row in (*deadly, *innocent)}) == 3


def test_without_retries_all_tasks_of_a_process_are_lost_with_it(lanes, tmp_path):
    executor = lanes(retries=0)
    executor.submit(Task("deadly", InLane(tmp_path, "deadly", ("other",), "die")))
    executor.submit(Task("other", InLane(tmp_path, "other", (), "linger at first")))
    found = finish(executor, 2)
    assert {end.lost for end in found.values()} == {"Its process died once, at last by exit status 3."}


def test_a_mistake_in_a_lane_ends_its_process(lanes, tmp_path):
    """Else its task would never end."""
    executor = lanes(retries=0)
    executor.submit(Task("bad", InLane(tmp_path, "bad", then="raise")))
    assert finish(executor, 1)["bad"].lost == "Its process died once, at last by exit status 1."


def test_tasks_go_to_the_worker_with_the_most_room(tmp_path):
    executor = LocalExecutor(["cpu", "cpu"], lanes=2)
    try:
        for name in ("a", "b"):
            executor.submit(Task(name, InLane(tmp_path, name, ("a", "b"))))
        assert executor.free
        finish(executor, 2)
    finally:
        executor.close()
    assert told(tmp_path / "a")[0][0] != told(tmp_path / "b")[0][0]


@dataclass(frozen=True)
class Capture:
    """Captures a step that needs a gibibyte, again and again, and notes how much of the card the process holds."""

    file: Path

    def __call__(self, device):
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
def test_lanes_give_memory_back_while_others_are_at_work(tmp_path):
    """The graphs of a task that ended leave nothing behind, though no moment comes when all lanes are idle."""
    executor, waiting, ended = LocalExecutor(["cuda:0"], lanes=3), list(range(24)), []
    try:
        while len(ended) < 24:
            while waiting and executor.free:
                executor.submit(Task(str(waiting.pop()), Capture(tmp_path / "held")))
            ended += executor.wait(1.0)
    finally:
        executor.close()
    assert {(str(end.failures), end.lost) for end in ended} == {("{}", "")}
    held = [row[0] for row in told(tmp_path / "held")]
    assert max(held) < 24 * 1024  # kept, they would be 72 GiB or more


SCRIPT = """
import sys, time; sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_local import Deaf, Remember
from complementary.sweeps.executors import Task
from complementary.sweeps.local import LocalExecutor
if __name__ == '__main__':
    executor = LocalExecutor(['cpu'])
    executor.submit(Task('a', {work}))
    {then}
"""


@pytest.fixture
def script(tmp_path):
    """Start a program whose first worker does ``work`` -> its process, and the file that it is told of."""

    def start(work, then):
        file = tmp_path / "sweep.py"
        file.write_text(SCRIPT.format(work=work, then=then))
        return subprocess.Popen([sys.executable, file, tmp_path / "told", Path(__file__).parent]), tmp_path / "told"

    return start


@dataclass(frozen=True)
class Deaf:
    """Writes whether Ctrl-C is ignored, and whether it was blocked from the start."""

    file: Path

    def __call__(self, device):
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self.file.write_text(f"{ignored} {signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])}\n")
        return {}


def test_a_worker_is_deaf_to_ctrl_c_from_its_first_moment(script):
    """The first worker of a program, with which Python's resource tracker would start and unblock the signal."""
    process, file = script("Deaf(Path(sys.argv[1]))", "executor.wait(60); executor.close()")
    assert process.wait(60) == 0
    assert file.read_text() == "True True\n"


def test_workers_die_with_a_sweep_that_is_killed(script):
    process, file = script("Remember(Path(sys.argv[1]), 'linger')", "time.sleep(60)")
    while not (file.exists() and file.read_text().endswith("\n")):
        time.sleep(0.05)
    process.kill()
    process.wait()
    worker = int(file.read_text().split()[0])
    for _ in range(100):
        if not alive(worker):
            return
        time.sleep(0.05)
    pytest.fail("the worker lives on")


def alive(pid):
    """Whether a process runs; one that ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_without_a_card_there_is_a_worker_per_core_or_as_many_as_asked():
    assert devices("cpu", None, None) == ["cpu"] * cores()
    assert devices("auto", 3, None) == ["cpu"] * 3


@pytest.mark.parametrize(
    ("device", "workers", "gpus", "wanted"),
    [
        ("auto", None, None, ["cuda:0", "cuda:1"]),
        ("auto", None, 0.5, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        ("cuda", 3, None, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", None, 0.25, ["cuda:1"] * 4),
    ],
)
def test_cards_are_shared_out_in_turn(monkeypatch, device, workers, gpus, wanted):
    monkeypatch.setattr("complementary.sweeps.local.choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices(device, workers, gpus) == wanted
