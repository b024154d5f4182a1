import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from complementary.data import Answers, Dataset, Split, as_inputs, moments
from complementary.errors import UserError

IMAGES = torch.zeros(4, 1, 5, 5, dtype=torch.uint8)
VECTORS = torch.zeros(4, 3)
TRUTH = torch.tensor([0, 1, 0, 1])


def dataset(train, test=None):
    return Dataset("x", train, test, ("a", "b"), (0.5,), (0.5,))


@pytest.mark.parametrize("inputs", [IMAGES, VECTORS])
def test_dataset_accepts_images_and_vectors(inputs):
    made = dataset(Split(inputs, TRUTH, torch.eye(2, dtype=torch.uint8)[TRUTH]), Split(inputs, TRUTH))
    assert len(made.train) == 4


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split(IMAGES.float()), r"x \(train\).* found float32 \[4, 1, 5, 5\]"),
        (Split(IMAGES[:0]), "no examples"),
        (Split(VECTORS.fill_(1).index_fill(0, torch.tensor([2]), torch.nan)), "example 2 .*NaN"),
        (Split(torch.zeros(4, 0)), r"no examples.* \[4, 0\]"),
        (Split(IMAGES, TRUTH[:, None]), r"true labels .*\[4, 1\], expected \[N\]"),
        (Split(IMAGES, TRUTH[:3]), "4 examples but 3 true labels"),
        (Split(IMAGES, TRUTH + 1), "a true label is 2"),
        (Split(IMAGES, None, torch.ones(4, 3, dtype=torch.uint8)), r"\[4, 3\], expected \[N, 2\]"),
        (Split(IMAGES, None, torch.ones(4, 2, dtype=torch.uint8)), "excludes every class"),
    ],
)
def test_dataset_refuses_invalid_splits(split, message):
    with pytest.raises(UserError, match=message):
        dataset(split)


def test_dataset_checks_the_test_split():
    with pytest.raises(UserError, match=r"x \(test\)"):
        dataset(Split(IMAGES), Split(IMAGES, TRUTH + 5))


def test_dataset_refuses_splits_of_different_shapes():
    with pytest.raises(UserError, match=r"\[2\], but train examples \[3\]"):
        dataset(Split(VECTORS), Split(torch.zeros(4, 2), TRUTH))


def test_split_take_selects_inputs_and_labels():
    part = Split(IMAGES, TRUTH, torch.eye(2, dtype=torch.uint8)[TRUTH]).take(torch.tensor([1, 2]))
    assert (len(part), part.truth.tolist(), part.excluded.tolist()) == (2, [1, 0], [[0, 1], [1, 0]])


# --- as_inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 6), (5, 1, 8, 6)),
        ((5, 8, 6, 3), (5, 3, 8, 6)),
        ((5, 3, 8, 6), (5, 3, 8, 6)),
        ((5, 8, 6, 1), (5, 1, 8, 6)),
    ],
)
def test_as_inputs_accepts_images_in_every_layout(shape, expected):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    inputs = as_inputs(array)
    assert tuple(inputs.shape) == expected
    assert inputs.is_contiguous()
    assert sorted(inputs.flatten().tolist()) == sorted(array.ravel().tolist())


@pytest.mark.parametrize("shape", [(5, 8, 6, 4), (5, 12, 8, 8)])
def test_as_inputs_refuses_other_numbers_of_channels(shape):
    with pytest.raises(UserError, match="1 or 3 channels"):
        as_inputs(np.zeros(shape, np.uint8))


@settings(deadline=None)
@given(st.sampled_from([np.float64, np.int16, np.uint8, np.float32, bool, object]))
def test_as_inputs_converts_vectors_to_float32(dtype):
    assert as_inputs(np.ones((4, 3), dtype)).dtype == torch.float32


@pytest.mark.parametrize("array", [np.zeros((2, 3, 4), np.float32), np.zeros(3), np.array([["a"]])])
def test_as_inputs_refuses_other_arrays(array):
    with pytest.raises(UserError, match=r"mine has type .*uint8"):
        as_inputs(array, "mine")


def test_as_inputs_refuses_objects_that_are_no_numbers():
    with pytest.raises(UserError, match="not numbers"):
        as_inputs(np.array([["a", 1]], object))


@pytest.mark.parametrize(("offset", "warned"), [(0, False), (1e5, False), (1e9, True)])
def test_as_inputs_warns_if_differences_are_lost_in_float32(offset, warned, caplog):
    values = np.arange(12.0).reshape(4, 3) + np.array([0, offset, 0])
    as_inputs(values)
    assert ("1 of 3 features have large values that differ little (feature 1: up to 1e+09" in caplog.text) == warned


def test_as_inputs_does_not_copy_and_accepts_read_only_arrays():
    images, vectors = np.zeros((2, 3, 4, 4), np.uint8), np.zeros((2, 3), np.float32)
    for array in (images, vectors):
        array.flags.writeable = False
        assert np.shares_memory(as_inputs(array).numpy(), array)


# --- moments -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=4, max_dims=4, max_side=4)))
def test_moments_of_images_match_numpy(images):
    mean, std = moments(images)
    assert np.allclose(mean, (images / 255).mean((0, 2, 3)), atol=1e-12)
    varies = np.ptp(images, (0, 2, 3)) > 0
    assert np.allclose(std, np.where(varies, (images / 255).std((0, 2, 3)), 1), atol=1e-12)
    assert moments(torch.from_numpy(images)) == (mean, std)


def test_moments_of_constant_features_have_deviation_one():
    assert moments(np.array([[1, 5], [3, 5]], np.float32)) == ((2, 5), (1, 1))


def test_moments_of_many_vectors_are_computed_in_parts(monkeypatch):
    vectors = np.random.default_rng(0).normal(5, 3, (30_000, 90)).astype(np.float32)
    vectors[:, 7] = 0.1
    whole = moments(vectors)
    monkeypatch.setattr("complementary.data.dataset.MANY_VALUES", 1)
    parts = moments(vectors)
    assert np.allclose(parts, whole, rtol=1e-12)
    assert parts[1][7] == 1


@pytest.mark.parametrize("scale", [1e-9, 1, 1e9])
def test_moments_of_features_at_any_scale(scale):
    mean, std = moments((np.array([[1.0], [2], [4]]) * scale).astype(np.float32))
    assert mean == pytest.approx([7 / 3 * scale], rel=1e-6)
    assert std == pytest.approx([np.std([1, 2, 4]) * scale], rel=1e-6)


def answers(**changes):
    parts = {"example": torch.tensor([0, 3]), "excluded": torch.eye(2, dtype=torch.uint8)}
    parts |= {"annotator": torch.tensor([0, -1]), "time": torch.zeros(2), "annotators": ("ann",)}
    return Answers(**parts | changes)


def test_answers_of_a_dataset_are_checked():
    split, facts = Split(VECTORS, TRUTH), (None, ("a", "b"), (0.5,), (0.5,))
    assert Dataset("x", split, *facts, answers=answers()).answers.annotator_names() == ["ann", ""]
    for bad, message in (
        ({"example": torch.tensor([0, 4])}, "number 4.*only 4"),
        ({"annotator": torch.tensor([0, 1])}, "number 1.*only 1"),
        ({"excluded": torch.zeros(2, 3)}, r"\[2, 3\]"),
        ({"time": torch.zeros(3)}, r"\[3\]"),
    ):
        with pytest.raises(UserError, match=message):
            Dataset("x", split, *facts, answers=answers(**bad))


def test_answers_can_be_taken_for_some_examples_or_none():
    assert answers().take(torch.tensor([3, 1])).example.tolist() == [0]
    assert len(answers().take(torch.tensor([], dtype=torch.int64))) == 0
    names = Split(VECTORS, TRUTH, names=np.array(list("abcd"))).take(torch.tensor([2, 0])).names
    assert names.tolist() == ["c", "a"]


@pytest.mark.parametrize("kind", [complex, str, bytes, "M8[s]", "text as objects", "complex as objects"])
def test_as_inputs_refuses_what_is_not_a_real_number(kind):
    """Numbers written as text, and complex numbers, would be converted without a word."""
    values = np.array([[1, 2], [3, 4]])
    if isinstance(kind, str) and kind.endswith("objects"):
        array = values.astype(str if "text" in kind else complex).astype(object)
    else:
        array = values.astype(kind)
    with pytest.raises(UserError):
        as_inputs(array)
    assert as_inputs(values.astype(object)).tolist() == values.tolist()
