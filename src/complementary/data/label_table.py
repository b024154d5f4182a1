"""Label tables: a CSV with the name of an example, the classes it is NOT, and its true class if known.

    file,not,truth
    cats/001.jpg,dog;horse,cat
    002.png,ship,cat

Several labels go into one cell with ``;`` between them, into several columns (``not1``, ``not2``), or into
several rows of the same file. Without a header the first column is the file and all others are labels.
Everything that does not fit is collected first and told in one report.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from complementary.data.arrays import KEY_HEADERS
from complementary.data.files import read_rows, read_text
from complementary.data.screen import Say
from complementary.errors import UserError

# "label" is no such header: to most people it is the true class, which must never reach training
NOT_HEADERS = re.compile(r"not[ _-]?\d*|excluded|complementary([ _-]?labels?)?")
TRUTH_HEADERS = ("truth", "true", "class")


@dataclass
class Row:
    """What the table says of one example: class names, not yet checked.

    ``line``: where it says so first, 0 if no file does. ``disagrees``: whether another line gives another truth.
    """

    line: int
    excluded: list[str]
    truth: str | None
    disagrees: bool = False

    @property
    def where(self) -> str:
        """For reports: the line of the file, if there is one."""
        return f" (line {self.line})" if self.line else ""


@dataclass(frozen=True)
class LabelTable:
    """All rows by example, and whether the table has labels and truths at all."""

    rows: dict[str, Row]
    has_excluded: bool
    has_truth: bool

    def class_names(self) -> list[str]:
        """Every class name that appears, sorted."""
        truths = {row.truth for row in self.rows.values() if row.truth}
        return sorted(truths.union(*(row.excluded for row in self.rows.values())))


def read_labels(path: Path, say: Say) -> LabelTable:
    """Read a label table; repeated rows of one example are merged. ``say`` hears of columns left unread."""
    lines = read_rows(path)
    if not lines:
        raise UserError(f"{path} is empty; wanted lines such as: photo1.jpg,dog (photo1.jpg is not a dog).")
    columns = _columns(path, lines[0][1], max(len(row) for _, row in lines), say)
    rows: dict[str, Row] = {}
    for number, cells in lines[columns.headers :]:
        cells = [*(cell.strip() for cell in cells), *[""] * (len(lines[0][1]) - len(cells))]
        row = rows.setdefault(plain_key(cells[columns.key]), Row(number, [], None))
        names = [name.strip() for i in columns.nots if i < len(cells) for name in cells[i].split(";")]
        row.excluded = list(dict.fromkeys([*row.excluded, *(name for name in names if name)]))
        known = cells[columns.truth] if columns.truth is not None else ""
        row.disagrees = row.disagrees or bool(known and row.truth and known != row.truth)
        row.truth = known or row.truth
    return LabelTable(rows, bool(columns.nots), columns.truth is not None)


@dataclass(frozen=True)
class _Columns:
    """Which column names the example, which hold labels, which the truth; how many header lines there are."""

    key: int
    nots: list[int]
    truth: int | None
    headers: int


def _columns(path: Path, first: list[str], width: int, say: Say) -> _Columns:
    names = [cell.strip().lower() for cell in first]
    nots = [i for i, name in enumerate(names) if NOT_HEADERS.fullmatch(name)]
    if names[0] not in KEY_HEADERS and not nots and "truth" not in names:
        if width < 2:
            raise UserError(f"{path} has one column; wanted a file name and at least one class it is not.")
        return _Columns(0, list(range(1, width)), None, headers=0)
    key = next((names.index(name) for name in KEY_HEADERS if name in names), 0)
    truths = [i for i, name in enumerate(names) if name in TRUTH_HEADERS]
    if key in nots or key in truths or not (nots or truths):
        raise UserError(f"{path} has the columns {', '.join(names)}; wanted file, not and, where known, truth.")
    other = [name for i, name in enumerate(names) if i not in (key, *nots, *truths[:1])]
    if other:
        say(f"{path}: left unread: column {', '.join(other)} (read are file, not and truth)")
    return _Columns(key, nots, truths[0] if truths else None, headers=1)


def plain_key(name: str) -> str:
    """A file name as it is compared: "./a\\b.png" and "a/b.png" are the same, and so are both ways to write é."""
    return unicodedata.normalize("NFC", name).strip().replace("\\", "/").removeprefix("./")


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names, one a line, in the order that numbers them; empty lines are skipped."""
    names = tuple(line.strip() for line in re.split(r"[\r\n]", read_text(path)) if line.strip())
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated or len(names) < 2:
        found = f"{', '.join(repeated)} more than once" if repeated else f"{len(names)} names"
        raise UserError(f"{path} holds {found}; wanted at least two class names, one a line, each once.")
    return names


# --- examples and their rows -----------------------------------------------------------------------


@dataclass
class Problems:
    """Problems by kind, such as "pictures that cannot be read", each with the example it concerns."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, line: str) -> None:
        """Note one problem; what a screen or a file cannot show is escaped."""
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        self.found.setdefault(kind, []).append(shown)

    def __len__(self) -> int:
        return sum(map(len, self.found.values()))

    def report(self, most: int | None = None) -> str:
        """All problems as text, or the first ``most`` of each kind."""
        lines = []
        for kind, examples in self.found.items():
            lines.append(f"{len(examples):,} {kind}:")
            lines += [f"  {example}" for example in examples[:most]]
            hidden = len(examples) - len(examples[:most])
            if hidden:
                lines.append(f"  ... and {hidden:,} more")
        return "\n".join(lines)

    def write(self, path: Path) -> bool:
        """Write the whole report to ``path``; False if that cannot be written (the screen still has it)."""
        try:
            path.write_text(self.report() + "\n", encoding="utf-8")
        except OSError:
            return False
        return True


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
    names = [plain_key(key) for key in keys]
    owners = _owners(names, table.rows)
    number = {name: k for k, name in enumerate(classes)}
    found: list[tuple[int, Row]] = []
    for i, (key, name) in enumerate(zip(keys, names, strict=True)):
        row = owners.get(name)
        if row is None:
            problems.add(f"{what} without a label", key)
        elif _sound(key, row, table, number, problems):
            found.append((i, row))
    claimed = {id(row) for row in owners.values()}
    for name, row in table.rows.items():
        if id(row) not in claimed:
            problems.add(f"labels without any of the {what}", name + row.where)
    excluded = np.zeros((len(found), len(classes)), np.uint8)
    for m, (_, row) in enumerate(found):
        excluded[m, [number[name] for name in row.excluded]] = 1
    truth = np.array([number[row.truth or ""] for _, row in found], np.int64) if table.has_truth else None
    return Matched(np.array([i for i, _ in found], np.int64), excluded if table.has_excluded else None, truth)


def _owners(names: Sequence[str], rows: dict[str, Row]) -> dict[str, Row]:
    """Example name -> its row: by whole name first, then where one name is the end of the other and no other is."""
    owners = {name: rows[name] for name in names if name in rows}
    short = Counter(name.rpartition("/")[2] for name in names)
    for name in names:  # the table gives only the last part
        last = name.rpartition("/")[2]
        if name not in owners and short[last] == 1 and last in rows:
            owners[name] = rows[last]
    known, claims = set(names), defaultdict(list)
    for name, row in rows.items():  # the table gives folders above the one that is imported
        end = name
        while end not in known and "/" in end:
            end = end.partition("/")[2]
        if end in known and end not in owners:
            claims[end].append(row)
    return owners | {name: claim[0] for name, claim in claims.items() if len(claim) == 1}


def _sound(key: str, row: Row, table: LabelTable, number: dict[str, int], problems: Problems) -> bool:
    """Whether a row can be used; what is wrong with it goes to ``problems``."""
    before = len(problems)
    named = [*row.excluded, *([row.truth] if row.truth else [])]
    for name in dict.fromkeys(named):
        if name not in number:
            problems.add("unknown class names", f"{name!r} for {key}{row.where}")
    if table.has_excluded and not row.excluded:
        problems.add("rows that exclude no class", key + row.where)
    if table.has_excluded and set(row.excluded) >= set(number):
        problems.add("rows that exclude every class", key + row.where)
    if table.has_truth and not row.truth:
        problems.add("rows without a truth", key + row.where)
    if row.disagrees:
        problems.add("rows that disagree about the truth", f"{key} (line {row.line} and later)")
    return len(problems) == before
