"""Dispatch, help, start-up and exit status of ``cll``."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from complementary import __version__
from complementary.cli import COMMANDS
from complementary.engine.run_folder import Stopped
from complementary.errors import UserError

RESULTS = Path(__file__).parents[2] / "results" / "paper"


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_help_lists_every_command(cll):
    status, out, error = cll("--help")
    assert (status, error) == (0, "")
    assert all(f"\n  {name} " in out for name in COMMANDS)


WITHOUT_TORCH = [
    "--help",
    "--version",
    *(f"{name} --help" for name in ("demo", "train", "pretrain", "cluster", "sweep", "report", "predict")),
    "train --epochs 0",
    f"report {RESULTS}",
    "sweep status /nowhere",
]


def test_start_up_does_not_import_torch():
    """One process for all commands: the first that imports torch is named."""
    done = python(f"""
import sys
from complementary.cli import main
for arguments in {WITHOUT_TORCH!r}:
    try:
        main(arguments.split())
    except SystemExit:
        pass
    if "torch" in sys.modules:
        sys.exit(f"torch is imported by cll {{arguments}}")
print("every command was started")
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("every command was started\n")


def test_command_missing_or_unknown_has_status_2(cll):
    assert cll()[0] == 2
    status, _, error = cll("tarin")
    assert status == 2
    assert "'tarin'" in error
    assert all(name in error for name in COMMANDS)


def test_version(cll):
    assert cll("--version") == (0, f"complementary {__version__}\n", "")


def test_main_names_a_missing_package(cll, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    for name in [n for n in sys.modules if n.startswith("complementary.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    status, _, error = cll("train")
    assert status == 2
    assert "tyro" in error
    assert "pip install '.[cli]'" in error


@pytest.fixture
def train(monkeypatch):
    """Replace the command ``cll train``."""
    import complementary.cli.train

    def replace(command):
        monkeypatch.setattr(complementary.cli.train, "main", command)

    return replace


def test_ctrl_c_has_status_130_and_no_traceback(cll, train):
    def interrupted(_):
        raise KeyboardInterrupt

    train(interrupted)
    assert cll("train") == (130, "", "\ncll train: stopped.\n")


def test_user_error_is_one_line_with_status_2(cll, train):
    def wrong(_):
        raise UserError("The data are missing.")

    train(wrong)
    assert cll("train") == (2, "", "cll train: The data are missing.\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/forbidden/x"), "/forbidden/x"),
        (OSError("No usable temporary directory found"), "No usable temporary directory found"),
        (MemoryError("Unable to allocate 3 TiB"), "3 TiB"),
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes\nat x.cpp"), "9 bytes"),
    ],
)
def test_error_of_the_system_is_one_line_with_status_2(cll, train, error, said):
    def fail(_):
        raise error

    train(fail)
    status, out, shown = cll("train")
    assert (status, out, shown.count("\n")) == (2, "", 1)
    assert said in shown


def test_error_of_the_program_keeps_its_traceback(cll, train):
    def bug(_):
        raise RuntimeError("a bug")

    train(bug)
    with pytest.raises(RuntimeError, match="a bug"):
        cll("train")


def test_sigterm_has_status_143(cll, train):
    def stopped(_):
        raise Stopped("stopped in epoch 3 of 9", signal.SIGTERM)

    train(stopped)
    assert cll("train") == (143, "", "\ncll train: stopped in epoch 3 of 9.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["--help", f"report {RESULTS}", "data list"])
def test_output_to_a_full_disk_is_an_error(arguments):
    command = f"{sys.executable} -m complementary {arguments} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_file_name_that_is_not_utf8_is_escaped(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "complementary", "sweep", "status", os.fsencode(tmp_path) + b"/\xff"],
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_log_of_the_package_is_shown_on_stderr(cll, train):
    train(lambda _: logging.getLogger("complementary.clusters").warning("clusters of raw pixels"))
    assert cll("train") == (0, "", "warning: clusters of raw pixels\n")


def test_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m complementary train --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(("arguments", "status"), [(["methods", "--no-such-option"], 2), (["methods"], 0)])
@pytest.mark.parametrize("under_torchrun", [False, True])
def test_main_under_torchrun_skips_the_finalization_of_python(monkeypatch, under_torchrun, arguments, status):
    """Finalization destroys the process group while its threads may be busy, which sometimes ends in SIGABRT."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if under_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    done = python(
        "import atexit, sys; from complementary.cli import main; "
        f"atexit.register(lambda: print('finalized')); print('before'); main({arguments})"
    )
    assert done.returncode == status
    assert "before" in done.stdout
    assert ("finalized" in done.stdout) != under_torchrun
    assert ("no-such-option" in done.stderr) == bool(status)
