"""Files that contain all examples: an ``.npz`` of named arrays, a ``.npy`` array, or a CSV of vectors.

Arrays of an ``.npz``, for a whole dataset or only for labels. The first name that is found is used:

| array | names |
|---|---|
| train inputs: images uint8 [N,H,W(,C)] or [N,C,H,W], or vectors [N,D] | inputs, train_inputs, images, x_train, X … |
| true classes: integers [N] | truth, train_truth, train_labels, y_train, y |
| complementary labels: 0/1 [N,K] | excluded, train_excluded |
| complementary labels: class numbers [N] or [N,M], repeats allowed | complementary, train_complementary, not_y |
| names of the examples: text [N] | names, train_names |
| test inputs and their true classes | test_inputs, test_images, x_test; test_truth, test_labels, y_test |
| class names: text [K] | classes |
"""

import csv
import io
import unicodedata
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from complementary.data.dataset import as_inputs
from complementary.errors import UserError

Array = NDArray[np.generic]
Arrays = dict[str, Array]
SUFFIXES = (".npy", ".npz", ".csv")
KEY_COLUMNS = ("file", "filename", "file_name", "path", "image", "picture", "photo", "name", "row", "id")

NAMES: dict[str, tuple[str, ...]] = {
    "train/inputs": ("inputs", "train_inputs", "train_images", "x_train", "images", "features", "x", "X"),
    "train/truth": ("truth", "train_truth", "train_labels", "y_train", "y"),
    "train/excluded": ("excluded", "train_excluded"),
    "train/labels": ("complementary", "train_complementary", "not_y"),
    "train/names": ("names", "train_names"),
    "test/inputs": ("test_inputs", "test_images", "x_test"),
    "test/truth": ("test_truth", "test_labels", "y_test"),
    "classes": ("classes",),
}


# --- bytes and text ------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Read a file; raise a `UserError` if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).") from None


def read_text(path: Path) -> str:
    """Read UTF-8 text, with or without a byte order mark, in Unicode form NFC (macOS writes NFD)."""
    try:
        return unicodedata.normalize("NFC", read_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); save it as UTF-8.") from None


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Read a CSV with commas or tabs -> (line number, cells) per row; empty rows are skipped."""
    text = read_text(path)
    first = text.partition("\n")[0]
    stream = io.StringIO(text, newline="")  # a quoted cell may contain line breaks
    reader = csv.reader(stream, delimiter="\t" if "\t" in first and "," not in first else ",")
    rows, line = [], 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {line}: invalid CSV ({error}).") from None
    return rows


# --- .npz ----------------------------------------------------------------------------------------


def open_npz(content: bytes, name: str) -> Arrays:
    """All arrays in the bytes of an ``.npz`` file; pickled objects are refused. ``name`` is for messages."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            return {key: data[key] for key in data.files}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{name} cannot be read as .npz ({error}); save it with numpy.savez, no objects.") from None


def decode_npz(content: bytes, name: str) -> Arrays:
    """The arrays of an ``.npz`` under the keys of `NAMES`, in the types and layouts of this package."""
    data = open_npz(content, name)
    arrays: Arrays = {}
    for part, names in NAMES.items():
        key = next((n for n in names if n in data), None)
        if key is not None:
            arrays[part] = _convert(part, data[key], f"{name}: {key}")
    if not arrays:
        found = ", ".join(data) or "no arrays"
        raise UserError(f"{name} contains {found}; expected inputs or complementary labels (see docs/guide/data.md).")
    return arrays


def _convert(part: str, array: Array, what: str) -> Array:
    kind = part.rpartition("/")[2]
    if kind == "inputs":
        return as_inputs(array, what).numpy()
    if kind in ("truth", "labels"):
        return as_integers(array, what)
    if kind in ("names", "classes"):
        return np.atleast_1d(array.astype("U"))
    if array.ndim != 2 or not np.isin(array, (0, 1)).all():
        raise UserError(
            f"{what} has type {array.dtype} and shape {list(array.shape)}; expected 0/1 [N, K]. An array of class "
            "numbers is called complementary."
        )
    return array.astype(np.uint8)


def as_integers(array: Array, what: str) -> NDArray[np.int64]:
    """Convert class numbers of any type to int64 [N, ...]; fractions, NaN and text are refused."""
    if array.dtype.kind not in "iubf":
        raise UserError(f"{what} has type {array.dtype}; expected integers (class numbers).")
    integers = np.where(np.isfinite(array.astype(np.float64)), array, -1).astype(np.int64)
    if not np.array_equal(integers, array):
        raise UserError(f"{what} contains fractions or NaN; expected integers (class numbers).")
    return np.atleast_1d(integers)


def multi_hot(labels: Array, classes: int, name: str) -> NDArray[np.uint8]:
    """Class numbers [N] or [N, M], repeats allowed within a row -> uint8 [N, K] with a 1 for every distinct one."""
    if labels.ndim not in (1, 2):
        shape = list(labels.shape)
        raise UserError(f"{name}: complementary labels have shape {shape}; expected class numbers [N] or [N, M].")
    rows = labels.reshape(len(labels), -1).astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < classes:
        raise UserError(f"{name}: labels range from {rows.min()} to {rows.max()}; expected 0 to {classes - 1}.")
    excluded = np.zeros((len(rows), classes), np.uint8)
    excluded[np.arange(len(rows))[:, None], rows] = 1
    return excluded


# --- a file of examples --------------------------------------------------------------------------


@dataclass(frozen=True)
class ExampleFile:
    """The content of a file of examples."""

    path: Path
    arrays: Arrays  # under the keys of `NAMES`; "train/inputs" is always there, and lengths match
    keys: list[str]  # name of each example: its row number from 0, unless the file gives names

    @property
    def has_labels(self) -> bool:
        """Whether the file contains true or complementary labels."""
        return any(f"train/{kind}" in self.arrays for kind in ("truth", "excluded", "labels"))

    def labels(
        self, classes: tuple[str, ...] | None = None
    ) -> tuple[tuple[str, ...], NDArray[np.uint8] | None, NDArray[np.int64] | None]:
        """The labels in the file -> (class names, excluded uint8 [N, K] or None, truth int64 [N] or None).

        ``classes``: names to use instead of those in the file.
        """
        truth, excluded, numbers = (self.arrays.get(f"train/{kind}") for kind in ("truth", "excluded", "labels"))
        if classes is None:
            highest = max((int(a.max()) + 1 for a in (truth, numbers) if a is not None and a.size), default=0)
            count = highest if excluded is None else excluded.shape[1]
            classes = tuple(map(str, self.arrays.get("classes", np.arange(count)).tolist()))
        if len(classes) < 2:
            raise UserError(f"{self.path} has {len(classes)} classes; at least two are needed.")
        if excluded is None and numbers is not None:
            excluded = multi_hot(numbers, len(classes), str(self.path))
        return classes, excluded, truth  # type: ignore[return-value]

    def _check_lengths(self) -> None:
        for split in ("train", "test"):
            inputs = self.arrays.get(f"{split}/inputs")
            count = 0 if inputs is None else len(inputs)
            for kind in ("names", "truth", "excluded", "labels"):
                array = self.arrays.get(f"{split}/{kind}")
                if array is not None and len(array) != count:
                    kind = {"truth": "true labels", "names": "names"}.get(kind, "complementary labels")
                    raise UserError(f"{self.path}: {count} {split} inputs but {len(array)} {kind}; they must match.")
        if "test/inputs" in self.arrays and "test/truth" not in self.arrays:
            raise UserError(f"{self.path} contains test inputs but no true labels for them (test_truth).")


def read_example_file(path: Path) -> ExampleFile:
    """Read a ``.csv``, ``.npy`` or ``.npz`` of vectors, or a ``.npy`` or ``.npz`` of images."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _read_csv(path)
    arrays = decode_npz(read_bytes(path), path.name) if suffix == ".npz" else {"train/inputs": _read_npy(path)}
    if "train/inputs" not in arrays:
        raise UserError(f"{path} contains {', '.join(arrays)}, but no inputs (see docs/guide/data.md for the names).")
    keys = arrays["train/names"].tolist() if "train/names" in arrays else range(len(arrays["train/inputs"]))
    file = ExampleFile(path, arrays, list(map(str, keys)))
    file._check_lengths()
    return file


def _read_npy(path: Path) -> Array:
    content = io.BytesIO(read_bytes(path))
    try:
        array = np.load(content, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is not an array of numbers ({error}).") from None
    return as_inputs(array, str(path)).numpy()


def _read_csv(path: Path) -> ExampleFile:
    """One example per line; a first column called file, id, name ... names it; a header is optional."""
    rows = read_rows(path)
    if not rows:
        raise UserError(f"{path} is empty; expected one example per line, numbers separated by commas.")
    first = rows[0][1]
    text_only = not any(map(_is_number, first))  # a line with some numbers is an example with a mistake
    named = first[0].strip().lower() in KEY_COLUMNS or (text_only and not first[0].strip())
    body = rows[1:] if text_only or named else rows
    for line, cells in body:
        if len(cells) != len(first) or not all(map(_is_number, cells[named:])):
            found = ",".join(cells)[:60]
            raise UserError(f"{path}, line {line}: expected {len(first) - named} numbers, found {found!r}.")
    values = np.array([[float(cell) for cell in cells[named:]] for _, cells in body]).reshape(len(body), -1)
    keys = [cells[0].strip() if named else str(i) for i, (_, cells) in enumerate(body)]
    return ExampleFile(path, {"train/inputs": as_inputs(values, str(path)).numpy()}, keys)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
