"""Metrics that need true labels: for evaluation and studies, never for training.

- Noise of mixing: `noise_ratio`, `expected_noise_ratio`.
- Clusters against classes: `same_class`, `purity`, `contingency`.
- Features: `knn_accuracy`, `linear_accuracy`.
- Labels: `empirical_transition`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import mixing, transitions
from complementary.mixing import GroupMixup
from complementary.rng import address, generator

# --- noise of mixing --------------------------------------------------------------------------------------------------


def is_noisy(members: Tensor, truth: Tensor, excluded: Tensor) -> Tensor:
    """Whether a mix carries a wrong complementary label.

    A mix is noisy if the complementary label of a member names the true class of *another* member.

    Args:
        members: The mixed examples, int [B, M].
        truth: True class of every example, int [N].
        excluded: Complementary labels of every example, [N, K].

    Returns:
        bool [B].
    """
    classes, labels = truth[members], excluded[members] > 0  # [B, M], [B, M, K]
    named = labels.gather(2, classes[:, None, :].expand(-1, members.shape[1], -1))  # [b, i, j]: i names the class of j
    other = ~torch.eye(members.shape[1], dtype=torch.bool, device=members.device)
    return (named & other).flatten(1).any(1)


Draw = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""Draws partners: index int [B], generator -> partners int [B, M], and which examples have one, bool [B]."""


def noisy_share(draw: Draw, truth: Tensor, excluded: Tensor, batch: int, passes: int, seed: int, purpose: str) -> float:
    """Share of noisy mixes, counted over random batches.

    Args:
        draw: Draws the partners of the examples of a batch.
        truth: int [N].
        excluded: [N, K].
        batch: Batch size.
        passes: Passes over the data.
        seed: Seed of batches and partners.
        purpose: Address of the random numbers, besides the seed.

    Returns:
        The share among examples that have a partner; 0.0 if no example has one.
    """
    noisy = torch.zeros((), dtype=torch.long)
    total = torch.zeros((), dtype=torch.long)
    for turn in range(passes):
        source = generator(seed, purpose, turn)
        for index in torch.randperm(len(truth), generator=source).split(batch):
            partners, has_partner = draw(index, source)
            wrong = is_noisy(torch.cat([index[:, None], partners], 1), truth, excluded)
            noisy += (wrong & has_partner).sum()
            total += has_partner.sum()
    return float(noisy / total.clamp_min(1))


def noise_ratio(
    mixer: GroupMixup,
    truth: Tensor,
    excluded: Tensor,
    cluster: Tensor | None,
    batch: int,
    seed: int = 0,
    passes: int = 10,
) -> float:
    """Share of noisy mixes if a mixer draws partners as in training.

    Args:
        mixer: The mixer.
        truth: int [N].
        excluded: [N, K].
        cluster: What examples are mixed within, int [N]; None if the mixer does not need it.
        batch: Batch size; partners come from the batch.
        seed: Seed of batches and partners.
        passes: Passes over the data.

    Returns:
        The share among examples that have a partner.
    """
    truth, excluded = truth.cpu(), excluded.cpu()  # the device of the generator
    cluster = None if cluster is None else cluster.cpu()

    def draw(index: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        local = None if cluster is None else cluster[index]
        chosen, found = mixer.choose(excluded[index], local, index=index, generator=source)
        return (chosen if mixer.pool is not None else index[chosen]), found

    return noisy_share(draw, truth, excluded, batch, passes, seed, "noise")


def noise_ratio_as_coded(
    truth: Tensor, excluded: Tensor, group: Tensor, partners: int, batch: int, seed: int = 0, passes: int = 10
) -> float:
    """Share of noisy mixes if an example may be its own partner, as in the paper's published code.

    Such mixes count and are never noisy. With 50 clusters and batches of 512 they are a tenth of all mixes, so this is
    about .9 of `noise_ratio`.

    Args:
        truth: int [N].
        excluded: [N, K].
        group: What examples are mixed within, int [N].
        partners: Partners per example: 1 for Mixup and ICM, 2 for MICM.
        batch: Batch size.
        seed: Seed of batches and partners.
        passes: Passes over the data.
    """

    def draw(index: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        groups = mixing.group_by(group[index])
        chosen = mixing.draw_partners(groups, torch.arange(len(index)), partners, distinct=False, generator=source)
        return index[chosen], torch.ones(len(index), dtype=torch.bool)

    return noisy_share(draw, truth, excluded, batch, passes, seed, "noise-as-coded")


def expected_noise_ratio(truth: Tensor, transition: Tensor) -> float:
    """Expected noise ratio of plain Mixup with one label per example, without sampling.

    Two examples are drawn independently. With p the class shares and T the transition, the ratio is
    1 - sum over (i, j) of p_i p_j (1 - T_ij) (1 - T_ji): neither label names the class of the other. For 10 balanced
    classes and uniform labels it is 0.9 (1 - (8/9)^2) = 18.9 %.

    Args:
        truth: int [N].
        transition: [K, K].
    """
    share = torch.bincount(truth, minlength=len(transition)).double() / len(truth)
    pair = share[:, None] * share[None, :]
    clean = (1 - transition) * (1 - transition.T)
    return float((pair * (1 - clean)).sum())


# --- clusters ---------------------------------------------------------------------------------------------------------


def same_class(assignment: Tensor, truth: Tensor) -> float:
    """Probability that a random other member of the same cluster has the same class.

    Args:
        assignment: The cluster of each example, int [N].
        truth: int [N].

    Returns:
        The mean over examples that are not alone in their cluster.
    """
    table = contingency(assignment, truth).double()
    size = table.sum(1)
    rate = ((table * (table - 1)).sum(1) / (size - 1).clamp_min(1))[size > 1].sum()
    return float(rate / size[size > 1].sum())


def purity(assignment: Tensor, truth: Tensor) -> float:
    """Share of examples that belong to the most frequent class of their cluster. int [N], int [N]."""
    return float(contingency(assignment, truth).amax(1).sum() / len(truth))


def contingency(assignment: Tensor, truth: Tensor) -> Tensor:
    """Number of examples of each class in each cluster: int [N], int [N] -> int [clusters, K]."""
    assignment, truth = assignment.cpu(), truth.cpu()
    classes = int(truth.max()) + 1
    flat = torch.bincount(assignment * classes + truth, minlength=(int(assignment.max()) + 1) * classes)
    return flat.view(-1, classes)


# --- features ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def knn_accuracy(
    train: Tensor, train_truth: Tensor, test: Tensor, test_truth: Tensor, k: int = 200, temperature: float = 0.1
) -> float:
    """Accuracy of a weighted k-nearest-neighbor classifier, the usual probe of self-supervised encoders.

    Args:
        train: Unit vectors, [N, D].
        train_truth: int [N].
        test: Unit vectors, [M, D].
        test_truth: int [M].
        k: Number of neighbors.
        temperature: Neighbors vote with the weight exp(cosine similarity / temperature).
    """
    classes = int(train_truth.max()) + 1
    one_hot = F.one_hot(train_truth, classes).float()
    correct = 0
    for part, truth in zip(test.split(1024), test_truth.split(1024), strict=True):
        similarity, nearest = (part @ train.T).topk(min(k, len(train)), dim=1)
        votes = (one_hot[nearest] * (similarity / temperature).exp()[..., None]).sum(1)
        correct += int((votes.argmax(1) == truth).sum())
    return correct / len(test)


def linear_accuracy(
    train: Tensor,
    train_truth: Tensor,
    test: Tensor,
    test_truth: Tensor,
    epochs: int = 100,
    batch: int = 1024,
    seed: int = 0,
    balanced: bool = False,
) -> float:
    """Accuracy of a linear probe: one linear layer on standardized features, trained with the true labels.

    Adam with a learning rate of 1e-2, a cosine schedule and no weight decay.

    Args:
        train: Features, [N, D].
        train_truth: int [N].
        test: Features, [M, D].
        test_truth: int [M].
        epochs: Passes over the features.
        batch: Batch size.
        seed: Seed of the batches.
        balanced: For a test set of equal classes: add the logarithm of the class shares to the logits in training.
    """
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    x, x_test = (train - mean) / std, (test - mean) / std
    counts = train_truth.bincount()
    classes = len(counts)
    log_share = (counts / len(train)).clamp_min(1e-9).log() if balanced else torch.zeros(classes, device=x.device)
    source = torch.Generator(device="cpu").manual_seed(address(seed, "probe"))
    # skip_init: the usual initialization would draw from the global generator
    layer = torch.nn.utils.skip_init(torch.nn.Linear, x.shape[1], classes, device=x.device)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=source).to(x.device).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(layer(x[index]) + log_share, train_truth[index]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float((layer(x_test).argmax(1) == test_truth).float().mean())


# --- labels -----------------------------------------------------------------------------------------------------------


def empirical_transition(truth: Tensor, excluded: Tensor) -> Tensor:
    """Count the transition matrix with the true labels.

    Args:
        truth: int [N].
        excluded: Complementary labels, [N, K].

    Returns:
        float64 [K, K]; a class without examples gets a uniform row.
    """
    classes = excluded.shape[1]
    counts = torch.zeros(classes, classes, dtype=torch.float64)
    counts.index_add_(0, truth.long(), excluded.double())
    total = counts.sum(1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp_min(1), transitions.uniform(classes))
