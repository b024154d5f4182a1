"""Label tables: a CSV with the name of an example, the classes it is NOT, and its true class if known.

    file,not,truth
    cats/001.jpg,dog;horse,cat
    002.png,ship,cat

Several labels go into one cell with ``;`` between them, into several columns (``not1``, ``not2``), or into
several rows of the same file. Without a header the first column is the file and all others are labels.
Everything that does not fit is collected first and told in one report.

Bring the user's own pictures or vectors into the cache, whole or not at all.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from complementary.data import cache
from complementary.data import cache as drafts
from complementary.data.cache import Array, Draft, Stored, to_dataset
from complementary.data.dataset import Dataset, moments
from complementary.data.formats import KEY_HEADERS, SUFFIXES, own_labels, own_test, read_rows, read_table, read_text
from complementary.data.pictures import FITS, decode_into, find_pictures
from complementary.data.registry import TABLE
from complementary.errors import UserError, one_of
from complementary.reports.terminal import Say

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


ON_SCREEN = 25  # problems of each kind; the report file has all of them
ROWS = 1024  # pictures copied at a time


@dataclass(frozen=True)
class Import:
    """What to import. ``path``: a folder of pictures, or a .npz, .npy or .csv of vectors.

    ``labels``, ``classes``: see `label_table`; without ``classes`` the names in the labels are taken.
    ``size``, ``fit``: see `pictures.decode_picture`. ``test``, ``test_labels``: examples with truth, for
    evaluation; a test folder without labels has one subfolder per class. ``skip_bad``: go on without what
    is broken. ``report``: file for the list of problems, NAME-problems.txt unless given.
    """

    path: Path
    name: str
    labels: Path | None = None
    classes: Path | None = None
    size: int = 64
    fit: str = "crop"
    test: Path | None = None
    test_labels: Path | None = None
    flip: bool = True
    skip_bad: bool = False
    replace: bool = False
    report: Path | None = None


def run_import(request: Import, root: Path, say: Say) -> Dataset:
    """Import into the cache ``root``; either the whole set is there afterwards, or nothing has changed."""
    _check(request, root)
    with drafts.lock(root, request.name, say), drafts.writing(root, request.name) as draft:
        _check(request, root)  # another process may have imported that name while this one waited
        is_table = request.path.suffix.lower() in SUFFIXES and request.path.is_file()
        kind = _Vectors if is_table else _Pictures
        classes = kind(request, draft, Problems(), say).write()
        mean, std = moments(draft.get("train/inputs"))
        facts = {
            **{"source": f"imported from {request.path.resolve()}", "base": None, "classes": list(classes)},
            **{"mean": mean, "std": std, "flip": request.flip, "head": None},
        }
        arrays = {key: draft.get(key) for key in draft.facts}
        dataset = to_dataset(Stored({"name": request.name, **facts}, arrays), None)  # checks every label
        drafts.commit(root, request.name, draft, facts)
    return dataset


def _check(request: Import, root: Path) -> None:
    one_of("The fit", request.fit, FITS)
    if not request.path.exists():
        raise UserError(f"{request.path} does not exist; name a folder of pictures or a .npz, .npy or .csv file.")
    if request.name in TABLE:
        raise UserError(f"{request.name} is the name of a known dataset; choose another with --out NAME.")
    if not 4 <= request.size <= 4096:
        raise UserError(f"The size {request.size} is not possible; pictures become squares of 4 to 4096 pixels.")
    if not request.replace and cache.read_manifest(root, request.name) is not None:
        raise UserError(f"The cache has a dataset {request.name} already; choose another --out NAME, or --replace it.")
    if request.test is None and request.test_labels is not None:
        raise UserError("--test-labels were given without --test; name the folder or file of the test examples too.")


@dataclass(frozen=True)
class _Job:
    """One import on its way: what is asked, where it is written, what was found wrong."""

    request: Import
    draft: Draft
    problems: Problems
    say: Say

    def labels(self, path: Path) -> tuple[LabelTable, tuple[str, ...]]:
        """The label table, and the names in --classes, or else all names that the labels use."""
        table = read_labels(path, self.say)
        names = read_classes(self.request.classes) if self.request.classes else tuple(table.class_names())
        if len(names) < 2:
            raise UserError(f"{path} names {len(names)} classes; at least two are needed (or give --classes).")
        return table, names

    def test_labels(self, path: Path) -> LabelTable:
        """The truths of test examples."""
        table = read_labels(path, self.say)
        if not table.has_truth:
            raise UserError(f"{path} has no column truth; test examples need one (header: file,truth).")
        return LabelTable(table.rows, has_excluded=False, has_truth=True)

    def settle(self) -> None:
        """Tell all problems in one report; stop unless the user wants to go on without the bad examples."""
        count = len(self.problems)
        if not count:
            return
        path = self.request.report or Path(f"{self.request.name}-problems.txt")
        written = self.problems.write(path)
        self.say(self.problems.report(ON_SCREEN if written else None))
        found = f"{count:,} problem{'s' if count > 1 else ''}" + (f" (the whole list is in {path})" if written else "")
        if not self.request.skip_bad:
            raise UserError(
                f"{self.request.path}: {found}, so nothing was imported. Mend them, or leave those examples out "
                "with --skip-bad."
            )
        self.say(f"{found}; going on without those examples")

    def put_labels(self, split: str, matched: Matched) -> None:
        """Write the labels and truths that there are."""
        if matched.excluded is not None:
            self.draft.put(f"{split}/excluded", matched.excluded)
        if matched.truth is not None:
            self.draft.put(f"{split}/truth", matched.truth)


# --- pictures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rough:
    """A decoded split: ``pixels`` uint8 [N, S, S, 3] on the disk, and which of them are ``good`` [N]."""

    split: str
    pixels: NDArray[np.uint8]
    good: NDArray[np.bool_]
    grey: bool
    matched: Matched


class _Pictures(_Job):
    """Match pictures with their labels, decode them all, and only then shape the final arrays."""

    def write(self) -> tuple[str, ...]:
        """Write pictures and labels to the draft; returns the class names."""
        if self.request.labels is None:
            raise UserError("Pictures need labels: name a CSV of files and what they are not with --labels.")
        table, classes = self.labels(self.request.labels)
        splits = [self._decode("train", self.request.path, table, classes)]
        if self.request.test is not None:
            given = self.request.test_labels
            rows = self.test_labels(given) if given else _folders_as_classes(self.request.test)
            splits.append(self._decode("test", self.request.test, rows, classes))
        self.settle()
        channels = 1 if all(rough.grey for rough in splits) else 3
        for rough in splits:
            self._finish(rough, channels)
        return classes

    def _decode(self, split: str, folder: Path, table: LabelTable, classes: tuple[str, ...]) -> _Rough:
        paths = find_pictures(folder)
        keys = [path.relative_to(folder).as_posix() for path in paths]
        self.say(f"{split}: {len(paths):,} pictures in {folder}, {len(table.rows):,} labelled names")
        matched = match(keys, table, classes, self.problems, f"{split} pictures")
        chosen = [paths[i] for i in matched.index]
        side = self.request.size
        pixels = self.draft.create(f"rough-{split}", (max(1, len(chosen)), side, side, 3), np.uint8)
        decoded = decode_into(pixels, chosen, self.request.fit, f"decoding {split}")
        for i, reason in decoded.failures.items():
            self.problems.add(f"{split} pictures that cannot be read", f"{keys[matched.index[i]]}: {reason}")
        good = np.ones(len(chosen), bool)
        good[list(decoded.failures)] = False
        return _Rough(split, pixels, good, decoded.grey, matched)

    def _finish(self, rough: _Rough, channels: int) -> None:
        """The good pictures -> inputs uint8 [M, C, S, S], and their labels beside them."""
        good = np.flatnonzero(rough.good)
        if not len(good):
            raise UserError(f"None of the {rough.split} pictures can be used.")
        key = f"{rough.split}/inputs"
        inputs = self.draft.create(key, (len(good), channels, *rough.pixels.shape[1:3]), np.uint8)
        for start in range(0, len(good), ROWS):
            rows = rough.pixels[good[start : start + ROWS]]
            inputs[start : start + len(rows)] = rows[..., :channels].transpose(0, 3, 1, 2)
        inputs.flush()
        self.draft.seal(key)
        self.put_labels(rough.split, rough.matched.keep(rough.good))
        self.draft.discard(f"rough-{rough.split}")


def _folders_as_classes(folder: Path) -> LabelTable:
    rows = {}
    for path in find_pictures(folder):
        key = plain_key(path.relative_to(folder).as_posix())
        name, _, rest = key.partition("/")
        if not rest:
            raise UserError(f"{path} lies in no subfolder of {folder}; name them after classes, or give --test-labels.")
        rows[key] = Row(0, [], name)
    return LabelTable(rows, has_excluded=False, has_truth=True)


# --- vectors, and images in one file -------------------------------------------------------------


class _Vectors(_Job):
    """Examples that lie in one file, with labels in a CSV or in the file itself."""

    def write(self) -> tuple[str, ...]:
        """Write examples and labels to the draft; returns the class names."""
        train = read_table(self.request.path)
        self.say(f"train: {len(train.keys):,} examples in {train.path}")
        if self.request.labels is not None:
            labels, classes = self.labels(self.request.labels)
            matched = match(train.keys, labels, classes, self.problems, "train rows")
        else:
            own = own_labels(train, read_classes(self.request.classes) if self.request.classes else None)
            classes, matched = own.classes, Matched(np.arange(len(train.keys)), own.excluded, own.truth)
        splits = [("train", *self._sound("train", train.arrays["train/inputs"], train.keys, matched))]
        test = own_test(train)
        if self.request.test is not None:
            splits.append(("test", *self._read_test(self.request.test, classes)))
        elif test is not None:
            rows = Matched(np.arange(len(test[0])), None, test[1])
            splits.append(("test", *self._sound("test", test[0], [str(i) for i in rows.index], rows)))
        self.settle()
        for split, inputs, rows in splits:
            if not inputs.size:
                raise UserError(f"None of the {split} examples can be used.")
            self.draft.put(f"{split}/inputs", inputs)
            self.put_labels(split, rows)
        return classes

    def _read_test(self, path: Path, classes: tuple[str, ...]) -> tuple[Array, Matched]:
        if self.request.test_labels is None:
            raise UserError(f"The test examples in {path} need their truth: name a CSV with --test-labels.")
        test = read_table(path)
        rows = match(test.keys, self.test_labels(self.request.test_labels), classes, self.problems, "test rows")
        return self._sound("test", test.arrays["train/inputs"], test.keys, rows)

    def _sound(self, split: str, inputs: Array, keys: list[str], matched: Matched) -> tuple[Array, Matched]:
        """The examples that have labels and hold finite numbers only, and their labels."""
        inputs = inputs[matched.index]
        good = np.ones(len(inputs), bool)
        if inputs.ndim == 2:
            good = np.asarray(np.isfinite(inputs.astype(np.float32)).all(1))
        for i in np.flatnonzero(~good):
            self.problems.add(f"{split} rows with NaN or infinity", keys[int(matched.index[i])])
        return inputs[good], matched.keep(good)
