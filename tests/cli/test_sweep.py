import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from complementary.config import Config
from complementary.files import read_checkpoint
from complementary.sweeps.sweep import SweepFolder
from complementary.training.run import run
from tests.helpers import run_files
from tests.processes import start_cll

GRID = """
data = "digits"
clusters = 20
restarts = 1
mix = "none"
epochs = {epochs}
batch = 256
seeds = {seeds}
[grid]
lr = {lr}
"""


@pytest.fixture
def grid(tmp_path):
    """A function that writes a grid -> its path."""

    def write(epochs=2, seeds="[0]", lr="[1e-3]"):
        path = tmp_path / "grid.toml"
        path.write_text(GRID.format(epochs=epochs, seeds=seeds, lr=lr))
        return path

    return write


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def start(*arguments):
    return start_cll("sweep", *arguments, **PIPES)


def wait_for_epochs(process, out, epochs):
    while not any(path.read_bytes().count(b"\n") >= epochs for path in out.glob("runs/*/metrics.jsonl")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


@pytest.mark.slow
def test_sweep_resumes_to_the_same_bytes_after_an_interrupt(cll, tmp_path, grid, forked_workers):
    """Ctrl-C, then SIGTERM, in the middle of a cell; then the same command again."""
    out = tmp_path / "out"
    command = [grid(epochs=80), "--out", out, "--workers", "1", "--checkpoint-seconds", "0.02"]
    for epochs, how in ((3, signal.SIGINT), (20, signal.SIGTERM)):
        process = start(*command)
        wait_for_epochs(process, out, epochs)
        process.send_signal(how)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert error == "cll sweep: stopped with 0 of 1 cells done; the same command continues.\n"
    status, said, _ = cll("sweep", *command)
    assert status == 0
    assert f"1 of 1 cell done, 0 failed: {out}" in said
    (folder,) = (out / "runs").iterdir()
    log = (out / "logs" / f"{folder.name}.log").read_text()
    assert (log.count("process"), log.count("epoch 1/80 ")) == (3, 1)  # resumed, not started again
    run(Config.of(data="digits", clusters=20, restarts=1, epochs=80, batch=256, mix="none"), tmp_path / "alone")
    assert run_files(folder) == run_files(tmp_path / "alone")


@pytest.mark.slow
def test_stopped_sweep_writes_checkpoints_first(tmp_path, grid, forked_workers):
    """The next checkpoint would be a long time away."""
    out = tmp_path / "out"
    process = start(grid(epochs=5000), "--out", out, "--workers", "1", "--checkpoint-seconds", "1000")
    wait_for_epochs(process, out, 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    (folder,) = (out / "runs").iterdir()
    assert read_checkpoint(folder / "checkpoint.safetensors")[1]["epoch"] >= 2


@pytest.mark.slow
def test_ctrl_c_is_one_line_although_a_worker_is_idle(tmp_path, grid):
    """A terminal sends it to all processes, also to those that have nothing to do; here all are new interpreters."""
    file, out = grid(), tmp_path / "out"
    file.write_text(file.read_text().replace("epochs = 2", "").replace("lr = [1e-3]", "epochs = [2, 5000]"))
    command = [sys.executable, "-m", "complementary", "sweep", file, "--out", out, "--workers", "2"]
    process = subprocess.Popen(command, start_new_session=True, text=True, **PIPES)
    assert process.stderr.readline() == "[1/2] epochs=2 seed=0 done\n"
    time.sleep(0.3)  # until the worker waits for another task
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "cll sweep: stopped with 1 of 2 cells done; the same command continues.\n"


@pytest.mark.slow
def test_killed_worker_is_reported_in_one_line(tmp_path, grid, forked_workers):
    out = tmp_path / "out"
    process = start(grid(epochs=80), "--out", out, "--workers", 1)
    wait_for_epochs(process, out, 3)
    (note,) = (out / "notes").iterdir()
    os.kill(json.loads(note.read_text())["process"], signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    died, done = error.splitlines()
    assert died.startswith("warning: lr=0.001 seed=0: ")
    assert "SIGKILL" in died
    assert done == "[1/1] lr=0.001 seed=0 done"


@pytest.mark.slow
def test_runs_of_earlier_grids_in_the_folder_are_mentioned(cll, tmp_path, grid, forked_workers):
    out = tmp_path / "out"
    assert "earlier grids" not in cll("sweep", grid(seeds="2"), "--out", out, "--workers", 1)[1]
    assert "2 finished runs of earlier grids" in cll("sweep", grid(lr="[1e-2]"), "--out", out, "--workers", 1)[1]
    said = cll("sweep", "status", out)[1].splitlines()
    assert said[0] == "1 cell: 1 done, 0 running, 0 failed, 0 waiting (no sweep is running)"
    assert "2 finished runs of earlier grids" in said[1]


@pytest.mark.parametrize("name", ["digitz", "nowhere.npz", "no/such/folder"])
def test_unknown_dataset_is_reported_before_anything_runs(cll, tmp_path, grid, name):
    file = grid()
    file.write_text(file.read_text().replace('data = "digits"', "") + f'data = ["digits", "{name}"]\n')
    status, said, error = cll("sweep", file, "--out", tmp_path / "out", "--workers", 1)
    assert (status, said, error.count("\n")) == (2, "", 1)
    assert name in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_packed_sweep_gives_the_same_bytes_and_each_cell_its_log(cll, tmp_path, grid, forked_workers):
    """Four cells in one process with three lanes. Those that fail set the exit status, and the status says why."""
    file, plans = grid(lr="[1e-3, 1e30]", seeds="2"), {}
    for name, options in (("alone", ()), ("packed", ("--pack", 3))):
        status, said, error = cll("sweep", file, "--out", tmp_path / name, "--workers", 1, *options)
        assert status == 1
        assert f"2 of 4 cells done, 2 failed: {tmp_path / name}" in said
        lines = re.findall(r"\[(\d)/4\] \S+ \S+ (done|failed)", error)
        assert [number for number, _ in lines] == ["1", "2", "3", "4"]
        assert sum(what == "failed" for _, what in lines) == 2
        status, said, _ = cll("sweep", "status", tmp_path / name)
        assert status == 0
        assert said.startswith("4 cells: 2 done, 0 running, 2 failed, 0 waiting (no sweep is running)\n")
        assert re.search(r"failed: lr=1e\+30 seed=1: .*NaN", said)
        plans[name] = SweepFolder(tmp_path / name).plan()
    assert plans["packed"] == plans["alone"]
    processes = set()
    for cell in plans["packed"]:
        alone, packed = (tmp_path / which / "runs" / cell["key"] for which in ("alone", "packed"))
        if "1e+30" not in cell["name"]:
            assert run_files(packed) == run_files(alone)
        logged = read_log(tmp_path / "packed", cell["key"])
        processes |= set(re.findall(r"process (\d+)", logged))
        assert without_times(logged) == without_times(read_log(tmp_path / "alone", cell["key"]))
        assert f"{cell['name']} on " in logged.splitlines()[0]
    assert len(processes) == 1


def read_log(out, key):
    return (out / "logs" / f"{key}.log").read_text()


def without_times(text):
    return [re.sub("^.{20}|process.*", "", line) for line in text.splitlines()]


def test_sweep_in_the_folder_of_a_running_one_is_refused(cll, tmp_path, grid):
    with SweepFolder(tmp_path / "out").claim():
        status, _, error = cll("sweep", grid(), "--out", tmp_path / "out")
    assert status == 2
    assert f"Another sweep is running in {tmp_path / 'out'}" in error
    assert not list((tmp_path / "out" / "runs").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["/nowhere.toml"], "/nowhere.toml"),
        (["{grid}", "--workers", "0"], "workers is 0"),
        (["{grid}", "--gpus-per-run", "0"], "(--gpus-per-run)"),
        (["{grid}", "--retries", "-1"], "retries is -1"),
        (["{grid}", "--pack", "0"], "pack is 0"),
        (["{grid}", "--device", "abacus"], "'abacus'"),
        (["{grid}", "--out", "{grid}/x"], "(--out)"),
        (["status", "/nowhere"], "no sweep in /nowhere"),
        (["status", "{grid}"], "no sweep in"),
        (["{grid}", "--address", "here:6379"], "(--address)"),
        (["{bad}"], "'epoks' in [grid]"),
    ],
)
def test_sweep_of_bad_input_is_one_line(cll, tmp_path, grid, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("[grid]\nepoks = [1]")
    status, _, error = cll("sweep", *(o.format(grid=grid(), bad=tmp_path / "bad.toml") for o in options))
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
