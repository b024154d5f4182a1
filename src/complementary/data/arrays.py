"""Files that contain all examples: an ``.npz`` of named arrays, a ``.npy`` array, or a CSV of vectors.

Arrays of an ``.npz``, for a whole dataset or only for labels. The first name that is found is used:

| array | names |
|---|---|
| train inputs: images uint8 [N,H,W(,C)] or [N,C,H,W], or vectors [N,D] | inputs, train_inputs, images, x_train, X … |
| true classes: integers [N] | truth, train_truth, train_labels, y_train, y |
| complementary labels: 0/1 [N,K] | excluded, train_excluded |
| complementary labels: class numbers [N] or [N,M], repeats allowed | complementary, train_complementary, not_y |
| names of the examples: text [N] | names, train_names |
| votes of rules: class numbers [N,M] or -1; which rules say "not": 0/1 [M]; their names | votes; negative; rules |
| test inputs and their true classes | test_inputs, test_images, x_test; test_truth, test_labels, y_test |
| class names: text [K] | classes |
"""

import io
import itertools
import logging
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complementary.data.dataset import as_inputs, describe_lost_precision
from complementary.data.tables import Row, is_vector, read_parquet, stream_rows
from complementary.errors import UserError, import_optional
from complementary.files import available_memory, reading
from complementary.labels import describe_gaps
from complementary.reports.terminal import format_size

log = logging.getLogger(__name__)
Array = NDArray[np.generic]
Arrays = dict[str, Array]
SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
MAPPED_BYTES = 2**26  # larger .npy files stay on disk: they are memory-mapped
CELLS = 2**20  # numbers of a CSV that are converted at a time
MAX_CLASSES = 10_000  # if only class numbers are given; 65,535 is more often a mistake for -1 than a class
KEY_COLUMNS = ("file", "filename", "file_name", "path", "image", "picture", "photo", "name", "row", "id")

NAMES: dict[str, tuple[str, ...]] = {
    "train/inputs": ("inputs", "train_inputs", "train_images", "x_train", "images", "features", "x", "X"),
    "train/truth": ("truth", "train_truth", "train_labels", "y_train", "y"),
    "train/excluded": ("excluded", "train_excluded"),
    "train/labels": ("complementary", "train_complementary", "not_y"),
    "train/names": ("names", "train_names"),
    "train/votes": ("votes", "L_train", "L"),
    "negative": ("negative",),
    "rules": ("rules",),
    "test/inputs": ("test_inputs", "test_images", "x_test"),
    "test/truth": ("test_truth", "test_labels", "y_test"),
    "classes": ("classes",),
}


# --- .npz ----------------------------------------------------------------------------------------


def open_npz(content: bytes | Path, name: str) -> Arrays:
    """All arrays of an ``.npz`` file; pickled objects are refused.

    Args:
        content: The file, or its bytes.
        name: What messages call it.
    """
    if isinstance(content, Path) and not content.exists():
        raise UserError(f"{name} does not exist; expected a file with arrays (.npz).")
    with reading(f"{name} (.npz)", "save it with numpy.savez, without objects"):
        stream = content if isinstance(content, Path) else io.BytesIO(content)
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > available_memory():
            raise UserError(f"{name} expands to {format_size(size)}, more than the memory that is free; split it.")
        with np.load(stream, allow_pickle=False) as data:
            return {key: data[key] for key in data.files}


def decode_npz(content: bytes | Path, name: str) -> Arrays:
    """The arrays of an ``.npz`` under the keys of `NAMES`, in the types and layouts of this package."""
    data = open_npz(content, name)
    arrays: Arrays = {}
    for part, names in NAMES.items():
        key = next((n for n in names if n in data), None)
        if key is not None:
            with reading(f"{name}: {key}"):
                arrays[part] = _convert(part, data[key], f"{name}: {key}")
    if not arrays:
        found = ", ".join(data) or "no arrays"
        raise UserError(f"{name} contains {found}; expected inputs or complementary labels (see docs/guide/data.md).")
    return arrays


def _convert(part: str, array: Array, what: str) -> Array:
    kind = part.rpartition("/")[2]
    if kind == "inputs":
        return as_inputs(array, what).numpy()
    if kind in ("truth", "labels", "votes", "negative"):
        return as_integers(array, what)
    if kind in ("names", "classes", "rules"):
        if array.ndim > 1:
            raise UserError(f"{what} has shape {list(array.shape)}; expected a list of text, [N].")
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
        raise UserError(
            f"{what} has type {array.dtype}; expected integers (class numbers). Names of classes belong in an array "
            "classes, and their positions, from 0, in this one."
        )
    finite = np.where(np.isfinite(array), array, -1) if array.dtype.kind == "f" else array
    with np.errstate(invalid="ignore"):  # values beyond int64 differ below
        integers = finite.astype(np.int64)
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.argwhere(np.isnan(array))[0, 0]) if array.ndim else 0
        raise UserError(f"{what} is NaN in example {row}; leave out the examples without a label, here and in inputs.")
    if not np.array_equal(integers, array):
        raise UserError(f"{what} contains fractions, infinity or huge numbers; expected integers (class numbers).")
    return np.atleast_1d(integers)


def multi_hot(labels: Array, classes: int, name: str) -> NDArray[np.uint8]:
    """Class numbers [N] or [N, M], repeats allowed within a row -> uint8 [N, K] with a 1 for every distinct one."""
    if labels.ndim not in (1, 2):
        shape = list(labels.shape)
        raise UserError(f"{name}: complementary labels have shape {shape}; expected class numbers [N] or [N, M].")
    rows = labels.reshape(len(labels), -1).astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < classes:
        raise UserError(
            f"{name}: labels range from {rows.min()} to {rows.max()}; expected the positions of the {classes} classes, "
            f"0 to {classes - 1}."
        )
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
    features: tuple[str, ...] | None = None  # names of the columns of vectors, if the file has them

    def in_order(self, features: tuple[str, ...] | None) -> Array:
        """The inputs, with the columns in the order of ``features``; raises if they have other names."""
        inputs = self.arrays["train/inputs"]
        if features is None or self.features is None or features == self.features:
            return inputs
        if sorted(features) == sorted(self.features) and len(set(features)) == len(features):
            return inputs[:, [self.features.index(name) for name in features]]
        unknown, missing = (
            [name for name in a if name not in b][:5] or ["none"]
            for a, b in ((self.features, features), (features, self.features))
        )
        raise UserError(
            f"{self.path} has other columns than the training data: unknown {', '.join(unknown)}; missing "
            f"{', '.join(missing)}. Rename or add them, or leave the header out if the order is the same."
        )

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
            given = [torch.from_numpy(a).flatten() for a in (truth, numbers) if a is not None]
            unnamed = excluded is None and bool(given) and "classes" not in self.arrays
            if unnamed and count > MAX_CLASSES:
                raise UserError(
                    f"{self.path}: the largest class number is {count - 1:,}, which would mean {count:,} classes. "
                    f"Number the classes from 0, or name them (classes); more than {MAX_CLASSES:,} need names."
                )
            if unnamed and (gaps := describe_gaps(torch.cat(given).long())) is not None:
                raise UserError(
                    f"{self.path}: the class numbers are {gaps}. Number the classes from 0 and add an array classes "
                    f"with their names; if there are {count} classes, it must have all {count} names."
                )
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
    """Read a ``.csv``, ``.parquet``, ``.npy`` or ``.npz`` of vectors, or a ``.npy`` or ``.npz`` of images."""
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        return _read_csv(path) if suffix == ".csv" else _read_parquet(path)
    arrays = decode_npz(path, path.name) if suffix == ".npz" else {"train/inputs": read_npy(path).numpy()}
    if "train/inputs" not in arrays:
        raise UserError(f"{path} contains {', '.join(arrays)}, but no inputs (see docs/guide/data.md for the names).")
    if not arrays["train/inputs"].size:
        raise UserError(f"{path} contains no examples: its inputs have shape {list(arrays['train/inputs'].shape)}.")
    keys = arrays["train/names"].tolist() if "train/names" in arrays else range(len(arrays["train/inputs"]))
    file = ExampleFile(path, arrays, list(map(str, keys)))
    file._check_lengths()
    return file


def read_npy(path: Path, contiguous: bool = True) -> Tensor:
    """Read the inputs in a ``.npy`` file; a large file is memory-mapped. ``contiguous``: as in `as_inputs`."""
    if not path.exists():
        raise UserError(f"There is no file {path}.")
    with reading(path, "save an array of numbers with numpy.save"):
        # "c": copy on write, so that nothing can change the file
        mapped = "c" if path.stat().st_size > MAPPED_BYTES else None
        array = np.load(path, mmap_mode=mapped, allow_pickle=False)  # type: ignore[arg-type]
        if not isinstance(array, np.ndarray):
            array.close()
            raise UserError(f"{path} is an .npz file; name it so.")
        return as_inputs(array, str(path), contiguous)


def _read_csv(path: Path) -> ExampleFile:
    """One example per line; a first column called file, id, name ... names it; a header is optional."""
    rows = stream_rows(path, KEY_COLUMNS)
    start, first = next(rows, (0, None))
    if first is None:
        raise UserError(f"{path} is empty; expected one example per line, numbers separated by commas.")
    text_only = not any(map(_is_number, first))  # a line with some numbers is an example with a mistake
    named = first[0].strip().lower() in KEY_COLUMNS or (text_only and not first[0].strip())
    body = rows if text_only or named else itertools.chain([(start, first)], rows)
    width, parts, keys, lost = len(first) - named, list[Array](), list[str](), None
    if body is not rows and not all(cell.strip() for cell in first):  # an example or, as pandas writes it, a header
        found = ",".join(first)[:60]
        raise UserError(
            f"{path}, line {start}: expected {width} numbers or names of columns, found {found!r} with an empty cell."
        )
    for names, numbers in _numbers(body, named, width, path):
        lost = lost or describe_lost_precision(numbers, str(path))  # one warning, however many parts there are
        with np.errstate(over="ignore"):  # infinity is reported later
            parts.append(numbers.astype(np.float32))
        keys += names or [str(i) for i in range(len(keys), len(keys) + len(numbers))]
    if lost is not None:
        log.warning(lost)
    features = tuple(name.strip() for name in first[named:]) if text_only or named else None
    inputs = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return ExampleFile(path, {"train/inputs": inputs}, keys, features)


def _numbers(rows: Iterable[Row], named: bool, width: int, path: Path) -> Iterator[tuple[list[str], Array]]:
    """The rows of a CSV in parts -> names of examples, if there is a column of them, and float64 [M, D = ``width``].

    An empty cell is a missing number, NaN.
    """
    names, values = list[str](), list[list[float]]()
    for line, cells in rows:
        try:
            numbers = [float(cell.strip() or "nan") for cell in cells[named:]]
        except ValueError:
            numbers = []
        if len(cells) != width + named or len(numbers) != width:
            found = ",".join(cells)[:60]
            raise UserError(f"{path}, line {line}: expected {width} numbers, found {found!r}.")
        names += [cells[0].strip()] if named else []
        values.append(numbers)
        if len(values) * width >= CELLS:
            yield names, np.array(values, np.float64)
            names, values = [], []
    yield names, np.array(values, np.float64).reshape(len(values), width)


def _read_parquet(path: Path) -> ExampleFile:
    """One example per row: a column of lists of numbers, or all columns of fractions, and maybe one of names."""
    table = read_parquet(path)
    columns = {field.name.strip().lower(): field for field in table.schema}
    lists = [field.name for field in table.schema if is_vector(field) and hasattr(field.type, "value_type")]
    if len(lists) > 1:
        raise UserError(f"{path} has several columns of vectors ({', '.join(lists)}); keep one of them.")
    names = lists or [field.name for field in table.schema if is_vector(field)]
    if not names:
        found = ", ".join(table.column_names)
        raise UserError(f"{path} has the columns {found}; expected a column of lists of numbers, such as embedding.")
    if lists:
        column = table.column(lists[0]).combine_chunks()
        compute = import_optional("pyarrow.compute", "Reading parquet files")
        if len(set(compute.list_value_length(column).to_pylist())) > 1 or column.null_count:
            raise UserError(f"{path}: the lists in column {lists[0]} are missing or differ in length.")
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    else:
        values = np.stack([table.column(name).to_numpy() for name in names], 1)
    key = next((columns[name].name for name in KEY_COLUMNS if name in columns), None)
    keys = range(len(values)) if key is None else table.column(key).to_pylist()
    inputs = as_inputs(values, str(path)).numpy()
    return ExampleFile(path, {"train/inputs": inputs}, list(map(str, keys)), None if lists else tuple(names))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
