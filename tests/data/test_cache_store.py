import gzip
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

import complementary
from complementary.data import cache, load
from complementary.data import cache as drafts
from complementary.data.cache import assemble, obtain, order_by_name
from complementary.data.registry import TABLE
from complementary.errors import UserError

SOURCE = str(Path(complementary.__path__[0]).parent)


@pytest.fixture
def root(own_cache):
    return own_cache


def test_from_a_folder_then_from_the_cache(tiny, tiny_folder, tiny_arrays, root, said):
    first = obtain(tiny, root, tiny_folder, said.append)
    assert said == [f"tiny: trying folder {tiny_folder}", f"tiny: written to the cache {root}"]
    for key, array in tiny_arrays.items():
        assert np.array_equal(first.arrays[key], array)
    said.clear()
    obtain(tiny, root, None, said.append)
    assert said == [f"tiny: in the cache {root}, from folder {tiny_folder}"]


def test_the_environment_names_the_folder(tiny, tiny_folder, root, said, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_DATA", str(tiny_folder))
    assert obtain(tiny, root, None, said.append).manifest["source"] == f"folder {tiny_folder}"


@pytest.mark.parametrize("where", ["subfolder", "archive", "the archive itself", "npz"])
def test_places_in_a_folder(tiny, tiny_files, tiny_arrays, root, tmp_path, make_tar, where, said):
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
    obtain(tiny, root, folder, said.append)
    assert cache.names(root) == ["tiny"]


def test_a_folder_that_does_not_exist(tiny, root, said):
    with pytest.raises(UserError, match=r"/nowhere \(--from or COMPLEMENTARY_DATA\) does not exist"):
        obtain(tiny, root, Path("/nowhere"), said.append)


def test_a_set_that_nobody_has(tiny, root, tmp_path, said):
    with pytest.raises(UserError, match=r"tiny could not be had from folder .* put one of tiny, .* --from FOLDER"):
        obtain(tiny, root, tmp_path, said.append)
    assert cache.names(root) == []
    with pytest.raises(UserError, match="tiny has no address; put one of tiny"):
        obtain(tiny, root, None, said.append)


@pytest.mark.parametrize("harm", ["another file", "cut short", "evil archive"])
def test_bad_files_are_said_and_the_cache_stays_as_it_was(tiny, tiny_folder, tiny_files, root, make_tar, harm, said):
    images = tiny_folder / "train-images-idx3-ubyte.gz"
    if harm == "another file":
        (tiny_folder / "train-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 12]) + bytes(12))
        )
    elif harm == "cut short":
        images.write_bytes(images.read_bytes()[:50])
    else:
        images.unlink()
        (tiny_folder / "tiny.tar.gz").write_bytes(make_tar({**tiny_files, "../../evil": b""}))
    with pytest.raises(UserError, match=r"could not be had from folder .* \(why not is said above\)"):
        obtain(tiny, root, tiny_folder, said.append)
    assert {"another file": "SHA-256", "cut short": "cut short", "evil archive": "points outside"}[harm] in said[-1]
    assert cache.names(root) == []
    assert not list(root.rglob("*.npy"))


def test_again_replaces_and_keeps_the_old_one_when_it_fails(tiny, tiny_folder, root, tmp_path, said):
    obtain(tiny, root, tiny_folder, said.append)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        obtain(tiny, root, tmp_path / "empty", said.append, again=True)
    cache.verify(cache.read(root, "tiny"))
    version = cache.read(root, "tiny").manifest["version"]
    obtain(tiny, root, tiny_folder, said.append, again=True)
    assert cache.read(root, "tiny").manifest["version"] != version


def test_a_damaged_cache_is_mended(tiny, tiny_folder, root, said):
    obtain(tiny, root, tiny_folder, said.append)
    next(root.rglob("train-inputs.npy")).write_bytes(b"")
    obtain(tiny, root, tiny_folder, said.append)
    assert any("Getting it anew" in line for line in said)
    cache.verify(cache.read(root, "tiny"))


def test_loading_a_damaged_set_says_where_the_new_one_comes_from(tiny, tiny_folder, root, said):
    load("tiny", root, tiny_folder, said.append)
    next(root.rglob("train-inputs.npy")).write_bytes(b"")
    said.clear()
    load("tiny", root, tiny_folder, said.append)
    assert f"tiny: trying folder {tiny_folder}" in said


def test_another_version_in_the_cache_is_replaced(tiny, tiny_folder, tiny_arrays, root, said):
    with drafts.lock(root, "tiny", said.append), drafts.writing(root, "tiny") as draft:
        for key, array in tiny_arrays.items():
            draft.put(key, array // 2)
        drafts.commit(root, "tiny", draft, {"source": "an older package"})
    obtain(tiny, root, tiny_folder, said.append)
    assert "tiny: the cache holds another version than this package knows; getting it anew" in said


# --- sets that build on another --------------------------------------------------------------------


def test_labels_share_the_images_of_their_base(tiny, tiny_folder, tiny_arrays, root, monkeypatch, said):
    spec = replace(tiny, name="acl", base="tiny", places=(("acl.npz", "npz"),), sha256={}, labels="model")
    monkeypatch.setitem(TABLE, "acl", spec)
    np.savez(tiny_folder / "acl.npz", complementary=np.array([[0, 0], [1, 2]] * 6, np.uint8))
    dataset = load("acl", root, tiny_folder, said.append)
    assert dataset.train.excluded.tolist() == [[1, 0, 0], [0, 1, 1]] * 6
    assert np.array_equal(dataset.train.inputs, tiny_arrays["train/inputs"])
    assert [p.name for p in (root / "sets/acl").rglob("*.npy")] == ["train-excluded.npy"]


def test_clcifar_brings_its_own_images(tiny, tiny_folder, root, monkeypatch, said):
    images = np.random.default_rng(1).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    base = replace(tiny, name="base", shape=(3, 32, 32), sha256={}, places=(("base.npz", "npz"),))
    np.savez(tiny_folder / "base.npz", x_train=images, y_train=np.zeros(12), x_test=images[:6], y_test=np.zeros(6))
    spec = replace(base, name="cl", base="base", places=(("cl.pkl", "clcifar"),), labels="human")
    data = {"names": [], "images": images[::-1], "ord_labels": [1] * 12, "cl_labels": [[0, 2, 0]] * 12}
    (tiny_folder / "cl.pkl").write_bytes(pickle.dumps(data))
    monkeypatch.setitem(TABLE, "base", base)
    monkeypatch.setitem(TABLE, "cl", spec)
    dataset = load("cl", root, tiny_folder, said.append)
    assert np.array_equal(dataset.train.inputs, images[::-1].transpose(0, 3, 1, 2))
    assert dataset.train.excluded.tolist() == [[1, 0, 1]] * 12
    assert dataset.train.truth.tolist() == [1] * 12
    assert len(dataset.test) == 6


def test_loading_is_silent_once_the_set_is_there(tiny, tiny_folder, root, said):
    load("tiny", root, tiny_folder, said.append)
    said.clear()
    dataset = load("tiny", root, None, said.append)
    assert said == []
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.train.truth.dtype == torch.int64
    assert (dataset.classes, dataset.head) == (("a", "b", "c"), 5000)


def test_an_unknown_name_lists_the_choices(root):
    with pytest.raises(UserError, match=r"'mnits' is not known; choose one of: digits, mnist, .*cll data import"):
        load("mnits", root)


# --- two at once -----------------------------------------------------------------------------------

GETTER = """
import sys, time, pathlib, pickle
from complementary.data import cache, sources, store
from complementary.data.registry import TABLE
spec_file, root, folder = map(pathlib.Path, sys.argv[1:])
spec = pickle.loads(spec_file.read_bytes())
slow = sources.read_folder
sources.read_folder = lambda *a: (time.sleep(1.0), slow(*a))[1]
cache.verify(store.obtain(spec, root, folder, lambda line: print(line, flush=True)))
"""


def test_two_processes_getting_the_same_set(tiny, tiny_folder, root, tmp_path):
    (tmp_path / "spec").write_bytes(pickle.dumps(tiny))
    command = [sys.executable, "-c", GETTER, str(tmp_path / "spec"), str(root), str(tiny_folder)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    screens = [process.communicate(timeout=60)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert sum("written to the cache" in screen for screen in screens) == 1
    assert sum("in the cache" in screen for screen in screens) == 1
    cache.verify(cache.read(root, "tiny"))
    assert len([p for p in (root / "sets/tiny").iterdir() if p.is_dir()]) == 1


# --- from decoded files to the arrays of a set -----------------------------------------------------


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.randoms(use_true_random=False))
def test_order_by_name_joins_every_shuffle(names, random):
    wanted = names.copy()
    random.shuffle(wanted)
    order = order_by_name(np.array(names), np.array(wanted), "x")
    assert [names[i] for i in order] == wanted
    assert sorted(order.tolist()) == list(range(len(names)))


def test_equal_names_pair_up_in_order():
    assert order_by_name(np.array(["b", "a", "b"]), np.array(["b", "b", "a"]), "x").tolist() == [0, 2, 1]


def test_other_names_are_refused():
    with pytest.raises(UserError, match=r"\(1 images have none\)"):
        order_by_name(np.array(["a", "b"]), np.array(["a", "c"]), "x")


@pytest.fixture
def labelled(tiny):
    return replace(tiny, name="labelled", base="tiny", sha256={}, seed=5)


def test_labels_by_row(labelled, tiny_arrays):
    labels = np.array([[1, 1]] * 12)
    own = assemble(labelled, {"labels": labels}, tiny_arrays)
    assert list(own) == ["train/excluded"]
    assert own["train/excluded"].tolist() == [[0, 1, 0]] * 12


def test_one_label_each_may_be_a_vector(labelled, tiny_arrays):
    own = assemble(labelled, {"labels": np.arange(12) % 3}, tiny_arrays)
    assert own["train/excluded"].argmax(1).tolist() == [0, 1, 2] * 4


def test_labels_by_name(labelled, tiny_arrays):
    names = np.array([f"{i:02d}.png" for i in range(12)])
    base = {**tiny_arrays, "train/names": names.astype("S")}
    shuffled = np.random.default_rng(0).permutation(12)
    own = assemble(labelled, {"labels": shuffled[:, None] % 3, "names": names[shuffled]}, base)
    assert own["train/excluded"].argmax(1).tolist() == [0, 1, 2] * 4


def test_simulated_labels_follow_the_matrix_and_the_seed(labelled, tiny_arrays):
    matrix = np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    own = assemble(labelled, {"transition": matrix}, tiny_arrays)
    assert np.array_equal(own["train/excluded"].argmax(1), (tiny_arrays["train/truth"] + 1) % 3)
    even = np.full((3, 3), 1 / 3)
    first, again = (assemble(labelled, {"transition": even}, tiny_arrays)["train/excluded"] for _ in range(2))
    other = assemble(replace(labelled, seed=6), {"transition": even}, tiny_arrays)["train/excluded"]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"train/inputs": np.zeros((3, 1, 5, 4), np.uint8)},
            r"inputs are \[3, 1, 5, 4\], wanted \[12, 1, 5, 4\]",
        ),
        ({"test/truth": np.full(6, 3)}, "true labels run from 3 to 3"),
        ({"train/truth": np.zeros(12, np.int64)}, "train/truth has SHA-256 .* but the real set has"),
    ],
)
def test_what_is_not_the_set_is_refused(tiny, tiny_arrays, change, sentence):
    with pytest.raises(UserError, match=sentence):
        assemble(tiny, {**tiny_arrays, **change}, None)


def test_missing_arrays_are_named(tiny, tiny_arrays):
    with pytest.raises(UserError, match="test inputs are nothing"):
        assemble(tiny, {k: v for k, v in tiny_arrays.items() if k != "test/inputs"}, None)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [(np.zeros((5, 1), int), r"labels are \[5, 3\]"), (np.array([[0, 1, 2]] * 12), "excludes every class")],
)
def test_labels_that_do_not_fit(labelled, tiny_arrays, labels, sentence):
    with pytest.raises(UserError, match=sentence):
        assemble(labelled, {"labels": labels}, tiny_arrays)


def test_a_labels_file_without_labels(labelled, tiny_arrays):
    with pytest.raises(UserError, match="holds no complementary labels"):
        assemble(labelled, {"classes": np.array(["a"])}, tiny_arrays)
