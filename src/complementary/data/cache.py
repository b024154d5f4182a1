"""The cache of decoded sets: memory-mapped arrays, written so that no reader ever sees half a set.

    ROOT/sets/NAME/manifest.json       what the set is, and which version of its arrays counts
    ROOT/sets/NAME/VERSION/*.npy       the arrays
    ROOT/downloads/NAME/               files on their way in, some of them partial
    ROOT/locks/NAME.lock               held by the process that writes NAME

This module finds and reads; `drafts` writes.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def is_name(name: str) -> bool:
    """Whether ``name`` can name a set, and so a folder; an ``.npz`` is a file that `load` reads by its path."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    sound = plain.isalnum() and plain.isascii() and name[0] not in "._-" and len(name) <= 64
    return sound and not name.endswith(".npz")


def check_name(name: str) -> str:
    """Return ``name`` if it can name a set, else say what a name may look like."""
    if not is_name(name):
        raise UserError(
            f"{name!r} cannot name a dataset; choose another (import: --out NAME): up to 64 letters, digits, '-', "
            "'_' and '.', beginning with a letter or digit, not ending in .npz."
        )
    return name


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
    while manifest is not None:
        folder = root / "sets" / name / manifest["version"]
        try:
            arrays = {key: _open(folder, name, key, facts) for key, facts in manifest["arrays"].items()}
            return Stored(manifest, arrays)
        except Damaged:
            newer = read_manifest(root, name)
            if newer is None or newer["version"] == manifest["version"]:
                raise
            manifest = newer  # another process replaced the set between our two steps
    return None


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
    found = (path.parent.name for path in (root / "sets").glob("*/manifest.json"))
    return sorted(name for name in found if is_name(name))


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
    path = folder / file_name(key)
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


def file_name(key: str) -> str:
    """The file of an array in its version's folder: "train/inputs" lies in train-inputs.npy."""
    return key.replace("/", "-") + ".npy"


def _remedy(name: str) -> str:
    return f"write it anew with 'cll data get {name} --again', or import it again if it is your own."
