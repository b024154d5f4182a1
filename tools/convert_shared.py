"""Convert CIFAR-100 from tile folders into the layout of the official archive, and collect label files beside it.

A tile folder contains many small images as a grid in a few lossless image files: ``manifest.json`` (shape, parts,
SHA-256 of the pixels), ``arrays.npz`` (fine, coarse, names) and the files themselves. The result is a folder that the
package reads like the official download:

    python tools/convert_shared.py ../shared/data converted
    cll data get cifar20 cifar100 aclcifar20 clcifar20-simulated --from converted
"""

import argparse
import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

LABELS = ("aclcifar*.npz", "clcifar*-transition.csv")


def read_tiles(folder: Path) -> np.ndarray:
    """The images of a tile folder, uint8 [N, H, W, 3], verified with the SHA-256 in its manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    height, width = manifest["shape"][1:3]
    parts = []
    for part in manifest["parts"]:
        with Image.open(folder / part["file"]) as image:
            grid = np.asarray(image.convert("RGB"))
        rows, columns = grid.shape[0] // height, grid.shape[1] // width
        images = grid.reshape(rows, height, columns, width, 3).transpose(0, 2, 1, 3, 4)
        parts.append(images.reshape(-1, height, width, 3)[: part["count"]])
    images = np.ascontiguousarray(np.concatenate(parts))
    if hashlib.sha256(images.tobytes()).hexdigest() != manifest["sha256"]:
        raise SystemExit(f"{folder}: the pixels do not match the SHA-256 in its manifest.")
    return images


def convert(source: Path, out: Path) -> None:
    """Write ``out/cifar-100-python/train`` and ``test`` as pickles of the official form."""
    home = out / "cifar-100-python"
    home.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        folder = source / f"cifar100-{split}"
        labels = np.load(folder / "arrays.npz")
        content = {
            "data": read_tiles(folder).transpose(0, 3, 1, 2).reshape(-1, 3072),
            "fine_labels": labels["fine"].tolist(),
            "coarse_labels": labels["coarse"].tolist(),
            "filenames": labels["names"].tolist(),
        }
        (home / split).write_bytes(pickle.dumps(content, protocol=2))
        print(f"{home / split}: {len(content['data']):,} images")


def main() -> None:
    """Run the conversion."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with cifar100-train, cifar100-test and label files")
    parser.add_argument("out", type=Path, help="folder to write")
    options = parser.parse_args()
    convert(options.source, options.out)
    for pattern in LABELS:
        for path in sorted(options.source.glob(pattern)):
            shutil.copyfile(path, options.out / path.name)
            print(f"{options.out / path.name}: copied")


if __name__ == "__main__":
    main()
