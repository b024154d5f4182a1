"""Bring the user's own pictures or vectors into the cache, whole or not at all."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from complementary.data import cache, drafts
from complementary.data.arrays import SUFFIXES, own_labels, own_test, read_table
from complementary.data.cache import Array, Stored
from complementary.data.dataset import Dataset, moments
from complementary.data.drafts import Draft
from complementary.data.label_table import (
    LabelTable,
    Matched,
    Problems,
    Row,
    match,
    plain_key,
    read_classes,
    read_labels,
)
from complementary.data.pictures import FITS, decode_into, find_pictures
from complementary.data.screen import Say
from complementary.data.store import to_dataset
from complementary.data.table import TABLE
from complementary.errors import UserError, one_of

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
