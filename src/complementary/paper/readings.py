"""Which reading of the method gives the published numbers? From the runs of the study as-coded.

The text of the paper and its published code differ. A reading is a choice of label weights and of augmentation; it
reproduces the paper on a dataset only if no mixing, Mixup and ICM all come near the published numbers.
"""

import statistics
from dataclasses import dataclass
from typing import Any

from complementary.paper.compare import BEST, LAST, EntryResult, entry_results, show_signed
from complementary.paper.store import Results
from complementary.paper.studies import NO_AUGMENTATION, STUDIES, VARIANTS, plain_name, variant_name
from complementary.reports.tables import Table

CODE = "https://github.com/maitanha/cll_ot"
COMMIT = "a968253"
AUGMENTATIONS = {"": "crop and flip", NO_AUGMENTATION: "none"}
BASELINES = {"none": plain_name("none", True), "mixup": plain_name("mixup", True)}
NEAR = 3.0  # points: a reproduced number


@dataclass(frozen=True)
class Reading:
    """One reading on one dataset: no mixing, Mixup and ICM as in the published code, best epoch on the test set."""

    data: str
    augmentation: str
    weights: str
    methods: dict[str, EntryResult]

    @property
    def complete(self) -> bool:
        """Whether all three methods were run."""
        return all(each.ours is not None for each in self.methods.values())

    def near(self, method: str) -> bool:
        """Whether a method comes near the published number."""
        difference = self.methods[method].difference
        return difference is not None and abs(difference) <= NEAR

    @property
    def reproduces(self) -> bool:
        """Whether all three methods come near."""
        return self.complete and all(map(self.near, self.methods))


def readings(results: Results) -> list[Reading]:
    """All readings of which at least one method was run."""
    known = {(e.entry.where, e.entry.method): e for e in entry_results(STUDIES["as-coded"], results, "paper")}
    found = []
    for where in dict.fromkeys(where for where, _ in known):
        for weights in ("matched", "swapped"):
            names = BASELINES | {"icm": variant_name(weights, "batch", True)}
            methods = {name: known[where, method] for name, method in names.items()}
            if any(each.ours for each in methods.values()):
                found.append(Reading(where[0], AUGMENTATIONS[where[-1]], weights, methods))
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


# --- text against code ------------------------------------------------------------------------------------------------

NOT_MEASURED = "not measured"
POINTS: tuple[tuple[str, str, str, str], ...] = (
    ("label weights of ICM", "λ for the own label, as for the image", "swapped: 1 - λ for the own label", "weights"),
    ("λ", "one per pair", "one per batch", "lam"),
    ("optimizer", "Adam", "Adam, re-created every epoch", "reset"),
    ("reported accuracy", "top-1 validation accuracy (here: last epoch)", "best epoch on the test set", "reported"),
    ("augmentation in the main tables", "not mentioned", "crop and flip, if a switch is set", "augmentation"),
    ("partner in ICM", "another example of the cluster", "may be the example itself", ""),
    ("example alone in its cluster", "left out", "a black image without label", ""),
    ("images in the forward pass", "mixed ones", "clean ones first, which update batch norm", ""),
    ("Mixup baseline", "alpha as for ICM", "alpha = 1", ""),
    ("FWD with Mixup", "both labels", "the own label twice", ""),
    ("matrix of FWD", "known", "counted from the true labels", ""),
    ("distances of MICM", "from the mixed point", "from the own image, so C always counts", ""),
    ("seeds", "three runs", "labels and partners are the same in all runs", ""),
    ("test images", "10,000", "9,728, as the last batch is dropped", ""),
    ("MNIST", "60,000 images", "50,000 images", ""),
    ("tail of CLCIFAR", "by class", "by complementary label; true labels misaligned", ""),
)


def text_against_code(results: Results) -> Table:
    """Where the text and the published code differ, and what a difference changes with and without augmentation."""
    columns = {group: f"effect, {'no ' * (group != '')}crop and flip" for group in AUGMENTATIONS}
    rows = [
        [point, text, code, *(_effect(results, factor, group) for group in columns)]
        for point, text, code, factor in POINTS
    ]
    return Table("", ["", "text", "published code", *columns.values()], rows, 5)


def _effect(results: Results, factor: str, group: str) -> str:
    """Code minus text in points for each dataset: mean, range and number of pairs of settings; or `NOT_MEASURED`."""
    known = {
        (e.entry.setting.data, e.entry.group, e.entry.method): e
        for e in entry_results(STUDIES["as-coded"], results, "paper")
    }
    parts = []
    for data in ("cifar10", "mnist"):
        if factor == "reported":
            here = [each.runs for place, each in known.items() if place[:2] == (data, group)]
            pairs = [(runs.spread(LAST), runs.spread(BEST)) for runs in here]
        else:
            ours = {place: each.ours for place, each in known.items()}
            pairs = [(ours.get((data, *a)), ours.get((data, *b))) for a, b in _places(factor, group)]
        changes = [100 * (b.mean - a.mean) for a, b in pairs if a is not None and b is not None]
        if changes:
            spread = f"{min(changes):+.1f} to {max(changes):+.1f}, " if len(changes) > 1 else ""
            parts.append(f"{data} {statistics.fmean(changes):+.1f} ({spread}n = {len(changes)})")
    return ", ".join(parts) or NOT_MEASURED


Place = tuple[str, str]  # group and method of the study as-coded


def _places(factor: str, group: str) -> list[tuple[Place, Place]]:
    """The pairs of settings of one augmentation that differ only in this: as in the text, as in the published code."""
    if factor == "augmentation":  # of each method, with augmentation and without
        return [((NO_AUGMENTATION, name), ("", name)) for name in _CODED] if not group else []
    if factor not in FACTORS:
        return []
    place, text, code = FACTORS[factor]
    changed = [(variant, (*variant[:place], code, *variant[place + 1 :])) for variant in VARIANTS]
    names = [(variant_name(*a), variant_name(*b)) for a, b in changed if a[place] == text]
    names += [(plain_name(mix, False), plain_name(mix, True)) for mix in BASELINES if factor == "reset"]
    return [((group, a), (group, b)) for a, b in names]


FACTORS: dict[str, tuple[int, Any, Any]] = {  # place in a variant, value in the text, value in the published code
    "weights": (0, "matched", "swapped"),
    "lam": (1, "pair", "batch"),
    "reset": (2, False, True),
}
_CODED = (*BASELINES.values(), *(variant_name(weights, "batch", True) for weights in ("matched", "swapped")))
