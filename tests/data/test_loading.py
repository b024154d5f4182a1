import gzip
import importlib.util
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import complementary
from complementary.data import REGISTRY, cache, load, loading
from complementary.data.loading import assemble, obtain, order_by_name
from complementary.errors import UserError

SOURCE = str(Path(complementary.__path__[0]).parent)


@pytest.fixture
def root(own_cache):
    return own_cache


# --- obtain --------------------------------------------------------------------------------------


def test_obtain_reads_a_folder_then_the_cache(tiny, tiny_folder, tiny_arrays, root, logged):
    first = obtain(tiny, root, tiny_folder)
    assert logged() == [f"tiny: trying folder {tiny_folder}", f"tiny: written to the cache {root}"]
    for key, array in tiny_arrays.items():
        assert np.array_equal(first.arrays[key], array)
    assert obtain(tiny, root).manifest["source"] == f"folder {tiny_folder}"
    assert len(logged()) == 2


def test_obtain_uses_the_folder_of_the_environment(tiny, tiny_folder, root, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_DATA", str(tiny_folder))
    assert obtain(tiny, root).manifest["source"] == f"folder {tiny_folder}"


@pytest.mark.parametrize("where", ["subfolder", "archive", "the archive itself", "npz"])
def test_obtain_finds_the_files_in_a_folder(tiny, tiny_files, tiny_arrays, root, tmp_path, make_tar, where):
    folder = tmp_path / "user"
    (folder / "tiny").mkdir(parents=True)
    if where == "subfolder":
        for name, content in tiny_files.items():
            (folder / "tiny" / name.removesuffix(".gz")).write_bytes(gzip.decompress(content))
    elif where == "npz":
        names = {"train/inputs": "x_train", "train/truth": "y_train", "test/inputs": "x_test", "test/truth": "y_test"}
        np.savez(folder / "tiny.npz", **{names[key]: array.squeeze() for key, array in tiny_arrays.items()})
    else:
        (folder / "tiny.tar.gz").write_bytes(make_tar({f"a/{n}": c for n, c in tiny_files.items()}))
        folder = folder / "tiny.tar.gz" if where == "the archive itself" else folder
    obtain(tiny, root, folder)
    assert cache.names(root) == ["tiny"]


def test_obtain_refuses_a_missing_folder(tiny, root):
    with pytest.raises(UserError, match=r"/nowhere .* does not exist"):
        obtain(tiny, root, Path("/nowhere"))


def test_obtain_without_a_source_names_the_files(tiny, root, tmp_path):
    with pytest.raises(UserError, match=r"tiny is not available from folder .* put one of tiny, "):
        obtain(tiny, root, tmp_path)
    assert cache.names(root) == []
    with pytest.raises(UserError, match="tiny has no download; put one of tiny"):
        obtain(tiny, root)


@pytest.mark.parametrize(
    ("harm", "reason"), [("another file", "SHA-256"), ("truncated", "cannot be read"), ("evil archive", "unsafe path")]
)
def test_obtain_refuses_bad_files(tiny, tiny_folder, tiny_files, root, make_tar, harm, reason, logged):
    images = tiny_folder / "train-images-idx3-ubyte.gz"
    if harm == "another file":
        (tiny_folder / "train-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 12]) + bytes(12))
        )
    elif harm == "truncated":
        images.write_bytes(images.read_bytes()[:50])
    else:
        images.unlink()
        (tiny_folder / "tiny.tar.gz").write_bytes(make_tar({**tiny_files, "../../evil": b""}))
    with pytest.raises(UserError, match="not available from folder"):
        obtain(tiny, root, tiny_folder)
    assert reason in logged()[-1]
    assert cache.names(root) == []
    assert not list(root.rglob("*.npy"))


def test_obtain_again_keeps_the_old_version_if_it_fails(tiny, tiny_folder, root, tmp_path):
    obtain(tiny, root, tiny_folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        obtain(tiny, root, tmp_path / "empty", again=True)
    cache.verify(cache.read(root, "tiny"))
    version = cache.read(root, "tiny").manifest["version"]
    obtain(tiny, root, tiny_folder, again=True)
    assert cache.read(root, "tiny").manifest["version"] != version


def test_obtain_replaces_a_damaged_dataset(tiny, tiny_folder, root, logged):
    obtain(tiny, root, tiny_folder)
    next(root.rglob("train-inputs.npy")).write_bytes(b"")
    obtain(tiny, root, tiny_folder)
    assert logged().count(f"tiny: trying folder {tiny_folder}") == 2
    cache.verify(cache.read(root, "tiny"))


def test_obtain_replaces_another_version(tiny, tiny_folder, tiny_arrays, root, store, logged):
    store(root, "tiny", **{key: array // 2 for key, array in tiny_arrays.items()})
    obtain(tiny, root, tiny_folder)
    assert any("another version" in line for line in logged())
    assert np.array_equal(cache.read(root, "tiny").arrays["train/inputs"], tiny_arrays["train/inputs"])


GETTER = """
import logging, sys, time, pathlib, pickle
from complementary.data import cache, download, loading
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
spec_file, root, folder = map(pathlib.Path, sys.argv[1:])
spec = pickle.loads(spec_file.read_bytes())
read_folder = download.read_folder
download.read_folder = lambda *a: (time.sleep(1.0), read_folder(*a))[1]
cache.verify(loading.obtain(spec, root, folder))
"""


@pytest.mark.slow
def test_obtain_in_two_processes_writes_once(tiny, tiny_folder, root, tmp_path):
    (tmp_path / "spec").write_bytes(pickle.dumps(tiny))
    command = [sys.executable, "-c", GETTER, str(tmp_path / "spec"), str(root), str(tiny_folder)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert sum("written to the cache" in output for output in outputs) == 1
    cache.verify(cache.read(root, "tiny"))
    assert len([p for p in (root / "sets/tiny").iterdir() if p.is_dir()]) == 1


# --- load ----------------------------------------------------------------------------------------


def test_load_is_silent_if_the_dataset_is_cached(tiny, tiny_folder, root, caplog, logged):
    load("tiny", root, tiny_folder)
    caplog.clear()
    dataset = load("tiny", root)
    assert logged() == []
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.train.truth.dtype == torch.int64
    assert (dataset.classes, dataset.head) == (("a", "b", "c"), 5000)


def test_load_shares_the_images_of_the_base(tiny, tiny_folder, tiny_arrays, root, monkeypatch):
    spec = replace(tiny, name="acl", base="tiny", places=(("acl.npz", "npz"),), sha256={}, labels="model")
    monkeypatch.setitem(REGISTRY, "acl", spec)
    np.savez(tiny_folder / "acl.npz", complementary=np.array([[0, 0], [1, 2]] * 6, np.uint8))
    dataset = load("acl", root, tiny_folder)
    assert dataset.train.excluded.tolist() == [[1, 0, 0], [0, 1, 1]] * 6
    assert np.array_equal(dataset.train.inputs, tiny_arrays["train/inputs"])
    assert [p.name for p in (root / "sets/acl").rglob("*.npy")] == ["train-excluded.npy"]


def test_load_clcifar_with_its_own_images(tiny, tiny_folder, root, monkeypatch):
    images = np.random.default_rng(1).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    base = replace(tiny, name="base", shape=(3, 32, 32), sha256={}, places=(("base.npz", "npz"),))
    np.savez(tiny_folder / "base.npz", x_train=images, y_train=np.zeros(12), x_test=images[:6], y_test=np.zeros(6))
    spec = replace(base, name="cl", base="base", places=(("cl.pkl", "clcifar"),), labels="human")
    data = {"names": [], "images": images[::-1], "ord_labels": [1] * 12, "cl_labels": [[0, 2, 0]] * 12}
    (tiny_folder / "cl.pkl").write_bytes(pickle.dumps(data))
    monkeypatch.setitem(REGISTRY, "base", base)
    monkeypatch.setitem(REGISTRY, "cl", spec)
    dataset = load("cl", root, tiny_folder)
    assert np.array_equal(dataset.train.inputs, images[::-1].transpose(0, 3, 1, 2))
    assert dataset.train.excluded.tolist() == [[1, 0, 1]] * 12
    assert dataset.train.truth.tolist() == [1] * 12
    assert len(dataset.test) == 6


@pytest.mark.parametrize("found", [True, False])
def test_load_digits_equals_those_of_scikit_learn(monkeypatch, found):
    """Read from its file or, where that is not found, by its function; each call returns its own tensors."""
    if not found:
        monkeypatch.setattr(loading, "_read_digits", loading._read_digits.__wrapped__)
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    source = load_digits()
    load("digits").train.inputs.zero_()
    dataset, test = load("digits"), np.arange(1797) % 5 == 0
    for split, part in ((dataset.train, ~test), (dataset.test, test)):
        np.testing.assert_array_equal(split.inputs[:, 0], np.rint(source.images[part] * 255 / 16))
        np.testing.assert_array_equal(split.truth, source.target[part])


def test_load_of_an_unknown_name_lists_the_choices(root):
    with pytest.raises(
        UserError, match=r"'mnits' is not known \(did you mean 'mnist'\?\); choose one of: digits, mnist"
    ):
        load("mnits", root)


def test_load_of_a_folder_advises_to_import_it(tmp_path):
    with pytest.raises(UserError, match="not been imported"):
        load(str(tmp_path))


def test_load_npz_without_labels_has_no_classes(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.ones((6, 4)))
    dataset = load(str(tmp_path / "own.npz"))
    assert len(dataset.train) == 6
    assert (dataset.name, dataset.train.truth, dataset.train.excluded, dataset.classes) == ("own", None, None, ())


def test_load_npz_of_images_has_mean_and_std_with_six_decimals(tmp_path):
    np.savez(tmp_path / "own.npz", images=np.array([0, 1, 0, 0], np.uint8).reshape(4, 1, 1), truth=[0, 1, 0, 1])
    dataset = load(str(tmp_path / "own.npz"))
    assert (dataset.mean, dataset.std) == ((0.00098,), (0.001698,))


def test_load_npz_that_is_empty_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((0, 3)), excluded=np.zeros((0, 3)))
    with pytest.raises(UserError, match="no examples"):
        load(str(tmp_path / "own.npz"))


# --- order_by_name and assemble ------------------------------------------------------------------


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.randoms(use_true_random=False))
def test_order_by_name_undoes_every_shuffle(names, random):
    wanted = names.copy()
    random.shuffle(wanted)
    order = order_by_name(np.array(names), np.array(wanted), "x")
    assert [names[i] for i in order] == wanted
    assert sorted(order.tolist()) == list(range(len(names)))


def test_order_by_name_pairs_equal_names_in_order():
    assert order_by_name(np.array(["b", "a", "b"]), np.array(["b", "b", "a"]), "x").tolist() == [0, 2, 1]


def test_order_by_name_refuses_other_names():
    with pytest.raises(UserError, match=r"\(1 images have no label\)"):
        order_by_name(np.array(["a", "b"]), np.array(["a", "c"]), "x")


@pytest.fixture
def labeled(tiny):
    return replace(tiny, name="labeled", base="tiny", sha256={}, seed=5)


def test_assemble_joins_labels_by_row(labeled, tiny_arrays):
    own = assemble(labeled, {"train/labels": np.array([[1, 1]] * 12)}, tiny_arrays)
    assert list(own) == ["train/excluded"]
    assert own["train/excluded"].tolist() == [[0, 1, 0]] * 12


def test_assemble_accepts_one_label_per_row(labeled, tiny_arrays):
    own = assemble(labeled, {"train/labels": np.arange(12) % 3}, tiny_arrays)
    assert own["train/excluded"].argmax(1).tolist() == [0, 1, 2] * 4


def test_assemble_joins_labels_by_name(labeled, tiny_arrays):
    names = np.array([f"{i:02d}.png" for i in range(12)])
    base = {**tiny_arrays, "train/names": names.astype("S")}
    shuffled = np.random.default_rng(0).permutation(12)
    own = assemble(labeled, {"train/labels": shuffled[:, None] % 3, "train/names": names[shuffled]}, base)
    assert list(own) == ["train/excluded"]
    assert own["train/excluded"].argmax(1).tolist() == [0, 1, 2] * 4


def test_assemble_simulates_labels_from_the_matrix_and_the_seed(labeled, tiny_arrays):
    matrix = np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    own = assemble(labeled, {"transition": matrix}, tiny_arrays)
    assert np.array_equal(own["train/excluded"].argmax(1), (tiny_arrays["train/truth"] + 1) % 3)
    even = np.full((3, 3), 1 / 3)
    first, again = (assemble(labeled, {"transition": even}, tiny_arrays)["train/excluded"] for _ in range(2))
    other = assemble(replace(labeled, seed=6), {"transition": even}, tiny_arrays)["train/excluded"]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train/inputs": np.zeros((3, 1, 5, 4), np.uint8)},
            r"train/inputs .*\[3, 1, 5, 4\], expected \[12, 1, 5, 4\]",
        ),
        ({"test/truth": np.full(6, 3)}, "a true label is 3"),
        ({"train/truth": np.zeros(12, np.int64)}, "train/truth has the SHA-256"),
    ],
)
def test_assemble_refuses_other_arrays(tiny, tiny_arrays, change, message):
    with pytest.raises(UserError, match=message):
        assemble(tiny, {**tiny_arrays, **change}, {})


def test_assemble_names_missing_arrays(tiny, tiny_arrays):
    with pytest.raises(UserError, match="test/inputs is missing"):
        assemble(tiny, {k: v for k, v in tiny_arrays.items() if k != "test/inputs"}, {})


@pytest.mark.parametrize(
    ("labels", "message"),
    [(np.zeros((5, 1), int), "12 examples but 5 complementary"), (np.array([[0, 1, 2]] * 12), "excludes every class")],
)
def test_assemble_refuses_labels_that_do_not_fit(labeled, tiny_arrays, labels, message):
    with pytest.raises(UserError, match=message):
        assemble(labeled, {"train/labels": labels}, tiny_arrays)


def test_assemble_refuses_a_label_file_without_labels(labeled, tiny_arrays):
    with pytest.raises(UserError, match="no complementary labels"):
        assemble(labeled, {"classes": np.array(["a"])}, tiny_arrays)
