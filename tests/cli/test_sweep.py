import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from complementary.config import Config
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.sweep import claimed
from complementary.training.run import run

KEPT = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")
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
    def write(epochs=2, seeds="[0]", lr="[1e-3]"):
        path = tmp_path / "grid.toml"
        path.write_text(GRID.format(epochs=epochs, seeds=seeds, lr=lr))
        return path

    return write


def stopped(command, out, epochs, how):
    """Start a sweep, and stop it once its only cell is so far -> exit status and standard error."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not any(path.read_bytes().count(b"\n") >= epochs for path in out.glob("runs/*/metrics.jsonl")):
        time.sleep(0.01)
    process.send_signal(how)
    _, error = process.communicate(timeout=20)
    return process.returncode, error


def test_a_sweep_that_is_stopped_goes_on_to_the_same_bytes(cll, tmp_path, grid):
    """As a user does it: Ctrl-C in the middle of a cell, one line, status 130; then the same command again."""
    out = tmp_path / "out"
    command = ["sweep", grid(epochs=150), "--out", out, "--workers", "1", "--checkpoint-seconds", "0.02"]
    for epochs, how in ((3, signal.SIGINT), (20, signal.SIGTERM)):
        status, error = stopped([sys.executable, "-m", "complementary", *command], out, epochs, how)
        assert status == 130
        assert error == "cll sweep: stopped with 0 of 1 cells done; the same command goes on from here.\n"
    status, said, error = cll(*command)
    assert (status, error) == (0, "")
    assert f"1 of 1 cells are done, 0 failed: {out}" in said
    (folder,) = (out / "runs").iterdir()
    log = (out / "logs" / f"{folder.name}.log").read_text()
    assert (log.count("process"), log.count("epoch 1/150 ")) == (3, 1)  # it went on, and did not begin again
    run(Config.of(data="digits", clusters=20, restarts=1, epochs=150, batch=256, mix="none"), tmp_path / "alone")
    for name in KEPT:
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_ctrl_c_of_a_terminal_is_one_line_though_a_worker_is_idle(tmp_path, grid):
    """A terminal sends it to all processes, also to those that have nothing left to do."""
    file, out = grid(), tmp_path / "out"
    file.write_text(file.read_text().replace("epochs = 2", "").replace("lr = [1e-3]", "epochs = [2, 5000]"))
    command = [sys.executable, "-m", "complementary", "sweep", file, "--out", out, "--workers", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True)
    assert any("epochs=2 seed=0 done" in line for line in process.stdout)
    time.sleep(0.3)  # so that it waits for more
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert error == "cll sweep: stopped with 1 of 2 cells done; the same command goes on from here.\n"


def test_a_killed_worker_is_told_in_one_line(tmp_path, grid):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "complementary", "sweep", grid(epochs=150), "--out", out, "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not any(path.read_bytes().count(b"\n") >= 3 for path in out.glob("runs/*/metrics.jsonl")):
        time.sleep(0.01)
    (note,) = (out / "notes").iterdir()
    os.kill(json.loads(note.read_text())["process"], signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert said.splitlines()[:3] == [
        "[0/1] lr=0.001 seed=0 starts",
        "[0/1] lr=0.001 seed=0 goes on: Its process died by SIGKILL; a new one takes it up.",
        "[1/1] lr=0.001 seed=0 done",
    ]


def test_another_grid_in_the_same_folder_leaves_a_word_on_the_first(cll, tmp_path, grid):
    out = tmp_path / "out"
    assert "This folder also has" not in cll("sweep", grid(seeds="2"), "--out", out, "--workers", 1)[1]
    assert "This folder also has" not in cll("sweep", grid(seeds="3"), "--out", out, "--workers", 1)[1]
    line = "This folder also has 3 finished runs of earlier grids; cll report counts the finished ones too.\n"
    assert line in cll("sweep", grid(lr="[1e-2]"), "--out", out, "--workers", 1)[1]
    said = cll("sweep", "status", out)[1]
    assert said == "1 cell: 1 done, 0 running, 0 failed, 0 waiting (no sweep is running)\n" + line
    next(out.glob("runs/*/result.json")).write_text("{}")
    said = cll("sweep", "status", out)[1]
    assert "is damaged" in said
    assert "--skip-damaged" not in said


@pytest.mark.parametrize("name", ["digitz", "nowhere.npz", "no/such/folder"])
def test_an_unknown_dataset_is_found_before_anything_runs(cll, tmp_path, grid, name):
    file = grid()
    file.write_text(file.read_text().replace('data = "digits"', "") + f'data = ["digits", "{name}"]\n')
    status, said, error = cll("sweep", file, "--out", tmp_path / "out", "--workers", 1)
    assert (status, said, error.count("\n")) == (2, "", 1)
    assert name in error
    assert not (tmp_path / "out").exists()


def test_failures_end_in_status_1_and_status_says_why(cll, tmp_path, grid):
    out = tmp_path / "out"
    status, said, error = cll("sweep", grid(lr="[1e30, 1e-3]", seeds="2"), "--out", out, "--workers", 1)
    assert (status, error) == (1, "")
    assert re.search(r"\[1/4\] lr=1e\+30 seed=0 failed: The loss turned NaN", said)
    assert "[4/4] lr=0.001 seed=1 done" in said
    assert f"2 of 4 cells are done, 2 failed: {out}" in said
    status, said, _ = cll("sweep", "status", out)
    assert status == 0
    assert said.startswith("4 cells: 2 done, 0 running, 2 failed, 0 waiting (no sweep is running)\n")
    assert said.count("failed: lr=1e+30 seed=1: The loss turned NaN or infinite at epoch") == 1
    assert "time left" not in said


def test_a_packed_sweep_gives_the_same_bytes_and_each_cell_its_log(cll, tmp_path, grid):
    """Four cells in one process with three lanes; one of them fails, and the others do not mind."""
    file, keys = grid(lr="[1e-3, 1e30]", seeds="2"), {}
    for name, options in (("alone", ()), ("packed", ("--pack", 3))):
        status, said, error = cll("sweep", file, "--out", tmp_path / name, "--workers", 1, *options)
        assert (status, error) == (1, "")
        assert f"2 of 4 cells are done, 2 failed: {tmp_path / name}" in said
        plan = SweepFolder(tmp_path / name).plan()
        keys[name] = {cell["key"]: cell["name"] for cell in plan["cells"]}
        assert plan["workers"] == (3 if options else 1)
    happened = re.findall(r"^\[\d/4\] \S+ \S+ (starts|done|failed)", said, re.MULTILINE)
    assert [what == "starts" for what in happened] == [True, True, True, False, True, False, False, False]
    assert keys["packed"] == keys["alone"]
    for key, name in keys["packed"].items():
        alone, packed = (tmp_path / which / "runs" / key for which in ("alone", "packed"))
        for kept in KEPT if "1e+30" not in name else ():
            assert (packed / kept).read_bytes() == (alone / kept).read_bytes()
        told = [re.sub("^.{20}|process.*", "", line) for line in logged(tmp_path / "packed", key)]
        assert told == [re.sub("^.{20}|process.*", "", line) for line in logged(tmp_path / "alone", key)]
        assert told[0].startswith(f"{name} on ")
    processes = {json.loads(note.read_text()).get("process") for note in (tmp_path / "packed/notes").iterdir()}
    assert len(processes - {None}) == 1  # failed cells have no process in their note


def logged(out, key):
    return (out / "logs" / f"{key}.log").read_text().splitlines()


def test_two_sweeps_in_one_folder_are_refused(cll, tmp_path, grid):
    with claimed(SweepFolder(tmp_path / "out")):
        status, _, error = cll("sweep", grid(), "--out", tmp_path / "out")
    assert status == 2
    assert error.startswith(f"cll sweep: Another sweep is running in {tmp_path / 'out'}; see it with 'cll sweep status")
    assert not list((tmp_path / "out" / "runs").iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["/nowhere.toml"], "The grid /nowhere.toml cannot be read"),
        (["{grid}", "--workers", "0"], "The option workers is 0"),
        (["{grid}", "--gpus-per-run", "0"], "The option gpus-per-run is 0"),
        (["{grid}", "--retries", "-1"], "The option retries is -1"),
        (["{grid}", "--pack", "0"], "The option pack is 0"),
        (["{grid}", "--device", "abacus"], "The device 'abacus' cannot be used"),
        (["{grid}", "--out", "{grid}/x"], "cannot be made"),
        (["status", "/nowhere"], "There is no sweep in /nowhere"),
        (["status", "{grid}"], "grid.toml is a file, but a sweep is a folder"),
        (["{grid}", "--address", "here:6379"], "--address is here:6379, but only --on ray uses it"),
        (["{bad}"], "'epoks' in [grid] is not an option"),
    ],
)
def test_bad_input_is_one_sentence(cll, tmp_path, grid, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("[grid]\nepoks = [1]")
    status, _, error = cll("sweep", *(o.format(grid=grid(), bad=tmp_path / "bad.toml") for o in options))
    assert status == 2
    assert said in error
    assert error.count("\n") == 1
