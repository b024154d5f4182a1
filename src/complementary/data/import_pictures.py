"""Import pictures: match them with their labels, decode them all, and only then shape the final arrays."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from complementary.data.drafts import Draft
from complementary.data.labels_csv import LabelTable, Row, read_labels
from complementary.data.matching import Matched, match
from complementary.data.pictures import decode_into, find_pictures
from complementary.data.problems import Problems
from complementary.data.progress import Say
from complementary.data.request import Import, class_names, put_labels
from complementary.errors import UserError

ROWS = 1024  # copied at a time


@dataclass(frozen=True)
class Rough:
    """A decoded split: ``pixels`` uint8 [N, S, S, 3] on the disk, and which of them are ``good`` [N]."""

    split: str
    pixels: NDArray[np.uint8]
    good: NDArray[np.bool_]
    grey: bool
    matched: Matched


def import_pictures(request: Import, draft: Draft, problems: Problems, say: Say) -> tuple[str, ...]:
    """Write the pictures and labels of ``request`` to ``draft``; returns the class names.

    With problems, and unless these are to be skipped, nothing final is written: the caller stops.
    """
    if request.labels is None:
        raise UserError("Pictures need labels: name a CSV of files and what they are not with --labels.")
    table = read_labels(request.labels, say)
    classes = class_names(request, table)
    splits = [_decode(request, draft, "train", request.path, table, classes, problems, say)]
    if request.test is not None:
        rows = test_table(request.test_labels, request.test, say)
        splits.append(_decode(request, draft, "test", request.test, rows, classes, problems, say))
    if not len(problems) or request.skip_bad:
        grey = all(rough.grey for rough in splits)
        for rough in splits:
            _finish(draft, rough, channels=1 if grey else 3)
    return classes


def test_table(labels: Path | None, folder: Path, say: Say) -> LabelTable:
    """The truths of test examples: from a CSV, or from the names of the subfolders they lie in."""
    if labels is not None:
        table = read_labels(labels, say)
        if not table.has_truth:
            raise UserError(f"{labels} has no column truth; test examples need one (header: file,truth).")
        return LabelTable(table.rows, has_excluded=False, has_truth=True)
    rows = {}
    for path in find_pictures(folder):
        parts = path.relative_to(folder).parts
        if len(parts) == 1:
            raise UserError(f"{path} lies in no subfolder of {folder}; name them after classes, or give --test-labels.")
        rows["/".join(parts)] = Row(0, [], parts[0])
    return LabelTable(rows, has_excluded=False, has_truth=True)


def _decode(
    request: Import,
    draft: Draft,
    split: str,
    folder: Path,
    table: LabelTable,
    classes: tuple[str, ...],
    problems: Problems,
    say: Say,
) -> Rough:
    paths = find_pictures(folder)
    keys = [path.relative_to(folder).as_posix() for path in paths]
    say(f"{split}: {len(paths):,} pictures in {folder}, {len(table.rows):,} labelled names")
    matched = match(keys, table, classes, problems, f"{split} pictures")
    chosen = [paths[i] for i in matched.index]
    pixels = draft.create(f"rough-{split}", (max(1, len(chosen)), request.size, request.size, 3), np.uint8)
    decoded = decode_into(pixels, chosen, request.fit, f"decoding {split}")
    for i, reason in decoded.failures.items():
        problems.add(f"{split} pictures that cannot be read", f"{keys[matched.index[i]]}: {reason}")
    good = np.ones(len(chosen), bool)
    good[list(decoded.failures)] = False
    return Rough(split, pixels, good, decoded.grey, matched)


def _finish(draft: Draft, rough: Rough, channels: int) -> None:
    """The good pictures -> inputs uint8 [M, C, S, S], and their labels beside them."""
    good = np.flatnonzero(rough.good)
    if not len(good):
        raise UserError(f"None of the {rough.split} pictures can be used.")
    key = f"{rough.split}/inputs"
    inputs = draft.create(key, (len(good), channels, *rough.pixels.shape[1:3]), np.uint8)
    for start in range(0, len(good), ROWS):
        rows = rough.pixels[good[start : start + ROWS]]
        inputs[start : start + len(rows)] = rows[..., :channels].transpose(0, 3, 1, 2)
    inputs.flush()
    draft.seal(key)
    put_labels(draft, rough.split, rough.matched.keep(rough.good))
    draft.discard(f"rough-{rough.split}")
