import json
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
from complementary.data import cache
from complementary.errors import UserError

SOURCE = str(Path(complementary.__path__[0]).parent)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def listing(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if "locks" not in p.parts)


def versions(root, name):
    return [path for path in (root / "sets" / name).iterdir() if path.is_dir()]


# --- reading -------------------------------------------------------------------------------------


def test_read_returns_what_was_written(root, images, store):
    store(root, "x", **{"train/inputs": images.transpose(0, 1, 3, 2), "train/truth": np.arange(50)})
    stored = cache.read(root, "x")
    assert np.array_equal(stored.arrays["train/inputs"], images.transpose(0, 1, 3, 2))
    assert isinstance(stored.arrays["train/inputs"], np.memmap)
    assert stored.manifest["source"] == "a test"
    cache.verify(stored)
    assert cache.names(root) == ["x"]


def test_read_of_a_missing_dataset_is_none(root):
    assert cache.read(root, "x") is None
    assert cache.names(root) == []


def test_read_arrays_can_be_changed_without_changing_the_cache(root, images, store):
    store(root, "x", a=images)
    cache.read(root, "x").arrays["a"][:] = 0
    cache.verify(cache.read(root, "x"))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "-x", "a b", "é", "x" * 65, "x.npz"])
def test_names_that_are_no_folder_names_are_refused(root, name):
    with pytest.raises(UserError, match="not a valid name"):
        cache.read(root, name)


def test_read_while_another_process_replaces_the_dataset(root, images, monkeypatch, store):
    store(root, "x", a=images)
    stale = cache.read_manifest(root, "x")
    store(root, "x", a=images + 1)
    answers = iter([stale, cache.read_manifest(root, "x")])
    monkeypatch.setattr(cache, "read_manifest", lambda *_: next(answers))
    assert np.array_equal(cache.read(root, "x").arrays["a"], images + 1)


@pytest.mark.parametrize("harm", ["shorter", "gone", "other", "manifest", "layout"])
def test_read_detects_damage(root, images, harm, store):
    store(root, "x", a=images)
    path, manifest = next((root / "sets/x").glob("*/a.npy")), root / "sets/x/manifest.json"
    if harm == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
    elif harm == "gone":
        path.unlink()
    elif harm == "other":
        np.save(path, images[:10])
    elif harm == "manifest":
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps({"layout": 99}))
    with pytest.raises(cache.Damaged, match="again"):
        cache.read(root, "x")


def flip_a_bit(path, position=-1):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_read_detects_a_flipped_bit(root, images, store):
    store(root, "x", a=images, b=images)
    flip_a_bit(next((root / "sets/x").glob("*/b.npy")))
    with pytest.raises(cache.Damaged, match=r"b of x .*checksum"):
        cache.read(root, "x")


def test_read_detects_a_changed_manifest(root, images, store):
    store(root, "x", a=images)
    manifest = root / "sets/x/manifest.json"
    manifest.write_text(manifest.read_text().replace("a test", "a tess"))
    with pytest.raises(cache.Damaged, match="its own checksum"):
        cache.read(root, "x")


def test_read_takes_manifests_without_a_checksum(root, images, store):
    """Earlier versions wrote none."""
    store(root, "x", a=images)
    manifest = root / "sets/x/manifest.json"
    content = json.loads(manifest.read_text())
    del content["manifest_sha256"]
    manifest.write_text(json.dumps(content))
    (root / "sets/x/verified.json").unlink()
    assert np.array_equal(cache.read(root, "x").arrays["a"], images)


def test_read_verifies_only_files_that_changed(root, images, store, monkeypatch):
    """Checksums are compared after a copy of the cache or a restore from a backup, and once only."""
    store(root, "x", a=images, b=images)
    verified, real = [], cache.sha256
    monkeypatch.setattr(cache, "sha256", lambda array, progress="": verified.append(progress) or real(array))
    cache.read(root, "x")
    assert verified == []
    path = next((root / "sets/x").glob("*/a.npy"))
    os.utime(path, ns=(1, 1))
    cache.read(root, "x")
    assert verified == ["checking a of x"]
    cache.read(root, "x")
    assert len(verified) == 1
    shutil.copytree(root, root.with_name("copy"))
    cache.read(root.with_name("copy"), "x")
    assert len(verified) == 3


def test_read_verifies_every_time_if_it_cannot_remember(root, images, store, monkeypatch):
    store(root, "x", a=images)
    (root / "sets/x/verified.json").unlink()

    def refuse(path, content):
        raise UserError(f"{path} cannot be written (Read-only file system).")

    monkeypatch.setattr(cache.files, "atomic_write", refuse)
    assert np.array_equal(cache.read(root, "x").arrays["a"], images)
    flip_a_bit(next((root / "sets/x").glob("*/a.npy")))
    with pytest.raises(cache.Damaged, match="checksum"):
        cache.read(root, "x")


def test_verify_detects_a_bit_that_the_disk_lost(root, images, store):
    """No time stamp shows it, so only the full check finds it."""
    store(root, "x", a=images)
    path = next((root / "sets/x").glob("*/a.npy"))
    flip_a_bit(path)
    state = cache._state(path)
    cache._write_verified(root / "sets/x", cache.read_manifest(root, "x")["version"], {"a": state})
    stored = cache.read(root, "x")
    with pytest.raises(cache.Damaged, match="checksum"):
        cache.verify(stored)


def test_cache_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("COMPLEMENTARY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "complementary"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache/complementary"
    monkeypatch.setenv("COMPLEMENTARY_CACHE", "/elsewhere")
    assert cache.cache_root() == Path("/elsewhere")
    assert cache.cache_root(tmp_path) == tmp_path


# --- writing -------------------------------------------------------------------------------------


def test_write_that_fails_changes_nothing(root, images, store):
    store(root, "x", a=images)
    before = listing(root)
    for name in ("x", "new"):
        with pytest.raises(ValueError, match="Object arrays"):
            store(root, name, a=images + 1, b=np.array([None]))
    assert listing(root) == before
    cache.verify(cache.read(root, "x"))


def test_write_interrupted_after_the_commit_keeps_the_new_version(root, images, store, monkeypatch):
    store(root, "x", a=images)
    real, calls = cache._remove_others, []

    def interrupt(*arguments):
        real(*arguments)
        calls.append(arguments)
        if len(calls) == 2:  # the first call is before the write
            raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_remove_others", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store(root, "x", a=images + 1)
    stored = cache.read(root, "x")
    cache.verify(stored)
    assert np.array_equal(stored.arrays["a"], images + 1)


def test_write_leaves_open_arrays_of_the_old_version_usable(root, images, store):
    store(root, "x", a=images)
    old = cache.read(root, "x")
    store(root, "x", a=images + 1)
    assert np.array_equal(old.arrays["a"], images)
    assert np.array_equal(cache.read(root, "x").arrays["a"], images + 1)
    assert len(versions(root, "x")) == 1


@pytest.mark.parametrize("stray", [".DS_Store", "my set/manifest.json", "file"])
def test_write_ignores_other_files(root, images, store, stray):
    (root / "sets" / stray).parent.mkdir(parents=True)
    (root / "sets" / stray).touch()
    store(root, "x", a=images)
    assert (root / "sets" / stray).exists()
    assert cache.names(root) == ["x"]


def test_write_to_a_read_only_folder_is_refused(tmp_path, store):
    (tmp_path / "file").write_text("")
    with pytest.raises(cache.Unwritable, match=r"cannot be written .*; make it writable"):
        store(tmp_path / "file" / "cache", "x", a=np.zeros(3))


@pytest.fixture
def small_disk(mounted):
    return mounted("1m")


def test_write_to_a_full_disk_changes_nothing(small_disk, images, store):
    root = small_disk / "cache"
    store(root, "x", a=images)
    before = listing(root)
    with pytest.raises(cache.Unwritable, match="free some space"):
        store(root, "x", b=images, a=np.zeros(2_000_000, np.uint8))
    assert listing(root) == before
    cache.verify(cache.read(root, "x"))


def test_write_after_a_kill_on_a_full_disk_has_the_space_again(small_disk, images, store):
    """The unfinished version of a killed process is removed before the next one is written, not after."""
    root = small_disk / "cache"
    leftover = root / "sets" / "x" / "0123456789ab"
    leftover.mkdir(parents=True)
    (leftover / "a.npy").write_bytes(bytes(700_000))
    store(root, "x", a=np.zeros(600_000, np.uint8))
    assert len(cache.read(root, "x").arrays["a"]) == 600_000


def test_allocate_reserves_the_space(small_disk):
    """A write to a hole of a memory map on a disk that fills up would kill the process."""
    root = small_disk / "cache"
    with cache.lock(root, "x"), cache.write(root, "x") as draft:
        array = draft.allocate("a", (600_000,))
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "other").write_bytes(bytes(600_000))
        array[:] = 1
        (small_disk / "other").unlink()


def test_allocate_checks_the_free_space_first(root):
    with (
        pytest.raises(cache.Unwritable, match=r"No space left: .* needed, .* free.*free some space"),
        cache.lock(root, "x"),
        cache.write(root, "x") as draft,
    ):
        draft.allocate("a", (2**50,))
    assert cache.names(root) == []


WRITER = """
import sys, time, pathlib, numpy as np
from complementary.data import cache
root, mark = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
with cache.lock(root, "x"), cache.write(root, "x") as draft:
    draft.save("a", np.full(1000, 7, np.uint8))
    mark.touch()
    time.sleep(60)
"""


def test_write_that_is_killed_changes_nothing(root, images, tmp_path, store):
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
    stored = cache.read(root, "x")
    cache.verify(stored)
    assert np.array_equal(stored.arrays["a"], images)
    assert len(versions(root, "x")) == 2  # one is the folder of the killed process
    store(root, "x", a=images + 1)  # its lock was released
    assert len(versions(root, "x")) == 1
    cache.verify(cache.read(root, "x"))


# --- removing ------------------------------------------------------------------------------------


def test_remove_deletes_one_dataset_only(root, images, store):
    store(root, "x", a=images)
    store(root, "y", a=images)
    stored = cache.read(root, "x")
    assert cache.remove(root, "x") > images.nbytes
    assert cache.names(root) == ["y"]
    assert not (root / "sets" / "x").exists()
    assert np.array_equal(stored.arrays["a"], images)
    cache.verify(cache.read(root, "y"))


def test_remove_refuses_the_base_of_another_dataset(root, images, store):
    store(root, "x", a=images)
    store(root, "y", base="x", a=images)
    with pytest.raises(UserError, match="y uses the images of x"):
        cache.remove(root, "x")
    assert cache.names(root) == ["x", "y"]
    cache.remove(root, "y")
    cache.remove(root, "x")
    assert cache.names(root) == []


def test_remove_of_a_damaged_dataset(root, images, store):
    store(root, "x", a=images)
    (root / "sets" / "x" / "manifest.json").write_text("{")
    cache.remove(root, "x")
    assert cache.names(root) == []
