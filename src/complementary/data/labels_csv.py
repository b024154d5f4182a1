"""Label tables: a CSV with the name of an example, the classes it is NOT, and its true class if known.

    file,not,truth
    cats/001.jpg,dog;horse,cat
    002.png,ship,

Several labels go into one cell with ``;`` between them, into several columns (``not1``, ``not2``), or into
several rows of the same file. Without a header the first column is the file and all others are labels.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from complementary.data.progress import Say
from complementary.errors import UserError

KEY_HEADERS = ("file", "filename", "file_name", "image", "name", "path", "row", "id")
NOT_HEADERS = ("not", "label", "labels", "excluded", "complementary")
TRUTH_HEADERS = ("truth", "true", "class")


@dataclass
class Row:
    """What the table says of one example: class names, not yet checked. ``line``: where it says so first.

    ``disagrees``: whether another line gives another truth.
    """

    line: int
    excluded: list[str]
    truth: str | None
    disagrees: bool = False


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
    lines = [(number, row) for number, row in _lines(path) if any(cell.strip() for cell in row)]
    if not lines:
        raise UserError(f"{path} is empty; wanted lines such as: photo1.jpg,dog (photo1.jpg is not a dog).")
    nots, truth, header = _columns(path, lines[0][1], max(len(row) for _, row in lines), say)
    rows: dict[str, Row] = {}
    for number, cells in lines[header:]:
        row = rows.setdefault(_key(cells[0]), Row(number, [], None))
        names = [name.strip() for i in nots if i < len(cells) for name in cells[i].split(";")]
        row.excluded = list(dict.fromkeys([*row.excluded, *(name for name in names if name)]))
        known = cells[truth].strip() if truth is not None and truth < len(cells) else ""
        row.disagrees = row.disagrees or bool(known and row.truth and known != row.truth)
        row.truth = known or row.truth
    return LabelTable(rows, bool(nots), truth is not None)


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names, one a line, in the order that numbers them; empty lines are skipped."""
    names = tuple(line.strip() for line in _text(path).splitlines() if line.strip())
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or len(names) < 2:
        found = f"{', '.join(repeated)} more than once" if repeated else f"{len(names)} names"
        raise UserError(f"{path} holds {found}; wanted at least two class names, one a line, each once.")
    return names


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{path} cannot be read as UTF-8 text ({reason}).") from None


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    text = _text(path)
    first = text.partition("\n")[0]
    reader = csv.reader(text.splitlines(), delimiter="\t" if "\t" in first and "," not in first else ",")
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as problem:
        raise UserError(f"{path}, line {reader.line_num}, is not CSV ({problem}).") from None


def _key(cell: str) -> str:
    key = cell.strip().replace("\\", "/")
    return key.removeprefix("./")


def _columns(path: Path, first: list[str], width: int, say: Say) -> tuple[list[int], int | None, int]:
    """Which columns hold labels, which the truth, and how many header lines there are."""
    names = [cell.strip().lower() for cell in first]
    if names[0] not in KEY_HEADERS:
        if width < 2:
            raise UserError(f"{path} has one column; wanted a file name and at least one class it is not.")
        return list(range(1, width)), None, 0
    nots = [i for i, name in enumerate(names) if i and (name.startswith("not") or name in NOT_HEADERS)]
    truths = [i for i, name in enumerate(names) if i and name in TRUTH_HEADERS]
    other = [name for i, name in enumerate(names) if i and i not in nots and i not in truths]
    if not nots and not truths:
        raise UserError(f"{path} has the columns {', '.join(names)}; wanted file, not and, where known, truth.")
    if other:
        say(f"{path}: left unread: column {', '.join(other)} (read are file, not and truth)")
    return nots, truths[0] if truths else None, 1
