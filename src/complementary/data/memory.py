"""Datasets of other libraries that are in memory: Hugging Face ``datasets``, torchvision, any list of (image, class).

Nothing is imported from these libraries: an object is used if it has the attributes that theirs have.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from complementary import labels
from complementary.data import cache
from complementary.data.answers import NOT_COLUMNS
from complementary.data.arrays import KEY_COLUMNS
from complementary.data.dataset import Dataset, Split, as_inputs
from complementary.data.images import GRAY_TOLERANCE, to_square
from complementary.data.loading import to_dataset, user_moments
from complementary.data.registry import REGISTRY
from complementary.errors import UserError

IMAGE_COLUMNS = ("image", "img", "picture", "photo")
VECTOR_COLUMNS = ("embedding", "embeddings", "features", "vector", "x")
TRUTH_COLUMNS = ("label", "labels", "fine_label", "truth", "y")


def from_dataset(
    source: Any,
    not_y: object = None,
    *,
    inputs: str | None = None,
    truth: str | None = None,
    classes: Sequence[Hashable] | None = None,
    size: int | None = None,
    fit: str = "crop",
    flip: bool = True,
    name: str = "dataset",
) -> Dataset:
    """Convert a dataset of Hugging Face ``datasets`` or torchvision, or a list of (image, class) pairs.

    Args:
        source: A ``datasets.Dataset`` (one split), a dataset of torchvision without transforms, or any sequence of
            pairs of an image (Pillow, uint8 array, or float tensor from 0 to 1) or vector and its true class.
        not_y: The complementary labels, in any form of `labels.encode`, or the name of a column; None: a column called
            not, complementary ..., else no labels but the true ones.
        inputs: Column of the images or vectors; None: image, img, embedding ...
        truth: Column of the true classes, for evaluation only; None: label, if there is one.
        classes: Names of the classes; None: those that the source or the labels give.
        size: Images become squares of this many pixels; None: they must all have the same size.
        fit: "crop" crops the center square, "stretch" ignores the aspect ratio.
        flip: Whether a horizontal flip keeps the class of an image.
        name: Name of the dataset.

    Returns:
        The dataset: ``complementary.run(config, dataset=...)`` trains on it, and `save` puts it into the cache.

    Example:
        >>> import numpy as np
        >>> from complementary import data
        >>> pairs = [(np.full((4, 4, 3), [i, 0, 9], np.uint8), i % 3) for i in range(6)]
        >>> found = data.from_dataset(pairs, not_y=["dog", "ship", "cat"] * 2)
        >>> found.classes, tuple(found.train.inputs.shape)
        (('cat', 'dog', 'ship'), (6, 3, 4, 4))
    """
    if hasattr(source, "column_names"):
        found = _from_columns(source, not_y, inputs, truth)
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        found = _from_pairs(source)
        if isinstance(not_y, str):
            raise UserError(f"not_y is {not_y!r}, but the dataset has no columns; pass the labels themselves.")
    else:
        raise UserError(f"{type(source).__name__} is not a dataset: it needs a length and examples by number.")
    if not_y is None or isinstance(not_y, str):
        not_y = found.get("not_y")
    known = classes if classes is not None else found.get("classes")
    images = _stack(found["inputs"], size, fit)
    count, true = len(images), found.get("truth")
    excluded: torch.Tensor | None = None
    if not_y is not None:
        excluded, names = labels.encode(not_y, known)
        if len(excluded) != count:
            raise UserError(f"There are {count} examples but {len(excluded)} labels in not_y; they must match.")
        known = names
    elif true is None:
        raise UserError("The dataset has no labels; pass the classes that the examples are not as not_y.")
    numbers = None
    if true is not None:
        numbers, known = _numbers(true, known)
    shown = tuple(map(str, known or ()))
    tensor = as_inputs(images, "The dataset")
    truth_tensor = None if numbers is None else torch.from_numpy(numbers)
    keys = found.get("names")
    split = Split(tensor, truth_tensor, excluded, None if keys is None else np.array(keys, "U"))
    return Dataset(name, split, None, shown, *user_moments(tensor.numpy()), flip)


def save(dataset: Dataset, name: str, *, replace: bool = False, root: Path | None = None) -> Dataset:
    """Put a dataset into the cache, so that ``load(name)`` and the command line find it.

    Args:
        dataset: The dataset.
        name: Its name there.
        replace: Replace an imported dataset of this name.
        root: The cache folder; by default $COMPLEMENTARY_CACHE or ~/.cache/complementary.

    Returns:
        The dataset as stored.
    """
    root = cache.cache_root(root)
    if name in REGISTRY:
        raise UserError(f"{name} is the name of a known dataset; choose another name.")
    if cache.read_manifest(root, name) is not None and not replace:
        raise UserError(f"The cache already contains a dataset {name}; choose another name, or replace it.", "replace")
    with cache.lock(root, name), cache.write(root, name) as draft:
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            for kind in ("inputs", "truth", "excluded", "names") if split is not None else ():
                array = getattr(split, kind)
                if array is not None:
                    draft.save(f"{part}/{kind}", np.asarray(array))
        for kind in ("example", "excluded", "annotator", "time") if dataset.answers is not None else ():
            draft.save(f"answers/{kind}", getattr(dataset.answers, kind).numpy())
        facts = {key: getattr(dataset, key) for key in ("classes", "mean", "std", "flip", "head")}
        annotators = () if dataset.answers is None else dataset.answers.annotators
        draft.manifest = {"name": name, "source": "saved from Python", "base": None, "annotators": annotators, **facts}
        return to_dataset(cache.Stored(draft.manifest, draft.arrays()))


# --- Hugging Face datasets -----------------------------------------------------------------------


def _from_columns(source: Any, not_y: object, inputs: str | None, truth: str | None) -> dict[str, Any]:
    """The columns of a dataset of Hugging Face: inputs, not_y, truth and classes, as far as there are any."""
    if isinstance(source.column_names, dict):
        splits = ", ".join(source.column_names)
        raise UserError(f"The dataset has the splits {splits}; choose one, such as dataset['train'].")
    columns = list(source.column_names)

    def column(given: str | None, usual: Sequence[str], what: str) -> str | None:
        if given is not None and given not in columns:
            raise UserError(f"There is no column {given!r} for the {what}; the columns are {', '.join(columns)}.")
        return given or next((name for name in usual if name in columns), None)

    images = [name for name in columns if type(source.features[name]).__name__ == "Image"]
    place = column(inputs, [*images, *IMAGE_COLUMNS, *VECTOR_COLUMNS], "inputs")
    if place is None:
        raise UserError(f"The columns are {', '.join(columns)}; say which contains the images or vectors with inputs.")
    nots = [name for name in columns if NOT_COLUMNS.fullmatch(name.lower())]
    label = column(not_y if isinstance(not_y, str) else None, nots if not_y is None else (), "labels")
    true = column(truth, TRUTH_COLUMNS, "true classes")
    key = next((name for name in KEY_COLUMNS if name in columns and name not in (place, label, true)), None)
    found = {"inputs": source[place]}
    found |= {"not_y": list(source[label])} if label is not None else {}
    found |= {"truth": list(source[true])} if true is not None and true != label else {}
    found |= {"names": list(map(str, source[key]))} if key is not None else {}
    names = [_class_names(source.features[name]) for name in (label, true) if name is not None]
    return found | next(({"classes": each} for each in names if each), {})


def _class_names(feature: Any) -> list[str] | None:
    """The names of a ClassLabel, or of a list of them."""
    names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    return None if names is None else list(names)


# --- torchvision and lists of pairs --------------------------------------------------------------


def _from_pairs(source: Any) -> dict[str, Any]:
    """Inputs, truth and classes of a dataset of torchvision, or of any sequence of pairs."""
    names = getattr(source, "classes", None) or getattr(getattr(source, "dataset", None), "classes", None)
    found: dict[str, Any] = {} if names is None else {"classes": list(names)}
    pixels, targets = getattr(source, "data", None), getattr(source, "targets", getattr(source, "labels", None))
    is_array = isinstance(pixels, np.ndarray | torch.Tensor) and str(pixels.dtype).endswith("uint8")
    if is_array and pixels is not None and len(pixels) == len(source) and targets is not None:
        return found | {"inputs": np.asarray(pixels), "truth": np.asarray(targets).tolist()}
    if not len(source):
        raise UserError("The dataset is empty; it needs at least one example.")
    pairs = [source[i] for i in range(len(source))]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise UserError(f"The first example is {type(pairs[0]).__name__}; expected pairs of an image and its class.")
    truth = [pair[1].item() if hasattr(pair[1], "item") else pair[1] for pair in pairs]
    known = {} if any(label is None for label in truth) else {"truth": truth}
    return found | {"inputs": [pair[0] for pair in pairs]} | known


# --- inputs and true classes ---------------------------------------------------------------------


def _stack(inputs: Any, size: int | None, fit: str) -> NDArray[Any]:
    """Images or vectors of any kind as one array [N, ...]."""
    if isinstance(inputs, np.ndarray) and size is None:
        return inputs
    rows = [_array(each, size, fit) for each in inputs]
    if not rows:
        raise UserError("The dataset is empty; it needs at least one example.")
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        few = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise UserError(f"The examples have different shapes, such as {few}; give the size of the images.", "size")
    stacked = np.stack(rows)
    if stacked.ndim == 4 and stacked.shape[3] == 3 and int(np.ptp(stacked, axis=3).max()) <= GRAY_TOLERANCE:
        return np.ascontiguousarray(stacked[..., :1])
    return stacked


def _array(each: Any, size: int | None, fit: str) -> NDArray[Any]:
    if hasattr(each, "convert"):  # an image of Pillow
        if size is None:
            size = each.size[0]
            if each.size[0] != each.size[1]:
                raise UserError(
                    f"An image has {each.size[0]}x{each.size[1]} pixels; give the size of the images.", "size"
                )
        return to_square(each, size, fit)
    array = np.asarray(each)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim in (2, 3) and array.dtype.kind == "f":  # what torchvision's ToTensor makes
        if array.min() < 0 or array.max() > 1:
            raise UserError("An image has values outside of 0 to 1; leave out the normalization.")
        array = np.rint(array * 255).astype(np.uint8)
    return array


def _numbers(
    truth: Sequence[Any], classes: Sequence[Hashable] | None
) -> tuple[NDArray[np.int64], tuple[Hashable, ...]]:
    """True classes by name or number -> numbers int64 [N], and the classes."""
    if all(isinstance(label, str) for label in truth):
        known = tuple(sorted(set(truth))) if classes is None else tuple(classes)
        place = {name: k for k, name in enumerate(known)}
        for label in truth:
            if label not in place:
                raise UserError(f"True classes: {labels.unknown_class(label, known)}", "classes")
        return np.array([place[label] for label in truth], np.int64), known
    numbers = np.asarray(truth)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UserError(f"The true classes have type {numbers.dtype}; expected names or numbers, [N].")
    return numbers.astype(np.int64), tuple(range(int(numbers.max()) + 1)) if classes is None else tuple(classes)
