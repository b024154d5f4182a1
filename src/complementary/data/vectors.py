"""Feature tables: vectors from ``.npy``, ``.npz`` or CSV files."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from complementary.data.cache import Array
from complementary.data.labels_csv import KEY_HEADERS
from complementary.data.npz import as_inputs, decode_npz
from complementary.errors import UserError

SUFFIXES = (".npy", ".npz", ".csv")


@dataclass(frozen=True)
class Vectors:
    """``arrays``: what the file holds under the package's names. ``keys``: the names of the examples.

    The name of an example is its row number, counted from 0, unless the file gives names.
    """

    arrays: dict[str, Array]
    keys: list[str]


def read_vectors(path: Path) -> Vectors:
    """Read a table of examples; "train/inputs" is always there, as float32 [N, D] or images uint8 [N,C,H,W]."""
    try:
        if path.suffix.lower() == ".csv":
            inputs, keys = _read_csv(path)
            return Vectors({"train/inputs": inputs}, keys)
        is_npz = path.suffix.lower() == ".npz"
        arrays = decode_npz({path.name: path.read_bytes()}) if is_npz else {"train/inputs": _read_npy(path)}
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror or problem}).") from None
    if "train/inputs" not in arrays:
        raise UserError(f"{path} holds {', '.join(arrays)}, but no inputs (see docs/data.md for the names).")
    count = len(arrays["train/inputs"])
    named = arrays["names"].tolist() if "names" in arrays else range(count)
    if len(named) != count:
        raise UserError(f"{path}: {count} examples but {len(named)} names; they must match.")
    return Vectors(arrays, [str(name) for name in named])


def _read_npy(path: Path) -> Array:
    try:
        return as_inputs(np.load(path, allow_pickle=False), str(path))
    except (ValueError, EOFError) as problem:
        raise UserError(f"{path} is not an array of numbers ({problem}).") from None


def _read_csv(path: Path) -> tuple[NDArray[np.float32], list[str]]:
    """One example a line; a first column called file, id, name ... names it; a header is optional."""
    with path.open(newline="", encoding="utf-8-sig") as handle:
        rows = [row for row in csv.reader(handle) if any(cell.strip() for cell in row)]
    if not rows:
        raise UserError(f"{path} is empty; wanted one example a line, numbers separated by commas.")
    header = not all(map(_is_number, rows[0]))
    named = header and rows[0][0].strip().lower() in KEY_HEADERS
    body = rows[header:]
    keys = [row[0].strip() for row in body] if named else [str(i) for i in range(len(body))]
    try:
        values = np.array([[float(cell) for cell in row[named:]] for row in body], np.float32)
    except ValueError:
        where = next(
            i for i, row in enumerate(rows) if i >= header and (len(row) != len(body[0]) or not _numbers(row[named:]))
        )
        raise UserError(
            f"{path}, line {where + 1}: wanted {len(body[0]) - named} numbers, found {','.join(rows[where])[:60]!r}."
        ) from None
    return values.reshape(len(body), -1), keys


def _numbers(cells: list[str]) -> bool:
    return all(map(_is_number, cells))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
