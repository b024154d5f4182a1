"""What mixing does to the labels, seen with the true labels: oracle studies, never used in training."""

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

    truth int [N], excluded [N, K], cluster int [N] or None. ``passes`` times over the data in random
    batches; examples without a partner do not count. 0 if nobody ever has one.
    """
    noisy = torch.zeros((), dtype=torch.long)
    total = torch.zeros((), dtype=torch.long)
    truth, excluded = truth.cpu(), excluded.cpu()  # pairs are counted where the generator is
    cluster = None if cluster is None else cluster.cpu()
    for turn in range(passes):
        source = generator(seed, "noise", turn)
        for index in torch.randperm(len(truth), generator=source).split(batch):
            local = None if cluster is None else cluster[index]
            chosen, found = mixer.choose(excluded[index], local, index=index, generator=source)
            chosen = chosen if mixer.pool is not None else index[chosen]
            lies = is_noisy(torch.cat([index[:, None], chosen], 1), truth, excluded)
            noisy += (lies & found).sum()
            total += found.sum()
    return float(noisy / total.clamp_min(1))


def expected_noise_ratio(truth: Tensor, transition: Tensor) -> float:
    """Noise of plain Mixup with one label each, from the class shares alone. truth int [N], transition [K, K]."""
    share = torch.bincount(truth, minlength=len(transition)).double() / len(truth)
    pair = share[:, None] * share[None, :]
    clean = (1 - transition) * (1 - transition.T)
    return float((pair * (1 - clean)).sum())
