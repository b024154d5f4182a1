import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import complementary
from complementary import files
from complementary.data import cache
from complementary.data import cache as drafts
from complementary.errors import UserError

SOURCE = str(Path(complementary.__path__[0]).parent)


class WrongTurn:
    @property
    def shape(self):
        raise UserError("a wrong turn")


def listing(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if "locks" not in p.parts)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def test_an_error_while_writing_leaves_the_cache_as_it_was(root, images, store):
    store(root, "x", a=images)
    before = listing(root)
    for name in ("x", "new"):
        with pytest.raises(UserError, match="a wrong turn"):
            store(root, name, a=images + 1, b=WrongTurn())
    assert listing(root) == before
    cache.verify(cache.read(root, "x"))


def test_an_interrupt_right_after_the_commit_keeps_the_new_version(root, images, store, monkeypatch):
    store(root, "x", a=images)
    real = drafts._fsync

    def interrupt(path):
        real(path)
        if path.name == "x":  # the last step, after the manifest was replaced
            raise KeyboardInterrupt

    monkeypatch.setattr(drafts, "_fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store(root, "x", a=images + 1)
    held = cache.read(root, "x")
    cache.verify(held)
    assert np.array_equal(held.arrays["a"], images + 1)


def test_a_replaced_set_can_still_be_used_by_who_has_it(root, images, store):
    store(root, "x", a=images)
    old = cache.read(root, "x")
    store(root, "x", a=images + 1)
    assert np.array_equal(old.arrays["a"], images)
    assert np.array_equal(cache.read(root, "x").arrays["a"], images + 1)
    assert len([p for p in (root / "sets/x").iterdir() if p.is_dir()]) == 1


@pytest.mark.parametrize("stray", [".DS_Store", "my set/manifest.json", "file"])
def test_what_others_put_into_the_cache_is_left_alone(root, images, store, stray):
    (root / "sets" / stray).parent.mkdir(parents=True)
    (root / "sets" / stray).touch()
    store(root, "x", a=images)
    assert (root / "sets" / stray).exists()
    assert cache.names(root) == ["x"]


def test_a_folder_that_may_not_be_written(tmp_path, store):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*; make it writable"):
        store(tmp_path / "file" / "cache", "x", a=np.zeros(3))


# --- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 1 MB, where we may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("refuse_first", [True, False])
def test_a_full_disk_leaves_the_cache_as_it_was(small_disk, images, refuse_first, monkeypatch, store):
    root = small_disk / "cache"
    store(root, "x", a=images)
    before = listing(root)
    if not refuse_first:
        monkeypatch.setattr(drafts.Draft, "_need_space", lambda *_: None)  # so that the write itself hits the end
    with pytest.raises(UserError, match=r"No space left.*free some space"):
        store(root, "x", b=images, a=np.zeros(2_000_000, np.uint8))
    assert listing(root) == before
    cache.verify(cache.read(root, "x"))


def test_space_is_asked_for_first(root, images):
    with (
        pytest.raises(UserError, match=r"No space left: .* wanted, .* free\); free some space"),
        drafts.writing(root, "x") as draft,
    ):
        draft.create("a", (2**50,), np.uint8)
    assert cache.names(root) == []


# --- other processes -----------------------------------------------------------------------------

WRITER = """
import sys, time, pathlib, numpy as np
from complementary.data import cache, drafts
root, mark = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
with drafts.lock(root, "x", print), drafts.writing(root, "x") as draft:
    draft.put("a", np.full(1000, 7, np.uint8))
    mark.touch()
    time.sleep(60)
"""


def test_a_kill_in_the_middle_leaves_the_cache_as_it_was(root, images, tmp_path, store):
    store(root, "x", a=images)
    mark = tmp_path / "mark"
    command = [sys.executable, "-c", WRITER, str(root), str(mark)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE})
    deadline = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert mark.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = cache.read(root, "x")
    cache.verify(held)
    assert np.array_equal(held.arrays["a"], images)
    assert len([p for p in (root / "sets/x").iterdir() if p.is_dir()]) == 2  # the dead writer's folder
    store(root, "x", a=images + 1)  # its lock is gone with it
    assert len([p for p in (root / "sets/x").iterdir() if p.is_dir()]) == 1
    cache.verify(cache.read(root, "x"))


def test_what_killed_writers_of_other_sets_left_is_removed(root, images, store):
    store(root, "kept", a=images)
    for name in ("kept", "dead", "busy"):
        (root / "sets" / name / "0123456789ab").mkdir(parents=True)
    with drafts.lock(root, "busy", print):
        # another process would fail to take the lock of "busy"; within one process a second handle does too
        store(root, "x", a=images)
    assert not (root / "sets/dead").exists()
    assert (root / "sets/busy/0123456789ab").exists()
    cache.verify(cache.read(root, "kept"))
    assert len([p for p in (root / "sets/kept").iterdir() if p.is_dir()]) == 1


def test_a_set_is_removed_whole_and_the_others_stay(root, images, store):
    store(root, "x", a=images)
    store(root, "y", a=images)
    held = cache.read(root, "x")
    assert drafts.remove(root, "x", print) > images.nbytes
    assert cache.names(root) == ["y"]
    assert not (root / "sets" / "x").exists()
    assert np.array_equal(held.arrays["a"], images), "whoever reads it goes on"
    cache.verify(cache.read(root, "y"))


def test_what_others_are_made_of_is_not_removed(root, images, store):
    store(root, "x", a=images)
    with drafts.lock(root, "y", print), drafts.writing(root, "y") as draft:
        draft.put("a", images)
        drafts.commit(root, "y", draft, {"source": "a test", "base": "x"})
    with pytest.raises(UserError, match=r"y in the cache .* is made of x's examples; remove that first"):
        drafts.remove(root, "x", print)
    assert cache.names(root) == ["x", "y"]
    drafts.remove(root, "y", print)
    drafts.remove(root, "x", print)
    assert cache.names(root) == []


def test_a_set_that_is_damaged_can_be_removed(root, images, store):
    store(root, "x", a=images)
    (root / "sets" / "x" / "manifest.json").write_text("{")
    drafts.remove(root, "x", print)
    assert cache.names(root) == []
