"""Import examples that lie in one file: vectors, or images in an ``.npz``."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary.data.assemble import multi_hot
from complementary.data.cache import Array
from complementary.data.drafts import Draft
from complementary.data.import_pictures import test_table
from complementary.data.labels_csv import read_classes, read_labels
from complementary.data.matching import Matched, match
from complementary.data.problems import Problems
from complementary.data.progress import Say
from complementary.data.request import Import, class_names, put_labels
from complementary.data.vectors import Vectors, read_vectors
from complementary.errors import UserError


def import_vectors(request: Import, draft: Draft, problems: Problems, say: Say) -> tuple[str, ...]:
    """Write the examples of ``request`` to ``draft``; returns the class names."""
    train = read_vectors(request.path)
    say(f"train: {len(train.keys):,} examples in {request.path}")
    if request.labels is not None:
        table = read_labels(request.labels, say)
        classes = class_names(request, table)
        matched = match(train.keys, table, classes, problems, "train rows")
    else:
        classes, matched = own_labels(train, request.path, request.classes)
    _put(draft, "train", train, matched, problems)
    if request.test is not None:
        if request.test_labels is None:
            raise UserError(f"The test examples in {request.test} need their truth: name a CSV with --test-labels.")
        test = read_vectors(request.test)
        rows = match(test.keys, test_table(request.test_labels, request.test, say), classes, problems, "test rows")
        _put(draft, "test", test, rows, problems)
    elif "test/inputs" in train.arrays and "test/truth" in train.arrays:
        _put(draft, "test", *_own_test(train), problems)
    return classes


def own_labels(train: Vectors, path: Path, classes_file: Path | None = None) -> tuple[tuple[str, ...], Matched]:
    """The labels that an ``.npz`` itself holds, and its class names (numbers where it gives none)."""
    arrays = train.arrays
    truth, excluded, labels = (arrays.get(key) for key in ("train/truth", "train/excluded", "labels"))
    if truth is None and excluded is None and labels is None:
        raise UserError(f"{path} holds no labels of its own; name a CSV with --labels.")
    _check_lengths(train, path)
    highest = [int(a.max()) + 1 for a in (truth, labels) if a is not None and a.size]
    count = excluded.shape[1] if excluded is not None else max(highest)
    names = arrays["classes"].tolist() if "classes" in arrays else [str(k) for k in range(count)]
    classes = read_classes(classes_file) if classes_file else tuple(str(name) for name in names)
    if labels is not None and excluded is None:
        excluded = multi_hot(np.atleast_2d(labels.T).T.astype(np.int64), len(classes), str(path))
    index = np.arange(len(arrays["train/inputs"]))
    return classes, Matched(index, _as(excluded, np.uint8), _as(truth, np.int64))


def _check_lengths(train: Vectors, path: Path) -> None:
    count = len(train.arrays["train/inputs"])
    words = {"train/truth": "true labels", "train/excluded": "complementary labels", "labels": "complementary labels"}
    for key, what in words.items():
        labels = train.arrays.get(key)
        found = count if labels is None else len(np.atleast_1d(labels))
        if found != count:
            raise UserError(f"{path}: {count} examples but {found} {what}; they must match.")
    excluded = train.arrays.get("train/excluded")
    if excluded is not None and excluded.ndim != 2:
        raise UserError(
            f"{path}: excluded is {list(excluded.shape)}; wanted 0/1 [N, K] (class numbers: complementary)."
        )


def _own_test(train: Vectors) -> tuple[Vectors, Matched]:
    inputs, truth = train.arrays["test/inputs"], train.arrays["test/truth"].astype(np.int64)
    index = np.arange(len(inputs))
    return Vectors({"train/inputs": inputs}, [str(i) for i in index]), Matched(index, None, truth)


def _as(array: Array | None, dtype: type[Any]) -> NDArray[Any] | None:
    return None if array is None else array.astype(dtype)


def _put(draft: Draft, split: str, given: Vectors, matched: Matched, problems: Problems) -> None:
    inputs = given.arrays["train/inputs"][matched.index]
    good: NDArray[np.bool_] = np.ones(len(inputs), bool)
    if inputs.ndim == 2:
        good = np.asarray(np.isfinite(inputs.astype(np.float32)).all(1))
    for i in np.flatnonzero(~good):
        problems.add(f"{split} rows with NaN or infinity", given.keys[int(matched.index[i])])
    if good.any():
        draft.put(f"{split}/inputs", inputs[good])
        put_labels(draft, split, matched.keep(good))
