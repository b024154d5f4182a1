"""``cll train`` and ``cll predict``."""

import csv
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from complementary.config import Config
from complementary.errors import UserError
from complementary.runner import run
from complementary.settings import read_toml
from complementary.train import Trainer


@dataclass(frozen=True)
class Train(Config):
    """Train a classifier from complementary labels, and write everything about the run to a folder.

    Example: cll train --data digits --loss s-nl --mix icm --clusters 50 --seed 0 --out runs/x
    """

    out: Path | None = None
    """Folder of the run; by default runs/DATA-LOSS-MIX-SEED."""
    config: Path | None = None
    """A config.toml to start from, such as that of an earlier run; other options override it."""
    resume: bool = False
    """Go on with the run in the folder (after a kill, too); its configuration is taken from there."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    checkpoint_seconds: float = 30.0
    """How often the state is saved, so that a killed run can be resumed."""


def train(arguments: list[str]) -> None:
    """The command ``cll train``."""
    base = read_toml(path, Config) if (path := _base(arguments)) else Config()
    sections = {f.name: getattr(base, f.name) for f in fields(Config)}
    parser: Any = tyro.conf.OmitArgPrefixes[Train]
    options: Train = tyro.cli(parser, args=arguments, prog="cll train", default=Train(**sections))
    c = Config(**{name: getattr(options, name) for name in sections})
    out = options.out or Path("runs") / f"{c.source.data}-{c.training.loss}-{c.mixing.mix}-{c.seed}"
    bar = Progress(
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[say]}"),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None, epoch=f"0/{c.training.epochs}", say="preparing data")
        result = run(
            c,
            out,
            resume=options.resume,
            device=options.device,
            checkpoint_seconds=options.checkpoint_seconds,
            progress=lambda trainer: _show(bar, task, trainer),
        )
    report(result, out)


def _base(arguments: list[str]) -> Path | None:
    """The configuration to start from: that of --config or, when resuming, of the folder itself."""
    given: dict[str, str] = {}
    for here, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = here.partition("=")
        given[name] = value if equals else following
    if "--config" in given:
        return Path(given["--config"])
    stored = Path(given.get("--out", "")) / "config.toml"
    return stored if "--resume" in given and "--out" in given and stored.exists() else None


def _show(bar: Progress, task: Any, trainer: Trainer) -> None:
    steps, epochs = trainer.steps_per_epoch, trainer.config.training.epochs
    row = trainer.history[-1] if trainer.history else {}
    parts = [
        f"{name} {row[key]:.3f}"
        for key, name in (("loss", "loss"), ("scel", "SCEL"), ("accuracy", "test"))
        if key in row
    ]
    bar.update(
        task,
        total=epochs * steps,
        completed=trainer.epoch * steps + trainer.step_in_epoch,
        epoch=f"{trainer.epoch}/{epochs}",
        say=" · ".join(parts),
    )


ROWS = {
    "accuracy_last": "test accuracy, last epoch",
    "accuracy_selected": "test accuracy, epoch chosen without true labels (SCEL)",
    "estimated_accuracy_selected": "the same, estimated without true labels (URE)",
    "accuracy_best_on_test": "test accuracy, best epoch on the test set (for comparison only)",
    "noise_ratio": "noisy mixes (oracle)",
}


def report(result: dict[str, Any], out: Path) -> None:
    """Print the main figures of a finished run."""
    table = Table(show_header=False, box=None)
    for key, name in ROWS.items():
        if result.get(key) is not None:
            table.add_row(name, f"{100 * result[key]:.2f} %")
    table.add_row("training speed", f"{result['images_per_second']:,.0f} images/s on {result['device']}")
    console = Console()
    console.print(table)
    console.print(f"Everything about this run is in {out}", soft_wrap=True)


@dataclass(frozen=True)
class Predict:
    """Apply a trained run to new examples and write one predicted class per line.

    Example: cll predict runs/x images.npy --out predicted.csv
    """

    folder: tyro.conf.Positional[Path]
    """The folder of a finished run."""
    inputs: tyro.conf.Positional[Path]
    """A .npy file: images uint8 [N, H, W] or [N, H, W, C], or vectors [N, D]."""
    out: Path | None = None
    """Where to write (CSV: class, probability); by default to the screen."""
    weights: Literal["auto", "selected", "last"] = "auto"
    """Weights after the epoch chosen by SCEL (auto, if there is one), or after the last one."""


def predict(arguments: list[str]) -> None:
    """The command ``cll predict``."""
    from complementary.predict import load, read_inputs

    options = tyro.cli(Predict, args=arguments, prog="cll predict")
    model = load(options.folder, options.weights)
    probabilities = model(read_inputs(options.inputs))
    best = probabilities.max(1)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["class", "probability"])
    for k, p in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        writer.writerow([model.classes[k], f"{p:.4f}"])
    if options.out is None:
        print(table.getvalue(), end="")
    elif options.out.exists():
        raise UserError(f"{options.out} exists already; choose another --out.")
    else:
        options.out.write_text(table.getvalue(), encoding="utf-8")
