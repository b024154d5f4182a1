import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from complementary import data
from complementary.oracle import knn_accuracy, linear_accuracy
from complementary.rng import generator


def clouds(count, classes, features, spread, seed):
    """Points around one centre per class -> (unit vectors [count, features], truth)."""
    source = generator(seed, "clouds")
    centre = torch.randn(classes, features, generator=generator(0, "centres"))
    truth = torch.randint(classes, (count,), generator=source)
    return F.normalize(centre[truth] + spread * torch.randn(count, features, generator=source)), truth


def slow_knn(train, train_truth, test, test_truth, k, temperature):
    """Query by query, in float64."""
    right = 0
    for query, truth in zip(test.double().numpy(), test_truth.tolist(), strict=True):
        similarity = [float(query @ row) for row in train.double().numpy()]
        votes = dict.fromkeys(train_truth.tolist(), 0.0)
        for i in sorted(range(len(train)), key=lambda i: -similarity[i])[:k]:
            votes[int(train_truth[i])] += math.exp(similarity[i] / temperature)
        right += max(votes, key=votes.get) == truth
    return right / len(test)


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 40),
    queries=st.integers(1, 10),
    classes=st.integers(1, 5),
    k=st.integers(1, 50),
    temperature=st.sampled_from([0.05, 0.1, 1.0]),
    seed=st.integers(0, 1000),
)
def test_knn_is_what_the_slow_reference_gives(count, queries, classes, k, temperature, seed):
    bank, truth = clouds(count, classes, 6, 1.0, seed)
    test, test_truth = clouds(queries, classes, 6, 1.0, seed + 1)
    found = knn_accuracy(bank, truth, test, test_truth, k, temperature)
    assert found == pytest.approx(slow_knn(bank, truth, test, test_truth, k, temperature))


@pytest.mark.parametrize("k", [1, 20, 200])
def test_knn_on_digits_is_that_of_scikit_learn(k):
    train, test = data.load("digits").train, data.load("digits").test
    bank, queries = (F.normalize(s.inputs.flatten(1).float()) for s in (train, test))
    known = KNeighborsClassifier(k, weights=lambda distance: np.exp((1 - distance) / 0.1), metric="cosine")
    wanted = known.fit(bank.numpy(), train.truth.numpy()).score(queries.numpy(), test.truth.numpy())
    assert knn_accuracy(bank, train.truth, queries, test.truth, k) == pytest.approx(wanted, abs=1.5 / len(queries))


@pytest.mark.parametrize("count", [1023, 1025, 2048])
def test_knn_sees_every_query_however_they_are_cut(count):
    bank, truth = clouds(60, 3, 6, 0.7, 0)
    test, test_truth = clouds(count, 3, 6, 0.7, 1)
    parts = [knn_accuracy(bank, truth, *pair, k=5) for pair in zip(test.split(100), test_truth.split(100), strict=True)]
    sizes = [len(part) for part in test.split(100)]
    whole = sum(a * n for a, n in zip(parts, sizes, strict=True)) / count
    assert knn_accuracy(bank, truth, test, test_truth, k=5) == pytest.approx(whole)


@pytest.mark.parametrize("probe", [knn_accuracy, linear_accuracy])
def test_perfect_features_give_one_and_features_of_noise_give_chance(probe):
    truth, test_truth = torch.arange(400) % 4, torch.arange(200) % 4
    bank, test = (F.one_hot(t, 4).float() for t in (truth, test_truth))
    assert probe(bank, truth, test, test_truth) == 1.0
    bank, test = (F.normalize(torch.randn(n, 4, generator=generator(n, "noise"))) for n in (400, 200))
    assert 0.1 < probe(bank, truth, test, test_truth) < 0.4


@pytest.mark.parametrize("probe", [knn_accuracy, linear_accuracy])
def test_a_class_that_only_the_test_set_has_counts_as_wrong(probe):
    bank, truth = torch.eye(2).repeat(10, 1), torch.arange(20) % 2
    assert probe(bank, truth, torch.eye(2), torch.tensor([0, 7])) == 0.5


def test_the_linear_probe_comes_near_logistic_regression():
    train, test = data.load("digits").train, data.load("digits").test
    x, held = (s.inputs.flatten(1).float() for s in (train, test))
    known = LogisticRegression(max_iter=300).fit(x.numpy() / 255, train.truth.numpy())
    wanted = known.score(held.numpy() / 255, test.truth.numpy())
    assert linear_accuracy(x, train.truth, held, test.truth) == pytest.approx(wanted, abs=0.03)


def test_the_linear_probe_cares_for_neither_scale_nor_shift_nor_constant_features():
    x, truth = clouds(300, 3, 5, 0.8, 0)
    held, held_truth = clouds(200, 3, 5, 0.8, 1)
    wanted = linear_accuracy(x, truth, held, held_truth)
    scale, shift = torch.tensor([1e-3, 1, 10, 1e3, 5]), torch.tensor([5.0, -1, 0, 100, 3])
    moved, held_moved = (torch.cat([t * scale + shift, torch.full((len(t), 1), 7.0)], 1) for t in (x, held))
    assert linear_accuracy(moved, truth, held_moved, held_truth) == pytest.approx(wanted, abs=0.02)


def test_the_linear_probe_depends_on_its_seed_only():
    x, truth = clouds(300, 3, 5, 1.5, 0)
    before = torch.random.get_rng_state()
    first, again = (linear_accuracy(x, truth, x, truth, epochs=3, batch=32) for _ in range(2))
    assert first == again
    assert torch.equal(before, torch.random.get_rng_state()), "the global random state is nobody's to use"
