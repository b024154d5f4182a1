"""What to run next in a given time: the open runs of all studies, the most informative first, with their costs.

Order: first seeds before second ones; published cells of a table, then figures of the paper, then settings that the
paper does not have; comparisons that need no encoder and the fewest further runs; cheap ones first.

Costs come from the measured speed of stored runs with the same network, if possible on the same device. A run whose
encoder is neither stored nor cached also costs the pretraining, which later runs share.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from complementary.config import Config
from complementary.data import cache
from complementary.data.selection import count_examples
from complementary.encoders.spec import EncoderSpec
from complementary.paper.store import Results, RunSettings
from complementary.paper.studies import STUDIES, Entry, Protocol, Study
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import Row

PRETRAINING = 2.5  # time per image of a pretraining, relative to training: measured on an H200
MARGIN = 1.15  # estimates are multiplied by this
KINDS = ("published cell", "figure of the paper", "not in the paper")


@dataclass(frozen=True)
class OpenRun:
    """A run that is still missing."""

    cell: Cell
    study: str
    kind: str
    comparison: str
    """Identifies the runs that are compared with each other."""
    minutes: float
    encoder: str
    """What identifies an encoder that must be pretrained first; '' if none."""
    encoder_minutes: float


@dataclass(frozen=True)
class Speeds:
    """Measured images per second of one lane, by network; ``device`` is where they were measured."""

    device: str
    by_model: Mapping[str, float]

    @staticmethod
    def of(rows: Iterable[Row], device: str) -> "Speeds | None":
        """The speeds on this device, else on the one with most runs of the same kind; None if there is none."""
        found: dict[str, dict[str, list[float]]] = {}
        gpu = not device.startswith("cpu")
        for row in rows:
            name = str(row.get("device") or "")
            if name and row.get("images_per_second") and gpu != name.startswith("cpu"):
                found.setdefault(name, {}).setdefault(row["model"], []).append(float(row["images_per_second"]))
        if not found:
            return None
        chosen = device if device in found else max(found, key=lambda name: sum(map(len, found[name].values())))
        return Speeds(chosen, {model: statistics.fmean(values) for model, values in found[chosen].items()})

    def minutes(self, config: Config) -> float | None:
        """Minutes of one run in one lane; None if the speed of its network is not known."""
        speed = self.by_model.get(config.network.model)
        if speed is None:
            return None
        training = config.training
        steps = training.epochs * (round(count_examples(config) * (1 - config.dataset.holdout)) // training.batch)
        return MARGIN * steps * training.batch / speed / 60

    def pretraining(self, config: Config) -> float:
        """Minutes of a pretraining of the encoder of a configuration."""
        speed = self.by_model.get("resnet18") or next(iter(self.by_model.values()))
        images = count_examples(config) * config.cluster.pretrain_epochs
        return MARGIN * PRETRAINING * images / speed / 60


@dataclass(frozen=True)
class OpenRuns:
    """All open runs, the most informative first, and the datasets that are not in the cache."""

    runs: tuple[OpenRun, ...]
    unavailable: tuple[str, ...]


def open_runs(
    results: Results,
    settings: RunSettings,
    speeds: Speeds,
    protocol: Protocol | None = None,
    cached_encoders: Iterable[str] = (),
) -> OpenRuns:
    """List what is missing.

    Args:
        results: what was run.
        settings: seeds and epochs that are wanted, and stored clusters.
        speeds: for the costs.
        protocol: None: that of each study.
        cached_encoders: see `encoder_name`.
    """
    found: dict[str, tuple[tuple[object, ...], OpenRun]] = {}
    root, here, missing_data = cache.cache_root(), dict[str, bool](), dict[str, None]()
    cached, costs = set(cached_encoders), _Costs(settings, speeds)
    for study in STUDIES.values():
        chosen = protocol or study.protocol
        groups: dict[tuple[object, ...], list[Entry]] = {}
        for entry in study.entries if study.runner == "training" else ():
            data = entry.setting.data
            if data not in here:
                here[data] = data == "digits" or cache.read_manifest(root, data) is not None
            if here[data]:
                groups.setdefault(entry.where, []).append(entry)
            else:
                missing_data.setdefault(data)
        known = results.of(study, chosen) if groups else {}
        for seed in range(settings.seeds):
            for where, entries in groups.items():
                lacking = [e for e in entries if not (seed in known[e].seeds and known[e].epochs == settings.epochs)]
                prices = [costs.of(entry, chosen, seed) for entry in lacking]
                total = sum(minutes for _, minutes in prices if minutes is not None)
                untrained = {name for config, _ in prices if (name := encoder_name(config))} - cached
                for entry, (config, minutes) in zip(lacking, prices, strict=True):
                    if minutes is None:
                        continue
                    encoder = encoder_name(config)
                    kind = _kind(study, entry)
                    run = OpenRun(
                        Cell(config, f"{entry.name} {chosen} seed={seed}"),
                        study.name,
                        KINDS[kind],
                        f"{study.name} {where} {chosen} {seed}",
                        minutes,
                        encoder if encoder in untrained else "",
                        speeds.pretraining(config) if encoder in untrained else 0.0,
                    )
                    order = (seed, kind, len(untrained), len(lacking), total, study.name, str(where))
                    if run.cell.key not in found or order < found[run.cell.key][0]:
                        found[run.cell.key] = order, run
    ordered = sorted(found.values(), key=lambda pair: pair[0])
    return OpenRuns(tuple(run for _, run in ordered), tuple(missing_data))


@dataclass
class _Costs:
    settings: RunSettings
    speeds: Speeds

    def of(self, entry: Entry, protocol: Protocol, seed: int) -> tuple[Config, float | None]:
        config = self.settings.config(entry, protocol, seed)
        return config, self.speeds.minutes(config)


def _kind(study: Study, entry: Entry) -> int:
    if not study.source[0].isupper():
        return 2
    return 0 if entry.published is not None and study.source.startswith("Table") else 1


def encoder_name(config: Config) -> str:
    """What identifies the encoder that a configuration pretrains; '' if it needs none."""
    cluster, dataset = config.cluster, config.dataset
    if config.mixed_within != "clusters" or cluster.assignments is not None:
        return ""
    if not EncoderSpec.parse(cluster.encoder).is_pretrained_here:
        return ""
    place = (dataset.data, dataset.long_tail, dataset.head, dataset.subset, dataset.draws, config.network.max_pool)
    return " ".join(map(str, (cluster.encoder, cluster.pretrain_epochs, cluster.encoder_seed, *place)))


@dataclass(frozen=True)
class Plan:
    """The runs that fit into a time, in order, and when the last one ends (in minutes)."""

    runs: tuple[OpenRun, ...]
    minutes: float


def fit(runs: Sequence[OpenRun], minutes: float, lanes: int) -> Plan:
    """Choose the runs that end in time if ``lanes`` run side by side, each taking the next run when it is free.

    Comparisons that fit completely come first; single runs of other comparisons then fill the time that is left.
    """
    comparisons: dict[str, list[OpenRun]] = {}
    for run in runs:
        comparisons.setdefault(run.comparison, []).append(run)
    state = _Lanes((0.0,) * lanes)
    chosen, left = list[OpenRun](), list[OpenRun]()
    for members in comparisons.values():
        after = state.with_runs(members)
        if after.end <= minutes:
            state, chosen = after, [*chosen, *members]
        else:
            left += members
    for run in left:
        after = state.with_runs([run])
        if after.end <= minutes:
            state, chosen = after, [*chosen, run]
    return Plan(tuple(chosen), state.end)


@dataclass(frozen=True)
class _Lanes:
    """When each lane is free, and when each encoder is ready, in minutes."""

    free: tuple[float, ...]
    ready: tuple[tuple[str, float], ...] = ()

    @property
    def end(self) -> float:
        return max(self.free)

    def with_runs(self, runs: Iterable[OpenRun]) -> "_Lanes":
        free, ready = list(self.free), dict(self.ready)
        for run in runs:
            lane = min(range(len(free)), key=lambda i: free[i])
            if run.encoder:
                ready.setdefault(run.encoder, free[lane] + run.encoder_minutes)
            free[lane] = max(free[lane], ready.get(run.encoder, 0.0)) + run.minutes
        return _Lanes(tuple(free), tuple(ready.items()))


def cost(runs: Sequence[OpenRun], lanes: int) -> float:
    """Minutes of all runs together, with their encoders."""
    encoders = {run.encoder: run.encoder_minutes for run in runs if run.encoder}
    return (sum(run.minutes for run in runs) + sum(encoders.values())) / lanes
