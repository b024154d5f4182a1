"""What the training commands share: where and how to run, the configuration to start from, a progress bar."""

import contextlib
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from complementary.config import AnyConfig, read_toml
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import TrainingLoop
from complementary.errors import UserError
from complementary.reports.terminal import EVERY, Pace

AnyOptions = TypeVar("AnyOptions")
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]  # tyro would write {None}|PATH
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT")]


@dataclass(frozen=True)
class Where:
    """Where and how to run; none of this changes the outcome, but for rounding."""

    out: OptionalPath = None
    """Folder of the run; by default it is named after the main options, under runs/."""
    config: OptionalPath = None
    """A config.toml to start from, such as that of an earlier run; other options override it."""
    resume: bool = False
    """Go on with the run in the folder (after a kill, too); its configuration is taken from there."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16: networks compute in bfloat16, sums and weights stay float32; auto: bf16 on a GPU, fp32 on a CPU."""
    compile: bool = True
    """Fuse the kernels of the network (GPU only; takes about half a minute at the start)."""
    deterministic: bool = False
    """The same bits in every run, on a GPU too (slower); on a CPU that is always so."""
    stream: Literal["auto", "always", "never"] = "auto"
    """Read inputs ahead from where they are (a memory map) instead of holding them on the device; auto: if they need
    more than half of a GPU's free memory."""
    checkpoint_seconds: float = 30.0
    """How often the state is saved, so that a killed run can be resumed."""

    def how(self, processes: ProcessGroup = SINGLE_PROCESS) -> dict[str, Any]:
        """What `runner.run` and `pretrain.pretrain` want to know of it; a processes's processes have a device each."""
        device = self.device if processes.size == 1 else str(processes.device)
        engine = Engine.choose(device, self.precision, self.compile, self.deterministic, self.stream)
        return {
            "resume": self.resume,
            "device": engine,
            "checkpoint_seconds": self.checkpoint_seconds,
            "processes": processes,
        }


def check_resume(where: Where, out: Path) -> None:
    """Raise if there is nothing to resume in ``out``."""
    if where.resume and not (out / "config.toml").exists():
        raise UserError(f"There is no run in {out} to resume; leave --resume out to start one, or name its --out.")


def parse(
    kind: type[AnyOptions], settings: type[AnyConfig], arguments: list[str], prog: str
) -> tuple[AnyOptions, AnyConfig]:
    """Read the command line of ``kind`` (a class that has all options of ``settings``) -> (all options, settings)."""
    base = read_toml(path, settings) if (path := _base(arguments)) else settings()
    names = [f.name for f in fields(settings)]  # type: ignore[arg-type]
    parser: Any = tyro.conf.configure(tyro.conf.OmitArgPrefixes)(kind)
    default = kind(**{name: getattr(base, name) for name in names})
    with own_sentences():
        options: AnyOptions = tyro.cli(parser, args=arguments, prog=prog, default=default)
    return options, settings(**{name: getattr(options, name) for name in names})


def console(least: int) -> Console:
    """Where tables go; a file or pipe has no width of its own, and gets ``least`` characters (rich would take 80)."""
    found = Console()
    if not found.is_terminal:
        found.width = max(least, found.width)
    return found


@contextlib.contextmanager
def own_sentences() -> Iterator[None]:
    """While tyro reads a command line: raise the `UserError` of a configuration as it is, not in a box.

    tyro takes it for a ValueError of its own, prints it and exits; so what it prints is held back until it is known
    whose error it was.
    """
    held = io.StringIO()
    try:
        with contextlib.redirect_stderr(held):
            yield
    except SystemExit as stop:
        problem = stop.__context__
        while problem is not None and not isinstance(problem, UserError):
            problem = problem.__context__
        if problem is not None:
            raise UserError(str(problem)) from None
        print(held.getvalue(), end="", file=sys.stderr)
        raise
    print(held.getvalue(), end="", file=sys.stderr)


def _base(arguments: list[str]) -> Path | None:
    """The configuration to start from: that of --config or, when resuming, of the folder itself."""
    given: dict[str, str] = {}
    for here, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = here.partition("=")
        given[name] = value if equals else following
    if "--config" in given:
        return Path(given["--config"])
    stored = Path(given.get("--out", "")) / "config.toml"
    return stored if "--resume" in given and "--out" in given and stored.exists() else None


def default_folder(data: str, *rest: object) -> Path:
    """Where a run goes without --out: ``runs/digits-icm-0``; of a path to a file, its name counts."""
    return Path("runs") / "-".join(map(str, (Path(data).name, *rest)))


@contextlib.contextmanager
def epochs_bar(shown: dict[str, str]) -> Iterator[Callable[[TrainingLoop], None]]:
    """A progress bar that vanishes when done -> the function to call after each step.

    ``shown``: which figures of the last epoch to show, and under which names.
    """
    columns = (
        TextColumn("{task.fields[epoch]}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[say]}"),
    )
    console = Console()
    if not console.is_terminal:
        yield _lines(shown, console)
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, epoch="epoch -", say="preparing data")

        def show(job: TrainingLoop) -> None:
            row = job.history[-1] if job.history else {}
            bar.update(
                task,
                total=job.epochs * job.steps_per_epoch,
                completed=job.epoch * job.steps_per_epoch + job.step_in_epoch,
                epoch=f"{job.stage}epoch {job.epoch}/{job.epochs}",
                say=" · ".join(_figures(row, shown)),
            )

        yield show


def _lines(shown: dict[str, str], console: Console) -> Callable[[TrainingLoop], None]:
    """The same for a log file: a line after the first epoch, and whenever there was none for a while."""
    pace, closed = Pace(EVERY), False  # closed: whether a line told of a whole epoch

    def show(job: TrainingLoop) -> None:
        nonlocal closed
        first = job.step_in_epoch == 0 and not closed
        if job.done or not pace.due(anyway=first):
            return
        closed = closed or first
        steps, inside = job.steps_before(), job.step_in_epoch
        place = f"epoch {job.epoch + 1}/{job.epochs}, step {inside} of {job.steps_per_epoch}" if inside else ""
        left = timedelta(seconds=round(job.seconds / steps * (job.epochs * job.steps_per_epoch - steps)))
        figures = _figures(job.history[-1], shown) if job.history else []
        parts = [job.stage + (place or f"epoch {job.epoch}/{job.epochs}"), *figures, f"about {left} left"]
        console.print(" · ".join(parts), soft_wrap=True)

    return show


def _figures(row: dict[str, Any], shown: dict[str, str]) -> list[str]:
    return [f"{name} {row[key]:.3f}" for key, name in shown.items() if row.get(key) is not None]
