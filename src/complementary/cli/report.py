"""``cll report``: the page of one run, or tables from many."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from complementary.cli.options import parse
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.reports.tables import counted
from complementary.reports.terminal import training_progress
from complementary.sweeps.results import Query, option_name, parse_where, read_results, render, summarize


@dataclass(frozen=True)
class Report:
    """One run: an HTML page on how good it is, what it confuses and which answers look wrong. Many runs: tables.

    cll report runs/x writes report.html and report-answers.csv into the folder of the run. Nothing in them needs true
    labels, except what is marked oracle.

    Tables show mean ± standard deviation over seeds, by any options. Runs that differ in an option that is not named
    are never averaged. A configuration that is stored twice counts once.

    Examples: cll report runs/x

    cll report runs/grid --where data=cifar10 long_tail=100 --rows loss --columns mix
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """The folder of one run; or, for tables, results (JSON), folders of runs, or patterns."""
    where: tuple[str, ...] = ()
    """Select runs: OPTION=VALUE or OPTION=VALUE,VALUE; all conditions must hold. A value with a comma is in double
    quotes: 'encoder="file:a,b.pt"'."""
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
    """Write to this file (it is replaced). Default for one run: report.html in its folder; for tables: the terminal."""
    folds: int | None = None
    """One run: parts of a cross-fit, which judges every answer by a model that has not seen it. 0: none, only held-out
    answers are judged that way. Default: 5, if that takes less than about three minutes."""
    top: int = 24
    """One run: number of suspicious answers and of uncertain examples to show."""
    baselines: bool = True
    """One run: fit a linear layer to the raw inputs, for comparison."""
    weights: Literal["auto", "selected", "last"] = "auto"
    """One run: weights of the epoch selected by SCEL or of the last epoch. auto: selected, if there is one."""
    device: str = "auto"
    """One run: auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    skip_damaged: tyro.conf.FlagCreatePairsOff[bool] = False
    """Skip damaged files, naming each on standard error."""


def main(arguments: list[str]) -> None:
    """The command ``cll report``."""
    options = parse(Report, arguments, "cll report")
    folder = _run_folder(options)
    if folder is None:
        _print_tables(options)
    else:
        _write_page(options, folder)


def _run_folder(options: Report) -> Path | None:
    """The folder of the run to report on; None: tables are wanted."""
    wants_table = options.where or options.rows or options.columns or options.by or options.format != "text"
    if len(options.paths) != 1 or wants_table or options.value != Report.value:
        return None
    folder = options.paths[0]
    if (folder / "result.json").is_file() and (folder / "config.toml").is_file():
        return folder
    if (folder / "config.toml").is_file() and (folder / "metrics.jsonl").is_file():
        raise UserError(f"The run in {folder} is not finished (there is no result.json); resume it first.")
    return None


def _write_page(options: Report, folder: Path) -> None:
    from complementary.reports.run_page import page
    from complementary.training.diagnose import diagnose

    out = options.out or folder / "report.html"
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"{out} cannot be written: it is a folder, or its folder does not exist.", "out")
    with training_progress({"loss": "loss"}) as progress:
        report = diagnose(
            folder,
            weights=options.weights,
            folds=options.folds,
            top=options.top,
            baselines=options.baselines,
            device=options.device,
            progress=progress,
        )
    answers = out.with_name(f"{out.stem}-answers.csv")  # not answers.csv, which may be the user's own table
    atomic_write(answers, report.answers_csv())
    uncertain = out.with_name(f"{out.stem}-uncertain.csv")
    atomic_write(uncertain, report.uncertain_csv())
    atomic_write(out, page(report, answers.name, uncertain.name, options.top))
    print(report.text())
    print(f"Report: {out}\nAnswers to check: {answers}\nExamples to ask about next: {uncertain}")


def _print_tables(options: Report) -> None:
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
