"""Long-tailed class distributions, and the three imbalanced setups of the Intra-Cluster Mixup paper.

| setup | classes | complementary labels |
|---|---|---|
| 1 | long-tailed by a ratio | uniform over the other classes |
| 2 | unchanged | biased by a ratio |
| 3 | long-tailed by a ratio | biased by a ratio, with the same head class |
"""

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.labels import check_classes
from complementary.rng import generator
from complementary.transitions import decay


def class_sizes(head: int, ratio: float, classes: int) -> list[int]:
    """Number of examples of each class in a long tail.

    Args:
        head: Size of class 0.
        ratio: Size of class 0 divided by that of the last class.
        classes: Number of classes K.

    Returns:
        K sizes, falling exponentially from ``head`` to ``head / ratio``.
    """
    if not ratio >= 1:
        raise UserError(f"The long-tail ratio is {ratio}, but it must be at least 1 (1: balanced).")
    sizes = [int(head * r + 1e-9) for r in decay(ratio, classes)]
    if sizes[-1] < 1:
        raise UserError(
            f"A long tail of ratio {ratio:g} from {head} examples leaves class {classes - 1} empty; "
            f"use a ratio of at most {head}.",
            "long_tail",
        )
    return sizes


def long_tail(truth: Tensor, classes: int, ratio: float, head: int | None = None, seed: int | None = None) -> Tensor:
    """Select a long-tailed subset.

    Args:
        truth: True labels, int [N].
        classes: Number of classes K.
        ratio: Size of class 0 divided by that of the last class.
        head: Size of class 0; None: the size of the smallest class, so that every class has enough examples.
        seed: Which examples are selected; None: the first ones of each class.

    Returns:
        Indices of the selected examples in class order, int [M].
    """
    check_classes(truth, classes, "A true label")
    counts = torch.bincount(truth, minlength=classes)
    if head is None and counts.min() == 0:
        raise UserError(f"Class {int(counts.argmin())} has no example; a long tail needs examples of every class.")
    sizes = class_sizes(head or int(counts.min()), ratio, classes)
    for k, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        if size > count:
            raise UserError(
                f"The long tail needs {size} examples of class {k}, but there are {count}; use a smaller head.", "head"
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
    """Select all examples, or a long-tailed subset.

    Args:
        truth: True labels, int [N]; needed for a long tail only.
        classes: Number of classes K.
        count: Number of examples N.
        ratio: Size of class 0 divided by that of the last class.
        head: Size of class 0. If it is given, a subset is selected even if ``ratio`` is 1.
        usual_head: Size of class 0 if ``head`` is None, such as the paper's for this dataset.
        seed: Which examples are selected; None: the first ones of each class.

    Returns:
        Indices of the selected examples, int [M].
    """
    if ratio == 1 and head is None:
        return torch.arange(count)
    if truth is None:
        option = "head" if ratio == 1 else "long_tail"
        raise UserError(f"The option {option} needs true labels, but this dataset has none; leave it out.", option)
    return long_tail(truth, classes, ratio, head or usual_head, seed)


def setup(spec: str) -> tuple[float, str]:
    """Parse a setup of the paper.

    Args:
        spec: ``setup-1:RATIO``, ``setup-2:BIAS`` or ``setup-3:BIAS:RATIO``.

    Returns:
        The long-tail ratio, and the labels as `complementary.transitions.parse` takes them.
    """
    name, *numbers = spec.split(":")
    forms = {"setup-1": "setup-1:RATIO", "setup-2": "setup-2:BIAS", "setup-3": "setup-3:BIAS:RATIO"}
    if name not in forms:
        raise UserError(f"{spec!r} is not a setup of the paper; use one of: {', '.join(forms.values())}.", "labels")
    try:
        values = [float(n) for n in numbers]
    except ValueError:
        values = []
    if len(values) != forms[name].count(":"):
        raise UserError(f"{spec!r} must have the form {forms[name]}, with numbers for RATIO and BIAS.", "labels")
    if name == "setup-1":
        return values[0], "uniform"
    return (1.0 if name == "setup-2" else values[1]), f"biased:{float(values[0])!r}".removesuffix(".0")
