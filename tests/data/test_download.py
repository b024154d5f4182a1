import hashlib
import socket

import pytest

from complementary.data import download as module
from complementary.data.download import Unreachable, download
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
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match="cannot be reached"):
            download(f"http://127.0.0.1:{port}/file", SHA, tmp_path / "file")


def test_a_full_disk_keeps_no_part(address, tmp_path, monkeypatch):
    def full(*_):
        (tmp_path / "file.part").write_bytes(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_append", full)
    with pytest.raises(OSError, match="No space left"):
        download(address, SHA, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
