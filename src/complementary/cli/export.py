"""``cll export``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from complementary.cli.options import parse
from complementary.errors import UserError
from complementary.reports.terminal import format_size, print_table


@dataclass(frozen=True)
class Export:
    """Write a trained run for production: one graph from raw inputs to probabilities, checked against the run.

    Without a format, ONNX is written. The folder also gets a model card.

    Example: cll export runs/x --onnx --out exported
    """

    folder: tyro.conf.Positional[Path]
    """The folder of a finished run."""
    out: Path | None = None
    """Folder to write to; by default the folder export in that of the run."""
    onnx: tyro.conf.FlagCreatePairsOff[bool] = False
    """ONNX: model.onnx, for onnxruntime and many others (needs the extra export)."""
    torch: tyro.conf.FlagCreatePairsOff[bool] = False
    """A torch.export program: model.pt2, for torch.export.load."""
    safetensors: tyro.conf.FlagCreatePairsOff[bool] = False
    """The weights alone: model.safetensors."""
    opset: int = 18
    """Version of ONNX's operators, 18 to 23."""
    weights: Literal["auto", "selected", "last"] = "auto"
    """Weights of the epoch selected by SCEL or of the last epoch. auto: selected, if there is one."""
    calibrate: bool = True
    """Divide the logits by a temperature that held-out complementary labels determine (none without a validation
    split, or if the dataset is not there any more)."""
    fit: Literal["crop", "stretch"] = "crop"
    """How the graph makes images of another size square, as in cll data import."""


def main(arguments: list[str]) -> None:
    """Run ``cll export``."""
    options = parse(Export, arguments, "cll export")
    names = [name for name in ("onnx", "torch", "safetensors") if getattr(options, name)]
    if options.out is not None and options.out.is_file():
        raise UserError(f"{options.out} is a file; give a folder.", "out")
    from complementary.training.export import export_run

    written = export_run(
        options.folder,
        options.out,
        names or ["onnx"],
        weights=options.weights,
        opset=options.opset,
        calibrate=options.calibrate,
        fit=options.fit,
    )
    print_table((), [[name, str(path), format_size(path.stat().st_size)] for name, path in written.items()])
