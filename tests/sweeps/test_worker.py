import logging
import threading
import warnings

import pytest

from complementary.sweeps.grid import Cell
from complementary.sweeps.sweep import SweepFolder
from complementary.sweeps.worker import RunCells, _logging_to

log = logging.getLogger("complementary.sweeps.test")


def test_log_holds_what_its_own_thread_logs(tmp_path):
    """Cells that run side by side do not write into each other's log."""
    meet = threading.Barrier(2)

    def work(name):
        with _logging_to(tmp_path / name):
            meet.wait()
            log.info("from %s", name)
            meet.wait()
        log.info("too late")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        (line,) = (tmp_path / name).read_text().splitlines()
        assert line.endswith(f"from {name}")


def test_log_is_appended_to_and_holds_warnings(tmp_path):
    logging.captureWarnings(True)  # as in a worker process
    try:
        for message in ("first", "second"):
            with _logging_to(tmp_path / "log"), warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning(message, UserWarning, "file.py", 1)
    finally:
        logging.captureWarnings(False)
    text = (tmp_path / "log").read_text()
    assert text.index("first") < text.index("second")


@pytest.mark.parametrize("count", [1, 2])
def test_unknown_device_is_an_error_of_every_cell(tmp_path, quick, count):
    cells = [Cell(quick.with_(seed=seed), f"seed={seed}") for seed in range(count)]
    errors = RunCells(SweepFolder(tmp_path))(cells, "abacus")
    assert list(errors) == [cell.key for cell in cells]
    assert all("abacus" in message for message in errors.values())
