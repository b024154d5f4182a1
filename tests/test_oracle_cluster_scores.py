"""The truth-free score against the oracle: exactly, over all draws of a tiny set, and over many of a larger one."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics.cluster import contingency_matrix

from complementary import labels, transitions
from complementary.oracle import Estimate, contingency, estimated_same_class, purity, recommend, same_class
from complementary.rng import generator

NAN = float("nan")
TRUTH = torch.tensor([0, 0, 1, 2, 1])
HOME = torch.tensor([2, 2, 2, 0, 0])  # cluster 1 is empty


def slow_same_class(assignment, truth):
    """The chance that a random partner is of the own class, averaged over everyone who has one."""
    rates = []
    for i in range(len(truth)):
        others = [j for j in range(len(truth)) if j != i and assignment[i] == assignment[j]]
        if others:
            rates.append(np.mean([float(truth[i] == truth[j]) for j in others]))
    return float(np.mean(rates)) if rates else NAN


def scattered(count, classes, clusters, seed=0, shuffled=0.3):
    """Truth and an assignment that follows it but for a share of the examples: (int [N], int [N])."""
    source = generator(seed, "scattered")
    truth = torch.randint(classes, (count,), generator=source)
    own = (truth + classes * torch.randint(max(1, clusters // classes), (count,), generator=source)) % clusters
    anywhere = torch.randint(clusters, (count,), generator=source)
    return truth, torch.where(torch.rand(count, generator=source) < shuffled, anywhere, own)


# --- without truth ------------------------------------------------------------------------------------


def label_sets(row, count):
    """Every set of ``count`` labels and its chance, when they are drawn from ``row`` one after the other."""
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
def test_the_mean_over_all_possible_labels_is_the_oracle(transition, count):
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
    truth, home = scattered(1200, classes, clusters)
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_over_draws_of_the_labels_the_estimate_is_right_on_average(case):
    oracle, found = many(*case)
    value = found[:, 0]
    assert abs(float(value.mean()) - oracle) < 3.5 * float(value.std()) / len(value) ** 0.5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_at_least_the_spread_over_draws_and_at_most_twice_that(case):
    """Also where clusters have two or four members: there the pairs of a cluster are all that varies."""
    oracle, found = many(*case)
    value, error = found.T
    spread = float(value.std())  # known to 5 %
    assert 0.92 * spread < float(error.mean()) < 1.8 * spread
    assert float(((value - oracle).abs() < 2 * error).double().mean()) > 0.93


def test_labels_that_leave_no_doubt_give_the_oracle_itself():
    for classes, count in ((2, 1), (4, 3)):
        truth, home = scattered(300, classes, 12)
        excluded = labels.draw(truth, transitions.uniform(classes), count)
        known = transitions.uniform(classes)
        assert estimated_same_class(home, excluded, known).value == pytest.approx(same_class(home, truth), abs=1e-5)


def test_more_examples_make_it_sharper():
    errors = []
    for count in (1000, 4000, 16_000):
        truth, home = scattered(count, 5, 25)
        errors.append(estimated_same_class(home, labels.draw(truth, transitions.uniform(5)), transitions.uniform(5)))
    assert errors[0].error > 1.6 * errors[1].error > 2.5 * errors[2].error


def test_examples_alone_and_empty_clusters_do_not_count():
    truth, home = scattered(400, 4, 10)
    excluded, known = labels.draw(truth, transitions.uniform(4)), transitions.uniform(4)
    whole = estimated_same_class(home, excluded, known)
    spread = estimated_same_class(3 * home + 2, excluded, known)
    assert spread == pytest.approx(whole)
    lone = torch.cat([home, torch.arange(20, 50)])
    more = torch.cat([excluded, labels.draw(torch.zeros(30, dtype=torch.long), known, seed=9)])
    assert estimated_same_class(lone, more, known) == pytest.approx(whole)


def test_the_order_of_examples_and_the_names_of_clusters_do_not_matter():
    truth, home = scattered(400, 4, 10)
    excluded, known = labels.draw(truth, transitions.uniform(4)), transitions.uniform(4)
    order = torch.randperm(400, generator=generator(0, "order"))
    names = torch.randperm(10, generator=generator(0, "names"))
    found = estimated_same_class(names[home][order], excluded[order], known)
    assert found == pytest.approx(estimated_same_class(home, excluded, known))


def test_nobody_with_a_partner_is_nan_not_a_number_from_nowhere():
    found = estimated_same_class(torch.arange(5), torch.eye(5), transitions.uniform(5))
    assert all(math.isnan(x) for x in found)


def test_labels_that_tell_nothing_are_nan_and_not_a_sure_tenth():
    """A tenth of the labels wrong, 10 classes: every label is as likely whatever the class."""
    truth, home = scattered(1000, 10, 10)
    known = transitions.noisy(10, 0.1)
    assert all(math.isnan(x) for x in estimated_same_class(home, labels.draw(truth, known), known))


# --- oracles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [1, 3, 30, 90])
@pytest.mark.parametrize("seed", range(3))
def test_same_class_is_a_count_over_pairs(clusters, seed):
    truth, home = scattered(60, 4, clusters, seed)
    assert same_class(home, truth) == pytest.approx(slow_same_class(home, truth))
    assert same_class(5 * home + 3, truth) == pytest.approx(slow_same_class(home, truth))


def test_same_class_by_hand():
    assert same_class(HOME, TRUTH) == pytest.approx((0.5 + 0.5 + 0 + 0 + 0) / 5)
    assert same_class(torch.tensor([0, 0, 7]), torch.tensor([1, 1, 1])) == 1
    assert math.isnan(same_class(torch.arange(4), torch.zeros(4, dtype=torch.long)))


@pytest.mark.parametrize("clusters", [1, 7, 200])
def test_contingency_and_purity_are_scikit_learns(clusters):
    truth, home = scattered(300, 5, clusters)
    table = contingency_matrix(home.numpy(), truth.numpy())
    found = contingency(2 * home + 1, truth)  # every other cluster is empty
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found[found.sum(1) > 0].numpy(), table)
    assert int(found.sum()) == 300
    assert purity(2 * home + 1, truth) == pytest.approx(table.max(1).sum() / 300)


def test_purity_of_clusters_of_one_is_perfect():
    assert purity(torch.arange(9), torch.arange(9) % 2) == 1
    assert purity(torch.zeros(9, dtype=torch.long), torch.arange(9) % 2) == pytest.approx(5 / 9)


# --- which number -------------------------------------------------------------------------------------


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
def test_recommended_is_the_smallest_within_an_error_of_the_best(estimates, chosen):
    assert recommend({k: Estimate(*e) for k, e in estimates.items()}) == chosen
