"""Time from nothing to a given test accuracy: ``python -m benchmarks.time_to_accuracy``.

An encoder is pretrained, a linear layer is trained on its features, and both start self-training. Test accuracies are
stored with the seconds since the start of the process. They include imports, loading, compilation and evaluation; only
the download of the data is left out. No true label is used in training.
"""

import time

START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from complementary import data, files  # noqa: E402
from complementary.config import Config, PretrainConfig  # noqa: E402
from complementary.encoders.pretrain import pretrain  # noqa: E402
from complementary.engine.loop import TrainingLoop  # noqa: E402
from complementary.training.run import run  # noqa: E402

TARGETS = (0.8, 0.85, 0.9, 0.92, 0.93, 0.94, 0.945, 0.95)


class Stopwatch:
    """Records the seconds since the start of the process, and the test accuracy, after every epoch.

    Args:
        path: JSONL file; None: rows are only kept in ``rows``.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.rows = path, list[dict[str, Any]]()

    def __call__(self, loop: TrainingLoop) -> None:
        if loop.step_in_epoch or not loop.history:
            return
        stage = loop.stage.rstrip(", ") or "pretraining"
        row = {"seconds": round(time.perf_counter() - START, 2), "stage": stage, "epoch": loop.epoch}
        self.rows.append(row | {"accuracy": loop.history[-1].get("accuracy")})
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")


def seconds_to(rows: list[dict[str, Any]], targets: tuple[float, ...] = TARGETS) -> dict[str, float | None]:
    """The seconds after which each accuracy was reached for the first time; None: never."""
    reached = {}
    for target in targets:
        times = [row["seconds"] for row in rows if row["accuracy"] is not None and row["accuracy"] >= target]
        reached[f"{100 * target:g}"] = min(times, default=None)
    return reached


def measure(pretraining: PretrainConfig, options: dict[str, Any], out: Path, device: str = "auto") -> dict[str, Any]:
    """Pretrain and train in a folder.

    Args:
        pretraining: The pretraining.
        options: Further options of the run.
        out: The folder.
        device: The device.

    Returns:
        What `main` stores.
    """
    out.mkdir(parents=True, exist_ok=True)
    watch = Stopwatch(out / "epochs.jsonl")
    dataset = data.load(pretraining.data)
    encoder = pretrain(pretraining, out / "encoder", device=device, dataset=dataset, progress=watch)
    pretrained = round(time.perf_counter() - START, 2)
    config = Config.of(
        recipe="self-training",
        data=pretraining.data,
        labels="uniform",
        encoder=f"run:{out / 'encoder'}",
        holdout=0.0,
        seed=pretraining.seed,
        **options,
    )
    result = run(config, out / "run", device=device, dataset=dataset, progress=watch)
    return {
        "device": result["device"],
        "seconds": round(time.perf_counter() - START, 2),
        "seconds_of_pretraining": pretrained,
        "seconds_to": seconds_to(watch.rows),
        "accuracy_last": result["accuracy_last"],
        "accuracy_last_mirrored": result["accuracy_last_mirrored"],
        "accuracy_before_self_training": result["accuracy_last_before_self_training"],
        "oracle_knn": encoder["oracle_knn"],
        "pretraining": encoder["config"],
        "config": result["config"],
        "versions": result["versions"],
        "rows": [row for row in watch.rows if row["accuracy"] is not None],
    }


def main() -> None:
    """Measure, print the times and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--encoder", default="simsiam", help="simsiam, byol or mocov3")
    parser.add_argument("--pretrain-epochs", type=int, default=260)
    parser.add_argument("--self-training", type=int, default=150, help="epochs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/time-to-accuracy"))
    parser.add_argument("--json", type=Path, help="write the result to this file")
    given = parser.parse_args()
    pretraining = PretrainConfig(
        data=given.data,
        encoder=given.encoder,
        max_pool=False,
        epochs=given.pretrain_epochs,
        probe_every=given.pretrain_epochs,
        seed=given.seed,
    )
    found = measure(pretraining, {"self_training": given.self_training}, given.out, given.device)
    for target, seconds in found["seconds_to"].items():
        print(f"{target:>5} %  {'never' if seconds is None else f'{seconds:7.0f} s'}")
    print(f"{100 * found['accuracy_last']:.2f} % after {found['seconds']:.0f} s on {found['device']}")
    if given.json is not None:
        files.atomic_write(given.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
