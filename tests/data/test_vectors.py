import numpy as np
import pytest

from complementary.data.vectors import read_vectors
from complementary.errors import UserError

VALUES = np.array([[1.5, 2], [3, 4]], np.float32)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("1.5,2\n3,4\n", ["0", "1"]),
        ("width,height\n1.5,2\n3,4\n", ["0", "1"]),
        ("id,width,height\nx,1.5,2\n\ny,3,4\n", ["x", "y"]),
    ],
)
def test_csv(tmp_path, text, keys):
    (tmp_path / "a.csv").write_text(text)
    given = read_vectors(tmp_path / "a.csv")
    assert np.array_equal(given.arrays["train/inputs"], VALUES)
    assert given.arrays["train/inputs"].dtype == np.float32
    assert given.keys == keys


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("1,2\n3\n", "line 2: wanted 2 numbers, found '3'"), ("1,2\n3,x\n", "line 2: wanted 2 numbers"), ("", "is empty")],
)
def test_broken_csv(tmp_path, text, sentence):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_vectors(tmp_path / "a.csv")


def test_npy_and_npz(tmp_path):
    np.save(tmp_path / "a.npy", VALUES.astype(np.float64))
    np.savez(tmp_path / "b.npz", features=VALUES, names=["x", "y"])
    assert np.array_equal(read_vectors(tmp_path / "a.npy").arrays["train/inputs"], VALUES)
    assert read_vectors(tmp_path / "b.npz").keys == ["x", "y"]


def test_other_files(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"no")
    with pytest.raises(UserError, match="not an array of numbers"):
        read_vectors(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", truth=[1, 2])
    with pytest.raises(UserError, match="but no inputs"):
        read_vectors(tmp_path / "b.npz")
    with pytest.raises(UserError, match="cannot be read"):
        read_vectors(tmp_path / "gone.npz")
