from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from complementary import Config, data, labels
from complementary.data import cache
from complementary.errors import UserError
from complementary.training.task import build_task

CLASSES = ["cat", "dog", "ship"]


class Image:
    """Stands for the feature ``datasets.Image``."""


class ClassLabel:
    """Stands for the feature ``datasets.ClassLabel``."""

    def __init__(self, names):
        self.names, self.num_classes = names, len(names)


class HuggingFace:
    """What is used of a ``datasets.Dataset``."""

    def __init__(self, columns, features):
        self.columns, self.features, self.column_names = columns, features, list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]


class Pairs:
    """What torchvision's ImageFolder and Subset are: examples by number."""

    def __init__(self, pairs, **attributes):
        self.pairs = pairs
        vars(self).update(attributes)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def pixels(count=6, size=8):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


TRUTH = [0, 1, 2, 0, 1, 2]
NOT_Y = ["dog", "ship", "cat", "ship", "cat", "dog"]
EXCLUDED = labels.to_excluded(NOT_Y).tolist()


def hugging_face(**more):
    pictures = [Pillow.fromarray(each) for each in pixels()]
    features = {"img": Image(), "label": ClassLabel(CLASSES)} | {name: object() for name in more}
    return HuggingFace({"img": pictures, "label": TRUTH} | more, features)


def torchvision(kind):
    array = pixels()
    as_tensor = [
        (torch.from_numpy(each).permute(2, 0, 1).float() / 255, y) for each, y in zip(array, TRUTH, strict=True)
    ]
    as_picture = [(Pillow.fromarray(each), y) for each, y in zip(array, TRUTH, strict=True)]
    as_array = [(each, torch.tensor(y)) for each, y in zip(array, TRUTH, strict=True)]
    if kind == "subset":
        return Pairs(as_picture, dataset=SimpleNamespace(classes=CLASSES))
    return Pairs({"folder": as_picture, "tensors": as_tensor, "arrays": as_array}[kind], classes=CLASSES)


class Cifar(Pairs):
    def __init__(self):
        super().__init__([None] * 6, data=pixels(), targets=TRUTH, classes=CLASSES)


@pytest.mark.parametrize(
    "source",
    [hugging_face(), Cifar(), *(torchvision(kind) for kind in ("folder", "tensors", "arrays", "subset"))],
    ids=["hugging-face", "cifar", "folder", "tensors", "arrays", "subset"],
)
def test_from_dataset_reads_images_and_classes(source):
    dataset = data.from_dataset(source, NOT_Y, name="mine")
    assert dataset.classes == tuple(CLASSES)
    assert np.array_equal(dataset.train.inputs.permute(0, 2, 3, 1).numpy(), pixels())
    assert dataset.train.truth.tolist() == TRUTH
    assert dataset.train.excluded.tolist() == EXCLUDED


def test_from_dataset_reads_labels_from_columns():
    dataset = data.from_dataset(hugging_face(**{"not": NOT_Y, "file": list("abcdef")}))
    assert dataset.train.excluded.tolist() == EXCLUDED
    assert dataset.train.names.tolist() == list("abcdef")
    numbered = hugging_face(wrong=[{1}, {2}, {0}, {2}, {0}, {1}])
    assert data.from_dataset(numbered, "wrong").train.excluded.tolist() == EXCLUDED
    named = HuggingFace({"embedding": np.eye(6).tolist(), "not": NOT_Y}, {"embedding": object(), "not": object()})
    dataset = data.from_dataset(named)
    assert dataset.train.inputs.dtype == torch.float32
    assert dataset.train.truth is None


def test_from_dataset_scales_images_on_request():
    pictures = [(Pillow.new("RGB", (20 + i, 10), (i, 2 * i, 0)), i % 2) for i in range(4)]
    with pytest.raises(UserError, match="20x10") as caught:
        data.from_dataset(pictures)
    assert caught.value.option == "size"
    assert data.from_dataset(pictures, size=8).train.inputs.shape == (4, 3, 8, 8)
    gray = [(Pillow.new("L", (9, 9), 50 * i), i % 2) for i in range(4)]
    assert data.from_dataset(gray).train.inputs.shape == (4, 1, 9, 9)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (hugging_face(), {"not_y": "nope"}, "no column 'nope'.*img, label"),
        (HuggingFace({"text": ["a"]}, {"text": object()}), {}, "columns are text"),
        (SimpleNamespace(column_names={"train": ["a"]}), {}, r"splits train.*dataset\['train'\]"),
        (hugging_face(), {"not_y": NOT_Y[:3]}, "6 examples but 3 labels"),
        (hugging_face(), {"not_y": ["cow"] * 6}, "'cow'"),
        (Pairs([]), {}, "empty"),
        (Pairs([1, 2]), {}, "pairs"),
        (Pairs([(np.zeros(3), None)] * 2), {}, "no labels"),
        (Pairs([(np.zeros(3), 0), (np.zeros(4), 1)]), {}, r"\[3\] and \[4\]"),
        (Pairs([(np.full((4, 4, 3), -1.0), 0)] * 2), {}, "normalization"),
        (Pairs([(np.zeros(3), 0.5)] * 2), {}, "true classes"),
        (Pairs([(np.zeros(3), "a"), (np.zeros(3), "b")]), {"classes": ["a", "c"]}, "'b'"),
        (7, {}, "int is not a dataset"),
        (Cifar(), {"not_y": "not"}, "no columns"),
    ],
)
def test_from_dataset_refuses_bad_input(source, options, message):
    with pytest.raises(UserError, match=message):
        data.from_dataset(source, **options)


def test_saved_dataset_is_loaded_by_name(own_cache):
    dataset = data.from_dataset(Cifar(), NOT_Y)
    data.save(dataset, "mine")
    loaded = data.load("mine")
    assert torch.equal(loaded.train.inputs, dataset.train.inputs)
    assert torch.equal(loaded.train.excluded, dataset.train.excluded)
    assert (loaded.classes, loaded.mean, loaded.std) == (dataset.classes, dataset.mean, dataset.std)
    cache.verify(cache.read(own_cache, "mine"))
    with pytest.raises(UserError, match="already"):
        data.save(dataset, "mine")
    with pytest.raises(UserError, match="known dataset"):
        data.save(dataset, "mnist")
    data.save(dataset, "mine", replace=True)
    options = {"epochs": 1, "batch": 2, "mix": "none", "holdout": 0.0}
    assert build_task(Config.of(data="mine", **options)).inputs.shape == (6, 3, 8, 8)
