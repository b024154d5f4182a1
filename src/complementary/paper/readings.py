"""Which reading of the method gives the published numbers? From the runs of the study as-coded.

The text of the paper and its published code differ. A reading is a choice of label weights and of augmentation; it
reproduces the paper on a dataset only if no mixing, Mixup and ICM all come near the published numbers.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from complementary.paper.compare import BEST, EntryResult, entry_results, show_signed
from complementary.paper.store import Results
from complementary.paper.studies import NO_AUGMENTATION, STUDIES, VARIANTS, plain_name, variant_name
from complementary.reports.tables import Table, counted

CODE = "https://github.com/maitanha/cll_ot"
COMMIT = "a968253"
AUGMENTATIONS = {"": "crop and flip", NO_AUGMENTATION: "none"}
BASELINES = {"none": plain_name("none", True), "mixup": plain_name("mixup", True)}
NEAR = 2.0  # standard errors of the difference


@dataclass(frozen=True)
class Reading:
    """One reading on one dataset: no mixing, Mixup and ICM as in the published code, best epoch on the test set."""

    data: str
    augmentation: str
    weights: str
    methods: dict[str, EntryResult]
    error: float
    """Standard deviation between seeds, in points."""

    @property
    def complete(self) -> bool:
        """Whether all three methods were run."""
        return all(each.ours is not None for each in self.methods.values())

    def near(self, method: str) -> bool:
        """Whether a method comes near the published number."""
        each = self.methods[method]
        if each.ours is None or each.difference is None:
            return False
        return abs(each.difference) <= NEAR * self.error / math.sqrt(each.ours.count)

    @property
    def reproduces(self) -> bool:
        """Whether all three methods come near."""
        return self.complete and all(map(self.near, self.methods))

    @property
    def largest(self) -> tuple[str, float]:
        """The method that is furthest from the published number, and its difference."""
        known = {name: each.difference for name, each in self.methods.items() if each.difference is not None}
        method = max(known, key=lambda name: abs(known[name]))
        return method, known[method]


def readings(results: Results) -> list[Reading]:
    """All readings of which at least one method was run."""
    error = 100 * results.seed_deviation(BEST, "resnet18")
    known = {(e.entry.where, e.entry.method): e for e in entry_results(STUDIES["as-coded"], results, "paper")}
    found = []
    for where in dict.fromkeys(where for where, _ in known):
        for weights in ("matched", "swapped"):
            names = BASELINES | {"icm": variant_name(weights, "batch", True)}
            methods = {name: known[where, method] for name, method in names.items()}
            if any(each.ours for each in methods.values()):
                found.append(Reading(where[0], AUGMENTATIONS[where[-1]], weights, methods, error))
    return found


def readings_table(found: list[Reading]) -> Table:
    """One row per reading: our number, the number of seeds and the difference from the published one."""
    rows = []
    for one in found:
        cells = [_cell(each, one.near(name)) for name, each in one.methods.items()]
        verdict = "" if not one.complete else "yes" if one.reproduces else "no"
        rows.append([one.data, one.augmentation, one.weights, *cells, verdict])
    published = ["data", "augmentation", "label weights of ICM", "none", "mixup", "icm", "reproduces"]
    return Table("", published, rows, 3)


def _cell(each: EntryResult, near: bool) -> str:
    if each.ours is None or each.entry.published is None:
        return ""
    mark = "**" if near else ""
    ours, published = f"{100 * each.ours.mean:.2f} ({each.ours.count})", f"{each.entry.published.mean:.2f}"
    return f"{mark}{ours} / {published}, {show_signed(each.difference)}{mark}"


def finding(found: list[Reading]) -> str:
    """The finding in one sentence; '' as long as a reading is incomplete."""
    wanted = [one for one in found if one.augmentation == "none" and one.weights == "swapped" and one.complete]
    if len(wanted) < 2:
        return ""
    advantage = min(map(_advantage, wanted))
    better = f". ICM is better than both baselines by at least {advantage:.1f} points" if advantage > 0 else ""
    others = [one for one in found if one.augmentation != "none" and one.weights == "swapped" and one.complete]
    instead = f". With crop and flip instead: {_numbers(others, False)}" if others else ""
    seeds = min(e.ours.count for one in wanted for e in one.methods.values() if e.ours is not None)
    method, difference = max((one.largest for one in wanted), key=lambda pair: abs(pair[1]))
    where = next(one.data for one in wanted if one.largest == (method, difference))
    rest = [
        e.difference or 0.0 for one in wanted for name, e in one.methods.items() if (name, one.data) != (method, where)
    ]
    return (
        "without augmentation and with swapped label weights, S-NL at ρ = 100 gives (published in brackets) "
        f"{_numbers(wanted, True)}. No difference is larger than {max(map(abs, rest)):.2f} points, except for {method} "
        f"on {where} ({show_signed(difference)}); at least {counted(seeds, 'seed')} each{better}{instead}"
    )


def in_short(found: list[Reading]) -> str:
    """How far the runs without and with augmentation are from the published numbers; '' as long as one is missing."""
    groups = {
        kind: [one for one in found if one.augmentation == kind and one.weights == "swapped" and one.complete]
        for kind in AUGMENTATIONS.values()
    }
    if min(map(len, groups.values())) < 2:
        return ""
    far = {(one.data, kind): _distance(one) for kind, members in groups.items() for one in members}
    by_data = [
        f"{data} {far[data, 'none']:.1f} without and {far[data, 'crop and flip']:.1f} with crop and flip"
        for data, kind in far
        if kind == "none" and (data, "crop and flip") in far
    ]
    return (
        "mean distance from the published numbers of none, mixup and icm (S-NL, ρ = 100): "
        f"{', '.join(by_data)}. Without, ours (published): {_numbers(groups['none'], True)}"
    )


def _distance(one: Reading) -> float:
    """Mean distance of the methods from the published numbers, in points."""
    return statistics.fmean(abs(e.difference or 0.0) for e in one.methods.values())


def _advantage(one: Reading) -> float:
    """ICM minus the better baseline, in points; negative if ICM is worse."""
    means = {name: e.ours.mean for name, e in one.methods.items() if e.ours is not None}
    return 100 * (means["icm"] - max(means["none"], means["mixup"]))


def _numbers(found: list[Reading], published: bool) -> str:
    """``mnist: none 50.24 (50.15), mixup …; cifar10: …``, with or without the published numbers."""
    parts = []
    for one in found:
        numbers = [
            f"{name} {100 * e.ours.mean:.2f}" + f" ({e.entry.published.mean:.2f})" * published
            for name, e in one.methods.items()
            if e.ours is not None and e.entry.published is not None
        ]
        parts.append(f"{one.data}: {', '.join(numbers)}")
    return "; ".join(parts)


# --- text against code ------------------------------------------------------------------------------------------------

NOT_MEASURED = "not measured"
POINTS: tuple[tuple[str, str, str, str], ...] = (
    ("label weights of ICM", "λ for the own label, as for the image", "swapped: 1 - λ for the own label", "weights"),
    ("λ", "one per pair", "one per batch", "lam"),
    ("optimizer", "Adam", "Adam, re-created every epoch", "reset"),
    ("augmentation in the main tables", "not mentioned", "crop and flip, if a switch is set", "augmentation"),
    ("partner in ICM", "another example of the cluster", "may be the example itself", ""),
    ("example alone in its cluster", "left out", "a black image without label", ""),
    ("images in the forward pass", "mixed ones", "clean ones first, which update batch norm", ""),
    ("Mixup baseline", "alpha as for ICM", "alpha = 1", ""),
    ("FWD with Mixup", "both labels", "the own label twice", ""),
    ("matrix of FWD", "known", "counted from the true labels", ""),
    ("distances of MICM", "from the mixed point", "from the own image, so C always counts", ""),
    ("seeds", "three runs", "labels and partners are the same in all runs", ""),
    ("reported accuracy", "top-1 validation accuracy", "best epoch on the test set, on 9,728 of 10,000 images", ""),
    ("MNIST", "60,000 images", "50,000 images", ""),
    ("tail of CLCIFAR", "by class", "by complementary label; true labels misaligned", ""),
)


def text_against_code(results: Results) -> Table:
    """Where the text and the published code differ, and what a difference changes (code minus text, in points)."""
    rows = [[point, text, code, _effect(results, factor)] for point, text, code, factor in POINTS]
    return Table("", ["", "text", "published code", "what it changes"], rows, 4)


def _effect(results: Results, factor: str) -> str:
    pairs = FACTORS.get(factor)
    if pairs is None:
        return NOT_MEASURED
    known = {
        (e.entry.setting.data, e.entry.group, e.entry.method): e
        for e in entry_results(STUDIES["as-coded"], results, "paper")
    }
    parts = []
    for data in ("cifar10", "mnist"):
        changes = []
        for text, code in pairs():
            a, b = known[(data, *text)].ours, known[(data, *code)].ours
            if a is not None and b is not None:
                changes.append(100 * (b.mean - a.mean))
        if changes:
            spread = f" ({min(changes):+.1f} to {max(changes):+.1f})" if len(changes) > 1 else ""
            parts.append(f"{data} {statistics.fmean(changes):+.1f}{spread}")
    return ", ".join(parts) or NOT_MEASURED


Place = tuple[str, str]  # group and method of the study as-coded


def _weights() -> list[tuple[Place, Place]]:
    kept = [variant for variant in VARIANTS if variant[0] == "matched"]
    return [(("", variant_name(*v)), ("", variant_name("swapped", *v[1:]))) for v in kept]


def _lam() -> list[tuple[Place, Place]]:
    kept = [variant for variant in VARIANTS if variant[1] == "pair"]
    return [(("", variant_name(*v)), ("", variant_name(v[0], "batch", v[2]))) for v in kept]


def _reset() -> list[tuple[Place, Place]]:
    plain = [(("", plain_name(mix, False)), ("", plain_name(mix, True))) for mix in ("none", "mixup")]
    kept = [variant for variant in VARIANTS if not variant[2]]
    return plain + [(("", variant_name(*v)), ("", variant_name(v[0], v[1], True))) for v in kept]


def _augmentation() -> list[tuple[Place, Place]]:
    names = (*BASELINES.values(), *(variant_name(weights, "batch", True) for weights in ("matched", "swapped")))
    return [((NO_AUGMENTATION, name), ("", name)) for name in names]


FACTORS: dict[str, Callable[[], list[tuple[Place, Place]]]] = {
    "weights": _weights,
    "lam": _lam,
    "reset": _reset,
    "augmentation": _augmentation,
}
