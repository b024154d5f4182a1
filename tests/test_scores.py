"""Scores: SCEL by its formula, estimates unbiased exactly and over many draws, accuracy by counting."""

import functools
import itertools
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, transitions
from complementary.errors import UserError
from complementary.oracle import same_class
from complementary.rng import generator
from complementary.scores import (
    Estimate,
    accuracy_interval,
    annotator_error_rates,
    balanced_accuracy_interval,
    class_accuracy,
    classes_differ_in_size,
    contradictions,
    estimated_accuracy,
    estimated_accuracy_error,
    estimated_same_class,
    recommend,
    scel,
    thirds,
    ure,
)
from tests.helpers import scattered_clusters

NAN = float("nan")

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
def test_estimated_accuracy_is_unbiased_exactly(matrix):
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


def test_estimated_accuracy_of_uniform_labels_has_a_closed_form():
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


def test_scores_of_a_better_classifier_are_better():
    truth = torch.arange(10).repeat(500)
    matrix = transitions.uniform(10)
    excluded = labels.draw(truth, matrix)
    noise = torch.randn(5000, 10, generator=generator(3, "l"))
    ladder = [strength * torch.nn.functional.one_hot(truth, 10) + noise for strength in (0, 2, 4)]
    for score, sign in ((scel, -1), (ure, -1), (estimated_accuracy, 1)):
        found = [sign * float(score(logits, excluded, matrix)) for logits in ladder]
        assert found == sorted(found)


@pytest.mark.parametrize("score", [ure, estimated_accuracy, estimated_accuracy_error])
@pytest.mark.parametrize("matrix", [torch.full((4, 4), 0.25), transitions.noisy(4, 0.25)], ids=["constant", "noisy"])
def test_scores_of_a_singular_matrix_are_nan(score, matrix):
    excluded = torch.eye(4)[[0, 1, 2, 3, 0, 1]]
    assert bool(torch.isnan(score(logits_for(4), excluded, matrix)))
    assert bool(torch.isfinite(score(logits_for(4), excluded, transitions.noisy(4, 0.2))))


@pytest.mark.parametrize("seed", range(3))
def test_contradictions_by_chance_are_those_of_all_permutations(seed):
    random = np.random.default_rng(seed)
    excluded, predicted = random.random((6, 3)) < 0.4, random.integers(0, 3, 6)
    counts = [excluded[np.arange(6), list(order)].sum() for order in itertools.permutations(predicted)]
    found = contradictions(torch.from_numpy(predicted), torch.from_numpy(excluded))
    assert found.found == excluded[np.arange(6), predicted].sum()
    assert found.expected == pytest.approx(np.mean(counts))
    assert found.z == pytest.approx((np.mean(counts) - found.found) / np.std(counts))


def test_contradictions_of_constant_predictions_say_nothing():
    excluded = torch.eye(4)[torch.arange(40) % 4]
    assert contradictions(torch.zeros(40, dtype=torch.long), excluded) == (10, 10.0, 0.0)


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


def test_thirds_without_test_examples_have_no_accuracy():
    accuracy, counts = torch.tensor([0.8, float("nan"), 0.6]), torch.tensor([9, 5, 1])
    assert thirds(accuracy.double(), counts) == pytest.approx({"head": 0.8, "middle": None, "tail": 0.6})
    assert set(thirds(torch.ones(2), torch.tensor([85, 15])).values()) == {None}, "two classes have no thirds"


@pytest.mark.parametrize(("classes", "sizes"), [(10, (4, 3, 3)), (20, (7, 7, 6)), (3, (1, 1, 1))])
def test_thirds_are_as_even_as_they_can_be(classes, sizes):
    found = thirds(torch.arange(float(classes)), torch.arange(classes).flip(0))
    edges = np.cumsum((0, *sizes))
    wanted = [np.arange(a, b).mean() for a, b in pairwise(edges)]
    np.testing.assert_allclose(list(found.values()), wanted)


def test_estimated_accuracy_error_covers_the_spread():
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


# --- accuracy with an interval ------------------------------------------------------------------------------------


def draw_predictions(count, classes, accuracy, matrix, seed, sizes=None, per_example=1):
    """(predicted [N], excluded [N, K]) of a classifier of known accuracy."""
    source = generator(seed, "interval")
    sizes = torch.ones(classes) if sizes is None else sizes
    truth = torch.multinomial(sizes / sizes.sum(), count, True, generator=source)
    right = torch.rand(count, generator=source) < torch.as_tensor(accuracy).expand(classes)[truth]
    wrong = (truth + torch.randint(1, classes, (count,), generator=source)) % classes
    return torch.where(right, truth, wrong), labels.draw(truth, matrix, per_example, seed=seed)


def test_accuracy_interval_of_uniform_labels_is_wilsons():
    """Wilson's interval for the share of contradictions; the upper end has a continuity correction."""
    for seed in range(5):
        predicted, excluded = draw_predictions(300, 6, 0.7, transitions.uniform(6), seed)
        n, z = 300, 1.959964
        share = float(excluded[torch.arange(n), predicted].double().mean())
        middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        found = accuracy_interval(predicted, excluded, transitions.uniform(6))
        assert found.value == pytest.approx(1 - 5 * share)
        assert found.low == pytest.approx(1 - 5 * (middle + half), abs=1e-9)
        assert 0 < found.high - (1 - 5 * (middle - half)) < 5 / n


@pytest.mark.parametrize(
    ("spec", "classes", "count", "accuracy", "per_example"),
    [
        ("uniform", 3, 60, 0.8, 1),
        ("biased:10", 10, 600, 0.9, 1),
        ("noisy:0.1", 4, 300, 0.7, 1),
        ("uniform", 6, 100, 0.8, 3),
    ],
    ids=["few", "biased", "noisy", "three labels"],
)
def test_accuracy_interval_covers(spec, classes, count, accuracy, per_example):
    matrix, covered = transitions.parse(spec, classes), 0
    known = labels.marginal(matrix, per_example)
    for seed in range(200):
        drawn = draw_predictions(count, classes, accuracy, matrix, seed, per_example=per_example)
        found = accuracy_interval(*drawn, known)
        covered += found.low <= accuracy <= found.high
    assert 182 <= covered <= 200, "95 % of 200, four standard deviations below"


@pytest.mark.parametrize("spec", ["uniform", "biased:5", "biased:20", "noisy:0.05", "designed:2"])
@pytest.mark.parametrize("accuracy", [0.95, 1.0])
def test_accuracy_interval_contains_its_value_and_covers_an_accuracy_near_one(spec, accuracy):
    """Few or no labels contradict the predictions, and the unbiased estimate is often above 1."""
    matrix, covered, given, above = transitions.parse(spec, 6), 0, 0, 0
    for seed in range(100):
        found = accuracy_interval(*draw_predictions(200, 6, accuracy, matrix, seed), matrix)
        assert found.reason or 0 <= found.low <= found.value <= found.high <= 1
        covered += found.low <= accuracy <= found.high
        given += not found.reason
        above += found.unbiased > 1
        assert found.reason or found.high - found.low > 0.005
        assert found.reason or found.value == min(1.0, max(0.0, found.unbiased))
    assert given >= 90
    assert covered >= 0.92 * given
    assert above > 0 or spec in ("uniform", "designed:2"), "their estimates are never above 1"


def test_accuracy_estimates_far_above_one_have_no_number():
    predicted, excluded = draw_predictions(3000, 4, 1.0, transitions.uniform(4), 0)
    found = accuracy_interval(predicted, excluded, transitions.noisy(4, 0.1))
    assert "does not fit the labels" in found.reason
    assert math.isnan(found.value)
    assert math.isnan(found.unbiased)


def test_balanced_accuracy_interval_covers_the_mean_over_classes():
    sizes, accuracy, covered, on_data = torch.tensor([6.0, 3, 2, 1]), torch.tensor([0.95, 0.8, 0.7, 0.4]), 0, 0
    for seed in range(60):
        drawn = draw_predictions(8000, 4, accuracy, transitions.uniform(4), seed, sizes)
        found = balanced_accuracy_interval(*drawn, transitions.uniform(4))
        covered += found.low <= float(accuracy.mean()) <= found.high
        on_data += accuracy_interval(*drawn, transitions.uniform(4)).low > float(accuracy.mean())
    assert covered >= 51
    assert on_data > 50, "the accuracy on the data is another quantity"


def test_balanced_accuracy_interval_is_narrower_with_more_labels_or_known_sizes():
    sizes, matrix = torch.tensor([6.0, 3, 2, 1]), transitions.uniform(4)
    drawn = draw_predictions(10_000, 4, 0.8, matrix, 0, sizes)
    _, further = draw_predictions(40_000, 4, 0.8, matrix, 1, sizes)
    found = [
        balanced_accuracy_interval(*drawn, matrix, **options)
        for options in ({}, {"further": further}, {"shares": sizes / sizes.sum()})
    ]
    assert found[0].error > found[1].error > found[2].error > 0


def test_balanced_accuracy_of_rare_classes_is_not_given():
    sizes = torch.tensor(transitions.decay(100, 10))
    drawn = draw_predictions(2000, 10, 0.8, transitions.uniform(10), 0, sizes)
    for shares in (None, sizes / sizes.sum()):
        found = balanced_accuracy_interval(*drawn, transitions.uniform(10), shares=shares)
        assert math.isnan(found.value)
        assert found.reason


def test_accuracy_intervals_without_information_give_a_reason():
    predicted, excluded = draw_predictions(500, 10, 0.9, transitions.uniform(10), 0)
    for interval in (accuracy_interval, balanced_accuracy_interval):
        found = interval(predicted, excluded, transitions.noisy(10, 0.1))
        assert math.isnan(found.value)
        assert "singular" in found.reason
    too_wide = accuracy_interval(predicted[:20], excluded[:20], transitions.uniform(10))
    assert math.isnan(too_wide.low)
    assert "points wide" in too_wide.reason


def test_accuracy_interval_is_wider_if_the_matrix_was_estimated():
    matrix, truth = transitions.biased(4, 3), torch.arange(4).repeat(400)
    predicted, excluded = draw_predictions(2000, 4, 0.9, matrix, 0)
    few, many = (
        transitions.estimate_transition(torch.eye(4)[t], labels.draw(t, matrix, seed=1))
        for t in (truth, truth.repeat(50))
    )
    widths = [accuracy_interval(predicted, excluded, matrix, e).error for e in (None, many, few)]
    assert widths[0] < widths[1] < 0.9 * widths[2]


def test_accuracy_interval_includes_the_error_of_the_matrix():
    """Over draws of the labels that the matrix is estimated from and of those that are evaluated."""
    matrix, truth, covered, ignoring = transitions.biased(4, 3), torch.arange(4).repeat(60), 0, 0
    for seed in range(60):
        estimate = transitions.estimate_transition(torch.eye(4)[truth], labels.draw(truth, matrix, seed=1000 + seed))
        drawn = draw_predictions(10_000, 4, 0.7, matrix, seed)
        found = accuracy_interval(*drawn, estimate.unshrunk, estimate)
        covered += found.low <= 0.7 <= found.high
        found = accuracy_interval(*drawn, estimate.unshrunk)
        ignoring += found.low <= 0.7 <= found.high
    assert covered >= 52
    assert ignoring < 46


def test_classes_differ_in_size_keeps_its_level_and_finds_tails():
    matrix = transitions.biased(5, 4)
    alarms = sum(
        classes_differ_in_size(
            labels.draw(torch.randint(5, (500,), generator=generator(s, "y")), matrix, seed=s), matrix
        )
        for s in range(200)
    )
    assert alarms <= 8, "1 % of 200"
    tail = torch.arange(5).repeat_interleave(torch.tensor([400, 200, 100, 50, 25]))
    assert classes_differ_in_size(labels.draw(tail, matrix), matrix)
    assert not classes_differ_in_size(labels.draw(tail, matrix), transitions.noisy(5, 0.2)), "singular"


@pytest.mark.parametrize("count", [3, 9])
def test_classes_differ_in_size_uses_several_labels_per_example(count):
    """The labels of an example share a weight, so they vary less than one label; 9 of 10 are a "yes" answer."""
    matrix, found = transitions.uniform(10), {}
    for share in (1.0, 2.0):
        weights = torch.tensor([share] + 9 * [1.0])
        truths = [torch.multinomial(weights, 1000, True, generator=generator(s, "y")) for s in range(100)]
        drawn = [labels.draw(truth, matrix, count, seed=s) for s, truth in enumerate(truths)]
        found[share] = sum(classes_differ_in_size(excluded, matrix, 0.05) for excluded in drawn)
    assert found[1.0] <= 12
    assert found[2.0] >= {3: 13, 9: 99}[count]


# --- clusters -------------------------------------------------------------------------------------------------------


TRUTH = torch.tensor([0, 0, 1, 2, 1])
HOME = torch.tensor([2, 2, 2, 0, 0])  # cluster 1 is empty


def label_sets(row, count):
    """Every set of ``count`` labels and its probability, if they are drawn from ``row`` one after the other."""
    chances = {}
    for order in itertools.permutations(range(len(row)), count):
        chance, left = 1.0, 1.0
        for k in order:
            chance, left = chance * row[k] / left, left - row[k]
            if chance == 0:
                break
        key = frozenset(order)
        chances[key] = chances.get(key, 0.0) + chance
    return {key: chance for key, chance in chances.items() if chance > 0}


@pytest.mark.parametrize(
    ("transition", "count"),
    [
        (transitions.uniform(3), 1),
        (transitions.biased(3, 5), 1),
        (transitions.noisy(3, 0.2), 1),
        (transitions.uniform(4), 2),
        (transitions.biased(4, 5), 2),
        (transitions.noisy(4, 0.1), 2),
    ],
    ids=["uniform", "biased", "noisy", "uniform, two", "biased, two", "noisy, two"],
)
def test_estimated_same_class_is_unbiased_exactly(transition, count):
    truth, home = TRUTH[: 6 - count], HOME[: 6 - count]  # with two labels, the last one is alone
    classes = len(transition)
    sets = [label_sets(row.tolist(), count) for row in transition]
    hot = {key: torch.eye(classes)[sorted(key)].sum(0) for found in sets for key in found}
    marginal = torch.stack([sum(p * hot[key].double() for key, p in found.items()) for found in sets]) / count
    torch.testing.assert_close(marginal, labels.marginal(transition, count), atol=0.015 * (count > 1) + 1e-9, rtol=0)
    mean = total = 0.0
    for drawn in itertools.product(*(sets[y].items() for y in truth.tolist())):
        chance = math.prod(p for _, p in drawn)
        estimate = estimated_same_class(home, torch.stack([hot[key] for key, _ in drawn]), marginal)
        mean, total = mean + chance * estimate.value, total + chance
    assert total == pytest.approx(1)
    assert mean == pytest.approx(same_class(home, truth), abs=1e-4)
    assert 0 < same_class(home, truth) < 1


@functools.cache
def many(spec, classes, count, clusters, draws=200):
    """(oracle, estimates [draws, 2]) over draws of the labels of 1,200 examples."""
    truth, home = scattered_clusters(1200, classes, clusters)
    transition = transitions.parse(spec, classes)
    known = labels.marginal(transition, count)
    drawn = (labels.draw(truth, transition, count, seed) for seed in range(draws))
    return same_class(home, truth), torch.tensor([estimated_same_class(home, excluded, known) for excluded in drawn])


CASES = [
    (spec, classes, count, clusters)
    for spec, classes, count in [
        ("uniform", 4, 1),
        ("uniform", 10, 1),
        ("biased:5", 5, 1),
        ("noisy:0.3", 10, 1),
        ("uniform", 10, 3),
        ("biased:3", 6, 2),
        ("noisy:0.1", 5, 2),
    ]
    for clusters in (20, 300, 600)
]


SLOW = [pytest.param(case, marks=pytest.mark.slow if case[-1] == 300 else ()) for case in CASES]


@pytest.mark.parametrize("case", SLOW, ids=str)
def test_estimated_same_class_is_unbiased_over_draws(case):
    oracle, found = many(*case)
    value = found[:, 0]
    assert abs(float(value.mean()) - oracle) < 3.5 * float(value.std()) / len(value) ** 0.5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_estimated_same_class_error_covers_the_spread(case):
    """Also for clusters of two or four members, where only the pairs of a cluster vary."""
    oracle, found = many(*case)
    value, error = found.T
    spread = float(value.std())  # known to 5 %
    assert 0.92 * spread < float(error.mean()) < 1.8 * spread
    assert float(((value - oracle).abs() < 2 * error).double().mean()) > 0.93


def test_estimated_same_class_of_unambiguous_labels_is_the_oracle():
    for classes, count in ((2, 1), (4, 3)):
        truth, home = scattered_clusters(300, classes, 12)
        excluded = labels.draw(truth, transitions.uniform(classes), count)
        known = transitions.uniform(classes)
        assert estimated_same_class(home, excluded, known).value == pytest.approx(same_class(home, truth), abs=1e-5)


def test_estimated_same_class_is_more_precise_with_more_examples():
    errors = []
    for count in (1000, 4000, 16_000):
        truth, home = scattered_clusters(count, 5, 25)
        errors.append(estimated_same_class(home, labels.draw(truth, transitions.uniform(5)), transitions.uniform(5)))
    assert errors[0].error > 1.6 * errors[1].error > 2.5 * errors[2].error


def test_estimated_same_class_ignores_lone_examples_and_empty_clusters():
    truth, home = scattered_clusters(400, 4, 10)
    excluded, known = labels.draw(truth, transitions.uniform(4)), transitions.uniform(4)
    whole = estimated_same_class(home, excluded, known)
    spread = estimated_same_class(3 * home + 2, excluded, known)
    assert spread == pytest.approx(whole)
    lone = torch.cat([home, torch.arange(20, 50)])
    more = torch.cat([excluded, labels.draw(torch.zeros(30, dtype=torch.long), known, seed=9)])
    assert estimated_same_class(lone, more, known) == pytest.approx(whole)


def test_estimated_same_class_does_not_depend_on_order_or_names():
    truth, home = scattered_clusters(400, 4, 10)
    excluded, known = labels.draw(truth, transitions.uniform(4)), transitions.uniform(4)
    order = torch.randperm(400, generator=generator(0, "order"))
    names = torch.randperm(10, generator=generator(0, "names"))
    found = estimated_same_class(names[home][order], excluded[order], known)
    assert found == pytest.approx(estimated_same_class(home, excluded, known))


def test_estimated_same_class_without_partners_is_nan():
    found = estimated_same_class(torch.arange(5), torch.eye(5), transitions.uniform(5))
    assert all(math.isnan(x) for x in found)


def test_estimated_same_class_of_uninformative_labels_is_nan():
    """A tenth of the labels wrong, 10 classes: every label is as likely whatever the class."""
    truth, home = scattered_clusters(1000, 10, 10)
    known = transitions.noisy(10, 0.1)
    assert all(math.isnan(x) for x in estimated_same_class(home, labels.draw(truth, known), known))


@pytest.mark.parametrize(
    ("estimates", "chosen"),
    [
        ({10: (0.5, 0.01), 20: (0.6, 0.01), 50: (0.61, 0.02)}, 20),
        ({50: (0.61, 0.02), 20: (0.6, 0.01), 10: (0.5, 0.01)}, 20),
        ({10: (0.5, 0.04), 20: (0.6, 0.01), 50: (0.61, 0.001)}, 50),
        ({10: (0.9, 0.0), 20: (0.86, 0.05)}, 10),
        ({10: (0.5, 0.03), 20: (0.5, 0.03)}, 10),
        ({30: (0.4, 0.01)}, 30),
        ({10: (NAN, NAN), 20: (0.6, 0.02), 50: (0.7, 0.01)}, 50),
        ({20: (-0.01, 0.02), 50: (-0.02, 0.02)}, 20),
        ({10: (NAN, NAN)}, None),
        ({}, None),
    ],
)
def test_recommend_is_the_smallest_within_an_error_of_the_best(estimates, chosen):
    assert recommend({k: Estimate(*e) for k, e in estimates.items()}) == chosen


# --- annotators -------------------------------------------------------------------------------------------------------


def answer_likelihoods(chosen, probabilities, transition):
    """Slow reference: likelihood of a set of classes if it is a right and if it is a wrong answer."""
    classes, size = len(probabilities), len(chosen)

    def weight(y, members):
        return math.prod(float(transition[y, k]) for k in members)

    right = wrong = 0.0
    for y in range(classes):
        others = [k for k in range(classes) if k != y]
        if y in chosen:
            total = sum(weight(y, members) for members in itertools.combinations(others, size - 1))
            wrong += float(probabilities[y]) * weight(y, [k for k in chosen if k != y]) / total
        else:
            total = sum(weight(y, members) for members in itertools.combinations(others, size))
            right += float(probabilities[y]) * weight(y, chosen) / total
    return right, wrong


@pytest.mark.parametrize("matrix", [transitions.uniform(5), transitions.biased(5, 8)], ids=["uniform", "biased"])
def test_annotator_error_rates_maximize_the_likelihood(matrix):
    source = generator(0, "answers")
    truth = torch.randint(5, (120,), generator=source)
    probabilities = torch.softmax(2 * torch.randn(120, 5, generator=source) + 3 * torch.eye(5)[truth], 1)
    excluded = torch.rand(120, 5, generator=source) < 0.35
    excluded[excluded.sum(1) % 5 == 0] = torch.tensor([True, True, True, True, False])  # "it is class 4"
    names = ["ann", "bob", "eve"] * 40
    found = annotator_error_rates(excluded, names, probabilities, matrix)
    grid = np.linspace(0.0005, 0.9995, 1000)
    for name in found:
        value = variance = 0.0
        for is_yes in (False, True):
            pairs = [
                answer_likelihoods(excluded[i].nonzero()[:, 0].tolist(), probabilities[i], matrix)
                for i in range(120)
                if names[i] == name and (int(excluded[i].sum()) == 4) == is_yes
            ]
            log_likelihood = sum(np.log((1 - grid) * right + grid * wrong) for right, wrong in pairs)
            value += grid[log_likelihood.argmax()] * len(pairs) / 40
            posterior = np.exp(log_likelihood - log_likelihood.max())
            mean = (grid * posterior).sum() / posterior.sum()
            variance += ((grid**2 * posterior).sum() / posterior.sum() - mean**2) * (len(pairs) / 40) ** 2
        assert found[name].value == pytest.approx(value, abs=0.001)
        assert found[name].error == pytest.approx(math.sqrt(variance), rel=0.25)
        assert found[name].answers == 40


@pytest.mark.parametrize("per_answer", [1, 3, 9])
def test_annotator_error_rates_find_the_rates_of_simulated_annotators(per_answer):
    rates, count, source = {"good": 0.0, "fair": 0.03, "bad": 0.25}, 1500, generator(1, "answers")
    answers, names, rows = [], [], []
    for name, rate in rates.items():
        truth = torch.randint(10, (count,), generator=source)
        logits = torch.randn(count, 10, generator=source) + 2.5 * torch.eye(10)[truth]
        rows.append(torch.softmax(2.5 * logits, 1))  # the posterior of these logits, so it is calibrated
        excluded = labels.draw(truth, transitions.uniform(10), per_answer, seed=len(names))
        wrong = torch.rand(count, generator=source) < rate
        place = torch.arange(count)[wrong]
        dropped = torch.multinomial(excluded[wrong].float(), 1, generator=source)[:, 0]
        excluded[place, dropped], excluded[place, truth[wrong]] = 0, 1
        answers.append(excluded)
        names += [name] * count
    found = annotator_error_rates(torch.cat(answers), names, torch.cat(rows), transitions.uniform(10))
    for name, rate in rates.items():
        assert abs(found[name].value - rate) < 3.5 * found[name].error
        assert found[name].error < 0.03
    assert found["bad"].value > found["fair"].value + found["fair"].error


def test_annotator_error_rates_hold_for_yes_and_no_questions():
    source, count = generator(2, "answers"), 4000
    truth = torch.randint(10, (count,), generator=source)
    logits = torch.randn(count, 10, generator=source) + 2.5 * torch.eye(10)[truth]
    asked = torch.randint(10, (count,), generator=source)
    yes = (asked == truth) != (torch.rand(count, generator=source) < 0.1)  # half of all yes answers are wrong
    one_hot = torch.eye(10, dtype=torch.uint8)[asked]
    excluded = torch.where(yes[:, None], 1 - one_hot, one_hot)
    probabilities = torch.softmax(2.5 * logits, 1)
    rate = annotator_error_rates(excluded, ["ann"] * count, probabilities, transitions.uniform(10))["ann"]
    assert abs(rate.value - 0.1) < 3.5 * rate.error
    assert rate.error < 0.02


def test_annotator_error_rates_of_a_useless_model_are_uncertain():
    excluded = labels.draw(torch.arange(300) % 10, transitions.uniform(10))
    found = annotator_error_rates(excluded, ["ann"] * 300, torch.full((300, 10), 0.1), transitions.uniform(10))
    assert found["ann"].error > 0.2


def test_annotator_error_rates_are_never_certain_and_check_lengths():
    certain = torch.eye(4)[[0, 1, 2, 3] * 5]
    excluded = torch.eye(4, dtype=torch.uint8)[[1, 2, 3, 0] * 5]
    rate = annotator_error_rates(excluded, ["ann"] * 20, certain, transitions.uniform(4))["ann"]
    assert rate.value == pytest.approx(0, abs=1e-6)
    assert 0.02 < rate.error < 0.1
    wrong = annotator_error_rates(certain, ["ann"] * 20, certain, transitions.uniform(4))["ann"]
    assert wrong.value == pytest.approx(1, abs=1e-6)
    cyclic = torch.eye(4).roll(1, 1)  # each class has a single possible label
    assert annotator_error_rates(excluded, ["ann"] * 20, certain, cyclic)["ann"].value == pytest.approx(0, abs=1e-6)
    assert annotator_error_rates(excluded[:0], [], certain[:0], cyclic) == {}
    with pytest.raises(UserError, match="20 answers, 19 annotators"):
        annotator_error_rates(excluded, ["ann"] * 19, certain, transitions.uniform(4))
