"""``cll report``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from complementary.cli.options import parse
from complementary.files import atomic_write
from complementary.reports.tables import counted
from complementary.sweeps.results import Query, option_name, parse_where, read_results, render, summarize


@dataclass(frozen=True)
class Report:
    """Tables from the results of many runs: mean ± standard deviation over seeds, by any options.

    Runs that differ in an option that is not named are never averaged. A configuration that is stored twice counts
    once.

    Example: cll report runs/grid --where data=cifar10 long_tail=100 --rows loss --columns mix
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Results (JSON), folders of runs, or patterns."""
    where: tuple[str, ...] = ()
    """Select runs: OPTION=VALUE or OPTION=VALUE,VALUE; all conditions must hold."""
    rows: tuple[str, ...] = ()
    """Options that make the rows; without --rows, --columns and --by: all options that vary."""
    columns: tuple[str, ...] = ()
    """Options that make the columns."""
    by: tuple[str, ...] = ()
    """Options that make a table each."""
    value: tuple[str, ...] = ("accuracy_last",)
    """Metrics: accuracy_last, accuracy_selected, accuracy_best_on_test, oracle_noise_ratio, train_seconds …"""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    """Format of the tables; csv has one line per group, in full precision."""
    out: Path | None = None
    """Write to this file (it is replaced) instead of the terminal."""
    skip_damaged: tyro.conf.FlagCreatePairsOff[bool] = False
    """Skip damaged files, naming each on standard error."""


def main(arguments: list[str]) -> None:
    """The command ``cll report``."""
    options = parse(Report, arguments, "cll report")
    rows, columns, by = (tuple(map(option_name, names)) for names in (options.rows, options.columns, options.by))
    query = Query(parse_where(options.where), rows, columns, by, options.value)
    results = read_results(options.paths, options.skip_damaged)
    text = render(summarize(results, query), options.format)
    selected = results.select(query.where)
    for name in options.value:
        if missing := sum(row.get(name) is None for row in selected):
            hint = "; estimated_accuracy_selected needs no test set" if name.startswith("accuracy") else ""
            print(f"{counted(missing, 'run')} without {name}{hint}.", file=sys.stderr)
    for message in results.skipped:
        print(f"skipped: {message}", file=sys.stderr)
    if results.repeated:
        print(f"{counted(results.repeated, 'repeated configuration')}: each counts once.", file=sys.stderr)
    if options.out is None:
        print(text, end="")
    else:
        atomic_write(options.out, text)
        print(f"Table: {options.out}")
