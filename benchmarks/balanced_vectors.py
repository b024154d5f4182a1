"""Vectors with rare classes: what ``recipe = auto`` does for them, and which of its options matter.

    python -m benchmarks.balanced_vectors --out results/balanced-vectors.jsonl

Every example has one uniform complementary label. The test set has classes of equal size; true labels are used only
there. Data: ten classes of 2,000 to 100 examples of MNIST and Fashion-MNIST (50 principal components of the pixels),
and clouds around six random points in 20 dimensions, 3,000 to 75 examples each. One line of the output is one run.
"""

import argparse
import itertools
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from complementary import ComplementaryClassifier, data
from complementary.data.dataset import Split
from complementary.engine.backend import choose_device, device_name, versions
from complementary.files import atomic_write

log = logging.getLogger(__name__)
CLOUDS, DIMENSIONS, SPREAD = (3000, 1500, 700, 300, 150, 75), 20, 1.3
LARGEST, SMALLEST, COMPONENTS = 2000, 100, 50
TEST = 500  # examples of each class, at most

OPTIONS: dict[str, dict[str, Any]] = {
    "not balanced": {},
    "balanced": {"balanced": True},
    "without neighbors": {"balanced": True, "neighbors": 0},
    "without both": {"balanced": True, "neighbors": 0, "loss": "fwd"},
    "without mixing": {"balanced": True, "mix": "none"},
    "discriminant": {
        "balanced": True,
        "fit": "discriminant",
        "mix": "none",
        "model": "linear",
        "weight_decay": 0.003,
    },
}
"""Options besides ``recipe = auto``. Without both: as for vectors whose classes are of equal size."""

Arrays = tuple[np.ndarray, np.ndarray]


def clouds(seed: int) -> tuple[Arrays, Arrays]:
    """Vectors [N, D] and classes [N] for training and for the test."""
    random = np.random.default_rng(seed)
    centers = random.normal(size=(len(CLOUDS), DIMENSIONS))

    def draw(sizes: Sequence[int]) -> Arrays:
        truth = np.repeat(np.arange(len(sizes)), sizes)
        return (centers[truth] + SPREAD * random.normal(size=(len(truth), DIMENSIONS))).astype(np.float32), truth

    return draw(CLOUDS), draw([TEST] * len(CLOUDS))


def components(name: str, seed: int) -> tuple[Arrays, Arrays]:
    """The same for principal components of the images of a dataset, whose class sizes fall geometrically."""
    dataset, random = data.load(name), np.random.default_rng(seed)
    assert dataset.test is not None
    classes = len(dataset.classes)
    sizes = np.geomspace(LARGEST, SMALLEST, classes).astype(int)
    pixels, truth = _flat(dataset.train)
    chosen = [random.choice(np.flatnonzero(truth == k), n, replace=False) for k, n in enumerate(sizes)]
    index = np.concatenate(chosen)
    projection = PCA(COMPONENTS, random_state=0).fit(pixels[index])
    test, test_truth = _flat(dataset.test)
    kept = np.concatenate([np.flatnonzero(test_truth == k)[:TEST] for k in range(classes)])
    return (
        (projection.transform(pixels[index]).astype(np.float32), truth[index]),
        (projection.transform(test[kept]).astype(np.float32), test_truth[kept]),
    )


def _flat(split: Split) -> Arrays:
    assert split.truth is not None
    return split.inputs.numpy().reshape(len(split), -1) / 255, split.truth.numpy()


def measure(train: Arrays, test: Arrays, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train with one uniform label per example; accuracy on the test set, by class."""
    (vectors, truth), (new, new_truth) = train, test
    classes = int(truth.max()) + 1
    not_y = (truth + np.random.default_rng(100 + seed).integers(1, classes, len(truth))) % classes
    started = time.perf_counter()
    model = ComplementaryClassifier(recipe="auto", seed=seed, config=options).fit(vectors, not_y)
    right = model.predict(new) == new_truth
    per_class = [round(float(right[new_truth == k].mean()), 4) for k in range(classes)]
    return {
        "macro_accuracy": round(float(np.mean(per_class)), 4),
        "per_class": per_class,
        "seconds": round(time.perf_counter() - started, 1),
        "device": device_name(choose_device(model.device)),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean and standard deviation of the accuracy over seeds, as Markdown."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    lines = ["| options | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    for options in dict.fromkeys(row["options"] for row in rows):
        cells = []
        for name in names:
            found = [100 * r["macro_accuracy"] for r in rows if (r["options"], r["data"]) == (options, name)]
            deviation = f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else ""
            cells.append(f"{np.mean(found):.1f}{deviation} ({len(found)})" if found else "")
        lines.append(f"| {options} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing in the file of results, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of results, JSON lines")
    parser.add_argument("--data", nargs="+", default=["mnist", "fmnist", "clouds"])
    parser.add_argument("--options", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args(arguments)
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    for seed, name in itertools.product(chosen.seeds, chosen.data):
        train, test = clouds(seed) if name == "clouds" else components(name, seed)
        for options in chosen.options:
            key = {"data": name, "options": options, "seed": seed}
            if any(row | key == row for row in rows):
                continue
            row = key | measure(train, test, OPTIONS[options], seed)
            rows.append(row | {"versions": versions()})
            log.warning("%s", row)
            atomic_write(chosen.out, "".join(json.dumps(line) + "\n" for line in rows))
    print(table(rows))


if __name__ == "__main__":
    main()
