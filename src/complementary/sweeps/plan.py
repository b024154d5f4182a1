"""What a sweep has to do, in units: first the stages that cells share (encoders, clusters), then the cells.

Two cells share an encoder if they take the same examples of the same data and train the same encoder with the same
seed; they share clusters if all that decides those agrees as well.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from complementary.config import Config
from complementary.encoders.spec import EncoderSpec
from complementary.long_tail import setup
from complementary.mixing import MIXERS
from complementary.sweeps.grid import Cell


@dataclass(frozen=True)
class Stage:
    """Something that several cells need; ``config`` is that of one of them."""

    kind: Literal["encoder", "clusters"]
    key: str
    config: Config

    @property
    def name(self) -> str:
        """For people: ``encoder simsiam of cifar10, seed 0``."""
        grouping = self.config.cluster
        what = "encoder" if self.kind == "encoder" else f"{grouping.clusters} clusters by"
        return f"{what} {grouping.encoder} of {self.config.dataset.data}, seed {self.config.seed}"


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time: a stage, or some cells. ``needs``: the stages that must be there first."""

    key: str
    needs: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    stage: Stage | None = None


def make_plan(cells: Sequence[Cell], pack: int = 1) -> list[Unit]:
    """All units, stages first; up to ``pack`` cells that wait for the same stages make one unit."""
    needs = {cell.key: _Needs.of(cell.config) for cell in cells}
    users = Counter(need.clusters for need in needs.values())
    groups = {need.clusters or key: need.encoder for key, need in needs.items()}
    sharers = Counter(groups.values())  # an encoder is a stage of its own if several clusterings or cells need it
    made = {key for counts in (users, sharers) for key, count in counts.items() if key and count > 1}
    stages = [unit for cell in cells for unit in _stages(cell, needs[cell.key], made)]
    alike: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        alike.setdefault(_first(made, needs[cell.key].clusters, needs[cell.key].encoder), []).append(cell)
    packs = [(wait, some[i : i + pack]) for wait, some in alike.items() for i in range(0, len(some), pack)]
    units = [Unit(some[0].key, wait, tuple(some)) for wait, some in packs]
    return [*{unit.key: unit for unit in stages}.values(), *units]


def _stages(cell: Cell, need: "_Needs", made: set[str]) -> list[Unit]:
    units = []
    if need.encoder in made:
        units.append(Unit(need.encoder, stage=Stage("encoder", need.encoder, cell.config)))
    if need.clusters in made:
        stage = Stage("clusters", need.clusters, cell.config)
        units.append(Unit(need.clusters, _first(made, need.encoder), stage=stage))
    return units


def _first(made: set[str], *keys: str) -> tuple[str, ...]:
    return next(((key,) for key in keys if key in made), ())


@dataclass(frozen=True)
class _Needs:
    """Names of the stages that a configuration needs; "" for none."""

    encoder: str = ""
    clusters: str = ""

    @staticmethod
    def of(config: Config) -> "_Needs":
        maker, source, grouping = MIXERS[config.mixing.mix], config.dataset, config.cluster
        clustered = maker is not None and maker.source == "cluster" and grouping.clusters > 0
        clustered = clustered and grouping.assignments is None
        if not clustered and source.inputs == "raw":
            return _Needs()
        tail = setup(source.labels)[0] if source.labels.startswith("setup") else source.long_tail
        seed = config.seed if grouping.encoder_seed is None else grouping.encoder_seed
        examples = [source.data, tail, source.head, source.draws, source.subset, seed]
        encoder = [*examples, grouping.encoder, grouping.pretrain_epochs]
        how = [grouping.mirror, grouping.clustering, grouping.clusters, grouping.restarts, config.seed]
        clusters = _key("clusters", [*encoder, *how]) if clustered else ""
        here = EncoderSpec.parse(grouping.encoder).is_pretrained_here
        return _Needs(_key("encoder", encoder) if here else "", clusters)


def _key(kind: str, decides: list[Any]) -> str:
    return f"{kind}-{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"
