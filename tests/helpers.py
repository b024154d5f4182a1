"""Helpers that several test files share."""

import dataclasses
import functools
import json
from pathlib import Path

import torch

from complementary import networks
from complementary.config import Config
from complementary.encoders.objectives import OBJECTIVES
from complementary.rng import generator

RUN_FILES = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")
PRETRAIN_FILES = ("encoder.safetensors", "metrics.jsonl", "config.toml")


def run_files(folder: Path, names: tuple[str, ...] = RUN_FILES) -> dict[str, bytes]:
    """The files of a finished run that must not depend on how often it was interrupted."""
    return {name: (folder / name).read_bytes() for name in names}


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


def scattered_clusters(count, classes, clusters, seed=0, shuffled=0.3):
    """True labels, and clusters that follow them except for a share of the examples: (int [N], int [N])."""
    source = generator(seed, "scattered")
    truth = torch.randint(classes, (count,), generator=source)
    own = (truth + classes * torch.randint(max(1, clusters // classes), (count,), generator=source)) % clusters
    anywhere = torch.randint(clusters, (count,), generator=source)
    return truth, torch.where(torch.rand(count, generator=source) < shuffled, anywhere, own)


def with_labels(dataset, excluded):
    """The dataset with these complementary labels [N, K] of its training split."""
    return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, excluded=excluded))
