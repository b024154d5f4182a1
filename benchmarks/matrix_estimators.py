"""Estimators of the transition matrix, compared without and with true labels.

``python -m benchmarks.matrix_estimators`` compares them on simulated features and writes
``results/matrices/simulated.json`` (some minutes on two cores). ``--data aclcifar10`` uses labels of that dataset on
features of the stored encoder instead, of as many images as ``--examples`` says.

The error of a matrix is half the mean absolute difference of its rows from the true ones: the share of labels that
would have to change. The true matrix of given labels is counted with true labels (oracle).
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import data, labels, oracle, transitions
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS
from complementary.rng import generator
from complementary.training.run import ESTIMATE_WEIGHT_DECAY, _cross_fit, _estimate_transition
from complementary.training.task import Task, build_task
from complementary.training.trainer import Trainer

CASES = {  # name: labels, classes, ratio of class sizes
    "uniform": ("uniform", 10, 1),
    "biased 10:1": ("biased:10", 10, 1),
    "noise .10, 4 classes": ("noisy:0.1", 4, 1),
    "noise .05": ("noisy:0.05", 10, 1),
    "uniform, long tail 100:1": ("uniform", 10, 100),
    "noise .05, long tail 100:1": ("noisy:0.05", 10, 100),
}
ENCODER = "file:results/encoders/cifar10-rho1-simsiam-no-max-pool-800.safetensors"


def compare(dataset: Dataset, true: Tensor, epochs: int) -> dict[str, dict[str, float]]:
    """Error and mean diagonal of each estimate.

    Args:
        dataset: Vectors with complementary and true labels. True labels are used for the row ``counted`` only.
        true: The true matrix, [K, K].
        epochs: Epochs of each training.
    """
    options = {"labels": "given", "model": "linear", "mix": "none", "holdout": 0.05, "estimate_epochs": epochs}
    config = Config.of(**options, transition="estimate", weight_decay=ESTIMATE_WEIGHT_DECAY)
    task, engine = build_task(config, dataset, "cpu"), Engine.of("cpu")
    first = config.with_(transition="auto", epochs=epochs)
    trainer = Trainer(first, task, engine)
    trainer.run()
    seen = trainer.logits(task.train).softmax(1).cpu()
    unseen = _cross_fit(first, task, engine, SINGLE_PROCESS, "", None)
    assert dataset.train.truth is not None
    truth = dataset.train.truth[task.train_index]
    found = {
        "counted with true labels (oracle)": oracle.empirical_transition(truth, task.excluded),
        "anchor points among the trained examples (before)": old_anchors(seen, task.excluded),
        "anchor points, cross-fitted": transitions.anchor_transition(unseen, task.excluded),
        "EM, the trained examples": transitions.estimate_transition(seen, task.excluded).matrix,
        "EM, cross-fitted": transitions.estimate_transition(unseen, task.excluded).matrix,
        "EM, alternating with fwd (used)": final(config, task, engine),
    }
    return {
        name: {
            "error": round(float((matrix - true).abs().sum(1).mean()) / 2, 4),
            "diagonal": round(float(matrix.diagonal().mean()), 4),
        }
        for name, matrix in found.items()
    }


def final(config: Config, task: Task, engine: Engine) -> Tensor:
    """What ``transition = estimate`` uses."""
    return _estimate_transition(config, task, engine, SINGLE_PROCESS, None).transition


def old_anchors(probabilities: Tensor, excluded: Tensor, share: float = 0.25) -> Tensor:
    """The earlier rule: the same number of anchor points for every class, whatever is predicted."""
    count = max(1, int(share * len(excluded) / excluded.shape[1]))
    rows = excluded.double()[probabilities.topk(count, dim=0).indices.T].mean(1)
    return rows / rows.sum(1, keepdim=True)


def simulated(examples: int, matrices: dict[str, str]) -> Iterator[tuple[str, Dataset, Tensor]]:
    """Normal features in 64 dimensions around a center per class; a linear classifier can be right for about 95 %."""
    cases = CASES | {name: (f"matrix:{path}", 10, 1) for name, path in matrices.items()}
    for place, (name, (spec, classes, tail)) in enumerate(cases.items()):
        source, matrix = generator(0, "matrix", place), transitions.parse(spec, classes)
        sizes = torch.tensor(transitions.decay(tail, classes))
        truth = torch.multinomial(sizes, examples, True, generator=source)
        centers = torch.randn(classes, 64, generator=source) * 0.5
        inputs = centers[truth] + torch.randn(examples, 64, generator=source)
        yield name, as_dataset(inputs, truth, labels.draw(truth, matrix)), matrix


def acl(name: str, examples: int, device: str) -> Iterator[tuple[str, Dataset, Tensor]]:
    """Features of the stored encoder, and the first complementary label of each image."""
    dataset = data.load(name)
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))
    index = order[:examples].sort().values
    config = Config.of(data=name, inputs="features", encoder=ENCODER)
    features = FeatureExtractor(config, dataset, index, device).train
    assert dataset.train.truth is not None
    assert dataset.train.excluded is not None
    truth, excluded = dataset.train.truth[index], dataset.train.excluded[index]
    yield name, as_dataset(features, truth, excluded), oracle.empirical_transition(truth, excluded)


def as_dataset(inputs: Tensor, truth: Tensor, excluded: Tensor) -> Dataset:
    """Vectors [N, D] as a dataset."""
    names = tuple(map(str, range(excluded.shape[1])))
    mean, std = inputs.mean(0).tolist(), inputs.std(0).tolist()
    return Dataset("features", Split(inputs, truth, excluded), None, names, tuple(mean), tuple(std))


def main(arguments: list[str] | None = None) -> None:
    """Compare the estimators and store the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", help="a dataset with complementary labels; default: simulated data")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--matrix", nargs=2, action="append", default=[], metavar=("NAME", "FILE"), help="a further case"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/matrices"))
    options = parser.parse_args(arguments)
    if options.data:
        cases = acl(options.data, options.examples, options.device)
    else:
        cases = simulated(options.examples, dict(options.matrix))
    found: dict[str, Any] = {"examples": options.examples, "epochs": options.epochs, "cases": {}}
    for name, dataset, true in cases:
        rows = compare(dataset, true, options.epochs)
        diagonal = round(float(true.diagonal().mean()), 4)
        found["cases"][name] = {"true_diagonal": diagonal, "estimates": rows}
        print(f"{name} (true diagonal {diagonal})", flush=True)
        for estimate, row in rows.items():
            print(f"  {estimate}: error {row['error']:.3f}, diagonal {row['diagonal']:.3f}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.data or 'simulated'}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
