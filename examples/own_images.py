"""From a folder of images and a CSV of complementary labels to predictions for new images, with the command line.

The images are made here: noise with a red, green or blue tint. With your own, start at `cll data import`.
"""

import csv
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

TINTS, SIZE = ("red", "green", "blue"), (20, 16)


def photo(tint: str) -> Image.Image:
    """A noisy image with a tint."""
    return Image.blend(Image.effect_noise(SIZE, 80).convert("RGB"), Image.new("RGB", SIZE, tint), 0.2)


def cll(*arguments: object) -> None:
    """Run one command, as in a shell."""
    words = [str(argument) for argument in arguments]
    print("$ cll", *words, flush=True)
    subprocess.run([sys.executable, "-m", "complementary", *words], check=True)


random.seed(0)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    photos, new, labels = folder / "photos", folder / "new", folder / "not.csv"
    photos.mkdir()
    new.mkdir()
    with labels.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "not"])
        for i in range(600):
            tint = TINTS[i % 3]
            photo(tint).save(photos / f"{i}.png")
            table.writerow([f"{i}.png", random.choice([other for other in TINTS if other != tint])])
    for tint in TINTS:
        photo(tint).save(new / f"{tint}.png")

    cll("data", "import", photos, "--labels", labels, "--size", 16, "--out", "tints", "--replace")
    cll("train", "--data", "tints", "--clusters", 10, "--epochs", 10, "--batch", 64, "--out", folder / "run")
    cll("predict", folder / "run", new, "--out", folder / "predicted.csv")
    print((folder / "predicted.csv").read_text())
