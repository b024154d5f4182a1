"""What mixing does to the labels, seen with the true labels: oracle studies, never used in training.

How good are features? kNN and linear probes against the true labels: oracle figures, for reports only.

How good are clusters for mixing? With true labels (oracle), and, up to noise, without.

Without truth: a complementary label with a known transition matrix T is an unbiased view of the true one:
row k of T^-1, for the label "not k", has the true class's one-hot vector as its mean. For two members of a
cluster the product of their rows is then an unbiased estimate of "both are of the same class".
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.mixing import GroupMixup
from complementary.rng import address, generator
from complementary.scores import corrected


def is_noisy(members: Tensor, truth: Tensor, excluded: Tensor) -> Tensor:
    """Whether mixing would tell a lie. members int [B, M], truth int [N], excluded [N, K] -> bool [B].

    A mix is noisy if any member's complementary label names the true class of any *other* member.
    """
    classes, labels = truth[members], excluded[members] > 0  # [B, M], [B, M, K]
    named = labels.gather(2, classes[:, None, :].expand(-1, members.shape[1], -1))  # [i names class of j]
    other = ~torch.eye(members.shape[1], dtype=torch.bool, device=members.device)
    return (named & other).flatten(1).any(1)


Draw = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]  # index int [B] -> partners int [B, M], bool [B]


def noisy_share(draw: Draw, truth: Tensor, excluded: Tensor, batch: int, passes: int, seed: int, purpose: str) -> float:
    """Share of noisy mixes among those that count: ``passes`` times over the data in random batches.

    ``draw`` tells the partners of the examples of a batch, and which of those count; truth int [N], excluded [N, K].
    0 if nobody ever counts.
    """
    noisy = torch.zeros((), dtype=torch.long)
    total = torch.zeros((), dtype=torch.long)
    for turn in range(passes):
        source = generator(seed, purpose, turn)
        for index in torch.randperm(len(truth), generator=source).split(batch):
            partners, counts = draw(index, source)
            lies = is_noisy(torch.cat([index[:, None], partners], 1), truth, excluded)
            noisy += (lies & counts).sum()
            total += counts.sum()
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
    """Share of noisy mixes when this mixer draws partners as in training: an oracle figure.

    truth int [N], excluded [N, K], cluster int [N] or None. ``passes`` times over the data, as in
    `noisy_share`; examples without a partner do not count.
    """
    truth, excluded = truth.cpu(), excluded.cpu()  # pairs are counted where the generator is
    cluster = None if cluster is None else cluster.cpu()

    def draw(index: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        local = None if cluster is None else cluster[index]
        chosen, found = mixer.choose(excluded[index], local, index=index, generator=source)
        return (chosen if mixer.pool is not None else index[chosen]), found

    return noisy_share(draw, truth, excluded, batch, passes, seed, "noise")


def expected_noise_ratio(truth: Tensor, transition: Tensor) -> float:
    """Noise of plain Mixup with one label each, from the class shares alone. truth int [N], transition [K, K]."""
    share = torch.bincount(truth, minlength=len(transition)).double() / len(truth)
    pair = share[:, None] * share[None, :]
    clean = (1 - transition) * (1 - transition.T)
    return float((pair * (1 - clean)).sum())


@torch.no_grad()
def knn_accuracy(
    train: Tensor, train_truth: Tensor, test: Tensor, test_truth: Tensor, k: int = 200, temperature: float = 0.1
) -> float:
    """Weighted k-nearest-neighbour accuracy by cosine similarity, as usual for self-supervised encoders.

    train [N, D], test [M, D]: unit vectors; truth int [N], [M]. Neighbours vote with exp(similarity / temperature).
    """
    classes = int(train_truth.max()) + 1
    votes_of = F.one_hot(train_truth, classes).float()
    right = 0
    for part, truth in zip(test.split(1024), test_truth.split(1024), strict=True):
        similarity, nearest = (part @ train.T).topk(min(k, len(train)), dim=1)
        votes = (votes_of[nearest] * (similarity / temperature).exp()[..., None]).sum(1)
        right += int((votes.argmax(1) == truth).sum())
    return right / len(test)


def linear_accuracy(
    train: Tensor,
    train_truth: Tensor,
    test: Tensor,
    test_truth: Tensor,
    epochs: int = 100,
    batch: int = 1024,
    seed: int = 0,
) -> float:
    """Accuracy of one linear layer trained on frozen features with the true labels.

    train [N, D], test [M, D], truth int [N], [M]. Features are standardised; Adam 1e-2 with a cosine, no decay.
    """
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    x, held = (train - mean) / std, (test - mean) / std
    classes = int(train_truth.max()) + 1
    source = torch.Generator(device="cpu").manual_seed(address(seed, "probe"))
    layer = torch.nn.utils.skip_init(torch.nn.Linear, x.shape[1], classes, device=x.device)  # no global draw
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=source).to(x.device).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(layer(x[index]), train_truth[index]).backward()
            optimiser.step()
        schedule.step()
    with torch.no_grad():
        return float((layer(held).argmax(1) == test_truth).float().mean())


class Estimate(NamedTuple):
    """A value and its standard error; both NaN where nothing can be told."""

    value: float
    error: float


def estimated_same_class(assignment: Tensor, excluded: Tensor, transition: Tensor) -> Estimate:
    """How often a random partner from the same cluster is of the same class, from complementary labels alone.

    assignment int [N], excluded [N, K], transition [K, K]. Unbiased; needs thousands of examples to be sharp.
    Examples alone in their cluster do not count. The error is conservative: up to 1.6 times the spread over draws
    of the labels, more only where labels leave next to no doubt. NaN where nobody has a partner, and where the
    transition is singular (10 classes, a tenth of the labels wrong): such labels tell nothing.
    """
    assignment, excluded, transition = assignment.cpu(), excluded.cpu(), transition.cpu()
    nothing = Estimate(float("nan"), float("nan"))
    if int(torch.linalg.matrix_rank(transition.double(), rtol=1e-6)) < len(transition):
        return nothing
    view = corrected(excluded, transition, torch.zeros(1)).double()  # [N, K], mean: the true one-hot vector
    count = torch.bincount(assignment)
    total = torch.zeros(len(count), view.shape[1], dtype=torch.float64).index_add_(0, assignment, view)
    others = (count[assignment] - 1).clamp_min(1)
    agreement = (view * (total[assignment] - view)).sum(1) / others  # of each example with the others, on average
    paired = count[assignment] > 1
    if not paired.any():
        return nothing
    agreement = agreement[paired]
    error = 2 * agreement.std() / len(agreement) ** 0.5  # 2: each label counts as own and as partner's
    return Estimate(float(agreement.mean()), float(error))


def same_class(assignment: Tensor, truth: Tensor) -> float:
    """How often a random partner from the same cluster is of the same class: the oracle. int [N], int [N]."""
    table = contingency(assignment, truth).double()
    size = table.sum(1)
    rate = ((table * (table - 1)).sum(1) / (size - 1).clamp_min(1))[size > 1].sum()
    return float(rate / size[size > 1].sum())


def purity(assignment: Tensor, truth: Tensor) -> float:
    """Share of examples that are of their cluster's most frequent class: an oracle. int [N], int [N]."""
    return float(contingency(assignment, truth).amax(1).sum() / len(truth))


def contingency(assignment: Tensor, truth: Tensor) -> Tensor:
    """How many examples of each class are in each cluster: int [clusters, K]."""
    assignment, truth = assignment.cpu(), truth.cpu()
    classes = int(truth.max()) + 1
    flat = torch.bincount(assignment * classes + truth, minlength=(int(assignment.max()) + 1) * classes)
    return flat.view(-1, classes)


def recommend(estimates: dict[int, Estimate], sharp: float = 0.08) -> int | None:
    """The smallest number of clusters whose estimate lies within one standard error of the best.

    None where nothing can be told: no estimate, or a standard error of the best one above ``sharp``.
    """
    known = {k: e for k, e in estimates.items() if not math.isnan(e.value)}
    if not known:
        return None
    best = max(known.values(), key=lambda e: e.value)
    if best.error > sharp:
        return None
    return min(k for k, e in known.items() if e.value >= best.value - best.error)
