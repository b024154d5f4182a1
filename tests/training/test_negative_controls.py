"""Methods that must not use true labels give the same weights with true labels present, absent and permuted."""

import dataclasses

import pytest
import torch

from complementary.config import MIXED_WITHIN, Config, MixerName
from complementary.data import Dataset, load
from complementary.rng import generator
from complementary.training.run import run
from tests.helpers import run_files

TRUTH_FREE = [name for name in MixerName.__args__ if MIXED_WITHIN.get(name) != "truth"]
INPUTS = {
    "raw": {},
    "features": {"inputs": "features", "encoder": "random"},
    "self-training": {"inputs": "features", "encoder": "random", "self_training": 2},
    "estimated transition": {"loss": "fwd", "transition": "estimate", "estimate_epochs": 1},
}


def digits() -> Dataset:
    """400 digits with complementary labels that are part of the data."""
    dataset = load("digits")
    dataset = dataclasses.replace(dataset, train=dataset.train.take(torch.arange(400)))
    other = torch.randint(1, 10, (len(dataset.train),), generator=generator(0, "labels"))
    excluded = torch.eye(10, dtype=torch.uint8)[(dataset.train.truth + other) % 10]
    return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, excluded=excluded))


def without_truth(dataset: Dataset) -> Dataset:
    return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, truth=None), test=None)


def permuted(dataset: Dataset) -> Dataset:
    """The same data with the true labels of training and test set in random order."""

    def shuffle(split):
        order = torch.randperm(len(split), generator=generator(1, "permutation"))
        return dataclasses.replace(split, truth=split.truth[order])

    return dataclasses.replace(dataset, train=shuffle(dataset.train), test=shuffle(dataset.test))


SLOW = [pytest.param(name, marks=pytest.mark.slow if name == "self-training" else ()) for name in INPUTS]


@pytest.mark.parametrize("inputs", SLOW)
@pytest.mark.parametrize("mix", TRUTH_FREE)
def test_training_does_not_depend_on_true_labels(tmp_path, mix, inputs):
    config = Config.of(mix=mix, clusters=10, restarts=1, epochs=2, batch=64, **INPUTS[inputs])
    dataset = digits()
    variants = {"present": dataset, "absent": without_truth(dataset), "permuted": permuted(dataset)}
    for name, variant in variants.items():
        result = run(config, tmp_path / name, device="cpu", dataset=variant)
        assert result["data"]["uses_oracle"] is False
    weights = ("last.safetensors", "selected.safetensors")
    present, absent, other = (run_files(tmp_path / name, weights) for name in variants)
    assert present == absent == other


def test_training_of_oracle_mixers_depends_on_true_labels():
    """The control itself works: an oracle mixer gives other weights if the true labels are permuted."""
    config = Config.of(mix="intra-class", epochs=2, batch=64)
    losses = []
    for dataset in (digits(), permuted(digits())):
        trained = []
        result = run(config, device="cpu", dataset=dataset, progress=trained.append)
        assert result["data"]["uses_oracle"] is True
        losses.append([row["loss"] for row in trained[-1].history])
    assert losses[0] != losses[1]
