"""What the report says against the truth, on three sets: estimated accuracy, and answers that look wrong.

    python -m benchmarks.answers --out results/answers.json
    python -m benchmarks.answers --page results/answers.json
    python -m benchmarks.answers --simulated 24 --out results/answers-simulated.json

Five handwritten digits, MNIST (main components of the pixels) and CIFAR-10 (main components of the features of the
stored encoder, images that it has not seen), with one answer per example, of which 3 % are wrong. A linear layer is
trained on two thirds of the examples. Wrong answers are searched for among theirs, with cross-fitted predictions, which
also give the error rate. Accuracy is estimated from the answers of the last third, with this error rate. True labels
are used for the comparison only.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_predict

from complementary import ComplementaryClassifier, data, files, labels, transitions
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.reports.answers import rank_answers, with_errors
from complementary.scores import accuracy_interval

WRONG, FOLDS, SEEDS, COMPONENTS = 0.03, 5, 3, 50
Vectors = tuple[NDArray[np.float32], NDArray[np.int64]]


def digits() -> Vectors:
    """The 901 digits 0 to 4 of scikit-learn: 64 pixels, and the digit."""
    from sklearn.datasets import load_digits

    x, y = load_digits(n_class=5, return_X_y=True)
    return x.astype(np.float32), y


def mnist() -> Vectors:
    """6,000 images of MNIST: 50 main components of their pixels, and the digit."""
    train = data.load("mnist").train
    assert train.truth is not None
    return reduced(train.inputs[:6000].flatten(1).numpy()), train.truth[:6000].numpy()


def cifar10() -> Vectors:
    """The 10,000 test images of CIFAR-10: 50 main components of features of the stored encoder, and the class."""
    dataset = data.load("cifar10")
    assert dataset.test is not None
    assert dataset.test.truth is not None
    config = Config.of(data="cifar10", inputs="features", encoder="auto")
    features = FeatureExtractor(config, dataset, torch.arange(len(dataset.train)), "cpu").test()
    assert features is not None
    return reduced(features.numpy()), dataset.test.truth.numpy()


def reduced(x: NDArray[Any]) -> NDArray[np.float32]:
    """The main components of vectors [N, D], float32 [N, 50]: with few answers, more features only add noise."""
    return PCA(COMPONENTS, random_state=0).fit_transform(x).astype(np.float32)  # type: ignore[no-any-return]


SETS: dict[str, Callable[[], Vectors]] = {"digits": digits, "mnist": mnist, "cifar10": cifar10}


def answers_of(truth: NDArray[np.int64], classes: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """One "not this" answer per example, int [N], and which of them are wrong, bool [N]."""
    random = np.random.default_rng(seed)
    answers = (truth + random.integers(1, classes, len(truth))) % classes
    wrong = random.random(len(truth)) < WRONG
    return np.where(wrong, truth, answers), wrong


def measure(x: NDArray[np.float32], y: NDArray[np.int64], seed: int) -> dict[str, Any]:
    """Compare estimates with the truth for one draw of answers.

    Args:
        x: Vectors, [N, D].
        y: True classes, int [N].
        seed: Of the answers, the split and the training.
    """
    classes = int(y.max()) + 1
    not_y, wrong = answers_of(y, classes, seed)
    order = np.random.default_rng((seed, 1)).permutation(len(x))
    train, new = order[: 2 * len(x) // 3], order[2 * len(x) // 3 :]
    options: dict[str, Any] = {"loss": "s-nl", "mix": "none", "model": "linear", "epochs": 20, "batch": 64}
    model = ComplementaryClassifier(**options, seed=seed, config={"weight_decay": 0.001})
    pred_probs = cross_val_predict(model, x[train], not_y[train], method="predict_proba", cv=FOLDS)
    ranked = rank_answers(not_y[train], pred_probs)
    predicted = torch.from_numpy(model.fit(x[train], not_y[train]).predict(x[new]))
    matrix = with_errors(transitions.uniform(classes), ranked.noise.rate)
    found = accuracy_interval(predicted, labels.to_excluded(not_y[new], classes), matrix)
    is_wrong = wrong[train][ranked.example]
    count = int(ranked.is_issue.sum())
    return {
        "estimated_accuracy": found.value,
        "low": found.low,
        "high": found.high,
        "oracle_accuracy": float((predicted.numpy() == y[new]).mean()),
        "error_rate": ranked.noise.rate,
        "oracle_error_rate": float(wrong[train].mean()),
        "flagged": count,
        "expected_precision": ranked.expected_precision if count else None,
        "oracle_precision": float(is_wrong[ranked.is_issue].mean()) if count else None,
        "oracle_recall": float(is_wrong[ranked.is_issue].sum() / is_wrong.sum()),
        "oracle_precision_of_first_20": float(is_wrong[:20].mean()),
    }


def simulate(seed: int, count: int = 4000, classes: int = 8) -> dict[str, float]:
    """Flagged answers for a calibrated model of about 80 % accuracy, with estimated and with known error rates.

    With the known matrix and the calibrated probabilities, the posterior is that of Bayes: no rule finds more wrong
    answers at the same precision.
    """
    source = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(count, classes, generator=source, dtype=torch.float64)
    truth = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    not_y, wrong = answers_of(truth.numpy(), classes, seed)
    matrix = with_errors(transitions.uniform(classes), WRONG)
    found: dict[str, float] = {}
    for name, known in (("", None), ("best_", matrix)):
        ranked = rank_answers(not_y, logits.softmax(1), known)
        is_wrong = wrong[ranked.example]
        found |= {
            f"{name}flagged": int(ranked.is_issue.sum()),
            f"{name}expected_precision": ranked.expected_precision,
            f"oracle_{name}precision": float(is_wrong[ranked.is_issue].mean()),
            f"oracle_{name}recall": float(is_wrong[ranked.is_issue].sum() / is_wrong.sum()),
        }
    return found


def table(record: dict[str, list[dict[str, Any]]]) -> str:
    """A table in Markdown: one row per set, means over the seeds; intervals one by one."""
    rows = [
        "| set | accuracy: estimated (95 % interval) | true | wrong answers: estimated | true | flagged | precision "
        "(expected) | of the first 20 | recall |",
        "|---" * 9 + "|",
    ]
    for name, runs in record.items():
        known = {key: [run[key] for run in runs if run[key] is not None] for key in runs[0]}
        mean = {key: float(np.mean(values)) if values else float("nan") for key, values in known.items()}
        ranges = [f"{100 * r['estimated_accuracy']:.0f} ({100 * r['low']:.0f} to {100 * r['high']:.0f})" for r in runs]
        cells = [
            name,
            ", ".join(ranges),
            ", ".join(f"{100 * r['oracle_accuracy']:.0f}" for r in runs),
            f"{100 * mean['error_rate']:.1f} %",
            f"{100 * mean['oracle_error_rate']:.1f} %",
            f"{mean['flagged']:.0f}",
            f"{100 * mean['oracle_precision']:.0f} % ({100 * mean['expected_precision']:.0f} %)"
            if mean["flagged"]
            else "",
            f"{100 * mean['oracle_precision_of_first_20']:.0f} %",
            f"{100 * mean['oracle_recall']:.0f} %",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print the table of a stored result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--simulated", type=int, metavar="SEEDS", help="measure simulated data instead")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--page", type=Path, help="print the table of this file instead")
    options = parser.parse_args(arguments)
    if options.page:
        print(table(json.loads(options.page.read_text())))
        return
    if options.simulated:
        runs = [simulate(seed) for seed in range(options.simulated)]
        mean = {key: round(float(np.mean([run[key] for run in runs])), 4) for key in runs[0]} | {"seeds": len(runs)}
        print(json.dumps(mean))
        if options.out is not None:
            files.atomic_write(options.out, json.dumps(mean) + "\n")
        return
    record: dict[str, list[dict[str, Any]]] = {}
    for name in options.only:
        x, y = SETS[name]()
        record[name] = []
        for seed in range(options.seeds):
            record[name].append(measure(x, y, seed))
            if options.out is not None:
                files.atomic_write(options.out, json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
