"""What to run next in a given time: the open runs of all studies, the most informative first, with their costs.

Order: settings of the paper before others; settings without a run under any protocol; first seeds before second ones;
published cells of a table before figures; comparisons that need no encoder and the fewest further runs; then those with
the fewest minutes per published cell.

Costs come from the measured speed of stored runs with the same network, if possible on the same device and under the
same protocol. A run whose encoder is neither stored nor cached also costs the pretraining, which later runs share. The
start of the processes (imports, data, compilation) counts once.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from complementary.config import Config
from complementary.data import cache
from complementary.data.selection import count_examples
from complementary.encoders.spec import EncoderSpec
from complementary.paper.store import Results, RunSettings, matches
from complementary.paper.studies import PROTOCOLS, STUDIES, Entry, Protocol, Study
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import Row

ENCODER = "resnet18"  # the network of all encoders of the paper
PRETRAINING = 2.5  # time per image of a pretraining, relative to training: measured on an H200
MARGIN = 1.15  # estimates are multiplied by this
START_GPU, START_CPU = 1.0, 0.2  # minutes before the first step; on an H200, compilation took 36 and 55 seconds
KINDS = ("published cell", "figure of the paper", "not in the paper")
NOT_IN_PAPER = 2


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
    """Of its pretraining; infinite if the speed of one is not known on this device."""
    tried: bool = False
    """Whether its setting has a run, under any protocol."""


@dataclass(frozen=True)
class Speeds:
    """Measured images per second of one lane, by network; ``device`` is where they were measured.

    Under the protocol ``paper``, which holds nothing out, runs take longer: with mixing, each batch passes through the
    network twice.
    """

    device: str
    by_model: Mapping[str, float]
    nothing_held_out: Mapping[str, float] = field(default_factory=dict)
    """The same, of runs without held-out labels."""

    @staticmethod
    def of(rows: Iterable[Row], device: str) -> "Speeds | None":
        """The speeds on this device, else on the one with most runs of the same kind; None if there is none.

        A network that was not measured there has its speed on other devices of the kind (GPU or CPU).
        """
        gpu, found = not device.startswith("cpu"), dict[str, list[Row]]()
        for row in rows:
            name = str(row.get("device") or "")
            if name and row.get("images_per_second") and gpu != name.startswith("cpu"):
                found.setdefault(name, []).append(row)
        if not found:
            return None
        chosen = device if device in found else max(found, key=lambda name: len(found[name]))
        held, nothing = ([row for row in found[chosen] if (row["holdout"] > 0) == wanted] for wanted in (True, False))
        others = _by_model(row for rows_of in found.values() for row in rows_of)
        return Speeds(chosen, others | _by_model(nothing) | _by_model(held), _by_model(nothing))

    @property
    def start(self) -> float:
        """Minutes until the first step of a new process."""
        return START_CPU if self.device.startswith("cpu") else START_GPU

    def minutes(self, config: Config) -> float | None:
        """Minutes of one run in one lane; None if the speed of its network is not known."""
        model, training = config.network.model, config.training
        speed = self.by_model.get(model)
        if config.dataset.holdout == 0:
            speed = self.nothing_held_out.get(model, speed)
        if speed is None:
            return None
        steps = training.epochs * (round(count_examples(config) * (1 - config.dataset.holdout)) // training.batch)
        return MARGIN * steps * training.batch / speed / 60

    def pretraining(self, config: Config) -> float:
        """Minutes of a pretraining of the encoder of a configuration, a ResNet-18; infinite if its speed is unknown."""
        speed = self.by_model.get(ENCODER)
        if speed is None:
            return math.inf
        images = count_examples(config) * config.cluster.pretrain_epochs
        return MARGIN * PRETRAINING * images / speed / 60


def _by_model(rows: Iterable[Row]) -> dict[str, float]:
    """Images per second by network: the harmonic mean, so that the mean time of a run is right."""
    speeds: dict[str, list[float]] = {}
    for row in rows:
        speeds.setdefault(row["model"], []).append(float(row["images_per_second"]))
    return {model: statistics.harmonic_mean(values) for model, values in speeds.items()}


@dataclass(frozen=True)
class OpenRuns:
    """All open runs, the most informative first, and what was left out."""

    runs: tuple[OpenRun, ...]
    unavailable: tuple[str, ...]
    """Datasets that are not in the cache."""
    unmeasured: tuple[str, ...] = ()
    """Networks of open runs whose speed is not known."""

    def with_known_costs(self) -> "OpenRuns":
        """Without the runs whose encoder would take an unknown time."""
        known = tuple(run for run in self.runs if math.isfinite(run.encoder_minutes))
        added = (f"{ENCODER} (pretraining)",) if len(known) < len(self.runs) else ()
        return replace(self, runs=known, unmeasured=self.unmeasured + added)


def open_runs(
    results: Results,
    settings: RunSettings,
    speeds: Speeds,
    protocol: Protocol | None = None,
    cached_encoders: Iterable[str] = (),
    studies: Iterable[Study] | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
) -> OpenRuns:
    """List what is missing.

    Args:
        results: what was run.
        settings: seeds and epochs that are wanted, and stored clusters.
        speeds: for the costs.
        protocol: None: what `Study.planned` says.
        cached_encoders: see `encoder_name`.
        studies: None: all.
        only: only these settings: option -> values, all of which must match.
    """
    found: dict[str, tuple[tuple[object, ...], OpenRun]] = {}
    root, here, missing_data, unmeasured = cache.cache_root(), dict[str, bool](), dict[str, None](), dict[str, None]()
    cached = set(cached_encoders)
    for study in STUDIES.values() if studies is None else studies:
        chosen = protocol or study.planned
        groups: dict[tuple[object, ...], list[Entry]] = {}
        for entry in study.entries if study.runner == "training" else ():
            data = entry.setting.data
            if data not in here:
                here[data] = data == "digits" or cache.read_manifest(root, data) is not None
            if not here[data]:
                missing_data.setdefault(data)
            elif not only or matches(settings.config(entry, chosen), only):
                groups.setdefault(entry.where, []).append(entry)
        known = results.of(study, chosen) if groups else {}
        for seed in range(settings.seeds):
            for where, entries in groups.items():
                lacking = [e for e in entries if not (seed in known[e].seeds and known[e].epochs == settings.epochs)]
                configs = [settings.config(entry, chosen, seed) for entry in lacking]
                prices = [(config, speeds.minutes(config)) for config in configs]
                total = sum(minutes for _, minutes in prices if minutes is not None)
                kinds = [_kind(study, entry) for entry in lacking]
                tried = [any(results.find(e.setting, one).rows for one in PROTOCOLS) for e in lacking]
                per_number = total / max(1, kinds.count(0))
                untrained = {name for config, _ in prices if (name := encoder_name(config))} - cached
                for entry, kind, again, (config, minutes) in zip(lacking, kinds, tried, prices, strict=True):
                    if minutes is None:
                        unmeasured.setdefault(config.network.model)
                        continue
                    encoder = encoder_name(config)
                    run = OpenRun(
                        Cell(config, f"{entry.name} {chosen} seed={seed}"),
                        study.name,
                        KINDS[kind],
                        f"{study.name} {where} {chosen} {seed} {again}",
                        minutes,
                        encoder if encoder in untrained else "",
                        speeds.pretraining(config) if encoder in untrained else 0.0,
                        again,
                    )
                    order = (
                        kind == NOT_IN_PAPER,
                        again,
                        seed,
                        kind,
                        len(untrained),
                        len(lacking),
                        per_number,
                        study.name,
                        str(where),
                    )
                    if run.cell.key not in found or order < found[run.cell.key][0]:
                        found[run.cell.key] = order, run
    ordered = sorted(found.values(), key=lambda pair: pair[0])
    return OpenRuns(tuple(run for _, run in ordered), tuple(missing_data), tuple(unmeasured))


def _kind(study: Study, entry: Entry) -> int:
    if not study.source[0].isupper():
        return NOT_IN_PAPER
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


def fit(runs: Sequence[OpenRun], minutes: float, lanes: int, start: float = 0.0) -> Plan:
    """Choose the runs that end in time if ``lanes`` run side by side, each taking the next run when it is free.

    Comparisons that fit completely come first; single runs of other comparisons then fill the time that is left.

    Args:
        runs: the open runs, the most informative first.
        minutes: the time.
        lanes: how many run side by side.
        start: minutes before the first of them starts.
    """
    comparisons: dict[str, list[OpenRun]] = {}
    for run in runs:
        comparisons.setdefault(run.comparison, []).append(run)
    state = _Lanes((start,) * lanes)
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
    return Plan(tuple(chosen), state.end if chosen else 0.0)


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
