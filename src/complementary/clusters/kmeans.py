"""k-means on CPU or GPU: k-means++ initialization, restarts, Lloyd iterations in bounded memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.rng import generator

CHUNK = 65_536  # rows of distances held at a time


class Clusters(NamedTuple):
    """The result of k-means.

    Attributes:
        assignment: The cluster of each point, int64 [N].
        centers: float32 [K, D].
        inertia: Sum of squared distances of the points to their centers.
    """

    assignment: Tensor
    centers: Tensor
    inertia: float


def kmeans(points: Tensor, clusters: int, seed: int = 0, restarts: int = 10, iterations: int = 300) -> Clusters:
    """Cluster points with k-means.

    Each restart ends when the centers hardly move (1e-4 of the mean variance, as in scikit-learn) or no assignment
    changes. Random numbers are drawn on the CPU, so the same seed gives the same initial centers on every device.

    Args:
        points: float [N, D], on any device.
        clusters: Number of clusters K, 1 to N.
        seed: Determines the initial centers.
        restarts: Number of initializations; the result with the lowest inertia is returned.
        iterations: Maximum number of Lloyd iterations per restart.
    """
    if not 1 <= clusters <= len(points):
        raise UserError(
            f"clusters is {clusters}, but there are {len(points)} points; use 1 to {len(points)}.", "clusters"
        )
    if not bool(torch.isfinite(points).all()):
        raise UserError("The points to cluster contain NaN or infinity; check the embeddings.", "encoder")
    if restarts < 1:
        raise UserError(f"restarts is {restarts}, but k-means needs at least 1.", "restarts")
    middle = points.float().mean(0)  # far from the origin |a|^2 - 2ab + |b|^2 would lose all precision
    points = (points - middle).float()
    norms = points.square().sum(1)
    starts = (_start(points, norms, clusters, seed, r) for r in range(restarts))
    runs = (_lloyd(points, norms, start, iterations) for start in starts)
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centers=(best.centers + middle).float())


def _start(points: Tensor, norms: Tensor, clusters: int, seed: int, restart: int) -> Tensor:
    """k-means++ (Arthur and Vassilvitskii 2007), greedy as in scikit-learn: the best of a few candidates. [K, D]."""
    source = generator(seed, "kmeans", restart)
    tries = 2 + int(torch.tensor(float(clusters)).log())
    first = int(torch.randint(len(points), (1,), generator=source))
    chosen = [first]
    nearest = _squared(points, norms, points[[first]])[:, 0]
    for _ in range(clusters - 1):
        mass = nearest.double().cumsum(0)
        aim = torch.rand(tries, dtype=torch.float64, generator=source).to(points.device) * mass[-1]
        candidates = torch.searchsorted(mass, aim).clamp_max(len(points) - 1)
        reached = torch.minimum(nearest[:, None], _squared(points, norms, points[candidates]))
        best = reached.sum(0).argmin()
        nearest = reached[:, best]
        chosen.append(int(candidates[best]))
    return points[chosen]


def _lloyd(points: Tensor, norms: Tensor, centers: Tensor, iterations: int) -> Clusters:
    assignment, distance = assign(points, centers, norms)
    still = 1e-4 * float(points.var(0, unbiased=False).mean())
    for _ in range(iterations):
        before, centers = centers, _means(points, assignment, distance, centers)
        moved, distance = assign(points, centers, norms)
        settled = torch.equal(moved, assignment) or float((centers - before).square().sum()) <= still
        assignment = moved
        if settled:
            break
    return Clusters(assignment, centers, float(distance.double().sum()))


def _means(points: Tensor, assignment: Tensor, distance: Tensor, centers: Tensor) -> Tensor:
    """New centers [K, D]; an empty cluster moves to the point that is farthest from its center."""
    count = torch.bincount(assignment, minlength=len(centers)).to(points.dtype)
    total = torch.zeros_like(centers).index_add_(0, assignment, points)
    empty = (count == 0).nonzero()[:, 0]
    means = total / count.clamp_min(1)[:, None]
    if len(empty):
        means[empty] = points[distance.topk(len(empty)).indices]
    return means


def assign(points: Tensor, centers: Tensor, norms: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Find the nearest center of each point.

    Args:
        points: float [N, D].
        centers: float [K, D].
        norms: Squared lengths of the points, [N], if they are known already.

    Returns:
        The index of the nearest center, int64 [N], and the squared distance to it, [N].
    """
    norms = points.square().sum(1) if norms is None else norms
    parts = []
    for part, lengths in zip(points.split(CHUNK), norms.split(CHUNK), strict=True):
        distance, nearest = _squared(part, lengths, centers).min(1)
        parts.append((nearest, distance))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _squared(points: Tensor, norms: Tensor, centers: Tensor) -> Tensor:
    """Squared distances [N, K] by |a|^2 - 2ab + |b|^2: one matrix product instead of N x K x D differences."""
    return torch.addmm(norms[:, None] + centers.square().sum(1), points, centers.T, alpha=-2).clamp_min(0)
