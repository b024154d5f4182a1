"""Which examples a run uses, and their complementary labels and transition matrices."""

import logging
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from complementary import labels, long_tail, oracle, transitions
from complementary.config import Config, PretrainConfig
from complementary.data.dataset import Dataset
from complementary.data.registry import REGISTRY
from complementary.errors import UserError
from complementary.rng import generator

log = logging.getLogger(__name__)
AnyRun = TypeVar("AnyRun", Config, PretrainConfig)

# --- examples -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subset:
    """Which training examples of a dataset are used: all of them, or a long tail.

    Attributes:
        long_tail: Ratio of the largest to the smallest class.
        head: Size of the largest class; None: as in the paper, else the size of the smallest class.
        order: Whether the seed draws the examples of each class, or the first ones are taken.
        seed: The seed.
        holdout: Share of them that is left out: the validation split of a run with this share and the same seed.
    """

    long_tail: float = 1.0
    head: int | None = None
    order: Literal["seed", "first"] = "seed"
    seed: int = 0
    holdout: float = 0.0

    @staticmethod
    def of(config: Config | PretrainConfig) -> "Subset":
        """The examples of a run, its validation split included, or of a pretraining."""
        if isinstance(config, PretrainConfig):
            return Subset(config.long_tail, config.head, config.subset, config.seed, config.holdout)
        options, ratio = config.dataset, config.dataset.long_tail
        if options.labels.startswith("setup"):
            tail, _ = long_tail.setup(options.labels)
            if ratio not in (1.0, tail):
                raise UserError(
                    f"labels = {options.labels} means a long tail of {tail:g}, but long_tail is {ratio:g}.", "long_tail"
                )
            ratio = tail
        return Subset(ratio, options.head, "first" if options.draws == "paper" else options.subset, config.seed)

    def index(self, dataset: Dataset) -> Tensor:
        """Positions of the examples in the training split of ``dataset``, int [M]."""
        train, seed = dataset.train, None if self.order == "first" else self.seed
        index = long_tail.subset(
            train.truth, len(dataset.classes), len(train), self.long_tail, self.head, dataset.head, seed
        )
        return index[validation_split(len(index), self.holdout, self.seed)[0]] if self.holdout else index

    @property
    def is_everything(self) -> bool:
        return self.long_tail == 1 and self.head is None and not self.holdout


def validation_split(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split 0 .. count - 1 at random into training and validation examples, int [N] and int [V], each in order."""
    order = torch.randperm(count, generator=generator(seed, "holdout"))
    held = round(share * count)
    return order[held:].sort().values, order[:held].sort().values


def count_examples(config: Config) -> int:
    """Number of training examples of a named dataset, including the validation split."""
    subset, named = Subset.of(config), REGISTRY[config.dataset.data]
    if subset.is_everything:
        return named.train
    head = subset.head or named.head or named.train // len(named.classes)
    return sum(long_tail.class_sizes(head, subset.long_tail, len(named.classes)))


def fit_batch(config: AnyRun, dataset: Dataset, processes: int = 1) -> AnyRun:
    """Lower the batch of a configuration if the dataset has fewer training examples than one batch.

    Args:
        config: The configuration of a run or of a pretraining.
        dataset: Its dataset.
        processes: Number of processes that share a batch.

    Returns:
        The configuration itself, or one with a quarter of the examples as batch (2 at least).
    """
    examples = len(Subset.of(config).index(dataset))
    if isinstance(config, Config):
        examples -= round(config.dataset.holdout * examples)
    batch: int = config.flat()["batch"]
    if examples >= batch:
        return config
    smaller = max(2, examples // 4)
    smaller = max(processes * (smaller // processes), processes)
    log.info("the batch is %d instead of %d, because there are only %d training examples", smaller, batch, examples)
    return config.with_(batch=smaller)


def fit_clusters(config: Config, dataset: Dataset) -> Config:
    """Lower the number of clusters of a configuration to a tenth of the examples (2 at least), if they are few."""
    examples, most = len(Subset.of(config).index(dataset)), config.cluster.clusters
    clusters = usual_clusters(examples, most)
    needed = config.mixed_within == "clusters" and config.cluster.assignments is None
    if not needed or clusters >= most:
        return config
    log.info("%d clusters instead of %d, because there are only %d examples", clusters, most, examples)
    return config.with_(clusters=clusters)


def usual_clusters(examples: int, most: int) -> int:
    """Number of clusters that suits so many examples: ten per cluster, at least two clusters and at most ``most``."""
    return min(most, max(2, examples // 10))


def same_for_all_seeds(config: Config) -> bool:
    """Whether runs with different seeds train on the same examples."""
    subset = Subset.of(config)
    return subset.is_everything or subset.order == "first"


# --- labels -------------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """The examples of a run and their complementary labels.

    Attributes:
        examples: Positions in the training split of the dataset, int [M].
        transition: The matrix that the labels were drawn with, [K, K]; None: they came with the data.
        excluded: Complementary labels, uint8 [M, K].
    """

    examples: Tensor
    transition: Tensor | None
    excluded: Tensor


def select(config: Config, dataset: Dataset) -> Selection:
    """Select the training examples of a run, and draw their complementary labels unless they came with the data."""
    options, classes, train = config.dataset, len(dataset.classes), dataset.train
    if train.truth is None and train.excluded is None:
        raise UserError(
            f"The dataset {dataset.name} has no labels, which is enough for pretraining only; add complementary labels "
            "(not_y in an .npz file, or a table of labels with cll data import)."
        )
    source, index = label_source(config, dataset), Subset.of(config).index(dataset)
    if source == "given":
        if train.excluded is None:
            raise UserError(f"The dataset {dataset.name} has no complementary labels; use labels = uniform.", "labels")
        excluded = train.excluded[index]
        if (message := labels.describe_rare_labels(excluded, dataset.classes)) is not None:
            log.warning(message)
        return Selection(index, None, excluded)
    truth = require_truth(dataset, "drawing labels")[index]
    transition = transitions.parse(source, classes, "labels")
    if options.draws == "paper":
        if source != "uniform" or options.per_example != 1:
            raise UserError("draws = paper supports one uniform label per example only.", "draws")
        return Selection(index, transition, labels.draw_as_paper(truth, classes))
    excluded = labels.draw(truth, transition, options.per_example, config.seed)
    return Selection(index, labels.marginal(transition, options.per_example), excluded)


def label_source(config: Config, dataset: Dataset) -> str:
    """The option ``labels`` with ``auto`` and the paper's setups resolved: given, uniform, biased:RATIO, …"""
    source = config.dataset.labels
    if source == "auto":
        return "uniform" if dataset.train.excluded is None else "given"
    return long_tail.setup(source)[1] if source.startswith("setup") else source


def describe_drawn_labels(config: Config, dataset: Dataset) -> str | None:
    """A message if labels are drawn from the true classes of an ``.npz``, and the configuration does not say so.

    Arrays called y are read as true classes, but may say what an example is not.
    """
    automatic = config.dataset.data.endswith(".npz") and config.dataset.labels == "auto"
    if not automatic or dataset.train.truth is None or dataset.train.excluded is not None:
        return None
    return (
        f"{dataset.name} has no complementary labels; y was read as true classes and uniform labels were drawn. If y "
        "says what an example is not, name it not_y."
    )


def require_truth(dataset: Dataset, purpose: str) -> Tensor:
    """The true labels of the training split, int [N]; raises if there are none."""
    if dataset.train.truth is None:
        raise UserError(f"The dataset {dataset.name} has no true labels, which {purpose} needs.")
    return dataset.train.truth


def transition_matrices(
    config: Config, truth: Tensor | None, excluded: Tensor, generating: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Transition matrices of a run.

    Args:
        config: The configuration.
        truth: True labels, int [M], if known; used for ``transition = oracle`` only.
        excluded: Complementary labels, [M, K].
        generating: The matrix that the labels were drawn with, [K, K], if known.

    Returns:
        The matrix for SCEL and URE, and that for the loss, [K, K] each. Only the second one may be an oracle. For
        ``transition = estimate`` both are uniform, until a first training has estimated them.
    """
    classes, source = excluded.shape[1], config.training.transition
    known = transitions.uniform(classes) if generating is None or source == "estimate" else generating
    if source in ("auto", "estimate"):
        return known, known
    if source == "oracle":
        if truth is None:
            raise UserError("transition = oracle needs true labels, but there are none; use estimate.", "transition")
        return known, oracle.empirical_transition(truth, excluded)
    matrix = transitions.parse(source, classes, "transition")
    return matrix, matrix
