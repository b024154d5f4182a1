"""From a configuration to the tensors that training sees: examples, labels, clusters, what is held out.

True labels stop here. What leaves for training is a `Task`; figures that needed truth are in its
``facts`` under names that begin with ``oracle``.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from complementary import data, mixing, oracle
from complementary.clusters.assign import group_of
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.rows import Rows, rows_of
from complementary.data.selection import matrices, supervise, truth_of
from complementary.engine.distributed import ProcessGroup
from complementary.errors import UserError
from complementary.mixing import GroupMixup, Pool
from complementary.rng import address, generator
from complementary.training.frozen import FrozenEncoder, check, look


@dataclass(frozen=True)
class Task:
    """All that a training run needs. Inputs may stay where they are, in a memory map; the rest is on one device.

    train [N, ...], excluded uint8 [N, K], group int64 [N] or None: the training examples. held,
    held_excluded: those that choose the epoch. test_inputs, test_truth: evaluation only. transition [K, K]:
    how labels arise, as far as is known without truth. loss_transition: what fwd is given. lens: where inputs are
    features, what made them.
    """

    classes: tuple[str, ...]
    train: Rows
    excluded: Tensor
    group: Tensor | None
    held: Rows
    held_excluded: Tensor
    test_inputs: Tensor | None
    test_truth: Tensor | None
    mean: Tensor
    std: Tensor
    flip: bool
    transition: Tensor
    loss_transition: Tensor
    lens: FrozenEncoder | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def inputs(self) -> Tensor:
        """The training examples as one tensor [N, ...]: a copy, where they are some rows of a larger set."""
        return self.train.whole()

    @functools.cached_property
    def held_inputs(self) -> Tensor:
        """Those held out as one tensor, likewise."""
        return self.held.whole()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.shape[1:])

    def to(self, device: torch.device, inputs: bool = True) -> "Task":
        """The same task with every tensor on ``device``; ``inputs=False`` leaves the inputs where they are."""
        stay = () if inputs else ("train", "held", "test_inputs")
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in stay}
        moved: dict[str, Any] = {k: v.to(device) for k, v in parts.items() if isinstance(v, Tensor | Rows)}
        return dataclasses.replace(self, **moved)

    def shard(self, processes: ProcessGroup) -> "Task":
        """One process's part of the training examples; what is held out and tested is for process 0 alone."""
        if processes.size == 1:
            return self
        part, group = processes.part(), self.group
        kept: dict[str, Any] = {} if processes.is_main else {"held": self.held.take(slice(0)), "test_inputs": None}
        kept |= {"train": self.train.take(part), "excluded": self.excluded[part].contiguous()}
        return dataclasses.replace(self, group=None if group is None else group[part].contiguous(), **kept)


def prepare(config: Config, dataset: Dataset | None = None, device: str = "auto") -> Task:
    """Load the data (or take ``dataset``), draw labels, cluster, hold out. ``device``: where an encoder works."""
    dataset = dataset or data.load(config.dataset.data)
    check(config, dataset)
    classes = len(dataset.classes)
    chosen, generating, excluded = supervise(config, dataset)
    truth = None if dataset.train.truth is None else dataset.train.truth[chosen]
    transition, loss_transition = matrices(config, truth, excluded, generating)
    group = group_of(config, dataset, chosen, device)
    seen = look(config, dataset, chosen, device)
    train, held = hold_out(len(chosen), config.dataset.holdout, config.seed)
    if len(train) < config.training.batch:
        raise UserError(
            f"There are {len(train)} training examples ({len(held)} more are held out), fewer than one batch of "
            f"{config.training.batch}; set batch (--batch) to {max(2, len(train))} or less."
        )
    test = dataset.test if dataset.test is not None and dataset.test.truth is not None else None
    task = Task(
        classes=dataset.classes,
        train=rows_of(seen.source, seen.places[train]),
        excluded=excluded[train],
        group=None if group is None else group[train],
        held=rows_of(seen.source, seen.places[held]),
        held_excluded=excluded[held],
        test_inputs=None if test is None else seen.test,
        test_truth=None if test is None else test.truth,
        mean=seen.mean,
        std=seen.std,
        flip=dataset.flip,
        transition=transition,
        loss_transition=loss_transition,
        lens=seen.lens,
    )
    return dataclasses.replace(task, facts=_facts(config, task, None if truth is None else truth[train], classes))


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split 0 .. count - 1 at random -> (train int [.], held-out int [.]), each in order."""
    order = torch.randperm(count, generator=generator(seed, "holdout"))
    held = round(share * count)
    return order[held:].sort().values, order[:held].sort().values


def training_truth(config: Config, dataset: Dataset | None = None) -> Tensor:
    """The true labels of a task's training examples, int [N]: for oracle pictures and studies only."""
    dataset = dataset or data.load(config.dataset.data)
    chosen, _, _ = supervise(config, dataset)
    train, _ = hold_out(len(chosen), config.dataset.holdout, config.seed)
    return truth_of(dataset, "an oracle study")[chosen][train]


def build_mixer(config: Config, task: Task, load: Any) -> GroupMixup | None:
    """The mixer of this configuration; ``load`` serves its pool if partners come from the whole set."""
    m, v = config.mixing, config.variant
    if m.mix == "none":
        return None
    options: dict[str, Any] = {
        name: getattr(v, name) for name in ("partner", "lam", "label_weights", "alone", "share")
    } | {"alpha": m.alpha}
    options |= {"anchor": v.anchor, "constant": v.constant} if m.mix == "micm" else {}
    options |= {"same_class": v.same_class} if m.mix == "extra-class" else {}
    mixer = mixing.build(m.mix, **options)
    if mixer is not None and v.partners_from == "dataset":
        ids = mixer.groups(task.excluded, task.group)
        mixer = dataclasses.replace(mixer, pool=Pool(mixing.group(ids), load))
    return mixer


def _facts(config: Config, task: Task, truth: Tensor | None, classes: int) -> dict[str, Any]:
    """What a reader of the result wants to know of the data; the oracle part needs truth."""
    facts: dict[str, Any] = {
        "examples": len(task.train),
        "held_out": len(task.held),
        "label_counts": task.excluded.sum(0).tolist(),
        "uses_oracle": config.training.transition == "oracle" or _source(config) == "truth",
    }
    if truth is None:
        return facts
    mixer = build_mixer(config, task, None)
    facts["oracle_class_counts"] = torch.bincount(truth, minlength=classes).tolist()
    facts["oracle_label_noise"] = float((task.excluded[torch.arange(len(truth)), truth] > 0).double().mean())
    facts["oracle_noise_ratio"] = 0.0 if mixer is None else _noise_ratio(config, task, mixer, truth)
    return facts


def _noise_ratio(config: Config, task: Task, mixer: GroupMixup, truth: Tensor) -> float:
    batch, seed = config.training.batch, address(config.seed, "noise")
    return oracle.noise_ratio(mixer, truth, task.excluded, task.group, batch, seed)


def _source(config: Config) -> str:
    maker = mixing.MIXERS[config.mixing.mix]
    return "none" if maker is None else maker.source
