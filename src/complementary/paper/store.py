"""Studies as cells of a sweep; what they cost; and their results as small files to be kept.

The runs of a store, found by what they are: any number of seeds of one setting under one protocol.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from complementary.config import MIXED_WITHIN, Config
from complementary.encoders.spec import EncoderSpec
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.paper import gradients, noise
from complementary.paper.protocols import Protocol, Setting, config_of, examples, with_assignments
from complementary.paper.studies import Entry, Study
from complementary.reports.tables import Spread
from complementary.sweeps.grid import HOMES, Cell
from complementary.sweeps.results import OPTIONS, Damaged, Row, read_result, read_results, show


@dataclass(frozen=True)
class Amount:
    """How much of each entry is wanted, and whence its clusters come."""

    seeds: int = 3
    epochs: int = 300
    pretrain_epochs: int = 800
    assignments: Path | None = None

    def config(self, entry: Entry, protocol: Protocol, seed: int = 0) -> Config:
        """The configuration of one run."""
        options: dict[str, Any] = {"epochs": self.epochs, "seed": seed}
        options |= {"pretrain_epochs": self.pretrain_epochs} if entry.setting.clustered else {}
        config = config_of(entry.setting, protocol, **options)
        return config if self.assignments is None else with_assignments(config, self.assignments)


def cells_of(
    studies: Iterable[Study], protocol: Protocol, amount: Amount, where: Mapping[str, Sequence[Any]] | None = None
) -> list[Cell]:
    """All runs of these studies, each once, in the order of seeds; ``where``: option -> values that count."""
    found: dict[str, Cell] = {}
    for seed in range(amount.seeds):
        for entry in (entry for study in studies for entry in study.entries):
            config = amount.config(entry, protocol, seed)
            if _matches(config, where or {}):
                cell = Cell(config, f"{name_of(entry)} {protocol} seed={seed}")
                found.setdefault(cell.key, cell)
    if not found:
        asked = "; ".join(f"{name}={','.join(map(show, values))}" for name, values in (where or {}).items())
        raise UserError(
            f"No cell of the study is as --where asks ({asked}); see them with 'cll paper show NAME --blank'."
        )
    return list(found.values())


def name_of(entry: Entry) -> str:
    """For people: ``cifar10 ρ=100 s-nl icm``."""
    s = entry.setting
    parts = [s.data, *([f"ρ={s.tail:g}"] if s.tail > 1 else []), *([f"bias={s.bias:g}"] if s.bias > 1 else [])]
    return " ".join([*parts, s.loss, *([entry.group] if entry.group else []), entry.method])


def _matches(config: Config, where: Mapping[str, Sequence[Any]]) -> bool:
    options = config.flat()
    return all(options[name] in values for name, values in where.items())


# --- how far, and how long ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """A study under one protocol: entries with at least one run, runs of those wanted, seeds, minutes spent.

    ``left``: minutes that the missing runs will take at the measured speed, encoders aside; None if no speed is known.
    """

    entries: int
    started: int
    runs: int
    wanted: int
    seeds: tuple[int, int]
    epochs: tuple[int, ...]
    minutes: float
    left: float | None


def progress(
    study: Study, results: Results, protocol: Protocol, amount: Amount, stores: Sequence[Path] = ()
) -> Progress:
    """How far a study is, ``amount`` being what is wanted; that of gradients is in files of its own in ``stores``."""
    if study.runner == "gradients":
        return _of_gradients(study, stores, protocol, amount, results.epochs)
    known = results.of(study, protocol)
    counts = [len(runs.seeds) for runs in known.values()]
    rows = {row["config_hash"]: row for runs in known.values() for row in runs.rows}
    missing = {entry: amount.seeds - len(runs.seeds) for entry, runs in known.items() if len(runs.seeds) < amount.seeds}
    return Progress(
        len(counts),
        sum(count > 0 for count in counts),
        sum(min(count, amount.seeds) for count in counts),
        len(counts) * amount.seeds,
        (min(counts), max(counts)),
        tuple(sorted({runs.epochs for runs in known.values() if runs.epochs})),
        sum(row.get("train_seconds") or row.get("seconds") or 0.0 for row in rows.values()) / 60,
        _left(missing, results, protocol, amount) if study.runner == "training" else _left_to_count(missing, results),
    )


def _of_gradients(
    study: Study, stores: Sequence[Path], protocol: Protocol, amount: Amount, epochs: int | None
) -> Progress:
    """Each dataset and seed once, wherever its file lies; ``epochs``: only those of that length."""
    found: dict[tuple[str, int, int], float] = {}
    for content in map(gradients.read, gradients.files(stores)):
        settings, length = content["settings"], int(content["settings"]["training"]["epochs"])
        if content["protocol"] == protocol and epochs in (None, length):
            key = (settings["dataset"]["data"], int(settings["seed"]), length)
            found[key] = float(content.get("seconds") or 0.0)
    seeds: dict[str, set[int]] = {entry.setting.data: set() for entry in study.entries}
    for data, seed, _ in found:
        seeds.setdefault(data, set()).add(seed)
    counts, spent = [len(each) for each in seeds.values()], sum(found.values()) / 60
    runs, wanted = sum(min(count, amount.seeds) for count in counts), len(counts) * amount.seeds
    return Progress(
        len(counts),
        sum(count > 0 for count in counts),
        runs,
        wanted,
        (min(counts), max(counts)),
        tuple(sorted({length for _, _, length in found})),
        spent,
        (wanted - runs) * spent / len(found) if found else None,
    )


def _left_to_count(missing: dict[Entry, int], results: Results) -> float | None:
    """Minutes for so many noise ratios of each entry; None if none was counted yet."""
    seconds = [row["seconds"] for row in results.measured]
    if not missing or not seconds:
        return None if missing else 0.0
    return sum(missing.values()) * statistics.fmean(seconds) / 60


def _left(missing: dict[Entry, int], results: Results, protocol: Protocol, amount: Amount) -> float | None:
    """Minutes for so many runs of each entry; None if the speed of one is not known."""
    total, speeds = 0.0, _speeds(results)
    for entry, count in missing.items():
        one = minutes(amount.config(entry, protocol), speeds) if speeds else None
        if one is None:
            return None
        total += count * one
    return total


def _speeds(results: Results) -> dict[tuple[str, ...], float]:
    """Images per second by network and mixer, and by network alone."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in results.rows:
        if row.get("images_per_second"):
            for key in ((row["model"], row["mix"]), (row["model"],)):
                found.setdefault(key, []).append(row["images_per_second"])
    return {key: statistics.fmean(values) for key, values in found.items()}


def minutes(config: Config, speeds: Mapping[tuple[str, ...], float]) -> float | None:
    """How long one run takes at the speed of runs of the same network (and mixer, if there are some)."""
    model, training = config.network.model, config.training
    speed = speeds.get((model, config.mixing.mix)) or speeds.get((model,))
    steps = training.epochs * (round(examples(config) * (1 - config.dataset.holdout)) // training.batch)
    return None if speed is None else steps * training.batch / speed / 60


# --- results to keep ----------------------------------------------------------------------------------


def export(store: Path, to: Path) -> list[Path]:
    """Copy the result of every run in ``store`` to a small file in ``to`` -> the files."""
    if not store.exists():
        raise UserError(f"There is no store {store}; name the folder of a 'cll paper' run with --store.")
    results = {_file_name(content): content for content in map(read_result, sorted(store.glob("runs/*/result.json")))}
    results |= {path.name: gradients.read(path) for path in gradients.files([store])}
    results |= {path.name: noise.read(path) for path in noise.files([store])}
    if not results:
        raise UserError(f"There is no finished run in {store} to export.")
    to.mkdir(parents=True, exist_ok=True)
    for name, content in results.items():
        atomic_write(to / name, (json.dumps(content, sort_keys=True) + "\n").encode())
    return [to / name for name in results]


def _file_name(result: dict[str, Any]) -> str:
    """``cifar10-rho100-s-nl-icm-3f2a91c0d4e5-seed0.json``; the digits are those of its configuration."""
    config = result["config"]
    source, method = config["dataset"], f"{config['training']['loss']}-{config['mixing']['mix']}"
    key = f"{result['config_hash'][:12]}-seed{config['seed']}"
    return f"{source['data']}-rho{source['long_tail']:g}-{method}-{key}.json"


STORES = (Path("runs/paper"), Path("results/paper"))
# options that may differ between runs of one setting; runs that differ in them are never averaged
HOW = {"epochs": 1, "assignments": None, "pretrain_epochs": 1, "encoder_seed": None}
GROUPING = tuple(name for name, home in HOMES.items() if home == "cluster")


def identity(config: Config) -> str:
    """A name for what is tried: that of the configuration without seed, length and origin of the clusters."""
    options = {"seed": 0} | {name: value for name, value in HOW.items() if name in HOMES}
    if config.mixed_within != "clusters":
        options |= {name: getattr(Config().cluster, name) for name in GROUPING}
    return config.with_(**options).hash()


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
                config = Config.of(**{name: row[name] for name in OPTIONS})
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
    if MIXED_WITHIN[row["mix"]] != "clusters":
        return ()
    if row["assignments"] is not None:
        return (Path(row["assignments"]).name,)  # wherever the folder of that file lies
    here = EncoderSpec.parse(row["encoder"]).is_pretrained_here
    return (row["pretrain_epochs"], row.get("encoder_seed")) if here else ()


def read(stores: Sequence[Path] | None = None, epochs: int | None = None, skip_damaged: bool = False) -> Results:
    """The runs in these stores; None: in the usual ones, if they are there."""
    places: Sequence[Path] = [path for path in STORES if path.exists()] if stores is None else stores
    for place in places:
        if not place.exists():
            raise UserError(f"There is no store {place}; name a folder of runs, or leave --store out.")
    trained = read_results(list(places), skip_damaged)
    measured, damaged = _measured(places, skip_damaged)
    skipped = dict.fromkeys([*trained.skipped, *damaged])  # a file that is no JSON at all is named by both
    return Results(tuple(trained.rows), epochs, tuple(skipped), tuple(measured))


def _measured(places: Sequence[Path], skip_damaged: bool) -> tuple[list[Row], list[str]]:
    """-> the noise ratios in these stores, each configuration once, and the sentences of damaged files."""
    found, skipped = dict[str, Row](), []
    for path in noise.files(places):
        try:
            row = noise.row_of(path)
            found.setdefault(row["config_hash"], row)
        except Damaged as error:
            if not skip_damaged:
                raise
            skipped.append(error.fact)
    return list(found.values()), skipped
