"""``cll train``."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from complementary.cli.options import Where, check_resume, default_folder, epochs_bar, parse
from complementary.config import Config
from complementary.engine.distributed import joined
from complementary.training.run import run


@dataclass(frozen=True)
class Train(Where, Config):
    """Train a classifier from complementary labels, and write everything about the run to a folder.

    Example: cll train --data digits --loss s-nl --mix icm --clusters 50 --seed 0 --out runs/x
    On two GPUs: torchrun --nproc-per-node 2 -m complementary train ...
    """


def main(arguments: list[str]) -> None:
    """The command ``cll train``."""
    options, config = parse(Train, Config, arguments, "cll train")
    out = options.out or default_folder(config.dataset.data, config.training.loss, config.mixing.mix, config.seed)
    with joined("cll train", options.device) as processes:
        check_resume(options, out)
        shown = {"loss": "loss", "scel": "SCEL", "accuracy": "test"}
        with epochs_bar(shown) if processes.is_main else nullcontext() as progress:
            result = run(config, out, progress=progress, **options.how(processes))
    if processes.is_main:
        report(result, out)


ROWS = {
    "accuracy_last": "test accuracy, last epoch",
    "accuracy_selected": "test accuracy, epoch chosen without true labels (SCEL)",
    "accuracy_selected_before_refining": "the same before refining",
    "estimated_accuracy_selected": "accuracy of that epoch, estimated without true labels (URE)",
    "accuracy_best_on_test": "test accuracy, best epoch on the test set (for comparison only)",
    "noise_ratio": "noisy mixes (oracle)",
}


def _percent(result: dict[str, Any], key: str) -> str:
    if key != "estimated_accuracy_selected":
        return f"{100 * result[key]:.2f} %"
    error, labels = result["estimated_accuracy_error"], result["data"]["held_out"]
    return f"{100 * result[key]:.0f} ± {100 * error:.0f} % ({labels} held-out examples)"


def report(result: dict[str, Any], out: Path) -> None:
    """Print the main figures of a finished run."""
    table = Table(show_header=False, box=None)
    for key, name in ROWS.items():
        mixes = key != "noise_ratio" or result["config"]["mixing"]["mix"] != "none"
        if mixes and result.get(key) is not None:
            table.add_row(name, _percent(result, key))
    table.add_row("training speed", f"{result['images_per_second']:,.0f} images/s on {result['device']}")
    console = Console()
    console.print(table)
    console.print(f"Everything about this run is in {out}", soft_wrap=True)
