"""All losses on stored features: linear and MLP heads, several kinds of labels, one learning rate per method.

    python -m benchmarks.methods run --data cifar10 --encoder file:results/encoders/….safetensors --out results/methods
    python -m benchmarks.methods page results/methods --out docs/notes/methods.md

A head on features is tiny, so all heads of a loss (learning rates x seeds) are trained as one computation: they see the
same batches, and differ in initial weights, labels and learning rate. One line of the output is one head.
"""

import argparse
import dataclasses
import itertools
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from complementary import data, losses, priors, scores, transitions
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.data.selection import select
from complementary.engine.backend import choose_device, device_name
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.losses.base import per_label
from complementary.losses.registry import LOSS_METHODS, Method
from complementary.rng import generator
from complementary.training.selection import calibrate, scel_by_sharpness

log = logging.getLogger(__name__)

LABELS: dict[str, dict[str, Any]] = {
    "uniform": {"labels": "uniform"},
    "biased 10:1": {"labels": "biased:10"},
    "noisy 4 %": {"labels": "noisy:0.04"},
    "long tail 100": {"labels": "uniform", "long_tail": 100.0, "subset": "first"},
    "ACL": {"labels": "given"},
}
"""Kinds of labels, as options. ACL: those of a vision-language model, which come with the dataset acl + name."""
LRS = (3e-4, 1e-3, 3e-3, 1e-2)
HEADS = ("linear", "mlp")
HIDDEN = 256
WEIGHT_DECAY = 1e-4
EVALUATIONS = 5  # during training, at equal distances


@dataclasses.dataclass(frozen=True)
class Problem:
    """Features and labels of one kind, for all seeds. N training, V validation and T test examples, S seeds.

    Attributes:
        train: [N, D], standardized.
        validation: [V, D].
        test: [T, D].
        excluded: Complementary labels of the training examples, [S, N, K].
        validation_excluded: [S, V, K].
        truth: True labels of the test set, int [T]; for the evaluation only.
        transition: The matrix that losses are given, [K, K]: the generating one, or uniform if it is not known.
        prior: Class prior, estimated from the training labels of each seed, [S, K].
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    excluded: Tensor
    validation_excluded: Tensor
    truth: Tensor
    transition: Tensor
    prior: Tensor

    @property
    def share(self) -> Tensor:
        """Share of each label among the training labels of each seed, [S, K]."""
        return torch.stack([per_label(labels.float()).mean(0) for labels in self.excluded])


def build_problem(
    name: str, kind: str, encoder: str, seeds: Sequence[int], images: int | None, device: torch.device
) -> Problem:
    """Load features, and draw labels for every seed.

    Args:
        name: Dataset.
        kind: Key of `LABELS`.
        encoder: The option ``encoder``.
        seeds: Seeds of the labels.
        images: Use that many training images, chosen at random; None: all. A long tail is used whole.
        device: Where to compute.
    """
    options = LABELS[kind] | {"data": f"acl{name}" if kind == "ACL" else name}
    base = Config.of(inputs="features", encoder=encoder, mix="none", **options)
    dataset = data.load(base.dataset.data)
    assert dataset.test is not None
    assert dataset.test.truth is not None
    whole = base.with_(data=name, labels="uniform", long_tail=1.0)
    features = FeatureExtractor(whole, data.load(name), torch.arange(len(dataset.train)), str(device))
    test = features.test()
    assert test is not None
    selections = [select(base.with_(seed=seed), dataset) for seed in seeds]
    index = selections[0].examples  # the same for all seeds
    order = torch.randperm(len(index), generator=generator(0, "methods"))
    order = order if images is None or base.dataset.long_tail > 1 else order[:images]
    held = len(order) // 10
    excluded = torch.stack([s.excluded for s in selections])
    classes = excluded.shape[2]
    known = selections[0].transition
    transition = transitions.uniform(classes) if known is None else known
    inputs = features.train[index][order]
    mean, std = inputs.mean(0), inputs.std(0).clamp_min(1e-8)
    inputs, test = ((part - mean) / std for part in (inputs, test))
    training = excluded[:, order[held:]]
    found = [priors.from_labels(labels, transition).share for labels in training]
    return Problem(
        train=inputs[held:].to(device),
        validation=inputs[:held].to(device),
        test=test.to(device),
        excluded=training.to(device),
        validation_excluded=excluded[:, order[:held]].to(device),
        truth=dataset.test.truth.to(device),
        transition=transition.to(device, torch.float32),
        prior=torch.stack(found).to(device),
    )


# --- heads ------------------------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """M heads with their own weights: features [B, D] -> logits [M, B, K].

    Args:
        seeds: The seed of the initial weights of each head.
        features: D.
        classes: K.
        hidden: Number of hidden ReLU units; 0: linear heads.
    """

    def __init__(self, seeds: Sequence[int], features: int, classes: int, hidden: int = 0) -> None:
        super().__init__()
        sizes = [features, hidden, classes] if hidden else [features, classes]
        layers = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(_initial(seeds, i, a, a, b) for i, (a, b) in enumerate(layers))
        self.biases = nn.ParameterList(_initial(seeds, i + 10, a, 1, b) for i, (a, b) in enumerate(layers))

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [M, B, K]."""
        out: Tensor = torch.einsum("bd,mdk->mbk", x, self.weights[0]) + self.biases[0]
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            out = torch.baddbmm(bias, out.relu(), weight)
        return out


def _initial(seeds: Sequence[int], layer: int, fan_in: int, rows: int, columns: int) -> nn.Parameter:
    """Uniform in ± 1 / sqrt(fan_in), as nn.Linear: [M, rows, columns]."""
    drawn = [torch.rand(rows, columns, generator=generator(seed, "methods-head", layer)) for seed in seeds]
    return nn.Parameter((2 * torch.stack(drawn) - 1) / fan_in**0.5)


# --- training ---------------------------------------------------------------------------------------------------------


class Objective(nn.Module):
    """A loss for all heads at once, with the matrix and the priors that it needs.

    Args:
        name: The loss.
        transition: [K, K].
        prior: Of each seed, [S, K].
        share: Share of each label among the training labels of each seed, [S, K].
        groups: Number of learning rates; the heads are groups of S.
    """

    def __init__(self, name: str, transition: Tensor, prior: Tensor, share: Tensor, groups: int) -> None:
        super().__init__()
        self.method: Method = LOSS_METHODS[name]
        self.function: Callable[..., Tensor] = losses.LOSSES[name]
        bound = losses.build(name, transition, prior[0], share[0])  # checks the matrix
        self.transition, self.prior, self.inverse = transition, prior.repeat(groups, 1), bound.inverse
        self.share = None if bound.share is None else share.repeat(groups, 1)
        start = None if bound.learned is None else bound.learned.detach().expand(len(prior), -1, -1)
        self.learned = nn.ParameterList(() if start is None else (start.clone() for _ in range(groups)))

    def matrices(self) -> Tensor:
        """The transition matrix of each head, [M, K, K]."""
        if not len(self.learned):
            return self.transition.expand(len(self.prior), -1, -1)
        return torch.cat(list(self.learned)).softmax(2)

    def forward(self, logits: Tensor, excluded: Tensor) -> Tensor:
        """Sum over heads of the mean loss of the batch: [M, B, K], [M, B, K] -> scalar."""
        options = {} if self.inverse is None else {"inverse": self.inverse}
        shares = {} if self.share is None else {"share": self.share}
        each = torch.vmap(lambda f, t, matrix, prior, own: self.function(f, t, matrix, prior, **options, **own))
        total: Tensor = each(logits, excluded, self.matrices(), self.prior, shares).sum(1)
        return (total / (excluded.sum(2) > 0).sum(1).clamp_min(1)).sum()

    def decoders(self) -> list[tuple[Tensor, Tensor] | None]:
        """`losses.BoundLoss.decoder` of each head."""
        if self.method.decoding == "largest logit":
            return [None] * len(self.prior)
        identity = torch.eye(len(self.transition), device=self.transition.device)
        plain = self.method.matrix == "for decoding"
        return [(identity if plain else matrix, matrix) for matrix in self.matrices().detach()]


def train(
    problem: Problem, loss: str, head: str, lrs: Sequence[float], epochs: int, batch: int, hidden: int = HIDDEN
) -> list[dict[str, Any]]:
    """Train all heads of a loss with Adam.

    Args:
        problem: Features and labels.
        loss: Name of the loss.
        head: linear or mlp.
        lrs: Learning rates.
        epochs: Passes over the training examples.
        batch: Batch size; the last partial batch of an epoch is dropped.
        hidden: Hidden units of mlp.

    Returns:
        The metrics of each head: for each learning rate, those of each seed.
    """
    seeds, count, classes = problem.excluded.shape
    device, size = problem.train.device, hidden if head == "mlp" else 0
    heads = [Heads(range(seeds), problem.train.shape[1], classes, size).to(device) for _ in lrs]
    objective = Objective(loss, problem.transition, problem.prior, problem.share, len(lrs)).to(device)
    groups = [
        {"params": list(part.parameters()), "lr": lr, "weight_decay": WEIGHT_DECAY}
        for part, lr in zip(heads, lrs, strict=True)
    ]
    groups += [{"params": [matrix], "lr": lr} for matrix, lr in zip(objective.learned, lrs, strict=False)]
    optimizer = torch.optim.Adam(groups, fused=True)
    history: list[list[dict[str, float]]] = [[] for _ in range(seeds * len(lrs))]
    for epoch in range(epochs):
        order = torch.randperm(count, generator=generator(0, "methods-order", epoch)).to(device)
        for index in order[: count // batch * batch].split(batch):
            x, excluded = problem.train[index], problem.excluded[:, index].float().repeat(len(lrs), 1, 1)
            cost = objective(torch.cat([part(x) for part in heads]), excluded)
            optimizer.zero_grad(set_to_none=True)
            cost.backward()
            optimizer.step()
        if (epoch + 1) % max(1, epochs // EVALUATIONS) == 0 or epoch + 1 == epochs:
            for row, found in zip(history, _evaluate(problem, heads, objective), strict=True):
                row.append(found | {"epoch": epoch + 1})
    return [
        {"lr": lr, "seed": seed} | _summary(history[i * seeds + seed])
        for i, lr in enumerate(lrs)
        for seed in range(seeds)
    ]


def _summary(history: list[dict[str, float]]) -> dict[str, float]:
    best = min(history, key=lambda found: found["scel"])
    return {
        "accuracy_last": history[-1]["accuracy"],
        "accuracy_selected": best["accuracy"],
        "accuracy_best_on_test": max(found["accuracy"] for found in history),
        "selected_epoch": best["epoch"],
        "scel_selected": best["scel"],
        "estimated_accuracy_selected": best["estimated"],
    }


@torch.no_grad()
def _evaluate(problem: Problem, heads: Sequence[Heads], objective: Objective) -> Iterator[dict[str, float]]:
    """Calibrated SCEL and estimated accuracy on validation labels, and accuracy on the test set, of each head."""
    validation = torch.cat([part(problem.validation) for part in heads])
    test = torch.cat([part(problem.test) for part in heads])
    seeds = len(problem.excluded)
    for i, (outputs, on_test, decoder) in enumerate(zip(validation, test, objective.decoders(), strict=True)):
        labels = problem.validation_excluded[i % seeds]
        table = scel_by_sharpness(outputs, labels, problem.transition if decoder is None else decoder[0])
        scel = float(calibrate(table).double().mean())
        logits = losses.decode(outputs, decoder)
        yield {
            "scel": math.inf if math.isnan(scel) else scel,
            "estimated": float(scores.estimated_accuracy(logits, labels, problem.transition)),
            "accuracy": float((losses.decode(on_test, decoder).argmax(1) == problem.truth).double().mean()),
        }


# --- command line -----------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """Train all heads, and write one file per dataset and head."""
    device, seeds = choose_device(options.device), range(options.seeds)
    out = Path(options.out)
    for head in options.heads:
        path, lines = out / f"{options.data}-{head}.jsonl", []
        started = time.perf_counter()
        for kind in options.labels:
            try:
                problem = build_problem(options.data, kind, options.encoder, seeds, options.images, device)
            except UserError as error:
                log.warning("%s is left out: %s", kind, error)
                continue
            for loss in options.losses:
                rows = train(problem, loss, head, options.lrs, options.epochs, options.batch, options.hidden)
                lines += [{"labels": kind, "loss": loss} | row for row in rows]
                best = max(row["accuracy_selected"] for row in rows)
                log.info("%s, %s, %s: up to %.3f (%.0f s)", head, kind, loss, best, time.perf_counter() - started)
        conditions = {
            "data": options.data,
            "head": head,
            "encoder": options.encoder,
            "features": problem.train.shape[1],
            "images": {"training": len(problem.train), "asked": options.images},
            "hidden": options.hidden if head == "mlp" else 0,
            "epochs": options.epochs,
            "batch": options.batch,
            "weight_decay": WEIGHT_DECAY,
            "seconds": round(time.perf_counter() - started, 1),
            "device": device_name(device),
        }
        text = "\n".join(json.dumps(line) for line in [conditions, *map(_rounded, lines)])
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text + "\n")


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 5) if isinstance(v, float) and k != "lr" else v for k, v in line.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from benchmarks import methods_page

    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="train all heads")
    runner.add_argument("--data", default="cifar10")
    runner.add_argument("--encoder", required=True, help="the option encoder, such as file:WEIGHTS")
    runner.add_argument("--out", default="results/methods")
    runner.add_argument("--labels", nargs="+", default=list(LABELS), choices=list(LABELS))
    runner.add_argument("--losses", nargs="+", default=list(LOSS_METHODS), choices=list(LOSS_METHODS))
    runner.add_argument("--heads", nargs="+", default=list(HEADS), choices=HEADS)
    runner.add_argument("--lrs", nargs="+", type=float, default=list(LRS))
    runner.add_argument("--seeds", type=int, default=5)
    runner.add_argument("--epochs", type=int, default=20)
    runner.add_argument("--batch", type=int, default=512)
    runner.add_argument("--hidden", type=int, default=HIDDEN, help="hidden units of mlp")
    runner.add_argument("--images", type=int, help="use that many training images; all by default")
    runner.add_argument("--device", default="auto")
    runner.set_defaults(action=run)
    page = commands.add_parser("page", help="write the page of stored results")
    page.add_argument("folder", type=Path)
    page.add_argument("--out", type=Path, default=Path("docs/notes/methods.md"))
    page.set_defaults(action=lambda options: atomic_write(options.out, methods_page.render(options.folder)))
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.action(options)


if __name__ == "__main__":
    main()
