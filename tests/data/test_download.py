import hashlib
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from complementary.data import cache, download
from complementary.data.download import Unavailable, fetch
from complementary.data.loading import obtain
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
def test_fetch_downloads_a_file(address, tmp_path, checksum):
    fetch(address, checksum, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_fetch_resumes_a_broken_connection(server, address, tmp_path):
    server.cut = 40_000
    fetch(address, SHA, tmp_path / "file")
    assert server.starts == [0, 40_000, 80_000]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_fetch_resumes_after_it_gave_up(server, address, tmp_path):
    server.cut = 10_000
    with pytest.raises(UserError, match=r"broke 3 times; 30\.0 kB are kept"):
        fetch(address, SHA, tmp_path / "file")
    assert not (tmp_path / "file").exists()
    server.cut = None
    fetch(address, SHA, tmp_path / "file")
    assert server.starts[-1] == 30_000
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_fetch_starts_over_if_the_server_has_no_ranges(server, address, tmp_path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    fetch(address, SHA, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_fetch_deletes_a_file_with_a_wrong_checksum(server, address, tmp_path):
    server.files["/file.bin"] = b"another file"
    with pytest.raises(UserError, match=r"sha256:.*, expected sha256:.* deleted"):
        fetch(address, SHA, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [b"rubbish", CONTENT[::-1], CONTENT + b"more", b"x" * len(CONTENT)])
def test_fetch_replaces_a_partial_file_of_another_version(address, tmp_path, part):
    (tmp_path / "file.part").write_bytes(part)
    fetch(address, SHA, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_fetch_of_a_partial_file_that_is_complete(server, address, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch(address, SHA, tmp_path / "file")
    assert server.starts == [len(CONTENT)]


def test_fetch_of_a_missing_file(server, address, tmp_path):
    server.files.clear()
    with pytest.raises(Unavailable, match="answers 404 Not Found"):
        fetch(address, SHA, tmp_path / "file")


def test_fetch_without_a_server(tmp_path):
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 cannot be reached \(Connection refused\)"):
        fetch("http://127.0.0.1:1/file", SHA, tmp_path / "file")


def test_fetch_gives_up_on_a_silent_server(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unavailable, match="cannot be reached"):
            fetch(f"http://127.0.0.1:{port}/file", SHA, tmp_path / "file")


@pytest.fixture
def root(own_cache):
    return own_cache


# --- official addresses ----------------------------------------------------------------------------


def at_address(tiny, server, files):
    """The tiny dataset with the local server as its official address, which serves ``files``."""
    server.files = {f"/{name}": content for name, content in files.items()}
    sums = {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in files.items()}
    return replace(tiny, downloads=(Download("https", server.address, "idx", sums),))


@pytest.mark.parametrize("as_archive", [True, False])
def test_obtain_from_the_official_address(tiny, tiny_files, server, root, logged, make_tar, as_archive):
    files = {"tiny.tar.gz": make_tar(tiny_files)} if as_archive else tiny_files
    stored = obtain(at_address(tiny, server, files), root)
    assert stored.manifest["source"] == server.address
    assert not (root / "downloads/tiny").exists()


def test_obtain_resumes_a_broken_download(tiny, tiny_files, server, root, logged, make_tar):
    spec = at_address(tiny, server, {"tiny.tar.gz": make_tar(tiny_files)})
    server.cut = 100
    with pytest.raises(UserError, match="not available"):
        obtain(spec, root)
    assert "300 B are kept" in logged()[-1]
    assert cache.names(root) == []
    server.cut = None
    obtain(spec, root)
    assert server.starts[-1] == 300
    cache.verify(cache.read(root, "tiny"))


def test_obtain_deletes_a_wrong_file(tiny, tiny_files, server, root, logged):
    spec = at_address(tiny, server, tiny_files)
    server.files = dict.fromkeys(server.files, b"<html>")
    with pytest.raises(UserError, match="not available"):
        obtain(spec, root)
    assert "deleted" in logged()[-1]
    assert not list(root.rglob("*.part"))


def test_obtain_downloads_a_wrong_file_again(tiny, tiny_files, server, root, logged, make_tar):
    spec = replace(tiny, downloads=(Download("https", server.address, "idx", {"tiny.tar.gz": ""}),))
    server.files["/tiny.tar.gz"] = b"<html>please log in</html>"
    with pytest.raises(UserError, match="not available"):
        obtain(spec, root)
    server.files["/tiny.tar.gz"] = make_tar(tiny_files)
    obtain(spec, root)
    assert cache.names(root) == ["tiny"]


def test_obtain_stops_if_the_disk_is_full(tiny, tiny_files, server, root, logged, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_fetch_rest", full)
    spec = at_address(tiny, server, tiny_files)
    with pytest.raises(UserError, match=r"No space left on device.*free some space"):
        obtain(replace(spec, downloads=spec.downloads * 2), root)
    assert len(logged()) == 1


# --- package registries, with stand-ins for their clients -----------------------------------------


def fake_client(folder: Path, name: str, body: str, monkeypatch) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def blocked(tiny):
    """An official address without a server, then npm."""
    wall = Download("https", "http://127.0.0.1:1/", "idx", {"train-images-idx3-ubyte.gz": "md5:0"})
    return replace(tiny, downloads=(wall, Download("npm", "tiny-data@1", "idx")))


def test_obtain_tries_the_sources_in_order(blocked, tiny_files, root, tmp_path, make_tar, monkeypatch, logged):
    (tmp_path / "user").mkdir()
    package = tmp_path / "package.tgz"
    package.write_bytes(make_tar({f"package/{n}": c for n, c in tiny_files.items()}))
    fake_client(tmp_path / "bin", "npm", f"cp {package} tiny-1.tgz", monkeypatch)
    stored = obtain(blocked, root, tmp_path / "user")
    assert stored.manifest["source"] == "npm package tiny-data@1"
    assert [line for line in logged() if "trying" in line] == [
        f"tiny: trying folder {tmp_path / 'user'}",
        "tiny: trying http://127.0.0.1:1/",
        "tiny: trying npm package tiny-data@1",
    ]
    assert "tiny: failed: 127.0.0.1:1 cannot be reached (Connection refused)" in logged()
    assert not (root / "downloads/tiny").exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'npm error 404 no such package' >&2; exit 1", "npm failed (npm error 404 no such package)"),
        ("exit 7", "no reason given"),
        ("echo rubbish > x.tgz", "cannot be read"),
        (":", "does not contain train-images"),
    ],
)
def test_obtain_logs_why_a_client_failed(blocked, root, tmp_path, monkeypatch, logged, body, reason):
    fake_client(tmp_path / "bin", "npm", body, monkeypatch)
    with pytest.raises(UserError, match=r"not available from http://.* or npm package tiny-data@1"):
        obtain(blocked, root)
    assert reason in logged()[-1]
    assert cache.names(root) == []


def test_obtain_without_the_client(blocked, root, monkeypatch, logged, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="not available"):
        obtain(blocked, root)
    assert logged()[-1] == "tiny: failed: npm is not installed"


def test_obtain_from_a_debian_package(tiny, tiny_files, root, tmp_path, monkeypatch, make_tar):
    content = make_tar({f"./usr/share/{n}": c for n, c in tiny_files.items()})
    members = {"debian-binary": b"2.0\n", "data.tar.gz": content + b"\n" * (len(content) % 2)}
    package = b"!<arch>\n"
    for name, data in members.items():
        package += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data
    (tmp_path / "tiny.deb").write_bytes(package)
    fake_client(tmp_path / "bin", "apt-get", f"cp {tmp_path / 'tiny.deb'} tiny_1_all.deb", monkeypatch)
    spec = replace(tiny, downloads=(Download("debian", "dataset-tiny", "idx"),))
    assert obtain(spec, root).manifest["source"] == "debian package dataset-tiny"
