"""The cache of decoded sets: memory-mapped arrays, written so that no reader ever sees half a set.

    ROOT/sets/NAME/manifest.json       what the set is, and which version of its arrays counts
    ROOT/sets/NAME/VERSION/*.npy       the arrays
    ROOT/downloads/NAME/               files on their way in, some of them partial
    ROOT/locks/NAME.lock               held by the process that writes NAME

A new version is written beside the old one, read back and compared, and becomes *the* version when the
manifest is replaced in one step. A process that dies before that leaves the cache as it was, plus a
folder that the next writer of the same set removes.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from complementary.data.progress import Say, size
from complementary.errors import UserError

LAYOUT = 1
Array = NDArray[np.generic]


def cache_root(root: Path | None = None) -> Path:
    """``root``, or $COMPLEMENTARY_CACHE, or complementary/ in the user's cache folder."""
    if root is not None:
        return Path(root)
    if named := os.environ.get("COMPLEMENTARY_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "complementary"


def check_name(name: str) -> str:
    """Return ``name`` if it can name a set (and so a folder), else say what a name may look like."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isalnum() and plain.isascii()) or name[0] in ".-" or len(name) > 64:
        raise UserError(
            f"{name!r} cannot name a dataset; use up to 64 letters, digits, '-', '_' and '.', "
            "beginning with a letter or digit."
        )
    return name


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A set in the cache: its ``manifest`` and its memory-mapped ``arrays``, such as "train/inputs"."""

    manifest: Mapping[str, Any]
    arrays: Mapping[str, Array]


class Damaged(UserError):
    """A cached set is not what its manifest says."""


def read(root: Path, name: str) -> Stored | None:
    """The cached set ``name``, or None. Sizes, dtypes and shapes are checked; no pixel is read."""
    manifest = read_manifest(root, name)
    if manifest is None:
        return None
    folder = root / "sets" / name / manifest["version"]
    arrays = {key: _open(folder, name, key, facts) for key, facts in manifest["arrays"].items()}
    return Stored(manifest, arrays)


def read_manifest(root: Path, name: str) -> dict[str, Any] | None:
    """The manifest of the cached set ``name``, or None where there is none."""
    path = root / "sets" / check_name(name) / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as problem:
        raise Damaged(f"{path} cannot be read ({problem}); {_remedy(name)}") from None
    if not isinstance(manifest, dict) or manifest.get("layout") != LAYOUT:
        raise Damaged(f"{path} was written by another version of this package; {_remedy(name)}")
    return manifest


def names(root: Path) -> list[str]:
    """The names of all sets in the cache, sorted."""
    return sorted(path.parent.name for path in (root / "sets").glob("*/manifest.json"))


def verify(stored: Stored) -> None:
    """Read every byte of a cached set and compare it with the SHA-256 in its manifest."""
    for key, facts in stored.manifest["arrays"].items():
        if sha256(stored.arrays[key]) != facts["sha256"]:
            name = stored.manifest["name"]
            raise Damaged(f"In the cache, {key} of {name} does not match its checksum; {_remedy(name)}")


def sha256(array: Array) -> str:
    """SHA-256 of the array's bytes in C order, read in pieces so that a memory map stays on the disk."""
    digest = hashlib.sha256()
    rows = max(1, 2**24 // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(array[start : start + rows].tobytes())
    return digest.hexdigest()


def _open(folder: Path, name: str, key: str, facts: Mapping[str, Any]) -> Array:
    path = folder / _file(key)
    try:
        # "c" (copy on write): the file cannot be changed through the array, yet torch takes it without a copy
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
        sound = array.dtype.str == facts["dtype"] and list(array.shape) == facts["shape"]
        sound = sound and path.stat().st_size == facts["bytes"]
    except (OSError, ValueError, EOFError) as problem:
        raise Damaged(f"{path} cannot be read ({problem}); {_remedy(name)}") from None
    if not sound:
        raise Damaged(f"{path} is not the file that was written there; {_remedy(name)}")
    return array


def _file(key: str) -> str:
    return key.replace("/", "-") + ".npy"


def _remedy(name: str) -> str:
    return f"write it anew with 'cll data get {name} --again', or import it again if it is your own."


# --- writing -------------------------------------------------------------------------------------


@contextmanager
def lock(root: Path, name: str, say: Say) -> Iterator[None]:
    """Hold the right to write ``name``; another process that wants it waits, and goes on after a kill."""
    import fcntl

    with disk_errors(root):
        (root / "locks").mkdir(parents=True, exist_ok=True)
        handle = (root / "locks" / f"{check_name(name)}.lock").open("w")
    with handle:  # the lock goes with the handle, also when the process is killed
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: another process is writing it; waiting for that one")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn a full disk or a folder that may not be written into one sentence."""
    try:
        yield
    except OSError as problem:
        advice = "free some space there" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise UserError(
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
        dtype, path = np.dtype(dtype), self.folder / _file(key)
        wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._need_space(wanted)
        array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
        with path.open("r+b") as handle:  # a map without blocks behind it would die on a disk that fills up
            os.posix_fallocate(handle.fileno(), 0, path.stat().st_size)
        return array

    def put(self, key: str, array: Array) -> str:
        """Write ``array``, read it back, and return its SHA-256."""
        self._need_space(array.nbytes)
        path = self.folder / _file(key)
        with path.open("wb") as handle:
            np.lib.format.write_array(handle, np.ascontiguousarray(array), allow_pickle=False)
            handle.flush()
            os.fsync(handle.fileno())
        wanted = sha256(array)
        if self.seal(key) != wanted:
            raise UserError(f"{path} reads back other bytes than were written: the disk may be failing.")
        return wanted

    def seal(self, key: str) -> str:
        """Note the facts of an array that was filled in place, and return its SHA-256."""
        path = self.folder / _file(key)
        _fsync(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        facts = {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": path.stat().st_size}
        self.facts[key] = {**facts, "sha256": sha256(array)}
        return str(self.facts[key]["sha256"])

    def get(self, key: str) -> Array:
        """An array of this draft, memory-mapped; changes to it do not reach the disk."""
        return np.load(self.folder / _file(key), mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]

    def discard(self, key: str) -> None:
        """Remove an array that is not to be part of the set."""
        (self.folder / _file(key)).unlink()
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
        draft = Draft(home / secrets.token_hex(6))
        draft.folder.mkdir()
        try:
            yield draft
        except BaseException:
            shutil.rmtree(draft.folder, ignore_errors=True)
            if not any(home.iterdir()):
                home.rmdir()
            raise


def commit(root: Path, name: str, draft: Draft, facts: Mapping[str, Any]) -> None:
    """Make ``draft`` the version of ``name`` that counts, in one step, and remove the one before."""
    manifest = {"layout": LAYOUT, "name": name, "version": draft.folder.name, **facts, "arrays": draft.facts}
    fresh = draft.folder.parent / "manifest.json.new"
    with fresh.open("w") as handle:
        json.dump(manifest, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    _fsync(draft.folder)
    fresh.replace(fresh.with_suffix(""))
    _fsync(fresh.parent)
    _sweep(root, name)


def _sweep(root: Path, name: str) -> None:
    """Remove what killed or replaced writers of ``name`` left; only for the holder of its lock."""
    home = root / "sets" / name
    try:
        manifest = read_manifest(root, name)
    except Damaged:
        manifest = None
    for path in home.iterdir():
        if path.is_dir() and (manifest is None or path.name != manifest["version"]):
            shutil.rmtree(path, ignore_errors=True)
    (home / "manifest.json.new").unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
