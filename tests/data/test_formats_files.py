import contextlib
import gzip
import io
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

from complementary.data.formats import gather, read_rows, unpickle
from complementary.errors import UserError

NEEDS = ("train", "data_batch_*")
WANTED = {"train": b"one", "data_batch_1": b"two", "data_batch_2": b"three"}


def test_from_a_folder_with_and_without_gz(tmp_path):
    (tmp_path / "train.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "data_batch_1").write_bytes(b"two")
    assert gather(tmp_path, NEEDS) == {"train": b"one", "data_batch_1": b"two"}


def test_nothing_unless_everything_is_there(tmp_path):
    (tmp_path / "train").write_bytes(b"one")
    assert gather(tmp_path, NEEDS) is None
    assert gather(tmp_path / "missing", NEEDS) is None


def test_folders_are_not_files(tmp_path):
    (tmp_path / "train").mkdir()
    assert gather(tmp_path, ("train",)) is None


@pytest.mark.parametrize(("suffix", "mode"), [(".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar", "w")])
def test_from_an_archive_whatever_folder_is_in_it(tmp_path, make_tar, suffix, mode):
    path = tmp_path / f"set{suffix}"
    path.write_bytes(make_tar({f"deep/down/{name}": content for name, content in WANTED.items()}, mode))
    assert gather(path, NEEDS) == WANTED


def test_patterns_with_folders(tmp_path, make_tar):
    path = tmp_path / "set.tar"
    path.write_bytes(make_tar({"x/a/tile.webp": b"1", "x/b/tile.webp": b"2"}, "w"))
    assert gather(path, ("a/*",)) == {"a/tile.webp": b"1"}


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "fine/../../evil"])
def test_names_that_leave_the_archive_are_refused(tmp_path, make_tar, name):
    path = tmp_path / "set.tar.gz"
    path.write_bytes(make_tar({**WANTED, name: b"evil"}))
    with pytest.raises(UserError, match="points outside the archive"):
        gather(path, NEEDS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set.tar.gz"]


def test_links_in_an_archive_are_not_followed(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        link = tarfile.TarInfo("train")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "set.tar").write_bytes(stream.getvalue())
    assert gather(tmp_path / "set.tar", ("train",)) is None


@pytest.mark.parametrize("keep", [0, 5, 60, 4000])
def test_a_truncated_archive_is_one_sentence(tmp_path, make_tar, keep):
    path = tmp_path / "set.tar.gz"
    content = make_tar({"train": random.Random(0).randbytes(9000)})
    path.write_bytes(content[:keep])
    with pytest.raises(UserError, match="damaged or cut short"):
        gather(path, ("train",))


def test_a_truncated_gzip_is_one_sentence(tmp_path):
    (tmp_path / "train.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(UserError, match=r"train\.gz is damaged or cut short"):
        gather(tmp_path, ("train",))


def test_a_single_file(tmp_path):
    path = tmp_path / "set.npz"
    path.write_bytes(b"content")
    assert gather(path, ("*.npz",)) == {"set.npz": b"content"}
    assert gather(path, ("*.pkl",)) is None


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb on this machine")
def test_a_debian_package(tmp_path):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n"
    )
    (tree / "usr").mkdir()
    (tree / "usr/train.gz").write_bytes(gzip.compress(b"one"))
    subprocess.run(["dpkg-deb", "-b", str(tree), str(tmp_path / "x.deb")], check=True, capture_output=True)
    assert gather(tmp_path / "x.deb", ("train",)) == {"train": b"one"}
    (tmp_path / "y.deb").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read by dpkg-deb"):
        gather(tmp_path / "y.deb", ("train",))


# --- pickles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_and_arrays_are_read(protocol):
    value = {
        "data": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "labels": [1, 2],
        "name": "x",
        "flag": None,
        "part": np.float32(0.5),
        "names": [b"abc"],
    }
    found = unpickle(pickle.dumps(value, protocol), "file")
    assert np.array_equal(found["data"], value["data"])
    assert found["part"] == 0.5
    assert {k: found[k] for k in ("labels", "name", "flag", "names")} == {
        "labels": [1, 2],
        "name": "x",
        "flag": None,
        "names": [b"abc"],
    }


def test_arrays_of_old_numpy_are_read():
    new = pickle.dumps(np.arange(3), 2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != new
    assert unpickle(old, "file").tolist() == [0, 1, 2]


def test_python_2_strings_are_latin_1():
    python2 = b"(dp0\nS'data'\np1\nS'\\xff\\x00'\np2\ns."
    assert unpickle(python2, "file") == {"data": "\xff\x00"}


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, subprocess.run, Path, getattr, __import__])
def test_code_is_refused_before_it_runs(function, tmp_path):
    mark = tmp_path / "ran"
    evil = pickle.dumps({"images": Evil(function, f"touch {mark}")})
    with pytest.raises(UserError, match="could run code"):
        unpickle(evil, "clcifar10.pkl")
    assert not mark.exists()


def test_other_codecs_are_refused():
    with pytest.raises(UserError, match="bytes written as 'zlib'"):
        unpickle(b"c_codecs\nencode\n(Vx\nVzlib\ntR.", "file")


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_one_sentence(content):
    with contextlib.suppress(UserError):
        unpickle(content, "file")


# --- text ------------------------------------------------------------------------------------------


def test_rows_know_their_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n"c\r\nd",e\r\nf,g')
    assert read_rows(tmp_path / "a.csv") == [(1, ["a", "b"]), (3, ["c\r\nd", "e"]), (5, ["f", "g"])]


def test_a_cell_without_end(tmp_path):
    (tmp_path / "a.csv").write_text('a,"' + "x" * 200_000)
    with pytest.raises(UserError, match=r"line 1, is not CSV \(field larger"):
        read_rows(tmp_path / "a.csv")
