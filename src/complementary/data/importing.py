"""Import a user's images or vectors into the cache, completely or not at all.

Labels come from a CSV with the name of an example, the classes it is NOT, and its true class if known:

    file,not,truth
    cats/001.jpg,dog;horse,cat
    002.png,ship,cat

Several labels of an example are separated by ``;``, or are in several columns (``not1``, ``not2``) or rows. Without a
header, the first column is the file and all others are labels. All problems are collected and reported together.
"""

import contextlib
import logging
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from complementary.data import cache
from complementary.data.arrays import (
    KEY_COLUMNS,
    SUFFIXES,
    Array,
    ExampleFile,
    read_example_file,
    read_rows,
    read_text,
)
from complementary.data.dataset import Dataset
from complementary.data.images import FITS, decode_into, find_images
from complementary.data.loading import to_dataset, user_moments
from complementary.data.registry import REGISTRY
from complementary.errors import UserError, one_of, require
from complementary.labels import describe_rare_labels

log = logging.getLogger(__name__)
# "label" is not among them: for most people it is the true class, which must never be used as a complementary label
NOT_COLUMNS = re.compile(r"not[ _-]?\d*|excluded|complementary([ _-]?labels?)?")
TRUTH_COLUMNS = ("truth", "true", "class")
LOGGED_PROBLEMS = 25  # of each kind; the report file lists all


def import_dataset(
    path: str | Path,
    name: str,
    labels: str | Path | None = None,
    classes: str | Path | None = None,
    *,
    size: int = 64,
    fit: str = "crop",
    test: str | Path | None = None,
    test_labels: str | Path | None = None,
    flip: bool = True,
    skip_bad: bool = False,
    replace: bool = False,
    report: str | Path | None = None,
    root: Path | None = None,
) -> Dataset:
    """Import a folder of images or a file of examples into the cache.

    Either the whole dataset is in the cache afterwards, or nothing has changed.

    Args:
        path: A folder of images, or a ``.npz``, ``.npy`` or ``.csv`` file.
        name: Name of the new dataset.
        labels: CSV with the labels; not needed for an ``.npz`` that contains labels.
        classes: Text file with one class name per line; by default all names in the labels, sorted.
        size: Images become squares of this many pixels.
        fit: "crop" crops the center square, "stretch" ignores the aspect ratio.
        test: Folder or file of test examples.
        test_labels: CSV with their true classes; by default the subfolders of ``test`` are the classes.
        flip: Whether a horizontal flip keeps the class of an image.
        skip_bad: Leave out examples with problems instead of raising an error.
        replace: Replace an imported dataset of this name.
        report: File for the list of problems, if there are any.
        root: The cache folder; by default $COMPLEMENTARY_CACHE or ~/.cache/complementary.

    Returns:
        The imported dataset; `load` finds it by its name.

    Raises:
        UserError: The request is not valid, or examples have problems and ``skip_bad`` is not set.
    """
    path, root = Path(path), cache.cache_root(root)
    one_of("The fit", fit, FITS, "fit")
    require(4 <= size <= 4096, "size", size, "from 4 to 4096 pixels")
    if not path.exists():
        raise UserError(f"{path} does not exist; expected a folder of images or a .npz, .npy or .csv file.")
    if test is None and test_labels is not None:
        raise UserError("The option test_labels needs test: the folder or file of the test examples.", "test_labels")
    _check_name(root, name, replace)
    with cache.lock(root, name), cache.write(root, name) as draft:
        _check_name(root, name, replace)  # another process may have used the name in the meantime
        sources = (_path(labels), _path(classes), _path(test), _path(test_labels))
        importer = _Importer(path, *sources, size, fit, draft)
        class_names, parts = importer.read()
        if importer.problems:
            _report(importer.problems, path, _path(report), skip_bad)
        gray = all(part.gray for part in parts)
        for part in parts:
            part.save(draft, gray)
        arrays = draft.arrays()
        mean, std = user_moments(arrays["train/inputs"])
        facts = {"base": None, "classes": class_names, "mean": mean, "std": std, "flip": flip, "head": None}
        draft.manifest = {"name": name, "source": f"imported from {path.resolve()}", **facts}
        return to_dataset(cache.Stored(draft.manifest, arrays))  # checks every label


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _check_name(root: Path, name: str, replace: bool) -> None:
    if name in REGISTRY:
        raise UserError(f"{name} is the name of a known dataset; choose another name.")
    if cache.read_manifest(root, name) is not None and not replace:
        raise UserError(f"The cache already contains a dataset {name}; choose another name, or replace it.", "replace")


# --- label tables --------------------------------------------------------------------------------


@dataclass
class Row:
    """The labels of one example, as class names."""

    line: int  # of its first label; 0 if the labels are not from a file
    excluded: list[str]
    truth: str | None
    contradictory: bool = False  # lines give different true classes

    @property
    def where(self) -> str:  # for reports
        return f" (line {self.line})" if self.line else ""


@dataclass(frozen=True)
class LabelTable:
    """The rows of all examples by name, and whether the table contains labels and true classes at all."""

    rows: dict[str, Row]
    has_excluded: bool
    has_truth: bool

    def class_names(self) -> list[str]:
        """All class names in the table, sorted."""
        truths = {row.truth for row in self.rows.values() if row.truth}
        return sorted(truths.union(*(row.excluded for row in self.rows.values())))


def read_labels(path: Path) -> LabelTable:
    """Read a label table; several rows of one example are merged. Logs a warning about ignored columns."""
    lines = read_rows(path)
    if not lines:
        raise UserError(f"{path} is empty; expected lines such as: photo1.jpg,dog (photo1.jpg is not a dog).")
    key, nots, truth, headers = _find_columns(path, lines[0][1], max(len(row) for _, row in lines))
    rows: dict[str, Row] = {}
    for number, cells in lines[headers:]:
        cells = [*(cell.strip() for cell in cells), *[""] * (len(lines[0][1]) - len(cells))]
        row = rows.setdefault(normalize_key(cells[key]), Row(number, [], None))
        names = [name.strip() for i in nots if i < len(cells) for name in cells[i].split(";")]
        row.excluded = list(dict.fromkeys([*row.excluded, *(name for name in names if name)]))
        known = cells[truth] if truth is not None else ""
        row.contradictory = row.contradictory or bool(known and row.truth and known != row.truth)
        row.truth = known or row.truth
    return LabelTable(rows, bool(nots), truth is not None)


def _find_columns(path: Path, first: list[str], width: int) -> tuple[int, list[int], int | None, int]:
    """-> (column of the name, columns of labels, column of the true class, number of header lines)."""
    names = [cell.strip().lower() for cell in first]
    nots = [i for i, name in enumerate(names) if NOT_COLUMNS.fullmatch(name)]
    if names[0] not in KEY_COLUMNS and not nots and "truth" not in names:
        if width < 2:
            raise UserError(f"{path} has one column; expected a file name and at least one class it is not.")
        return 0, list(range(1, width)), None, 0
    key = next((names.index(name) for name in KEY_COLUMNS if name in names), 0)
    truths = [i for i, name in enumerate(names) if name in TRUTH_COLUMNS]
    if key in nots or key in truths or not (nots or truths):
        raise UserError(f"{path} has the columns {', '.join(names)}; expected file, not and, if known, truth.")
    ignored = [name for i, name in enumerate(names) if i not in (key, *nots, *truths[:1])]
    if ignored:
        log.warning("%s: ignored columns: %s (file, not and truth are read)", path, ", ".join(ignored))
    return key, nots, truths[0] if truths else None, 1


def normalize_key(name: str) -> str:
    r"""A file name in the form in which names are compared: ``./a\b.png`` equals ``a/b.png``, NFD equals NFC."""
    return unicodedata.normalize("NFC", name).strip().replace("\\", "/").removeprefix("./")


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names, one per line, in order; empty lines are skipped."""
    names = tuple(line.strip() for line in re.split(r"[\r\n]", read_text(path)) if line.strip())
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated or len(names) < 2:
        found = f"{', '.join(repeated)} more than once" if repeated else f"{len(names)} names"
        raise UserError(f"{path} contains {found}; expected at least two class names, one per line, each once.")
    return names


# --- problems ------------------------------------------------------------------------------------


@dataclass
class Problems:
    """Problems by kind, such as "train images without a label", with the examples concerned."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        """Record one problem; characters that cannot be displayed are escaped."""
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in example)
        self.found.setdefault(kind, []).append(shown)

    def __len__(self) -> int:
        return sum(map(len, self.found.values()))

    def text(self, limit: int | None = None) -> str:
        """All problems, or the first ``limit`` of each kind, one per line."""
        lines = []
        for kind, examples in self.found.items():
            lines.append(f"{len(examples):,} {kind}:")
            lines += [f"  {example}" for example in examples[:limit]]
            hidden = len(examples) - len(examples[:limit])
            if hidden:
                lines.append(f"  ... and {hidden:,} more")
        return "\n".join(lines)


def _report(problems: Problems, path: Path, report: Path | None, skip_bad: bool) -> None:
    """Log the problems and write them to a file; raise an error unless bad examples are to be skipped."""
    listed = ""
    if report is not None:
        with contextlib.suppress(OSError):
            report.write_text(problems.text() + "\n", encoding="utf-8")
            listed = f" (listed in {report})"
    log.warning("%s", problems.text(LOGGED_PROBLEMS if listed else None))
    count = f"{len(problems):,} problem{'s' if len(problems) > 1 else ''}{listed}"
    if not skip_bad:
        raise UserError(f"{path}: {count}; nothing was imported. Fix them, or skip the examples.", "skip_bad")
    log.warning("%s; those examples are skipped", count)


# --- matching examples and labels ----------------------------------------------------------------


@dataclass(frozen=True)
class Matched:
    """Examples with valid labels: ``index`` int64 [M], labels uint8 [M, K] and true classes int64 [M]."""

    index: NDArray[np.int64]
    excluded: NDArray[np.uint8] | None
    truth: NDArray[np.int64] | None


def match(keys: Sequence[str], table: LabelTable, classes: Sequence[str], problems: Problems, what: str) -> Matched:
    """Find and check the row of each example; ``what`` ("train images") names the examples in ``problems``.

    A row may give the whole name (``keys``), only its last part if that is unique, or additional parent folders.
    """
    names = [normalize_key(key) for key in keys]
    owners = _find_rows(names, table.rows)
    number = {name: k for k, name in enumerate(classes)}
    found: list[tuple[int, Row]] = []
    for i, (key, name) in enumerate(zip(keys, names, strict=True)):
        row = owners.get(name)
        if row is None:
            problems.add(f"{what} without a label", key)
        elif _is_valid(key, row, table, number, problems):
            found.append((i, row))
    used = {id(row) for row in owners.values()}
    for name, row in table.rows.items():
        if id(row) not in used:
            problems.add(f"labels that match none of the {what}", name + row.where)
    excluded = np.zeros((len(found), len(classes)), np.uint8)
    for m, (_, row) in enumerate(found):
        excluded[m, [number[name] for name in row.excluded]] = 1
    truth = np.array([number[row.truth or ""] for _, row in found], np.int64) if table.has_truth else None
    return Matched(np.array([i for i, _ in found], np.int64), excluded if table.has_excluded else None, truth)


def _find_rows(names: Sequence[str], rows: dict[str, Row]) -> dict[str, Row]:
    """Example name -> row: by the whole name, else if one name is the unique end of the other."""
    owners = {name: rows[name] for name in names if name in rows}
    last_parts = Counter(name.rpartition("/")[2] for name in names)
    for name in names:  # the table gives only the last part
        last = name.rpartition("/")[2]
        if name not in owners and last_parts[last] == 1 and last in rows:
            owners[name] = rows[last]
    known, candidates = set(names), defaultdict(list)
    for name, row in rows.items():  # the table gives folders above the imported one
        end = name
        while end not in known and "/" in end:
            end = end.partition("/")[2]
        if end in known and end not in owners:
            candidates[end].append(row)
    return owners | {name: found[0] for name, found in candidates.items() if len(found) == 1}


def _is_valid(key: str, row: Row, table: LabelTable, number: dict[str, int], problems: Problems) -> bool:
    before = len(problems)
    for name in dict.fromkeys([*row.excluded, *([row.truth] if row.truth else [])]):
        if name not in number:
            problems.add("unknown class names", f"{name!r} for {key}{row.where}")
    if table.has_excluded and not row.excluded:
        problems.add("rows that exclude no class", key + row.where)
    if table.has_excluded and set(row.excluded) >= set(number):
        problems.add("rows that exclude every class", key + row.where)
    if table.has_truth and not row.truth:
        problems.add("rows without a true class", key + row.where)
    if row.contradictory:
        problems.add("rows with contradictory true classes", f"{key} (line {row.line} and later)")
    return len(problems) == before


# --- reading the examples ------------------------------------------------------------------------


@dataclass(frozen=True)
class _ImageFolder:
    """The image files of a folder; their keys are paths within it."""

    path: Path
    files: list[Path]
    keys: list[str]


@dataclass(frozen=True)
class _Part:
    """The labeled examples of a split."""

    split: str
    inputs: Array  # [M, ...]
    good: NDArray[np.bool_]  # which examples are usable [M]
    matched: Matched
    gray: bool = False  # all are gray images from files, with three equal channels

    def save(self, draft: cache.Draft, gray: bool) -> None:
        """Write the usable examples and their labels; only the first channel if ``gray``."""
        rows, key = np.flatnonzero(self.good), f"{self.split}/inputs"
        if not self.inputs[:1].size or not len(rows):
            raise UserError(f"None of the {self.split} examples is usable.")
        if gray or not self.good.all() or key not in draft.arrays():  # decoded images are already in the draft
            draft.save(key, self.inputs[rows, :1] if gray else self.inputs[rows])
        for kind, labels in (("excluded", self.matched.excluded), ("truth", self.matched.truth)):
            if labels is not None:
                draft.save(f"{self.split}/{kind}", labels[rows])


def _warn_about_labels(excluded: NDArray[np.uint8] | None, classes: tuple[str, ...]) -> None:
    """Warn if there are no complementary labels, or if some class is hardly ever excluded. excluded: [M, K]."""
    if excluded is None:
        log.warning("the labels are true classes only; a training draws complementary labels from them")
    elif (message := describe_rare_labels(torch.from_numpy(excluded), classes)) is not None:
        log.warning(message)


@dataclass(frozen=True)
class _Importer:
    """Reads the files of an import; the fields are the arguments of `import_dataset`."""

    path: Path
    labels: Path | None
    classes: Path | None
    test: Path | None
    test_labels: Path | None
    size: int
    fit: str
    draft: cache.Draft
    problems: Problems = field(default_factory=Problems)

    def read(self) -> tuple[tuple[str, ...], list[_Part]]:
        """Read the examples and their labels -> (class names, splits)."""
        train = self._open("train", self.path)
        if self.labels is not None:
            table = read_labels(self.labels)
            classes = read_classes(self.classes) if self.classes else tuple(table.class_names())
            if len(classes) < 2:
                raise UserError(f"{self.labels} names {len(classes)} classes; at least two are needed.", "classes")
            parts = [self._read("train", train, match(train.keys, table, classes, self.problems, "train examples"))]
        elif isinstance(train, ExampleFile) and train.has_labels:
            classes, excluded, truth = train.labels(read_classes(self.classes) if self.classes else None)
            parts = [self._read("train", train, Matched(np.arange(len(train.keys)), excluded, truth))]
        else:
            raise UserError(f"{self.path} has no labels; give a CSV with the classes that each is not.", "labels")
        _warn_about_labels(parts[0].matched.excluded, classes)
        if self.test is not None:
            test = self._open("test", self.test)
            rows = match(test.keys, self._true_classes(test), classes, self.problems, "test examples")
            parts.append(self._read("test", test, rows))
        elif isinstance(train, ExampleFile) and "test/inputs" in train.arrays:
            inputs, truth = train.arrays["test/inputs"], train.arrays["test/truth"].astype(np.int64)
            test = ExampleFile(self.path, {"train/inputs": inputs}, [str(i) for i in range(len(truth))])
            parts.append(self._read("test", test, Matched(np.arange(len(truth)), None, truth)))
        return classes, parts

    def _open(self, split: str, path: Path) -> ExampleFile | _ImageFolder:
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            found: ExampleFile | _ImageFolder = read_example_file(path)
        else:
            files = find_images(path)
            found = _ImageFolder(path, files, [file.relative_to(path).as_posix() for file in files])
        log.info("%s: %s examples in %s", split, f"{len(found.keys):,}", path)
        return found

    def _true_classes(self, test: ExampleFile | _ImageFolder) -> LabelTable:
        if self.test_labels is not None:
            table = read_labels(self.test_labels)
            if not table.has_truth:
                raise UserError(f"{self.test_labels} has no column truth, which test examples need.", "test_labels")
            return LabelTable(table.rows, has_excluded=False, has_truth=True)
        if not all("/" in key for key in test.keys):
            raise UserError(
                f"The test examples in {test.path} need their true classes: one subfolder per class, or test_labels.",
                "test_labels",
            )
        rows = {normalize_key(key): Row(0, [], normalize_key(key).partition("/")[0]) for key in test.keys}
        return LabelTable(rows, has_excluded=False, has_truth=True)

    def _read(self, split: str, source: ExampleFile | _ImageFolder, matched: Matched) -> _Part:
        """The inputs of the matched examples; those that are not usable are marked and reported."""
        good, gray = np.ones(len(matched.index), bool), False
        if isinstance(source, _ImageFolder):
            shape = (max(1, len(good)), 3, self.size, self.size)
            images = self.draft.allocate(f"{split}/inputs", shape)
            inputs: Array = images
            files = [source.files[i] for i in matched.index]
            decoded = decode_into(images.transpose(0, 2, 3, 1), files, self.fit, f"decoding {split} images")
            good[list(decoded.failures)], gray = False, decoded.gray
            reasons = {i: f": {reason}" for i, reason in decoded.failures.items()}
            kind = f"{split} images that cannot be decoded"
        else:
            inputs = source.arrays["train/inputs"][matched.index]
            good &= np.isfinite(inputs).reshape(len(inputs), math.prod(inputs.shape[1:])).all(1)
            reasons = dict.fromkeys(np.flatnonzero(~good).tolist(), "")
            kind = f"{split} rows with NaN or infinity"
        for i, reason in reasons.items():
            self.problems.add(kind, source.keys[matched.index[i]] + reason)
        return _Part(split, inputs, good, matched, gray)
