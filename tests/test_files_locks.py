import time
from pathlib import Path

import pytest

import complementary
from complementary import files


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path):
    path = tmp_path / "lock"
    assert not files.is_held(path)
    with files.hold(path, 0) as first:
        assert first
        assert files.is_held(path)
        with files.hold(path, 0) as second:
            assert not second
    assert not files.is_held(path)


@pytest.fixture
def busy(tmp_path, in_child):
    """A lock that another process holds for a moment longer."""
    path = tmp_path / "lock"

    def hold_a_while():
        with files.hold(path, 0):
            (tmp_path / "held").write_text("")
            time.sleep(0.3)

    in_child(hold_a_while)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    return path


def test_patience_is_rewarded(busy):
    with files.hold(busy, 0) as at_once:
        assert not at_once
    with files.hold(busy, 10) as later:
        assert later


def test_taking_waits_only_if_asked_to(busy):
    with busy.open("a") as file:
        assert not files.take(file)
        assert files.take(file, wait=True)
        assert files.is_held(busy)


def test_a_disk_that_cannot_lock_is_named_by_take_and_counts_as_held_elsewhere(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    path = tmp_path / "lock"
    with path.open("a") as file, pytest.raises(OSError, match="No locks available"):
        files.take(file)
    with files.hold(path, 0) as held:
        assert not held
    assert files.is_held(path)


def test_without_locks_nothing_is_ever_held_by_another(tmp_path, monkeypatch):
    assert files.exist()
    monkeypatch.setattr(files, "fcntl", None)
    assert not files.exist()
    with files.hold(tmp_path / "lock", 0) as first, files.hold(tmp_path / "lock", 0) as second:
        assert first
        assert second
        assert not files.is_held(tmp_path / "lock")


def test_no_other_module_knows_how_the_system_locks():
    source = Path(complementary.__path__[0])
    assert [p.name for p in source.rglob("*.py") if "import fcntl" in p.read_text(encoding="utf-8")] == ["locks.py"]
