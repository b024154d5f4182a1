"""``cll paper``: the paper's tables and figures, each as one command."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from complementary.cli.options import OptionalInt, OptionalPath, parse
from complementary.cli.sweep import Execution, run_cells
from complementary.errors import UserError, require
from complementary.files import atomic_write
from complementary.paper import figures, gradients, noise, overview, page, pictures
from complementary.paper import store as results
from complementary.paper.protocols import PROTOCOLS, Protocol
from complementary.paper.render import not_run, render
from complementary.paper.store import STORES, Amount, Results, cells_of, export
from complementary.paper.studies import RUNNERS, Study, study
from complementary.reports.figures import png
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import parse_where
from complementary.sweeps.sweep import SweepFolder

USAGE = """usage: cll paper list                  every table and figure of the paper, by name
       cll paper NAME [options]        run a study, or what is missing of it, then show it
       cll paper noise [options]       a study that trains nothing: the noise ratios, in seconds each on a CPU
       cll paper gradients [options]   a study of its own kind: bias and variance of gradients along a training
       cll paper show NAME [options]   ours beside the published numbers, from what was run
       cll paper status [options]      how far each study is, and how long the rest takes
       cll paper export [options]      the results as small files, to be kept
       cll paper page [options]        docs/reproduction.md

cll paper show --help and the like tell more."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Execution):
    """Run one or more studies of the paper: every setting, every seed, under a named protocol.

    Runs that are done are skipped, whichever study asked for them; killed ones are resumed. Protocol ours: the
    method as written, reported at the last epoch and at the one chosen without true labels. Protocol paper: as its
    published code did it, best epoch on the test set. The study noise trains nothing: seconds per setting on a CPU.

    Examples: cll paper main --where data=cifar10 --seeds 1 --epochs 100
              cll paper noise
    """

    names: tyro.conf.Positional[tuple[str, ...]]
    """The studies; see cll paper list."""
    protocol: Protocol | None = None
    """ours or paper; by default what the study was made for (paper for as-coded, else ours)."""
    seeds: OptionalInt = None
    """How many seeds; by default 3 (5 for p-values)."""
    epochs: int = 300
    """Epochs of each run."""
    pretrain_epochs: int = 800
    """Epochs of an encoder."""
    where: tuple[str, ...] = ()
    """Only these settings: OPTION=VALUE or OPTION=VALUE,VALUE, such as data=cifar10 long_tail=100."""
    assignments_from: OptionalPath = None
    """A folder of stored clusters, such as results/clusters: they are used, without any encoder, where they fit.
    noise: by default results/clusters, where it exists."""
    store: Path = STORES[0]
    """Where runs are kept; all studies share it. For Ray, all nodes must see it."""
    draws: int = 64
    """gradients: label draws per measurement; 0: exact, for networks without batch norm."""
    pretrain: bool = False
    """noise: also pretrain encoders that are not in the cache; without it, the settings that need them are left out."""
    plot: OptionalPath = None
    """Also draw the figure into this PNG file (one study only)."""
    dry_run: bool = False
    """Only list the runs that would be made."""


@dataclass(frozen=True)
class Reading:
    """Where results are read from."""

    store: tuple[Path, ...] = ()
    """Folders of results; by default runs/paper and results/paper, where they exist."""
    epochs: OptionalInt = None
    """Only runs of so many epochs; by default, for each setting, the longest ones."""
    skip_damaged: bool = False
    """Leave damaged files out, naming each on standard error."""

    def places(self) -> list[Path]:
        """The folders."""
        return list(self.store) or [path for path in STORES if path.exists()]

    def read(self) -> Results:
        """Their runs."""
        found = results.read(list(self.store) or None, self.epochs, self.skip_damaged)
        for sentence in found.skipped:
            print(f"left out: {sentence}", file=sys.stderr)
        return found


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Reading):
    """Our mean ± deviation (n) beside the published number, the difference, and Welch's tests between methods.

    Example: cll paper show main --protocol paper --format markdown --out main.md
    """

    name: tyro.conf.Positional[str]
    """The study; see cll paper list."""
    protocol: Protocol | None = None
    """ours or paper; by default what the study was made for."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    """How to write the tables."""
    out: OptionalPath = None
    """Write to this file (it is replaced), not to the screen."""
    only_run: bool = False
    """Leave out settings of which nothing was run (not in csv)."""
    blank: bool = False
    """Write the tables even if nothing of the study was run: its settings and the published numbers (csv: always)."""
    plot: OptionalPath = None
    """Also draw the figure into this PNG file."""


@dataclass(frozen=True)
class StatusOptions(Reading):
    """How far each study is: runs done, seeds, minutes of training, and an estimate for the rest from measured speeds.

    A run that several studies need counts in each of them. Encoders still to be pretrained are not in the estimate.
    """

    protocol: Protocol | None = None
    """ours or paper; by default both."""
    seeds: OptionalInt = None
    """How many seeds are wanted of each setting; by default 3 (5 for p-values)."""


@dataclass(frozen=True)
class ExportOptions:
    """Copy the result of every finished run, and what was measured without one, to small files, to be committed."""

    store: Path = STORES[0]
    """The folder of the runs."""
    to: Path = STORES[1]
    """Where the small files go."""


@dataclass(frozen=True)
class PageOptions(Reading):
    """Make the page that says what was run, and which published numbers and claims hold."""

    out: Path = Path("docs/reproduction.md")
    """The page; it is replaced."""
    plots: OptionalPath = None
    """Also draw a PNG file for each study into this folder, such as docs/paper, and link them in the page."""
    check: bool = False
    """Write nothing; fail if the page is not what the store gives."""


def main(arguments: list[str]) -> None:
    """The command ``cll paper``."""
    verbs: dict[str, tuple[Any, Any]] = {
        "show": (ShowOptions, show),
        "status": (StatusOptions, print_status),
        "export": (ExportOptions, print_export),
        "page": (PageOptions, make_page),
    }
    name, *rest = arguments or [""]
    if name in ("", "-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if name else 2)
    if name == "list":
        unknown = [word for word in rest if word not in ("-h", "--help")]
        if unknown:
            raise UserError(f"cll paper list has no options, but {' '.join(unknown)} was given; leave that out.")
        print(USAGE if rest else overview.listing())
    elif name in verbs:
        kind, act = verbs[name]
        act(parse(kind, rest, f"cll paper {name}"))
    else:
        run(parse(RunOptions, arguments, "cll paper"))


def run(options: RunOptions) -> None:
    """Run the studies, then show them."""
    options.check()
    require(options.seeds is None or options.seeds >= 1, "seeds", options.seeds, "at least 1")
    if not options.names:
        raise UserError("Name a study, such as: cll paper main; cll paper list shows them.")
    if options.plot is not None and len(options.names) > 1:
        raise UserError(f"--plot draws one study, but {len(options.names)} were named; use 'cll paper show' for each.")
    chosen, where = [study(name) for name in options.names], parse_where(options.where)
    if options.assignments_from is not None and not options.assignments_from.is_dir():
        raise UserError(f"There is no folder {options.assignments_from} to take clusters from.")
    for protocol in PROTOCOLS:
        mine = [one for one in chosen if (options.protocol or one.protocol) == protocol]
        for grouped in ([one for one in mine if one.runner == runner] for runner in RUNNERS):
            if grouped:
                _run(options, grouped, protocol, where)


def _run(options: RunOptions, chosen: list[Study], protocol: Protocol, where: dict[str, list[Any]]) -> None:
    seeds = options.seeds or max(one.seeds for one in chosen)
    epochs = Amount.epochs if chosen[0].runner == "noise" else options.epochs  # noise is what it is before the first
    asked = options.assignments_from
    clusters = noise.clusters_from(asked) if chosen[0].runner == "noise" else asked
    amount = Amount(seeds, epochs, options.pretrain_epochs, clusters)
    cells = cells_of(chosen, protocol, amount, where)
    if options.dry_run:
        print("\n".join(f"{cell.key}  {cell.name}" for cell in cells))
        return
    if chosen[0].runner == "gradients":
        for cell in cells:
            print(gradients.run(cell.config, options.store, protocol, options.draws, options.device))
        _plot(options.plot, chosen[0], Results(), protocol, [options.store])
        return
    if chosen[0].runner == "noise":
        _count(options, cells, protocol)
    else:
        run_cells(cells, SweepFolder(options.store), options, "cll paper")
    found = results.read([options.store], options.epochs)
    print("\n".join(render(one, found, protocol, "text", only_run=True) for one in chosen))
    _plot(options.plot, chosen[0], found, protocol, [options.store])


def _plot(path: Path | None, asked: Study, found: Results, protocol: Protocol, stores: list[Path]) -> None:
    if path is not None:
        atomic_write(path, png(figures.draw(asked, found, protocol, stores)))


def _count(options: RunOptions, cells: list[Cell], protocol: Protocol) -> None:
    """Count noise ratios; what is left out is a line on standard error for each reason."""
    left = noise.run(cells, options.store, protocol, options.pretrain, options.device)
    lines = [f"left out: {', '.join(settings)}: {why}" for why, settings in left.items()]
    if not noise.known(options.store) & {cell.config.hash() for cell in cells}:
        raise UserError("; ".join(["No noise ratio could be counted", *lines]))
    for line in lines:
        print(line, file=sys.stderr)


def show(options: ShowOptions) -> None:
    """Tables, and perhaps a picture, of one study."""
    asked = study(options.name)
    protocol, found = options.protocol or asked.protocol, options.read()
    if asked.plot == "gradients":
        _plot(options.plot, asked, found, protocol, options.places())
        shown = [str(path) for path in gradients.files(options.places())]
        print("\n".join(shown) or "The study gradients was not run yet; do so with: cll paper gradients")
        return
    if not any(runs.rows for runs in found.of(asked, protocol).values()):
        _plot(options.plot, asked, found, protocol, options.places())  # which says that there is nothing to draw
        if not options.blank and options.format != "csv":
            if options.out is not None:
                raise UserError(not_run(asked, protocol))
            print(not_run(asked, protocol))
            return
        print(f"Nothing of {asked.name} was run under the protocol {protocol} yet.", file=sys.stderr)
    text = render(asked, found, protocol, options.format, options.only_run)
    if options.out is None:
        print(text, end="")
    else:
        atomic_write(options.out, text.encode())
        print(f"Table: {options.out}")
    _plot(options.plot, asked, found, protocol, options.places())  # last: there may be a table, but no picture


def print_status(options: StatusOptions) -> None:
    """A line per study and protocol."""
    protocols = PROTOCOLS if options.protocol is None else (options.protocol,)
    print(overview.status(options.read(), options.places(), protocols, options.seeds, options.epochs), end="")


def print_export(options: ExportOptions) -> None:
    """Say how many files there are now."""
    made = export(options.store, options.to)
    print(f"{len(made)} results in {options.to}, {sum(path.stat().st_size for path in made) / 1000:.0f} kB")


def make_page(options: PageOptions) -> None:
    """Write the page and its pictures, or check the page."""
    found, stores, folder = options.read(), options.places(), options.plots
    drawn = {} if folder is None else pictures.draw_all(found, stores)
    links, how = ({}, "") if folder is None else (pictures.links(drawn, folder, options.out), f" --plots {folder}")
    text = page.write_page(found, stores, links=links, options=how)
    if options.check:
        page.check_page(text, options.out, how)
        return
    if folder is not None:
        pictures.write_all(drawn, folder)
    atomic_write(options.out, text.encode())
    print(options.out)
