"""Does the comparison of encoders without true labels name the encoder that is better for these answers?

    python -m benchmarks.compare --out results/compare.json
    python -m benchmarks.compare --page results/compare.json

For handwritten digits and for photos (3,600 images of CIFAR-10 of 8 kinds), one answer each, a linear layer on the
features of each encoder is compared as `cll cluster --compare` does. Beside it is the accuracy on the test set of a
layer that is fitted to all of these answers (oracle): the better encoder is the one with the higher accuracy.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.photos import KINDS, NEW, PHOTOS
from complementary import data, files, labels, transitions
from complementary.clusters.compare import compare_encoders, cross_fit_linear, fit_linear, reduce
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.dataset import Split

ENCODERS = ("pixels", "random", "patches")
FOLDS = 5


def photos() -> Dataset:
    """The first photos of the first kinds of CIFAR-10."""
    source = data.load("cifar10")

    def first(split: Split, count: int) -> Split:
        assert split.truth is not None
        return split.take((split.truth < KINDS).nonzero()[:count, 0])

    assert source.test is not None
    train, test = first(source.train, PHOTOS), first(source.test, NEW)
    return dataclasses.replace(source, name="photos", train=train, test=test, classes=source.classes[:KINDS])


def features_of(dataset: Dataset) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Vectors of the training and test examples, [N, D] and [T, D], for each encoder."""
    found = {}
    for encoder in ENCODERS:
        extractor = FeatureExtractor(Config.of(encoder=encoder), dataset, torch.arange(len(dataset.train)), "cpu")
        test = extractor.test()
        assert test is not None
        found[encoder] = (extractor.train.float(), test.float())
    return found


def judge(dataset: Dataset, features: dict[str, tuple[torch.Tensor, torch.Tensor]], seed: int) -> dict[str, Any]:
    """Compare the encoders for one draw of answers; the accuracies on the test set beside it."""
    assert dataset.train.truth is not None
    assert dataset.test is not None
    assert dataset.test.truth is not None
    matrix = transitions.uniform(len(dataset.classes))
    excluded = labels.draw(dataset.train.truth, matrix, seed=seed)
    found = compare_encoders({name: train for name, (train, _) in features.items()}, excluded, matrix, seed=seed)
    accuracy = {}
    for name, (train, test) in features.items():
        points = reduce(torch.cat([train, test]))
        part = torch.arange(len(train)) % FOLDS
        fit = cross_fit_linear(points[: len(train)], excluded, matrix, part)
        points = points[:, : fit.components]
        weight, bias = fit_linear(points[: len(train)], excluded.float(), matrix.float(), fit.decay)
        predicted = (points[len(train) :] @ weight + bias).argmax(1)
        accuracy[name] = round(float((predicted == dataset.test.truth).float().mean()), 4)
    scores = [
        {"encoder": row.name, "score": round(row.score, 4), "behind": [round(value, 4) for value in row.behind]}
        for row in found.scores
    ]
    return {"set": dataset.name, "seed": seed, "winner": found.winner, "scores": scores, "oracle_accuracy": accuracy}


def table(rows: list[dict[str, Any]]) -> str:
    """The comparisons in Markdown: likelihoods, best first, and the accuracy of each encoder on the test set."""
    lines = [
        "| set, draw | log-likelihood of unseen answers, best first | winner | test accuracy in % (oracle) |",
        "|---" * 4 + "|",
    ]
    for row in rows:
        scores = ", ".join(f"{score['encoder']} {score['score']:.4f}" for score in row["scores"])
        accuracy = ", ".join(f"{s['encoder']} {100 * row['oracle_accuracy'][s['encoder']]:.1f}" for s in row["scores"])
        lines.append(f"| {row['set']}, {row['seed']} | {scores} | {row['winner'] or 'not clear'} | {accuracy} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparisons and print or store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=3, help="draws of answers per set")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--page", type=Path, help="print the table of this file instead")
    options = parser.parse_args(arguments)
    if options.page is not None:
        print(table(json.loads(options.page.read_text())["comparisons"]))
        return
    rows = []
    for dataset in (data.load("digits"), photos()):
        features = features_of(dataset)
        for seed in range(options.draws):
            rows.append(judge(dataset, features, seed))
            print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        files.atomic_write(options.out, json.dumps({"comparisons": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
