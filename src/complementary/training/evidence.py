"""What the complementary labels of an example and of similar examples say about its class.

One label excludes one class. The labels of 50 similar examples, which are mostly of the same class, exclude nearly all
other classes. This matters for rare classes: a classifier can take all of their examples for a larger class without
much loss, but their neighbors' labels contradict it.
"""

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.clusters.kmeans import kmeans
from complementary.engine.backend import no_capture
from complementary.rng import address
from complementary.training.trainer import Trainer

log = logging.getLogger(__name__)
CHUNK = 1 << 26  # similarities at a time: 268 MB in float32
REFERENCES = 100_000  # neighbors are found among at most as many examples
UNRELATED = (0.3, 0.95)  # share of unrelated neighbors: limits of the estimate
CLUSTERINGS = 3  # runs of k-means
EXPECTED, SPREAD = 0.5, 0.25  # mean and standard deviation of this share before labels are seen


def log_likelihood(excluded: Tensor, transition: Tensor) -> Tensor:
    """Logarithm of the probability of the complementary labels of each example, given each class.

    The labels of an example count as independent.

    Args:
        excluded: Complementary labels, [N, K].
        transition: Probability of each label given the class, [K, K].

    Returns:
        float [N, K].
    """
    logarithm = transition.to(excluded.device, torch.float32).clamp_min(1e-12).log()
    with torch.autocast(excluded.device.type, enabled=False):  # the product must not be bfloat16
        return excluded.float() @ logarithm.T


def evidence_of_neighbors(trainer: Trainer, neighborhood: str = "nearest", wanted: int | None = None) -> Tensor:
    """What the labels of neighbors say about the training examples of all processes, [N, K].

    Neighbors are found in the features that the last layer of the evaluated network sees: the nearest examples
    (``wanted``; None: as many as the option ``neighbors`` says), or those of the same cluster. Rank 0 alone searches.
    """
    task, processes = trainer.task, trainer.processes
    parts = (trainer.features(task.train), task.excluded.float())
    vectors, excluded = (processes.all_gather(part, trainer.examples) for part in parts)
    if not processes.is_main:
        return processes.broadcast(torch.zeros_like(excluded))
    with no_capture():
        wanted = trainer.config.pseudo_labels.neighbors if wanted is None else wanted
        if neighborhood == "cluster":
            seed = address(trainer.config.seed, "clusters", trainer.epoch)
            found = cluster_evidence(vectors, excluded, task.transition, 2 * wanted, seed)
        else:
            found = neighbor_evidence(vectors, excluded, task.transition, wanted)
    return processes.broadcast(found)


def neighbor_evidence(vectors: Tensor, excluded: Tensor, transition: Tensor, neighbors: int) -> Tensor:
    """Logarithm of the likelihood of the labels of an example's nearest neighbors, given the class of the example.

    A neighbor is an unrelated example with a probability that is estimated (`unrelated_share`) and logged; its labels
    follow the labels of all examples. Neighbors count as independent.

    Args:
        vectors: Features of the examples, [N, D].
        excluded: Their complementary labels, [N, K].
        transition: How labels arise from classes, [K, K].
        neighbors: Number of neighbors; at most N - 1 are used.

    Returns:
        float32 [N, K].
    """
    rows = torch.arange(len(vectors), device=vectors.device)
    labels = excluded.to(vectors.device).float()
    matrix = transition.to(vectors.device, torch.float32)
    references = rows[:: -(-len(rows) // REFERENCES)] if len(rows) > REFERENCES else None
    most = len(rows if references is None else references) - 1
    counts = neighbor_counts(vectors, labels, rows, min(neighbors, most), references)
    return _log_likelihood(counts, labels, matrix)


def cluster_evidence(vectors: Tensor, excluded: Tensor, transition: Tensor, size: int, seed: int) -> Tensor:
    """The same as `neighbor_evidence` with the other examples of the same cluster as neighbors.

    The nearest 50 examples of a class of 50 include many of other classes even if the class is well separated; its
    cluster does not. The evidence is averaged over `CLUSTERINGS` runs of k-means, because clusters depend on the start.

    Args:
        vectors: Features of the examples, [N, D].
        excluded: Their complementary labels, [N, K].
        transition: How labels arise from classes, [K, K].
        size: Average size of a cluster.
        seed: Of k-means.

    Returns:
        float32 [N, K].
    """
    labels = excluded.to(vectors.device).float()
    matrix, points = transition.to(vectors.device, torch.float32), F.normalize(vectors.float())
    found, clusters = torch.zeros_like(labels), max(1, len(points) // size)
    for run in range(CLUSTERINGS):
        assignment = kmeans(points, clusters, address(seed, "neighbors", run), restarts=1).assignment.to(labels.device)
        counts = torch.zeros(clusters, labels.shape[1], device=labels.device).index_add_(0, assignment, labels)
        found += _log_likelihood(counts[assignment] - labels, labels, matrix) / CLUSTERINGS
    return found


def _log_likelihood(counts: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Of the counted labels of neighbors [N, K], given the class of the example, whose own labels are ``excluded``."""
    other, share = unrelated_share(counts, excluded, transition), _label_share(excluded)
    log.info("neighbors: about %.0f %% are unrelated examples, by their labels", 100 * float(other))
    return counts @ ((1 - other) * transition + other * share).clamp_min(1e-12).log().T


def unrelated_share(counts: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Estimate the share of neighbors that are no better than random examples, without true labels.

    All other neighbors are of the class of their example; of the unrelated ones some are by chance, so the share of
    neighbors of another class is smaller. Labels of two examples agree more often if both are of the same class. The
    more classes and the fewer examples there are, the less this shows: the estimate is averaged with an expected share,
    by their precision. It is limited to `UNRELATED`: it is an average, and rare classes have more neighbors of other
    classes. Classes count as equally large; for unequal ones it is exact only if the labels are uniform.

    Args:
        counts: Labels of the neighbors of each example, [N, K].
        excluded: Its own complementary labels, float [N, K].
        transition: How labels arise from classes, [K, K].

    Returns:
        float [].
    """
    pairs, agreeing = counts.sum(1) * excluded.sum(1), (counts * excluded).sum(1)
    agreement = agreeing.sum() / pairs.sum().clamp_min(1)
    same, independent = transition.square().sum(1).mean(), _chance_agreement(excluded)
    signal = (same - independent).clamp_min(1e-12)  # 0: labels do not show the class
    # examples share neighbors, so their agreements are dependent: about twice the error of independent ones
    error = 2 * (agreeing - agreement * pairs).square().sum().sqrt() / pairs.sum().clamp_min(1) / signal
    found = 1 - (agreement - independent) / signal
    weight = torch.where(pairs.sum() > 0, 1 / (1 + (error / SPREAD).square()), 0.0)
    averaged = torch.where(weight > 1e-6, EXPECTED + weight * (found - EXPECTED), EXPECTED)
    return averaged.clamp(*UNRELATED)


def _chance_agreement(excluded: Tensor) -> Tensor:
    """Probability that two labels of different examples are equal by chance, unbiased: [N, K] -> []."""
    labels = excluded.double()  # pairs of all labels, less those of the same example
    equal = labels.sum(0).square().sum() - labels.square().sum()
    pairs = labels.sum().square() - labels.sum(1).square().sum()
    return (equal / pairs.clamp_min(1)).to(excluded.dtype)


def _label_share(excluded: Tensor) -> Tensor:
    """Share of each class among the labels, [N, K] -> [K]."""
    return excluded.sum(0) / excluded.sum().clamp_min(1)


def neighbor_counts(
    vectors: Tensor, excluded: Tensor, rows: Tensor, neighbors: int, references: Tensor | None = None
) -> Tensor:
    """Count the complementary labels of the nearest neighbors (cosine similarity): an exact, chunked search.

    Args:
        vectors: [N, D].
        excluded: Complementary labels, [N, K].
        rows: The examples whose neighbors are found, int [n]; an example is not its own neighbor.
        neighbors: Number of neighbors, below the number of references.
        references: Examples that can be neighbors, int [R]; None: all.

    Returns:
        float32 [n, K].
    """
    unit, labels = F.normalize(vectors.float()), excluded.float()
    others = torch.arange(len(unit), device=unit.device) if references is None else references
    labels, compared = (part if references is None else part[references] for part in (labels, unit))
    counts = []
    for part in rows.split(max(1, CHUNK // len(others))):
        similarity = (unit[part] @ compared.T).masked_fill_(part[:, None] == others, -torch.inf)
        nearest = similarity.topk(neighbors, sorted=False).indices
        counts.append(F.embedding_bag(nearest, labels, mode="sum"))
    return torch.cat(counts)
