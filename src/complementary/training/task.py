"""From a configuration and a dataset to the tensors of a training: labels, clusters, inputs and validation split.

True labels are not passed on to the training, except those of oracle mixers and of the test set. Metrics that need them
are in the ``data_summary`` of a task, under names that begin with ``oracle``.
"""

import dataclasses
import functools
import logging
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary import data, files, labels, mixing, oracle, priors, transitions
from complementary.clusters.assign import clusters_of
from complementary.clusters.features import FeatureExtractor
from complementary.config import MIXED_WITHIN, ClusterConfig, Config
from complementary.data import Dataset
from complementary.data.rows import Rows, rows_of
from complementary.data.selection import (
    describe_drawn_labels,
    label_source,
    require_truth,
    select,
    transition_matrices,
    validation_split,
)
from complementary.encoders.frozen import FrozenEncoder
from complementary.encoders.seen import were_seen
from complementary.engine.backend import Engine
from complementary.engine.distributed import ProcessGroup
from complementary.errors import UserError
from complementary.files import fingerprint
from complementary.losses.registry import check, method_of
from complementary.mixing import GroupMixup, Pool
from complementary.rng import address
from complementary.transitions import TransitionEstimate

log = logging.getLogger(__name__)
PATCHES_LENGTH = 8  # typical length of the centered features of the encoder patches, as inputs of a network


@dataclass(frozen=True)
class Task:
    """Everything that a training needs. N training and V validation examples, K classes.

    Attributes:
        classes: Names of the classes.
        train: Inputs of the training examples, [N, ...]; they may stay in a memory map.
        train_index: Their positions in the training split of the dataset, int64 [N], on the CPU.
        excluded: Their complementary labels, uint8 [N, K].
        cluster: The group that each is mixed within, int64 [N]; None: all examples.
        validation: Inputs of the validation split, which selects the epoch, [V, ...].
        validation_index: Their positions in the training split of the dataset, int64 [V], on the CPU.
        validation_excluded: Their complementary labels, uint8 [V, K].
        validation_seen: Which of them the encoder was pretrained on, bool [V], on the CPU; None: no encoder, or one
            that was made elsewhere, so that it is not known.
        test_inputs: Inputs of the test set, [T, ...]; for evaluation only.
        test_truth: Their true labels, int64 [T].
        mean: Mean of the inputs, per channel [C] or feature [D].
        std: Standard deviation of the inputs, as ``mean``.
        flip: Whether horizontal flips keep the class.
        transition: How labels arise, as far as is known without true labels, [K, K].
        loss_transition: The matrix that the loss is given, [K, K]; it may be an oracle.
        encoder: The encoder that computed the inputs, if they are features.
        transition_estimate: How precise ``transition`` is, if it was estimated.
        data_summary: What the result reports about the data.
    """

    classes: tuple[str, ...]
    train: Rows
    train_index: Tensor
    excluded: Tensor
    cluster: Tensor | None
    validation: Rows
    validation_index: Tensor
    validation_excluded: Tensor
    test_inputs: Tensor | None
    test_truth: Tensor | None
    mean: Tensor
    std: Tensor
    flip: bool
    transition: Tensor
    loss_transition: Tensor
    encoder: FrozenEncoder | None = None
    validation_seen: Tensor | None = None
    transition_estimate: TransitionEstimate | None = None
    data_summary: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def inputs(self) -> Tensor:
        """The training inputs as one tensor [N, ...]: a copy, if they are some rows of a larger tensor."""
        return self.train.whole()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.shape[1:])

    def to(self, device: torch.device, inputs: bool = True) -> "Task":
        """The task with its tensors on ``device``; ``inputs=False`` leaves the inputs where they are."""
        stay = {"train_index", "validation_index", "validation_seen"} | (
            set() if inputs else {"train", "validation", "test_inputs"}
        )
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in stay}
        moved: dict[str, Any] = {k: v.to(device) for k, v in parts.items() if isinstance(v, Tensor | Rows)}
        return dataclasses.replace(self, **moved)

    def shard(self, processes: ProcessGroup) -> "Task":
        """The part of one process. Only rank 0 keeps the validation split and the test set."""
        if processes.world_size == 1:
            return self
        part, cluster = processes.shard(), self.cluster
        changed: dict[str, Any] = {"train": self.train.take(part), "train_index": self.train_index[part]}
        changed |= {"excluded": self.excluded[part].contiguous()}
        changed |= {"cluster": None if cluster is None else cluster[part].contiguous()}
        changed |= {} if processes.is_main else {"validation": self.validation.take(slice(0)), "test_inputs": None}
        return dataclasses.replace(self, **changed)

    def take(self, index: Tensor) -> "Task":
        """The task with the training examples at ``index``, int [M]."""
        cluster = None if self.cluster is None else self.cluster[index]
        changed: dict[str, Any] = {"train": self.train.take(index), "train_index": self.train_index[index]}
        return dataclasses.replace(self, **changed, excluded=self.excluded[index], cluster=cluster)

    def with_images(self, dataset: Dataset) -> "Task":
        """The same task with the images of the dataset as inputs, instead of their features."""
        inputs = dataset.train.inputs
        return dataclasses.replace(
            self,
            train=rows_of(inputs, self.train_index),
            validation=rows_of(inputs, self.validation_index),
            test_inputs=None if self.test_truth is None or dataset.test is None else dataset.test.inputs,
            mean=torch.tensor(dataset.mean),
            std=torch.tensor(dataset.std),
            encoder=None,
        )


def build_task(
    config: Config, dataset: Dataset | None = None, device: str | Engine = "auto", *, hold_out: bool = True
) -> Task:
    """Build the task of a configuration.

    Args:
        config: The configuration.
        dataset: The dataset; None: the one that the configuration names.
        device: Where an encoder computes: a device, or the engine that also pretrains it.
        hold_out: Whether there is a validation split, as the configuration says. False: all examples are for training,
            with the same encoder.
    """
    dataset = dataset or data.load(config.dataset.data)
    if (warning := check(config, label_source(config, dataset))) is not None:
        log.warning(warning)
    if (message := describe_drawn_labels(config, dataset)) is not None:
        log.warning(message)
    _check_mixing(config)
    _log_unused(config)
    if (shares := config.pseudo_labels.shares()) is not None:
        priors.given(shares, len(dataset.classes))  # its length, also if nothing uses it
    index, generating, excluded = select(config, dataset)
    train, validation = validation_split(len(index), config.dataset.holdout if hold_out else 0.0, config.seed)
    _check_batch(config, len(train), len(validation))
    _check_padding(config, tuple(dataset.train.inputs.shape[1:]))
    message = labels.describe_few_labels(excluded[train])
    if message is not None and hold_out:  # else it was logged for the training split
        log.warning(message)
    truth = None if dataset.train.truth is None else dataset.train.truth[index]
    transition, loss_transition = transition_matrices(config, truth, excluded, generating)
    if (message := transitions.describe_true_labels(transition, dataset.classes)) is not None:
        log.warning(message)
    extractor = FeatureExtractor(config, dataset, index, device)
    inputs = _inputs(extractor)
    cluster = _cluster(extractor, truth)
    test = dataset.test if dataset.test is not None and dataset.test.truth is not None else None
    task = Task(
        classes=dataset.classes,
        train=rows_of(inputs.source, inputs.rows[train]),
        train_index=index[train],
        excluded=excluded[train],
        cluster=None if cluster is None else cluster[train],
        validation=rows_of(inputs.source, inputs.rows[validation]),
        validation_index=index[validation],
        validation_excluded=excluded[validation],
        test_inputs=None if test is None else inputs.test,
        test_truth=None if test is None else test.truth,
        mean=inputs.mean,
        std=inputs.std,
        flip=dataset.flip,
        transition=transition,
        loss_transition=loss_transition,
        encoder=inputs.encoder,
        validation_seen=_seen(extractor, inputs.encoder, index[validation]),
    )
    summary = _summarize(config, task, None if truth is None else truth[train])
    summary["labels_given"] = generating is None
    if task.validation_seen is not None:
        summary["held_out_seen"] = int(task.validation_seen.sum())
    if dataset.features is not None:
        summary["feature_names"] = list(dataset.features)
    return dataclasses.replace(task, data_summary=summary | _summarize_clusters(extractor, cluster))


def training_truth(config: Config, dataset: Dataset | None = None) -> Tensor:
    """True labels of the training examples of a task, int [N]; for oracle metrics and studies only."""
    dataset = dataset or data.load(config.dataset.data)
    index = select(config, dataset).examples
    train, _ = validation_split(len(index), config.dataset.holdout, config.seed)
    return require_truth(dataset, "an oracle study")[index][train]


def _check_batch(config: Config, train: int, validation: int) -> None:
    if train < 2:
        raise UserError(f"There is {train} training example; at least 2 are needed.", "data")
    t = config.training
    closed_form = t.fit == "neighbors" and not config.pseudo_labels.self_training and t.recipe not in ("pocr", "plnl")
    if train < t.batch and not closed_form:
        raise UserError(
            f"There are {train} training examples (and {validation} in the validation split), fewer than one batch of "
            f"{t.batch}; use a smaller one, such as {max(2, min(64, train // 4))}.",
            "batch",
        )


def _check_mixing(config: Config) -> None:
    """Raise if self-training would mix within true classes, because the first training does, instead of clusters."""
    p = config.pseudo_labels
    if p.self_training and config.mixed_within == "truth" and MIXED_WITHIN[p.self_training_mix] == "clusters":
        raise UserError(
            f"mix = {config.mixing.mix} groups the examples by their true classes, so self_training_mix = "
            f"{p.self_training_mix} would mix within these instead of clusters; use mixup or none for self-training, "
            "or another mix.",
            "self_training_mix",
        )


def _log_unused(config: Config) -> None:
    """Log which options of clusters were set although nothing is mixed within clusters."""
    usual, options = ClusterConfig(), config.cluster
    own = [n for n in ("clusters", "clustering", "restarts", "assignments") if n in config.given]
    names = [n for n in own if getattr(options, n) != getattr(usual, n)]
    if names and config.mixed_within != "clusters":
        verb = "is" if len(names) == 1 else "are"
        log.info("%s %s not used: mix = %s needs no clusters", " and ".join(names), verb, config.mixing.mix)


def _check_padding(config: Config, shape: tuple[int, ...]) -> None:
    padding = config.training.padding
    if padding is not None and len(shape) == 3 and padding >= min(shape[1:]):
        raise UserError(f"padding is {padding}, but the images have only {shape[1]} x {shape[2]} pixels.", "padding")


# --- inputs and clusters ------------------------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """What the network is trained on: rows ``rows`` int [M] of ``source`` [., ...], and the test set [T, ...]."""

    source: Tensor
    rows: Tensor
    test: Tensor | None
    mean: Tensor
    std: Tensor
    encoder: FrozenEncoder | None = None


def _inputs(extractor: FeatureExtractor) -> _Inputs:
    """The raw inputs, or standardized features of the encoder, as the option ``inputs`` says."""
    dataset = extractor.dataset
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    if extractor.config.dataset.inputs == "raw":
        test = None if dataset.test is None else dataset.test.inputs
        return _Inputs(dataset.train.inputs, extractor.chosen, test, mean, std)
    features, shape = extractor.train, tuple(dataset.train.inputs.shape[1:])
    encoder = FrozenEncoder(extractor.backbone(), shape, mean, std, extractor.mirror, extractor.seen())
    spread = features.std(0)
    if extractor.encoder.kind == "patches":  # one scale for all features: those of small variance are mostly noise
        spread = torch.full_like(spread, float(spread.norm()) / PATCHES_LENGTH)
    spread = torch.where(spread > 1e-8, spread, 1.0)
    return _Inputs(features, torch.arange(len(features)), extractor.test(), features.mean(0), spread, encoder)


def _seen(extractor: FeatureExtractor, encoder: FrozenEncoder | None, validation: Tensor) -> Tensor | None:
    """Which examples at ``validation`` int [V] the encoder was pretrained on, bool [V]; None: see `Task`.

    An encoder of this package that does not say so, because it is older, is taken for one that has seen all of them.
    """
    if encoder is None:
        return None
    if encoder.seen is not None:
        return were_seen(rows_of(extractor.dataset.train.inputs, validation), encoder.seen)
    weights = extractor.encoder.weights
    made_elsewhere = weights is None or not files.read_record(weights)
    return None if made_elsewhere else torch.ones(len(validation), dtype=torch.bool)


def _cluster(extractor: FeatureExtractor, truth: Tensor | None) -> Tensor | None:
    """The groups that examples are mixed within: clusters or, for oracles, true classes, int64 [M]; None: one group."""
    config = extractor.config
    if config.mixed_within == "clusters":
        return clusters_of(extractor)
    if config.mixed_within == "truth" and truth is None:
        name = extractor.dataset.name
        raise UserError(f"{config.mixing.mix} needs true labels, but the dataset {name} has none; use icm.", "mix")
    return truth if config.mixed_within == "truth" else None


def _summarize_clusters(extractor: FeatureExtractor, cluster: Tensor | None) -> dict[str, Any]:
    """How ``encoder = auto`` was resolved, and a fingerprint of the clusters, by which a resumed run checks them."""
    config, summary = extractor.config, dict[str, Any]()
    clustered = config.mixed_within == "clusters"
    if config.dataset.inputs == "features" or (clustered and config.cluster.assignments is None):
        summary["encoder"] = str(extractor.encoder)
    if clustered and cluster is not None:
        summary["clusters_sha256"] = fingerprint({"cluster": cluster})
    return summary


def build_mixer(config: Config, task: Task, load: Any = None) -> GroupMixup | None:
    """The mixer of a configuration.

    Args:
        config: The configuration.
        task: Its excluded classes and clusters are used if partners come from the whole dataset.
        load: Loads such partners, as `Trainer.load` does.
    """
    m, v = config.mixing, config.variant
    options: dict[str, Any] = {n: getattr(v, n) for n in ("partner", "lam", "label_weights", "alone", "share")}
    options |= {"anchor": v.anchor, "constant": v.constant} if m.mix == "micm" else {}
    options |= {"same_class": v.same_class, "noisy": v.noisy} if m.mix == "extra-class" else {}
    mixer = None if m.mix == "none" else mixing.build(m.mix, alpha=m.alpha, **options)
    if mixer is not None and v.partners_from == "dataset":
        groups = mixing.group_by(mixer.group_ids(task.excluded, task.cluster))
        return dataclasses.replace(mixer, pool=Pool(groups, load))
    return mixer


def class_prior(
    config: Config, excluded: Tensor, transition: Tensor, probabilities: Tensor | None = None
) -> priors.Prior:
    """The class prior, as the option ``prior`` says.

    Args:
        config: The configuration.
        excluded: Complementary labels, [N, K].
        transition: How labels arise from classes, [K, K].
        probabilities: Predictions for these examples [N, K], which make an estimate more precise.
    """
    shares, classes = config.pseudo_labels.shares(), excluded.shape[1]
    if shares is not None:
        return priors.given(shares, classes)
    if config.pseudo_labels.prior == "uniform":
        return priors.uniform(classes)
    if probabilities is None:
        return priors.from_labels(excluded, transition)
    return priors.estimate(probabilities, excluded, transition)


def uses_oracle(config: Config) -> bool:
    """Whether a training is given true labels: for its loss or its mixer."""
    oracle_loss = config.training.transition == "oracle" and method_of(config.training.loss).matrix != "not used"
    return oracle_loss or config.mixed_within == "truth"


def _summarize(config: Config, task: Task, truth: Tensor | None) -> dict[str, Any]:
    """What the result reports about the data; ``truth`` int [N] adds oracle metrics."""
    summary: dict[str, Any] = {
        "examples": len(task.train),
        "held_out": len(task.validation),
        "label_counts": task.excluded.sum(0).tolist(),
        "uses_oracle": uses_oracle(config),
    }
    if truth is None:
        return summary
    mixer, batch, seed = build_mixer(config, task), config.training.batch, address(config.seed, "noise")
    noise = 0.0 if mixer is None else oracle.noise_ratio(mixer, truth, task.excluded, task.cluster, batch, seed)
    wrong = task.excluded[torch.arange(len(truth)), truth] > 0
    return summary | {
        "oracle_class_counts": torch.bincount(truth, minlength=len(task.classes)).tolist(),
        "oracle_label_noise": float(wrong.double().mean()),
        "oracle_noise_ratio": noise,
    }
