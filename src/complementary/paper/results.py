"""The runs of a store, found by what they are: any number of seeds of one setting under one protocol."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from complementary.config import Config, configure
from complementary.encoders import ENCODERS
from complementary.errors import UserError
from complementary.grid import HOMES
from complementary.paper import noise
from complementary.paper.entries import Entry
from complementary.paper.protocols import Protocol, Setting, config_of, source_of
from complementary.paper.studies import Study
from complementary.store import OPTIONS, Damaged, Index, Row
from complementary.summary import Spread

STORES = (Path("runs/paper"), Path("results/paper"))
# options that may differ between runs of one setting; runs that differ in them are never averaged
HOW = {"epochs": 1, "assignments": None, "pretrain_epochs": 1, "encoder_seed": None}
GROUPING = tuple(name for name, home in HOMES.items() if home == "grouping")


def identity(config: Config) -> str:
    """A name for what is tried: that of the configuration without seed, length and origin of the clusters."""
    options = {"seed": 0} | {name: value for name, value in HOW.items() if name in HOMES}
    if source_of(config.mixing.mix) != "cluster":
        options |= {name: getattr(Config().grouping, name) for name in GROUPING}
    return configure(config, **options).hash()


@functools.lru_cache(maxsize=10_000)
def wanted(setting: Setting, protocol: Protocol) -> str:
    """The identity of a setting's runs."""
    return identity(config_of(setting, protocol))


@dataclass(frozen=True)
class Runs:
    """Runs of one setting that differ in their seed only; ``others``: how many there are of other kinds."""

    rows: tuple[Row, ...] = ()
    others: int = 0

    def values(self, figure: str) -> list[float]:
        """A figure of every run that has it, as a fraction."""
        return [float(row[figure]) for row in self.rows if row.get(figure) is not None]

    def spread(self, figure: str) -> Spread | None:
        """Its mean and deviation; None if no run has it."""
        values = self.values(figure)
        return Spread.of(values) if values else None

    @property
    def epochs(self) -> int | None:
        """How long they were trained; None where that plays no part."""
        epochs = self.rows[0]["epochs"] if self.rows else None
        return None if epochs is None else int(epochs)

    @property
    def seeds(self) -> set[int]:
        """Their seeds."""
        return {int(row["seed"]) for row in self.rows}


@dataclass(frozen=True)
class Results:
    """All runs of some stores; ``epochs``: only those that were trained so long, None: the longest ones.

    ``measured``: noise ratios that were counted without any training.
    """

    rows: tuple[Row, ...] = ()
    epochs: int | None = None
    skipped: tuple[str, ...] = ()
    measured: tuple[Row, ...] = ()
    _known: dict[str, list[Row]] = field(default_factory=dict, repr=False)
    _noise: dict[str, list[Row]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for rows, known in ((self.rows, self._known), (self.measured, self._noise)):
            for row in rows:
                config = configure(**{name: row[name] for name in OPTIONS})
                known.setdefault(identity(config), []).append(row)

    def find(self, setting: Setting, protocol: Protocol) -> Runs:
        """The runs of a setting: of the longest ones those of which there are most seeds."""
        kinds: dict[tuple[Any, ...], list[Row]] = {}
        known = self._known.get(wanted(setting, protocol), [])
        for row in known:
            if self.epochs in (None, row["epochs"]):
                kinds.setdefault(_kind(row), []).append(row)
        if not kinds:
            return Runs(others=len(known))
        best = max(kinds.values(), key=lambda rows: (rows[0]["epochs"], len(rows)))
        return Runs(tuple(sorted(best, key=lambda row: int(row["seed"]))), len(known) - len(best))

    def noise(self, setting: Setting, protocol: Protocol) -> Runs:
        """What is known of a setting's noise ratio, once for each seed: counted alone, or by a run of any length.

        Where clusters of several origins were used, those with most seeds count.
        """
        origins: dict[tuple[Any, ...], dict[int, Row]] = {}
        name = wanted(setting, protocol)
        for row in [*self._noise.get(name, []), *self._known.get(name, [])]:
            if row.get("noise_ratio") is not None:
                origins.setdefault(_origin(row), {}).setdefault(int(row["seed"]), row | {"epochs": None})
        best = max(origins.values(), key=len, default={})
        others = sum(len(seeds) for seeds in origins.values()) - len(best)
        return Runs(tuple(best[seed] for seed in sorted(best)), others)

    def of(self, study: Study, protocol: Protocol) -> dict[Entry, Runs]:
        """The runs of each entry of a study; of the study of noise, its noise ratios."""
        find = self.noise if study.runner == "noise" else self.find
        return {entry: find(entry.setting, protocol) for entry in study.entries}


def _kind(row: Row) -> tuple[Any, ...]:
    """How a run was made: its length, and the origin of its clusters."""
    return (row["epochs"], *_origin(row))


def _origin(row: Row) -> tuple[Any, ...]:
    """Where clusters play a part, the file or the pretraining they came from."""
    if source_of(row["mix"]) != "cluster":
        return ()
    if row["assignments"] is not None:
        return (Path(row["assignments"]).name,)  # wherever the folder of that file lies
    return (row["pretrain_epochs"], row.get("encoder_seed")) if row["encoder"] in ENCODERS else ()


def read(stores: Sequence[Path] | None = None, epochs: int | None = None, skip_damaged: bool = False) -> Results:
    """The runs in these stores; None: in the usual ones, if they are there."""
    places: Sequence[Path] = [path for path in STORES if path.exists()] if stores is None else stores
    for place in places:
        if not place.exists():
            raise UserError(f"There is no store {place}; name a folder of runs, or leave --store out.")
    with Index(list(places), skip_damaged) as index:
        measured, damaged = _measured(places, skip_damaged)
        skipped = dict.fromkeys([*index.skipped, *damaged])  # a file that is no JSON at all is named by both
        return Results(tuple(index.select()), epochs, tuple(skipped), tuple(measured))


def _measured(places: Sequence[Path], skip_damaged: bool) -> tuple[list[Row], list[str]]:
    """-> the noise ratios in these stores, each configuration once, and the sentences of damaged files."""
    found, skipped = dict[str, Row](), []
    for path in noise.files(places):
        try:
            row = noise.row_of(path)
            found.setdefault(row["config_hash"], row)
        except Damaged as problem:
            if not skip_damaged:
                raise
            skipped.append(str(problem))
    return list(found.values()), skipped
