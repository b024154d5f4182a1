"""Spectral embedding against its definition and against scikit-learn, and clusters that k-means alone does not find."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_moons
from sklearn.manifold import spectral_embedding
from torch import Tensor

import complementary.clusters.spectral as module
from complementary import data
from complementary.clusters.kmeans import kmeans
from complementary.clusters.spectral import leading, nearest, spectral
from complementary.oracle import same_class


def on_sphere(plane: Tensor) -> Tensor:
    """Points of a plane [N, 2] as unit vectors [N, 3]."""
    return F.normalize(torch.cat([plane, torch.full((len(plane), 1), 3.0)], 1))


def two_moons(count: int = 600) -> tuple[Tensor, Tensor]:
    plane, truth = make_moons(count, noise=0.05, random_state=0)
    return on_sphere(torch.tensor(plane, dtype=torch.float32)), torch.tensor(truth)


def matrix_by_hand(points: Tensor, neighbors: int) -> np.ndarray:
    """D^-1/2 (W + W') D^-1/2 by loops over the definition."""
    x = points.double().numpy()
    weight = np.zeros((len(x), len(x)))
    for i in range(len(x)):
        similarity = x @ x[i]
        similarity[i] = -np.inf
        for j in np.argsort(-similarity)[:neighbors]:
            weight[i, j] = similarity[j]
    both = weight + weight.T
    scale = 1 / np.sqrt(both.sum(1))
    return both * scale[:, None] * scale[None, :]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 8), st.integers(1, 7), st.integers(0, 5))
def test_nearest_equals_a_full_sort(count: int, wanted: int, rows: int, seed: int) -> None:
    wanted = min(wanted, count - 1)
    points = F.normalize(torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)))
    cells, module.CELLS = module.CELLS, rows * count  # a few rows at a time
    try:
        similarity, index = nearest(points, wanted)
    finally:
        module.CELLS = cells
    full = points @ points.T
    full.fill_diagonal_(-2)
    torch.testing.assert_close(similarity, full.sort(1, descending=True).values[:, :wanted])
    assert not (index == torch.arange(count)[:, None]).any()
    torch.testing.assert_close(full.gather(1, index), similarity)


@pytest.mark.parametrize("dense", [2_000, 0])
def test_spectral_spans_the_leading_eigenspace(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENSE", dense)  # the whole matrix, and LOBPCG on the sparse one
    points, _ = two_moons(300)
    matrix = matrix_by_hand(points, 10)
    values, vectors = np.linalg.eigh(matrix)
    wanted = vectors[:, ::-1][:, :6]
    assert values[-6] - values[-7] > 1e-4  # a gap after the sixth
    found = spectral(points, dimensions=6, neighbors=10).double().numpy()
    torch.testing.assert_close(torch.tensor(found).norm(dim=1), torch.ones(300).double())
    # Rows are scaled to unit length; up to that, and a rotation, both are the same. Compare the cosines of rows.
    rows = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.abs(found @ found.T - rows @ rows.T).max() < 0.02


@pytest.mark.slow
def test_spectral_sparse_solver_finds_all_30_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.Generator().manual_seed(0)
    centers, home = torch.randn(30, 24, generator=source), torch.arange(1_800) % 30
    points = F.normalize(centers[home] + 0.7 * torch.randn(1_800, 24, generator=source))
    dense = spectral(points)
    monkeypatch.setattr(module, "DENSE", 0)
    sparse = spectral(points)
    assert sparse.shape == (1_800, 30)
    assert float((dense @ dense.T - sparse @ sparse.T).abs().mean()) < 0.01


def test_spectral_reports_progress() -> None:
    done: list[int] = []
    points, _ = two_moons(400)
    spectral(points, progress=done.append)
    assert done[-1] == 400


def test_spectral_clusters_separate_two_moons() -> None:
    points, truth = two_moons()
    plain = kmeans(points, 2).assignment
    linked = kmeans(leading(spectral(points), 2), 2).assignment
    assert same_class(plain, truth) < 0.75
    assert same_class(linked, truth) > 0.98


def test_spectral_clusters_match_those_of_scikit_learn() -> None:
    digits = data.load("digits").train
    points, truth = F.normalize(digits.inputs.flatten(1).float()), digits.truth
    assert truth is not None
    affinity = torch.zeros(len(points), len(points))
    similarity, index = nearest(points, 20)
    affinity.scatter_(1, index, similarity)
    oracle = spectral_embedding((affinity + affinity.T).numpy(), n_components=10, random_state=0, drop_first=False)
    theirs = kmeans(F.normalize(torch.tensor(oracle.copy()).float()), 10).assignment
    ours = kmeans(leading(spectral(points), 10), 10).assignment
    plain = kmeans(points, 10).assignment
    assert abs(same_class(ours, truth) - same_class(theirs, truth)) < 0.05
    assert same_class(ours, truth) > same_class(plain, truth)


def test_spectral_is_deterministic_and_independent_of_order() -> None:
    source = torch.Generator().manual_seed(0)
    centers, home = torch.randn(8, 16, generator=source), torch.arange(2_400) % 8
    points = F.normalize(centers[home] + 0.9 * torch.randn(2_400, 16, generator=source))  # the sparse way
    first = spectral(points, 8)
    torch.testing.assert_close(first, spectral(points, 8), rtol=0, atol=0)
    order = torch.randperm(len(points), generator=source)
    shuffled = spectral(points[order], 8)
    difference = ((first[order] @ first[order].T) - (shuffled @ shuffled.T)).abs()
    assert float(difference.mean()) < 0.01


@pytest.mark.parametrize("count", [1, 2, 3, 15])
def test_spectral_of_few_points(count: int) -> None:
    points = F.normalize(torch.randn(count, 5, generator=torch.Generator().manual_seed(1)))
    vectors = spectral(points)
    assert vectors.shape[0] == count
    assert bool(torch.isfinite(vectors).all())


def test_spectral_of_isolated_points_is_finite() -> None:
    points = torch.cat([torch.eye(40), -torch.eye(40)])
    assert bool(torch.isfinite(spectral(points)).all())


@pytest.mark.gpu
def test_spectral_on_a_gpu_separates_two_moons() -> None:
    points, truth = two_moons(3_000)
    vectors = spectral(points.cuda(), 4).cpu()
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3_000))
    assert same_class(kmeans(leading(vectors, 2), 2).assignment, truth) > 0.98
