"""Who is mixed with whom: partners drawn inside groups, without a loop over the batch.

Members of a group are laid side by side (one sort); a partner is then an offset inside the group, so a
draw is a few vectorised operations of fixed shape on any device.

Mixers: Mixup, Intra-Cluster Mixup (ICM), its multiple form (MICM) and the paper's study variants.

A mixer maps ``(x [B, ...], excluded [B, K], cluster [B]) -> (x, excluded)`` and knows nothing of the
training loop, nor the loop of it. A row whose ``excluded`` comes back all zero is left out of the loss.
Calling it is `draw` (all random numbers of a batch) and then `apply` (a pure function, which can be compiled).

    >>> import torch
    >>> from complementary.mixing import ICM
    >>> x, cluster = torch.randn(4, 3), torch.tensor([0, 0, 0, 1])
    >>> excluded = torch.eye(4)
    >>> mixed, soft = ICM(alpha=0.4)(x, excluded, cluster)
    >>> soft.sum(1).round().tolist()      # the last example is alone in its cluster
    [1.0, 1.0, 1.0, 0.0]

Where the paper's text and its published code disagree, the text is the default and the code an option:
`AS_CODED` has them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from complementary.errors import UserError, one_of
from complementary.rng import dirichlet


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


Source = Literal["none", "cluster", "truth"]


class Draw(NamedTuple):
    """The random numbers of one batch: uniform ones that stand for partners, and weights [B, 1 + others]."""

    partner: Tensor
    weight: Tensor


@dataclass(frozen=True)
class GroupMixup:
    """Mix each example with another member of its group: the common part of all mixers.

    alpha: of the Beta distribution of the weight λ of the example itself (the partner has 1 - λ).
    partner: ``distinct`` never mixes an example with itself; ``any`` may.
    lam: a λ for each ``pair``, or one for the whole ``batch``.
    label_weights: ``matched`` to the image's; ``swapped`` gives λ to the partner's label; ``own`` keeps
        the example's own label alone.
    alone: an example without a partner is left out of the loss (``skip``), kept unmixed (``keep``), or
        becomes an all-zero input with a zero label (``black``).
    share: ``new-data`` mixes inputs and labels; ``soft-label`` keeps the input and mixes the labels;
        ``hard-label`` keeps the input and joins the labels (both classes fully excluded).
    pool: draw partners from the whole training set instead of the batch.
    """

    alpha: float = 0.4
    partner: Literal["distinct", "any"] = "distinct"
    lam: Literal["pair", "batch"] = "pair"
    label_weights: Literal["matched", "swapped", "own"] = "matched"
    alone: Literal["skip", "keep", "black"] = "skip"
    share: Literal["new-data", "soft-label", "hard-label"] = "new-data"
    pool: Pool | None = None

    source: ClassVar[Source] = "cluster"  # what the loop must pass as ``cluster``
    others: ClassVar[int] = 1  # partners of each example

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                one_of(f"The {name} of {type(self).__name__}", getattr(self, name), get_args(hint))
        if not 0 < self.alpha < float("inf"):
            raise UserError(f"The mixing parameter alpha is {self.alpha}, but it must be above 0 and finite.")

    def __call__(
        self,
        x: Tensor,
        excluded: Tensor,
        cluster: Tensor | None,
        *,
        index: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mix a batch: x [B, ...], excluded [B, K], cluster int [B] -> mixed x and excluded, same shapes.

        ``index`` int [B]: the examples' places in the training set, needed with a ``pool`` only.
        """
        if not x.is_floating_point():
            raise UserError(f"Inputs of type {x.dtype} cannot be mixed; normalise them to floats first.")
        return self.apply(x, excluded, cluster, self.draw(len(x), x.device, generator), index, generator)

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None) -> Draw:
        """All random numbers for a batch of ``count``."""
        return Draw(self._partner_noise(count, device, generator), self._draw_weights(count, device, generator))

    def apply(
        self,
        x: Tensor,
        excluded: Tensor,
        cluster: Tensor | None,
        draw: Draw,
        index: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What the call does, given its random numbers; ``generator`` is for loading from a pool only."""
        chosen, found = self.pick(excluded, cluster, index, draw.partner)
        members = [(x, excluded)] + [self._take(x, excluded, column, generator) for column in chosen.unbind(1)]
        inputs, labels = [m[0] for m in members], torch.stack([m[1] for m in members], dim=1)
        image_weight, label_weight = self.weights(inputs, draw.weight)
        mixed = self._blend(inputs, image_weight) if self.share == "new-data" else x
        soft = labels.amax(1) if self.share == "hard-label" else (label_weight[..., None] * labels).sum(1)
        return self._settle(x, excluded, mixed, soft, found)

    def groups(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        """The group of each example, int [B]."""
        if cluster is None:
            raise UserError(
                f"The mixer {type(self).__name__} mixes inside clusters, but no clusters were given; "
                "pass the cluster of each example, or use Mixup."
            )
        return cluster

    def choose(
        self,
        excluded: Tensor,
        cluster: Tensor | None,
        *,
        index: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw partners -> (int [B, others], found bool [B]). They index the batch, or the pool if there is one."""
        noise = self._partner_noise(len(excluded), excluded.device, generator)
        return self.pick(excluded, cluster, index, noise)

    def _partner_noise(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.rand(self.others, count, device=device, generator=generator)

    def pick(
        self, excluded: Tensor, cluster: Tensor | None, index: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The partners that ``draw.partner`` stands for -> as `choose`."""
        if self.pool is None:
            groups = group(self.groups(excluded, cluster))
            index = torch.arange(len(excluded), device=excluded.device)
        elif index is None:
            raise UserError("A mixer with a pool needs index, the examples' places in the training set.")
        else:
            groups = self.pool.groups
        return pick(groups, index, noise, self.partner == "distinct"), groups.size[index] > 1

    def weights(self, inputs: list[Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of inputs and of labels, each [B, 1 + others], rows summing to 1, from the ones drawn."""
        if self.label_weights == "swapped":
            return weight, weight.flip(1)
        if self.label_weights == "own":
            return weight, torch.tensor([1.0, 0.0], device=weight.device).expand_as(weight)
        return weight, weight

    def _draw_weights(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        rows = count if self.lam == "pair" else 1
        weight = dirichlet(self.alpha, (rows, 1 + self.others), device, generator)
        return weight.expand(count, 1 + self.others)

    def _take(
        self, x: Tensor, excluded: Tensor, chosen: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        return (x[chosen], excluded[chosen]) if self.pool is None else self.pool.load(chosen, generator)

    def _blend(self, inputs: list[Tensor], weight: Tensor) -> Tensor:
        """Sum of inputs [B, ...] by weight [B, members]; lerp reads and writes once for a pair."""
        w = weight.to(inputs[0].dtype).view(*weight.shape, *[1] * (inputs[0].ndim - 1))
        if len(inputs) == 2:
            return torch.lerp(inputs[1], inputs[0], w[:, 0])
        return sum((w[:, i] * x for i, x in enumerate(inputs[1:], 1)), w[:, 0] * inputs[0])

    def _settle(self, x: Tensor, excluded: Tensor, mixed: Tensor, soft: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Put in place what `alone` says for examples without a partner."""
        rest_x = torch.zeros_like(x) if self.alone == "black" else x
        rest_excluded = excluded if self.alone == "keep" else torch.zeros_like(excluded)
        has_partner = found.view(-1, *[1] * (x.ndim - 1))
        return torch.where(has_partner, mixed, rest_x), torch.where(found[:, None], soft, rest_excluded)


class ICM(GroupMixup):
    """Intra-Cluster Mixup: the partner is a member of the same cluster."""


class Mixup(GroupMixup):
    """Plain Mixup (Zhang et al. 2018): the whole batch is one group. Needs no clusters."""

    source: ClassVar[Source] = "none"

    def groups(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        """One group for all, int [B]."""
        return torch.zeros(len(excluded), dtype=torch.long, device=excluded.device)


class SameExcluded(GroupMixup):
    """Mix only examples with the same complementary label (the first one, where there are several)."""

    source: ClassVar[Source] = "none"

    def groups(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        """The first excluded class, int [B]."""
        return excluded.argmax(1)


class IntraClass(GroupMixup):
    """Oracle study: mix inside the *true* class. Pass the true labels as ``cluster``."""

    source: ClassVar[Source] = "truth"


@dataclass(frozen=True)
class ExtraClass(GroupMixup):
    """Oracle study: mix across true classes, only where no label becomes wrong. True labels as ``cluster``.

    same_class: also allow partners of the same class and the example itself, as the published code did.
    """

    same_class: bool = False

    source: ClassVar[Source] = "truth"

    def _partner_noise(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.rand(count, count, device=device, generator=generator)

    def pick(
        self, excluded: Tensor, cluster: Tensor | None, index: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The partners that ``draw.partner`` stands for -> as `choose`."""
        if self.pool is not None:
            raise UserError("extra-class mixing compares all pairs of a batch and takes no pool; drop it.")
        truth = self.groups(excluded, cluster)
        wrong = excluded[:, truth] > 0  # [i, j]: i's label excludes j's class
        allowed = ~(wrong | wrong.T)
        if not self.same_class:
            allowed &= truth[:, None] != truth[None, :]
        chosen, found = pick_where(allowed, noise)
        return chosen[:, None], found


@dataclass(frozen=True)
class MICM(GroupMixup):
    """Multi Intra-Cluster Mixup: three members of a cluster, labels weighted by inverse distance.

    anchor: distances are measured from the ``mixed`` point (the paper's text) or from the example's
        ``own`` input (its code, where its own distance is always zero and so always ``constant``).
    constant: replaces a distance of zero; C = 30 in the paper. ``label_weights`` does not apply.
    """

    anchor: Literal["mixed", "own"] = "mixed"
    constant: float = 30.0

    others: ClassVar[int] = 2

    def weights(self, inputs: list[Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
        """Dirichlet weights of inputs and inverse-distance weights of labels, each [B, 3]."""
        anchor = inputs[0] if self.anchor == "own" else self._blend(inputs, weight)
        distance = torch.stack([(anchor - x).flatten(1).float().norm(dim=1) for x in inputs], dim=1)
        inverse = 1 / torch.where(distance == 0, self.constant, distance).clamp_min(1e-12)
        return weight, inverse / inverse.sum(1, keepdim=True)


MIXERS: dict[str, type[GroupMixup] | None] = {
    "none": None,
    "mixup": Mixup,
    "icm": ICM,
    "micm": MICM,
    "same-excluded": SameExcluded,
    "intra-class": IntraClass,
    "extra-class": ExtraClass,
}


def build(name: str, **options: Any) -> GroupMixup | None:
    """Make the named mixer (None for ``none``), with the options that it has."""
    maker = MIXERS[one_of("The mixer", name, MIXERS)]
    return None if maker is None else maker(**options)
