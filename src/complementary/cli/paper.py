"""``cll paper``: the paper's tables and figures, each as one command."""

import functools
import logging
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from complementary.cli.options import parse
from complementary.cli.sweep import Execution, run_cells
from complementary.errors import UserError, require
from complementary.files import atomic_write
from complementary.paper.published import EPOCHS
from complementary.paper.studies import PROTOCOLS, RUNNERS, STUDIES, Protocol, Study, study
from complementary.reports import tables
from complementary.reports.tables import counted
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import Damaged, parse_where
from complementary.sweeps.sweep import SweepFolder, TimeLimit

if TYPE_CHECKING:  # imports torch, which takes seconds
    from complementary.paper.plan import OpenRuns, Plan, Speeds
    from complementary.paper.store import Results

log = logging.getLogger(__name__)

RUNS, KEPT = Path("runs/paper"), Path("results/paper")
CLUSTERS = Path("results/clusters")  # stored clusters in a checkout of the repository
USAGE = """usage: cll paper list                  all tables and figures of the paper, by name
       cll paper NAME [options]        run a study, or what is missing of it, then show it
       cll paper noise [options]       a study without training: noise ratios, seconds each on a CPU
       cll paper gradients [options]   bias and variance of gradients during a training
       cll paper run --minutes N       spend N minutes on the most informative open runs
       cll paper smoke                 try every study in a minute on a CPU, with tiny data
       cll paper show NAME [options]   our numbers beside the published ones, from stored results
       cll paper status [options]      how much of each study was run
       cll paper export [options]      copy the results to small files
       cll paper page [options]        generate docs/reproduction.md and its figures

cll paper show --help and so on show the options."""


@dataclass(frozen=True, kw_only=True)
class RunStudies(Execution):
    """Run one or more studies of the paper: every setting and seed, under one protocol.

    Finished runs are skipped, whichever study they were made for; interrupted ones are resumed. Protocol ours: the
    method as the text says, reported at the last epoch and at the one selected without true labels. Protocol paper: as
    in the published code, best epoch on the test set. Protocol plain: as paper, without crop and flip. The study noise
    trains nothing: seconds per setting on a CPU.

    Examples: cll paper main --where data=cifar10 --seeds 1 --epochs 100
              cll paper noise
    """

    names: tyro.conf.Positional[tuple[str, ...]]
    """The studies; see cll paper list."""
    protocol: Protocol | None = None
    """ours, paper or plain; by default paper for as-coded, else ours."""
    seeds: int | None = None
    """Number of seeds; by default 3 (5 for p-values, 1 for gradients)."""
    epochs: int = EPOCHS
    """Epochs of each run."""
    pretrain_epochs: int = 800
    """Epochs of an encoder."""
    where: tuple[str, ...] = ()
    """Only these settings: OPTION=VALUE or OPTION=VALUE,VALUE, such as data=cifar10 long_tail=100."""
    assignments_from: Path | None = None
    """A folder of stored clusters, such as results/clusters, which are used where they fit. For noise this folder is
    used by default, if it exists."""
    out: Path = RUNS
    """Folder of the runs; all studies share it. With Ray, all nodes must share it."""
    draws: int = 16
    """gradients: label draws per measurement; 0: exact, for networks without batch norm."""
    target: Literal["clean", "mixed"] = "clean"
    """gradients: what they are compared with, the gradient of the ordinary batch (Eq. 9) or that of the mixed one."""
    pretrain: bool = False
    """noise: also pretrain encoders that are not cached; otherwise settings that need them are skipped."""
    plot: Path | None = None
    """Also draw the figure to this PNG file (one study only)."""
    dry_run: bool = False
    """Only list the runs."""

    def check(self) -> None:
        """Raise if an option has an impossible value."""
        super().check()
        require(self.seeds is None or self.seeds >= 1, "seeds", self.seeds, "at least 1")
        if not self.names:
            raise UserError("Name a study, such as: cll paper main. All studies: cll paper list.")
        if self.plot is not None and len(self.names) > 1:
            raise UserError(
                f"One figure shows one study, but {len(self.names)} were named; use cll paper show.", "plot"
            )
        folder = self.assignments_from
        require(folder is None or folder.is_dir(), "assignments_from", folder, "a folder of clusters")


@dataclass(frozen=True, kw_only=True)
class RunFor(Execution):
    """Spend a given time on the most informative open runs of all studies, then stop.

    Settings of the paper come before others; among them, those without a run under any protocol come first, then first
    seeds, published cells and comparisons that need few further runs. A run starts only if it is expected to end in
    time; if runs are faster than estimated, further ones start. The same command continues later. Costs come from the
    measured speed of stored runs. Datasets that are not in the cache are left out.

    Examples: cll paper run --minutes 30 --dry-run
              cll paper run main setup3-10 --minutes 10 --where long_tail=100
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Only these studies; by default all that train a network."""
    minutes: float
    """The time, in minutes, with the start of the processes."""
    where: tuple[str, ...] = ()
    """Only these settings: OPTION=VALUE or OPTION=VALUE,VALUE, such as data=cifar10 long_tail=100."""
    protocol: Protocol | None = None
    """ours, paper or plain; by default paper for as-coded, ours for augment, else plain."""
    seeds: int = 3
    """Number of seeds that are wanted of each setting."""
    epochs: int = EPOCHS
    """Epochs of each run."""
    assignments_from: Path | None = None
    """A folder of stored clusters; by default results/clusters, if it exists."""
    out: Path = RUNS
    """Folder of the runs. Runs in results/paper count too."""
    pack: int = 4
    """Runs that share one process, side by side: for small networks on a large GPU."""
    dry_run: bool = False
    """Only show the plan."""

    def check(self) -> None:
        """Raise if an option has an impossible value."""
        super().check()
        require(self.minutes > 0, "minutes", self.minutes, "above 0")
        require(self.seeds >= 1, "seeds", self.seeds, "at least 1")
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        for one in map(study, self.names):
            if one.runner != "training":
                raise UserError(f"The study {one.name} trains no classifier; run it with: cll paper {one.name}.")
        require(self.on == "local", "on", self.on, "local, because only local runs can be stopped in time")
        folder = self.assignments_from
        require(folder is None or folder.is_dir(), "assignments_from", folder, "a folder of clusters")


@dataclass(frozen=True)
class Smoke:
    """Run every study in seconds on a CPU, with digits of 8 x 8 pixels, a linear network and one epoch.

    The numbers mean nothing: it shows that every study runs here, and gives a table and a figure.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """The studies; by default all of them."""
    out: Path | None = None
    """Folder of the runs; by default a temporary one."""


@dataclass(frozen=True)
class Reading:
    """Where results are read from."""

    store: tuple[Path, ...] = ()
    """Folders of results; by default runs/paper and results/paper, if they exist."""
    epochs: int | None = None
    """Only runs of this length; by default, for each setting, the longest ones."""
    skip_damaged: bool = False
    """Skip damaged files, and those of another version, with a warning."""

    def places(self) -> list[Path]:
        """The folders."""
        return list(self.store) or [path for path in (RUNS, KEPT) if path.exists()]

    def read(self) -> "Results":
        """The results in them."""
        from complementary.paper.store import read

        found = read(self.places(), self.epochs, self.skip_damaged)
        for message in found.skipped:
            log.warning("skipped: %s", message)
        return found


@dataclass(frozen=True, kw_only=True)
class Show(Reading):
    """Show our mean ± deviation (n) beside the published number, the difference, and Welch's tests between methods.

    Example: cll paper show main --protocol paper --format markdown --out main.md
    """

    name: tyro.conf.Positional[str]
    """The study; see cll paper list."""
    protocol: Protocol | None = None
    """ours, paper or plain; by default paper for as-coded, else ours."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    """Format of the tables; csv has all settings, in full precision."""
    out: Path | None = None
    """Write to this file (it is replaced) instead of the terminal."""
    blank: bool = False
    """Also show settings of which nothing was run."""
    plot: Path | None = None
    """Also draw the figure to this PNG file."""


@dataclass(frozen=True)
class ShowStatus(Reading):
    """Show how much of each study was run. A run that several studies need counts in each of them."""

    protocol: Protocol | None = None
    """ours, paper or plain; by default all."""
    seeds: int | None = None
    """Number of seeds that are wanted; by default 3 (5 for p-values, 1 for gradients)."""


@dataclass(frozen=True)
class Export:
    """Copy the result of every finished run, and everything measured without training, to small files."""

    store: Path = RUNS
    """The folder of the runs."""
    to: Path = KEPT
    """Where the small files go."""


@dataclass(frozen=True)
class Page(Reading):
    """Generate the page that says what was run, and which published numbers and claims hold, and its figures."""

    out: Path = Path("docs/reproduction.md")
    """The page; it is replaced, and its folder created. Figures go to the folder paper beside it."""
    check: bool = False
    """Write nothing; fail if the page does not match the results."""


def main(arguments: list[str]) -> None:
    """The command ``cll paper``."""
    verbs: dict[str, tuple[Any, Any]] = {
        "run": (RunFor, run_for),
        "smoke": (Smoke, smoke),
        "show": (Show, show),
        "status": (ShowStatus, show_status),
        "export": (Export, export),
        "page": (Page, make_page),
    }
    name, *rest = arguments or [""]
    if name in ("", "-h", "--help") or (name == "list" and {"-h", "--help"} & set(rest)):
        print(USAGE)
        raise SystemExit(0 if name else 2)
    if name == "list":
        if rest:
            raise UserError(f"cll paper list has no options, but {' '.join(rest)} was given.")
        print(listing())
    elif name in verbs:
        kind, act = verbs[name]
        act(parse(kind, rest, f"cll paper {name}"))
    else:
        run(parse(RunStudies, arguments, "cll paper"))


def listing() -> str:
    """All studies, one line each."""
    header = ["study", "in the paper", "title", "settings", "published"]
    rows = [[s.name, s.source, s.title, str(len(s.entries)), str(len(s.published))] for s in STUDIES.values()]
    return tables.text("Run one with: cll paper NAME", [tables.Table("", header, rows, 3)]).rstrip()


# --- run ------------------------------------------------------------------------------------------------------------


def run(options: RunStudies) -> None:
    """Run the studies, then show them."""
    options.check()
    chosen, where = [study(name) for name in options.names], parse_where(options.where)
    for protocol in PROTOCOLS:
        for runner in RUNNERS:
            alike = [s for s in chosen if (options.protocol or s.protocol, s.runner) == (protocol, runner)]
            if alike:
                _run(options, alike, protocol, where)


def _run(options: RunStudies, chosen: list[Study], protocol: Protocol, where: dict[str, list[Any]]) -> None:
    from complementary.paper.compare import render
    from complementary.paper.gradients import run as measure_gradients
    from complementary.paper.store import RunSettings, cells_of, read

    runner, clusters = chosen[0].runner, options.assignments_from
    if runner == "noise" and clusters is None and CLUSTERS.is_dir():
        log.info("stored clusters are taken from %s, where they fit", CLUSTERS)
        clusters = CLUSTERS
    seeds = options.seeds or max(s.seeds for s in chosen)
    epochs = EPOCHS if runner == "noise" else options.epochs  # noise ratios do not depend on them
    cells = cells_of(chosen, protocol, RunSettings(seeds, epochs, options.pretrain_epochs, clusters), where)
    if options.dry_run:
        print("\n".join(f"{cell.key}  {cell.name}" for cell in cells))
        return
    if runner == "training":
        run_cells(cells, SweepFolder(options.out), options, "cll paper")
    elif runner == "noise":
        _count_noise(options, cells, protocol)
    else:
        for cell in cells:
            print(measure_gradients(cell.config, options.out, protocol, options.draws, options.device, options.target))
    found = read([options.out], None if runner == "noise" else options.epochs)
    print("\n".join(render(s, found, protocol, "text", only_run=True) for s in chosen))
    _plot(options.plot, chosen[0], found, protocol)


def _count_noise(options: RunStudies, cells: list[Cell], protocol: Protocol) -> None:
    from complementary.paper import noise

    skipped = noise.run(cells, options.out, protocol, options.pretrain, options.device)
    lines = [f"skipped {', '.join(names)}: {why}" for why, names in skipped.items()]
    if not noise.done(options.out) & {cell.config.hash() for cell in cells}:
        raise UserError("; ".join(["No noise ratio could be counted", *lines]))
    for line in lines:
        log.warning("%s", line)


def _plot(path: Path | None, chosen: Study, found: "Results", protocol: Protocol) -> None:
    if path is not None:
        from complementary.paper.figures import draw
        from complementary.reports.figures import png

        atomic_write(path, png(draw(chosen, found, protocol)))


# --- run for a given time -------------------------------------------------------------------------------------------


def run_for(options: RunFor) -> None:
    """Plan what fits into the time, show the plan, and run it."""
    from complementary.engine.backend import choose_device
    from complementary.paper import plan
    from complementary.sweeps.local import devices

    started = time.monotonic()
    options.check()
    has_gpu = choose_device(options.device).type == "cuda"
    if options.device == "cpu":  # a CPU is full with one run per worker
        options = replace(options, pack=1)
    speeds, found = _open_runs(options, has_gpu)
    if not found.runs:
        asked = f" with {' '.join(options.where)}" if options.where else ""
        what = f"Nothing is open: no setting{asked} of the datasets in the cache lacks a run."
        if found.unmeasured:
            what = f"No open run{asked} can be planned."
        if found.unmeasured and not has_gpu and options.device != "cpu":
            what += " There is no GPU here; small networks also run with --device cpu."
        raise UserError(" ".join([what, *_left_out(found, speeds)]))
    if not (has_gpu or options.device == "cpu" or options.dry_run):
        minutes = plan.cost(found.runs, options.pack)
        raise UserError(
            f"There is no GPU here. {counted(len(found.runs), 'run')} are open, about {minutes:.0f} minutes on "
            f"{speeds.device} with {options.pack} side by side. Small networks also run on the device cpu.",
            "device",
        )
    here = has_gpu or options.device == "cpu"
    workers = len(devices(options.device, options.workers, options.gpus_per_run)) if here else 1
    chosen = plan.fit(found.runs, options.minutes, workers * options.pack, speeds.start)
    if not chosen.runs:
        least = min(found.runs, key=lambda run: run.minutes + run.encoder_minutes)
        raise UserError(
            f"{options.minutes:g} minutes are less than the shortest open run takes: {least.cell.name}, about "
            f"{speeds.start + least.minutes + least.encoder_minutes:.1f} minutes with the start.",
            "minutes",
        )
    print(_shown_plan(chosen, found, speeds, workers * options.pack), end="")
    if not options.dry_run:
        _run_plan(chosen, found, options, started + 60 * options.minutes)


def _open_runs(options: RunFor, has_gpu: bool) -> "tuple[Speeds, OpenRuns]":
    """What is open, at the speed of this device; without a GPU, at that of a GPU unless the CPU was chosen."""
    from complementary.engine.backend import choose_device, device_name
    from complementary.paper import plan
    from complementary.paper.store import RunSettings, read

    try:
        known = read([path for path in (options.out, KEPT) if path.exists()])
    except Damaged as error:
        raise UserError(f"{error.fact} Move it out of the folder, or name another one.", "out") from None
    except UserError as error:
        raise UserError(str(error), "out") from None
    for_gpu = options.device != "cpu"
    device = device_name(choose_device(options.device)) if has_gpu or not for_gpu else "a GPU"
    speeds = plan.Speeds.of(known.rows, device)
    if speeds is None:
        raise UserError(
            f"No run on a {'GPU' if for_gpu else 'CPU'} was measured yet, so the time of a run is not known; run one "
            "first, such as: cll paper intra --seeds 1 --where mix=intra-class."
        )
    clusters = options.assignments_from or (CLUSTERS if CLUSTERS.is_dir() else None)
    settings = RunSettings(options.seeds, options.epochs, assignments=clusters)
    find = functools.partial(
        plan.open_runs,
        known,
        settings,
        speeds,
        options.protocol,
        studies=[study(name) for name in options.names] or None,
        only=parse_where(options.where),
    )
    return speeds, find(_cached_encoders(find())).with_known_costs()


def _cached_encoders(found: "OpenRuns") -> set[str]:
    """The encoders that need no pretraining. Loads the datasets of the runs that might need one."""
    from complementary import data
    from complementary.paper import noise

    first = {run.encoder: run.cell.config for run in found.runs if run.encoder}
    loaded = {name: data.load(name) for name in {config.dataset.data for config in first.values()}}
    return {name for name, c in first.items() if not noise.needs_pretraining(c, loaded[c.dataset.data])}


def _shown_plan(chosen: "Plan", found: "OpenRuns", speeds: "Speeds", lanes: int) -> str:
    from complementary.paper import plan

    rows, paid = [], set[str]()
    for run in chosen.runs:
        pretrained = run.encoder_minutes if run.encoder not in paid else 0.0
        paid.add(run.encoder)
        why = run.kind + ("" if run.tried else ", no run yet")
        rows.append([run.cell.key, run.cell.name, run.study, why, f"{run.minutes:.1f}", f"{pretrained:.1f}"])
    header = ["key", "run", "study", "why", "minutes", "encoder"]
    taken = {run.cell.key for run in chosen.runs}
    left = [run for run in found.runs if run.cell.key not in taken]
    lines = [
        f"{counted(len(chosen.runs), 'run')} in about {chosen.minutes:.0f} minutes, {lanes} side by side, at the speed "
        f"measured on {speeds.device}.",
        f"{counted(len(left), 'run')} stay open, about {plan.cost(left, lanes):.0f} minutes.",
    ]
    lines += _left_out(found, speeds)
    return tables.text("\n".join(lines), [tables.Table("", header, rows, 4)])


def _left_out(found: "OpenRuns", speeds: "Speeds") -> list[str]:
    """Why some open runs are not in the plan, as sentences."""
    left_out = []
    if found.unavailable:
        left_out.append(f"Not in the cache: {', '.join(found.unavailable)}; see cll data get.")
    if found.unmeasured:
        kind = "CPU" if speeds.device.startswith("cpu") else "GPU"
        networks = ", ".join(found.unmeasured)
        left_out.append(f"Speed on a {kind} not known: {networks}; run one such setting with cll paper STUDY first.")
    return left_out


def _run_plan(chosen: "Plan", found: "OpenRuns", options: RunFor, ends: float) -> None:
    """Run the plan, and after it what else can end in time because runs were faster than estimated."""
    seconds, paid = dict[str, float](), {""}
    for run in chosen.runs:
        pretrained = run.encoder_minutes if run.encoder not in paid else 0.0
        paid.add(run.encoder)
        seconds[run.cell.key] = 60 * (run.minutes + pretrained)
    further = [run for run in found.runs if run.cell.key not in seconds and run.encoder in paid]
    seconds |= {run.cell.key: 60 * run.minutes for run in further}
    cells = [run.cell for run in (*chosen.runs, *further)]
    run_cells(cells, SweepFolder(options.out), options, "cll paper run", TimeLimit(ends, seconds))
    print(f"The same command continues. Tables: cll paper page, after cll paper export --store {options.out}")


def smoke(options: Smoke) -> None:
    """Run every study on the digits, one line each."""
    from complementary.paper import smoke

    chosen, started = [study(name) for name in options.names or STUDIES], time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        for one in chosen:
            found = smoke.smoke(one, options.out or Path(temporary))
            made = "table and figure" if found.figure else "table"
            print(f"{one.name}: {counted(found.runs, 'run')}, {made}")
    print(f"{counted(len(chosen), 'study')} in {time.monotonic() - started:.0f} seconds".replace("studys", "studies"))


# --- show -----------------------------------------------------------------------------------------------------------


def show(options: Show) -> None:
    """Print or write the tables of one study, and draw its figure."""
    from complementary.paper.compare import render

    chosen = study(options.name)
    protocol, found = options.protocol or chosen.protocol, options.read()
    if not (options.blank or options.format == "csv" or any(r.rows for r in found.of(chosen, protocol).values())):
        named = chosen.name if protocol == chosen.protocol else f"{chosen.name} --protocol {protocol}"
        raise UserError(
            f"Nothing of {chosen.name} was run under the protocol {protocol} yet. Run it with 'cll paper {named}', or "
            f"see its settings and the published numbers with 'cll paper show {named} --blank'."
        )
    text = render(chosen, found, protocol, options.format, only_run=not options.blank)
    if options.out is None:
        print(text, end="")
    else:
        atomic_write(options.out, text)
        print(f"Table: {options.out}")
    _plot(options.plot, chosen, found, protocol)


def show_status(options: ShowStatus) -> None:
    """Print one line per study and protocol."""
    from complementary.paper.page import status

    protocols = PROTOCOLS if options.protocol is None else (options.protocol,)
    print(status(options.read(), options.places(), protocols, options.seeds), end="")


def export(options: Export) -> None:
    """Export the results of a store."""
    from complementary.paper import store

    made = store.export(options.store, options.to)
    print(f"{len(made)} results in {options.to}, {sum(path.stat().st_size for path in made) / 1000:.0f} kB")


def make_page(options: Page) -> None:
    """Write the page and its figures, or check the page."""
    from complementary.paper import figures, page

    if not options.places():
        raise UserError(f"There are no results here: neither {RUNS} nor {KEPT} exists; name a folder of runs.", "store")
    found, folder = options.read(), options.out.parent / "paper"
    drawn = figures.draw_all(found)
    text = page.write_page(found, figures.links(drawn, folder, options.out))
    if options.check:
        page.check_page(text, options.out)
        return
    figures.write_all(drawn, folder)  # also creates the folder of the page
    atomic_write(options.out, text)
    print(options.out)
