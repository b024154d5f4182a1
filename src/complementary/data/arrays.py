"""Examples in one file: an ``.npz`` of named arrays, a ``.npy``, or a CSV of vectors.

The ``.npz`` schema, for a whole set or for labels that go with one:

| part | names (the first found is taken) |
|---|---|
| train inputs: images uint8 [N,H,W], [N,H,W,C] or [N,C,H,W], or vectors [N,D] | inputs, train_inputs, train_images, \
x_train, images, features, x, X |
| train truth: whole numbers [N] | truth, train_truth, train_labels, y_train, y |
| complementary labels: 0/1 [N,K] | excluded, train_excluded |
| the same as class numbers [N] or [N,M], repeats allowed | complementary, train_complementary, not_y |
| names of the examples: text [N] | names, train_names |
| test inputs and test truth, as for train | test_inputs, test_images, x_test; test_truth, test_labels, y_test |
| class names: text [K] | classes |
"""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from complementary.data.dataset import Dataset, Split, moments
from complementary.data.files import Files, read_bytes, read_rows
from complementary.errors import UserError

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
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as problem:
        raise UserError(f"{name} cannot be read as .npz ({problem}). Save it with numpy.savez, no objects.") from None


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
    except (ValueError, EOFError) as problem:
        raise UserError(f"{path} is not an array of numbers ({problem}).") from None
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
