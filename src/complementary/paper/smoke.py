"""Every study in seconds on a CPU: the same methods and options, but the 8 x 8 digits, a linear network and one epoch.

The numbers mean nothing. It shows that every study runs, and gives a table and a figure.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from complementary.errors import UserError
from complementary.paper import gradients, noise
from complementary.paper.compare import render
from complementary.paper.figures import NoFigure, draw
from complementary.paper.store import RunSettings, cells_of, read
from complementary.paper.studies import Entry, Setting, Study
from complementary.reports.figures import png
from complementary.sweeps.sweep import SweepFolder
from complementary.sweeps.worker import RunCells

log = logging.getLogger(__name__)

SMALL = {"model": "linear", "max_pool": False, "batch": 32, "padding": 0}
CLUSTERS = {"encoder": "pixels", "clusters": 10, "restarts": 1}
KEPT = ("model", "padding", "clusters")  # options that keep the value of the study, if it changes them
LONGEST_TAIL = 5.0  # of 143 images per class


@dataclass(frozen=True)
class Smoke:
    """What came of one study."""

    study: str
    runs: int
    figure: bool


def small(study: Study) -> Study:
    """The study on the digits, each method once: the first entry of each method and group (or loss)."""
    entries: dict[tuple[str, str], Entry] = {}
    by_loss = study.across and not any(entry.group for entry in study.entries)
    for entry in study.entries:
        group = entry.setting.loss if by_loss else entry.group
        entries.setdefault((entry.method, group), replace(entry, setting=_small(entry.setting)))
    return replace(study, entries=tuple(entries.values()), seeds=1)


def _small(setting: Setting) -> Setting:
    changes = dict(setting.changes)
    kept = {name: changes[name] for name in KEPT if name in changes and changes[name] != "resnet18"}
    clusters = CLUSTERS if setting.clustered else {}
    tail = min(setting.tail, LONGEST_TAIL)
    return replace(setting, data="digits", tail=tail, changes=tuple((changes | SMALL | clusters | kept).items()))


def smoke(study: Study, store: Path) -> Smoke:
    """Run a study on the digits, and make its table and figure.

    Args:
        study: one of the paper's studies.
        store: where the runs go; finished ones are not repeated.

    Raises:
        UserError: a run failed.
    """
    chosen, protocol = small(study), study.protocol
    cells = cells_of([chosen], protocol, RunSettings(seeds=1, epochs=1))
    if study.runner == "noise":
        skipped = noise.run(cells, store, protocol, device="cpu")
        _check(study, [f"{', '.join(names)}: {why}" for why, names in skipped.items()])
    elif study.runner == "gradients":
        for cell in cells:
            gradients.run(cell.config, store, protocol, draws=0, device="cpu")
    else:
        folder = SweepFolder(store)
        with folder.claim():
            work = RunCells(folder, compile=False)
            todo = [cell for cell in cells if not folder.result(cell.key).exists()]
            _check(study, [f"{c.name}: {error}" for c in todo for error in work([c], "cpu").values()])
    results = read([store], None if study.runner == "noise" else 1)
    render(chosen, results, protocol, "markdown", only_run=True)
    try:
        png(draw(chosen, results, protocol))
    except NoFigure:
        return Smoke(study.name, len(cells), False)
    return Smoke(study.name, len(cells), True)


def _check(study: Study, errors: Sequence[str]) -> None:
    if errors:
        raise UserError(f"The study {study.name} failed: {'; '.join(errors)}")
