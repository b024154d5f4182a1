"""``cll train``."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from complementary.cli.options import RunOptions, is_given, parse_run
from complementary.config import Config
from complementary.reports.tables import interval_text
from complementary.reports.terminal import print_table, training_progress


@dataclass(frozen=True)
class Train(RunOptions, Config):
    """Train a classifier from complementary labels and write everything about the run to a folder.

    Example: cll train --data digits --loss s-nl --mix icm --clusters 50 --seed 0 --out runs/x

    On two GPUs: torchrun --nproc-per-node 2 -m complementary train ...
    """

    published_code: Annotated[bool, tyro.conf.arg(name="as-coded")] = False
    """Mix as the published code of the ICM paper does, where it differs from the paper's text. The differences are in
    section [variant] of config.toml, and can be set there one by one."""


def main(arguments: list[str]) -> None:
    """Run ``cll train``."""
    options, config = parse_run(Train, Config, arguments, "cll train")
    given = {name: value for name, value in config.flat().items() if is_given(name, options, arguments)}
    preset = {} if options.resume else config.preset(given | {"recipe": config.training.recipe})
    if options.published_code:
        preset |= dict(config.as_coded().flat().items() - config.flat().items())
    if preset:
        options, config = parse_run(Train, Config, arguments, "cll train", **(given | preset))
    config = config.with_given(given)
    from complementary import data
    from complementary.data.selection import fit_batch, fit_clusters
    from complementary.engine.distributed import join_processes
    from complementary.training.run import run
    from complementary.training.task import uses_oracle

    with join_processes(options.device) as processes:
        dataset = None
        adapted = {"batch", "clusters"} - given.keys() if config.training.recipe != "auto" else set()
        if adapted:
            dataset = data.load(config.dataset.data)
        if dataset is not None and "batch" in adapted:
            config = fit_batch(config, dataset, processes.world_size)
        if dataset is not None and "clusters" in adapted:
            config = fit_clusters(config, dataset)
        oracle = ("oracle",) if uses_oracle(config) else ()
        t, mix = config.training, config.mixing.mix
        method = (t.loss, mix) if t.recipe == "custom" else (t.recipe,)
        out = options.folder(config.dataset.data, *method, *oracle, config.seed)
        shown = {"loss": "loss", "scel": "SCEL", "accuracy": "test accuracy"}
        with training_progress(shown) if processes.is_main else nullcontext() as progress:
            result = run(config, out, progress=progress, dataset=dataset, **options.run_arguments(processes))
    if processes.is_main:
        print_result(result, out)


ROWS = {
    "accuracy_last": "test accuracy, last epoch",
    "accuracy_selected": "test accuracy, epoch selected without true labels",
    "accuracy_selected_before_self_training": "the same before self-training",
    "estimated_accuracy_selected": "accuracy on data like yours, estimated without true labels",
    "estimated_balanced_accuracy_selected": "the same on classes of equal size",
    "estimated_seen_accuracy_selected": "accuracy on images that the encoder was pretrained on, estimated",
    "estimated_seen_balanced_accuracy_selected": "the same on classes of equal size",
    "accuracy_best_on_test": "test accuracy, best epoch on the test set (oracle)",
    "oracle_noise_ratio": "mixes with a wrong label (oracle)",
}


def print_result(result: dict[str, Any], out: Path) -> None:
    """Print the main results of a finished run."""
    unmixed = {"oracle_noise_ratio"} if result["config"]["mixing"]["mix"] == "none" else set()
    rows = [[ROWS[key], _show(result, key)] for key in ROWS if result.get(key) is not None and key not in unmixed]
    if result["images_per_second"] is not None:
        rows.append(["training speed", f"{result['images_per_second']:,.0f} examples/s on {result['device']}"])
    print_table((), rows)
    for note in result.get("estimate_notes", []):
        print(note)
    if result["data"]["uses_oracle"]:
        print("Oracle: this run was trained with the help of true labels.")
    print(f"All files of this run: {out}")


def _show(result: dict[str, Any], key: str) -> str:
    if not key.startswith("estimated"):
        return f"{100 * result[key]:.2f} %"
    low, high = (result.get(key.replace("selected", end)) for end in ("low", "high"))
    value, seen = 100 * min(1.0, max(0.0, result[key])), result["data"].get("held_out_seen", 0)
    count = seen if "seen" in key else result["data"]["held_out"] - seen
    interval = f"95 % interval {interval_text(low, high)}, " if low is not None and high is not None else ""
    return f"{value:.0f} % ({interval}{count} held-out examples)"
