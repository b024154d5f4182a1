"""Who is mixed with whom: partners drawn inside groups, without a loop over the batch.

Members of a group are laid side by side (one sort); a partner is then an offset inside the group, so a
draw is a few vectorised operations of fixed shape on any device.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Groups(NamedTuple):
    """Examples sorted by group. All int64 [N]: ``order`` lists them; the rest is per example."""

    order: Tensor
    start: Tensor
    size: Tensor
    rank: Tensor


class Pool(NamedTuple):
    """The whole training set as a source of partners.

    ``groups``: of all N training examples. ``load``: (index int [B], generator) -> (inputs, excluded)
    as the training loop itself loads a batch.
    """

    groups: Groups
    load: Callable[[Tensor, torch.Generator | None], tuple[Tensor, Tensor]]


def group(ids: Tensor) -> Groups:
    """Sort examples by group. ``ids`` int [N]: the group of each."""
    order = torch.argsort(ids, stable=True)
    ordered = ids[order]
    start = torch.searchsorted(ordered, ids)
    size = torch.searchsorted(ordered, ids, right=True) - start
    place = torch.empty_like(order)
    place[order] = torch.arange(len(ids), device=ids.device)
    return Groups(order, start, size, place - start)


def draw(
    groups: Groups,
    index: Tensor,
    count: int = 1,
    distinct: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw ``count`` (1 or 2) partners for each example of ``index`` int [B], uniformly. -> int [B, count]."""
    return pick(groups, index, torch.rand(count, len(index), device=index.device, generator=generator), distinct)


def pick(groups: Groups, index: Tensor, uniform: Tensor, distinct: bool = True) -> Tensor:
    """The partners that random numbers stand for: index int [B], uniform [count, B] -> int [B, count].

    ``distinct``: never the example itself, and no partner twice where the group is large enough (in a
    group of two the second partner is the first again). A lone example is its own partner; see
    ``groups.size``.
    """
    start, size, rank = groups.start[index], groups.size[index], groups.rank[index]
    if not distinct:
        offsets = [_below(u, size) for u in uniform]
    else:
        offsets = [1 + _below(uniform[0], size - 1)]
        for u in uniform[1:]:
            second = 1 + _below(u, size - 2)
            second = second + (second >= offsets[0]).long()  # step over the first partner
            offsets.append(torch.minimum(second, size - 1))
    return torch.stack([groups.order[start + (rank + offset) % size] for offset in offsets], dim=1)


def _below(uniform: Tensor, size: Tensor) -> Tensor:
    """A whole number in 0 .. size - 1 (0 where size < 1). uniform [B], size int [B] -> int [B]."""
    return torch.minimum((uniform * size).long(), size - 1).clamp_min(0)


def pick_where(allowed: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A partner among those allowed, each equally likely: bool [B, B], uniform [B, B] -> (int [B], found bool [B])."""
    return torch.where(allowed, uniform, -1.0).argmax(1), allowed.any(1)
