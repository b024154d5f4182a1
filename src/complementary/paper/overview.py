"""All studies at a glance: which there are, and how far each is."""

from collections.abc import Sequence
from pathlib import Path

from complementary.paper.protocols import Protocol
from complementary.paper.store import Amount, Progress, Results, progress
from complementary.paper.studies import STUDIES
from complementary.reports import tables
from complementary.reports.tables import Table, counted


def listing() -> str:
    """All studies, a line each."""
    header = ["study", "in the paper", "settings", "published", "what"]
    rows = [[s.name, s.source, str(len(s.entries)), str(len(s.compared)), s.title] for s in STUDIES.values()]
    return tables.text("Run one with: cll paper NAME", [Table("", header, rows, 2)]).rstrip()


def status(
    results: Results, stores: Sequence[Path], protocols: Sequence[Protocol], seeds: int | None, epochs: int | None
) -> str:
    """How far each study is under each protocol; ``seeds``, ``epochs``: what is wanted, None: the usual."""
    rows = []
    for study in STUDIES.values():
        amount = Amount(seeds or study.seeds, epochs or Amount.epochs)
        for protocol in protocols:
            rows.append([study.name, protocol, *_cells(progress(study, results, protocol, amount, stores))])
    header = ["study", "protocol", "settings", "runs", "seeds", "minutes spent", "minutes left"]
    places = ", ".join(map(str, stores)) or "no folder (start cll where results/paper lies, or name one by --store)"
    known = f"{counted(len(results.rows), 'run')} and {counted(len(results.measured), 'noise ratio')} in {places}"
    return tables.text(f"{known}; a run counts in every study that needs it", [Table("", header, rows, 2)])


def _cells(now: Progress) -> list[str]:
    left = "unknown" if now.left is None else f"{now.left:.0f}"
    seeds = f"{now.seeds[0]} to {now.seeds[1]}" if now.seeds[1] else ""
    return [f"{now.started} of {now.entries}", f"{now.runs} of {now.wanted}", seeds, f"{now.minutes:.1f}", left]
