"""Join examples with the rows of a label table, and turn class names into numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from complementary.data.labels_csv import LabelTable, Row
from complementary.data.problems import Problems


@dataclass(frozen=True)
class Matched:
    """``index`` int64 [M]: the examples that have sound labels; their labels [M, K] and truths [M]."""

    index: NDArray[np.int64]
    excluded: NDArray[np.uint8] | None
    truth: NDArray[np.int64] | None

    def keep(self, good: NDArray[np.bool_]) -> "Matched":
        """Only the rows where ``good`` [M] is true."""
        excluded = None if self.excluded is None else self.excluded[good]
        truth = None if self.truth is None else self.truth[good]
        return Matched(self.index[good], excluded, truth)


def match(keys: Sequence[str], table: LabelTable, classes: Sequence[str], problems: Problems, what: str) -> Matched:
    """Find each example's row, check it, and note everything that does not fit in ``problems``.

    ``keys``: names of the examples; a row may give the whole name, its last part where that is unique, or
    more folders in front of it. ``what``: "pictures" or "rows", for the report.
    """
    owners = _owners(keys, table)
    number = {name: k for k, name in enumerate(classes)}
    index, excluded, truth = [], [], []
    for i, key in enumerate(keys):
        row = owners.get(key)
        if row is None:
            problems.add(f"{what} without a label", key)
        elif _sound(key, row, table, number, problems):
            index.append(i)
            excluded.append([number[name] for name in row.excluded])
            truth.append(number[row.truth] if row.truth else -1)
    claimed = {id(row) for row in owners.values()}
    for key, row in table.rows.items():
        if id(row) not in claimed:
            problems.add(f"labels without any of the {what}", f"{key} (line {row.line})")
    return Matched(
        np.asarray(index, np.int64),
        _multi_hot(excluded, len(classes)) if table.has_excluded else None,
        np.asarray(truth, np.int64) if table.has_truth else None,
    )


def _owners(keys: Sequence[str], table: LabelTable) -> dict[str, Row]:
    """Example name -> its row: by whole name first, then where one name is the end of the other."""
    owners = {key: table.rows[key] for key in keys if key in table.rows}
    short = Counter(key.rpartition("/")[2] for key in keys)
    for key in keys:  # the table gives only the last part, and no other example has the same
        last = key.rpartition("/")[2]
        if key not in owners and short[last] == 1 and last in table.rows:
            owners[key] = table.rows[last]
    known = set(keys)
    for name, row in table.rows.items():  # the table gives folders above the one that is imported
        while name not in known and "/" in name:
            name = name.partition("/")[2]
        if name in known:
            owners.setdefault(name, row)
    return owners


def _sound(key: str, row: Row, table: LabelTable, number: dict[str, int], problems: Problems) -> bool:
    """Whether a row can be used; what is wrong with it goes to ``problems``."""
    before = len(problems)
    named = [*row.excluded, *([row.truth] if row.truth else [])]
    for name in dict.fromkeys(named):
        if name not in number:
            problems.add("unknown class names", f"{name!r} for {key} (line {row.line})")
    if table.has_excluded and not row.excluded:
        problems.add("rows that exclude no class", f"{key} (line {row.line})")
    if table.has_excluded and set(row.excluded) >= set(number):
        problems.add("rows that exclude every class", f"{key} (line {row.line})")
    if table.has_truth and not row.truth:
        problems.add("rows without a truth", f"{key} (line {row.line})")
    if row.disagrees:
        problems.add("rows that disagree about the truth", f"{key} (line {row.line} and later)")
    return len(problems) == before


def _multi_hot(labels: list[list[int]], classes: int) -> NDArray[np.uint8]:
    excluded = np.zeros((len(labels), classes), np.uint8)
    owner = np.repeat(np.arange(len(labels)), [len(row) for row in labels])
    excluded[owner, [k for row in labels for k in row]] = 1
    return excluded
