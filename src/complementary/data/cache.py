"""The cache of datasets: memory-mapped arrays, replaced as a whole.

    ROOT/sets/NAME/manifest.json       what the dataset is, and which version of its arrays is valid
    ROOT/sets/NAME/verified.json       which files had the checksums of the manifest when they were last read
    ROOT/sets/NAME/VERSION/*.npy       the arrays
    ROOT/downloads/NAME/               downloaded files, some of them partial
    ROOT/locks/NAME.lock               held by the process that writes NAME

A new version is written to a folder of its own and becomes valid when the manifest is replaced, which is atomic. A
process that is killed before that leaves the old version valid; the next writer of the dataset removes its folder.

Every array has a SHA-256 in the manifest. It is compared when a dataset is opened, but only for files whose size, time
stamps or inode changed since they were last compared (verified.json), so that opening a dataset stays fast. Errors of
the disk that change nothing but the content are found by `verify`, which reads every byte.
"""

import contextlib
import datetime
import errno
import hashlib
import json
import logging
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
from complementary.reports.terminal import format_size, log_progress

log = logging.getLogger(__name__)
LAYOUT = 1
KEPT = ("manifest.json", "verified.json")
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
    """Read a cached dataset; None if there is none.

    Checks sizes, types and shapes, and the checksums of files that changed since they were last checked.

    Raises:
        Damaged: It does not match its manifest.
    """
    manifest = read_manifest(root, name)
    while manifest is not None:
        home = root / "sets" / name
        folder = home / manifest["version"]
        try:
            stored = Stored(manifest, {key: _open(folder, key, facts) for key, facts in manifest["arrays"].items()})
            _verify_changed(home, stored)
        except Damaged:
            newer = read_manifest(root, name)
            if newer is None or newer["version"] == manifest["version"]:
                raise
            manifest = newer  # another process replaced the dataset in the meantime
        else:
            return stored
    return None


def read_manifest(root: Path, name: str) -> dict[str, Any] | None:
    """Read and check the manifest of a cached dataset; None if there is none."""
    path = root / "sets" / check_name(name) / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise Damaged(f"{path} cannot be read ({files.reason_of(error)}); {AGAIN}") from None
    if not isinstance(manifest, dict) or manifest.get("layout") != LAYOUT:
        raise Damaged(f"{path} was written by another version of this package; {AGAIN}")
    if (wrong := _wrong_with(manifest)) is not None:
        raise Damaged(f"{path} is damaged ({wrong}); {AGAIN}")
    return manifest


def _wrong_with(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest; None: nothing."""
    version, arrays = manifest.get("version"), manifest.get("arrays")
    if not isinstance(version, str) or not version.isalnum():
        return "its version is not the name of a folder"
    types = {"dtype": str, "shape": list, "bytes": int, "sha256": str}
    if not isinstance(arrays, dict) or not all(
        isinstance(facts, dict) and all(isinstance(facts.get(name), kind) for name, kind in types.items())
        for facts in arrays.values()
    ):
        return "its list of arrays is not complete"
    checksum = manifest.get("manifest_sha256")  # manifests of earlier versions have none
    return None if checksum in (None, _checksum(manifest)) else "it does not match its own checksum"


def _checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest without its checksum."""
    return files.fingerprint_json({name: value for name, value in manifest.items() if name != "manifest_sha256"})


def _open(folder: Path, key: str, facts: Mapping[str, Any]) -> Array:
    path = _array_file(folder, key)
    try:
        # mode "c" (copy on write): the file cannot be changed through the array, and torch does not warn
        array: Array = np.load(path, mmap_mode="c", allow_pickle=False)
        found = (array.dtype.str, list(array.shape), path.stat().st_size)
    except Exception as error:  # a damaged header can raise anything
        raise Damaged(f"{path} cannot be read ({files.reason_of(error)}); {AGAIN}") from None
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
        _verify_array(stored, key, facts["sha256"])


def _verify_array(stored: Stored, key: str, expected: str) -> None:
    name = stored.manifest.get("name", "the dataset")
    if sha256(stored.arrays[key], f"checking {key} of {name}") != expected:
        raise Damaged(f"In the cache, {key} of {name} does not match its checksum; {AGAIN}")


def _verify_changed(home: Path, stored: Stored) -> None:
    """Compare the checksums of all files that changed since they were last compared, and remember them."""
    known = _read_verified(home, stored.manifest["version"])
    states = {key: _state(_array_file(home / stored.manifest["version"], key)) for key in stored.arrays}
    changed = [key for key, state in states.items() if known.get(key) != state]
    for key in changed:
        _verify_array(stored, key, stored.manifest["arrays"][key]["sha256"])
    if changed:
        try:
            _write_verified(home, stored.manifest["version"], states)
        except UserError as error:  # such as a cache that belongs to someone else
            log.debug("the checksums will be compared again next time: %s", error)


def _state(path: Path) -> list[int]:
    """What changes with the content of a file: size, time of modification, time of change, inode."""
    try:
        found = path.stat()
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({files.reason_of(error)}); {AGAIN}") from None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _read_verified(home: Path, version: str) -> dict[str, Any]:
    """Array -> state of its file when it was last verified; empty if that is not known."""
    try:
        record = json.loads((home / "verified.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(record, dict) or record.get("version") != version or not isinstance(record.get("files"), dict):
        return {}
    return dict(record["files"])


def _write_verified(home: Path, version: str, states: Mapping[str, list[int]]) -> None:
    files.atomic_write(home / "verified.json", json.dumps({"version": version, "files": states}))


def sha256(array: Array, progress: str = "") -> str:
    """SHA-256 of an array's bytes in C order, read in parts so that a memory map stays on disk.

    Args:
        array: The array.
        progress: What to call this in the progress of large arrays.
    """
    digest = hashlib.sha256()
    rows = max(1, 2**24 // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        digest.update(part.data if part.flags.c_contiguous and part.dtype.kind in "biuf" else part.tobytes())
        if progress and array.nbytes > 2**28:
            log_progress(log, progress, min(start + rows, len(array)), len(array))
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
        full = error.errno in (None, errno.ENOSPC, errno.EDQUOT)  # None: NumPy wrote only a part of an array
        advice = "free some space" if full else "make it writable"
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
        path = _array_file(self.folder, key)
        array: NDArray[np.uint8] = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # writing to a hole of a memory map on a full disk kills the process
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    def _require_space(self, size: int) -> None:
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
    draft.folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_others(root, name)  # what a killed process left behind may fill the disk
    draft.folder.mkdir(parents=True)
    try:
        yield draft
        _commit(name, draft)
    finally:
        _remove_others(root, name)


def _commit(name: str, draft: Draft) -> None:
    arrays, states = {}, {}
    for key, array in draft.arrays().items():
        path = _array_file(draft.folder, key)
        with path.open("r+b") as handle:
            os.fsync(handle.fileno())
        states[key] = _state(path)
        facts = {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": path.stat().st_size}
        arrays[key] = facts | {"sha256": sha256(array)}
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"layout": LAYOUT, "name": name, "version": draft.folder.name, "made": made}
    manifest = {**about, **draft.manifest, "arrays": arrays}
    manifest = json.loads(json.dumps(manifest))  # as it will be read: tuples become lists
    manifest["manifest_sha256"] = _checksum(manifest)
    files.atomic_write(draft.folder.parent / "manifest.json", json.dumps(manifest, indent=1))
    with contextlib.suppress(UserError):  # the dataset is complete without it
        _write_verified(draft.folder.parent, draft.folder.name, states)


def _remove_others(root: Path, name: str) -> None:
    """Remove everything in the folder of ``name`` but its valid version: old versions and unfinished ones."""
    home = root / "sets" / name
    try:
        manifest = read_manifest(root, name)
    except Damaged:
        return
    kept = set() if manifest is None else {*KEPT, manifest["version"]}
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
