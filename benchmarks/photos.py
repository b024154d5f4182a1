"""From photos and "not this" answers to a model: the whole path of a user, with times and the truth beside it.

    python -m benchmarks.photos --out /tmp/photos

    python -m benchmarks.photos --out /tmp/photos --train --recipe auto --encoder file:WEIGHTS

It writes 3,600 photos of 8 kinds (CIFAR-10, as PNG files, two of them broken) and one crowd answer each, 3 % of them
wrong, then runs the commands of the guide one after the other: import, train, predict, report, export. True labels are
used for the comparison at the end only: the accuracy on new photos, and what a linear layer on the features of the
same encoder reaches with true labels. One complementary label tells about as much as 1 / (K - 1)^2 true labels while
little is known (the ratio of their Fisher information), so that 3,600 of them are worth about 73 true ones.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from complementary import data
from complementary.data.dataset import Split
from complementary.encoders.frozen import FrozenEncoder

KINDS, PHOTOS, NEW, WRONG = 8, 3600, 2000, 0.03


def first_of(split: Split, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ``count`` images of the first kinds, uint8 [N, H, W, C], and their kinds, int [N]."""
    assert split.truth is not None
    index = (split.truth < KINDS).nonzero()[:count, 0]
    return split.inputs[index].permute(0, 2, 3, 1).numpy(), split.truth[index].numpy()


def write_photos(folder: Path, images: np.ndarray, truth: np.ndarray, names: Sequence[str], seed: int) -> None:
    """Write photos and a table of answers, ``answers.csv``; the first two photos are broken."""
    (folder / "photos").mkdir(parents=True)
    random = np.random.default_rng(seed)
    answers = (truth + random.integers(1, KINDS, len(truth))) % KINDS
    answers = np.where(random.random(len(truth)) < WRONG, truth, answers)
    with (folder / "answers.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "answer"])
        for i, (image, answer) in enumerate(zip(images, answers, strict=True)):
            Image.fromarray(image).save(folder / "photos" / f"{i:05d}.png")
            table.writerow([f"{i:05d}.png", f"not {names[answer]}"])
    for i in range(2):
        (folder / "photos" / f"{i:05d}.png").write_bytes(b"not an image")


def cll(folder: Path, times: dict[str, float], *arguments: object) -> None:
    """Run a command in a folder, with a cache of its own, and record how long it takes."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "complementary", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"COMPLEMENTARY_CACHE": str(folder / "cache")})
    times[f"cll {arguments[0]}"] = round(time.perf_counter() - started, 1)


def with_true_labels(
    encoder: FrozenEncoder, photos: np.ndarray, kinds: np.ndarray, new: np.ndarray, truth: np.ndarray
) -> dict[str, float]:
    """Accuracy on new photos of ridge regression on features, with true labels (an oracle).

    The penalty is the best one on the new photos, so these are upper bounds.

    Args:
        encoder: The encoder.
        photos: Training photos, uint8 [N, H, W, C].
        kinds: Their kinds, int [N].
        new: New photos, uint8 [M, H, W, C].
        truth: Their kinds, int [M].

    Returns:
        The accuracy with all true labels, and (mean of ten draws) with as many as the answers are worth.
    """
    x, z = (encoder(torch.from_numpy(part).permute(0, 3, 1, 2).contiguous()) for part in (photos, new))
    x, z = x - x.mean(0), z - x.mean(0)
    few, random = round(len(x) / (KINDS - 1) ** 2), np.random.default_rng(0)
    draws = [random.permutation(len(x))[:few] for _ in range(10)]
    target = torch.eye(KINDS)[torch.from_numpy(kinds)] - 1 / KINDS

    def accuracy(index: np.ndarray) -> float:
        part = x[torch.from_numpy(index)]
        kernel, scores = part @ part.T, z @ part.T
        size = kernel.diagonal().mean() * torch.eye(len(part))
        found = [scores @ torch.linalg.solve(kernel + r * size, target[index]) for r in (0.01, 0.1, 1, 10, 100)]
        return max(float((score.argmax(1).numpy() == truth).mean()) for score in found)

    return {
        "oracle_all_true_labels": accuracy(np.arange(len(x))),
        f"oracle_{few}_true_labels": float(np.mean([accuracy(draw) for draw in draws])),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the path and print what it found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--train", nargs=argparse.REMAINDER, default=["--recipe", "auto"], help="options of cll train")
    options = parser.parse_args(arguments)
    dataset = data.load("cifar10")
    assert dataset.test is not None
    out, names = options.out.resolve(), dataset.classes[:KINDS]
    photos, kinds = first_of(dataset.train, PHOTOS)
    new, truth = first_of(dataset.test, NEW)
    write_photos(out, photos, kinds, names, seed=0)
    np.save(out / "new.npy", new)
    times: dict[str, float] = {}
    cll(out, times, "data", "import", "photos", "--labels", "answers.csv", "--size", 32, "--out", "kinds")
    cll(out, times, "train", "--data", "kinds", *options.train, "--out", "run")
    cll(out, times, "predict", "run", "new.npy", "--out", "predicted.csv")
    cll(out, times, "report", "run", "--folds", "0")
    cll(out, times, "export", "run", "--onnx")
    with (out / "predicted.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [next(value for value in row.values() if value in names) for row in rows]
    result = json.loads((out / "run" / "result.json").read_text())
    keys = ("estimated_accuracy_selected", "estimated_accuracy_low", "estimated_accuracy_high")
    estimate = {key: result.get(key) for key in keys}
    oracle = float(np.mean([name == names[kind] for name, kind in zip(found, truth, strict=True)]))
    record = {"oracle_accuracy": oracle, **estimate, "seconds": times, "device": result["device"]}
    record |= {"command": ["cll", "train", *options.train], "recipe": result["config"]["training"]["recipe"]}
    path = out / "run" / "encoder.safetensors"
    if path.exists():
        record["encoder"] = result["data"]["encoder"]
        record |= with_true_labels(FrozenEncoder.read(path), photos[2:], kinds[2:], new, truth)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
