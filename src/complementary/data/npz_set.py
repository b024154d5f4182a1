"""An ``.npz`` of the user's as a dataset, without importing it first."""

from pathlib import Path

import numpy as np
import torch

from complementary.data.dataset import Dataset, Split
from complementary.data.import_vectors import own_labels
from complementary.data.statistics import channel_moments, feature_moments
from complementary.data.vectors import read_vectors
from complementary.errors import UserError


def npz_dataset(path: Path) -> Dataset:
    """Read ``path`` (see `npz` for the names of its arrays) into memory as a set named after the file."""
    given = read_vectors(path)
    classes, labels = own_labels(given, path)
    inputs = np.ascontiguousarray(given.arrays["train/inputs"])
    mean, std = (channel_moments if inputs.dtype == np.uint8 else feature_moments)(inputs)
    truth, excluded = (None if a is None else torch.from_numpy(a) for a in (labels.truth, labels.excluded))
    test = None
    if "test/inputs" in given.arrays:
        if "test/truth" not in given.arrays:
            raise UserError(f"{path} holds test inputs without test_truth; add it, or leave the test inputs out.")
        held = np.ascontiguousarray(given.arrays["test/inputs"])
        test = Split(torch.from_numpy(held), torch.from_numpy(given.arrays["test/truth"].astype(np.int64)))
    train = Split(torch.from_numpy(inputs), truth, excluded)
    return Dataset(path.stem, train, test, classes, tuple(mean), tuple(value or 1.0 for value in std))
