"""The groups that a mixer mixes inside: clusters of what an encoder sees, or for oracles the true classes."""

from pathlib import Path
from typing import Literal

from torch import Tensor

from complementary import mixing
from complementary.clusters import assignments, cache
from complementary.clusters.features import LONG, Source, embed, identity, teller
from complementary.clusters.kmeans import kmeans
from complementary.clusters.spectral import leading, spectral
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.rows import rows_of
from complementary.data.selection import resolve
from complementary.encoders.spec import EncoderSpec
from complementary.engine.backend import choose_device
from complementary.errors import UserError
from complementary.reports.terminal import to_stderr
from complementary.rng import address


def group_of(config: Config, dataset: Dataset, chosen: Tensor, device: str) -> Tensor | None:
    """What the mixer is given as ``cluster``: int64 [M] or None."""
    name = config.mixing.mix
    maker = mixing.MIXERS[name]
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
    grouping, inputs = config.cluster, rows_of(dataset.train.inputs, chosen)
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
    if grouping.clustering != "kmeans":
        k_means |= {grouping.clustering: 1}
    return cache.clusters(inputs, grouping.clusters, known | k_means, make)


def cluster_points(config: Config, points: Tensor, clusters: int) -> Tensor:
    """k-means with this configuration's seed and restarts: points [M, D] as `points_of` gives them -> int64 [M]."""
    if config.cluster.clustering == "spectral":
        points = leading(points, clusters)
    return kmeans(points, clusters, address(config.seed, "clusters"), config.cluster.restarts).assignment


def points_of(
    config: Config, dataset: Dataset, chosen: Tensor, device: str = "auto", features: Tensor | None = None
) -> Tensor:
    """What k-means is given: unit vectors float32 [M, D] of the training examples at ``chosen`` int [M].

    ``features`` [M, D]: what `features_of` gives, if it is known already.
    """

    def seen() -> Tensor:
        return features_of(config, dataset, chosen, device) if features is None else features

    if config.cluster.clustering == "kmeans":
        return seen()
    count = len(chosen)

    def make() -> Tensor:
        vectors = seen().to(choose_device(device))
        if count < LONG:
            return spectral(vectors).cpu()
        to_stderr(f"finding the neighbours of {count:,} examples (all pairs are compared)")
        return spectral(vectors, tell=teller("found the neighbours of", count)).cpu()

    known = identity(source_of(config, dataset, device), dataset, chosen) if count >= LONG else None
    return make() if known is None else cache.features(known | {"spectral": 1}, make)


def features_of(config: Config, dataset: Dataset, chosen: Tensor, device: str = "auto") -> Tensor:
    """What the encoder makes of the training examples at ``chosen`` int [M]: unit vectors float32 [M, D]."""
    return embed(source_of(config, dataset, device), dataset, chosen)


def source_of(config: Config, dataset: Dataset, device: str = "auto") -> Source:
    """What the encoder needs to know of this configuration."""
    grouping, source = config.cluster, config.dataset
    _, tail = resolve(config, dataset)
    subset: Literal["seed", "first"] = "first" if source.draws == "paper" else source.subset
    seed = config.seed if grouping.encoder_seed is None else grouping.encoder_seed
    if grouping.mirror:
        _check_mirror(config, dataset)
    return Source(
        EncoderSpec.parse(grouping.encoder),
        tail,
        source.head,
        subset,
        seed,
        grouping.pretrain_epochs,
        device,
        grouping.mirror,
    )


def _check_mirror(config: Config, dataset: Dataset) -> None:
    encoder, flip = EncoderSpec.parse(config.cluster.encoder), config.training.flip
    if flip is False:
        raise UserError("--mirror contradicts --flip False, by which mirroring changes the class; leave one out.")
    if not (dataset.flip or flip):
        raise UserError(f"A mirrored image of {dataset.name} may be of another class; leave --mirror out.")
    if not encoder.is_network:
        raise UserError(
            f"--mirror is for encoders that look at images, not for {encoder.kind}; use --encoder simsiam or run:FOLDER."
        )
