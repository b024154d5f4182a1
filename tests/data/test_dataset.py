import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from complementary.data import Dataset, Split
from complementary.data.dataset import moments
from complementary.errors import UserError

IMAGES = torch.zeros(4, 1, 5, 5, dtype=torch.uint8)
VECTORS = torch.zeros(4, 3)
TRUTH = torch.tensor([0, 1, 0, 1])


def dataset(train, test=None):
    return Dataset("x", train, test, ("a", "b"), (0.5,), (0.5,))


@pytest.mark.parametrize("inputs", [IMAGES, VECTORS])
def test_sound_sets_pass(inputs):
    made = dataset(Split(inputs, TRUTH, torch.eye(2, dtype=torch.uint8)[TRUTH]), Split(inputs, TRUTH))
    assert len(made.train) == 4


def test_take_keeps_labels_together():
    part = Split(IMAGES, TRUTH, torch.eye(2, dtype=torch.uint8)[TRUTH]).take(torch.tensor([1, 2]))
    assert (len(part), part.truth.tolist(), part.excluded.tolist()) == (2, [1, 0], [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (Split(IMAGES.float()), r"x \(train\): inputs must be images uint8 .* found float32 \[4, 1, 5, 5\]"),
        (Split(IMAGES[:0]), "holds no examples"),
        (Split(VECTORS.fill_(1).index_fill(0, torch.tensor([2]), torch.nan)), "example 2 holds NaN"),
        (Split(torch.zeros(4, 0)), r"holds no examples: its inputs are \[4, 0\]"),
        (Split(IMAGES, TRUTH[:, None]), r"true labels have shape \[4, 1\], wanted \[N\]"),
        (Split(IMAGES, TRUTH[:3]), "4 examples but 3 true labels"),
        (Split(IMAGES, TRUTH + 1), "a true label is 2"),
        (Split(IMAGES, None, torch.ones(4, 3, dtype=torch.uint8)), r"shape \[4, 3\], wanted \[N, 2\]"),
        (Split(IMAGES, None, torch.ones(4, 2, dtype=torch.uint8)), "excludes every class"),
    ],
)
def test_unsound_sets_are_refused(split, sentence):
    with pytest.raises(UserError, match=sentence):
        dataset(split)


def test_the_test_split_is_checked_too():
    with pytest.raises(UserError, match=r"x \(test\)"):
        dataset(Split(IMAGES), Split(IMAGES, TRUTH + 5))


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=4, max_dims=4, max_side=4)))
def test_images(images):
    mean, std = moments(images)
    assert np.allclose(mean, (images / 255).mean((0, 2, 3)), atol=1e-6)
    varies = np.ptp(images, (0, 2, 3)) > 0
    assert np.allclose(std, np.where(varies, (images / 255).std((0, 2, 3)), 1), atol=1e-5)


def test_vectors_and_constant_features():
    mean, std = moments(np.array([[1, 5], [3, 5]], np.float32))
    assert mean == [2, 5]
    assert std == [1, 1]


@pytest.mark.parametrize("scale", [1e-9, 1, 1e9])
def test_features_of_any_scale_keep_their_deviation(scale):
    values = (np.array([[1.0], [2], [4]]) * scale).astype(np.float32)
    mean, std = moments(values)
    assert mean == pytest.approx([7 / 3 * scale], rel=1e-6)
    assert std == pytest.approx([np.std([1, 2, 4]) * scale], rel=1e-6)


def test_train_and_test_must_have_one_shape():
    with pytest.raises(UserError, match=r"test examples are \[2\], but train examples are \[3\]"):
        dataset(Split(VECTORS), Split(torch.zeros(4, 2), TRUTH))
