"""The script tools/convert_shared.py, which is not part of the package."""

import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from complementary.data.formats import FORMATS, gather

SCRIPT = Path(__file__).parents[2] / "tools/convert_shared.py"
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("convert_shared", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_tile(path, images):
    """A grid of two columns, padded with black."""
    grid = np.zeros((4, 32, 32, 3), np.uint8)
    grid[: len(images)] = images
    pixels = grid.reshape(2, 2, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
    Image.fromarray(pixels).save(path, lossless=True)


@pytest.fixture
def tiles(tmp_path):
    """Tile folders of both splits."""
    for split in ("train", "test"):
        folder = tmp_path / f"cifar100-{split}"
        folder.mkdir()
        names = np.array([f"{9 - i}.png" for i in range(7)])
        np.savez(folder / "arrays.npz", fine=np.zeros(7, np.uint8), coarse=np.full(7, 4, np.uint8), names=names)
        parts = [{"file": "tile000.webp", "count": 4}, {"file": "tile001.webp", "count": 3}]
        manifest = {"shape": list(IMAGES.shape), "sha256": hashlib.sha256(IMAGES.tobytes()).hexdigest(), "parts": parts}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        write_tile(folder / "tile000.webp", IMAGES[:4])
        write_tile(folder / "tile001.webp", IMAGES[4:])
    return tmp_path


def test_convert_writes_the_official_layout(script, tiles, tmp_path):
    script.convert(tiles, tmp_path / "out")
    files = gather(tmp_path / "out/cifar-100-python", FORMATS["cifar100"].patterns)
    arrays = FORMATS["cifar20"].decode(files)
    assert np.array_equal(arrays["train/inputs"], IMAGES[::-1].transpose(0, 3, 1, 2))  # sorted by file name
    assert arrays["train/names"][0] == b"3.png"
    assert arrays["test/truth"].tolist() == [4] * 7
    assert FORMATS["cifar100"].decode(files)["test/truth"].tolist() == [0] * 7


def test_convert_refuses_other_pixels(script, tiles, tmp_path):
    write_tile(tiles / "cifar100-test/tile001.webp", IMAGES[:3])
    with pytest.raises(SystemExit, match="SHA-256"):
        script.convert(tiles, tmp_path / "out")
