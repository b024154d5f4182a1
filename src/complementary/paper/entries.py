"""The settings of each study, with the published number beside each where a table has it."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from complementary.paper import published
from complementary.paper.protocols import Setting
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
