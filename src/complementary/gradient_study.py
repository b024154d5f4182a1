"""Gradient MSE, bias² and variance of mixing methods while a network learns: an oracle study.

The network is trained on the *true* labels (protocol, section 10: SGD, learning rate 1e-4), so this can
never be part of training; it shows what `gradients` measures along the way.

    >>> from complementary.config import configure
    >>> from complementary.gradient_study import study
    >>> rows = study(configure(data="digits", model="linear", batch=64), methods=("none",), steps=0, device="cpu")
    >>> [sorted(row) for row in rows]
    [['loss', 'method', 'oracle_bias_squared', 'oracle_mse', 'oracle_variance', 'step']]
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from complementary import data, gradients, transitions
from complementary.config import Config, configure
from complementary.data import Dataset
from complementary.errors import UserError, one_of
from complementary.gradients import Moments
from complementary.losses import LOSSES
from complementary.mix import MIXERS, GroupMixup
from complementary.problem import Problem, build_mixer, prepare, training_truth
from complementary.rng import generator
from complementary.supervision import resolve
from complementary.train import Trainer

METHODS = ("none", "mixup", "icm", "micm")
NOISE_FREE = "-noise-free"  # after a mixer's name: labels given that no mix tells a lie


def study(
    config: Config,
    dataset: Dataset | None = None,
    methods: Sequence[str] = METHODS,
    *,
    steps: int = 300,
    every: int = 50,
    lr: float = 1e-4,
    draws: int | None = None,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Train on the *true* labels of unmixed batches by SGD, measuring all methods before every so many steps.

    One network serves all methods, so they are compared at the same weights and on the same batches.
    methods: names of mixers, also followed by ``-noise-free`` (labels given that no mix tells a lie).
    draws: None measures exactly; a number draws labels (needed for networks with batch norm). Loss, network,
    data, batch and mixing options are the configuration's; its ``mix`` is not used. -> one row of plain
    values for each measurement.
    """
    dataset = dataset or data.load(config.source.data)
    if every < 1 or steps < 0 or not lr > 0:
        raise UserError(f"steps is {steps}, every {every} and lr {lr}; wanted steps >= 0, every >= 1 and lr > 0.")
    clustered = any(_source(name) == "cluster" for name in methods)
    problem = prepare(configure(config, mix="icm" if clustered else "none"), dataset, device)
    truth = training_truth(config, dataset)
    transition = _label_transition(config, dataset, problem, truth)
    trainer = Trainer(configure(config, mix="none"), problem, device)
    bench = Bench(trainer, truth.to(trainer.device), transition, draws)
    optimiser = torch.optim.SGD(trainer.model.parameters(), lr)
    rows = []
    for step in range(steps + 1):
        index = _batch(config, len(truth), step).to(trainer.device)
        x, _ = trainer.load(index, generator(config.seed, "gradients", step, device=trainer.device))
        trainer.model.train()
        if step % every == 0:
            rows += [_row(step, name, config, bench.measure(name, config, x, index, step)) for name in methods]
        optimiser.zero_grad()
        nn.functional.cross_entropy(trainer.model(x), bench.truth[index]).backward()
        optimiser.step()
    return rows


class Bench:
    """What measurements share: the network in training, the true labels int [N] and how labels arise [K, K]."""

    def __init__(self, trainer: Trainer, truth: Tensor, transition: Tensor, draws: int | None) -> None:
        self.trainer, self.truth, self.transition, self.draws = trainer, truth, transition, draws

    def measure(self, name: str, config: Config, x: Tensor, index: Tensor, step: int) -> Moments:
        """Mix the batch x [B, ...] of the examples at ``index`` int [B] by the named method, and measure."""
        problem, loss = self.trainer.problem, LOSSES[config.training.loss]
        random = generator(config.seed, "gradients-mix", step, device=x.device)
        mixer = build_mixer(configure(config, mix=name.removesuffix(NOISE_FREE)), problem, None)
        batch = gradients.mixed(mixer, x, self.truth[index], self._group(mixer, index), random)
        options: dict[str, Any] = {"noise_free": name.endswith(NOISE_FREE)}
        options["loss_transition"] = problem.loss_transition
        if self.draws is None:
            return gradients.exact(self.trainer.model, loss, batch, self.transition, **options)
        return gradients.sampled(self.trainer.model, loss, batch, self.transition, self.draws, random, **options)

    def _group(self, mixer: GroupMixup | None, index: Tensor) -> Tensor | None:
        if mixer is None or mixer.source == "none":
            return None
        group = self.truth if mixer.source == "truth" else self.trainer.problem.group
        return None if group is None else group[index]


def _row(step: int, name: str, config: Config, found: Moments) -> dict[str, Any]:
    values = {f"oracle_{field}": float(value) for field, value in found._asdict().items()}
    return {"step": step, "method": name, "loss": config.training.loss, **values}


def _source(name: str) -> str:
    maker = MIXERS[one_of("The method", name.removesuffix(NOISE_FREE), MIXERS)]
    return "none" if maker is None else maker.source


def _label_transition(config: Config, dataset: Dataset, problem: Problem, truth: Tensor) -> Tensor:
    """How the labels of this problem arise, [K, K]: counted from the true labels where they came with the data."""
    most = int(problem.excluded.sum(1).max())
    if most != 1:
        raise UserError(f"The gradient study draws one label per example, but here examples have up to {most}.")
    if resolve(config, dataset)[0] == "given":
        return transitions.empirical_transition(truth, problem.excluded)
    return problem.transition


def _batch(config: Config, examples: int, step: int) -> Tensor:
    """The examples of a step: int [B]. Every epoch has an order of its own; the last partial batch is dropped."""
    size = config.training.batch
    epoch, place = divmod(step, examples // size)
    order = torch.randperm(examples, generator=generator(config.seed, "gradients-order", epoch))
    return order[place * size : (place + 1) * size]
