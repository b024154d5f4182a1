"""Helpers that several test files share."""

import dataclasses
import functools
import json
from pathlib import Path

from complementary import networks
from complementary.config import Config
from complementary.encoders.objectives import OBJECTIVES

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


def narrow_networks(monkeypatch) -> None:
    """Make encoders narrow, so that pretraining takes a fraction of a second."""
    for name, widths in (("simsiam", {"bottleneck": 8}), ("byol", {"out": 16}), ("mocov3", {"out": 16})):
        monkeypatch.setitem(OBJECTIVES, name, functools.partial(OBJECTIVES[name], width=32, **widths))
    monkeypatch.setattr(networks, "SmallCNN", functools.partial(networks.SmallCNN, width=8))
