"""k-means on CPU or GPU: k-means++ initialization, restarts, Lloyd iterations in bounded memory.

Many points are clustered in two stages: the restarts run on a random sample, then the best centers are refined on all
points, which are read in chunks. The time is then that of a few passes over the points, whatever the restarts need.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.rng import generator

CHUNK = 65_536  # rows of distances held at a time
CELLS = 2**22  # coordinates of points that are converted at a time, in the second stage
LARGE = 2**18  # more points are clustered in two stages
SAMPLE = 2**16  # points in the first stage, at least
PER_CLUSTER = 256  # and at least so many per cluster
PASSES = 10  # at most, in the second stage
SETTLED = 1e-4  # relative decrease of the inertia at which the second stage ends


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

    More than `LARGE` points are clustered in two stages: see `is_sampled`.

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
    if not all(bool(torch.isfinite(part).all()) for part in points.split(CHUNK)):
        raise UserError("The points to cluster contain NaN or infinity; check the embeddings.", "encoder")
    if restarts < 1:
        raise UserError(f"restarts is {restarts}, but k-means needs at least 1.", "restarts")
    if is_sampled(len(points), clusters):
        return _two_stages(points, clusters, seed, restarts, iterations)
    middle = points.float().mean(0)  # far from the origin |a|^2 - 2ab + |b|^2 would lose all precision
    points = (points - middle).float()
    norms = points.square().sum(1)
    starts = (_start(points, norms, clusters, seed, r) for r in range(restarts))
    runs = (_lloyd(points, norms, start, iterations) for start in starts)
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centers=(best.centers + middle).float())


def is_sampled(points: int, clusters: int) -> bool:
    """Whether `kmeans` clusters so many points in two stages, the first on a sample."""
    return points > LARGE and points > 2 * _sample_size(clusters)


def _sample_size(clusters: int) -> int:
    return max(SAMPLE, PER_CLUSTER * clusters)


def _two_stages(points: Tensor, clusters: int, seed: int, restarts: int, iterations: int) -> Clusters:
    """k-means on a random sample, then Lloyd iterations on all points until the inertia hardly decreases."""
    order = torch.randperm(len(points), generator=generator(seed, "kmeans sample"))
    sample = order[: _sample_size(clusters)].sort().values.to(points.device)
    centers = kmeans(points[sample], clusters, seed, restarts, iterations).centers
    middle = centers.mean(0)
    before = math.inf
    for done in range(1, PASSES + 1):
        assignment, inertia, means = _pass(points, centers, middle)
        if done == PASSES or before - inertia <= SETTLED * inertia:
            break
        before, centers = inertia, means
    return Clusters(assignment, centers, inertia)


def _pass(points: Tensor, centers: Tensor, middle: Tensor) -> tuple[Tensor, float, Tensor]:
    """One Lloyd iteration in chunks -> assignment [N], inertia, new centers [K, D]; an empty cluster stays.

    ``middle`` [D] is subtracted from points and centers first, for precision.
    """
    shifted, parts, inertia = centers - middle, list[Tensor](), 0.0
    total = torch.zeros(centers.shape, dtype=torch.float64, device=centers.device)
    count = torch.zeros(len(centers), dtype=torch.float64, device=centers.device)
    for part in points.split(min(CHUNK, max(1, CELLS // points.shape[1]))):
        near = part.float() - middle
        assignment, distance = assign(near, shifted)
        total.index_add_(0, assignment, near.double())
        count += torch.bincount(assignment, minlength=len(centers))
        inertia += float(distance.double().sum())
        parts.append(assignment)
    means = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], shifted.double()).float()
    return torch.cat(parts), inertia, means + middle


def _start(points: Tensor, norms: Tensor, clusters: int, seed: int, restart: int) -> Tensor:
    """k-means++ (Arthur and Vassilvitskii 2007), greedy as in scikit-learn: the best of a few candidates. [K, D]."""
    source = generator(seed, "kmeans", restart)
    tries = 2 + int(torch.tensor(float(clusters)).log())
    first = int(torch.randint(len(points), (1,), generator=source))
    chosen = [first]
    nearest = _squared(points, norms, points[[first]])[:, 0]
    for _ in range(clusters - 1):
        mass = nearest.double().cumsum(0)
        places = torch.rand(tries, dtype=torch.float64, generator=source).to(points.device) * mass[-1]
        candidates = torch.searchsorted(mass, places).clamp_max(len(points) - 1)
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
