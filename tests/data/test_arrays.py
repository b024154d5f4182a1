import contextlib
import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data import arrays
from complementary.data.arrays import as_integers, decode_npz, multi_hot, read_example_file
from complementary.data.tables import stream_rows
from complementary.errors import UserError

VALUES = np.array([[1.5, 2], [3, 4]], np.float32)


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


# --- .npz ----------------------------------------------------------------------------------------


def test_npz_accepts_names_of_other_libraries():
    content = npz(x_train=np.zeros((2, 4, 4), np.uint8), y_train=[0, 1], x_test=np.zeros((1, 2)), y_test=[1.0])
    assert {key: value.shape for key, value in decode_npz(content, "x.npz").items()} == {
        "train/inputs": (2, 1, 4, 4),
        "train/truth": (2,),
        "test/inputs": (1, 2),
        "test/truth": (1,),
    }


def test_npz_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match=r"x\.npz does not exist; expected a file with arrays"):
        arrays.open_npz(tmp_path / "x.npz", "x.npz")


def test_npz_never_unpickles_objects():
    with pytest.raises(UserError, match="without objects"):
        decode_npz(npz(inputs=np.array([{"a": 1}], dtype=object)), "x.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken"])
def test_npz_that_is_damaged_is_refused(content):
    with pytest.raises(UserError, match=r"x\.npz .*cannot be read"):
        decode_npz(content, "x.npz")


def test_npz_larger_than_the_memory_is_refused(monkeypatch, tmp_path):
    """A compressed .npz of a few kilobytes can expand to gigabytes."""
    np.savez_compressed(tmp_path / "x.npz", inputs=np.zeros((1000, 1000)))
    monkeypatch.setattr(arrays, "available_memory", lambda: 7_000_000)
    with pytest.raises(UserError, match=r"expands to 8\.0 MB"):
        decode_npz(tmp_path / "x.npz", "x.npz")
    monkeypatch.setattr(arrays, "available_memory", lambda: 9_000_000)
    assert decode_npz(tmp_path / "x.npz", "x.npz")["train/inputs"].shape == (1000, 1000)


@pytest.mark.parametrize("position", [0, 30, 60, 100, 200, -60, -30, -1])
def test_npz_compressed_with_a_flipped_byte_is_a_value_or_a_user_error(position):
    stream = io.BytesIO()
    np.savez_compressed(stream, inputs=np.arange(20.0).reshape(10, 2))
    content = bytearray(stream.getvalue())
    content[position] ^= 0xFF
    with contextlib.suppress(UserError):
        decode_npz(bytes(content), "x.npz")


@pytest.mark.parametrize("name", ["y", "not_y"])
def test_npz_with_a_class_number_of_65535_is_refused(tmp_path, name):
    """In an unsigned 16-bit array this is -1; a matrix of that many classes would need 34 GB."""
    np.savez(tmp_path / "x.npz", X=VALUES, **{name: np.array([0, -1]).astype(np.uint16)})
    with pytest.raises(UserError, match="65,535"):
        read_example_file(tmp_path / "x.npz").labels()


@pytest.mark.parametrize("name", ["y", "not_y"])
def test_npz_with_class_numbers_that_are_names_is_refused(tmp_path, name):
    X, names = np.zeros((60, 2)), np.tile([1, 2, 3, 4], 15)
    np.savez(tmp_path / "x.npz", X=X, **{name: names})
    with pytest.raises(UserError, match=r"numbers are 1, 2, 3, 4\. .* leave 1 of 5 classes .*if there are 5 classes"):
        read_example_file(tmp_path / "x.npz").labels()
    np.savez(tmp_path / "x.npz", X=X, classes=np.array(list("01234")), **{name: names})
    assert read_example_file(tmp_path / "x.npz").labels()[0] == tuple("01234")


def test_npz_with_a_true_class_that_is_never_excluded_is_read(tmp_path):
    np.savez(tmp_path / "x.npz", X=np.zeros((60, 2)), not_y=np.tile([1, 2], 30), y=np.tile([0, 1, 2], 20))
    assert read_example_file(tmp_path / "x.npz").labels()[0] == ("0", "1", "2")


def test_npz_with_unknown_arrays_is_refused():
    with pytest.raises(UserError, match="contains foo"):
        decode_npz(npz(foo=np.zeros(2)), "x.npz")


@pytest.mark.parametrize("kind", [*np.typecodes["AllInteger"], *np.typecodes["Float"], "?"])
def test_as_integers_takes_numbers_of_any_type(kind):
    """Narrow unsigned types cannot hold a -1, and NumPy 2 refuses to put one there."""
    found = as_integers(np.array([[0, 1], [1, 0]], kind), "x")
    assert found.dtype == np.int64
    assert found.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        *((np.array(bad), "expected integers") for bad in ([0.5], [-np.inf])),
        (np.array([2**64 - 1], "u8"), "expected integers"),
        (np.array(["a"]), "expected integers.*Names of classes belong in an array classes"),
        *((np.array(bad), "x is NaN in example 1; leave") for bad in ([0, np.nan], [[0, 1], [0, np.nan]])),
    ],
)
def test_as_integers_refuses_fractions_nan_huge_numbers_and_text(array, message):
    with pytest.raises(UserError, match=message):
        as_integers(array, "x")


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1))
def test_multi_hot_has_each_distinct_label_once(rows):
    excluded = multi_hot(np.array(rows), 7, "x")
    assert [set(np.flatnonzero(row).tolist()) for row in excluded] == [set(row) for row in rows]
    assert excluded.max() == 1


def test_multi_hot_refuses_labels_out_of_range():
    with pytest.raises(UserError, match="from 0 to 7; expected the positions of the 7 classes, 0 to 6"):
        multi_hot(np.array([[0], [7]]), 7, "x")


# --- CSV -----------------------------------------------------------------------------------------


def test_csv_rows_have_line_numbers(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n"c\r\nd",e\r\nf,g')
    assert list(stream_rows(tmp_path / "a.csv")) == [(1, ["a", "b"]), (3, ["c\r\nd", "e"]), (5, ["f", "g"])]


def test_csv_with_an_endless_cell_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text('a,"' + "x" * 200_000)
    with pytest.raises(UserError, match="line 1: invalid CSV"):
        list(stream_rows(tmp_path / "a.csv"))


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
def test_example_file_reads_csv(tmp_path, text, keys):
    (tmp_path / "a.csv").write_text(text)
    file = read_example_file(tmp_path / "a.csv")
    assert np.array_equal(file.arrays["train/inputs"], VALUES)
    assert file.arrays["train/inputs"].dtype == np.float32
    assert file.keys == keys


def test_example_file_reads_csv_in_parts(tmp_path, monkeypatch):
    """The values and keys do not depend on the parts, and the memory needed is that of the result."""
    values = np.random.default_rng(0).normal(size=(3000, 40))
    np.savetxt(tmp_path / "a.csv", values, delimiter=",")
    whole = read_example_file(tmp_path / "a.csv")
    monkeypatch.setattr(arrays, "CELLS", 1000)
    tracemalloc.start()
    parts = read_example_file(tmp_path / "a.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(whole.arrays["train/inputs"], values.astype(np.float32))
    assert np.array_equal(parts.arrays["train/inputs"], values.astype(np.float32))
    assert parts.keys == whole.keys
    assert peak < 3 * parts.arrays["train/inputs"].nbytes < (tmp_path / "a.csv").stat().st_size


def test_example_file_in_parts_warns_once_of_lost_precision(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(arrays, "CELLS", 10)
    seconds = 1.7e9 + np.random.default_rng(0).normal(size=(30, 2))
    np.savetxt(tmp_path / "a.csv", seconds, delimiter=",", fmt="%.6f")
    read_example_file(tmp_path / "a.csv")
    assert len([message for message in logged() if "In float32 these differences are lost" in message]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "line 2: expected 2 numbers, found '3'"),
        ("1,2\n3,x\n", "line 2: expected 2 numbers"),
        ("1,x\n3,4\n", "line 1: expected 2 numbers, found '1,x'"),
        (",0,1\n0,3,4\n", "line 1: expected 3 numbers or names of columns, found ',0,1' with an empty cell"),
        ("", "is empty"),
        ("\ufeff", "is empty"),
    ],
)
def test_example_file_refuses_broken_csv(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_example_file(tmp_path / "a.csv")


@pytest.mark.parametrize("cell", ["", " ", "nan"])
@pytest.mark.parametrize("text", ["1.5,2\n3,{}\n", "id,width,height\nx,1.5,2\ny,3,{}\n", "id,a,b\nx,1.5,2\ny,3,{}"])
def test_example_file_reads_an_empty_cell_as_nan(tmp_path, text, cell):
    (tmp_path / "a.csv").write_text(text.format(cell))
    assert np.isnan(read_example_file(tmp_path / "a.csv").arrays["train/inputs"]).tolist() == [
        [False, False],
        [False, True],
    ]


def test_example_file_refuses_csv_that_is_not_utf8(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xe9,1\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_example_file(tmp_path / "a.csv")


def test_example_file_beyond_float32_becomes_infinity_without_a_warning(tmp_path):
    (tmp_path / "a.csv").write_text("1e300,1\n")
    assert np.isinf(read_example_file(tmp_path / "a.csv").arrays["train/inputs"][0, 0])


# --- .npy and .npz -------------------------------------------------------------------------------


def test_example_file_reads_npy_and_npz(tmp_path):
    np.save(tmp_path / "a.npy", VALUES.astype(np.float64))
    np.savez(tmp_path / "b.npz", features=VALUES, names=["x", "y"])
    assert np.array_equal(read_example_file(tmp_path / "a.npy").arrays["train/inputs"], VALUES)
    assert read_example_file(tmp_path / "b.npz").keys == ["x", "y"]


def test_example_file_maps_a_large_npy(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", VALUES)
    monkeypatch.setattr(arrays, "MAPPED_BYTES", 1)
    mapped = read_example_file(tmp_path / "a.npy").arrays["train/inputs"]
    assert np.array_equal(mapped, VALUES)
    mapped[:] = 0
    assert np.array_equal(np.load(tmp_path / "a.npy"), VALUES)


def test_example_file_refuses_other_files(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"no")
    with pytest.raises(UserError, match=r"a\.npy cannot be read"):
        read_example_file(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", truth=[1, 2])
    with pytest.raises(UserError, match="no inputs"):
        read_example_file(tmp_path / "b.npz")
    with pytest.raises(UserError, match="does not exist"):
        read_example_file(tmp_path / "gone.npz")
