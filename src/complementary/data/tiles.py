"""Tile folders: small images packed into a few lossless pictures, with a manifest and an arrays.npz."""

import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from complementary.data.cifar import Arrays, coarse_order
from complementary.data.extras import pillow_image
from complementary.data.files import Files
from complementary.data.npz import open_npz
from complementary.errors import UserError


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
    try:
        with pillow_image().open(io.BytesIO(content)) as picture:
            tile = np.asarray(picture.convert("RGB"))
        rows, columns = tile.shape[0] // height, tile.shape[1] // width
        grid = tile.reshape(rows, height, columns, width, 3).transpose(0, 2, 1, 3, 4)
    except (OSError, SyntaxError, ValueError) as problem:
        raise UserError(f"{name} is not a whole picture ({problem}). Copy the folder again.") from None
    return grid.reshape(-1, height, width, 3)[:count]
