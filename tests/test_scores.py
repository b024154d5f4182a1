"""Scores: SCEL by its formula, URE unbiased exactly, accuracy by counting."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, transitions
from complementary.rng import generator
from complementary.scores import class_accuracy, estimated_accuracy, estimated_accuracy_error, scel, thirds, ure

MATRICES = {
    "uniform": transitions.uniform(5),
    "biased": transitions.biased(5, 10),
    "noisy": transitions.noisy(5, 0.1),
    "two classes": transitions.uniform(2),
    "random": transitions.check_transition(
        torch.rand(7, 7, generator=generator(0, "T")).softmax(1) * 0.3 + 0.7 * torch.eye(7).roll(2, 1)
    ),
}


def logits_for(classes, count=6):
    return 2 * torch.randn(count, classes, generator=generator(1, "logits"))


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_ure_is_unbiased_exactly(matrix):
    """Summed over all complementary labels, weighted by their chance, it *is* the cross-entropy on the truth."""
    classes = len(matrix)
    logits = logits_for(classes)
    for truth in range(classes):
        mean = sum(
            float(matrix[truth, k]) * float(ure(logits, torch.eye(classes)[k].expand(6, -1), matrix))
            for k in range(classes)
        )
        wanted = torch.nn.functional.cross_entropy(logits.double(), torch.full((6,), truth))
        assert mean == pytest.approx(float(wanted), rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_the_estimated_accuracy_is_unbiased_exactly(matrix):
    classes = len(matrix)
    logits = logits_for(classes)
    for truth in range(classes):
        mean = sum(
            float(matrix[truth, k]) * float(estimated_accuracy(logits, torch.eye(classes)[k].expand(6, -1), matrix))
            for k in range(classes)
        )
        assert mean == pytest.approx(float((logits.argmax(1) == truth).double().mean()), abs=1e-4)


@pytest.mark.parametrize("per_example", [2, 3])
def test_scores_of_several_labels_are_unbiased_with_the_marginal_matrix(per_example):
    truth = torch.arange(5).repeat(8000)
    matrix = transitions.biased(5, 3)
    excluded = labels.draw(truth, matrix, per_example, seed=5)
    logits = torch.nn.functional.one_hot(truth, 5) + torch.randn(40_000, 5, generator=generator(2, "l"))
    seen = labels.marginal(matrix, per_example)
    wanted = torch.nn.functional.cross_entropy(logits, truth)
    assert float(ure(logits, excluded, seen)) == pytest.approx(float(wanted), abs=0.1)
    accuracy = (logits.argmax(1) == truth).float().mean()
    assert float(estimated_accuracy(logits, excluded, seen)) == pytest.approx(float(accuracy), abs=0.04)


def test_for_uniform_labels_the_estimate_is_one_minus_k_minus_one_times_the_hits():
    logits = logits_for(4, 50)
    excluded = labels.to_excluded(torch.arange(50) % 4)
    hits = float((logits.argmax(1) == torch.arange(50) % 4).double().mean())
    assert float(estimated_accuracy(logits, excluded, transitions.uniform(4))) == pytest.approx(1 - 3 * hits, abs=1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 8), st.integers(0, 99), st.data())
def test_scel_is_its_formula(classes, seed, data):
    per_example = data.draw(st.integers(1, classes - 1))
    matrix = transitions.biased(classes, 6)
    logits = 3 * torch.randn(7, classes, generator=generator(seed, "s"))
    excluded = labels.draw(torch.arange(7) % classes, matrix, per_example, seed)
    total = 0.0
    for row, t in zip(logits.double().tolist(), excluded.tolist(), strict=True):
        parts = [math.exp(v) for v in row]
        p = [v / sum(parts) for v in parts]
        predicted = [sum(p[y] * float(matrix[y, k]) for y in range(classes)) for k in range(classes)]
        named = [k for k in range(classes) if t[k]]
        total -= sum(math.log(predicted[k] + 1e-6) for k in named) / len(named)
    assert float(scel(logits, excluded, matrix)) == pytest.approx(total / 7, rel=1e-4)


@pytest.mark.parametrize("score", [scel, ure, estimated_accuracy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_are_finite_scalars_at_huge_logits(score, dtype):
    logits = torch.tensor([[1e4, -1e4, 0], [-1e4, 1e4, 1e4], [0, 0, 0]]).to(dtype)
    found = score(logits, torch.eye(3), transitions.uniform(3))
    assert found.shape == ()
    assert found.dtype == torch.float32
    assert bool(torch.isfinite(found))


@pytest.mark.parametrize("score", [scel, ure, estimated_accuracy])
def test_scores_do_not_depend_on_autocast_nor_on_the_matrix_type(score):
    logits, excluded, matrix = logits_for(5), torch.eye(5)[[0, 1, 2, 3, 4, 0]], MATRICES["biased"]
    wanted = score(logits, excluded, matrix)
    torch.testing.assert_close(score(logits, excluded.to(torch.uint8), matrix.float()), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        inside = score(logits, excluded, matrix)
    torch.testing.assert_close(inside, wanted, rtol=1e-5, atol=1e-6)


def test_a_better_classifier_scores_better():
    truth = torch.arange(10).repeat(500)
    matrix = transitions.uniform(10)
    excluded = labels.draw(truth, matrix)
    noise = torch.randn(5000, 10, generator=generator(3, "l"))
    ladder = [strength * torch.nn.functional.one_hot(truth, 10) + noise for strength in (0, 2, 4)]
    for score, sign in ((scel, -1), (ure, -1), (estimated_accuracy, 1)):
        found = [sign * float(score(logits, excluded, matrix)) for logits in ladder]
        assert found == sorted(found)


def test_a_singular_matrix_still_gives_finite_scores():
    matrix = torch.full((4, 4), 0.25, dtype=torch.float64)
    assert bool(torch.isfinite(ure(logits_for(4), torch.eye(4)[[0, 1, 2, 3, 0, 1]], matrix)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_class_accuracy_is_a_count(pairs):
    predicted, truth = (torch.tensor(v) for v in zip(*pairs, strict=True))
    found = class_accuracy(predicted, truth, 5)
    for k in range(5):
        hits = [p == t for p, t in pairs if t == k]
        assert math.isnan(found[k]) if not hits else float(found[k]) == sum(hits) / len(hits)


def test_thirds_sort_classes_by_size_and_leave_out_empty_ones():
    accuracy = torch.tensor([0.1, 0.9, 0.5, float("nan"), 0.3, 0.7], dtype=torch.float64)
    counts = torch.tensor([5, 100, 50, 1, 7, 60])
    found = thirds(accuracy, counts)
    assert list(found) == ["head", "middle", "tail"]
    np.testing.assert_allclose(list(found.values()), [0.8, 0.4, 0.1])


@pytest.mark.parametrize(("classes", "sizes"), [(10, (4, 3, 3)), (20, (7, 7, 6)), (3, (1, 1, 1))])
def test_thirds_are_as_even_as_they_can_be(classes, sizes):
    found = thirds(torch.arange(float(classes)), torch.arange(classes).flip(0))
    edges = np.cumsum((0, *sizes))
    wanted = [np.arange(a, b).mean() for a, b in pairwise(edges)]
    np.testing.assert_allclose(list(found.values()), wanted)


def test_the_error_of_the_estimated_accuracy_covers_its_spread():
    """Over many draws of labels the reported error is about the standard deviation, and never zero."""
    classes, count = 5, 400
    transition = transitions.uniform(classes)
    truth = torch.arange(count) % classes
    right = torch.nn.functional.one_hot(truth, classes).float()
    logits = torch.where(torch.arange(count)[:, None] % 4 == 0, right.roll(1, 1), right)  # three quarters are right
    draws = [labels.draw(truth, transition, seed=s) for s in range(200)]
    values = torch.stack([estimated_accuracy(logits, e, transition) for e in draws])
    errors = torch.stack([estimated_accuracy_error(logits, e, transition) for e in draws])
    assert float(values.mean()) == pytest.approx(0.75, abs=0.02)
    assert float(values.std()) <= float(errors.mean()) <= 1.5 * float(values.std())
    assert float(estimated_accuracy_error(right, draws[0], transition)) > 0
