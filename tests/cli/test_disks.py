"""Every command on a disk that is read-only or full: one line on stderr and exit status 2, and no traceback."""

import contextlib
import shutil
import subprocess

import numpy as np
import pytest

from complementary.config import Config
from complementary.training.run import run
from tests.helpers import write_result

GRID = 'data = "digits"\nmix = "none"\nepochs = 1\nbatch = 256\nseeds = 1\n'


@pytest.fixture
def disk(mounted):
    return mounted("300k")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "x"
    run(Config.of(mix="none", epochs=1, batch=256, model="linear"), folder)
    return folder


@pytest.fixture
def commands(tmp_path, disk, finished, monkeypatch):
    """All commands that write, with their output on the disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(disk / "cache"))
    (tmp_path / "grid.toml").write_text(GRID)
    write_result(tmp_path / "results" / "a.json")
    np.savez(tmp_path / "own.npz", X=np.eye(100, 200), not_y=np.arange(100) % 3)
    np.save(tmp_path / "images.npy", np.zeros((4, 8, 8), np.uint8))
    shutil.copytree(finished, disk / "started")
    (disk / "started" / "result.json").unlink()
    quick = ("--mix", "none", "--epochs", 1)
    return [
        ("train", *quick, "--out", disk / "run"),
        ("train", "--resume", "--out", disk / "started"),
        ("pretrain", "--epochs", 1, "--batch", 256, "--out", disk / "encoder"),
        ("pretrain", "--show-views", disk / "views.png"),
        ("cluster", "--clusters", 5, "--encoder", "pixels", "--out", disk / "clusters.safetensors"),
        ("sweep", "grid.toml", "--out", disk / "sweep"),
        ("report", "results", "--out", disk / "table.md"),
        ("predict", finished, "images.npy", "--out", disk / "predicted.csv"),
        ("data", "import", "own.npz", "--out", "own"),
        ("data", "show", "digits", "--out", disk / "sheet.png"),
    ]


def check(cll, commands):
    for command in commands:
        status, _, error = cll(*command)
        lines = [line for line in error.splitlines() if line.startswith("cll ")]
        assert (status, len(lines)) == (2, 1), (command, error)
        assert "Traceback" not in error


def test_commands_on_a_read_only_disk_give_one_line(cll, disk, commands):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = sorted(disk.rglob("*"))
    check(cll, commands)
    assert sorted(disk.rglob("*")) == before


def test_commands_on_a_full_disk_give_one_line(cll, disk, commands):
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    check(cll, commands)
    assert not list(disk.rglob("*.tmp"))
    assert not list(disk.rglob("*.npy"))
