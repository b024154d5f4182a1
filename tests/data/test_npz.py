import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data.npz import as_inputs, as_whole, decode_npz, decode_npz_parts
from complementary.errors import UserError


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return {"x.npz": stream.getvalue()}


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((5, 8, 6), (5, 1, 8, 6)),
        ((5, 8, 6, 3), (5, 3, 8, 6)),
        ((5, 3, 8, 6), (5, 3, 8, 6)),
        ((5, 8, 6, 1), (5, 1, 8, 6)),
    ],
)
def test_images_in_every_layout(shape, wanted):
    assert as_inputs(np.zeros(shape, np.uint8), "x").shape == wanted


@given(st.sampled_from([np.float64, np.int16, np.uint8, np.float32, bool]))
def test_vectors_become_float32(dtype):
    assert as_inputs(np.ones((4, 3), dtype), "x").dtype == np.float32


@pytest.mark.parametrize("array", [np.zeros((2, 3, 4), np.float32), np.zeros(3), np.array([["a"]])])
def test_other_inputs_are_refused(array):
    with pytest.raises(UserError, match="wanted images uint8"):
        as_inputs(array, "x")


def test_names_of_others_are_understood():
    arrays = decode_npz(
        npz(x_train=np.zeros((2, 4, 4), np.uint8), y_train=[0, 1], x_test=np.zeros((1, 2)), y_test=[1.0])
    )
    assert {key: value.shape for key, value in arrays.items()} == {
        "train/inputs": (2, 1, 4, 4),
        "train/truth": (2,),
        "test/inputs": (1, 2),
        "test/truth": (1,),
    }


def test_objects_are_never_unpickled():
    with pytest.raises(UserError, match="no objects"):
        decode_npz(npz(inputs=np.array([{"a": 1}], dtype=object)))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken"])
def test_a_broken_file_is_one_sentence(content):
    with pytest.raises(UserError, match=r"x\.npz cannot be read as \.npz"):
        decode_npz({"x.npz": content})


def test_unknown_arrays_are_named():
    with pytest.raises(UserError, match="holds foo; wanted at least inputs"):
        decode_npz(npz(foo=np.zeros(2)))


@pytest.mark.parametrize("array", [np.array([0.5]), np.array([np.nan]), np.array(["a"])])
def test_labels_must_be_whole(array):
    with pytest.raises(UserError, match="wanted whole numbers"):
        as_whole(array, "x")


def test_the_official_files_of_kmnist():
    files = {}
    for split, count in (("train", 3), ("test", 2)):
        files[f"kmnist-{split}-imgs.npz"] = npz(arr_0=np.zeros((count, 4, 4), np.uint8))["x.npz"]
        files[f"kmnist-{split}-labels.npz"] = npz(arr_0=np.arange(count, dtype=np.uint8))["x.npz"]
    arrays = decode_npz_parts(files)
    assert arrays["train/inputs"].shape == (3, 1, 4, 4)
    assert arrays["test/truth"].tolist() == [0, 1]
