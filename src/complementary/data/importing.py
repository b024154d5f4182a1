"""Import a user's images or vectors into the cache, completely or not at all.

Answers come from a table (`complementary.data.answers`); a true class per example is optional:

    file,not,truth
    cats/001.jpg,dog;horse,cat
    002.png,ship,cat

All problems are collected and reported together (`complementary.data.problems`).
"""

import difflib
import hashlib
import logging
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from complementary.data import cache
from complementary.data.answers import Answer, AnswerTable, Meaning, normalize_key, read_answers
from complementary.data.arrays import SUFFIXES, Array, ExampleFile, read_example_file
from complementary.data.dataset import Dataset
from complementary.data.images import FITS, decode_into, find_images
from complementary.data.loading import to_dataset, user_moments
from complementary.data.matching import Matched, match
from complementary.data.problems import Problems
from complementary.data.registry import REGISTRY
from complementary.data.rules import rule_labels
from complementary.data.tables import read_text
from complementary.errors import UserError, one_of, require
from complementary.labels import describe_rare_labels

log = logging.getLogger(__name__)
ROWS = 65_536  # vectors that are checked for NaN at a time


def import_dataset(
    path: str | Path,
    name: str,
    labels: str | Path | None = None,
    classes: str | Path | None = None,
    *,
    size: int = 64,
    fit: str = "crop",
    meaning: Meaning = "auto",
    test: str | Path | None = None,
    test_labels: str | Path | None = None,
    flip: bool = True,
    skip_bad: bool = False,
    skip_unlabeled: bool = False,
    replace: bool = False,
    report: str | Path | None = None,
    root: Path | None = None,
) -> Dataset:
    """Import a folder of images or a file of examples into the cache.

    Either the whole dataset is in the cache afterwards, or nothing has changed. Images that cannot be decoded, examples
    without an answer and answers without an example are left out and named, if they are at most a tenth of all.

    Args:
        path: A folder of images, or a ``.npz``, ``.npy``, ``.csv`` or ``.parquet`` file.
        name: Name of the new dataset.
        labels: Table of answers (see `complementary.data.answers`); not needed for an ``.npz`` or ``.parquet`` that
            contains them.
        classes: Text file with one class name per line; by default all names in the answers, sorted.
        size: Images become squares of this many pixels.
        fit: "crop" crops the center square, "stretch" ignores the aspect ratio.
        meaning: What a class name means if the table does not say so: "not" or "yes". "auto": an error.
        test: Folder or file of test examples.
        test_labels: CSV with their true classes; by default the subfolders of ``test`` are the classes.
        flip: Whether a horizontal flip keeps the class of an image.
        skip_bad: Leave out all examples with problems instead of raising an error.
        skip_unlabeled: Leave out examples without an answer, however many there are.
        replace: Replace an imported dataset of this name.
        report: File for the list of problems, if there are any.
        root: The cache folder; by default $COMPLEMENTARY_CACHE or ~/.cache/complementary.

    Returns:
        The imported dataset; `load` finds it by its name.

    Raises:
        UserError: The request is not valid, or examples have problems and may not be skipped.
    """
    path, root = Path(path), cache.cache_root(root)
    one_of("The fit", fit, FITS, "fit")
    require(4 <= size <= 4096, "size", size, "from 4 to 4096 pixels")
    if not path.exists():
        kinds = ", ".join(SUFFIXES)
        raise UserError(f"{path} does not exist; expected a folder of images or a file ({kinds}).")
    if test is None and test_labels is not None:
        raise UserError("The option test_labels needs test: the folder or file of the test examples.", "test_labels")
    _check_name(root, name, replace)
    with cache.lock(root, name), cache.write(root, name) as draft:
        _check_name(root, name, replace)  # another process may have used the name in the meantime
        sources = (_path(labels), _path(classes), _path(test), _path(test_labels))
        importer = _Importer(path, *sources, size, fit, meaning, draft)
        class_names, parts = importer.read()
        importer.problems.report(path, _path(report), skip_bad, importer.examples, skip_unlabeled)
        gray = all(part.gray for part in parts)
        for part in parts:
            part.save(draft, gray)
        arrays = draft.arrays()
        mean, std = user_moments(arrays["train/inputs"])
        facts: dict[str, Any] = {
            "base": None,
            "classes": class_names,
            "mean": mean,
            "std": std,
            "flip": flip,
            "head": None,
        }
        facts |= {"answers": parts[0].matched.counts}
        if parts[0].features is not None:
            facts |= {"features": parts[0].features}
        if parts[0].matched.answers is not None:
            facts |= {"annotators": parts[0].matched.answers.annotators}
        draft.manifest = {"name": name, "source": f"imported from {path.resolve()}", **facts}
        return to_dataset(cache.Stored(draft.manifest, arrays))  # checks every label


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _check_name(root: Path, name: str, replace: bool) -> None:
    if name in REGISTRY:
        raise UserError(f"{name} is the name of a known dataset; choose another name.")
    if cache.read_manifest(root, name) is not None and not replace:
        raise UserError(f"The cache already contains a dataset {name}; choose another name, or replace it.", "replace")


# --- class names ---------------------------------------------------------------------------------


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names, one per line, in order; empty lines are skipped."""
    names = tuple(line.strip() for line in re.split(r"[\r\n]", read_text(path)) if line.strip())
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated or len(names) < 2:
        found = f"{', '.join(repeated)} more than once" if repeated else f"{len(names)} names"
        raise UserError(f"{path} contains {found}; expected at least two class names, one per line, each once.")
    return names


def find_misspelled(table: AnswerTable) -> dict[str, str]:
    """Class names that look like a misspelled other one -> that one.

    A name is suspicious if it differs from a more frequent one only in upper and lower case or spaces, or if it is
    similar to one that is at least 20 times as frequent.
    """
    counts = Counter(name for answer in table.answers for name in answer.names)
    found: dict[str, str] = {}
    by_letters: dict[str, str] = {}
    for name, _ in counts.most_common():
        letters = re.sub(r"[\s_-]+", "", name).casefold()
        if letters in by_letters:
            found[name] = by_letters[letters]
        by_letters.setdefault(letters, name)
    for name, count in counts.items():
        frequent = [other for other in counts if counts[other] >= 20 * count and not other.isdecimal()]
        if name not in found and (similar := difflib.get_close_matches(name, frequent, 1, 0.6)):
            found[name] = similar[0]
    return found


# --- reading the examples ------------------------------------------------------------------------


@dataclass(frozen=True)
class _ImageFolder:
    """The image files of a folder; their keys are paths within it."""

    path: Path
    files: list[Path]
    keys: list[str]


def _take(inputs: Array, rows: NDArray[np.int64]) -> Array:
    """The rows of some inputs; without a copy if these are all rows in order."""
    return inputs if np.array_equal(rows, np.arange(len(inputs))) else inputs[rows]


@dataclass(frozen=True)
class _Part:
    """The labeled examples of a split."""

    split: str
    inputs: Array  # [M, ...]
    good: NDArray[np.bool_]  # which examples are usable [M]
    matched: Matched
    names: list[str] | None  # of the examples [M]; None: they are only numbered
    gray: bool = False  # all are gray images from files, with three equal channels
    features: tuple[str, ...] | None = None

    def save(self, draft: cache.Draft, gray: bool) -> None:
        """Write the usable examples and their labels; only the first channel if ``gray``."""
        rows, key = np.flatnonzero(self.good), f"{self.split}/inputs"
        if not self.inputs[:1].size or not len(rows):
            raise UserError(f"None of the {self.split} examples is usable.")
        if gray or not self.good.all() or key not in draft.arrays():  # decoded images are already in the draft
            draft.save(key, self.inputs[rows, :1] if gray else _take(self.inputs, rows))
        for kind, labels in (("excluded", self.matched.excluded), ("truth", self.matched.truth)):
            if labels is not None:
                draft.save(f"{self.split}/{kind}", labels[rows])
        if self.names is not None:
            draft.save(f"{self.split}/names", np.array(self.names, "U")[rows])
        if self.matched.answers is not None:
            answers = self.matched.answers.take(torch.from_numpy(rows))
            for part in ("example", "excluded", "annotator", "time"):
                draft.save(f"answers/{part}", getattr(answers, part).numpy())


@dataclass
class _Importer:
    """Reads the files of an import; the fields are the arguments of `import_dataset`."""

    path: Path
    labels: Path | None
    classes: Path | None
    test: Path | None
    test_labels: Path | None
    size: int
    fit: str
    meaning: Meaning
    draft: cache.Draft
    problems: Problems = field(default_factory=Problems)
    examples: int = 0
    features: tuple[str, ...] | None = None  # names of the columns of vectors

    def read(self) -> tuple[tuple[str, ...], list[_Part]]:
        """Read the examples and their labels -> (class names, splits)."""
        train = self._open("train", self.path)
        if self.labels is not None or self.path.suffix.lower() == ".parquet":
            source = self.labels or self.path
            table = read_answers(source, self.meaning)
            classes = self._class_names(table, source)
            matched = match(train.keys, table, classes, self.problems, "train examples")
            _log_counts(matched)
        elif isinstance(train, ExampleFile) and "train/votes" in train.arrays:
            classes, matched = self._match_votes(train)
            _log_counts(matched)
        elif isinstance(train, ExampleFile) and train.has_labels:
            classes, excluded, truth = train.labels(read_classes(self.classes) if self.classes else None)
            matched = Matched(np.arange(len(train.keys)), excluded, truth)
        else:
            raise UserError(f"{self.path} has no labels; give a table with an answer for each example.", "labels")
        parts = [self._read("train", train, matched)]
        self._warn_about_labels(matched.excluded, classes)
        if self.test is not None:
            test = self._open("test", self.test)
            rows = match(test.keys, self._true_classes(test), classes, self.problems, "test examples")
            parts.append(self._read("test", test, rows))
        elif isinstance(train, ExampleFile) and "test/inputs" in train.arrays:
            inputs, truth = train.arrays["test/inputs"], train.arrays["test/truth"].astype(np.int64)
            test = ExampleFile(self.path, {"train/inputs": inputs}, [str(i) for i in range(len(truth))])
            parts.append(self._read("test", test, Matched(np.arange(len(truth)), None, truth)))
        return classes, parts

    def _match_votes(self, train: ExampleFile) -> tuple[tuple[str, ...], Matched]:
        """The labels that the rules in an ``.npz`` file give -> (class names, matched examples)."""
        arrays = train.arrays
        if "negative" not in arrays:
            raise UserError(
                f"{self.path} has votes, but no array negative that says which rules mean 'not' (1) or 'is'."
            )
        votes, truth = arrays["train/votes"], arrays.get("train/truth")
        if len(votes) != len(train.keys):
            raise UserError(f"{self.path}: {len(train.keys)} train inputs but {len(votes)} votes; they must match.")
        names = arrays.get("classes", np.arange(int(votes.max(initial=0)) + 1))
        classes = read_classes(self.classes) if self.classes else tuple(map(str, names.tolist()))
        found = rule_labels(
            votes, len(classes), arrays["negative"].astype(bool), arrays.get("rules", np.array(())).tolist()
        )
        index = found.index.numpy()
        for i in np.setdiff1d(np.arange(len(votes)), index).tolist():
            self.problems.add("train examples without a usable vote", train.keys[i], "note")
        true = None if truth is None else truth[index].astype(np.int64)
        counts = {"answers": len(found.answers)}
        return classes, Matched(index, found.excluded.numpy(), true, found.answers, counts)

    def _class_names(self, table: AnswerTable, source: Path) -> tuple[str, ...]:
        """The given classes, or all names in the table but those that look misspelled."""
        if self.classes is not None:
            return read_classes(self.classes)
        names = table.class_names()
        if len(names) < 2:
            ignored = sum(answer.ignored for answer in table.answers)
            found = f"{'only ' if names else ''}{', '.join(names) or 'no class'}"
            found += f"; {ignored:,} of {_count(len(table.answers), 'answer')} are ignored" if ignored else ""
            raise UserError(f"{source} names {found}. At least two classes are needed.", "classes")
        misspelled = find_misspelled(table)
        if misspelled:
            shown = ", ".join(f"{name!r} (like {likely!r})" for name, likely in misspelled.items())
            log.warning("class names that look misspelled: %s. If they are right, list all classes in a file.", shown)
        return tuple(name for name in names if name not in misspelled)

    def _warn_about_labels(self, excluded: NDArray[np.uint8] | None, classes: tuple[str, ...]) -> None:
        """Warn if there are no complementary labels, or if some class is hardly ever excluded. excluded: [M, K]."""
        if excluded is None:
            log.warning("the labels are true classes only; a training draws complementary labels from them")
        elif (message := describe_rare_labels(torch.from_numpy(excluded), classes)) is not None:
            log.warning(message)

    def _open(self, split: str, path: Path) -> ExampleFile | _ImageFolder:
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            found: ExampleFile | _ImageFolder = read_example_file(path)
        else:
            files = find_images(path)
            found = _ImageFolder(path, files, [file.relative_to(path).as_posix() for file in files])
        log.info("%s: %s examples in %s", split, f"{len(found.keys):,}", path)
        self.examples += len(found.keys)
        return found

    def _true_classes(self, test: ExampleFile | _ImageFolder) -> AnswerTable:
        if self.test_labels is not None:
            table = read_answers(self.test_labels)
            if not table.has_truth:
                raise UserError(f"{self.test_labels} has no column truth, which test examples need.", "test_labels")
            return AnswerTable(table.answers, has_answers=False, has_truth=True)
        if not all("/" in key for key in test.keys):
            raise UserError(
                f"The test examples in {test.path} need their true classes: one subfolder per class, or test_labels.",
                "test_labels",
            )
        keys = [normalize_key(key) for key in test.keys]
        answers = [Answer(key, 0, truth=key.partition("/")[0]) for key in keys]
        return AnswerTable(answers, has_answers=False, has_truth=True)

    def _read(self, split: str, source: ExampleFile | _ImageFolder, matched: Matched) -> _Part:
        """The inputs of the matched examples; those that are not usable are marked and reported."""
        good, gray, features = np.ones(len(matched.index), bool), False, None
        keys: list[str] | None = [source.keys[i] for i in matched.index]
        if isinstance(source, _ImageFolder):
            shape = (max(1, len(good)), 3, self.size, self.size)
            images = self.draft.allocate(f"{split}/inputs", shape)
            inputs: Array = images
            files = [source.files[i] for i in matched.index]
            decoded = decode_into(images.transpose(0, 2, 3, 1), files, self.fit, f"decoding {split} images")
            good[list(decoded.failures)], gray = False, decoded.gray
            for i, reason in decoded.failures.items():
                kind = f"{split} images that cannot be decoded"
                self.problems.add(kind, f"{source.keys[matched.index[i]]}: {reason}", "left out")
            self._note_identical(split, images, good, [source.keys[i] for i in matched.index])
        else:
            inputs = _take(source.in_order(self.features), matched.index)
            features = self.features = source.features if self.features is None else self.features
            for start in range(0, len(inputs) if inputs.dtype.kind == "f" else 0, ROWS):
                part = inputs[start : start + ROWS]
                good[start : start + ROWS] = np.isfinite(part).all(tuple(range(1, part.ndim)))
            for i in np.flatnonzero(~good).tolist():
                self.problems.add(
                    f"{split} rows with a missing value, NaN or infinity", source.keys[matched.index[i]], "left out"
                )
            if source.keys == [str(i) for i in range(len(source.keys))]:
                keys = None
        return _Part(split, inputs, good, matched, keys, gray, features)

    def _note_identical(self, split: str, images: Array, good: NDArray[np.bool_], keys: list[str]) -> None:
        """Name the images that look exactly like an earlier one: they are kept, but are not independent."""
        first: dict[bytes, str] = {}
        for i in np.flatnonzero(good).tolist():
            digest = hashlib.blake2b(images[i].tobytes(), digest_size=16).digest()
            if (earlier := first.setdefault(digest, keys[i])) is not keys[i]:
                self.problems.add(f"{split} images that are identical to another one", f"{keys[i]}: {earlier}", "note")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _log_counts(matched: Matched) -> None:
    """Log how many answers there are and what happened to them."""
    counts = matched.counts
    if not counts.get("answers"):
        return
    text = f"{counts['answers']:,} answers about {len(matched.index):,} examples"
    if matched.answers is not None and matched.answers.annotators:
        text += f" by {_count(len(matched.answers.annotators), 'annotator')}"
    words = {
        "ignored": "ignored",
        "repeats": "repeated",
        "changed": "that change an earlier answer of the same annotator (the last one counts)",
        "contradictions": "examples with contradictory answers (majority decides)",
    }
    for key, what in words.items():
        if counts.get(key):
            text += f", {counts[key]:,} {what if counts[key] > 1 else what.replace('examples', 'example')}"
    log.info("%s", text)
