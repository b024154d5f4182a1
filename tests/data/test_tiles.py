import hashlib
import io
import json

import numpy as np
import pytest
from PIL import Image

from complementary.data.tiles import decode_cifar100_tiles, read_tiles
from complementary.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)


def tile(images):
    """A grid of 2 columns, read row by row, padded with black."""
    grid = np.zeros((4, 32, 32, 3), np.uint8)
    grid[: len(images)] = images
    picture = grid.reshape(2, 2, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "WEBP", lossless=True)
    return stream.getvalue()


def packed(folder):
    labels = io.BytesIO()
    names = np.array([f"{9 - i}.png" for i in range(7)])
    np.savez(labels, fine=np.zeros(7, np.uint8), coarse=np.full(7, 4, np.uint8), names=names)
    manifest = {
        "key": "images",
        "shape": list(IMAGES.shape),
        "sha256": hashlib.sha256(IMAGES.tobytes()).hexdigest(),
        "parts": [{"file": "tile000.webp", "count": 4}, {"file": "tile001.webp", "count": 3}],
    }
    return {
        f"{folder}/manifest.json": json.dumps(manifest).encode(),
        f"{folder}/arrays.npz": labels.getvalue(),
        f"{folder}/tile000.webp": tile(IMAGES[:4]),
        f"{folder}/tile001.webp": tile(IMAGES[4:]),
    }


def test_pixels_come_back():
    assert np.array_equal(read_tiles(packed("x"), "x"), IMAGES)


def test_decoded_in_canonical_order():
    arrays = decode_cifar100_tiles({**packed("cifar100-train"), **packed("cifar100-test")})
    assert np.array_equal(arrays["train/inputs"], IMAGES[::-1].transpose(0, 3, 1, 2))
    assert arrays["train/names"][0] == b"3.png"


def test_other_pixels_are_refused():
    files = packed("x") | {"x/tile001.webp": tile(IMAGES[:3])}
    with pytest.raises(UserError, match="the pixels have SHA-256"):
        read_tiles(files, "x")


def test_a_missing_tile_is_named():
    files = packed("x")
    del files["x/tile001.webp"]
    with pytest.raises(UserError, match=r"x lacks x/tile001\.webp"):
        read_tiles(files, "x")


def test_a_broken_tile():
    with pytest.raises(UserError, match=r"x/tile000\.webp is not a whole picture"):
        read_tiles(packed("x") | {"x/tile000.webp": b"?"}, "x")


def test_a_broken_manifest():
    with pytest.raises(UserError, match="missing or damaged"):
        read_tiles(packed("x") | {"x/manifest.json": b"{"}, "x")
