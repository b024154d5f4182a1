import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data import load
from complementary.data.formats import as_inputs, as_whole, decode_npz, decode_npz_parts, multi_hot, read_table
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


@pytest.mark.parametrize("shape", [(5, 8, 6, 4), (5, 12, 8, 8)])
def test_images_with_other_channels_are_refused(shape):
    with pytest.raises(UserError, match="wanted images with 1 or 3 channels"):
        as_inputs(np.zeros(shape, np.uint8), "x")


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


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1))
def test_multi_hot_holds_each_distinct_label_once(rows):
    excluded = multi_hot(np.array(rows), 7, "x")
    assert [set(np.flatnonzero(row).tolist()) for row in excluded] == [set(row) for row in rows]
    assert excluded.max() == 1


def test_multi_hot_refuses_labels_out_of_range():
    with pytest.raises(UserError, match="labels run from 0 to 7; wanted 0 to 6"):
        multi_hot(np.array([[0], [7]]), 7, "x")


# --- files of examples ---------------------------------------------------------------------------


VALUES = np.array([[1.5, 2], [3, 4]], np.float32)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("1.5,2\n3,4\n", ["0", "1"]),
        ("width,height\n1.5,2\n3,4\n", ["0", "1"]),
        ("id,width,height\nx,1.5,2\n\ny,3,4\n", ["x", "y"]),
        ("id,0,1\nx,1.5,2\ny,3,4\n", ["x", "y"]),
        (",width,height\n0,1.5,2\n1,3,4\n", ["0", "1"]),
        ("1.5\t2\r\n3\t4\r\n", ["0", "1"]),
    ],
)
def test_csv(tmp_path, text, keys):
    (tmp_path / "a.csv").write_text(text)
    given = read_table(tmp_path / "a.csv")
    assert np.array_equal(given.arrays["train/inputs"], VALUES)
    assert given.arrays["train/inputs"].dtype == np.float32
    assert given.keys == keys


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1,2\n3\n", "line 2: wanted 2 numbers, found '3'"),
        ("1,2\n3,x\n", "line 2: wanted 2 numbers"),
        ("1,x\n3,4\n", "line 1: wanted 2 numbers, found '1,x'"),
        (",0,1\n0,3,4\n", "line 1: wanted 3 numbers"),
        ("", "is empty"),
        ("\ufeff", "is empty"),
    ],
)
def test_broken_csv(tmp_path, text, sentence):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_table(tmp_path / "a.csv")


def test_npy_and_npz(tmp_path):
    np.save(tmp_path / "a.npy", VALUES.astype(np.float64))
    np.savez(tmp_path / "b.npz", features=VALUES, names=["x", "y"])
    assert np.array_equal(read_table(tmp_path / "a.npy").arrays["train/inputs"], VALUES)
    assert read_table(tmp_path / "b.npz").keys == ["x", "y"]


def test_other_files(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"no")
    with pytest.raises(UserError, match="not an array of numbers"):
        read_table(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", truth=[1, 2])
    with pytest.raises(UserError, match="but no inputs"):
        read_table(tmp_path / "b.npz")
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path / "gone.npz")


def test_csv_that_is_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xe9,1\n")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_table(tmp_path / "a.csv")


def test_numbers_beyond_float32_become_infinity_without_a_warning(tmp_path):
    (tmp_path / "a.csv").write_text("1e300,1\n")
    assert np.isinf(read_table(tmp_path / "a.csv").arrays["train/inputs"][0, 0])


def test_a_folder_that_was_not_imported(tmp_path):
    with pytest.raises(UserError, match="was not imported yet; do so with: cll data import"):
        load(str(tmp_path))
