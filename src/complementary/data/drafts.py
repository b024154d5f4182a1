"""Writing to the cache, so that no reader ever sees half a set.

A new version is written beside the old one, read back and compared, and becomes *the* version when the
manifest is replaced in one step. A process that dies before that leaves the cache as it was, plus a folder
that the next writer of any set removes.
"""

import datetime
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import DTypeLike

from complementary import locks
from complementary.data.cache import (
    LAYOUT,
    Array,
    Damaged,
    check_name,
    file_name,
    is_name,
    names,
    read_manifest,
    sha256,
)
from complementary.data.screen import Say, size
from complementary.errors import UserError


class Unwritable(UserError):
    """The cache cannot be written: a full disk, or a folder that is not the user's."""


@contextmanager
def lock(root: Path, name: str, say: Say) -> Iterator[None]:
    """Hold the right to write ``name``; another process that wants it waits, and goes on after a kill."""
    if not locks.exist():  # reading the cache works without
        raise Unwritable("The cache can be written on Linux and macOS only: this system has no file locks.")
    with disk_errors(root):
        handle = _lock_file(root, name)
        free = locks.take(handle)
    with handle:  # the lock goes with the handle, also when the process is killed
        if not free:
            say(f"{name}: another process is writing it; waiting for that one")
            locks.take(handle, wait=True)
        yield


def _lock_file(root: Path, name: str) -> TextIO:
    (root / "locks").mkdir(parents=True, exist_ok=True)
    return (root / "locks" / f"{check_name(name)}.lock").open("w")


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn a full disk or a folder that may not be written into one sentence."""
    try:
        yield
    except OSError as problem:
        advice = "free some space there" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise Unwritable(
            f"The cache {root} cannot be written ({problem.strerror or problem}); {advice}, or name another "
            "folder with COMPLEMENTARY_CACHE. What it held before is unchanged."
        ) from None


@dataclass
class Draft:
    """A version of a set that is being written; it counts only once `commit` returns."""

    folder: Path
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def create(self, key: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap[Any, Any]:
        """A new array on the disk to be filled in place, for what should not be held in memory."""
        dtype, path = np.dtype(dtype), self.folder / file_name(key)
        wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._need_space(wanted)
        array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with path.open("r+b") as handle:  # a map without blocks behind it would die on a disk that fills up
                os.posix_fallocate(handle.fileno(), 0, path.stat().st_size)
        return array

    def put(self, key: str, array: Array) -> str:
        """Write ``array``, read it back, and return its SHA-256."""
        target = self.create(key, array.shape, array.dtype)
        target[...] = array
        target.flush()
        wanted = sha256(array)
        if self.seal(key) != wanted:
            raise UserError(f"{self.folder / file_name(key)} reads back other bytes than were written: check the disk.")
        return wanted

    def seal(self, key: str) -> str:
        """Note the facts of an array that was filled in place, and return its SHA-256."""
        path = self.folder / file_name(key)
        _fsync(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        facts = {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": path.stat().st_size}
        self.facts[key] = {**facts, "sha256": sha256(array)}
        return str(self.facts[key]["sha256"])

    def get(self, key: str) -> Array:
        """An array of this draft, memory-mapped; changes to it do not reach the disk."""
        return np.load(self.folder / file_name(key), mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]

    def discard(self, key: str) -> None:
        """Remove an array that is not to be part of the set."""
        (self.folder / file_name(key)).unlink()
        self.facts.pop(key, None)

    def _need_space(self, wanted: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if wanted > free:
            raise OSError(errno.ENOSPC, f"No space left: {size(wanted)} wanted, {size(free)} free")


@contextmanager
def writing(root: Path, name: str) -> Iterator[Draft]:
    """Write a new version of ``name``; hold its `lock`. Whatever goes wrong, the draft is removed."""
    home = root / "sets" / check_name(name)
    with disk_errors(root):
        home.mkdir(parents=True, exist_ok=True)
        _sweep(root, name)
        _sweep_abandoned(root, busy=name)
        draft = Draft(home / secrets.token_hex(6))
        draft.folder.mkdir()
        try:
            yield draft
        except BaseException:
            _sweep(root, name)  # the draft goes, unless it was committed before we were interrupted
            if not any(home.iterdir()):
                home.rmdir()
            raise


def commit(root: Path, name: str, draft: Draft, facts: Mapping[str, Any]) -> None:
    """Make ``draft`` the version of ``name`` that counts, in one step, and remove the one before."""
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"layout": LAYOUT, "name": name, "version": draft.folder.name, "made": made}
    manifest = {**about, **facts, "arrays": draft.facts}
    fresh = draft.folder.parent / "manifest.json.new"
    with fresh.open("w") as handle:
        json.dump(manifest, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    _fsync(draft.folder)
    fresh.replace(fresh.with_suffix(""))
    _fsync(fresh.parent)
    _sweep(root, name)


def remove(root: Path, name: str, say: Say) -> int:
    """Take the set ``name`` out of the cache -> how many bytes that freed. Whoever reads it at the moment goes on."""
    home = root / "sets" / check_name(name)
    if not home.is_dir():
        raise UserError(f"There is no set {name} in the cache {root}; 'cll data list' shows what is there.")
    above = [other for other in names(root) if other != name and _base(root, other) == name]
    if above:
        raise UserError(f"{', '.join(above)} in the cache {root} is made of {name}'s examples; remove that first.")
    with lock(root, name, say), disk_errors(root):
        freed = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
        (home / "manifest.json").unlink(missing_ok=True)  # from here on there is no such set
        shutil.rmtree(home)
    return freed


def _base(root: Path, name: str) -> str | None:
    try:
        manifest = read_manifest(root, name)
    except Damaged:
        return None
    return None if manifest is None else manifest.get("base")


def _sweep(root: Path, name: str) -> None:
    """Remove what killed or replaced writers of ``name`` left; only for the holder of its lock."""
    for path in _leftovers(root, name):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _sweep_abandoned(root: Path, busy: str) -> None:
    """Remove what killed writers of any other set left, unless it is being written right now."""
    for home in (root / "sets").iterdir():
        if home.name != busy and is_name(home.name) and _leftovers(root, home.name):
            with _lock_file(root, home.name) as handle:
                if locks.take(handle):
                    _sweep(root, home.name)
                    if not any(home.iterdir()):
                        home.rmdir()


def _leftovers(root: Path, name: str) -> list[Path]:
    """Everything in the folder of ``name`` but its manifest and the version that this names."""
    try:
        manifest = read_manifest(root, name)
    except Damaged:
        return []  # it may be of a newer package: not ours to remove
    kept = {"manifest.json", manifest["version"]} if manifest is not None else set()
    return [path for path in (root / "sets" / name).iterdir() if path.name not in kept]


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
