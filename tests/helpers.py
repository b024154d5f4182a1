"""Helpers that several test files share."""

import dataclasses
import json
from pathlib import Path

from complementary.config import Config

RUN_FILES = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")


def run_files(folder: Path) -> dict[str, bytes]:
    """The files of a finished run that must not depend on how often it was interrupted."""
    return {name: (folder / name).read_bytes() for name in RUN_FILES}


def write_result(path: Path, accuracy: float = 0.5, **options: object) -> Path:
    """Write a result.json as a run with these options would -> its path."""
    config = Config.of(**options)
    content = {"accuracy_last": accuracy, "train_seconds": 2.0, "data": {"examples": 9}, "device": "cpu"}
    content |= {"config": dataclasses.asdict(config), "config_hash": config.hash()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
