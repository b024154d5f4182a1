"""The cache of decoded sets: memory-mapped arrays, written so that no reader ever sees half a set.

    ROOT/sets/NAME/manifest.json       what the set is, and which version of its arrays counts
    ROOT/sets/NAME/VERSION/*.npy       the arrays
    ROOT/downloads/NAME/               files on their way in, some of them partial
    ROOT/locks/NAME.lock               held by the process that writes NAME

This module finds and reads; `drafts` writes.

Writing to the cache, so that no reader ever sees half a set.

A new version is written beside the old one, read back and compared, and becomes *the* version when the
manifest is replaced in one step. A process that dies before that leaves the cache as it was, plus a folder
that the next writer of any set removes.

Named sets, from the cache or from the first source that has them, each checked against the table.
"""

import contextlib
import datetime
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
import torch
from numpy.typing import DTypeLike, NDArray

from complementary import files
from complementary import labels as drawing
from complementary.data.dataset import Dataset, Split, moments
from complementary.data.download import Unreachable, sources, user_folder
from complementary.data.formats import multi_hot
from complementary.data.registry import TABLE, NamedSet
from complementary.errors import UserError
from complementary.reports.terminal import Say, need, size
from complementary.transitions import check_transition

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
    except (ValueError, OSError) as error:
        raise Damaged(f"{path} cannot be read ({error}); {_remedy(name)}") from None
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
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path} cannot be read ({error}); {_remedy(name)}") from None
    if not sound:
        raise Damaged(f"{path} is not the file that was written there; {_remedy(name)}")
    return array


def file_name(key: str) -> str:
    """The file of an array in its version's folder: "train/inputs" lies in train-inputs.npy."""
    return key.replace("/", "-") + ".npy"


def _remedy(name: str) -> str:
    return f"write it anew with 'cll data get {name} --again', or import it again if it is your own."


class Unwritable(UserError):
    """The cache cannot be written: a full disk, or a folder that is not the user's."""


@contextmanager
def lock(root: Path, name: str, say: Say) -> Iterator[None]:
    """Hold the right to write ``name``; another process that wants it waits, and goes on after a kill."""
    with contextlib.ExitStack() as stack:
        with disk_errors(root):
            path = _lock_file(root, name)
        try:
            stack.enter_context(files.lock(path))
        except files.Locked:
            say(f"{name}: another process is writing it; waiting for that one")
            stack.enter_context(files.lock(path, timeout=None))
        except UserError as error:
            raise Unwritable(str(error)) from None
        yield


def _lock_file(root: Path, name: str) -> Path:
    (root / "locks").mkdir(parents=True, exist_ok=True)
    return root / "locks" / f"{check_name(name)}.lock"


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn a full disk or a folder that may not be written into one sentence."""
    try:
        yield
    except OSError as error:
        advice = "free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise Unwritable(
            f"The cache {root} cannot be written ({error.strerror or error}); {advice}, or name another "
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
            with contextlib.suppress(files.Locked), files.lock(_lock_file(root, home.name)):
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


PARTS = ("train/inputs", "train/truth", "train/excluded", "train/names", "test/inputs", "test/truth", "transition")


def obtain(spec: NamedSet, root: Path, folder: Path | None, say: Say, again: bool = False) -> Stored:
    """Return the set from the cache, or get it into the cache first. ``folder``: see `user_folder`.

    ``again``: get it even if the cache has it; the old version counts until the new one is whole.
    """
    held = None if again else _told(spec, root, say)
    if held is None:
        folder = user_folder(folder)
        base = obtain(TABLE[spec.base], root, folder, say).arrays if spec.base else None
        with lock(root, spec.name, say):
            held = None if again else _told(spec, root, say)  # another process may have been faster
            if held is None:
                _get(spec, root, folder, base, say)
                held = read(root, spec.name)
    assert held is not None  # it was read or written just now
    return held


def _told(spec: NamedSet, root: Path, say: Say) -> Stored | None:
    held = cached(spec, root, say)
    if held is not None:
        say(f"{spec.name}: in the cache {root}, from {held.manifest['source']}")
    return held


def to_dataset(stored: Stored, base: Mapping[str, Array] | None) -> Dataset:
    """A cached set as tensors over its memory maps; ``base`` gives the arrays it does not bring itself."""
    facts, arrays = stored.manifest, {**(base or {}), **stored.arrays}
    return Dataset(
        name=facts["name"],
        train=_split(arrays, "train"),
        test=_split(arrays, "test") if "test/inputs" in arrays else None,
        classes=tuple(facts["classes"]),
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        flip=facts["flip"],
        head=facts["head"],
    )


def _split(arrays: Mapping[str, Array], split: str) -> Split:
    def tensor(part: str) -> torch.Tensor | None:
        array = arrays.get(f"{split}/{part}")
        return None if array is None else torch.from_numpy(array)

    inputs = tensor("inputs")
    assert inputs is not None  # every writer puts them
    return Split(inputs, tensor("truth"), tensor("excluded"))


def cached(spec: NamedSet, root: Path, say: Say) -> Stored | None:
    """The set as the cache has it; None if it is missing, damaged or not what today's table says it is."""
    try:
        held = read(root, spec.name)
    except Damaged as error:
        say(f"{spec.name}: {error} Getting it anew.")
        return None
    if held is None:
        return None
    known = held.manifest["arrays"]
    if any(key not in known or known[key]["sha256"] != wanted for key, wanted in spec.sha256.items()):
        say(f"{spec.name}: the cache holds another version than this package knows; getting it anew")
        return None
    return held


def _get(spec: NamedSet, root: Path, folder: Path | None, base: Mapping[str, Array] | None, say: Say) -> None:
    """Try every source in turn; the first whose arrays pass the table's checks is written to the cache."""
    scratch = root / "downloads" / spec.name
    with disk_errors(root):
        scratch.mkdir(parents=True, exist_ok=True)
    failures = []
    for words, reader in sources(spec, folder, scratch):
        say(f"{spec.name}: trying {words}")
        try:
            with disk_errors(root):  # downloads land in the cache too
                arrays = assemble(spec, reader(), base)
        except Unwritable:
            raise
        except UserError as error:
            say(f"{spec.name}:   {error}")
            failures.append(words)
            if not isinstance(error, Unreachable):
                _empty(scratch)
            continue
        with writing(root, spec.name) as draft:
            for key, array in arrays.items():
                draft.put(key, array)
            commit(root, spec.name, draft, _facts(spec, words, {**(base or {}), **arrays}))
        shutil.rmtree(scratch, ignore_errors=True)
        say(f"{spec.name}: written to the cache {root}")
        return
    if not any(scratch.iterdir()):
        scratch.rmdir()
    raise UserError(_nowhere(spec, failures))


def _empty(scratch: Path) -> None:
    """Throw away files that came whole and are wrong, so that the next try does not meet them again."""
    for path in scratch.iterdir():
        if path.is_file() and path.suffix != ".part":
            path.unlink()


def _facts(spec: NamedSet, source: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    mean, std = moments(arrays["train/inputs"])
    return {
        "source": source,
        "base": spec.base,
        "classes": list(spec.classes),
        "mean": list(spec.mean),
        "std": list(spec.std),
        "measured": {"mean": mean, "std": std},
        "flip": spec.flip,
        "head": spec.head,
    }


def _nowhere(spec: NamedSet, tried: list[str]) -> str:
    files = list(dict.fromkeys(place for place, _ in spec.places if place != "."))
    wanted = files[0] if len(files) == 1 else f"one of {', '.join(files)}"
    what = f"could not be had from {' or '.join(tried)} (why not is said above)" if tried else "has no address"
    return f"{spec.name} {what}; put {wanted} into a folder and name it with --from FOLDER or COMPLEMENTARY_DATA."


# --- from decoded files to the arrays of a set -----------------------------------------------------


def assemble(spec: NamedSet, decoded: Mapping[str, Array], base: Mapping[str, Array] | None) -> dict[str, Array]:
    """The arrays that ``spec`` itself brings, checked against the table.

    ``decoded``: what a format gave. ``base``: the arrays of the set that ``spec`` builds on, if any.
    """
    own = {key: decoded[key] for key in PARTS if key in decoded}
    classes = len(spec.classes)
    if "labels" in decoded:
        given = decoded["labels"]
        if "names" in decoded and base is not None:
            given = given[order_by_name(decoded["names"], base["train/names"], spec.name)]
        own["train/excluded"] = multi_hot(given, classes, spec.name)
    if "transition" in decoded and base is not None:
        matrix = check_transition(torch.from_numpy(decoded["transition"]), classes, f"The matrix of {spec.name}")
        truth = torch.from_numpy(np.array(base["train/truth"]))
        own["train/excluded"] = drawing.draw(truth, matrix, seed=spec.seed).numpy()
    check(spec, {**(base or {}), **own}, own)
    return own


def order_by_name(given: Array, wanted: Array, name: str) -> NDArray[np.int64]:
    """Indices that bring ``given`` [N] into the order of ``wanted`` [N]; equal names pair up in order."""
    given, wanted = given.astype("S"), wanted.astype("S")
    here, there = np.argsort(given, kind="stable"), np.argsort(wanted, kind="stable")
    if len(given) != len(wanted) or not np.array_equal(given[here], wanted[there]):
        missing = len(set(wanted.tolist()) - set(given.tolist()))
        raise UserError(
            f"{name}: its {len(given):,} labels do not name the same images as the {len(wanted):,} of the base "
            f"set ({missing:,} images have none)."
        )
    order = np.empty(len(wanted), np.int64)
    order[there] = here
    return order


def check(spec: NamedSet, arrays: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Counts, shapes and label ranges as the table says, and the SHA-256 of what the set brings itself."""
    for split, count in (("train", spec.train), ("test", spec.test)):
        for part, shape in (("inputs", (count, *spec.shape)), ("truth", (count,))):
            array = arrays.get(f"{split}/{part}")
            if array is None or array.shape != shape:
                found = "nothing" if array is None else str(list(array.shape))
                raise UserError(f"{spec.name}: {split} {part} are {found}, wanted {list(shape)}.")
        truth = arrays[f"{split}/truth"].astype(np.int64)
        if not 0 <= truth.min() <= truth.max() < len(spec.classes):
            raise UserError(f"{spec.name}: true labels run from {truth.min()} to {truth.max()}.")
    excluded = own.get("train/excluded")
    if excluded is not None:
        if excluded.shape != (spec.train, len(spec.classes)):
            raise UserError(
                f"{spec.name}: labels are {list(excluded.shape)}, wanted {[spec.train, len(spec.classes)]}."
            )
        drawing.check_excluded(torch.from_numpy(excluded.astype(np.uint8)))
    if spec.base is not None and excluded is None:
        raise UserError(f"{spec.name}: the file holds no complementary labels.")
    for key, wanted in spec.sha256.items():
        found = sha256(own[key]) if key in own else "no such array"
        if found != wanted:
            raise UserError(f"{spec.name}: {key} has SHA-256 {found}, but the real set has {wanted}.")


def digits() -> Dataset:
    """Scikit-learn's handwritten digits, which need no download; every fifth is for testing.

    1,437 train and 360 test images, uint8 [N, 1, 8, 8].
    """
    source = need("sklearn.datasets", "The set digits").load_digits()
    images = torch.from_numpy(np.rint(source.images * (255 / 16)).astype(np.uint8))[:, None]
    truth = torch.from_numpy(source.target).long()
    test = torch.arange(len(images)) % 5 == 0
    train, held = (Split(images[part].contiguous(), truth[part]) for part in (~test, test))
    spec = TABLE["digits"]
    return Dataset(spec.name, train, held, spec.classes, spec.mean, spec.std, spec.flip)
