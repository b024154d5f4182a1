"""How far our runs are from the published numbers, and which protocol comes nearest to them."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from complementary.data.registry import REGISTRY
from complementary.paper import published
from complementary.paper.compare import BEST, LAST
from complementary.paper.published import EPOCHS
from complementary.paper.store import Results
from complementary.paper.studies import PROTOCOLS, STUDIES, Entry, Protocol
from complementary.reports.tables import Table, counted

NEAR_CHANCE = 1.5  # times the accuracy of guessing


@dataclass(frozen=True)
class Distance:
    """Our accuracy minus the published one, best epoch on the test set, of runs of full length."""

    protocol: Protocol
    entry: Entry
    points: float
    lost: float
    """By how many points the last epoch is worse than the best one."""
    encoder: int | None
    """Shortest training of an encoder behind it; None without clusters."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Identifies the published number."""
        assert self.entry.published is not None
        return self.entry.published.place

    @property
    def trivial(self) -> bool:
        """Whether the published number is near chance, which every method reaches."""
        number = self.entry.published
        assert number is not None
        return number.mean <= NEAR_CHANCE * 100 / len(REGISTRY[number.data].classes)


def published_entries() -> dict[tuple[Any, ...], Entry]:
    """An entry for each published number of a table."""
    found = dict[tuple[Any, ...], Entry]()
    for study in STUDIES.values():
        for entry in study.entries if study.source.startswith("Table") else ():
            if entry.published and entry.published.place in published.cells():
                found.setdefault(entry.published.place, entry)
    return found


def distances(results: Results) -> list[Distance]:
    """Of all settings with a published number and runs of full length, by protocol."""
    found = []
    for protocol, entry in itertools.product(PROTOCOLS, published_entries().values()):
        runs = results.find(entry.setting, protocol)
        best, last = runs.spread(BEST), runs.spread(LAST)
        if runs.epochs == EPOCHS and entry.published is not None and best is not None:
            lost = 0.0 if last is None else 100 * (best.mean - last.mean)
            points = 100 * best.mean - entry.published.mean
            found.append(Distance(protocol, entry, points, lost, min(runs.encoder_epochs, default=None)))
    return found


def mean_distance(found: Iterable[Distance]) -> float:
    """Mean of the absolute differences in points; there must be one."""
    return statistics.fmean(abs(one.points) for one in found)


def baselines(found: Iterable[Distance]) -> dict[Protocol, list[Distance]]:
    """The distances without mixing, by protocol, the nearest protocol first.

    Without mixing, the text and the published code hardly differ, so this shows whether the training is the same.
    """
    of: dict[Protocol, list[Distance]] = {}
    for one in found:
        if one.entry.setting.mix == "none":
            of.setdefault(one.protocol, []).append(one)
    return dict(sorted(of.items(), key=lambda item: mean_distance(item[1])))


def nearest(found: Iterable[Distance]) -> list[Protocol]:
    """All protocols, the one whose runs without mixing are nearest to the published numbers first."""
    return list(dict.fromkeys([*baselines(found), "plain", *PROTOCOLS]))


def like_for_like(found: Sequence[Distance]) -> str:
    """Mean distances of two protocols on the numbers that have runs under both; '' if there are none."""
    far: dict[Protocol, dict[tuple[Any, ...], Distance]] = {}
    for one in found:
        far.setdefault(one.protocol, {})[one.place] = one
    parts = []
    for a, b in itertools.combinations(far, 2):
        if both := far[a].keys() & far[b].keys():
            means = [f"{p} {mean_distance(far[p][place] for place in both):.1f}" for p in (a, b)]
            parts.append(f"{' and '.join(means)} ({counted(len(both), 'setting')})")
    return "; ".join(parts)


# --- tables ---------------------------------------------------------------------------------------------------------


def by_dataset(found: Sequence[Distance]) -> Table:
    """One row per protocol, dataset and length of the encoder: mean distances, and without numbers near chance."""
    mixes = list(dict.fromkeys(one.entry.setting.mix for one in found))
    rows = []
    for protocol in nearest(found):
        for data in dict.fromkeys(one.entry.setting.data for one in found):
            here = [one for one in found if (one.protocol, one.entry.setting.data) == (protocol, data)]
            epochs = " or ".join(map(str, sorted({one.encoder for one in here if one.encoder})))
            of = [[one for one in here if one.entry.setting.mix == mix] for mix in mixes]
            kept = [one for one in here if not one.trivial]
            if here:
                lost = f"{statistics.fmean(one.lost for one in here):.1f}"
                rows.append([protocol, data, epochs, *map(_mean, of), _mean(kept), lost])
    header = ["protocol", "data", "encoder epochs", *mixes, "all but near-chance numbers", "best - last epoch"]
    return Table("", header, rows, 3)


def _mean(found: Sequence[Distance]) -> str:
    return f"{mean_distance(found):.1f} ({len(found)})" if found else ""
