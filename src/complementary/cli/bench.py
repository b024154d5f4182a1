"""``cll bench``: measure the speed of this machine."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from complementary.bench import SECTIONS, bench, check_file, to_stderr
from complementary.bench_report import Results, heading, tables
from complementary.cli.options import OptionalPath, console
from complementary.engine.backend import Engine

CHOICES = "; ".join(f"{name}: {section.line}" for name, section in SECTIONS.items())


@dataclass(frozen=True)
class Bench:
    """Measure training, pretraining, k-means and mixing on this machine, and compare with a plain loop.

    Example: cll bench --only steps reference --json bench.json
    """

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """As in cll train: by default bf16 on a GPU, fp32 on a CPU. The plain loop is fp32 always."""
    quick: bool = False
    """See in seconds whether all of it runs; the figures mean nothing."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(help=f"Measure only these. {CHOICES}.")] = ()
    json: OptionalPath = None
    """Write all figures to this file, with device, versions, settings and date."""


def main(arguments: list[str]) -> None:
    """Measure, store if asked to, and show the tables."""
    options = tyro.cli(Bench, args=arguments, prog="cll bench")
    if options.json is not None:
        check_file(options.json)
    engine = Engine.choose(options.device, options.precision)
    results = bench(engine, options.quick, options.only or None, to_stderr, options.json)
    show(results, console(120))


def show(results: Results, screen: Console) -> None:
    """Print one table for each section."""
    screen.print(heading(results), highlight=False)
    for found in tables(results):
        table = Table(title=f"{found.title} ({found.note})", title_justify="left")
        for place, name in enumerate(found.header):
            table.add_column(name, justify="left" if place < 2 else "right")
        for row in found.rows:
            table.add_row(*row)
        screen.print(table if found.header else f"\n{found.title}: {found.note}", highlight=False)
