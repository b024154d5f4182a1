"""``cll report``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from complementary.cli.options import OptionalPath
from complementary.files import atomic_write
from complementary.reports.tables import FORMATS, counted
from complementary.sweeps.results import Index, Question, ask, option, parse_where


@dataclass(frozen=True)
class Report:
    """Tables from the results of many runs: mean ± standard deviation over seeds, by any options.

    Runs that differ in an option that is not named are never averaged silently. A configuration that is stored
    twice counts once.

    Example: cll report runs/grid --where data=cifar10 long_tail=100 --rows loss --columns mix
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Results (JSON), folders of runs, or patterns."""
    where: tuple[str, ...] = ()
    """Which runs count: OPTION=VALUE or OPTION=VALUE,VALUE; all must hold."""
    rows: tuple[str, ...] = ()
    """Options that make the rows; without any --rows, --columns and --by: all that vary."""
    columns: tuple[str, ...] = ()
    """Options that make the columns."""
    by: tuple[str, ...] = ()
    """Options that make a table each."""
    value: tuple[str, ...] = ("accuracy_last",)
    """Figures: accuracy_last, accuracy_selected, accuracy_best_on_test, noise_ratio, train_seconds …"""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    """How to write the tables; csv has one line per group and full precision."""
    out: OptionalPath = None
    """Write to this file (it is replaced), not to the screen."""
    skip_damaged: tyro.conf.FlagCreatePairsOff[bool] = False
    """Leave damaged files out, naming each on standard error."""
    index: OptionalPath = None
    """Keep the SQLite table of all runs in this file, for questions of your own; by default in the cache. Only such
    a table is replaced."""


def main(arguments: list[str]) -> None:
    """The command ``cll report``."""
    options = tyro.cli(Report, args=arguments, prog="cll report")
    keys = ([option(name) for name in names] for names in (options.rows, options.columns, options.by))
    rows, columns, by = map(tuple, keys)
    question = Question(parse_where(options.where), rows, columns, by, options.value)
    with Index(options.paths, options.skip_damaged, options.index) as index:
        text = FORMATS[options.format](ask(index, question))
        for sentence in index.skipped:
            print(f"left out: {sentence}", file=sys.stderr)
        if index.repeated:
            repeat = f"{counted(index.repeated, 'result')} repeat{'s' if index.repeated == 1 else ''}"
            print(f"{repeat} a configuration; each counts once.", file=sys.stderr)
    if options.out is None:
        print(text, end="")
    else:
        atomic_write(options.out, text.encode())
        print(f"Table: {options.out}")
