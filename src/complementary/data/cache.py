"""The cache of datasets: memory-mapped arrays, replaced as a whole.

    ROOT/sets/NAME/manifest.json       what the dataset is, and which version of its arrays is valid
    ROOT/sets/NAME/VERSION/*.npy       the arrays
    ROOT/downloads/NAME/               downloaded files, some of them partial
    ROOT/locks/NAME.lock               held by the process that writes NAME

A new version is written to a folder of its own and becomes valid when the manifest is replaced, which is atomic. A
process that is killed before that leaves the old version valid; the next writer of the dataset removes its folder.
"""

import contextlib
import datetime
import errno
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary import files
from complementary.errors import UserError
from complementary.reports.terminal import format_size

LAYOUT = 1
AGAIN = "get the dataset again, or import it again if it is your own."
Array = NDArray[np.generic]


class Damaged(UserError):
    """A cached dataset does not match its manifest."""


class Unwritable(UserError):
    """The cache cannot be written: the disk is full or read-only."""


def cache_root(root: Path | None = None) -> Path:
    """The cache folder: ``root``, else $COMPLEMENTARY_CACHE, else ``complementary`` in the user's cache folder."""
    if root is not None:
        return Path(root)
    if named := os.environ.get("COMPLEMENTARY_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "complementary"


def is_name(name: str) -> bool:
    """Whether ``name`` is a valid name of a dataset, and so of a folder. An ``.npz`` is loaded by its path."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    valid = plain.isalnum() and plain.isascii() and name[0] not in "._-" and len(name) <= 64
    return valid and not name.endswith(".npz")


def check_name(name: str) -> str:
    """Return ``name`` if it is valid, else raise a `UserError`."""
    if not is_name(name):
        raise UserError(
            f"{name!r} is not a valid name of a dataset: use up to 64 letters, digits, '-', '_' and '.', beginning "
            "with a letter or digit, not ending in .npz."
        )
    return name


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A dataset in the cache: its manifest, and its memory-mapped arrays by key ("train/inputs")."""

    manifest: Mapping[str, Any]
    arrays: Mapping[str, Array]


def read(root: Path, name: str) -> Stored | None:
    """Read a cached dataset; None if there is none. Checks sizes, types and shapes, but reads no values."""
    manifest = read_manifest(root, name)
    while manifest is not None:
        folder = root / "sets" / name / manifest["version"]
        try:
            return Stored(manifest, {key: _open(folder, key, facts) for key, facts in manifest["arrays"].items()})
        except Damaged:
            newer = read_manifest(root, name)
            if newer is None or newer["version"] == manifest["version"]:
                raise
            manifest = newer  # another process replaced the dataset in the meantime
    return None


def read_manifest(root: Path, name: str) -> dict[str, Any] | None:
    """Read the manifest of a cached dataset; None if there is none."""
    path = root / "sets" / check_name(name) / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise Damaged(f"{path} cannot be read ({error}); {AGAIN}") from None
    if not isinstance(manifest, dict) or manifest.get("layout") != LAYOUT:
        raise Damaged(f"{path} was written by another version of this package; {AGAIN}")
    return manifest


def _open(folder: Path, key: str, facts: Mapping[str, Any]) -> Array:
    path = _array_file(folder, key)
    try:
        # mode "c" (copy on write): the file cannot be changed through the array, and torch does not warn
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
        found = (array.dtype.str, list(array.shape), path.stat().st_size)
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path} cannot be read ({error}); {AGAIN}") from None
    if found != (facts["dtype"], facts["shape"], facts["bytes"]):
        raise Damaged(f"{path} was changed after it was written; {AGAIN}")
    return array


def _array_file(folder: Path, key: str) -> Path:
    return folder / (key.replace("/", "-") + ".npy")


def names(root: Path) -> list[str]:
    """The names of all cached datasets, sorted."""
    found = (path.parent.name for path in (root / "sets").glob("*/manifest.json"))
    return sorted(name for name in found if is_name(name))


def verify(stored: Stored) -> None:
    """Read every byte of a cached dataset and compare it with the SHA-256 in its manifest."""
    for key, facts in stored.manifest["arrays"].items():
        if sha256(stored.arrays[key]) != facts["sha256"]:
            raise Damaged(f"In the cache, {key} of {stored.manifest['name']} does not match its checksum; {AGAIN}")


def sha256(array: Array) -> str:
    """SHA-256 of an array's bytes in C order, read in parts so that a memory map stays on disk."""
    digest = hashlib.sha256()
    rows = max(1, 2**24 // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(array[start : start + rows].tobytes())
    return digest.hexdigest()


# --- writing -------------------------------------------------------------------------------------


@contextlib.contextmanager
def lock(root: Path, name: str) -> Iterator[None]:
    """Hold the lock for writing ``name``. An OSError in the block, such as a full disk, becomes `Unwritable`."""
    path = root / "locks" / f"{check_name(name)}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.lock(path, None, waiting=f"{name}: waiting for another process that is writing it"):
            yield
    except OSError as error:
        advice = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise Unwritable(
            f"The cache {root} cannot be written ({error.strerror or error}); {advice}, or set COMPLEMENTARY_CACHE to "
            "another folder. Its content is unchanged."
        ) from None


@dataclass
class Draft:
    """A version of a dataset that is being written."""

    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)  # to be filled by the writer

    def save(self, key: str, array: Array) -> None:
        """Write an array."""
        self._require_space(array.nbytes)
        np.save(_array_file(self.folder, key), np.ascontiguousarray(array), allow_pickle=False)

    def allocate(self, key: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Create a memory-mapped uint8 array to be filled in place."""
        self._require_space(math.prod(shape))
        return np.lib.format.open_memmap(_array_file(self.folder, key), "w+", np.uint8, shape)

    def _require_space(self, size: int) -> None:
        """Without this check, writing to a memory map on a full disk kills the process."""
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise OSError(errno.ENOSPC, f"No space left: {format_size(size)} needed, {format_size(free)} free")

    def arrays(self) -> dict[str, Array]:
        """The arrays written so far, memory-mapped."""
        paths = sorted(self.folder.glob("*.npy"))
        return {path.stem.replace("-", "/", 1): np.load(path, mmap_mode="c", allow_pickle=False) for path in paths}


@contextlib.contextmanager
def write(root: Path, name: str) -> Iterator[Draft]:
    """Write a new version of ``name``: valid when the block ends, removed if it raises. The caller holds the `lock`."""
    draft = Draft(root / "sets" / check_name(name) / secrets.token_hex(6))
    draft.folder.mkdir(parents=True)
    try:
        yield draft
        _commit(name, draft)
    finally:
        _remove_others(root, name)


def _commit(name: str, draft: Draft) -> None:
    arrays = {}
    for key, array in draft.arrays().items():
        path = _array_file(draft.folder, key)
        with path.open("r+b") as handle:
            os.fsync(handle.fileno())
        facts = {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": path.stat().st_size}
        arrays[key] = facts | {"sha256": sha256(array)}
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"layout": LAYOUT, "name": name, "version": draft.folder.name, "made": made}
    text = json.dumps({**about, **draft.manifest, "arrays": arrays}, indent=1)
    files.atomic_write(draft.folder.parent / "manifest.json", text)


def _remove_others(root: Path, name: str) -> None:
    """Remove everything in the folder of ``name`` but its valid version: old versions and unfinished ones."""
    home = root / "sets" / name
    try:
        manifest = read_manifest(root, name)
    except Damaged:
        return
    kept = set() if manifest is None else {"manifest.json", manifest["version"]}
    for path in home.iterdir():
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    if not kept:
        with contextlib.suppress(OSError):
            home.rmdir()


def remove(root: Path, name: str) -> int:
    """Remove a dataset from the cache -> bytes freed. A process that has it open can go on reading."""
    home = root / "sets" / check_name(name)
    if not home.is_dir():
        raise UserError(f"The cache {root} contains no dataset {name}.")
    dependent = [other for other in names(root) if other != name and _base(root, other) == name]
    if dependent:
        raise UserError(f"{', '.join(dependent)} uses the images of {name}; remove that first.")
    with lock(root, name):
        freed = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
        (home / "manifest.json").unlink(missing_ok=True)  # first, so that the dataset disappears at once
        shutil.rmtree(home)
    return freed


def _base(root: Path, name: str) -> str | None:
    with contextlib.suppress(Damaged):
        return (read_manifest(root, name) or {}).get("base")
    return None
