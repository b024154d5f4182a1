"""Runs of studies: cells of a sweep, stored results, and their export to small files.

Results are found by what they are: all seeds of one setting under one protocol, wherever and for which study they were
run. A store is a folder of a sweep (``runs/paper``) or of exported results (``results/paper``). Noise ratios and
gradients are measured without training a classifier; they are files ``noise-*.json`` and ``gradients-*.json`` in it.
"""

import functools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from complementary.clusters.assign import read_assignment
from complementary.config import MIXED_WITHIN, Config, options_of
from complementary.encoders.spec import EncoderSpec
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.paper import published
from complementary.paper.protocols import CLUSTERED, COMMON, config_of, with_assignments
from complementary.paper.studies import Entry, Protocol, Setting, Study
from complementary.reports.tables import Spread, counted
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import (
    OPTIONS,
    Damaged,
    NotAResult,
    OtherVersion,
    Row,
    read_result,
    read_results,
    show,
)

GRADIENT_METRICS = {"oracle_mse": "MSE", "oracle_bias_squared": "bias²", "oracle_variance": "variance"}
LEAST_FREEDOM = 4  # degrees of freedom of a pooled deviation
GRADIENT_SCALE = "oracle_target_squared"  # |f|², by which the others are divided to be comparable

# --- cells ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSettings:
    """How often and how long settings are run."""

    seeds: int = 3
    epochs: int = COMMON["epochs"]
    pretrain_epochs: int = CLUSTERED["pretrain_epochs"]
    assignments: Path | None = None
    """Folder of stored clusters, which are used where they fit."""

    def config(self, entry: Entry, protocol: Protocol, seed: int = 0) -> Config:
        """The configuration of one run."""
        options: dict[str, Any] = {"epochs": self.epochs, "seed": seed}
        options |= {"pretrain_epochs": self.pretrain_epochs} if entry.setting.clustered else {}
        config = config_of(entry.setting, protocol, **options)
        return config if self.assignments is None else with_assignments(config, self.assignments)


def cells_of(
    studies: Iterable[Study],
    protocol: Protocol,
    settings: RunSettings,
    where: Mapping[str, Sequence[Any]] | None = None,
) -> list[Cell]:
    """All runs of some studies, each once, ordered by seed; ``where``: option -> values, all of which must match."""
    found: dict[str, Cell] = {}
    entries = [entry for study in studies for entry in study.entries]
    for seed in range(settings.seeds):
        for entry in entries:
            config = settings.config(entry, protocol, seed)
            if matches(config, where or {}):
                cell = Cell(config, f"{entry.name} {protocol} seed={seed}")
                found.setdefault(cell.key, cell)
    if not found:
        asked = "; ".join(f"{name}={','.join(map(show, values))}" for name, values in (where or {}).items())
        raise UserError(f"No setting of the study matches {asked}.", "where")
    return list(found.values())


def matches(config: Config, where: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every option that ``where`` names has one of its values."""
    options = config.flat()
    return all(options[name] in values for name, values in where.items())


# --- stored results -------------------------------------------------------------------------------------------------

# Runs of one setting may differ in these options; such runs are never averaged.
_REPLACED: dict[str, Any] = {"seed": 0, "epochs": 1, "assignments": None, "pretrain_epochs": 1, "encoder_seed": None}
_CLUSTER_OPTIONS = {
    name: getattr(Config().cluster, name) for name, home in options_of(Config).items() if home == "cluster"
}


def identity(config: Config) -> str:
    """A hash of what is tried: the configuration without seed, length of the training and origin of the clusters."""
    unused = {} if config.mixed_within == "clusters" else _CLUSTER_OPTIONS
    return config.with_(**(unused | _REPLACED)).hash()


@functools.lru_cache(maxsize=10_000)
def _identity_of(setting: Setting, protocol: Protocol) -> str:
    return identity(config_of(setting, protocol))


@dataclass(frozen=True)
class Runs:
    """Runs of one setting that differ only in their seed."""

    rows: tuple[Row, ...] = ()

    def values(self, metric: str) -> list[float]:
        """A metric of every run that has it, as a fraction."""
        return [float(row[metric]) for row in self.rows if row.get(metric) is not None]

    def spread(self, metric: str) -> Spread | None:
        """Mean and standard deviation of a metric; None if no run has it."""
        values = self.values(metric)
        return Spread.of(values) if values else None

    @property
    def epochs(self) -> int | None:
        """Length of the training; None for noise ratios, which do not depend on it."""
        epochs = self.rows[0]["epochs"] if self.rows else None
        return None if epochs is None else int(epochs)

    @property
    def seeds(self) -> set[int]:
        """The seeds."""
        return {int(row["seed"]) for row in self.rows}

    @property
    def short(self) -> list[str]:
        """What is less than behind the published numbers: seeds, epochs, epochs of the encoder; [] if nothing is."""
        if not self.rows:
            return []
        return [counted(len(self.seeds), "seed")] * (len(self.seeds) < published.RUNS) + self.shorter

    @property
    def shorter(self) -> list[str]:
        """The same without the seeds: trainings that are shorter than the published ones."""
        few = [counted(self.epochs, "epoch")] if self.epochs and self.epochs < published.EPOCHS else []
        least = min(self.encoder_epochs, default=CLUSTERED["pretrain_epochs"])
        return few + [f"encoder of {least} epochs"] * (least < CLUSTERED["pretrain_epochs"])

    @property
    def encoder_epochs(self) -> set[int]:
        """The lengths of the encoders behind the clusters, as far as they are known."""
        return {epochs for row in self.rows if (epochs := encoder_epochs(row)) is not None}

    def measurements(self) -> list[dict[str, Any]]:
        """All measurements of gradients, one for each step and method."""
        return [measured for row in self.rows for measured in json.loads(row["gradients"])]


@dataclass(frozen=True)
class Pooled:
    """A deviation between seeds that belongs to a dataset and a network, not to one setting; a fraction."""

    deviation: float
    freedom: int
    data: str
    model: str

    @property
    def origin(self) -> str:
        """For display: ``cifar10, resnet18: 1.13 points, 10 degrees of freedom``."""
        return f"{self.data}, {self.model}: {100 * self.deviation:.2f} points, {self.freedom} degrees of freedom"


@dataclass(frozen=True)
class Results:
    """Everything in some stores: training runs, noise ratios counted without training, measurements of gradients."""

    rows: tuple[Row, ...] = ()
    noise: tuple[Row, ...] = ()
    gradients: tuple[Row, ...] = ()
    epochs: int | None = None
    """Only runs of this length; None: for each setting the longest ones."""
    skipped: tuple[str, ...] = ()
    """Messages about damaged files."""
    _known: dict[str, list[Row]] = field(default_factory=dict, repr=False, compare=False)
    _noise: dict[str, list[Row]] = field(default_factory=dict, repr=False, compare=False)
    _pooled: dict[tuple[str, str, str], Pooled | None] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for rows, known in ((self.rows, self._known), (self.noise, self._noise)):
            for row in rows:
                known.setdefault(identity(Config.of(**{name: row[name] for name in OPTIONS})), []).append(row)

    def of(self, study: Study, protocol: Protocol) -> dict[Entry, Runs]:
        """The runs of each entry of a study; for the study of noise, its noise ratios."""
        find = {"training": self.find, "noise": self.find_noise, "gradients": self.find_gradients}[study.runner]
        return {entry: find(entry.setting, protocol) for entry in study.entries}

    def find(self, setting: Setting, protocol: Protocol) -> Runs:
        """The training runs of a setting: of the longest ones those with most seeds."""
        kinds: dict[tuple[Any, ...], dict[int, Row]] = {}
        for row in self._known.get(_identity_of(setting, protocol), []):
            if self.epochs in (None, row["epochs"]):
                kinds.setdefault((row["epochs"], *_origin(row)), {}).setdefault(int(row["seed"]), row)
        _, best = max(kinds.items(), key=lambda kind: (kind[0][0], len(kind[1])), default=(None, {}))
        return Runs(tuple(best[seed] for seed in sorted(best)))

    def pooled(self, metric: str, data: str, model: str) -> Pooled | None:
        """Deviation of a metric between seeds, pooled over all settings of a network on a dataset with several seeds.

        None if it has less than `LEAST_FREEDOM` degrees of freedom.
        """
        key = (metric, data, model)
        if key not in self._pooled:
            groups: dict[tuple[Any, ...], list[float]] = {}
            for name, rows in self._known.items():
                for row in rows:
                    if row.get(metric) is not None and (row["data"], row["model"]) == (data, model):
                        groups.setdefault((name, row["epochs"], *_origin(row)), []).append(float(row[metric]))
            several = [values for values in groups.values() if len(values) > 1]
            freedom = sum(len(values) - 1 for values in several)
            squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
            enough = freedom >= LEAST_FREEDOM
            self._pooled[key] = Pooled(math.sqrt(squares / freedom), freedom, data, model) if enough else None
        return self._pooled[key]

    def find_noise(self, setting: Setting, protocol: Protocol) -> Runs:
        """The noise ratios of a setting, one for each seed: counted alone, or by the longest training run.

        If clusters of several origins were used, those with most seeds count. Augmentation does not matter.
        """
        origins: dict[tuple[Any, ...], dict[int, Row]] = {}
        name = _identity_of(setting, "paper" if protocol == "plain" else protocol)
        trained = sorted(self._known.get(name, []), key=lambda row: -row["epochs"])
        for row in [*self._noise.get(name, []), *trained]:
            if row.get("oracle_noise_ratio") is not None:
                origins.setdefault(_origin(row), {}).setdefault(int(row["seed"]), row | {"epochs": None})
        best = max(origins.values(), key=len, default={})
        return Runs(tuple(best[seed] for seed in sorted(best)))

    def find_gradients(self, setting: Setting, protocol: Protocol) -> Runs:
        """The measurements of gradients on a dataset."""
        rows = [row for row in self.gradients if (row["data"], row["protocol"]) == (setting.data, protocol)]
        return Runs(tuple(row for row in rows if self.epochs in (None, row["epochs"])))


def _origin(row: Row) -> tuple[Any, ...]:
    """Where the clusters of a run come from: a file or a pretraining; empty if it needs none."""
    if MIXED_WITHIN[row["mix"]] != "clusters":
        return ()
    if row["assignments"] is not None:
        return (Path(row["assignments"]).name,)  # the folder does not matter
    pretrained = EncoderSpec.parse(row["encoder"]).is_pretrained_here
    return (row["pretrain_epochs"], row["encoder_seed"]) if pretrained else ()


def encoder_epochs(row: Row) -> int | None:
    """Epochs of the encoder behind the clusters of a run; None if there is none, or if that is not known.

    Stored clusters say it in their file, which is looked for in the working folder and beside the result.
    """
    if MIXED_WITHIN[row["mix"]] != "clusters":
        return None
    if row["assignments"] is None:
        return int(row["pretrain_epochs"]) if EncoderSpec.parse(row["encoder"]).is_pretrained_here else None
    given, here = Path(row["assignments"]), Path(row["path"])
    for path in (given, *(folder / "clusters" / given.name for folder in here.parents[1:3])):
        if path.exists():
            return _epochs_in(path)
    return None


@functools.lru_cache(maxsize=100)
def _epochs_in(path: Path) -> int | None:
    made_by = read_assignment(path)[1]["made_by"]
    for name in ("pretrain", "pretraining"):
        if isinstance(made_by.get(name), dict) and "epochs" in made_by[name]:
            return int(made_by[name]["epochs"])
    return None


@dataclass(frozen=True)
class Progress:
    """How much of a study was run under one protocol."""

    settings: int
    started: int
    """Settings with at least one run."""
    runs: int
    wanted: int
    seeds: tuple[int, int]
    """Smallest and largest number of seeds of a setting."""
    minutes: float


def progress(study: Study, results: Results, protocol: Protocol, seeds: int | None = None) -> Progress:
    """Count the runs of a study; ``seeds`` are wanted of each entry, by default as many as the study says."""
    known, wanted = results.of(study, protocol), seeds or study.seeds
    counts = [len(runs.seeds) for runs in known.values()]
    rows = {row["config_hash"]: row for runs in known.values() for row in runs.rows}
    return Progress(
        settings=len(counts),
        started=sum(count > 0 for count in counts),
        runs=sum(min(count, wanted) for count in counts),
        wanted=len(counts) * wanted,
        seeds=(min(counts), max(counts)),
        minutes=sum(row.get("train_seconds") or row.get("seconds") or 0.0 for row in rows.values()) / 60,
    )


# --- files ----------------------------------------------------------------------------------------------------------


def read(stores: Sequence[Path], epochs: int | None = None, skip_damaged: bool = False) -> Results:
    """Read all results in some folders.

    Args:
        stores: The folders.
        epochs: Only trainings of this length.
        skip_damaged: Skip damaged files instead of raising `Damaged`.
    """
    for store in stores:
        _check_store(store)
    trained = read_results(stores, skip_damaged)
    skipped, rows = list(trained.skipped), dict[str, dict[str, Row]](noise={}, gradients={})
    for kind, found in rows.items():
        for path in measurement_files(stores, kind):
            try:
                row = read_measurement(path)
                found.setdefault(row["config_hash"], row)
            except Damaged as error:
                if not skip_damaged:
                    raise
                skipped.append(error.fact)
    noise, gradients = (tuple(found.values()) for found in rows.values())
    return Results(tuple(trained.rows), noise, gradients, epochs, tuple(dict.fromkeys(skipped)))


def _check_store(store: Path) -> None:
    """Raise if a folder has files, but neither a sweep, nor a result, nor a measurement: it belongs to other code."""
    if not store.is_dir() or (store / "sweep.json").exists() or (store / "runs").is_dir():
        return
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    for path in files:
        try:
            if path.suffix == ".json" and (path.name.startswith(("noise-", "gradients-")) or read_result(path)):
                return
        except Damaged:
            return  # a result; what is wrong with it is said when it is read
        except NotAResult:
            continue
    if files:
        raise UserError(
            f"The folder {store} holds {counted(len(files), 'file')}, such as {files[0].relative_to(store)}, but no "
            "result of this package; name a folder that cll paper or cll paper export wrote.",
            "store",
        )


def measurement_files(stores: Sequence[Path], kind: str) -> list[Path]:
    """The files of one kind (``noise`` or ``gradients``) in some stores."""
    return [path for store in stores for path in sorted(store.rglob(f"{kind}-*.json"))]


def read_measurement(path: Path) -> Row:
    """Read a noise ratio or a measurement of gradients as a flat row, like that of a training run."""
    content, config = _read_measurement(path)
    facts = content.get("data", {}) | {name: content[name] for name in content if name not in ("config", "data")}
    plain = {name: json.dumps(value) if isinstance(value, list) else value for name, value in facts.items()}
    return config.flat() | plain | {"config_hash": config.hash(), "path": str(path.resolve())}


def _read_measurement(path: Path) -> tuple[dict[str, Any], Config]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(path, f"it is not complete JSON ({error})") from None
    try:
        content["protocol"], content["device"], float(content["seconds"]), dict(content.get("data", {}))
        if path.name.startswith("noise-"):
            ratio = content["oracle_noise_ratio"]
            if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
                raise ValueError(f"its oracle_noise_ratio is {ratio}, but it must be between 0 and 1")
        else:
            for row in content["gradients"]:
                (
                    row["step"],
                    row["method"],
                    row["target"],
                    [float(row[name]) for name in (*GRADIENT_METRICS, GRADIENT_SCALE)],
                )
        nested = content["config"]
        inner = {name: value for part in nested.values() if isinstance(part, dict) for name, value in part.items()}
        if unknown := set(inner) - set(OPTIONS):
            raise OtherVersion(path, unknown)
        return content, Config.stored(**inner, seed=nested["seed"])
    except Damaged:
        raise
    except LookupError as error:
        raise Damaged(path, f"it has no {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise Damaged(path, str(error).rstrip(".")) from None


def export(store: Path, to: Path) -> list[Path]:
    """Copy the result of every run in ``store``, and every measurement, to a small file in ``to``; return the files."""
    if not store.exists():
        raise UserError(f"There is no store {store}; name the folder of a study that was run.", "store")
    results = {_file_name(content): content for content in map(read_result, sorted(store.glob("runs/*/result.json")))}
    for kind in ("noise", "gradients"):
        results |= {path.name: _read_measurement(path)[0] for path in measurement_files([store], kind)}
    if not results:
        raise UserError(f"There is no finished run in {store} to export.", "store")
    to.mkdir(parents=True, exist_ok=True)
    for name, content in results.items():
        atomic_write(to / name, json.dumps(content, sort_keys=True) + "\n")
    return [to / name for name in results]


def _file_name(result: dict[str, Any]) -> str:
    """``cifar10-rho100-s-nl-icm-3f2a91c0d4e5-seed0.json``; the digits are those of the configuration's hash."""
    config = result["config"]
    method = f"{config['training']['loss']}-{config['mixing']['mix']}"
    place = f"{config['dataset']['data']}-rho{config['dataset']['long_tail']:g}"
    return f"{place}-{method}-{result['config_hash'][:12]}-seed{config['seed']}.json"
