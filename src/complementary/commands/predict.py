"""``cll predict``."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from complementary.errors import UserError
from complementary.predict import load, read_inputs


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


def main(arguments: list[str]) -> None:
    """The command ``cll predict``."""
    options = tyro.cli(Predict, args=arguments, prog="cll predict")
    if options.out is not None and options.out.exists():
        raise UserError(f"{options.out} exists already; choose another --out.")
    model = load(options.folder, options.weights)
    best = model(read_inputs(options.inputs)).max(1)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["class", "probability"])
    for k, p in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        writer.writerow([model.classes[k], f"{p:.4f}"])
    if options.out is None:
        print(table.getvalue(), end="")
    else:
        options.out.write_text(table.getvalue(), encoding="utf-8")
