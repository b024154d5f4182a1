"""Checks of the real datasets, on machines that have them in the cache."""

import time

import pytest
import torch

from complementary import labels, long_tail
from complementary.data import REGISTRY, cache, load, moments

ROOT = cache.cache_root()
CACHED = [name for name in REGISTRY if (ROOT / "sets" / name / "manifest.json").exists()]


def need(name):
    if name not in CACHED:
        pytest.skip(f"{name} is not in the cache: cll data get {name}")
    return load(name, ROOT)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "digits"])
def test_real_counts_and_moments(name):
    dataset, spec = need(name), REGISTRY[name]
    assert (len(dataset.train), len(dataset.test)) == (spec.train, spec.test)
    mean, std = moments(dataset.train.inputs)
    assert mean == pytest.approx(spec.mean, abs=5e-4)
    assert std == pytest.approx(spec.std, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "size"), [("cifar10", 5000), ("cifar20", 2500), ("cifar100", 500), ("fmnist", 6000), ("kmnist", 6000)]
)
def test_real_classes_are_balanced(name, size):
    assert set(torch.bincount(need(name).train.truth).tolist()) == {size}


def test_real_cifar10_loads_in_well_under_a_second():
    need("cifar10")
    started = time.perf_counter()
    load("cifar10", ROOT)
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(("name", "noise"), [("aclcifar10", 0.0030), ("aclcifar20", 0.0098)])
def test_real_labels_of_a_model_have_known_noise(name, noise):
    train = need(name).train
    wrong = train.excluded.gather(1, train.truth[:, None]).sum() / train.excluded.sum()
    assert float(wrong) == pytest.approx(noise, abs=2e-4)


@pytest.mark.parametrize(("name", "noise"), [("clcifar10-simulated", 0.0393), ("clcifar20-simulated", 0.0281)])
def test_real_simulated_labels_have_known_noise(name, noise):
    train = need(name).train
    assert (train.excluded.sum(1) == 1).all()
    assert float(train.excluded.gather(1, train.truth[:, None]).float().mean()) == pytest.approx(noise, abs=0.003)


def test_real_cifar10_has_the_published_label_counts():
    truth = need("cifar10").train.truth
    tail = truth[long_tail.long_tail(truth, 10, 100, head=5000)]
    counts = labels.draw_as_paper(tail, 10).sum(0, dtype=torch.long).tolist()
    assert counts == [874, 1084, 1166, 1267, 1296, 1316, 1340, 1349, 1367, 1347]
