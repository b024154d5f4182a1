"""Spectral embedding: the leading eigenvectors of the neighbor graph, as the input of k-means.

k-means assumes round clusters, but classes are rarely round. Members of a class are linked by chains of neighbors, and
linked points are close to each other in this embedding (Ng, Jordan and Weiss 2001).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.rng import generator

NEIGHBORS = 20
DIMENSIONS = 30  # further eigenvectors describe a few points only; measured in docs/notes/encoders.md
DENSE = 2_000  # up to this number of points the dense matrix is decomposed
CELLS = 1 << 26  # similarities in memory at a time


@torch.no_grad()
def spectral(
    points: Tensor,
    dimensions: int = DIMENSIONS,
    neighbors: int = NEIGHBORS,
    progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Embed points so that points that are linked by neighbors are close.

    All pairs of points are compared, in blocks: time grows with the square of N, memory with N.

    Args:
        points: Unit vectors, [N, D], on any device.
        dimensions: Number of eigenvectors E; at most N.
        neighbors: Number of neighbors of each point in the graph.
        progress: Called with the number of points whose neighbors have been found.

    Returns:
        Unit vectors, float32 [N, E]; the leading eigenvector first.
    """
    count = len(points)
    dimensions, neighbors = min(dimensions, count), min(neighbors, count - 1)
    if neighbors < 1:
        return torch.ones(count, 1, device=points.device)
    affinity = _affinity(*nearest(points.float(), neighbors, progress))
    if count <= DENSE:
        vectors = torch.linalg.eigh(affinity.to_dense().double()).eigenvectors.flip(1)[:, :dimensions].float()
    else:
        start = torch.randn(count, dimensions, generator=generator(0, "spectral")).to(points.device)
        _, vectors = torch.lobpcg(affinity, X=start, largest=True, niter=200, tol=1e-4)
    return F.normalize(vectors)


def leading(vectors: Tensor, clusters: int) -> Tensor:
    """The eigenvectors that a number of clusters needs: result of `spectral` [N, E] -> [N, min(E, clusters)]."""
    return F.normalize(vectors[:, :clusters])


def nearest(
    points: Tensor, neighbors: int, progress: Callable[[int], None] = lambda done: None
) -> tuple[Tensor, Tensor]:
    """Find the most similar other points by cosine similarity.

    Args:
        points: Unit vectors, [N, D].
        neighbors: Number of neighbors k of each point.
        progress: Called with the number of points done.

    Returns:
        Similarities, float [N, k], and indices, int64 [N, k].
    """
    parts, first = [], 0
    for part in points.split(max(1, CELLS // len(points))):
        similarity = part @ points.T
        similarity.diagonal(first).fill_(-torch.inf)
        parts.append(similarity.topk(neighbors, 1))
        first += len(part)
        progress(first)
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def _affinity(similarity: Tensor, index: Tensor) -> Tensor:
    """The normalized adjacency matrix D^-1/2 (W + W') D^-1/2: similarity, index [N, k] -> sparse [N, N]."""
    count, neighbors = index.shape
    own, other = torch.arange(count, device=index.device).repeat_interleave(neighbors), index.flatten()
    weight = similarity.flatten().clamp_min(1e-6)  # so that isolated points keep a non-zero degree
    where = torch.stack([torch.cat([own, other]), torch.cat([other, own])])
    degree = torch.zeros(count, device=index.device).index_add_(0, where[0], weight.repeat(2))
    weight = weight.repeat(2) * degree.rsqrt()[where].prod(0)
    with torch.sparse.check_sparse_tensor_invariants(False):  # set explicitly; otherwise torch warns
        return torch.sparse_coo_tensor(where, weight, (count, count)).coalesce()
