"""Bring the user's own pictures or vectors into the cache, whole or not at all."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from complementary.data import cache, drafts
from complementary.data.cache import Array, Stored
from complementary.data.dataset import Dataset
from complementary.data.drafts import Draft
from complementary.data.import_pictures import import_pictures
from complementary.data.import_vectors import import_vectors
from complementary.data.pictures import FITS
from complementary.data.problems import Problems
from complementary.data.progress import Say
from complementary.data.request import Import
from complementary.data.statistics import channel_moments, feature_moments
from complementary.data.store import to_dataset
from complementary.data.table import TABLE
from complementary.data.vectors import SUFFIXES
from complementary.errors import UserError, one_of

ON_SCREEN = 25  # problems of each kind; the report file has all of them


def run_import(request: Import, root: Path, say: Say) -> Dataset:
    """Import into the cache ``root``; either the whole set is there afterwards, or nothing has changed."""
    _check(request, root)
    problems = Problems()
    with drafts.lock(root, request.name, say), drafts.writing(root, request.name) as draft:
        _check(request, root)  # another process may have imported that name while this one waited
        is_table = request.path.suffix.lower() in SUFFIXES and request.path.is_file()
        classes = (import_vectors if is_table else import_pictures)(request, draft, problems, say)
        _settle(request, problems, say)
        facts = _facts(request, classes, draft)
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


def _settle(request: Import, problems: Problems, say: Say) -> None:
    """Tell all problems in one report; stop unless the user wants to go on without the bad examples."""
    if not len(problems):
        return
    path = request.report or Path(f"{request.name}-problems.txt")
    written = problems.write(path)
    say(problems.report(ON_SCREEN if written else None))
    where = f" (the whole list is in {path})" if written else ""
    if request.skip_bad:
        say(f"{len(problems):,} problems{where}; going on without those examples")
        return
    raise UserError(
        f"{request.path}: {len(problems):,} problems{where}, so nothing was imported. Mend them, or leave those "
        "examples out with --skip-bad."
    )


def _facts(request: Import, classes: tuple[str, ...], draft: Draft) -> dict[str, Any]:
    if "train/inputs" not in draft.facts:
        raise UserError(f"None of the examples of {request.path} can be used.")
    inputs = draft.get("train/inputs")
    moments: Callable[[Array], tuple[list[float], list[float]]]
    moments = channel_moments if inputs.dtype == np.uint8 else feature_moments
    mean, std = moments(inputs)
    return {
        "source": f"imported from {request.path.resolve()}",
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "base": None,
        "classes": list(classes),
        "mean": mean,
        "std": [value or 1.0 for value in std],
        "measured": {"mean": mean, "std": std},
        "flip": request.flip,
        "head": None,
    }
