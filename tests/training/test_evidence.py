"""The labels of similar examples as evidence."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, transitions
from complementary.config import Config
from complementary.errors import UserError
from complementary.training import evidence
from complementary.training.evidence import (
    EXPECTED,
    UNRELATED,
    cluster_evidence,
    neighbor_counts,
    neighbor_evidence,
    unrelated_share,
)
from complementary.training.run import build_trainer


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 6), st.integers(5, 40), st.integers(0, 10_000))
def test_neighbor_counts_matches_brute_force(classes, count, seed):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 1, (count, classes))
    excluded = (random.random((count, classes)) < 0.4).astype(np.uint8)
    rows = np.sort(random.choice(count, max(1, count // 2), replace=False))
    k = int(random.integers(1, count))
    tensors = [torch.from_numpy(t) for t in (logits, excluded, rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "CHUNK", 3 * count)  # three rows at a time
        found = neighbor_counts(*tensors, k)
    for i, row in enumerate(rows):
        cosine = [
            -math.inf if j == row else logits[row] @ logits[j] / np.linalg.norm(logits[row]) / np.linalg.norm(logits[j])
            for j in range(count)
        ]
        order = sorted(range(count), key=lambda j: -cosine[j])
        if k < count - 1 and cosine[order[k - 1]] - cosine[order[k]] < 1e-6:
            continue  # a tie in float32
        assert found[i].tolist() == excluded[order[:k]].sum(0).tolist()


def test_neighbor_counts_among_references_only():
    vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    found = neighbor_counts(vectors, torch.eye(4), torch.arange(4), 1, torch.tensor([1, 2]))
    assert found.argmax(1).tolist() == [1, 2, 1, 2], "an example is never its own neighbor"


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 6), st.integers(4, 30), st.integers(0, 10_000))
def test_neighbor_evidence_is_the_likelihood_of_the_labels_of_the_neighbors(classes, count, seed):
    random = np.random.default_rng(seed)
    vectors, matrix = random.normal(0, 1, (count, 5)), random.dirichlet(np.ones(classes), classes)
    excluded = np.eye(classes, dtype=np.uint8)[random.integers(0, classes, count)]
    found = neighbor_evidence(*(torch.from_numpy(part) for part in (vectors, excluded, matrix)), 3)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T - 9 * np.eye(count)
    share, counts = excluded.mean(0), np.stack([excluded[np.argsort(-row)[:3]].sum(0) for row in cosine])
    other = float(unrelated_share(*(torch.from_numpy(part).float() for part in (counts, excluded, matrix))))
    for i in range(count):
        nearest = np.argsort(-cosine[i])
        if count > 4 and cosine[i, nearest[2]] - cosine[i, nearest[3]] < 1e-6:
            continue  # a tie in float32
        for k in range(classes):
            chances = (1 - other) * matrix[k] + other * share
            wanted = sum(math.log(chances[excluded[j].argmax()]) for j in nearest[:3])
            assert float(found[i, k]) == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def neighborhoods(count, classes, other, neighbors=50):
    """Neighbors of each example i, of class i % classes: of any class with probability ``other``, else of its own."""
    random = torch.Generator().manual_seed(0)
    distance = torch.randint(1, count // classes, (count, neighbors), generator=random)  # 0 is the example itself
    further = classes * distance
    same = (torch.arange(count)[:, None] + further) % count
    replaced = torch.rand(count, neighbors, generator=random) < other
    return torch.where(replaced, torch.randint(count, (count, neighbors), generator=random), same)


@pytest.mark.parametrize("other", [0.4, 0.7, 0.9])
@pytest.mark.parametrize(
    ("matrix", "per_example", "count"),
    [
        (transitions.uniform(10), 1, 8000),
        (transitions.uniform(10), 3, 8000),
        (transitions.biased(10, 5), 1, 8000),
        (transitions.uniform(20), 1, 40_000),
    ],
    ids=["uniform", "several", "biased", "20 classes"],
)
def test_unrelated_share_finds_the_share_of_unrelated_neighbors(other, matrix, per_example, count):
    truth = torch.arange(count) % len(matrix)
    excluded = labels.draw(truth, matrix, per_example, 0).float()
    found = unrelated_share(excluded[neighborhoods(count, len(matrix), other)].sum(1), excluded, matrix.float())
    assert float(found) == pytest.approx(other, abs=0.1)


@pytest.mark.parametrize(("classes", "count"), [(10, 300), (50, 2000), (100, 10_000)])
def test_unrelated_share_is_the_expected_share_if_labels_show_nothing(classes, count):
    """Without averaging, the estimates are anything between the limits."""
    truth, matrix = torch.arange(count) % classes, transitions.uniform(classes)
    near = neighborhoods(count, classes, 0.5)
    for seed in range(8):
        excluded = labels.draw(truth, matrix, 1, seed).float()
        assert float(unrelated_share(excluded[near].sum(1), excluded, matrix.float())) == pytest.approx(
            EXPECTED, abs=0.2
        )


@pytest.mark.parametrize("per_example", [1, 3])
def test_chance_agreement_counts_pairs_of_labels_of_different_examples(per_example):
    """Labels of the same example are never equal, so its pairs must not count."""
    excluded = labels.draw(torch.arange(12) % 5, transitions.uniform(5), per_example, 0)
    excluded[3] = 0  # no label
    rows = [np.flatnonzero(row) for row in excluded.numpy()]
    pairs = [a == b for i, j in itertools.permutations(range(12), 2) for a in rows[i] for b in rows[j]]
    assert float(evidence._chance_agreement(excluded.float())) == pytest.approx(np.mean(pairs))


def test_unrelated_share_is_limited():
    eye, matrix = torch.eye(4), transitions.uniform(4).float()
    own = eye.repeat(1000, 1)
    assert float(unrelated_share(50 * own, own, matrix)) == pytest.approx(UNRELATED[0]), (
        "labels agree more than by class"
    )
    assert float(unrelated_share(50 * (1 - own), own, matrix)) == pytest.approx(UNRELATED[1])
    nothing = torch.zeros(4, 4)
    assert float(unrelated_share(nothing, nothing, matrix)) == pytest.approx(EXPECTED), "no labels at all"
    others = own[torch.randperm(4000, generator=torch.Generator().manual_seed(0))]
    assert float(unrelated_share(others, own, torch.full((4, 4), 0.25))) == pytest.approx(EXPECTED, abs=0.01), (
        "labels say nothing"
    )


def rare_class():
    """900 examples of two large classes, and 40 of a third one close to the second; one label each."""
    random = torch.Generator().manual_seed(0)
    truth = torch.arange(3).repeat_interleave(torch.tensor([500, 400, 40]))
    centers = torch.tensor([[4.0, 0, 0], [0, 4, 0], [0, 3.5, 2]])
    vectors = centers[truth] + 0.3 * torch.randn(940, 3, generator=random)
    return vectors, labels.draw(truth, transitions.uniform(3), 1, 0), truth


def test_neighbor_evidence_finds_a_rare_class():
    vectors, excluded, truth = rare_class()
    found = neighbor_evidence(vectors, excluded, transitions.uniform(3), 20)
    assert float((found.argmax(1) == truth)[truth == 2].double().mean()) > 0.95
    assert float((found.argmax(1) == truth).double().mean()) > 0.98
    shuffled = excluded[torch.randperm(940, generator=torch.Generator().manual_seed(1))]
    none = neighbor_evidence(vectors, shuffled, transitions.uniform(3), 20)
    assert float((none.argmax(1) == truth)[truth == 2].double().mean()) < 0.6, "labels of other examples say nothing"


def test_cluster_evidence_is_the_likelihood_of_the_labels_of_the_other_members(monkeypatch):
    random = torch.Generator().manual_seed(0)
    member = torch.randint(4, (60,), generator=random)
    vectors = torch.eye(4)[member] + 0.01 * torch.randn(60, 4, generator=random)  # clusters that k-means must find
    excluded, matrix = labels.draw(member % 3, transitions.uniform(3), 1, 0), transitions.uniform(3)
    monkeypatch.setattr(evidence, "UNRELATED", (0.4, 0.4))
    found, share = cluster_evidence(vectors, excluded, matrix, 15, 0), excluded.double().mean(0)
    for i in range(60):
        others = [j for j in range(60) if j != i and member[j] == member[i]]
        for k in range(3):
            wanted = sum(math.log(0.6 * matrix[k, label] + 0.4 * share[label]) for label in excluded[others].argmax(1))
            assert float(found[i, k]) == pytest.approx(wanted, abs=1e-3)


def test_cluster_evidence_finds_a_class_that_is_smaller_than_the_neighborhood():
    random = torch.Generator().manual_seed(0)
    truth = torch.arange(5).repeat_interleave(torch.tensor([500, 400, 300, 200, 40]))
    centers = 4 * torch.eye(5)
    centers[4] = torch.tensor([0, 0, 0, 3.5, 2.0])  # near the class before it
    vectors = centers[truth] + 0.3 * torch.randn(1440, 5, generator=random)
    excluded, matrix = labels.draw(truth, transitions.uniform(5), 1, 0), transitions.uniform(5)
    rare = truth == 4
    cluster, nearest = (
        cluster_evidence(vectors, excluded, matrix, 140, 0),
        neighbor_evidence(vectors, excluded, matrix, 70),
    )
    margin = [(e[rare, 4] - e[rare, :4].max(1).values).mean() for e in (cluster, nearest)]
    assert margin[0] > margin[1] + 1
    assert float((cluster.argmax(1) == truth)[rare].double().mean()) > 0.95
    assert float((cluster.argmax(1) == truth).double().mean()) > 0.95
    shuffled = excluded[torch.randperm(1440, generator=random)]
    none = cluster_evidence(vectors, shuffled, matrix, 140, 0)
    assert float((none.argmax(1) == truth)[rare].double().mean()) < 0.6, "labels of other examples say nothing"


def test_neighbor_evidence_of_many_examples_uses_some_of_them(monkeypatch):
    vectors, excluded, truth = rare_class()
    monkeypatch.setattr(evidence, "REFERENCES", 500)  # every second one
    found = neighbor_evidence(vectors, excluded, transitions.uniform(3), 15)
    assert float((found.argmax(1) == truth).double().mean()) > 0.95


def test_neighbors_are_evidence_in_self_training():
    config = Config.of(mix="none", epochs=2, batch=128, self_training=1)
    without, with_ = (build_trainer(config.with_(neighbors=count), "cpu") for count in (0, 10))
    first = build_trainer(config.with_(self_training=0), "cpu")
    first.run()
    first.model.load_state_dict(first.selected)
    vectors = first.features(first.task.train)
    assert vectors.shape == (len(without.memory), 500), "the hidden units of the MLP"
    wanted = neighbor_evidence(vectors, first.task.excluded, first.task.transition, 10)
    torch.testing.assert_close(with_.log_likelihood - without.log_likelihood, wanted, atol=1e-3, rtol=1e-3)
    assert torch.equal(with_.memory, without.memory)


def test_negative_number_of_neighbors_is_refused():
    with pytest.raises(UserError, match="-1") as caught:
        Config.of(neighbors=-1)
    assert caught.value.option == "neighbors"


def test_search_logs_the_estimated_share_of_unrelated_neighbors(caplog):
    vectors = torch.eye(4).repeat_interleave(50, 0)  # four tight clusters
    truth = torch.arange(4).repeat_interleave(50)
    matrix = transitions.uniform(4)
    excluded = labels.draw(truth, matrix, 1, 0)
    with caplog.at_level("INFO", "complementary"):
        neighbor_evidence(vectors, excluded, matrix, 20)
        neighbor_evidence(
            vectors, excluded[torch.randperm(200, generator=torch.Generator().manual_seed(0))], matrix, 20
        )
    pure, shuffled = (int(record.getMessage().split(" %")[0].split()[-1]) for record in caplog.records)
    assert pure == 30, "the least share that is assumed"
    assert shuffled > 60
