"""What mixing does to the labels, seen with the true labels: oracle studies, never used in training."""

from collections.abc import Callable

import torch
from torch import Tensor

from complementary.mix import GroupMixup
from complementary.rng import generator


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
