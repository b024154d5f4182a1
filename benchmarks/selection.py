"""Rules that select an epoch without true labels, compared with the last epoch: ``python -m benchmarks.selection``.

``record SUITE`` trains and stores, for each run, the validation logits and the test accuracy of every epoch in
``--folder``. ``compare`` applies all rules to the stored runs, prints a table and writes JSON. Suites:

- ``digits``: 96 runs (3 kinds of labels, 4 losses, with and without ICM, 4 seeds), 144 validation examples, MLP.
- ``features``: 24 runs, a linear layer on SimSiam features of 20,000 CIFAR-10 images, 5,000 validation examples.
- ``mlp`` and ``cnn``: 15 runs each from pixels, CIFAR-10 at 16 x 16; 5,000 and 2,000 validation examples.
- ``resnet``: 12 runs of the setting of results/grids/scratch.toml (needs a GPU).
"""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import data, files, scores
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.rows import Rows
from complementary.encoders.backbone import extract_features, load_encoder
from complementary.training import selection
from complementary.training.run import build_trainer
from complementary.training.trainer import Trainer

ENCODER = Path("results/encoders/cifar10-rho1-simsiam-no-max-pool-800.safetensors")
LABELS = ("uniform", "noisy:0.05", "biased:5")
LOSSES = ("s-nl", "s-exp", "dm", "fwd")

# --- runs -----------------------------------------------------------------------------------------------------------


def runs(suite: str) -> Iterator[tuple[str, Config]]:
    """The runs of a suite, by name."""
    if suite == "digits":
        for seed, labels, loss, mix in itertools.product(range(4), LABELS, LOSSES, ("none", "icm")):
            options: dict[str, Any] = {"labels": labels, "loss": loss, "mix": mix, "seed": seed}
            name = f"digits-{labels.replace(':', '')}-{loss}-{mix}-{seed}"
            yield name, Config.of(data="digits", encoder="pixels", epochs=60, **options)
    elif suite == "features":
        for seed, labels, loss in itertools.product(range(2), LABELS, LOSSES):
            options = {"labels": labels, "loss": loss, "mix": "none", "seed": seed, "model": "linear", "holdout": 0.25}
            yield f"feat-{labels.replace(':', '')}-{loss}-none-{seed}", Config.of(epochs=30, batch=256, **options)
    elif suite in ("mlp", "cnn"):
        pairs = (("s-nl", "none"), ("dm", "none"), ("s-nl", "icm"), ("s-exp", "none"), ("fwd", "icm"))
        for seed, (loss, mix) in itertools.product(range(3), pairs):
            options = {"labels": "uniform", "loss": loss, "mix": mix, "seed": seed, "model": suite, "holdout": 0.4}
            batch = 256 if suite == "mlp" else 64
            yield f"c16-{suite}-{loss}-{mix}-{seed}", Config.of(encoder="pixels", epochs=50, batch=batch, **options)
    else:
        for seed, loss, mix in itertools.product(range(3), ("s-nl", "dm"), ("none", "mixup")):
            options = {"loss": loss, "mix": mix, "seed": seed, "model": "resnet18", "epochs": 100, "batch": 512}
            yield f"resnet-{loss}-{mix}-{seed}", Config.of(data="cifar10", labels="uniform", lr=1e-4, **options)


def dataset_of(suite: str) -> Dataset:
    """The data of a suite."""
    if suite == "digits":
        return data.load("digits")
    cifar = data.load("cifar10")
    if suite == "resnet":
        return cifar
    order = torch.randperm(50_000, generator=torch.Generator().manual_seed(0))
    if suite == "features":
        return _features(cifar, order[:20_000])
    count, test = (12_500, 4_000) if suite == "mlp" else (5_000, 2_000)
    return _with(cifar, _half(cifar.train.inputs[order[:count].sort().values]), order[:count], _half, test)


def _half(images: Tensor) -> Tensor:
    """Images at half the resolution: uint8 [N, C, H, W] -> [N, C, H / 2, W / 2]."""
    return F.avg_pool2d(torch.as_tensor(images).float(), 2).round().to(torch.uint8)


def _features(cifar: Dataset, chosen: Tensor) -> Dataset:
    backbone = load_encoder(ENCODER, (3, 32, 32)).eval()
    mean, std = torch.tensor(cifar.mean), torch.tensor(cifar.std)
    chosen = torch.cat([part.sort().values for part in chosen.split(2_000)])

    def embed(images: Tensor) -> Tensor:
        return extract_features(backbone, Rows(images, torch.arange(len(images))), mean, std).float()

    train = extract_features(backbone, Rows(cifar.train.inputs, chosen), mean, std).float()
    center, spread = tuple(train.mean(0).tolist()), tuple(train.std(0).tolist())
    return dataclasses.replace(_with(cifar, train, chosen, embed, 2_000), mean=center, std=spread)


def _with(cifar: Dataset, inputs: Tensor, chosen: Tensor, change: Callable[[Tensor], Tensor], test: int) -> Dataset:
    assert cifar.train.truth is not None
    assert cifar.test is not None
    assert cifar.test.truth is not None
    truth = cifar.train.truth[chosen if len(inputs.shape) == 2 else chosen.sort().values]
    train = dataclasses.replace(cifar.train, inputs=inputs, truth=truth)
    part = dataclasses.replace(cifar.test, inputs=change(cifar.test.inputs[:test]), truth=cifar.test.truth[:test])
    return dataclasses.replace(cifar, train=train, test=part)


def record(suite: str, folder: Path, device: str) -> None:
    """Train the runs of a suite that are not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = dataset_of(suite)
    for name, config in runs(suite):
        if not (folder / f"{name}.npz").exists():
            trainer = build_trainer(config, device, dataset)
            logits = _train(trainer)
            np.savez(
                folder / f"{name}.npz",
                logits=np.stack(logits).astype(np.float16),
                acc=[row["accuracy"] for row in trainer.history],
                excluded=trainer.task.validation_excluded.cpu().numpy(),
                transition=trainer.task.transition.cpu().numpy(),
            )
            print(name, flush=True)


def _train(trainer: Trainer) -> list[np.ndarray[Any, Any]]:
    found = []
    while not trainer.done:
        if trainer.advance():
            found.append(trainer.validation_logits().cpu().numpy().copy())
    return found


# --- rules ----------------------------------------------------------------------------------------------------------


def choices(logits: Tensor, excluded: Tensor, transition: Tensor) -> dict[str, int]:
    """The epoch, from 0, that each rule selects.

    Args:
        logits: Validation logits of each epoch, [E, V, K].
        excluded: Complementary labels, [V, K].
        transition: [K, K].
    """
    tables = [selection.scel_by_sharpness(z, excluded, transition) for z in logits]
    plain = torch.stack([table[selection.SHARPNESS.index(1.0)] for table in tables]).double()
    calibrated = torch.stack([selection.calibrate(table) for table in tables]).double()
    accuracy = torch.tensor([float(scores.estimated_accuracy(z, excluded, transition)) for z in logits])
    rule = selection.Selection(transition)
    last = len(logits) - 1
    return {
        "last epoch": last,
        "lowest SCEL": int(plain.mean(1).argmin()),
        "lowest SCEL, mean of 5 epochs": _smooth(plain.mean(1), 5),
        "lowest SCEL, last unless better by 1 standard error": _last_unless(plain, 1.0),
        "lowest SCEL, last unless better by 2 standard errors": _last_unless(plain, 2.0),
        "highest estimated accuracy": int(accuracy.argmax()),
        "highest estimated accuracy, mean of 5 epochs": _smooth(-accuracy, 5),
        "lowest calibrated SCEL": int(calibrated.mean(1).argmin()),
        "lowest calibrated SCEL, mean of 5 epochs": _smooth(calibrated.mean(1), 5),
        "lowest calibrated SCEL, last unless better by 1 standard error": _last_unless(calibrated, 1.0),
        "lowest calibrated SCEL, last unless better by 2 standard errors": _last_unless(calibrated, 2.0),
        "the default: calibrated SCEL with a margin": [rule.update(e, c) for e, c in enumerate(calibrated, 1)][-1] - 1,
    }


def _smooth(score: Tensor, window: int) -> int:
    means = score.unfold(0, min(window, len(score)), 1).mean(1)
    return int(means.argmin()) + min(window, len(score)) - 1


def _last_unless(losses: Tensor, errors: float) -> int:
    best = int(losses.mean(1).argmin())
    difference = losses[-1] - losses[best]
    wide = errors * float(difference.std(unbiased=False)) / math.sqrt(losses.shape[1])
    return best if float(difference.mean()) > wide else len(losses) - 1


FAMILIES = {
    "digits-uniform": "digits, uniform",
    "digits-noisy": "digits, noisy",
    "digits-biased": "digits, biased",
    "feat-uniform": "features, uniform",
    "feat-noisy": "features, noisy",
    "feat-biased": "features, biased",
    "c16-mlp": "pixels, MLP",
    "c16-cnn": "pixels, CNN",
    "resnet": "pixels, ResNet-18",
}


def compare(folder: Path, out: Path) -> None:
    """Apply the rules to all stored runs."""
    stored: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"runs": {}}
    for path in sorted(folder.glob("*.npz")):
        if path.stem not in stored["runs"]:
            with np.load(path) as run:
                accuracy = [float(a) for a in run["acc"]]
                logits, excluded, matrix = (torch.from_numpy(run[k]) for k in ("logits", "excluded", "transition"))
            chosen = choices(logits.float(), excluded, matrix)
            stored["runs"][path.stem] = {
                "validation": len(excluded),
                "accuracy": accuracy,
                "selected": {rule: {"epoch": e + 1, "accuracy": accuracy[e]} for rule, e in chosen.items()},
            }
            files.atomic_write(out, json.dumps(stored, separators=(",", ":")).encode())
    print(table(stored["runs"]))


def table(stored: dict[str, Any]) -> str:
    """Selected minus last test accuracy, in points, as Markdown: mean and the worst run of each family."""
    families = {name: [r for n, r in stored.items() if n.startswith(name)] for name in FAMILIES}
    families = {name: found for name, found in families.items() if found}
    lines = ["| rule | " + " | ".join(f"{FAMILIES[n]} ({len(r)})" for n, r in families.items()) + " |"]
    lines.append("|---|" + "---|" * len(families))
    rules = list(next(iter(stored.values()))["selected"])
    for rule in rules[1:]:
        cells = []
        for found in families.values():
            gains = [100 * (r["selected"][rule]["accuracy"] - r["accuracy"][-1]) for r in found]
            cells.append(f"{np.mean(gains):+.1f} ({min(gains):+.1f})")
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    best = [[100 * (max(r["accuracy"]) - r["accuracy"][-1]) for r in found] for found in families.values()]
    lines.append("| best epoch on the test set (oracle) | " + " | ".join(f"{np.mean(b):+.1f}" for b in best) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection", description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("suite", nargs="?", default="digits", choices=["digits", "features", "mlp", "cnn", "resnet"])
    parser.add_argument("--folder", type=Path, default=Path("runs/selection"))
    parser.add_argument("--out", type=Path, default=Path("results/selection.json"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.action == "record":
        record(options.suite, options.folder, options.device)
    else:
        compare(options.folder, options.out)


if __name__ == "__main__":
    main()
