"""Long tails, and the three imbalanced setups of the Intra-Cluster Mixup paper.

| setup | classes | complementary labels |
|---|---|---|
| 1 | long-tailed by a ratio | uniform over the other classes |
| 2 | as they are | biased by a ratio |
| 3 | long-tailed | biased, with the same head class |
"""

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.labels import check_classes
from complementary.rng import generator
from complementary.transitions import decay


def class_sizes(head: int, ratio: float, classes: int) -> list[int]:
    """How many examples each class keeps: ``head`` for class 0 down to ``head / ratio`` for the last. [K]."""
    if not ratio >= 1:
        raise UserError(f"The long-tail ratio is {ratio}, but it must be at least 1 (1 means balanced).")
    sizes = [int(head * r + 1e-9) for r in decay(ratio, classes)]
    if sizes[-1] < 1:
        raise UserError(
            f"A long tail of ratio {ratio:g} from {head} examples leaves class {classes - 1} empty; "
            f"use a ratio of at most {head}."
        )
    return sizes


def long_tail(truth: Tensor, classes: int, ratio: float, head: int | None = None, seed: int | None = None) -> Tensor:
    """Choose a long-tailed subset. ``truth`` int [N] -> indices int [M], in class order.

    ``head``: size of class 0; by default the size of the smallest class, so that every class can give
    what is asked of it. ``seed``: which examples are chosen; None takes the first of each class.
    """
    check_classes(truth, classes, "A true label")
    counts = torch.bincount(truth, minlength=classes)
    if head is None and counts.min() == 0:
        raise UserError(f"There is no example of class {int(counts.argmin())}; a long tail needs every class.")
    sizes = class_sizes(head or int(counts.min()), ratio, classes)
    for k, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        if size > count:
            raise UserError(
                f"The long tail wants {size} examples of class {k}, but there are {count}; use a smaller head size."
            )
    source = None if seed is None else generator(seed, "long-tail")
    chosen = []
    for k, size in enumerate(sizes):
        members = (truth == k).nonzero()[:, 0]
        order = torch.arange(len(members)) if source is None else torch.randperm(len(members), generator=source)
        chosen.append(members[order[:size]].sort().values)
    return torch.cat(chosen)


def subset(
    truth: Tensor | None,
    classes: int,
    count: int,
    ratio: float = 1.0,
    head: int | None = None,
    usual_head: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """All ``count`` examples, or a long-tailed subset of them. -> indices int [M].

    ``head`` asks for a subset even where ``ratio`` is 1; ``usual_head`` is the set's own size of class 0, used
    in a long tail where ``head`` is not given.
    """
    if ratio == 1 and head is None:
        return torch.arange(count)
    if truth is None:
        raise UserError("A long tail needs true labels, but this set has none; drop --long-tail.")
    return long_tail(truth, classes, ratio, head or usual_head, seed)


def setup(spec: str) -> tuple[float, str]:
    """Turn ``setup-1:RATIO``, ``setup-2:BIAS`` or ``setup-3:BIAS:RATIO`` into (long-tail ratio, label spec)."""
    name, *numbers = spec.split(":")
    wanted = {"setup-1": ["RATIO"], "setup-2": ["BIAS"], "setup-3": ["BIAS", "RATIO"]}
    if name not in wanted:
        raise UserError(f"{spec!r} is not a setup of the paper; use setup-1:RATIO, setup-2:BIAS or setup-3:BIAS:RATIO.")
    try:
        values = [float(n) for n in numbers]
    except ValueError:
        values = []
    if len(values) != len(wanted[name]):
        raise UserError(f"{spec!r} must be written {':'.join([name, *wanted[name]])}, such as setup-3:10:100.")
    if name == "setup-1":
        return values[0], "uniform"
    return (1.0 if name == "setup-2" else values[1]), f"biased:{float(values[0])!r}".removesuffix(".0")
