"""The settings of each study, with the published number beside each where a table has it.

Every table and figure of the paper as a named list of settings.

The tables hold each of the 554 published cells once. Figures were published without numbers; where a table has the
number of a setting, it stands beside it. A setting that several studies need is run once.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from complementary.errors import one_of
from complementary.paper import published
from complementary.paper.protocols import Protocol, Setting
from complementary.paper.published import DATASETS, LOSSES, Published

MIXES = ("none", "mixup", "icm", "micm")


@dataclass(frozen=True)
class Entry:
    """One setting of a study: the ``method``, compared with other methods of the same setting and ``group``.

    ``noise``: the published noise of its mixes, where ``published`` is an accuracy.
    """

    setting: Setting
    method: str
    group: str = ""
    published: Published | None = None
    noise: Published | None = None

    @property
    def where(self) -> tuple[str, float, float, str, str]:
        """What the methods that are compared with each other have in common."""
        s = self.setting
        return s.data, s.tail, s.bias, s.loss, self.group


def _published(table: str, setting: Setting) -> Published | None:
    place = (table, setting.data, setting.bias, setting.tail, setting.loss, setting.mix)
    return published.cells().get(place)


def grid(
    table: str,
    data: Sequence[str],
    mixes: Sequence[str],
    tails: Sequence[float] = (1,),
    biases: Sequence[float] = (1,),
    losses: Sequence[str] = LOSSES,
) -> tuple[Entry, ...]:
    """Every combination, with the cells of ``table`` where it has them."""
    found = []
    for name, tail, bias, loss, mix in itertools.product(data, tails, biases, losses, mixes):
        setting = Setting(name, loss, mix, float(tail), float(bias))
        found.append(Entry(setting, mix, published=_published(table, setting)))
    return tuple(found)


def varied(settings: Iterable[Setting], option: str, values: Sequence[Any], name: str) -> tuple[Entry, ...]:
    """Each setting with each value of an option, as methods called ``name=value``."""
    return tuple(
        Entry(changed(setting, **{option: value}), f"{name}={value:g}", group=setting.mix)
        for setting in settings
        for value in values
    )


def changed(setting: Setting, **changes: Any) -> Setting:
    """The same with more options changed."""
    s = setting
    return Setting(s.data, s.loss, s.mix, s.tail, s.bias, (*s.changes, *changes.items()))


# --- studies that are more than a grid ----------------------------------------------------------------


def encoders() -> tuple[Entry, ...]:
    """S-NL + ICM on balanced CIFAR-10 by the clusters of each encoder, the published three and an untrained one."""
    known = published.encoders()
    base, found = Setting("cifar10", "s-nl", "icm"), []
    for name in ("simsiam", "mocov3", "byol", "random"):
        ratio, accuracy = known.get(name, (None, None))
        setting = base if name == "simsiam" else changed(base, encoder=name)
        found.append(Entry(setting, name, published=accuracy, noise=ratio))
    return tuple(found)


TOLD = {("cifar10", 100.0, "mixup"): "P3", ("mnist", 100.0, "mixup"): "P6", ("mnist", 100.0, "icm"): "P7"}


def _published_noise(s: Setting) -> Published | None:
    """The noise of a mixer on uniform labels, by SimSiam's clusters: from the text, or from the encoder table."""
    place = (s.data, s.tail, s.mix)
    if place in TOLD:
        return Published("text", s.data, 1.0, s.tail, s.loss, s.mix, float(published.claim(TOLD[place]).value))
    return published.encoders()["simsiam"][0] if place == ("cifar10", 1.0, "icm") else None


def noise() -> tuple[Entry, ...]:
    """The mixers of all datasets, and other encoders; published numbers are in the text and in the encoder table."""
    settings = [entry.setting for entry in grid("", DATASETS, ("mixup", "icm", "micm"), (100, 1), losses=("s-nl",))]
    found = [Entry(setting, setting.mix, published=_published_noise(setting)) for setting in settings]
    base = Setting("cifar10", "s-nl", "icm")
    others = ((name, pair[0]) for name, pair in published.encoders().items() if name != "simsiam")
    return (*found, *(Entry(changed(base, encoder=name), "icm", name, number) for name, number in others))


def augment() -> tuple[Entry, ...]:
    """Four augmentations, with and without ICM."""
    policies = {"flip": "none", "cutout": "cutout", "autoaugment": "autoaugment", "randaugment": "randaugment"}
    return tuple(
        Entry(Setting("cifar10", "s-nl", mix, changes=() if policy == "none" else (("policy", policy),)), mix, name)
        for name, policy in policies.items()
        for mix in ("none", "icm")
    )


def sharing() -> tuple[Entry, ...]:
    """What is shared in a cluster: new data, or labels alone."""
    found = []
    for tail, loss, share in itertools.product((1.0, 100.0), ("s-nl", "fwd"), ("new-data", "soft-label", "hard-label")):
        changes = () if share == "new-data" else (("share", share),)
        found.append(Entry(Setting("cifar10", loss, "icm", tail, changes=changes), share))
    return tuple(found)


def models(data: Sequence[str], losses: Sequence[str], tail: float) -> tuple[Entry, ...]:
    """Three networks; the tables have the numbers of ResNet-18."""
    found = []
    for name, model in itertools.product(data, ("linear", "mlp", "resnet18")):
        for entry in grid("Table_combined", (name,), MIXES[:3], (tail,), losses=losses):
            usual = model == "resnet18"
            setting = entry.setting if usual else changed(entry.setting, model=model)
            found.append(Entry(setting, entry.method, model, entry.published if usual else None))
    return tuple(found)


def micm() -> tuple[Entry, ...]:
    """ICM and MICM: all sets balanced, the synthetic ones long-tailed, CIFAR-10 with a shorter tail."""
    sets, pair, loss = (*DATASETS, "clcifar10", "clcifar20"), ("icm", "micm"), ("s-nl",)
    tails = grid("Table_combined", DATASETS, pair, (100,), losses=loss)
    return (*grid("Table_combined", sets, pair, losses=loss), *tails, *grid("", ("cifar10",), pair, (10,), (1,), loss))


def p_values() -> tuple[Entry, ...]:
    """Mixup and ICM where the paper tested them."""
    pair = ("mixup", "icm")
    cifar = grid("Table_combined", ("cifar10",), pair, (1, 100))
    mnist = grid("Table_combined", ("mnist",), pair, (1, 100), losses=("s-nl", "fwd"))
    return (*cifar, *grid("Table_addition", ("clcifar10",), pair, (1, 10)), *mnist)


def as_coded_method(weights: str, lam: str, reset: bool) -> str:
    """How the study as-coded calls a variant of ICM."""
    return f"icm {weights}, λ per {lam}, Adam {'re-created' if reset else 'kept'}"


def as_coded() -> tuple[Entry, ...]:
    """Label weights × λ × Adam, with no mixing and Mixup beside, and label sharing alone."""
    found = []
    for data in ("cifar10", "mnist"):
        base = {mix: Setting(data, "s-nl", mix, 100.0) for mix in MIXES[:3]}
        number = {mix: _published("Table_combined", setting) for mix, setting in base.items()}
        for mix, reset in itertools.product(("none", "mixup"), (False, True)):
            method = f"{mix}, Adam {'re-created' if reset else 'kept'}"
            found.append(Entry(changed(base[mix], reset_optimizer=reset), method, published=number[mix]))
        for weights, lam, reset in itertools.product(("matched", "swapped"), ("pair", "batch"), (False, True)):
            setting = changed(base["icm"], label_weights=weights, lam=lam, reset_optimizer=reset)
            found.append(Entry(setting, as_coded_method(weights, lam, reset), published=number["icm"]))
        for weights in ("matched", "swapped"):
            setting = changed(base["icm"], share="soft-label", label_weights=weights, lam="batch", reset_optimizer=True)
            found.append(Entry(setting, f"labels shared only, {weights}", published=number["icm"]))
    return tuple(found)


def filters(table: str, mixes: Sequence[str]) -> tuple[Entry, ...]:
    """CIFAR-10 at ρ = 100 by these mixers; the oracles' numbers are in a table of their own."""
    both = [grid(name, ("cifar10",), mixes, (100,), losses=("s-nl",)) for name in ("TableC6", table)]
    found = [a if a.published else b for a, b in zip(*both, strict=True)]
    return tuple(replace(entry, noise=_published_noise(entry.setting)) for entry in found)


def each(mix: str, data: Sequence[str] = DATASETS) -> list[Setting]:
    """A mixer on each dataset at ρ = 100."""
    return [Setting(name, "s-nl", mix, 100.0) for name in data]


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
