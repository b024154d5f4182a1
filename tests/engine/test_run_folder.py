"""The folder of a run: stopping, altered files, and disks that cannot be written."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from complementary import files
from complementary.config import Config
from complementary.engine import run_folder
from complementary.engine.run_folder import RunFolder, Stopped, read_result
from complementary.errors import UserError
from tests.engine.test_loop import EPOCHS, Line

CONFIG = Config()
RESULT = {"accuracy_last": 0.5, "per_class": (1.0, 0.25), "config_hash": "hash"}


def train(path, progress=None, resume=False, checkpoint_seconds=0.0, loop=None):
    with RunFolder(path, CONFIG, resume=resume) as folder:
        if folder.finished:
            return folder.result()
        folder.train(loop or Line(), progress, checkpoint_seconds)
        return folder.finish(RESULT)


def stop_with(number, after=4):
    """Send a signal to this process after some steps."""

    def progress(loop):
        if loop.global_step == after:
            os.kill(os.getpid(), number)

    return progress


# --- stopping -------------------------------------------------------------------------------------


class Crash(BaseException):
    """Simulates a kill: nothing catches it."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Crash, RuntimeError])
def test_run_that_stops_before_its_training_can_be_resumed(tmp_path, kind, caplog):
    caplog.set_level("INFO")

    def start():
        with RunFolder(tmp_path / "x", CONFIG):
            raise kind

    with pytest.raises(kind):
        start()
    with (
        pytest.raises(UserError, match="another configuration"),
        RunFolder(tmp_path / "x", CONFIG.with_(seed=1), resume=True),
    ):
        pass
    train(tmp_path / "x", resume=True)
    assert "no checkpoint yet; the run starts from the beginning" in caplog.text
    caplog.clear()
    train(tmp_path / "whole", resume=True)
    assert "no checkpoint" not in caplog.text
    assert (tmp_path / "x" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_run_that_stopped_before_its_training_can_be_replaced(tmp_path):
    """Nothing was kept of it but the configuration."""
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path, CONFIG.with_(seed=1)):
        raise KeyboardInterrupt
    assert train(tmp_path)["accuracy_last"] == 0.5


def test_failed_replacement_of_a_stopped_run_restores_its_configuration(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path, CONFIG):
        raise KeyboardInterrupt
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(UserError), RunFolder(tmp_path, CONFIG.with_(seed=1)):
        raise UserError("")
    assert (tmp_path / "config.toml").read_bytes() == before
    assert train(tmp_path, resume=True)["accuracy_last"] == 0.5


def test_configuration_that_no_run_wrote_is_not_replaced(tmp_path):
    (tmp_path / "config.toml").write_text("seed = 0\n")
    with pytest.raises(UserError, match="already contains a run"):
        train(tmp_path)
    assert (tmp_path / "config.toml").read_text() == "seed = 0\n"


@pytest.mark.parametrize("resume", [False, True])
def test_run_that_turns_out_to_be_impossible_leaves_nothing(tmp_path, resume):
    with pytest.raises(UserError), RunFolder(tmp_path / "x", CONFIG, resume=resume):
        raise UserError("")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_writes_a_checkpoint_before_the_run_stops(tmp_path, number):
    """The next checkpoint would be a long time away."""
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as caught:
        train(tmp_path / "x", stop_with(number), checkpoint_seconds=1e6)
    assert caught.value.number == number
    assert signal.getsignal(number) is before
    _, record = files.read_checkpoint(tmp_path / "x" / "checkpoint.safetensors")
    assert (record["epoch"], record["step"]) == (1, 2)  # one step after the signal
    train(tmp_path / "x", resume=True)
    train(tmp_path / "whole")
    for name in ("metrics.jsonl", "config.toml", "result.json"):
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_signal_that_is_ignored_stays_ignored(tmp_path):
    """A worker of a sweep ignores Ctrl-C, which the terminal sends to all processes."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        train(tmp_path, stop_with(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_result(tmp_path)["accuracy_last"] == 0.5


# --- altered files --------------------------------------------------------------------------------


def crash(_):
    raise Crash


def crashed(folder):
    """Train until a crash after four steps -> the path of the checkpoint, its tensors and its record."""

    def stop(loop):
        if loop.global_step == 4:
            raise Crash

    with pytest.raises(Crash):
        train(folder, stop)
    path = folder / "checkpoint.safetensors"
    return path, *files.read_checkpoint(path)


def test_resume_refuses_an_altered_configuration_before_the_first_checkpoint(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path, crash, checkpoint_seconds=1e6)
    path = tmp_path / "config.toml"
    assert not (tmp_path / "checkpoint.safetensors").exists()
    text = path.read_text()
    path.write_text(text.replace("seed = 0", "seed = 1"))
    altered = CONFIG.with_(seed=1)  # as the command line reads it
    with pytest.raises(UserError, match="changed after the run began"), RunFolder(tmp_path, altered, resume=True):
        pass
    path.write_text(text)
    assert train(tmp_path, resume=True)["accuracy_last"] == 0.5


def test_resume_takes_a_configuration_without_a_checksum(tmp_path):
    """Earlier versions wrote none."""
    with pytest.raises(Crash):
        train(tmp_path, crash)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().partition("\n")[2])
    assert train(tmp_path, resume=True)["accuracy_last"] == 0.5


def test_result_with_an_altered_number_is_refused(tmp_path):
    result = train(tmp_path)
    path = tmp_path / "result.json"
    assert read_result(tmp_path) == json.loads(path.read_text()) == json.loads(json.dumps(result))
    path.write_text(path.read_text().replace("0.25", "0.35"))
    with pytest.raises(UserError, match="SHA-256"):
        read_result(tmp_path)
    with pytest.raises(UserError, match="SHA-256"):
        train(tmp_path, resume=True)


def test_result_without_a_checksum_is_read(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert read_result(tmp_path)["accuracy_last"] == 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": EPOCHS + 5},
        {"epoch": -1},
        {"epoch": "one"},
        {"step": 99},
        {"history": "[]"},
        {"history": "{"},
        {"processes": None},
        {"seconds": None, "epoch": None},
        "no record",
        "no tensors",
        "other tensors",
    ],
)
def test_resume_refuses_a_checkpoint_with_a_valid_checksum_and_wrong_content(tmp_path, change):
    path, tensors, record = crashed(tmp_path)
    if isinstance(change, dict):
        record |= change
    elif change == "no record":
        record = {"config": record["config"]}
    elif change == "no tensors":
        tensors = {}
    else:
        tensors = {name: torch.zeros(7) for name in tensors}
    files.write_checkpoint(path, tensors, record)
    with pytest.raises(UserError):
        train(tmp_path, resume=True)


@pytest.mark.parametrize("change", [{}, {"torch": "1.0"}, {"device": "cpu (9 threads)"}])
def test_resume_with_another_setup_warns(tmp_path, caplog, change):
    """Rounding depends on it: the same bytes are only promised for the same setup."""
    path, tensors, record = crashed(tmp_path)
    files.write_checkpoint(path, tensors, record | {"computed_by": record["computed_by"] | change})
    train(tmp_path, resume=True)
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len(warnings) == len(change)
    assert all(f"{name}: {value} -> " in warnings[0] for name, value in change.items())


# --- disks ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(mounted):
    return mounted("64k")


def fill(folder):
    """Use all space of a disk."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_train_on_a_disk_that_fills_raises_a_user_error_and_can_be_resumed(small_disk, tmp_path):
    def stop(loop):
        if loop.global_step == 4:
            fill(small_disk)

    with pytest.raises(UserError, match="No space left"):
        train(small_disk / "x", stop)
    (small_disk / "filler").unlink()
    train(small_disk / "x", resume=True)
    train(tmp_path / "whole")
    assert (small_disk / "x/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_train_names_the_metrics_file_that_cannot_be_written(tmp_path, monkeypatch):
    """Checkpoints are rare enough that the disk may fill while a line of metrics is written."""
    real = Path.open

    def refuse(self, mode="r", *arguments, **options):
        if self.name == "metrics.jsonl" and mode == "a":
            raise OSError(28, "No space left on device")
        return real(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written \(No space left"):
        train(tmp_path / "x", checkpoint_seconds=1e6)


def test_folder_on_a_read_only_disk_is_refused(small_disk):
    (small_disk / "old").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for path in (small_disk / "old", small_disk / "new"):
        with pytest.raises(UserError, match="Read-only"):
            train(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "file", "file/below"])
def test_folder_that_cannot_be_created_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        train(tmp_path / name)
    assert caught.value.option == "out"


def test_folder_that_is_forbidden_is_refused(tmp_path, monkeypatch):
    """Tests may run as root, for whom no folder is forbidden."""

    def forbid(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    for method in ("exists", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(run_folder.Path, method, forbid)
            with pytest.raises(UserError, match="Permission denied"):
                train(tmp_path / "x")
