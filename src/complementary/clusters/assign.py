"""Clusters of the training examples: from a file, from the cache, or computed.

An assignment file is small and bound to the examples it was made for. With it a classifier can be trained without the
encoder (option ``assignments``).
"""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import files
from complementary.clusters import cache
from complementary.clusters.features import FeatureExtractor
from complementary.clusters.kmeans import is_sampled, kmeans
from complementary.clusters.spectral import leading, spectral
from complementary.config import Config
from complementary.data.rows import Rows
from complementary.errors import UserError
from complementary.reports.terminal import log_progress
from complementary.rng import address

log = logging.getLogger(__name__)

VERSION = 1  # of assignment files


# --- clusters of a configuration --------------------------------------------------------------------------------------


def clusters_of(extractor: FeatureExtractor, count: int | None = None, points: Tensor | None = None) -> Tensor:
    """Assign each training example of a run to a cluster.

    Args:
        extractor: The examples, their features and the configuration.
        count: Number of clusters; None: that of the configuration.
        points: What `points_of` returns, if it is known already, [M, D].

    Returns:
        The cluster of each example, int64 [M].
    """
    options, inputs = extractor.config.cluster, extractor.inputs
    if options.assignments is not None:
        return read_assignment(Path(options.assignments), inputs)[0]
    count = options.clusters if count is None else count
    if count == 0:
        mix = extractor.config.mixing.mix
        raise UserError(f"{mix} mixes within clusters, but clusters is 0; use 50, or mix = mixup.", "clusters")
    many = len(inputs) >= cache.MIN_EXAMPLES

    def make() -> Tensor:
        found = points_of(extractor) if points is None else points
        if many:
            what = "images" if inputs.ndim == 4 else "vectors"
            log.info("clustering %s %s into %d clusters", f"{len(inputs):,}", what, count)
        return cluster_points(extractor.config, found, count)

    key = extractor.key() if many else None
    if key is not None:
        key |= {
            "kmeans": 2 if is_sampled(len(inputs), count) else 1,
            "clusters": count,
            "restarts": options.restarts,
            "seed": extractor.config.seed,
        }
        key |= {} if options.clustering == "kmeans" else {options.clustering: 1}
    return cache.cached(
        "clusters",
        key,
        make,
        lambda path: read_assignment(path, inputs, extractor.fingerprint)[0],
        lambda path, found: write_assignment(path, found, count, inputs, key or {}, extractor.fingerprint),
    )


def points_of(extractor: FeatureExtractor) -> Tensor:
    """What k-means runs on: features, or eigenvectors of their neighbor graph. Unit vectors, float32 [M, D]."""
    if extractor.config.cluster.clustering == "kmeans":
        return extractor.train
    count = len(extractor.inputs)
    many = count >= cache.MIN_EXAMPLES

    def progress(done: int) -> None:
        log_progress(log, f"neighbors of {count:,} examples", done, count)

    def make() -> Tensor:
        if many:
            log.info("finding the nearest neighbors of %s examples (all pairs are compared)", f"{count:,}")
        return spectral(extractor.train.to(extractor.device), progress=progress).cpu()

    return cache.cached_vectors("spectral", extractor.key() if many else None, make)


def cluster_points(config: Config, points: Tensor, count: int) -> Tensor:
    """k-means with the seed and restarts of a configuration.

    Args:
        config: The configuration.
        points: What `points_of` returns, [M, D].
        count: Number of clusters.

    Returns:
        The cluster of each point, int64 [M].
    """
    if config.cluster.clustering == "spectral":
        points = leading(points, count)
    return kmeans(points, count, address(config.seed, "clusters"), config.cluster.restarts).assignment


# --- files ------------------------------------------------------------------------------------------------------------


def write_assignment(
    path: Path,
    assignment: Tensor,
    clusters: int,
    inputs: Tensor | Rows,
    made_by: dict[str, Any],
    fingerprint: str | None = None,
) -> None:
    """Write the clusters of some examples to a file.

    Args:
        path: The file.
        assignment: The cluster of each example, int [M].
        clusters: Number of clusters.
        inputs: The examples, [M, ...].
        made_by: How the clusters were made, JSON-able.
        fingerprint: SHA-256 of the inputs, if it is known already.
    """
    if len(assignment) != len(inputs) or int(assignment.max()) >= clusters:
        raise UserError(
            f"{len(assignment)} assignments, up to cluster {int(assignment.max())}, do not fit {len(inputs)} examples "
            f"and {clusters} clusters; nothing was written."
        )
    small = assignment.to(torch.uint8 if clusters <= 256 else torch.int32)
    inputs_sha256 = fingerprint or files.fingerprint_rows(inputs)
    record = {"version": VERSION, "clusters": clusters, "inputs_sha256": inputs_sha256, "made_by": made_by}
    files.write_checkpoint(path, {"assignment": small}, record)


def read_assignment(
    path: Path, inputs: Tensor | Rows | None = None, fingerprint: str | None = None
) -> tuple[Tensor, dict[str, Any]]:
    """Read the clusters of some examples from a file.

    Args:
        path: The file.
        inputs: The examples that it must have been made for, [M, ...]; None: do not check.
        fingerprint: SHA-256 of the inputs, if it is known already.

    Returns:
        The cluster of each example, int64 [M], and the record of the file.

    Raises:
        UserError: The file is missing, damaged or made for other examples.
    """
    if not path.exists():
        raise UserError(f"There is no file {path.absolute()}; create it with cll cluster.", "assignments")
    tensors, record = files.read_checkpoint(path)
    if "assignment" not in tensors or record.get("version") != VERSION:
        raise UserError(f"{path} is not a cluster assignment of version {VERSION}.", "assignments")
    assignment = tensors["assignment"].long()
    if assignment.ndim != 1 or not len(assignment) or int(assignment.min()) < 0:
        shape = list(assignment.shape)
        raise UserError(f"{path} contains no clusters: its assignment has shape {shape}.", "assignments")
    if inputs is not None and len(assignment) != len(inputs):
        raise UserError(
            f"{path} assigns {len(assignment)} examples, but this run has {len(inputs)}; data, long_tail and seed must "
            "be those that the file was made with.",
            "assignments",
        )
    if inputs is not None and (fingerprint or files.fingerprint_rows(inputs)) != record.get("inputs_sha256"):
        raise UserError(
            f"{path} was made for {len(assignment)} other examples; check data, long_tail and seed.", "assignments"
        )
    return assignment, record
