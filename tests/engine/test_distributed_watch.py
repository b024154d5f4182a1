"""When a process of a training is gone, one of the others says so, and none stays behind."""

import os
import signal
import sys
import time

import pytest
from torch import distributed

from complementary.engine.backend import distributed as ranks
from complementary.engine.backend import distributed as watch
from complementary.engine.distributed import ProcessGroup, joined
from complementary.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks


@pytest.fixture
def store(monkeypatch):
    """What torchrun keeps for its processes."""
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.port, "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, str(value))
    return server


def test_of_all_sentences_only_the_first_is_said(monkeypatch, in_child, store):
    """An error of the user, which all processes meet; here one after the other."""
    monkeypatch.setattr(ranks, "connect", lambda rank, size, device: ProcessGroup(rank, size, device))
    monkeypatch.setenv("WORLD_SIZE", "2")

    def work(rank, ends):
        monkeypatch.setenv("RANK", str(rank))
        with pytest.raises(ends), joined("cll train", "cpu"):
            raise UserError("No.")

    for rank, ends in ((1, UserError), (0, SystemExit)):
        assert os.waitpid(in_child(lambda rank=rank, ends=ends: work(rank, ends)), 0)[1] == 0


def test_a_lost_process_is_told_from_a_mistake_of_ours(monkeypatch, in_child, store):
    monkeypatch.setattr(ranks, "connect", lambda rank, size, device: ProcessGroup(rank, size, device))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")

    def work(task, ends, said):
        monkeypatch.setattr(watch.Watch, "may_speak", lambda _: True)
        with pytest.raises(ends, match=said), joined("cll train", "cpu"):
            raise task

    lost = (distributed.DistBackendError("NCCL"), UserError, "Another process")
    for case in (lost, (ZeroDivisionError("x"), ZeroDivisionError, "x")):
        assert os.waitpid(in_child(lambda case=case: work(*case)), 0)[1] == 0


@pytest.mark.parametrize("end", ["silence", "told"])
def test_a_stuck_main_thread_does_not_keep_the_process_alive(monkeypatch, in_child, tmp_path, store, end):
    """The neighbour falls silent, or torchrun says stop; the main thread sleeps through both."""
    monkeypatch.setattr(watch, "GRACE", 0.2)
    monkeypatch.setattr(watch, "PATIENCE", 2.5)

    def sleep(rank):
        sys.stderr = (tmp_path / f"said{rank}").open("w")
        watch.Watch("cll train", rank, 2)
        (tmp_path / f"ready{rank}").touch()
        time.sleep(60)

    first, second = (in_child(lambda rank=rank: sleep(rank)) for rank in range(2))
    try:
        while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
            time.sleep(0.05)
        time.sleep(2.2)  # both have been heard
        os.kill(second if end == "silence" else first, signal.SIGSTOP if end == "silence" else signal.SIGTERM)
        started = time.monotonic()
        _, status = os.waitpid(first, 0)
        assert os.waitstatus_to_exitcode(status) == 2
        assert time.monotonic() - started < 10
        assert (tmp_path / "said0").read_text() == f"cll train: {ranks.LOST}\n"
    finally:
        os.kill(second, signal.SIGKILL)
        os.waitpid(second, 0)
    assert (tmp_path / "said1").read_text() == ""
