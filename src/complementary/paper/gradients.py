"""The study of gradients: not a training run, so it has a runner and files of its own in the store."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from complementary.checkpoint import write_bytes
from complementary.config import Config
from complementary.device import device_name, versions
from complementary.engine import Engine
from complementary.errors import UserError
from complementary.gradient_study import study
from complementary.problem import training_truth

METHODS = ("mixup", "mixup-noise-free", "icm", "intra-class")
MEASUREMENTS = 100  # along a training, at most
FIGURES = {"oracle_mse": "MSE", "oracle_bias_squared": "bias²", "oracle_variance": "variance"}


def run(config: Config, store: Path, protocol: str, draws: int, device: str) -> Path:
    """Measure all methods along a training by true labels -> the file; one that is there is left as it is.

    draws: of labels, for each measurement; 0: exact, which networks with batch norm do not allow.
    """
    path = (
        store / "gradients" / f"gradients-{config.source.data}-{protocol}-{config.hash()[:12]}-seed{config.seed}.json"
    )
    if path.exists():
        read(path)
        return path
    started, where = time.time(), Engine.of(device).device
    steps = config.training.epochs * (len(training_truth(config)) // config.training.batch)
    every = max(1, steps // MEASUREMENTS)
    rows = study(config, methods=METHODS, steps=steps, every=every, draws=draws or None, device=str(where))
    content = {
        "gradients": rows,
        "protocol": protocol,
        "draws": draws,
        "settings": asdict(config),
        "seconds": time.time() - started,
        "device": device_name(where),
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(content) + "\n").encode())
    return path


def files(stores: Sequence[Path]) -> list[Path]:
    """All files of this study in some stores."""
    return [path for store in stores for path in sorted(store.rglob("gradients-*.json"))]


def read(path: Path) -> dict[str, Any]:
    """The content of such a file, checked."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for row in content["gradients"]:
            row["step"], row["method"], [float(row[name]) for name in FIGURES]
        settings = content["settings"]
        content["protocol"], settings["source"]["data"], int(settings["seed"]), int(settings["training"]["epochs"])
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise UserError(f"{path} is damaged ({problem}); delete it, and run 'cll paper gradients' again.") from None
    return content
