"""``cll predict``."""

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from torch import Tensor

from complementary.errors import UserError
from complementary.training.predict import Predictor, are_pictures, load, read_examples, read_pictures


@dataclass(frozen=True)
class Predict:
    """Apply a trained run to new examples and write their predicted classes as CSV.

    Example: cll predict runs/x new_photos/ --out predicted.csv
    """

    folder: tyro.conf.Positional[Path]
    """The folder of a finished run."""
    inputs: tyro.conf.Positional[Path]
    """A picture or a folder of pictures; a .npy or .npz file of images uint8 [N, H, W] or [N, H, W, C], or of vectors
    [N, D]; or a .csv of numbers, one example a line."""
    out: Path | None = None
    """Where to write; by default to the screen."""
    weights: Literal["auto", "selected", "last"] = "auto"
    """Weights after the epoch chosen by SCEL (auto, if there is one), or after the last one."""
    fit: Literal["crop", "stretch"] = "crop"
    """How pictures become square, as in cll data import."""


def main(arguments: list[str]) -> None:
    """The command ``cll predict``."""
    options = tyro.cli(Predict, args=arguments, prog="cll predict")
    if options.out is not None and options.out.exists():
        raise UserError(f"{options.out} exists already; choose another --out.")
    model = load(options.folder, options.weights)
    table, lines = io.StringIO(), rows(model, options.inputs, options.fit)
    csv.writer(table, lineterminator="\n").writerows(lines)
    if options.out is None:
        print(table.getvalue(), end="")
        return
    try:
        options.out.write_text(table.getvalue(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{options.out} cannot be written ({error.strerror}).") from None
    print(f"{len(lines) - 1:,} predictions: {options.out}")


def rows(model: Predictor, inputs: Path, fit: str = "crop") -> list[list[str]]:
    """The table: class and probability of each example, after its name if it has one.

    A picture that cannot be read keeps its row, with nothing in it, and is named on standard error.
    """
    if not are_pictures(inputs):
        given, examples = read_examples(inputs)
        found = _predicted(model, examples)
        if given is None:
            return [["class", "probability"], *found]
        return [["name", "class", "probability"], *([name, *row] for name, row in zip(given, found, strict=True))]
    paths, images, failures = read_pictures(inputs, model.shape, fit)
    found = _predicted(model, images)
    for index, why in failures.items():
        print(f"{paths[index]} cannot be read: {why}", file=sys.stderr)
        found[index] = ["", ""]
    names = [str(path.relative_to(inputs)) if inputs.is_dir() else path.name for path in paths]
    return [["file", "class", "probability"], *([name, *row] for name, row in zip(names, found, strict=True))]


def _predicted(model: Predictor, inputs: Tensor) -> list[list[str]]:
    best = model(inputs).max(1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[model.classes[k], f"{p:.4f}"] for k, p in pairs]
