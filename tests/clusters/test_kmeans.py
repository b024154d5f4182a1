"""k-means against that of scikit-learn; determined by the seed, no empty cluster, bounded memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from complementary.clusters import kmeans
from complementary.errors import UserError
from complementary.rng import generator


def blobs(count, dimensions, centers, spread, seed):
    source = generator(seed, "blobs")
    middle = torch.randn(centers, dimensions, generator=source)
    return middle[torch.arange(count) % centers] + spread * torch.randn(count, dimensions, generator=source)


DIGITS = torch.from_numpy(load_digits().data).float()
CASES = {
    "digits": (DIGITS, 10),
    "digits-50": (DIGITS, 50),
    "unit-vectors": (torch.nn.functional.normalize(blobs(1500, 32, 20, 0.5, 0)), 20),
    "no structure": (torch.rand(800, 2, generator=generator(0, "flat")), 12),
}


@pytest.mark.parametrize(("points", "clusters"), CASES.values(), ids=CASES)
def test_kmeans_inertia_is_within_1_percent_of_scikit_learn(points, clusters):
    ours = kmeans.kmeans(points, clusters, seed=1126)
    theirs = KMeans(clusters, init="k-means++", n_init=10, random_state=1126).fit(points.double().numpy())
    assert ours.inertia <= 1.01 * theirs.inertia_
    assert ours.inertia >= 0.97 * theirs.inertia_
    assert len(ours.assignment.unique()) == clusters


@pytest.mark.parametrize(("points", "clusters"), CASES.values(), ids=CASES)
def test_kmeans_result_is_a_fixed_point_with_its_inertia(points, clusters):
    assignment, centers, inertia = kmeans.kmeans(points, clusters, restarts=2)
    exact = torch.cdist(points.double(), centers.double()).square()
    assert torch.equal(exact.argmin(1), assignment)
    assert inertia == pytest.approx(float(exact.min(1).values.sum()), rel=1e-4)
    means = torch.stack([points[assignment == k].double().mean(0) for k in range(clusters)])
    torch.testing.assert_close(centers.double(), means, atol=1e-4, rtol=1e-4)
    assert assignment.dtype == torch.int64
    assert centers.shape == (clusters, points.shape[1])


def test_kmeans_finds_separated_blobs_exactly():
    points = blobs(600, 8, 6, 0.01, 3)
    found = kmeans.kmeans(points, 6).assignment
    truth = torch.arange(600) % 6
    assert len({(int(a), int(b)) for a, b in zip(found, truth, strict=True)}) == 6


@pytest.mark.parametrize("offset", [1e2, 1e4])
def test_kmeans_does_not_depend_on_the_origin(offset):
    """Distances are differences: points around 10,000 have the same clusters as points around 0."""
    points = blobs(500, 2, 8, 0.2, 5)
    here, there = kmeans.kmeans(points, 8), kmeans.kmeans(points + offset, 8)
    assert there.inertia == pytest.approx(here.inertia, rel=0.01)


def test_kmeans_depends_on_the_seed_and_not_on_the_global_generator():
    points = CASES["no structure"][0]
    before = torch.random.get_rng_state()
    first, again, other = (kmeans.kmeans(points, 12, seed=s, restarts=1) for s in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.assignment, again.assignment)
    assert torch.equal(first.centers, again.centers)
    assert not torch.equal(first.assignment, other.assignment)


def test_kmeans_with_more_restarts_is_never_worse():
    points = CASES["no structure"][0]
    inertia = [kmeans.kmeans(points, 12, restarts=r).inertia for r in (1, 3, 8)]
    assert inertia == sorted(inertia, reverse=True)


def test_assign_in_chunks_is_the_same(monkeypatch):
    points, centers = DIGITS[:500], DIGITS[500:520]
    whole = kmeans.assign(points, centers)
    monkeypatch.setattr(kmeans, "CHUNK", 64)
    parts = kmeans.assign(points, centers)
    assert torch.equal(whole[0], parts[0])
    torch.testing.assert_close(whole[1], parts[1])
    exact = torch.cdist(points.double(), centers.double()).square().min(1).values
    torch.testing.assert_close(whole[1].double(), exact, rtol=1e-4, atol=1e-2)


def test_kmeans_moves_an_empty_cluster_to_the_farthest_point():
    points = torch.tensor([[0.0], [0.1], [10.0], [10.2], [30.0]])
    start = torch.tensor([[0.0], [10.0], [1000.0]])
    found = kmeans._lloyd(points, points.square().sum(1), start, 50)
    assert sorted(found.centers[:, 0].tolist()) == pytest.approx([0.05, 10.1, 30.0])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 99), st.data())
def test_kmeans_of_any_shape_is_valid(count, dimensions, seed, data):
    clusters = data.draw(st.integers(1, count))
    points = torch.randn(count, dimensions, generator=generator(seed, "any"))
    found = kmeans.kmeans(points, clusters, seed, restarts=1)
    assert bool(((found.assignment >= 0) & (found.assignment < clusters)).all())
    assert np.isfinite(found.inertia)
    assert bool(torch.isfinite(found.centers).all())
    if clusters == 1:
        torch.testing.assert_close(found.centers[0], points.mean(0), atol=1e-5, rtol=1e-5)
    if clusters == count:
        assert found.inertia == pytest.approx(0, abs=1e-3)


def test_kmeans_of_identical_points():
    found = kmeans.kmeans(torch.ones(10, 3), 4)
    assert found.inertia == pytest.approx(0, abs=1e-5)
    torch.testing.assert_close(found.centers, torch.ones(4, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8], ids=str)
def test_kmeans_computes_in_float32(dtype):
    found = kmeans.kmeans(DIGITS[:200].to(dtype), 5, restarts=1)
    assert found.centers.dtype == torch.float32
    assert torch.equal(found.assignment, kmeans.kmeans(DIGITS[:200], 5, restarts=1).assignment)


@pytest.mark.parametrize(
    ("points", "clusters", "options", "message"),
    [
        (torch.zeros(3, 2), 4, {}, "clusters is 4.*3 points"),
        (torch.zeros(3, 2), 0, {}, "clusters is 0"),
        (torch.zeros(0, 2), 1, {}, "there are 0 points"),
        (torch.tensor([[0.0], [float("nan")]]), 1, {}, "NaN or infinity"),
        (torch.tensor([[0.0], [float("inf")]]), 1, {}, "NaN or infinity"),
        (torch.zeros(3, 2), 2, {"restarts": 0}, "(?i)restarts.*0"),
    ],
)
def test_kmeans_rejects_bad_input(points, clusters, options, message):
    with pytest.raises(UserError, match=message):
        kmeans.kmeans(points, clusters, **options)


# --- two stages -----------------------------------------------------------------------------------


@pytest.fixture
def staged(monkeypatch):
    """The second stage with far fewer points than in practice."""
    for name, value in (("LARGE", 2000), ("SAMPLE", 1500), ("PER_CLUSTER", 10), ("CHUNK", 700)):
        monkeypatch.setattr(kmeans, name, value)


def test_kmeans_in_two_stages_is_nearly_as_good_as_on_all_points(staged, monkeypatch):
    points = torch.nn.functional.normalize(blobs(8000, 16, 30, 0.4, 5))
    assert kmeans.is_sampled(len(points), 20)
    staged_result = kmeans.kmeans(points, 20, restarts=3)
    monkeypatch.setattr(kmeans, "LARGE", 10**9)
    assert not kmeans.is_sampled(len(points), 20)
    assert staged_result.inertia <= 1.02 * kmeans.kmeans(points, 20, restarts=3).inertia
    exact = torch.cdist(points.double(), staged_result.centers.double()).square()
    assert torch.equal(exact.argmin(1), staged_result.assignment)
    assert staged_result.inertia == pytest.approx(float(exact.min(1).values.sum()), rel=1e-4)


def test_kmeans_in_two_stages_is_determined_by_the_seed(staged):
    points = blobs(3000, 4, 10, 0.5, 1) + 1000  # far from the origin
    a, b, c = (kmeans.kmeans(points, 8, seed).assignment for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_kmeans_in_two_stages_keeps_an_empty_cluster(staged):
    """Points that repeat: a center of the sample may lose all its points."""
    points = blobs(6, 3, 6, 0.0, 2)[torch.arange(3000) % 6]
    found = kmeans.kmeans(points, 6)
    assert bool(torch.isfinite(found.centers).all())
    assert found.inertia == pytest.approx(0, abs=1e-3)


def test_kmeans_of_fewer_points_has_one_stage():
    assert not kmeans.is_sampled(kmeans.LARGE, 50)
    assert kmeans.is_sampled(kmeans.LARGE + 1, 50)
    assert not kmeans.is_sampled(kmeans.LARGE + 1, kmeans.LARGE // 100)  # the sample would be most of the points
