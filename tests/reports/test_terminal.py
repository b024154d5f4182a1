"""Log lines, progress and tables of the command line."""

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from complementary.reports import terminal
from complementary.reports.terminal import format_size, log_progress, log_to_stderr, print_table, training_progress

logger = logging.getLogger("complementary.test")


class Screen:
    """A stderr that claims to be a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture
def screen(monkeypatch):
    """Call it in the test: pytest replaces sys.stderr after the fixtures."""

    def replace_stderr():
        found = Screen()
        monkeypatch.setattr(sys, "stderr", found)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
        return found

    return replace_stderr


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand: clock[0] = seconds."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def every_line(monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.0)


def loop(epoch=0, step=0, history=(), stage=""):
    place = {"epoch": epoch, "step_in_epoch": step, "epochs": 4, "steps_per_epoch": 10}
    return SimpleNamespace(stage=stage, seconds=2.0, history=list(history), **place)


# --- logging ------------------------------------------------------------------------------------------


def test_log_shows_info_and_warnings_on_stderr(capsys):
    with log_to_stderr():
        logger.debug("hidden")
        logger.info("clusters are read from %s", "cache")
        logger.warning("clusters of raw pixels")
    assert capsys.readouterr() == ("", "clusters are read from cache\nwarning: clusters of raw pixels\n")


def test_log_is_silent_before_and_after(capsys):
    with log_to_stderr():
        pass
    logger.info("not shown")
    assert capsys.readouterr() == ("", "")
    assert logging.getLogger("complementary").handlers == []


def test_log_of_other_processes_of_torchrun_is_not_shown(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with log_to_stderr():
        logger.warning("said by rank 0")
    assert capsys.readouterr().err == ""


def test_log_progress_in_a_file_is_a_line_now_and_then(capsys, clock):
    with log_to_stderr():
        for clock[0], done in ((100, 1), (114, 2), (115, 3), (116, 4), (131, 5)):
            log_progress(logger, "decoding images", done, 5_000)
    assert capsys.readouterr().err == "decoding images: 3 of 5,000\ndecoding images: 5 of 5,000\n"


def test_log_progress_of_bytes_is_shown_as_sizes(capsys, every_line):
    with log_to_stderr():
        log_progress(logger, "downloading", 1_500, 170_500_000, unit="bytes")
        log_progress(logger, "downloading", 1_500, unit="bytes")
    assert capsys.readouterr().err == "downloading: 1.5 kB of 170.5 MB\ndownloading: 1.5 kB\n"


def test_log_progress_without_the_handler_is_not_shown(capsys):
    log_progress(logger, "decoding images", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_log_progress_on_a_terminal_is_a_bar_until_all_is_done(screen):
    found = screen()
    with log_to_stderr():
        log_progress(logger, "decoding images", 1, 100)
        log_progress(logger, "downloading", 1, 100)
        assert set(terminal._BARS.tasks) == {"decoding images", "downloading"}
        logger.info("a line between")
        log_progress(logger, "decoding images", 100, 100)
        assert set(terminal._BARS.tasks) == {"downloading"}
    assert terminal._BARS.display is None
    assert "decoding images" in found.text
    assert "a line between" in found.text


# --- progress of a training ---------------------------------------------------------------------------


def bar_of_training():
    (task,) = terminal._BARS.display.tasks
    return task


def test_training_progress_on_a_terminal_shows_epoch_and_metrics(screen):
    screen()
    with training_progress({"loss": "loss", "oracle_knn": "kNN (oracle)", "accuracy": "test"}) as show:
        assert bar_of_training().total is None
        show(loop(step=3))
        task = bar_of_training()
        assert (task.description, task.completed, task.total) == ("epoch 0/4", 3, 40)
        show(loop(2, history=[{"loss": 9.0}, {"loss": 0.51234, "oracle_knn": 0.8, "accuracy": None}]))
        task = bar_of_training()
        assert (task.description, task.completed) == ("epoch 2/4", 20)
        assert task.fields["note"] == "loss 0.512 · kNN (oracle) 0.800"
    assert terminal._BARS.display is None


def test_training_progress_in_a_file_is_one_line_per_interval(capsys, clock):
    with training_progress({"loss": "loss"}) as show:
        show(loop(step=1))
        show(loop(1, history=[{"loss": 0.5}]))  # the first epoch always has a line
        show(loop(2, history=[{"loss": 0.4}]))
        clock[0] += 15
        show(loop(2, 5, history=[{"loss": 0.4}], stage="self-training, "))
        clock[0] += 15
        show(loop(4, history=[{"loss": 0.3}]))  # the result follows
    out, error = capsys.readouterr()
    first, second = error.splitlines()
    assert out == ""
    assert re.fullmatch(r"epoch 1/4 · loss 0\.500 · about \d:\d\d:\d\d left", first)
    assert re.fullmatch(r"self-training, epoch 2/4, step 5/10 · loss 0\.400 · about \d:\d\d:\d\d left", second)


# --- tables -------------------------------------------------------------------------------------------


def test_print_table_aligns_text_left_and_numbers_right(capsys):
    print_table(("name", "size", "note"), [("digits", "1,797", "x [1]"), ("b", "?", "")], title="Datasets")
    lines = ["Datasets", "name     size  note", "digits  1,797  x [1]", "b           ?"]
    assert capsys.readouterr().out.splitlines() == lines


def test_print_table_without_header_or_rows(capsys):
    print_table((), [("accuracy", "80.0 ± 1.5 %"), ("noise", "3.0 %")])
    assert capsys.readouterr().out == "accuracy  80.0 ± 1.5 %\nnoise            3.0 %\n"
    print_table(("a", "b"), [])
    assert capsys.readouterr().out == "a  b\n"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (170_500_000, "170.5 MB"), (2e10, "20.0 GB")]
)
def test_format_size(count, text):
    assert format_size(count) == text


def test_progress_bar_shows_file_names_with_brackets():
    """rich would read [/b] as the end of bold text, and fail."""
    display = terminal._new_display()
    display.add_task("a[/b].gz", total=2, count="[/b]", note="[/x]")
    shown = io.StringIO()
    Console(file=shown, width=100).print(display.get_renderable())
    assert "a[/b].gz" in shown.getvalue()
