import gzip
import io
import random
import shutil
import subprocess
import tarfile

import pytest

from complementary.data.files import gather
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
