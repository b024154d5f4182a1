"""Mixing of examples: Mixup, Intra-Cluster Mixup (ICM), its multiple form (MICM) and variants for studies.

A mixer maps ``(x [B, ...], excluded [B, K], cluster [B])`` to mixed ``(x, excluded)`` of the same shapes. It does not
depend on the training loop. A row of the result whose ``excluded`` is all zero does not contribute to the loss. A call
is `draw` (all random numbers of a batch) followed by `apply` (a pure function, which can be compiled).

    >>> import torch
    >>> from complementary.mixing import ICM
    >>> x, cluster = torch.randn(4, 3), torch.tensor([0, 0, 0, 1])
    >>> excluded = torch.eye(4)
    >>> mixed, soft = ICM(alpha=0.4)(x, excluded, cluster)
    >>> soft.sum(1).round().tolist()      # the last example has no partner
    [1.0, 1.0, 1.0, 0.0]

Where the paper's text and its published code differ, the defaults follow the text. `complementary.config.AS_CODED` has
the options of the code; `complementary.config.MIXED_WITHIN` says what each mixer needs as ``cluster``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from complementary.errors import UserError, load_plugin, one_of, plugin_names
from complementary.rng import dirichlet

# --- partners ---------------------------------------------------------------------------------------------------------
# Members of a group are sorted side by side, so that a partner is an offset within the group. A draw is then a few
# vectorized operations of fixed shape, on any device.


class Groups(NamedTuple):
    """Examples sorted by group.

    Attributes:
        order: The examples sorted by group, int64 [N].
        start: Where the group of each example starts in ``order``, int64 [N].
        size: Size of the group of each example, int64 [N].
        rank: Position of each example within its group, int64 [N].
    """

    order: Tensor
    start: Tensor
    size: Tensor
    rank: Tensor


class Pool(NamedTuple):
    """The whole training set as a source of partners.

    Attributes:
        groups: Groups of all N training examples.
        load: (index int [B], generator) -> (inputs, excluded), as the training loop loads a batch.
    """

    groups: Groups
    load: Callable[[Tensor, torch.Generator | None], tuple[Tensor, Tensor]]


def group_by(ids: Tensor) -> Groups:
    """Sort examples by group.

    Args:
        ids: The group of each example, int [N].

    Returns:
        The groups.
    """
    order = torch.argsort(ids, stable=True)
    ordered = ids[order]
    start = torch.searchsorted(ordered, ids)
    size = torch.searchsorted(ordered, ids, right=True) - start
    place = torch.empty_like(order)
    place[order] = torch.arange(len(ids), device=ids.device)
    return Groups(order, start, size, place - start)


def draw_partners(
    groups: Groups,
    index: Tensor,
    count: int = 1,
    distinct: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw partners uniformly from the group of each example.

    Args:
        groups: Groups of N examples.
        index: The examples that get partners, int [B].
        count: Partners per example, 1 or 2.
        distinct: Whether an example is never its own partner; see `pick_partners`.
        generator: Source of the random numbers; None uses the global one.

    Returns:
        int [B, count].
    """
    uniform = torch.rand(count, len(index), device=index.device, generator=generator)
    return pick_partners(groups, index, uniform, distinct)


def pick_partners(groups: Groups, index: Tensor, uniform: Tensor, distinct: bool = True) -> Tensor:
    """Convert random numbers to partners.

    Args:
        groups: Groups of N examples.
        index: The examples that get partners, int [B].
        uniform: Uniform random numbers, [count, B].
        distinct: Whether an example is never its own partner, and two partners differ if the group is large enough (in
            a group of two both partners are the same). An example that is alone in its group is its own partner in any
            case; see ``groups.size``.

    Returns:
        int [B, count].
    """
    start, size, rank = groups.start[index], groups.size[index], groups.rank[index]
    if not distinct:
        offsets = [_below(u, size) for u in uniform]
    else:
        offsets = [1 + _below(uniform[0], size - 1)]
        for u in uniform[1:]:
            second = 1 + _below(u, size - 2)
            second = second + (second >= offsets[0]).long()  # skip the first partner
            offsets.append(torch.minimum(second, size - 1))
    return torch.stack([groups.order[start + (rank + offset) % size] for offset in offsets], dim=1)


def _below(uniform: Tensor, size: Tensor) -> Tensor:
    """Convert uniform [B] to an integer in 0 .. size - 1 (0 if size < 1), int [B]."""
    return torch.minimum((uniform * size).long(), size - 1).clamp_min(0)


def pick_allowed(allowed: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Convert random numbers to partners among those allowed, all equally likely.

    Args:
        allowed: Whether j may be the partner of i, bool [B, B].
        uniform: Uniform random numbers, [B, B].

    Returns:
        The partner of each example, int [B], and whether it has one, bool [B].
    """
    return torch.where(allowed, uniform, -1.0).argmax(1), allowed.any(1)


# --- mixers -----------------------------------------------------------------------------------------------------------


class Draw(NamedTuple):
    """The random numbers of one batch.

    Attributes:
        partner: Uniform numbers that determine the partners, [partner_count, B] ([B, B] for extra-class,
            [B, B + 1] with noisy partners).
        weight: Mixing weights of an example and its partners, [B, 1 + partner_count].
    """

    partner: Tensor
    weight: Tensor


@dataclass(frozen=True)
class GroupMixup:
    """Mixes each example with another member of its group. Base class of all mixers.

    Attributes:
        alpha: Parameter of the Beta distribution of the weight λ of the example itself (its partner has 1 - λ).
        partner: ``distinct``: an example is never its own partner; ``any``: it may be.
        lam: One λ per ``pair``, or one for the whole ``batch``.
        label_weights: ``matched`` to those of the inputs; ``swapped``: the partner's label has λ; ``own``: only the
            label of the example itself counts.
        alone: An example without a partner is left out of the loss (``skip``), kept unmixed (``keep``), or replaced by
            an all-zero input and label (``black``).
        share: ``new-data``: mix inputs and labels; ``soft-label``: keep the input, mix the labels; ``hard-label``: keep
            the input, exclude the classes of all members fully.
        pool: Where partners come from, if not from the batch.
    """

    alpha: float = 0.4
    partner: Literal["distinct", "any"] = "distinct"
    lam: Literal["pair", "batch"] = "pair"
    label_weights: Literal["matched", "swapped", "own"] = "matched"
    alone: Literal["skip", "keep", "black"] = "skip"
    share: Literal["new-data", "soft-label", "hard-label"] = "new-data"
    pool: Pool | None = None

    partner_count: ClassVar[int] = 1
    """Number of partners per example."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                one_of(f"The option {name}", getattr(self, name), get_args(hint), name)
        if not 0 < self.alpha < float("inf"):
            raise UserError(f"The option alpha is {self.alpha}, but it must be above 0 and finite.", "alpha")

    def __call__(
        self,
        x: Tensor,
        excluded: Tensor,
        cluster: Tensor | None,
        *,
        index: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mix a batch.

        Args:
            x: Inputs, float [B, ...].
            excluded: Complementary labels, [B, K].
            cluster: The group of each example, int [B]: its cluster or, for the oracle mixers, its true class. None for
                mixers that do not need it.
            index: Positions of the examples in the training set, int [B]; needed with a ``pool`` only.
            generator: Source of the random numbers; None uses the global one.

        Returns:
            Mixed inputs [B, ...] and soft labels [B, K].
        """
        for name, value in (("x", x), ("excluded", excluded), ("cluster", cluster)):
            if not isinstance(value, Tensor) and not (name == "cluster" and value is None):
                raise UserError(f"{name} is a {type(value).__name__}, not a tensor; convert it with torch.as_tensor.")
        lengths = [len(x), len(excluded), *([] if cluster is None else [len(cluster)])]
        if len(set(lengths)) > 1:
            names = ("x", "excluded", "cluster")
            found = ", ".join(f"{name} {count}" for name, count in zip(names, lengths, strict=False))
            raise UserError(f"The inputs of a mixer must have one row per example, but their lengths differ: {found}.")
        if not x.is_floating_point():
            raise UserError(f"Inputs of type {x.dtype} cannot be mixed; convert them to floats first.")
        return self.apply(x, excluded, cluster, self.draw(len(x), x.device, generator), index, generator)

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None) -> Draw:
        """Draw all random numbers for a batch of ``count`` examples."""
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
        """Mix a batch with the given random numbers; ``generator`` is only used to load from a pool."""
        chosen, found = self.pick(excluded, cluster, index, draw.partner)
        members = [(x, excluded)] + [self._take(x, excluded, column, generator) for column in chosen.unbind(1)]
        inputs, labels = [m[0] for m in members], torch.stack([m[1] for m in members], dim=1)
        input_weight, label_weight = self.weights(inputs, draw.weight, chosen)
        mixed = self._blend(inputs, input_weight) if self.share == "new-data" else x
        soft = labels.amax(1) if self.share == "hard-label" else (label_weight[..., None] * labels).sum(1)
        return self._replace_unmixed(x, excluded, mixed, soft, found)

    def group_ids(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        """The group of each example, int [B]."""
        if cluster is None:
            raise UserError(
                f"The mixer {type(self).__name__} needs the cluster (or true class) of each example, but cluster is "
                "None; pass it, or use Mixup."
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
        """Draw partners without mixing.

        Args:
            excluded: Complementary labels, [B, K].
            cluster: As in a call.
            index: As in a call.
            generator: As in a call.

        Returns:
            Partners, int [B, partner_count], as positions in the batch (or in the training set, with a ``pool``); and
            whether each example has one, bool [B].
        """
        noise = self._partner_noise(len(excluded), excluded.device, generator)
        return self.pick(excluded, cluster, index, noise)

    def pick(
        self, excluded: Tensor, cluster: Tensor | None, index: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `choose`, with given random numbers (``draw.partner``)."""
        if self.pool is None:
            groups = group_by(self.group_ids(excluded, cluster))
            index = torch.arange(len(excluded), device=excluded.device)
        elif index is None:
            raise UserError("A mixer with a pool needs index, the positions of the examples in the training set.")
        else:
            groups = self.pool.groups
        return pick_partners(groups, index, noise, self.partner == "distinct"), groups.size[index] > 1

    def weights(self, inputs: list[Tensor], weight: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of inputs and of labels.

        Args:
            inputs: Inputs of the examples and of their partners, 1 + partner_count tensors [B, ...].
            weight: The drawn weights, [B, 1 + partner_count].
            chosen: The partners, int [B, partner_count].

        Returns:
            Weights of the inputs and of the labels, [B, 1 + partner_count] each; rows sum to 1.
        """
        if self.label_weights == "swapped":
            return weight, weight.flip(1)
        if self.label_weights == "own":
            return weight, torch.tensor([1.0, 0.0], device=weight.device).expand_as(weight)
        return weight, weight

    def _partner_noise(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.rand(self.partner_count, count, device=device, generator=generator)

    def _draw_weights(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        rows = count if self.lam == "pair" else 1
        weight = dirichlet(self.alpha, (rows, 1 + self.partner_count), device, generator)
        return weight.expand(count, 1 + self.partner_count)

    def _take(
        self, x: Tensor, excluded: Tensor, chosen: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        return (x[chosen], excluded[chosen]) if self.pool is None else self.pool.load(chosen, generator)

    def _blend(self, inputs: list[Tensor], weight: Tensor) -> Tensor:
        """Weighted sum of inputs [B, ...], weight [B, members]; for a pair, lerp reads and writes only once."""
        w = weight.to(inputs[0].dtype).view(*weight.shape, *[1] * (inputs[0].ndim - 1))
        if len(inputs) == 2:
            return torch.lerp(inputs[1], inputs[0], w[:, 0])
        return sum((w[:, i] * x for i, x in enumerate(inputs[1:], 1)), w[:, 0] * inputs[0])

    def _replace_unmixed(
        self, x: Tensor, excluded: Tensor, mixed: Tensor, soft: Tensor, found: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Treat examples without a partner (``found`` is False) as the option ``alone`` says."""
        rest_x = torch.zeros_like(x) if self.alone == "black" else x
        rest_excluded = excluded if self.alone == "keep" else torch.zeros_like(excluded)
        has_partner = found.view(-1, *[1] * (x.ndim - 1))
        return torch.where(has_partner, mixed, rest_x), torch.where(found[:, None], soft, rest_excluded)


class ICM(GroupMixup):
    """Intra-Cluster Mixup: partners are members of the same cluster."""


class Mixup(GroupMixup):
    """Plain Mixup (Zhang et al. 2018): any example of the batch can be the partner. Needs no clusters."""

    def group_ids(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        """The same group for all examples, int [B]."""
        return torch.zeros(len(excluded), dtype=torch.long, device=excluded.device)


class SameExcluded(GroupMixup):
    """Partners have the same complementary label (with several labels: the same first one). Needs no clusters."""

    def group_ids(self, excluded: Tensor, cluster: Tensor | None) -> Tensor:
        """The first excluded class, int [B]."""
        return excluded.argmax(1)


class IntraClass(GroupMixup):
    """Oracle: partners have the same *true* class. Pass the true labels as ``cluster``."""


@dataclass(frozen=True)
class ExtraClass(GroupMixup):
    """Oracle: partners have another true class, and no label becomes wrong. Pass the true labels as ``cluster``.

    Attributes:
        same_class: Also allow partners of the same class and the example itself, as in the published code.
        noisy: This share of the examples, drawn in every batch, gets partners by which a label becomes wrong instead.
    """

    same_class: bool = False
    noisy: float = 0.0

    def _partner_noise(self, count: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.rand(count, count + (self.noisy > 0), device=device, generator=generator)

    def pick(
        self, excluded: Tensor, cluster: Tensor | None, index: Tensor | None, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `choose`, with given random numbers (``draw.partner``)."""
        if self.pool is not None:
            raise UserError(
                "The mixer extra-class compares all pairs of a batch, so partners_from must be batch.", "partners_from"
            )
        truth = self.group_ids(excluded, cluster)
        wrong = excluded[:, truth] > 0  # [i, j]: the label of i excludes the class of j
        allowed = ~(wrong | wrong.T)
        if not self.same_class:
            allowed &= truth[:, None] != truth[None, :]
        if self.noisy > 0:
            allowed = torch.where(noise[:, -1:] < self.noisy, wrong | wrong.T, allowed)
        chosen, found = pick_allowed(allowed, noise[:, : len(allowed)])
        return chosen[:, None], found


@dataclass(frozen=True)
class MICM(GroupMixup):
    """Multi Intra-Cluster Mixup: three members of a cluster, with labels weighted by inverse distance.

    ``label_weights`` does not apply. In a group of two, both partners are the same example, whose label counts once:
    the result is that of ICM.

    Attributes:
        anchor: Distances are measured from the ``mixed`` point (the paper's text) or from the ``own`` input (its code;
            the own distance is then always 0 and replaced by ``constant``).
        constant: Replaces a distance of 0, which only equal inputs have (C in the paper).
    """

    anchor: Literal["mixed", "own"] = "mixed"
    constant: float = 30.0

    partner_count: ClassVar[int] = 2

    def weights(self, inputs: list[Tensor], weight: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Dirichlet weights of inputs and inverse-distance weights of labels, [B, 3] each."""
        distance = _distances_from_own(inputs) if self.anchor == "own" else _distances_from_mixed(inputs, weight)
        inverse = 1 / torch.where(distance == 0, self.constant, distance)
        if self.partner == "distinct":
            twice = (chosen[:, 0] == chosen[:, 1])[:, None] & torch.tensor([False, False, True], device=weight.device)
            inverse = torch.where(twice, 0.0, inverse)
        return weight, inverse / inverse.sum(1, keepdim=True)


def _distances_from_own(inputs: list[Tensor]) -> Tensor:
    """Distance of the members from the first one: inputs [B, ...] each -> [B, members]."""
    return torch.stack([_norm(inputs[0] - x) for x in inputs], dim=1)


def _distances_from_mixed(inputs: list[Tensor], weight: Tensor) -> Tensor:
    """Distance of three members from their weighted mean, from the weights and the distances between the members.

    If one weight is nearly 1, the mean equals that member in float32, but its distance is not 0. Let m be the mean of
    x, y and z, and s p and s q the weights of y and z, with p + q = 1. Then
    |m - x|^2 = s^2 (p^2 |x - y|^2 + q^2 |x - z|^2 + p q (|x - y|^2 + |x - z|^2 - |y - z|^2)).

    Args:
        inputs: Three tensors [B, ...].
        weight: Their weights, [B, 3]; rows sum to 1.

    Returns:
        [B, 3]; 0 only if a member equals the others.
    """
    squared = {(i, j): _norm(inputs[i] - inputs[j]).square() for i, j in ((0, 1), (0, 2), (1, 2))}
    found = []
    for i, j, k in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
        rest = weight[:, j] + weight[:, k]
        p, q = (torch.where(rest > 0, weight[:, n] / rest, 0.5) for n in (j, k))
        one, two = squared[min(i, j), max(i, j)], squared[min(i, k), max(i, k)]
        inner = p * p * one + q * q * two + p * q * (one + two - squared[j, k])
        distance = (rest * inner.clamp_min(0).sqrt()).clamp_min(1e-12)
        found.append(torch.where((one == 0) & (two == 0), 0.0, distance))
    return torch.stack(found, dim=1)


def _norm(difference: Tensor) -> Tensor:
    """Length of each row, in float32. [B, ...] -> [B]."""
    length: Tensor = torch.linalg.vector_norm(difference.flatten(1).float(), dim=1)
    return length


MIXERS: dict[str, type[GroupMixup] | None] = {
    "none": None,
    "mixup": Mixup,
    "icm": ICM,
    "micm": MICM,
    "same-excluded": SameExcluded,
    "intra-class": IntraClass,
    "extra-class": ExtraClass,
}
"""Mixers by the name that the option ``mix`` has for them."""


def build(name: str, **options: Any) -> GroupMixup | None:
    """Build a mixer by name.

    Args:
        name: A key of `MIXERS`, the name of an entry point in the group ``complementary.mixers``, or ``module:class``:
            a subclass of `GroupMixup`.
        **options: Attributes of the mixer.

    Returns:
        The mixer; None for ``none``.
    """
    if name not in MIXERS:
        one_of("The mixer", name, [*MIXERS, *plugin_names("mixers", name)], "mix")
        own: GroupMixup = load_plugin("mixers", name)(**options)
        return own
    maker = MIXERS[name]
    return None if maker is None else maker(**options)
