"""k-means on the device: k-means++ starts, restarts, Lloyd iterations in bounded memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.rng import generator

CHUNK = 65_536  # rows of distances held at a time


class Clusters(NamedTuple):
    """``assignment`` int64 [N], ``centres`` float32 [K, D], ``inertia``: sum of squared distances."""

    assignment: Tensor
    centres: Tensor
    inertia: float


def kmeans(points: Tensor, clusters: int, seed: int = 0, restarts: int = 10, iterations: int = 300) -> Clusters:
    """Cluster ``points`` float [N, D] into ``clusters`` groups; the best of ``restarts`` starts.

    Stops when the centres hardly move (1e-4 of the mean variance, as scikit-learn does), no assignment changes,
    or after ``iterations``. Runs where ``points`` lie. Starts are
    drawn on the CPU, so that the same seed gives the same start on every device.
    """
    if not 1 <= clusters <= len(points):
        raise UserError(
            f"{clusters} clusters were asked for, but there are {len(points)} points: use 1..{len(points)}."
        )
    if not bool(torch.isfinite(points).all()):
        raise UserError("The points to cluster hold NaN or infinity; check the embeddings.")
    if restarts < 1:
        raise UserError(f"restarts is {restarts}, but k-means needs at least 1.")
    middle = points.float().mean(0)  # far from the origin |a|^2 - 2ab + |b|^2 would lose all its digits
    points = (points - middle).float()
    norms = points.square().sum(1)
    starts = (_start(points, norms, clusters, seed, r) for r in range(restarts))
    runs = (_lloyd(points, norms, start, iterations) for start in starts)
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centres=(best.centres + middle).float())


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


def _lloyd(points: Tensor, norms: Tensor, centres: Tensor, iterations: int) -> Clusters:
    assignment, distance = assign(points, centres, norms)
    still = 1e-4 * float(points.var(0, unbiased=False).mean())
    for _ in range(iterations):
        before, centres = centres, _means(points, assignment, distance, centres)
        moved, distance = assign(points, centres, norms)
        settled = torch.equal(moved, assignment) or float((centres - before).square().sum()) <= still
        assignment = moved
        if settled:
            break
    return Clusters(assignment, centres, float(distance.double().sum()))


def _means(points: Tensor, assignment: Tensor, distance: Tensor, centres: Tensor) -> Tensor:
    """New centres; an empty cluster moves to the point that is farthest from its own centre."""
    count = torch.bincount(assignment, minlength=len(centres)).to(points.dtype)
    total = torch.zeros_like(centres).index_add_(0, assignment, points)
    empty = (count == 0).nonzero()[:, 0]
    means = total / count.clamp_min(1)[:, None]
    if len(empty):
        means[empty] = points[distance.topk(len(empty)).indices]
    return means


def assign(points: Tensor, centres: Tensor, norms: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Nearest centre of each point: points [N, D], centres [K, D] -> (int [N], squared distance [N]).

    ``norms`` [N]: the points' squared lengths, if they are known already.
    """
    norms = points.square().sum(1) if norms is None else norms
    parts = []
    for part, lengths in zip(points.split(CHUNK), norms.split(CHUNK), strict=True):
        distance, nearest = _squared(part, lengths, centres).min(1)
        parts.append((nearest, distance))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _squared(points: Tensor, norms: Tensor, centres: Tensor) -> Tensor:
    """Squared distances [N, K] by |a|^2 - 2ab + |b|^2: one matrix product instead of N x K x D differences."""
    return torch.addmm(norms[:, None] + centres.square().sum(1), points, centres.T, alpha=-2).clamp_min(0)
