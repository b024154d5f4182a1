import pytest
import torch

from complementary.data import Dataset, Split
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
