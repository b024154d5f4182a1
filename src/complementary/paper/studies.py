"""Every table and figure of the paper as a named list of settings, with the published number beside each setting.

The table studies contain each of the 554 published cells once. The figures were published without numbers; where a
table has the number of a setting, it is shown beside it. A setting that several studies need is run once.

This module does not import torch.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from complementary.config import MIXED_WITHIN
from complementary.errors import one_of
from complementary.paper import published
from complementary.paper.published import DATASETS, LOSSES, Published

Protocol = Literal["ours", "paper", "plain"]
PROTOCOLS: tuple[Protocol, ...] = ("ours", "paper", "plain")
Runner = Literal["training", "noise", "gradients"]
RUNNERS: tuple[Runner, ...] = ("training", "noise", "gradients")

MIXES = ("none", "mixup", "icm", "micm")
NOISE = {"noise": "oracle_noise_ratio"}


@dataclass(frozen=True)
class Setting:
    """What the paper says about one experiment. ``tail`` and ``bias`` are ratios; 1 means none."""

    data: str
    loss: str = "s-nl"
    mix: str = "none"
    tail: float = 1.0
    bias: float = 1.0
    changes: tuple[tuple[str, Any], ...] = ()
    """Further options that differ from the protocol."""

    @property
    def clustered(self) -> bool:
        """Whether the mixer needs clusters."""
        return MIXED_WITHIN[self.mix] == "clusters"

    def with_(self, **changes: Any) -> "Setting":
        """Return a copy with more options changed."""
        return replace(self, changes=(*self.changes, *changes.items()))


@dataclass(frozen=True)
class Entry:
    """One setting of a study. Methods of the same setting and group are compared with each other."""

    setting: Setting
    method: str
    group: str = ""
    published: Published | None = None
    """The published accuracy; in the study of noise, the published noise ratio."""
    noise: Published | None = None
    """The published noise ratio, where ``published`` is an accuracy."""

    @property
    def where(self) -> tuple[str, float, float, str, str]:
        """What the methods that are compared with each other have in common."""
        s = self.setting
        return s.data, s.tail, s.bias, s.loss, self.group

    @property
    def name(self) -> str:
        """For display: ``cifar10 ρ=100 s-nl icm``."""
        s = self.setting
        ratios = [f"ρ={s.tail:g}"] * (s.tail > 1) + [f"bias={s.bias:g}"] * (s.bias > 1)
        return " ".join(part for part in (s.data, *ratios, s.loss, self.group, self.method) if part)


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper, or a question about it. ``source`` says where it is in the paper."""

    name: str
    title: str
    source: str
    entries: tuple[Entry, ...]
    runner: Runner = "training"
    """How the numbers are made: by training, or by the module `noise` or `gradients`."""
    pairs: tuple[tuple[str, str], ...] = (("icm", "mixup"), ("icm", "none"), ("micm", "icm"))
    """Methods between which Welch's test is made."""
    plot: Literal["bars", "rows", "lines", "scatter", "classes", "none"] = "bars"
    protocol: Protocol = "ours"
    seeds: int = 3
    note: str = ""
    more: tuple[tuple[str, str], ...] = ()
    """Further metrics to show: column title and name in the result."""
    across: bool = False
    """Whether the question is how settings differ, not only methods: one setting then says nothing."""

    augmented: bool = False
    """Whether augmentation is its question, which ``plain`` has none of."""

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """The protocols that a report shows: all; only ``paper`` for a study about the published code.

        Noise ratios do not depend on augmentation, in which ``plain`` differs from ``paper``.
        """
        every = PROTOCOLS[:2] if self.runner == "noise" or self.augmented else PROTOCOLS
        return every if self.protocol == "ours" else (self.protocol,)

    @property
    def planned(self) -> Protocol:
        """The protocol of `plan`: ``plain``, which comes nearest to the published numbers, where a report shows it."""
        return "plain" if "plain" in self.protocols else self.protocol

    @property
    def published(self) -> list[Published]:
        """The published numbers beside its settings."""
        return [entry.published for entry in self.entries if entry.published is not None]


# --- lists of settings ----------------------------------------------------------------------------------------------


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


def _published(table: str, s: Setting) -> Published | None:
    return published.cells().get((table, s.data, s.bias, s.tail, s.loss, s.mix))


def _sweep(settings: Iterable[Setting], option: str, values: Sequence[float], name: str) -> tuple[Entry, ...]:
    """Each setting with each value of an option, as methods called ``name=value``."""
    return tuple(
        Entry(setting.with_(**{option: value}), f"{name}={value:g}", group=setting.mix)
        for setting in settings
        for value in values
    )


def _long_tailed(mix: str) -> list[Setting]:
    """A mixer on each dataset at ρ = 100."""
    return [Setting(name, "s-nl", mix, 100.0) for name in DATASETS]


def _drawn_here(mix: str) -> Setting:
    """A mixer on CIFAR-10 at ρ = 100, with labels drawn by our seeds: the published code draws one for each example."""
    return Setting("cifar10", "s-nl", mix, 100.0).with_(draws="addressed", subset="first")


def _encoders() -> tuple[Entry, ...]:
    """S-NL with ICM on balanced CIFAR-10, by the clusters of each encoder: the published three and an untrained one."""
    base, found = Setting("cifar10", "s-nl", "icm"), []
    for name in ("simsiam", "mocov3", "byol", "random"):
        noise, accuracy = published.encoders().get(name, (None, None))
        setting = base if name == "simsiam" else base.with_(encoder=name)
        found.append(Entry(setting, name, published=accuracy, noise=noise))
    return tuple(found)


_NOISE_CLAIMS = {("cifar10", 100.0, "mixup"): "P3", ("mnist", 100.0, "mixup"): "P6", ("mnist", 100.0, "icm"): "P7"}


def _published_noise(s: Setting) -> Published | None:
    """The published noise ratio of a setting, from the text or from the table of encoders."""
    place = (s.data, s.tail, s.mix)
    if place in _NOISE_CLAIMS:
        value = published.claims()[_NOISE_CLAIMS[place]].value
        assert value is not None
        return Published("text", s.data, 1.0, s.tail, s.loss, s.mix, value)
    return published.encoders()["simsiam"][0] if place == ("cifar10", 1.0, "icm") else None


def _noise() -> tuple[Entry, ...]:
    """The mixers on all datasets, and the other encoders on CIFAR-10."""
    mixers = grid("", DATASETS, ("mixup", "icm", "micm"), (100, 1), losses=("s-nl",))
    found = [replace(entry, published=_published_noise(entry.setting)) for entry in mixers]
    base = Setting("cifar10", "s-nl", "icm")
    others = ((name, pair[0]) for name, pair in published.encoders().items() if name != "simsiam")
    return (*found, *(Entry(base.with_(encoder=name), "icm", name, number) for name, number in others))


def _augment() -> tuple[Entry, ...]:
    policies = {"flip": {}, **{name: {"policy": name} for name in ("cutout", "autoaugment", "randaugment")}}
    return tuple(
        Entry(Setting("cifar10", "s-nl", mix).with_(**changes), mix, name)
        for name, changes in policies.items()
        for mix in ("none", "icm")
    )


def _sharing() -> tuple[Entry, ...]:
    found = []
    for tail, loss, share in itertools.product((1.0, 100.0), ("s-nl", "fwd"), ("new-data", "soft-label", "hard-label")):
        setting = Setting("cifar10", loss, "icm", tail)
        found.append(Entry(setting if share == "new-data" else setting.with_(share=share), share))
    return tuple(found)


def _models(data: Sequence[str], losses: Sequence[str], tail: float) -> tuple[Entry, ...]:
    """Three networks; the tables have the numbers of ResNet-18."""
    found = []
    for name, model in itertools.product(data, ("linear", "mlp", "resnet18")):
        for entry in grid("Table 2", (name,), MIXES[:3], (tail,), losses=losses):
            other = Entry(entry.setting.with_(model=model), entry.method, model)
            found.append(replace(entry, group=model) if model == "resnet18" else other)
    return tuple(found)


def _micm() -> tuple[Entry, ...]:
    """ICM and MICM: all sets balanced, those with synthetic labels long-tailed, CIFAR-10 with a shorter tail."""
    pair, loss = ("icm", "micm"), ("s-nl",)
    return (
        *grid("Table 2", (*DATASETS, "clcifar10", "clcifar20"), pair, losses=loss),
        *grid("Table 2", DATASETS, pair, (100,), losses=loss),
        *grid("", ("cifar10",), pair, (10,), losses=loss),
    )


def _p_values() -> tuple[Entry, ...]:
    """Mixup and ICM where the paper tested them."""
    pair = ("mixup", "icm")
    cifar = grid("Table 2", ("cifar10",), pair, (1, 100))
    mnist = grid("Table 2", ("mnist",), pair, (1, 100), losses=("s-nl", "fwd"))
    return (*cifar, *grid("Table 1", ("clcifar10",), pair, (1, 10)), *mnist)


def _filters(table: str, mixes: Sequence[str]) -> tuple[Entry, ...]:
    """CIFAR-10 at ρ = 100 with these mixers; the numbers of the oracles are in a table of their own."""
    both = [grid(name, ("cifar10",), mixes, (100,), losses=("s-nl",)) for name in ("Table 3", table)]
    found = [a if a.published else b for a, b in zip(*both, strict=True)]
    return tuple(replace(entry, noise=_published_noise(entry.setting)) for entry in found)


# --- the study as-coded ---------------------------------------------------------------------------------------------

VARIANTS = tuple(itertools.product(("matched", "swapped"), ("pair", "batch"), (False, True)))
NO_AUGMENTATION = "no augmentation"


def plain_name(mix: str, reset: bool) -> str:
    """The method name of no mixing and of Mixup in the study as-coded."""
    return f"{mix}, Adam {'re-created' if reset else 'kept'}"


def variant_name(weights: str, lam: str, reset: bool) -> str:
    """The method name of a variant of ICM in the study as-coded."""
    return plain_name(f"icm {weights}, λ per {lam}", reset)


def _as_coded() -> tuple[Entry, ...]:
    """Label weights × λ × Adam, no mixing and Mixup beside them; sharing of labels alone; and no augmentation."""
    found = []
    for data in ("cifar10", "mnist"):
        base = {mix: Setting(data, "s-nl", mix, 100.0) for mix in MIXES[:3]}
        number = {mix: _published("Table 2", setting) for mix, setting in base.items()}
        for mix, reset in itertools.product(("none", "mixup"), (False, True)):
            setting = base[mix].with_(reset_optimizer=reset)
            found.append(Entry(setting, plain_name(mix, reset), published=number[mix]))
        for weights, lam, reset in VARIANTS:
            setting = base["icm"].with_(label_weights=weights, lam=lam, reset_optimizer=reset)
            found.append(Entry(setting, variant_name(weights, lam, reset), published=number["icm"]))
        for weights in ("matched", "swapped"):
            shared = {"share": "soft-label", "label_weights": weights, "lam": "batch", "reset_optimizer": True}
            found.append(Entry(base["icm"].with_(**shared), f"labels shared only, {weights}", published=number["icm"]))
        kept = {plain_name(mix, True) for mix in ("none", "mixup")}
        kept |= {variant_name(weights, "batch", True) for weights in ("matched", "swapped")}
        for entry in [entry for entry in found if entry.setting.data == data and entry.method in kept]:
            found.append(replace(entry, setting=entry.setting.with_(padding=0, flip=False), group=NO_AUGMENTATION))
    return tuple(found)


CODED_PAIRS = (
    (variant_name("swapped", "batch", True), variant_name("matched", "pair", False)),
    ("labels shared only, swapped", variant_name("swapped", "batch", True)),
    *((variant_name(*variant), plain_name("mixup", True)) for variant in VARIANTS if variant[2]),
    *((variant_name(*variant), plain_name("mixup", False)) for variant in VARIANTS if not variant[2]),
)

# --- all studies ----------------------------------------------------------------------------------------------------

FILTER_PAIRS = (("intra-class", "extra-class"), ("extra-class", "mixup"), ("icm", "mixup"))
MNIST_FAMILY = ("mnist", "kmnist", "fmnist")
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0)
CHOSEN_ALPHAS = ", ".join(f"{data} {both['icm']:g} and {both['micm']:g}" for data, both in published.alphas().items())
NO_PAIRS: tuple[tuple[str, str], ...] = ()
SHOW_NOISE = tuple(NOISE.items())
TAIL_THIRD = (("tail third", "tail_accuracy_last"),)

_ALL = (
    Study(
        "as-coded",
        "Which reading of the method gives 36.21 and 85.83?",
        "not in the paper",
        _as_coded(),
        pairs=CODED_PAIRS,
        plot="rows",
        protocol="paper",
        note="No augmentation: neither crop nor flip; the text of the paper names none for its main tables.",
    ),
    Study("main", "Balanced and long-tailed, uniform labels", "Table 2", grid("Table 2", DATASETS, MIXES, (1, 100))),
    Study(
        "real",
        "Labels by human annotators",
        "Table 1",
        grid("Table 1", ("clcifar10", "clcifar20"), MIXES[:3], (1, 10)),
        note="The published code cut the tail by complementary labels, which misaligned its true labels; here it is "
        "cut by true labels under both protocols.",
    ),
    Study(
        "annotators",
        "Labels by a vision-language model, and simulated human ones",
        "not in the paper",
        grid("", ("aclcifar10", "aclcifar20", "clcifar10-simulated"), MIXES),
    ),
    Study(
        "several",
        "Several complementary labels for each example",
        "not in the paper",
        _sweep([_drawn_here(mix) for mix in MIXES[:3]], "per_example", (1, 2, 3, 5), "labels"),
        pairs=NO_PAIRS,
        plot="lines",
        note="What the paper names as future work.",
    ),
    Study(
        "intra",
        "Intra-class against extra-class mixing (oracles)",
        "Table 3",
        _filters("", ("extra-class", "intra-class")),
        pairs=FILTER_PAIRS,
        more=SHOW_NOISE,
        note="Under the protocol paper extra-class has alpha = 1 and may pair within a class: not a controlled "
        "comparison.",
    ),
    Study("encoders", "Encoders", "Table 5", _encoders(), pairs=(("simsiam", "random"),), more=SHOW_NOISE),
    Study(
        "setup2-cifar",
        "Setup 2: biased labels, CIFAR",
        "Table 6",
        grid("Table 6", ("cifar10", "cifar20"), MIXES, (1,), (10, 5, 3)),
    ),
    Study(
        "setup2-mnist",
        "Setup 2: biased labels, MNIST family",
        "Table 7",
        grid("Table 7", MNIST_FAMILY, MIXES, (1,), (10, 5)),
    ),
    Study(
        "setup3-5",
        "Setup 3: labels biased by 5, and a long tail",
        "Table 8",
        grid("Table 8", ("mnist", "cifar10"), MIXES, (100, 50, 10), (5,)),
    ),
    Study(
        "setup3-10",
        "Setup 3: labels biased by 10, and a long tail",
        "Table 9",
        grid("Table 9", ("mnist", "cifar10"), MIXES, (100, 50, 10), (10,)),
    ),
    Study(
        "alpha",
        "The mixing parameter",
        "Table 4",
        _sweep([*_long_tailed("icm"), *_long_tailed("micm")], "alpha", ALPHAS, "alpha"),
        pairs=NO_PAIRS,
        plot="lines",
        note=f"The paper chose, for ICM and MICM: {CHOSEN_ALPHAS}.",
    ),
    Study(
        "noise",
        "Noise ratio per dataset",
        "Fig. 3a",
        _noise(),
        runner="noise",
        pairs=NO_PAIRS,
        note="Group: the encoder, if it is not SimSiam. Counted with the true labels, before any training. Under the "
        "protocol paper an example may be its own partner, and labels do not vary with the seed; stored clusters never "
        "vary.",
    ),
    Study(
        "noise-accuracy",
        "Noise against accuracy",
        "Fig. 2a",
        _filters("Table 2", ("none", "mixup", "icm", "micm", "extra-class", "intra-class")),
        pairs=FILTER_PAIRS,
        plot="scatter",
        more=SHOW_NOISE,
        note="In the figure a published accuracy is drawn at the published noise ratio where there is one, at 0 for "
        "no mixing and the noise-free oracles, else at our noise ratio.",
    ),
    Study(
        "noise-levels",
        "Accuracy by the share of wrong labels in mixes",
        "Fig. 2a",
        _sweep([Setting("cifar10", "s-nl", "extra-class", 100.0)], "noisy", (0, 0.04, 0.08, 0.16, 0.32), "noise"),
        pairs=NO_PAIRS,
        plot="lines",
        more=SHOW_NOISE,
        note="The caption says that more noise degrades the accuracy. Here the noise is set: in this share of the "
        "mixes, an oracle chooses a partner by which a label becomes wrong. Mixup has .16.",
    ),
    Study(
        "losses",
        "Mixup against ICM per loss",
        "Fig. 3b",
        grid("Table 2", ("cifar10",), ("mixup", "icm"), (1, 100)),
        across=True,
    ),
    Study("augment", "Augmentation with and without ICM", "Fig. 5a", _augment(), across=True, augmented=True),
    Study(
        "sharing",
        "New data, soft or hard labels",
        "Fig. 5b",
        _sharing(),
        pairs=(("new-data", "soft-label"), ("new-data", "hard-label")),
    ),
    Study("models", "Networks, balanced", "Fig. 6", _models(MNIST_FAMILY, ("s-nl",), 1.0), across=True),
    Study("models-tail", "Networks, long-tailed", "Fig. 11", _models(("mnist",), LOSSES, 100.0), across=True),
    Study(
        "clusters",
        "Number of clusters",
        "Fig. 12 left",
        _sweep(_long_tailed("icm"), "clusters", (30, 40, 50, 60, 70, 80, 90), "K"),
        pairs=NO_PAIRS,
        plot="lines",
    ),
    Study(
        "constant",
        "The constant C of MICM",
        "Fig. 12 right",
        _sweep([s.with_(anchor="own") for s in _long_tailed("micm")], "constant", (10, 20, 30, 40, 50), "C"),
        pairs=NO_PAIRS,
        plot="lines",
        note="Distances are measured from the own image under both protocols: from the mixed point, C is hardly ever "
        "used.",
    ),
    Study("micm", "MICM against ICM", "Fig. 9a and 10b", _micm()),
    Study(
        "minority",
        "MICM against ICM on minority classes",
        "Fig. 9b",
        grid("", ("cifar10",), ("icm", "micm"), (10, 100), losses=("s-nl",)),
        pairs=(("micm", "icm"),),
        plot="classes",
        more=TAIL_THIRD,
        note="The paper has ρ = 10. Tail third: accuracy on the smallest three classes at the last epoch.",
    ),
    Study(
        "same-label",
        "Same complementary label against ICM",
        "Fig. 10a",
        grid("Table 2", DATASETS, ("same-excluded", "icm"), (100,), losses=("s-nl",)),
        pairs=(("icm", "same-excluded"),),
    ),
    Study(
        "gradients",
        "Gradient MSE, bias² and variance",
        "Fig. 7 and 2b",
        tuple(Entry(Setting(name, "s-nl", "icm"), "all") for name in ("cifar10", "mnist", "kmnist")),
        runner="gradients",
        pairs=NO_PAIRS,
        seeds=1,
        note="Compared with the gradient f of cross-entropy on ordinary data with true labels (Eq. 9), which also "
        "trains the network. Divided by |f|², the numbers can be compared between datasets and epochs.",
    ),
    Study(
        "p-values",
        "Welch's test of ICM against Mixup",
        "Fig. 4 and 13 to 15",
        _p_values(),
        plot="none",
        seeds=5,
        note="The long tail of CLCIFAR-10 is 10, as in its table; the caption of the figure says 100.",
    ),
)

STUDIES = {study.name: study for study in _ALL}


def study(name: str) -> Study:
    """Return the study of that name; raise a `UserError` that lists all names otherwise."""
    return STUDIES[one_of("The study", name, STUDIES)]
