"""``cll predict``."""

import csv
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from complementary.cli.options import parse
from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.reports.terminal import log_progress

if TYPE_CHECKING:
    from torch import Tensor

    from complementary.training.predict import Predictor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Predict:
    """Apply a trained run to new examples and write their predicted classes as CSV.

    Example: cll predict runs/x new_photos/ --out predicted.csv
    """

    folder: tyro.conf.Positional[Path]
    """The folder of a finished run."""
    inputs: tyro.conf.Positional[Path]
    """An image or a folder of images; a .npy or .npz file of images uint8 [N, H, W] or [N, H, W, C], or of vectors
    [N, D]; a .csv file of numbers with one example per line; or a .parquet file of vectors."""
    out: Path | None = None
    """File to write; by default stdout."""
    all_classes: bool = False
    """Also write the probability of each class, in a column of its name."""
    weights: Literal["auto", "selected", "last"] = "auto"
    """Weights of the epoch selected by SCEL or of the last epoch. auto: selected, if there is one."""
    fit: Literal["crop", "stretch"] = "crop"
    """How images become square, as in cll data import."""


def main(arguments: list[str]) -> None:
    """Run ``cll predict``."""
    options = parse(Predict, arguments, "cll predict")
    if options.out is not None and options.out.exists():
        raise UserError(f"{options.out} exists already; choose another file.", "out")
    from complementary.training.predict import load

    model = load(options.folder, options.weights)
    rows, count = _predict_file(model, options.inputs, options.fit, options.all_classes), -1

    def lines() -> Iterator[str]:  # one by one, so that memory does not grow with their number
        nonlocal count
        for row in rows:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerow(row)
            yield text.getvalue()
            count += 1

    if options.out is None:
        for line in lines():
            print(line, end="")
        return
    atomic_write(options.out, lines())
    print(f"{count:,} predictions: {options.out}")


def _predict_file(model: "Predictor", inputs: Path, fit: str, all_classes: bool) -> Iterator[list[str]]:
    """Predict the examples of a file or folder.

    Args:
        model: The trained run.
        inputs: What to predict, as in `Predict`.
        fit: How images become square.
        all_classes: Whether the probability of each class follows.

    Yields:
        A header, then class and probability of each example, after its name if it has one. An image that cannot be read
        keeps its row, with empty cells, and is named in a warning.
    """
    from complementary.training.predict import is_image_path, read_examples, read_images

    title, failures = "name", dict[int, str]()
    names: Sequence[str] | None
    if is_image_path(inputs):
        title, (paths, examples, failures) = "file", read_images(inputs, model.shape, fit)
        names = [str(p.relative_to(inputs)) if inputs.is_dir() else p.name for p in paths]
        for index, reason in failures.items():
            logger.warning("%s cannot be read: %s", paths[index], reason)
    else:
        names, examples = read_examples(inputs, model.features)
    for i, row in enumerate(_predict(model, examples, all_classes), start=-1):
        row = [""] * len(row) if i in failures else row
        yield row if names is None else [names[i] if i >= 0 else title, *row]


def _predict(model: "Predictor", inputs: "Tensor", all_classes: bool) -> Iterator[list[str]]:
    """A header, and one row per example."""
    from complementary.training.predict import BLOCK

    model.check(inputs)
    yield ["class", "probability", *(model.classes if all_classes else ())]
    done = 0
    for part in inputs.split(BLOCK):
        probabilities = model.apply(part.contiguous())
        best = probabilities.max(1)
        each = probabilities.tolist() if all_classes else [[]] * len(part)
        for k, p, further in zip(best.indices.tolist(), best.values.tolist(), each, strict=True):
            yield [model.classes[k], *(f"{value:.4f}" for value in (p, *further))]
        done += len(part)
        log_progress(logger, "predicting", done, len(inputs))
