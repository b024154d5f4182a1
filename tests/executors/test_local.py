import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from complementary.executors import Task
from complementary.executors.local import LocalExecutor, cores, devices


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
    ended = []
    while len(ended) < count:
        ended += executor.wait(1.0)
    assert executor.wait(0) == []
    return {end.key: end for end in ended}


def test_tasks_end_once_each_and_dead_processes_are_replaced(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    executor = LocalExecutor(["cpu"], retries=1)
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
    lines = {name: (tmp_path / name).read_text().splitlines() for name in found}
    assert {name: len(told) for name, told in lines.items()} == dict.fromkeys(found, 1) | {"die once": 2, "die": 2}
    assert lines["return"] == lines["fail"]  # the same process
    assert lines["return"][0].split()[1:] == [str(cores()), "cpu"]
    pid = int(lines["return again"][0].split()[0])
    with pytest.raises(ProcessLookupError):  # closed means gone
        os.kill(pid, 0)


def test_workers_die_with_a_sweep_that_is_killed(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from test_local import Remember\n"
        "from complementary.executors import Task\n"
        "from complementary.executors.local import LocalExecutor\n"
        "if __name__ == '__main__':\n"
        "    executor = LocalExecutor(['cpu'])\n"
        "    executor.submit(Task('a', Remember(Path(sys.argv[1]), 'linger')))\n"
        "    time.sleep(60)\n"
    )
    script, file = tmp_path / "sweep.py", tmp_path / "told"
    script.write_text(code)
    process = subprocess.Popen([sys.executable, script, file, Path(__file__).parent])
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
    monkeypatch.setattr("complementary.executors.local.choose_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices(device, workers, gpus) == wanted
