"""Points seen through their neighbours: the leading eigenvectors of the neighbour graph, for k-means to cluster.

k-means on features takes clusters to be balls. A class is seldom one; but its members are linked by chains of
neighbours, and what is linked comes to lie together here (Ng, Jordan and Weiss 2001).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.rng import generator

NEIGHBOURS = 20
DIMENSIONS = 30  # more of them hold what only a few points share; docs/encoders.md has the trial
DENSE = 2_000  # up to so many points the whole matrix is decomposed
CELLS = 1 << 26  # similarities held at a time


@torch.no_grad()
def spectral(
    points: Tensor,
    dimensions: int = DIMENSIONS,
    neighbours: int = NEIGHBOURS,
    tell: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Unit vectors [N, D] -> unit vectors float32 [N, at most ``dimensions``] in which linked points are close.

    The dimensions are in order: `leading` takes those that a number of clusters needs. Every pair of points is
    compared, some rows at a time: time grows with the square of N, memory with N. Runs where ``points`` lie.
    ``tell`` is called with the number of points whose neighbours are found.
    """
    count = len(points)
    dimensions, neighbours = min(dimensions, count), min(neighbours, count - 1)
    if neighbours < 1:
        return torch.ones(count, 1, device=points.device)
    affinity = _affinity(*nearest(points.float(), neighbours, tell))
    if count <= DENSE:
        vectors = torch.linalg.eigh(affinity.to_dense().double()).eigenvectors.flip(1)[:, :dimensions].float()
    else:
        start = torch.randn(count, dimensions, generator=generator(0, "spectral")).to(points.device)
        _, vectors = torch.lobpcg(affinity, X=start, largest=True, niter=200, tol=1e-4)
    return F.normalize(vectors)


def leading(vectors: Tensor, clusters: int) -> Tensor:
    """What `spectral` gave [N, D], for so many clusters: [N, at most ``clusters``]; they need no more dimensions."""
    return F.normalize(vectors[:, :clusters])


def nearest(points: Tensor, neighbours: int, tell: Callable[[int], None] = lambda done: None) -> tuple[Tensor, Tensor]:
    """The most similar other points by cosine: unit vectors [N, D] -> (similarity float [N, k], index int [N, k])."""
    parts, first = [], 0
    for part in points.split(max(1, CELLS // len(points))):
        similarity = part @ points.T
        similarity.diagonal(first).fill_(-torch.inf)
        parts.append(similarity.topk(neighbours, 1))
        first += len(part)
        tell(first)
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def _affinity(similarity: Tensor, index: Tensor) -> Tensor:
    """The graph's matrix W + W', scaled by the degrees to D^-1/2 (W + W') D^-1/2: [N, k] twice -> sparse [N, N]."""
    count, neighbours = index.shape
    own, other = torch.arange(count, device=index.device).repeat_interleave(neighbours), index.flatten()
    weight = similarity.flatten().clamp_min(1e-6)  # who resembles nobody keeps faint links, and a finite row
    where = torch.stack([torch.cat([own, other]), torch.cat([other, own])])
    degree = torch.zeros(count, device=index.device).index_add_(0, where[0], weight.repeat(2))
    weight = weight.repeat(2) * degree.rsqrt()[where].prod(0)
    with torch.sparse.check_sparse_tensor_invariants(False):  # said aloud, or torch warns that it does not check
        return torch.sparse_coo_tensor(where, weight, (count, count)).coalesce()
