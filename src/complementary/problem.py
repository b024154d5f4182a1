"""From a configuration to the tensors that training sees: subset, labels, clusters, hold-out.

True labels stop here. What leaves for training is a `Problem`; figures that needed truth are in its
``facts`` under names that begin with ``oracle``.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import assignments, data, diagnose, imbalance, labels, mix, partners, stages, transitions
from complementary.cluster import kmeans
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.screen import to_stderr
from complementary.embed import Source, embed, identity
from complementary.errors import UserError
from complementary.mix import GroupMixup
from complementary.partners import Pool
from complementary.ranks import Team
from complementary.rng import address, generator
from complementary.rows import Rows, rows_of

LONG = 5000  # from so many examples on, clustering takes seconds: it is announced, and kept for the next run


@dataclass(frozen=True)
class Problem:
    """All that a training run needs. Inputs may stay where they are, in a memory map; the rest is on one device.

    train [N, ...], excluded uint8 [N, K], group int64 [N] or None: the training examples. held,
    held_excluded: those that choose the epoch. test_inputs, test_truth: evaluation only. transition [K, K]:
    how labels arise, as far as is known without truth. loss_transition: what fwd is given.
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

    def to(self, device: torch.device, inputs: bool = True) -> "Problem":
        """The same problem with every tensor on ``device``; ``inputs=False`` leaves the inputs where they are."""
        stay = () if inputs else ("train", "held", "test_inputs")
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in stay}
        moved: dict[str, Any] = {k: v.to(device) for k, v in parts.items() if isinstance(v, Tensor | Rows)}
        return dataclasses.replace(self, **moved)

    def shard(self, team: Team) -> "Problem":
        """One process's part of the training examples; what is held out and tested is for process 0 alone."""
        if team.size == 1:
            return self
        part, group = team.part(), self.group
        kept: dict[str, Any] = {} if team.leads else {"held": self.held.take(slice(0)), "test_inputs": None}
        kept |= {"train": self.train.take(part), "excluded": self.excluded[part].contiguous()}
        return dataclasses.replace(self, group=None if group is None else group[part].contiguous(), **kept)


def prepare(config: Config, dataset: Dataset | None = None, device: str = "auto") -> Problem:
    """Load the data (or take ``dataset``), draw labels, cluster, hold out. ``device``: where an encoder works."""
    dataset = dataset or data.load(config.source.data)
    classes = len(dataset.classes)
    chosen, generating, excluded = supervise(config, dataset)
    truth = None if dataset.train.truth is None else dataset.train.truth[chosen]
    transition, loss_transition = _matrices(config, truth, excluded, generating)
    group = _group(config, dataset, chosen, device)
    train, held = hold_out(len(chosen), config.source.holdout, config.seed)
    if len(train) < config.training.batch:
        raise UserError(
            f"There are {len(train)} training examples ({len(held)} more are held out), fewer than one batch of "
            f"{config.training.batch}; set batch to {max(2, len(train))} or less."
        )
    test = dataset.test if dataset.test is not None and dataset.test.truth is not None else None
    problem = Problem(
        classes=dataset.classes,
        train=rows_of(dataset.train.inputs, chosen[train]),
        excluded=excluded[train],
        group=None if group is None else group[train],
        held=rows_of(dataset.train.inputs, chosen[held]),
        held_excluded=excluded[held],
        test_inputs=None if test is None else test.inputs,
        test_truth=None if test is None else test.truth,
        mean=torch.tensor(dataset.mean),
        std=torch.tensor(dataset.std),
        flip=dataset.flip,
        transition=transition,
        loss_transition=loss_transition,
    )
    return dataclasses.replace(problem, facts=_facts(config, problem, None if truth is None else truth[train], classes))


def supervise(config: Config, dataset: Dataset) -> tuple[Tensor, Tensor | None, Tensor]:
    """Choose the examples and their labels -> (index int [M], generating matrix [K, K] or None, excluded [M, K])."""
    source, classes, train = config.source, len(dataset.classes), dataset.train
    if train.truth is None and train.excluded is None:
        raise UserError(
            f"The set {dataset.name} holds no labels at all, which is enough for cll pretrain only; give complementary "
            "ones (not_y in an .npz, or cll data import --labels)."
        )
    spec, ratio = resolve(config, dataset)
    seed = None if source.draws == "paper" or source.subset == "first" else config.seed
    chosen = imbalance.subset(train.truth, classes, len(train), ratio, source.head, dataset.head, seed)
    if spec == "given":
        if train.excluded is None:
            raise UserError(f"The set {dataset.name} comes without complementary labels; use --labels uniform.")
        return chosen, None, train.excluded[chosen]
    truth = _truth(dataset, "drawing labels")[chosen]
    transition = transitions.parse(spec, classes)
    if source.draws == "paper":
        if spec != "uniform" or source.per_example != 1:
            raise UserError("--draws paper knows only one uniform label per example; drop it for other labels.")
        return chosen, transition, labels.draw_as_paper(truth, classes)
    excluded = labels.draw(truth, transition, source.per_example, config.seed)
    return chosen, labels.marginal(transition, source.per_example), excluded


def resolve(config: Config, dataset: Dataset) -> tuple[str, float]:
    """What --labels and --long-tail come to: (label spec without auto and setups, long-tail ratio)."""
    spec, ratio = config.source.labels, config.source.long_tail
    if spec == "auto":
        return ("uniform" if dataset.train.excluded is None else "given"), ratio
    if not spec.startswith("setup"):
        return spec, ratio
    tail, inner = imbalance.setup(spec)
    if ratio not in (1.0, tail):
        raise UserError(f"--labels {spec} sets the long tail to {tail:g}, but --long-tail says {ratio:g}.")
    return inner, tail


def _truth(dataset: Dataset, purpose: str) -> Tensor:
    if dataset.train.truth is None:
        raise UserError(f"The set {dataset.name} has no true labels, which {purpose} needs; use --labels given.")
    return dataset.train.truth


def _matrices(
    config: Config, truth: Tensor | None, excluded: Tensor, generating: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(matrix for SCEL and URE, matrix for the loss): only the second may be an oracle."""
    classes, spec = excluded.shape[1], config.training.transition
    known = transitions.uniform(classes) if generating is None else generating
    if spec in ("auto", "estimate"):  # the estimate needs a first training; it replaces this later
        return known, known
    if spec == "oracle":
        if truth is None:
            raise UserError("--transition oracle counts the true labels, but this set has none; use estimate.")
        return known, transitions.empirical_transition(truth, excluded)
    matrix = transitions.parse(spec, classes)
    return matrix, matrix


def _group(config: Config, dataset: Dataset, chosen: Tensor, device: str) -> Tensor | None:
    """What the mixer is given as ``cluster``: int64 [M] or None."""
    name = config.mixing.mix
    maker = mix.MIXERS[name]
    if maker is None or maker.source == "none":
        return None
    if maker.source == "truth":
        if dataset.train.truth is None:
            raise UserError(f"The oracle mixer {name} needs true labels, but this set has none; use icm.")
        return dataset.train.truth[chosen]
    return clusters_of(config, dataset, chosen, device)


def clusters_of(
    config: Config, dataset: Dataset, chosen: Tensor, device: str = "auto", points: Tensor | None = None
) -> Tensor:
    """The cluster of each training example at ``chosen`` int [M]: int64 [M], from a file, the cache or k-means.

    ``points`` [M, D]: what `points_of` gives, if it is known already.
    """
    grouping, inputs = config.grouping, rows_of(dataset.train.inputs, chosen)
    if grouping.assignments is not None:
        return assignments.read(Path(grouping.assignments), inputs)[0]
    if grouping.clusters == 0:
        name = config.mixing.mix
        raise UserError(
            f"The mixer {name} mixes inside clusters, but there are none; pass --clusters 50 or --mix mixup."
        )

    def make() -> Tensor:
        found = points_of(config, dataset, chosen, device) if points is None else points
        if len(chosen) >= LONG:
            what = "images" if inputs.ndim == 4 else "vectors"
            to_stderr(f"clustering {len(chosen):,} {what} into {grouping.clusters} clusters")
        return cluster_points(config, found, grouping.clusters)

    known = identity(source_of(config, dataset, device), dataset, chosen) if len(chosen) >= LONG else None
    if known is None:
        return make()
    k_means = {"kmeans": 1, "clusters": grouping.clusters, "restarts": grouping.restarts, "seed": config.seed}
    return stages.clusters(inputs, grouping.clusters, known | k_means, make)


def cluster_points(config: Config, points: Tensor, clusters: int) -> Tensor:
    """k-means with this configuration's seed and restarts: points [M, D] -> int64 [M]."""
    return kmeans(points, clusters, address(config.seed, "clusters"), config.grouping.restarts).assignment


def points_of(config: Config, dataset: Dataset, chosen: Tensor, device: str = "auto") -> Tensor:
    """What is clustered: unit vectors float32 [M, D] of the training examples at ``chosen`` int [M]."""
    return embed(source_of(config, dataset, device), dataset, chosen)


def source_of(config: Config, dataset: Dataset, device: str = "auto") -> Source:
    """What the encoder needs to know of this configuration."""
    grouping, source = config.grouping, config.source
    _, tail = resolve(config, dataset)
    draws = "paper" if source.subset == "first" else source.draws  # to an encoder both mean the first examples
    seed = config.seed if grouping.encoder_seed is None else grouping.encoder_seed
    return Source(grouping.encoder, tail, source.head, draws, seed, grouping.pretrain_epochs, device)


def hold_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split 0 .. count - 1 at random -> (train int [.], held-out int [.]), each in order."""
    order = torch.randperm(count, generator=generator(seed, "holdout"))
    held = round(share * count)
    return order[held:].sort().values, order[:held].sort().values


def training_truth(config: Config, dataset: Dataset | None = None) -> Tensor:
    """The true labels of a problem's training examples, int [N]: for oracle pictures and studies only."""
    dataset = dataset or data.load(config.source.data)
    chosen, _, _ = supervise(config, dataset)
    train, _ = hold_out(len(chosen), config.source.holdout, config.seed)
    return _truth(dataset, "an oracle study")[chosen][train]


def build_mixer(config: Config, problem: Problem, load: Any) -> GroupMixup | None:
    """The mixer of this configuration; ``load`` serves its pool if partners come from the whole set."""
    m = config.mixing
    if m.mix == "none":
        return None
    options: dict[str, Any] = {
        name: getattr(m, name) for name in ("alpha", "partner", "lam", "label_weights", "alone", "share")
    }
    options |= {"anchor": m.anchor, "constant": m.constant} if m.mix == "micm" else {}
    options |= {"same_class": m.same_class} if m.mix == "extra-class" else {}
    mixer = mix.build(m.mix, **options)
    if mixer is not None and m.partners_from == "dataset":
        ids = mixer.groups(problem.excluded, problem.group)
        mixer = dataclasses.replace(mixer, pool=Pool(partners.group(ids), load))
    return mixer


def _facts(config: Config, problem: Problem, truth: Tensor | None, classes: int) -> dict[str, Any]:
    """What a reader of the result wants to know of the data; the oracle part needs truth."""
    facts: dict[str, Any] = {
        "examples": len(problem.train),
        "held_out": len(problem.held),
        "label_counts": problem.excluded.sum(0).tolist(),
        "uses_oracle": config.training.transition == "oracle" or _source(config) == "truth",
    }
    if truth is None:
        return facts
    mixer = build_mixer(config, problem, None)
    facts["oracle_class_counts"] = torch.bincount(truth, minlength=classes).tolist()
    facts["oracle_label_noise"] = float((problem.excluded[torch.arange(len(truth)), truth] > 0).double().mean())
    facts["oracle_noise_ratio"] = 0.0 if mixer is None else _noise_ratio(config, problem, mixer, truth)
    return facts


def _noise_ratio(config: Config, problem: Problem, mixer: GroupMixup, truth: Tensor) -> float:
    batch, seed = config.training.batch, address(config.seed, "noise")
    return diagnose.noise_ratio(mixer, truth, problem.excluded, problem.group, batch, seed)


def _source(config: Config) -> str:
    maker = mix.MIXERS[config.mixing.mix]
    return "none" if maker is None else maker.source
