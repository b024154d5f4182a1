"""Every table and figure of the paper as a named list of settings.

The tables hold each of the 554 published cells once. Figures were published without numbers; where a table has the
number of a setting, it stands beside it. A setting that several studies need is run once.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

from complementary.errors import one_of
from complementary.paper import published
from complementary.paper.entries import (
    MIXES,
    Entry,
    as_coded,
    as_coded_method,
    augment,
    changed,
    each,
    encoders,
    filters,
    grid,
    micm,
    models,
    noise,
    p_values,
    sharing,
    varied,
)
from complementary.paper.protocols import Protocol, Setting
from complementary.paper.published import DATASETS, LOSSES, Published

Kind = Literal["table", "figure", "question"]
Plot = Literal["bars", "lines", "scatter", "p-values", "gradients"]
Runner = Literal["training", "noise", "gradients"]
RUNNERS: tuple[Runner, ...] = ("training", "noise", "gradients")
PAIRS = (("icm", "mixup"), ("icm", "none"), ("micm", "icm"))
MNIST_FAMILY = ("mnist", "kmnist", "fmnist")


@dataclass(frozen=True)
class Study:
    """A table or figure. ``value``: what is read of the runs; ``pairs``: methods between which Welch's test is made.

    ``more``: figures of a run that are shown beside it, by the name of their column.
    """

    name: str
    title: str
    source: str
    kind: Kind
    entries: tuple[Entry, ...]
    value: Literal["accuracy", "noise"] = "accuracy"
    pairs: tuple[tuple[str, str], ...] = PAIRS
    plot: Plot = "bars"
    protocol: Protocol = "ours"
    seeds: int = 3
    note: str = ""
    more: tuple[tuple[str, str], ...] = ()

    @property
    def runner(self) -> Runner:
        """What its numbers come from: trainings, or a measurement of its own."""
        return "gradients" if self.plot == "gradients" else "noise" if self.value == "noise" else "training"

    @property
    def compared(self) -> list[Published]:
        """The published numbers in it."""
        return [entry.published for entry in self.entries if entry.published is not None]


CODE_TAIL = (
    "The published code cut the tail by complementary labels, which left its true labels misaligned; here it is cut by "
    "true labels under both protocols."
)
FILTER_PAIRS = (("intra-class", "extra-class"), ("extra-class", "mixup"), ("icm", "mixup"))
VARIANTS = tuple(itertools.product(("matched", "swapped"), ("pair", "batch"), (False, True)))
CODED_PAIRS = (
    (as_coded_method("swapped", "batch", True), as_coded_method("matched", "pair", False)),
    ("labels shared only, swapped", as_coded_method("swapped", "batch", True)),
    *((as_coded_method(*variant), "mixup, Adam re-created") for variant in VARIANTS if variant[2]),
    *((as_coded_method(*variant), "mixup, Adam kept") for variant in VARIANTS if not variant[2]),
)
K_VALUES, C_VALUES = (30, 40, 50, 60, 70, 80, 90), (10, 20, 30, 40, 50)
ALPHA_VALUES = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0)
NOISY = (("noise", "noise_ratio"),)


def _chosen_alphas() -> str:
    chosen = (f"{data} {both['icm']:g} and {both['micm']:g}" for data, both in published.alphas().items())
    return f"The paper chose, for ICM and MICM: {', '.join(chosen)}."


ONE = ("s-nl",)
ALPHA = varied([*each("icm"), *each("micm")], "alpha", ALPHA_VALUES, "alpha")
OWN = [changed(setting, anchor="own") for setting in each("micm")]
GRADIENTS = tuple(Entry(Setting(name, "s-nl", "icm"), "all") for name in ("cifar10", "mnist", "kmnist"))

_ALL: list[Study] = [
    Study(
        "as-coded",
        "Which reading of the method gives 36.21 and 85.83?",
        "not in the paper",
        "question",
        as_coded(),
        pairs=CODED_PAIRS,
        protocol="paper",
    ),
    Study(
        "main",
        "Balanced and long-tailed, uniform labels",
        "Table_combined",
        "table",
        grid("Table_combined", DATASETS, MIXES, (1, 100)),
    ),
    Study(
        "real",
        "Labels by human annotators",
        "Table_addition",
        "table",
        grid("Table_addition", ("clcifar10", "clcifar20"), MIXES[:3], (1, 10)),
        note=CODE_TAIL,
    ),
    Study(
        "annotators",
        "Labels by a vision-language model, and simulated human ones",
        "not in the paper",
        "question",
        grid("", ("aclcifar10", "aclcifar20", "clcifar10-simulated"), MIXES),
    ),
    Study(
        "intra",
        "Intra-class against extra-class mixing (oracles)",
        "TableC6",
        "table",
        filters("", ("extra-class", "intra-class")),
        pairs=FILTER_PAIRS,
        more=NOISY,
        note="Under the protocol paper extra-class has alpha = 1, and may pair within a class: not controlled.",
    ),
    Study(
        "encoders",
        "Encoders",
        "tab:encoder_ablation",
        "table",
        encoders(),
        pairs=(("simsiam", "random"),),
        more=NOISY,
    ),
    Study(
        "setup2-cifar",
        "Setup 2: biased labels, CIFAR",
        "Table7",
        "table",
        grid("Table7", ("cifar10", "cifar20"), MIXES, (1,), (10, 5, 3)),
    ),
    Study(
        "setup2-mnist",
        "Setup 2: biased labels, MNIST family",
        "Table8",
        "table",
        grid("Table8", MNIST_FAMILY, MIXES, (1,), (10, 5)),
    ),
    *(
        Study(
            f"setup3-{bias}",
            f"Setup 3: labels biased by {bias}, and a long tail",
            table,
            "table",
            grid(table, ("mnist", "cifar10"), MIXES, (100, 50, 10), (bias,)),
        )
        for bias, table in ((5, "Table9"), (10, "Table10"))
    ),
    Study("alpha", "The mixing parameter", "TableB21", "table", ALPHA, pairs=(), plot="lines", note=_chosen_alphas()),
    Study(
        "noise",
        "Noise ratio per dataset",
        "Fig. 3a",
        "figure",
        noise(),
        value="noise",
        pairs=(),
        note="Counted with the true labels, before any training. Under the protocol paper an example may be its own "
        "partner, and labels do not vary with the seed; stored clusters do not under either.",
    ),
    Study(
        "noise-accuracy",
        "Noise against accuracy",
        "Fig. 2a",
        "figure",
        filters("Table_combined", ("none", "mixup", "icm", "micm", "extra-class", "intra-class")),
        pairs=FILTER_PAIRS,
        plot="scatter",
        more=NOISY,
        note="In the picture a published accuracy stands at the published noise where there is one, at 0 without "
        "mixing and for the noise-free oracles, else at our noise.",
    ),
    Study(
        "losses",
        "Mixup against ICM per loss",
        "Fig. 3b",
        "figure",
        grid("Table_combined", ("cifar10",), ("mixup", "icm"), (1, 100)),
    ),
    Study("augment", "Augmentation with and without ICM", "Fig. 5a", "figure", augment()),
    Study(
        "sharing",
        "New data, soft or hard labels",
        "Fig. 5b",
        "figure",
        sharing(),
        pairs=(("new-data", "soft-label"), ("new-data", "hard-label")),
    ),
    Study("models", "Networks, balanced", "Fig. 6", "figure", models(MNIST_FAMILY, ONE, 1.0)),
    Study("models-tail", "Networks, long-tailed", "Fig. 11", "figure", models(("mnist",), LOSSES, 100.0)),
    Study(
        "clusters",
        "Number of clusters",
        "Fig. 12 left",
        "figure",
        varied(each("icm"), "clusters", K_VALUES, "K"),
        pairs=(),
        plot="lines",
    ),
    Study(
        "constant",
        "The constant C of MICM",
        "Fig. 12 right",
        "figure",
        varied(OWN, "constant", C_VALUES, "C"),
        pairs=(),
        plot="lines",
        note="Distances are from the own image under both protocols: from the mixed point, C is hardly ever used.",
    ),
    Study("micm", "MICM against ICM", "Fig. 9 and 10b", "figure", micm(), more=(("tail third", "tail_accuracy_last"),)),
    Study(
        "same-label",
        "Same complementary label against ICM",
        "Fig. 10a",
        "figure",
        grid("Table_combined", DATASETS, ("same-excluded", "icm"), (100,), losses=ONE),
        pairs=(("icm", "same-excluded"),),
    ),
    Study("gradients", "Gradient MSE, bias² and variance", "Fig. 7", "figure", GRADIENTS, plot="gradients", seeds=1),
    Study(
        "p-values",
        "Welch's test of ICM against Mixup",
        "Fig. 4 and 13 to 15",
        "figure",
        p_values(),
        plot="p-values",
        seeds=5,
        note="The long tail of CLCIFAR-10 is 10, as in its table; the figure's caption says 100.",
    ),
]

STUDIES = {study.name: study for study in _ALL}


def study(name: str) -> Study:
    """The study of that name, or a sentence that lists them."""
    return STUDIES[one_of("The study", name, STUDIES)]
