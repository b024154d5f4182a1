"""All losses on stored features: linear and MLP heads, several kinds of labels, one learning rate per method.

    python -m benchmarks.methods run --data cifar10 --encoder file:results/encoders/….safetensors --out results/methods
    python -m benchmarks.methods page results/methods --out docs/notes/methods.md

A head on features is tiny, so all heads of a loss (learning rates x seeds) are trained as one computation: they see the
same batches, and differ in initial weights, labels and learning rate. On a GPU a step is a CUDA graph. One line of the
output is one head.
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

from complementary import data, losses, priors, transitions
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.data.selection import select
from complementary.engine.backend import Captured, Engine, device_name, versions
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.losses.base import per_label
from complementary.losses.registry import LOSS_METHODS, Method
from complementary.rng import generator
from complementary.training.selection import scel_by_sharpness

log = logging.getLogger(__name__)

LABELS: dict[str, dict[str, Any]] = {
    "uniform": {"labels": "uniform"},
    "biased 10:1": {"labels": "biased:10"},
    "noisy 4 %": {"labels": "noisy:0.04"},
    "long tail 100": {"labels": "uniform", "long_tail": 100.0, "subset": "first"},
    "ACL": {"labels": "given"},
}
"""Kinds of labels, as options. ACL: those of a vision-language model, which come with the dataset acl + name."""
ORDER = (
    *("fwd", "s-nl", "s-nl-w", "s-exp", "s-lin", "s-gce", "cpe-f", "cpe-t", "mcl-mae", "mcl-exp", "mcl-log", "fwd-la"),
    *("scarce", "l-uw", "dm", "ure-t", "ure", "pc", "op", "cpe-i", "op-w", "ure-tnn", "ure-nn", "ure-tga", "ure-ga"),
)
"""The losses in the order in which they are trained: those that did best so far come first."""
LRS = (3e-4, 1e-3, 3e-3, 1e-2)
HEADS = ("linear", "mlp")
HIDDEN = 256
WEIGHT_DECAY = 1e-4
EVALUATIONS = 5  # during training, at equal distances


@dataclasses.dataclass(frozen=True)
class Problem:
    """Features of the same examples with labels of several kinds and seeds: R rows of labels.

    Attributes:
        rows: The kind of labels and the seed of each row.
        train: Standardized features, [N, D].
        validation: [V, D].
        test: [T, D].
        truth: True labels of the test set, int [T]; for the evaluation only.
        excluded: Complementary labels of the training examples, [R, N, K].
        validation_excluded: [R, V, K].
        transition: The matrix that losses are given, [R, K, K]: the generating one, or uniform if it is not known.
        prior: Class prior, estimated from the training labels, [R, K].
    """

    rows: tuple[tuple[str, int], ...]
    train: Tensor
    validation: Tensor
    test: Tensor
    truth: Tensor
    excluded: Tensor
    validation_excluded: Tensor
    transition: Tensor
    prior: Tensor

    @property
    def share(self) -> Tensor:
        """Share of each label among the training labels, [R, K]."""
        return torch.stack([per_label(labels.float()).mean(0) for labels in self.excluded])


def build_problem(
    name: str, kinds: Sequence[str], encoder: str, seeds: int, images: int | None, device: torch.device
) -> Problem:
    """Load features, and draw labels of every kind for every seed.

    Args:
        name: Dataset.
        kinds: Keys of `LABELS`; they must use the same examples.
        encoder: The option ``encoder``.
        seeds: Number of seeds of labels and initial weights.
        images: Use that many training images, chosen at random; None: all. A long tail is used whole.
        device: Where to compute.
    """
    base = Config.of(data=name, encoder=encoder, mix="none")
    if "ACL" in kinds:
        data.load(f"acl{name}")  # fails early if there are no such labels
    dataset = data.load(name)
    assert dataset.test is not None
    assert dataset.test.truth is not None
    features = FeatureExtractor(base, dataset, torch.arange(len(dataset.train)), str(device))
    on_train, on_test = features.train, features.test()
    assert on_test is not None
    rows, drawn = [], []
    for kind in kinds:
        source = f"acl{name}" if kind == "ACL" else name
        labeled = data.load(source)
        for seed in range(seeds):
            drawn.append(select(base.with_(**LABELS[kind], data=source, seed=seed), labeled))
            rows.append((kind, seed))
    examples = drawn[0].examples
    assert all(torch.equal(found.examples, examples) for found in drawn)
    order = torch.randperm(len(examples), generator=generator(0, "methods"))
    order = order if images is None or len(examples) < len(dataset.train) else order[:images]
    held = len(order) // 10
    excluded = torch.stack([found.excluded for found in drawn])[:, order]
    uniform = transitions.uniform(excluded.shape[2])
    matrices = [uniform if found.transition is None else found.transition for found in drawn]
    inputs = on_train[examples][order]
    mean, std = inputs.mean(0), inputs.std(0).clamp_min(1e-8)
    shares = [
        priors.from_labels(labels[held:], matrix).share for labels, matrix in zip(excluded, matrices, strict=True)
    ]
    return Problem(
        rows=tuple(rows),
        train=((inputs - mean) / std)[held:].to(device),
        validation=((inputs - mean) / std)[:held].to(device),
        test=((on_test - mean) / std).to(device),
        truth=dataset.test.truth.to(device),
        excluded=excluded[:, held:].to(device),
        validation_excluded=excluded[:, :held].to(device),
        transition=torch.stack(matrices).to(device, torch.float32),
        prior=torch.stack(shares).to(device),
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
    """A loss for all heads at once, with the matrices and priors that it needs.

    Args:
        name: The loss.
        problem: Its R rows of labels.
        groups: Number of learning rates; the heads are groups of R.
    """

    def __init__(self, name: str, problem: Problem, groups: int) -> None:
        super().__init__()
        self.method: Method = LOSS_METHODS[name]
        self.function: Callable[..., Tensor] = losses.LOSSES[name]
        share = problem.share
        bound = [losses.build(name, *row) for row in zip(problem.transition, problem.prior, share, strict=True)]
        self.transition, self.prior = problem.transition.repeat(groups, 1, 1), problem.prior.repeat(groups, 1)
        zeros = torch.zeros(self.prior.shape[1], device=self.prior.device)
        self.log_prior = torch.stack([zeros + row.log_prior for row in bound]).repeat(groups, 1)
        self.options: dict[str, Tensor] = {}  # of each head
        for key in bound[0].keywords():
            self.options[key] = torch.cat([torch.stack([row.keywords()[key] for row in bound])] * groups)
        start = [row.learned.detach() for row in bound if row.learned is not None]
        self.learned = nn.ParameterList(torch.stack(start) for _ in range(groups if start else 0))

    def matrices(self) -> Tensor:
        """The transition matrix of each head, [M, K, K]."""
        return torch.cat(list(self.learned)).softmax(2) if len(self.learned) else self.transition

    def forward(self, logits: Tensor, excluded: Tensor) -> Tensor:
        """Sum over heads of the mean loss of the batch: [M, B, K], [M, B, K] -> scalar."""
        each = torch.vmap(lambda f, t, matrix, prior, options: self.function(f, t, matrix, prior, **options))
        total: Tensor = each(logits, excluded, self.matrices(), self.prior, self.options).sum(1)
        return (total / (excluded.sum(2) > 0).sum(1).clamp_min(1)).sum()

    def decoders(self) -> list[tuple[Tensor, Tensor] | None]:
        """`losses.BoundLoss.decoder` of each head."""
        if self.method.decoding == "largest logit":
            return [None] * len(self.prior)
        identity = torch.eye(self.transition.shape[1], device=self.transition.device)
        plain = self.method.matrix == "for decoding"
        return [(identity if plain else matrix, matrix) for matrix in self.matrices().detach()]


def train(
    problem: Problem,
    loss: str,
    head: str,
    lrs: Sequence[float],
    epochs: int,
    batch: int,
    hidden: int = HIDDEN,
    engine: Engine | None = None,
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
        engine: How to compute; None: step by step, without a CUDA graph.

    Returns:
        The metrics of each head: for each learning rate, those of each row of labels.
    """
    rows, count, classes = problem.excluded.shape
    device, size, batch = problem.train.device, hidden if head == "mlp" else 0, min(batch, count)
    seeds = [seed for _, seed in problem.rows]
    heads = [Heads(seeds, problem.train.shape[1], classes, size).to(device) for _ in lrs]
    objective = Objective(loss, problem, len(lrs))
    groups: list[dict[str, Any]] = [
        {"params": list(part.parameters()), "lr": lr, "weight_decay": WEIGHT_DECAY}
        for part, lr in zip(heads, lrs, strict=True)
    ]
    groups += [{"params": [matrix], "lr": lr} for matrix, lr in zip(objective.learned, lrs, strict=False)]
    optimizer = torch.optim.Adam(groups, fused=True, capturable=device.type == "cuda")

    def step(index: Tensor) -> Tensor:
        x, excluded = problem.train[index], problem.excluded[:, index].float().repeat(len(lrs), 1, 1)
        cost: Tensor = objective(torch.cat([part(x) for part in heads]), excluded)
        optimizer.zero_grad(set_to_none=True)
        cost.backward()
        optimizer.step()
        return cost.detach()

    run_step = step if engine is None else engine.captured(step)
    history: list[list[dict[str, float]]] = [[] for _ in range(rows * len(lrs))]
    for epoch in range(epochs):
        order = torch.randperm(count, generator=generator(0, "methods-order", epoch)).to(device)
        for index in order[: count // batch * batch].split(batch):
            run_step(index)
        if (epoch + 1) % max(1, epochs // EVALUATIONS) == 0 or epoch + 1 == epochs:
            for row, scel, accuracy in zip(history, *_evaluate(problem, heads, objective), strict=True):
                row.append({"epoch": epoch + 1, "scel": scel, "accuracy": accuracy})
    if isinstance(run_step, Captured):
        run_step.close()
    return [
        {"labels": kind, "loss": loss, "lr": lr, "seed": seed} | _summary(history[i * rows + row])
        for i, lr in enumerate(lrs)
        for row, (kind, seed) in enumerate(problem.rows)
    ]


def _summary(history: list[dict[str, float]]) -> dict[str, float]:
    best = min(history, key=lambda found: math.inf if math.isnan(found["scel"]) else found["scel"])
    return {
        "accuracy_last": history[-1]["accuracy"],
        "accuracy_selected": best["accuracy"],
        "accuracy_best_on_test": max(found["accuracy"] for found in history),
        "selected_epoch": best["epoch"],
        "scel_selected": best["scel"],
    }


@torch.no_grad()
def _evaluate(problem: Problem, heads: Sequence[Heads], objective: Objective) -> tuple[list[float], list[float]]:
    """Calibrated SCEL on validation labels, and accuracy on the test set, of each head."""
    groups = len(heads)
    outputs = torch.cat([part(problem.validation) for part in heads])
    labels, decoders = problem.validation_excluded.repeat(groups, 1, 1), objective.decoders()
    to_labels = torch.stack([m if d is None else d[0] for m, d in zip(objective.transition, decoders, strict=True)])
    table = torch.vmap(scel_by_sharpness)(outputs, labels, to_labels, objective.log_prior)  # [M, sharpness, V]
    test = torch.cat([part(problem.test) for part in heads])
    hits = [
        (losses.decode(f, d).argmax(1) == problem.truth).double().mean() for f, d in zip(test, decoders, strict=True)
    ]
    return table.double().mean(2).amin(1).tolist(), torch.stack(hits).tolist()


# --- command line -----------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """Train all heads, and write one file per dataset and head, after every loss: a long run can be stopped.

    If there is a file with the same conditions, its other losses are kept.
    """
    engine, out, started = Engine.choose(options.device, "fp32"), Path(options.out), time.perf_counter()
    together = [kind for kind in options.labels if "long_tail" not in LABELS[kind]]
    alone = [[kind] for kind in options.labels if kind not in together]
    problems = list(_available(options, [together, *alone], engine.device))
    log.info("%s: features and labels (%.0f s)", options.data, time.perf_counter() - started)
    lines: dict[str, list[dict[str, Any]]] = {head: [] for head in options.heads}
    seconds, kept = dict.fromkeys(options.heads, 0.0), dict[str, tuple[list[dict[str, Any]], float]]()
    for loss, head in itertools.product(options.losses, options.heads):
        if options.minutes is not None and time.perf_counter() - started > 60 * options.minutes:
            log.warning(
                "%s: stopped before %s, %s, because %g minutes are over", options.data, loss, head, options.minutes
            )
            return
        before = time.perf_counter()
        for problem in problems:
            try:
                arguments = (options.lrs, options.epochs, options.batch, options.hidden)
                lines[head] += train(problem, loss, head, *arguments, engine)
            except RuntimeError:  # such as too little memory: the other losses go on
                log.exception("%s: %s, %s failed for %s", options.data, head, loss, problem.rows[0][0])
        seconds[head] += time.perf_counter() - before
        log.info("%s: %s, %s (%.1f s)", options.data, loss, head, time.perf_counter() - before)
        conditions = {
            "data": options.data,
            "head": head,
            "encoder": options.encoder,
            "features": problems[0].train.shape[1],
            "images": {kind: len(each.train) for each in problems for kind, _ in each.rows},
            "chosen_images": options.images,
            "hidden": options.hidden if head == "mlp" else 0,
            "epochs": options.epochs,
            "batch": options.batch,
            "weight_decay": WEIGHT_DECAY,
            "device": device_name(engine.device),
            "versions": versions(),
        }
        path = out / f"{options.data}-{head}.jsonl"
        if head not in kept:
            kept[head] = _other_losses(path, conditions, options.losses)
        known, before_that = kept[head]
        conditions["seconds"] = round(before_that + seconds[head], 1)
        text = "\n".join(json.dumps(line) for line in [conditions, *known, *map(_rounded, lines[head])])
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text + "\n")


def _other_losses(path: Path, conditions: dict[str, Any], losses: Sequence[str]) -> tuple[list[dict[str, Any]], float]:
    """The lines of an earlier run with the same conditions, without those of ``losses``, and its seconds."""
    if not path.exists():
        return [], 0.0
    before, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    fixed = [name for name in conditions if name not in ("seconds", "device", "versions")]
    if any(before.get(name) != conditions[name] for name in fixed):
        return [], 0.0
    return [row for row in rows if row["loss"] not in losses], before["seconds"]


def _available(options: argparse.Namespace, groups: list[list[str]], device: torch.device) -> Iterator[Problem]:
    """Problems of the kinds of labels that can be had; the others are logged."""
    for kinds in groups:
        try:
            if kinds:
                yield build_problem(options.data, kinds, options.encoder, options.seeds, options.images, device)
        except UserError as error:
            if "ACL" not in kinds:
                raise
            log.warning("labels ACL are left out: %s", error)
            yield from _available(options, [[kind for kind in kinds if kind != "ACL"]], device)


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 5) if isinstance(v, float) and k != "lr" else v for k, v in line.items()}


def write_page(options: argparse.Namespace) -> None:
    """Write the page of stored results."""
    from benchmarks import methods_page  # it needs scipy, training does not

    atomic_write(options.out, methods_page.render(options.folder))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="train all heads")
    runner.add_argument("--data", default="cifar10")
    runner.add_argument("--encoder", required=True, help="the option encoder, such as file:WEIGHTS")
    runner.add_argument("--out", default="results/methods")
    runner.add_argument("--labels", nargs="+", default=list(LABELS), choices=list(LABELS))
    runner.add_argument("--losses", nargs="+", default=list(ORDER), choices=list(LOSS_METHODS))
    runner.add_argument("--heads", nargs="+", default=list(HEADS), choices=HEADS)
    runner.add_argument("--lrs", nargs="+", type=float, default=list(LRS))
    runner.add_argument("--seeds", type=int, default=5)
    runner.add_argument("--epochs", type=int, default=20)
    runner.add_argument("--batch", type=int, default=512)
    runner.add_argument("--hidden", type=int, default=HIDDEN, help="hidden units of mlp")
    runner.add_argument("--images", type=int, help="use that many training images; all by default")
    runner.add_argument("--device", default="auto")
    runner.add_argument("--minutes", type=float, help="start no further loss after that many minutes")
    runner.set_defaults(action=run)
    page = commands.add_parser("page", help="write the page of stored results")
    page.add_argument("folder", type=Path)
    page.add_argument("--out", type=Path, default=Path("docs/notes/methods.md"))
    page.set_defaults(action=write_page)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.action(options)


if __name__ == "__main__":
    main()
