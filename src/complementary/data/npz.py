"""The ``.npz`` schema: one file of named arrays, for a whole set or for labels that go with one.

| part | names (the first found is taken) |
|---|---|
| train inputs: images uint8 [N,H,W], [N,H,W,C] or [N,C,H,W], or vectors [N,D] | inputs, train_inputs, train_images, \
x_train, images, features, x, X |
| train truth: whole numbers [N] | truth, train_truth, train_labels, y_train, y |
| complementary labels: 0/1 [N,K] | excluded, train_excluded |
| the same as class numbers [N] or [N,M], repeats allowed | complementary, train_complementary, not_y |
| names of the examples: text [N] | names, train_names |
| test inputs and test truth, as for train | test_inputs, test_images, x_test; test_truth, test_labels, y_test |
| class names: text [K] | classes |
"""

import io
import zipfile

import numpy as np
from numpy.typing import NDArray

from complementary.data.files import Files
from complementary.errors import UserError

NAMES: dict[str, tuple[str, ...]] = {
    "train/inputs": ("inputs", "train_inputs", "train_images", "x_train", "images", "features", "x", "X"),
    "train/truth": ("truth", "train_truth", "train_labels", "y_train", "y"),
    "train/excluded": ("excluded", "train_excluded"),
    "labels": ("complementary", "train_complementary", "not_y"),
    "names": ("names", "train_names"),
    "test/inputs": ("test_inputs", "test_images", "x_test"),
    "test/truth": ("test_truth", "test_labels", "y_test"),
    "classes": ("classes",),
}


def open_npz(content: bytes, name: str) -> dict[str, NDArray[np.generic]]:
    """All arrays of an ``.npz`` file, never unpickling anything; ``name`` is what errors call it."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as data:
            return {key: data[key] for key in data.files}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as problem:
        raise UserError(f"{name} cannot be read as .npz ({problem}). Save it with numpy.savez, no objects.") from None


def decode_npz(files: Files) -> dict[str, NDArray[np.generic]]:
    """The arrays of one ``.npz`` under the package's own names (the keys of `NAMES`), in their dtypes."""
    name, content = next(iter(files.items()))
    data = open_npz(content, name)
    arrays = {}
    for part, names in NAMES.items():
        key = next((n for n in names if n in data), None)
        if key is not None:
            arrays[part] = _shaped(part, data[key], f"{name}: {key}")
    if not arrays:
        found = ", ".join(data) or "nothing"
        raise UserError(f"{name} holds {found}; wanted at least inputs or complementary labels (see docs/data.md).")
    return arrays


def _shaped(part: str, array: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    kind = part.rpartition("/")[2]
    if kind == "inputs":
        return as_inputs(array, what)
    if kind in ("truth", "labels"):
        return as_whole(array, what)
    if kind in ("names", "classes"):
        return array.astype("U")
    return array.astype(np.uint8)


def as_inputs(array: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    """Images to uint8 [N, C, H, W] (from [N,H,W], [N,H,W,C] or [N,C,H,W]), vectors to float32 [N, D]."""
    if array.ndim == 2 and array.dtype.kind in "fiub":
        return array.astype(np.float32)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise UserError(
            f"{what} is {array.dtype} {list(array.shape)}; wanted images uint8 [N, H, W] or [N, H, W, C], "
            "or vectors of numbers [N, D]."
        )
    if array.ndim == 3:
        return array[:, None]
    return array.transpose(0, 3, 1, 2) if array.shape[3] in (1, 3) else array


def as_whole(array: NDArray[np.generic], what: str) -> NDArray[np.int64]:
    """Whole numbers in any dtype to int64; fractions, NaN and text are refused."""
    if array.dtype.kind not in "iubf":
        raise UserError(f"{what} is {array.dtype}; wanted whole numbers (class indices).")
    whole = np.where(np.isfinite(array.astype(np.float64)), array, -1).astype(np.int64)
    if not np.array_equal(whole, array):
        raise UserError(f"{what} holds fractions or NaN; wanted whole numbers (class indices).")
    return whole


def decode_npz_parts(files: Files) -> dict[str, NDArray[np.generic]]:
    """KMNIST's four official files, one array each: ``kmnist-train-imgs.npz``, ``kmnist-test-labels.npz`` ..."""
    arrays = {}
    for name, content in files.items():
        split = "train" if "train" in name else "test"
        part = f"{split}/inputs" if "imgs" in name else f"{split}/truth"
        arrays[part] = _shaped(part, next(iter(open_npz(content, name).values())), name)
    return arrays
