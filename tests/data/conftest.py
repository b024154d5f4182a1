"""Small files in every format, a cache of its own for each test, and a tiny named dataset."""

import gzip
import http.server
import io
import logging
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from complementary.data import cache
from complementary.data.cache import sha256
from complementary.data.registry import REGISTRY, NamedSet


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache; the user's cache and data folder are never used."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COMPLEMENTARY_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The messages that the package has logged so far."""
    caplog.set_level(logging.INFO, "complementary")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tar_bytes(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture(scope="session")
def make_tar() -> Callable[..., bytes]:
    return tar_bytes


@pytest.fixture(scope="session")
def make_idx() -> Callable[[np.ndarray], bytes]:
    return idx_bytes


@pytest.fixture(scope="session")
def tiny_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "train/inputs": rng.integers(0, 256, (12, 1, 5, 4), dtype=np.uint8),
        "train/truth": np.arange(12) % 3,
        "test/inputs": rng.integers(0, 256, (6, 1, 5, 4), dtype=np.uint8),
        "test/truth": np.arange(6) % 3,
    }


@pytest.fixture(scope="session")
def tiny_files(tiny_arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    """The four gzip IDX files of the tiny dataset."""
    files = {}
    for split, name in (("train", "train"), ("test", "t10k")):
        images, labels = tiny_arrays[f"{split}/inputs"][:, 0], tiny_arrays[f"{split}/truth"].astype(np.uint8)
        files[f"{name}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(images), mtime=0)
        files[f"{name}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(labels), mtime=0)
    return files


@pytest.fixture
def tiny(tiny_arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> NamedSet:
    """A dataset of 12 + 6 images with 3 classes, registered during the test; without a download."""
    spec = replace(
        REGISTRY["mnist"],
        name="tiny",
        classes=("a", "b", "c"),
        shape=(1, 5, 4),
        train=12,
        test=6,
        places=(("tiny", "idx"), ("tiny.tar.gz", "idx"), ("tiny.npz", "npz"), (".", "idx")),
        downloads=(),
        sha256={key: sha256(array) for key, array in tiny_arrays.items()},
    )
    monkeypatch.setitem(REGISTRY, "tiny", spec)
    return spec


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_files: dict[str, bytes]) -> Path:
    folder = tmp_path / "official"
    folder.mkdir()
    for name, content in tiny_files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), dtype=np.uint8)


@pytest.fixture
def store() -> Callable[..., None]:
    """Write named arrays to a cache as a dataset."""

    def write(root: Path, name: str, base: str | None = None, **arrays: np.ndarray) -> None:
        with cache.lock(root, name), cache.write(root, name) as draft:
            for key, array in arrays.items():
                draft.save(key, array)
            draft.manifest = {"source": "a test", "base": base}

    return write


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files`` by path; ``cut`` bytes at most per answer, with or without Range; records every start."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.ranges = True
        self.starts: list[int] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range") if self.server.ranges else None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.server.starts.append(start)
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content) if self.server.cut is None else min(len(content), start + self.server.cut)
        self.wfile.write(content[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()
