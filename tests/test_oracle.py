"""Metrics with true labels, each against a slow count, scikit-learn or a number that is known."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.cluster import contingency_matrix
from sklearn.neighbors import KNeighborsClassifier

from complementary import data, labels, mixing, transitions
from complementary.clusters.kmeans import kmeans
from complementary.errors import UserError
from complementary.long_tail import class_sizes
from complementary.mixing import ICM, MICM, ExtraClass, IntraClass, Mixup, SameExcluded
from complementary.oracle import (
    contingency,
    empirical_transition,
    expected_noise_ratio,
    is_noisy,
    knn_accuracy,
    linear_accuracy,
    noise_ratio,
    noise_ratio_as_coded,
    noisy_share,
    purity,
    same_class,
)
from complementary.rng import generator
from tests.helpers import scattered_clusters

NAN = float("nan")


# --- noise of mixing ------------------------------------------------------------------------------------------------


def tail(ratio, head=5000):
    return torch.arange(10).repeat_interleave(torch.tensor(class_sizes(head, ratio, 10)))


def slow_is_noisy(row, truth, excluded):
    return any(int(excluded[i, truth[j]]) == 1 for a, i in enumerate(row) for b, j in enumerate(row) if a != b)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 3), st.integers(0, 999))
def test_is_noisy_if_a_label_names_the_class_of_another_member(classes, size, per_example, seed):
    source = generator(seed, "n")
    truth = torch.randint(classes, (12,), generator=source)
    excluded = labels.draw(truth, transitions.noisy(classes, 0.2), min(per_example, classes - 1), seed)
    members = torch.randint(12, (20, size), generator=source)
    wanted = [slow_is_noisy(row, truth.tolist(), excluded) for row in members.tolist()]
    assert is_noisy(members, truth, excluded).tolist() == wanted


def test_is_noisy_of_three_members_has_six_conditions():
    truth = torch.tensor([0, 1, 2])
    members = torch.tensor([[0, 1, 2]])
    for i in range(3):
        for j in range(3):
            excluded = torch.zeros(3, 5)
            excluded[:, 3] = 1
            excluded[i] = torch.eye(5)[j]
            assert bool(is_noisy(members, truth, excluded)) == (i != j)


@pytest.mark.parametrize(("ratio", "percent"), [(1, 18.89), (100, 15.67)])
def test_expected_noise_ratio_of_mixup_is_that_of_the_protocol(ratio, percent):
    truth = tail(ratio)
    found = expected_noise_ratio(truth, transitions.uniform(10))
    share = torch.bincount(truth).double() / len(truth)
    formula = float((1 - share.square().sum()) * (1 - (1 - 1 / 9) ** 2))
    assert found == pytest.approx(formula, rel=1e-12)
    assert round(100 * found, 2) == percent


def test_noise_ratio_of_the_labels_of_the_paper_is_16_05_percent():
    truth = tail(100)
    excluded = labels.draw_as_paper(truth, 10)
    counted = empirical_transition(truth, excluded)
    assert round(100 * expected_noise_ratio(truth, counted), 2) == 16.05
    assert noise_ratio(Mixup(), truth, excluded, None, batch=512) == pytest.approx(0.1605, abs=0.003)


@pytest.mark.parametrize(
    "matrix",
    [transitions.uniform(10), transitions.biased(10, 10), transitions.noisy(10, 0.2)],
    ids=["uniform", "biased", "noisy"],
)
def test_expected_noise_ratio_is_that_of_mixup(matrix):
    truth = tail(10, head=1000)
    excluded = labels.draw(truth, matrix, seed=2)
    found = noise_ratio(Mixup(), truth, excluded, None, batch=512, passes=20)
    assert found == pytest.approx(expected_noise_ratio(truth, matrix), abs=0.008)


def slow_ratio(mixer, truth, excluded, cluster, batch, seed, passes):
    noisy = total = 0
    for turn in range(passes):
        source = generator(seed, "noise", turn)
        order = torch.randperm(len(truth), generator=source)
        for first in range(0, len(truth), batch):
            index = order[first : first + batch]
            chosen, found = mixer.choose(excluded[index], cluster[index], index=index, generator=source)
            for row, (i, others, has) in enumerate(zip(index.tolist(), chosen, found.tolist(), strict=True)):
                who = others.tolist() if mixer.pool is not None else index[others].tolist()
                assert row < batch
                total += has
                noisy += has and slow_is_noisy([i, *who], truth.tolist(), excluded)
    return noisy / total


@pytest.mark.parametrize("kind", [ICM, MICM])
@pytest.mark.parametrize("partner", ["distinct", "any"])
@pytest.mark.parametrize("pooled", [False, True])
def test_noise_ratio_counts_examples_that_have_a_partner(kind, partner, pooled):
    truth = tail(1, head=6)
    excluded = labels.draw(truth, transitions.uniform(10))
    cluster = torch.arange(60) % 7
    pool = mixing.Pool(mixing.group_by(cluster), lambda index, source: (index, excluded[index])) if pooled else None
    mixer = kind(partner=partner, pool=pool)
    found = noise_ratio(mixer, truth, excluded, cluster, batch=16, seed=3, passes=3)
    assert found == pytest.approx(slow_ratio(mixer, truth, excluded, cluster, 16, 3, 3), rel=1e-6)


def test_mixing_inside_purer_clusters_is_less_noisy_and_pure_ones_are_clean():
    truth = tail(1, head=300)
    excluded = labels.draw(truth, transitions.uniform(10))
    half = torch.where(torch.rand(3000, generator=generator(0, "purity")) < 0.5, truth, torch.arange(3000) % 10)
    ratios = [noise_ratio(ICM(), truth, excluded, c, 512) for c in (truth, half, torch.zeros_like(truth))]
    assert ratios[0] == 0
    assert 0.05 < ratios[1] < ratios[2] == pytest.approx(0.189, abs=0.01)
    assert noise_ratio(MICM(), truth, excluded, half, 512) > ratios[1]


@pytest.mark.parametrize("same_class", [False, True])
def test_oracle_mixers_are_noise_free(same_class):
    truth = tail(10, head=100)
    excluded = labels.draw(truth, transitions.uniform(10))
    assert noise_ratio(ExtraClass(same_class=same_class), truth, excluded, truth, 64) == 0
    assert noise_ratio(IntraClass(), truth, excluded, truth, 64) == 0
    assert noise_ratio(SameExcluded(), truth, excluded, None, 64) == 0  # a shared label is wrong for neither


def test_extra_class_has_the_noise_that_it_is_given():
    truth = tail(10, head=200)
    excluded = labels.draw(truth, transitions.uniform(10))
    for noisy in (0.1, 0.5, 1.0):
        assert noise_ratio(ExtraClass(noisy=noisy), truth, excluded, truth, 64) == pytest.approx(noisy, abs=0.02)


def test_noise_ratio_depends_on_the_seed_and_needs_clusters():
    truth = tail(1, head=50)
    excluded = labels.draw(truth, transitions.uniform(10))
    first, again, other = (noise_ratio(Mixup(), truth, excluded, None, 64, seed=s, passes=1) for s in (0, 0, 1))
    assert first == again != other
    with pytest.raises(UserError, match="cluster"):
        noise_ratio(ICM(), truth, excluded, None, 64)


def test_noise_ratio_without_partners_is_0():
    truth = torch.arange(4)
    for excluded in (torch.eye(4).roll(1, 1), torch.eye(4)):  # right labels, and labels that are wrong by themselves
        assert noise_ratio(ICM(), truth, excluded, torch.arange(4), batch=4) == 0


@pytest.mark.parametrize(("limit", "share"), [(4, 3 / 12), (2, 3 / 6), (1, 0), (0, 0)])
def test_noisy_share_counts_the_examples_that_the_draw_says(limit, share):
    """The partner is always example 0, whose label is wrong for class 1 only; classes below ``limit`` count."""
    truth, excluded, seen = torch.arange(4).repeat(3), torch.zeros(12, 4), []
    excluded[0, 1] = 1

    def draw(index, source):
        seen.extend(index.tolist())
        return torch.zeros(len(index), 1, dtype=torch.long), truth[index] < limit

    assert noisy_share(draw, truth, excluded, 5, 2, 0, "test") == share
    assert sorted(seen) == sorted([*range(12)] * 2)


def all_draws(truth, excluded, group, others):
    """Noise over all possible draws of partners, where an example may be its own partner."""
    truth, named = truth.tolist(), [set(row.nonzero()[:, 0].tolist()) for row in excluded]
    shares = []
    for i in range(len(truth)):
        members = [j for j in range(len(truth)) if group[j] == group[i]]
        mixes = [(i, *draw) for draw in itertools.product(members, repeat=others)]
        wrong = [any(truth[b] in named[a] for a, b in itertools.permutations(mix, 2)) for mix in mixes]
        shares.append(sum(wrong) / len(mixes))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("partners", [1, 2])
def test_noise_ratio_as_coded_is_that_of_all_draws(partners):
    source = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 4, (40,), generator=source)
    excluded = labels.draw(truth, transitions.uniform(4), 1)
    group = torch.arange(40) % 7
    group[-1] = 9  # alone: it mixes with itself, and counts
    wanted = all_draws(truth, excluded, group.tolist(), partners)
    assert 0.1 < wanted < 0.9
    assert noise_ratio_as_coded(truth, excluded, group, partners, 40, passes=2500) == pytest.approx(wanted, abs=0.008)


def test_noise_ratio_as_coded_is_0_if_every_example_is_alone():
    truth = torch.arange(200) % 10
    assert noise_ratio_as_coded(truth, labels.draw(truth, transitions.uniform(10)), torch.arange(200), 1, 128) == 0


def test_noise_ratio_as_coded_counts_mixes_of_an_example_with_itself():
    """With 50 random clusters and batches of 500, an example is its own partner in a tenth of its draws."""
    truth = torch.arange(10).repeat(500)
    excluded = labels.draw(truth, transitions.uniform(10), 1)
    group = torch.randperm(5000, generator=torch.Generator().manual_seed(0)) % 50
    expected = 0.9 * expected_noise_ratio(truth, transitions.uniform(10))
    assert noise_ratio_as_coded(truth, excluded, group, 1, 500, passes=20) == pytest.approx(expected, abs=0.004)


def test_negative_control_icm_with_shuffled_clusters_has_the_noise_of_mixup():
    """18.9 % for 10 balanced classes; with the clusters themselves it is far below."""
    digits = data.load("digits").train
    keep = torch.cat([(digits.truth == k).nonzero()[:130, 0] for k in range(10)])  # balanced
    truth, points = digits.truth[keep], F.normalize(digits.inputs[keep].flatten(1).float())
    cluster = kmeans(points, 50, restarts=3).assignment
    shuffled = cluster[torch.randperm(len(truth), generator=generator(0, "shuffle"))]
    good, control = [], []
    for seed in range(20):  # averaged over draws of the labels
        excluded = labels.draw(truth, transitions.uniform(10), seed=seed)
        good.append(noise_ratio(ICM(), truth, excluded, cluster, 512, seed))
        control.append(noise_ratio(ICM(), truth, excluded, shuffled, 512, seed))
    mixup = expected_noise_ratio(truth, transitions.uniform(10))
    assert mixup == pytest.approx(0.189, abs=0.0005)
    error = np.std(control) / len(control) ** 0.5
    assert np.mean(control) == pytest.approx(mixup, abs=4 * error + 0.002)  # the own example is never a partner
    assert error < 0.002
    assert np.mean(good) < mixup / 4


# --- clusters -------------------------------------------------------------------------------------------------------


def slow_same_class(assignment, truth):
    """Mean over examples with a partner of the probability that it is of the same class."""
    rates = []
    for i in range(len(truth)):
        others = [j for j in range(len(truth)) if j != i and assignment[i] == assignment[j]]
        if others:
            rates.append(np.mean([float(truth[i] == truth[j]) for j in others]))
    return float(np.mean(rates)) if rates else NAN


@pytest.mark.parametrize("clusters", [1, 3, 30, 90])
@pytest.mark.parametrize("seed", range(3))
def test_same_class_is_a_count_over_pairs(clusters, seed):
    truth, home = scattered_clusters(60, 4, clusters, seed)
    assert same_class(home, truth) == pytest.approx(slow_same_class(home, truth))
    assert same_class(5 * home + 3, truth) == pytest.approx(slow_same_class(home, truth))


def test_same_class_by_hand():
    assignment, truth = torch.tensor([2, 2, 2, 0, 0]), torch.tensor([0, 0, 1, 2, 1])  # cluster 1 is empty
    assert same_class(assignment, truth) == pytest.approx((0.5 + 0.5 + 0 + 0 + 0) / 5)
    assert same_class(torch.tensor([0, 0, 7]), torch.tensor([1, 1, 1])) == 1
    assert math.isnan(same_class(torch.arange(4), torch.zeros(4, dtype=torch.long)))


@pytest.mark.parametrize("clusters", [1, 7, 200])
def test_contingency_and_purity_are_those_of_scikit_learn(clusters):
    truth, home = scattered_clusters(300, 5, clusters)
    table = contingency_matrix(home.numpy(), truth.numpy())
    found = contingency(2 * home + 1, truth)  # every other cluster is empty
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found[found.sum(1) > 0].numpy(), table)
    assert int(found.sum()) == 300
    assert purity(2 * home + 1, truth) == pytest.approx(table.max(1).sum() / 300)


def test_purity_of_clusters_of_one_is_perfect():
    assert purity(torch.arange(9), torch.arange(9) % 2) == 1
    assert purity(torch.zeros(9, dtype=torch.long), torch.arange(9) % 2) == pytest.approx(5 / 9)


# --- features -------------------------------------------------------------------------------------------------------


def clouds(count, classes, features, spread, seed):
    """Points around one center per class -> (unit vectors [count, features], truth)."""
    source = generator(seed, "clouds")
    center = torch.randn(classes, features, generator=generator(0, "centers"))
    truth = torch.randint(classes, (count,), generator=source)
    return F.normalize(center[truth] + spread * torch.randn(count, features, generator=source)), truth


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
def test_knn_accuracy_equals_a_slow_reference(count, queries, classes, k, temperature, seed):
    bank, truth = clouds(count, classes, 6, 1.0, seed)
    test, test_truth = clouds(queries, classes, 6, 1.0, seed + 1)
    found = knn_accuracy(bank, truth, test, test_truth, k, temperature)
    assert found == pytest.approx(slow_knn(bank, truth, test, test_truth, k, temperature))


@pytest.mark.parametrize("k", [1, 20, 200])
def test_knn_accuracy_on_digits_is_that_of_scikit_learn(k):
    train, test = data.load("digits").train, data.load("digits").test
    bank, queries = (F.normalize(s.inputs.flatten(1).float()) for s in (train, test))
    known = KNeighborsClassifier(k, weights=lambda distance: np.exp((1 - distance) / 0.1), metric="cosine")
    wanted = known.fit(bank.numpy(), train.truth.numpy()).score(queries.numpy(), test.truth.numpy())
    assert knn_accuracy(bank, train.truth, queries, test.truth, k) == pytest.approx(wanted, abs=1.5 / len(queries))


@pytest.mark.parametrize("count", [1023, 1025, 2048])
def test_knn_accuracy_does_not_depend_on_chunks(count):
    bank, truth = clouds(60, 3, 6, 0.7, 0)
    test, test_truth = clouds(count, 3, 6, 0.7, 1)
    parts = [knn_accuracy(bank, truth, *pair, k=5) for pair in zip(test.split(100), test_truth.split(100), strict=True)]
    sizes = [len(part) for part in test.split(100)]
    whole = sum(a * n for a, n in zip(parts, sizes, strict=True)) / count
    assert knn_accuracy(bank, truth, test, test_truth, k=5) == pytest.approx(whole)


@pytest.mark.parametrize("probe", [knn_accuracy, linear_accuracy])
def test_probe_is_1_for_perfect_features_and_chance_for_noise(probe):
    truth, test_truth = torch.arange(400) % 4, torch.arange(200) % 4
    bank, test = (F.one_hot(t, 4).float() for t in (truth, test_truth))
    assert probe(bank, truth, test, test_truth) == 1.0
    bank, test = (F.normalize(torch.randn(n, 4, generator=generator(n, "noise"))) for n in (400, 200))
    assert 0.1 < probe(bank, truth, test, test_truth) < 0.4


@pytest.mark.parametrize("probe", [knn_accuracy, linear_accuracy])
def test_probe_counts_a_class_of_the_test_set_only_as_wrong(probe):
    bank, truth = torch.eye(2).repeat(10, 1), torch.arange(20) % 2
    assert probe(bank, truth, torch.eye(2), torch.tensor([0, 7])) == 0.5


def test_linear_accuracy_is_near_logistic_regression():
    train, test = data.load("digits").train, data.load("digits").test
    x, held = (s.inputs.flatten(1).float() for s in (train, test))
    known = LogisticRegression(max_iter=300).fit(x.numpy() / 255, train.truth.numpy())
    wanted = known.score(held.numpy() / 255, test.truth.numpy())
    assert linear_accuracy(x, train.truth, held, test.truth) == pytest.approx(wanted, abs=0.03)


def test_balanced_linear_accuracy_is_the_optimum_for_equal_classes():
    random = torch.Generator().manual_seed(0)

    def draw(counts: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        truth = torch.arange(2).repeat_interleave(torch.tensor(counts))
        return torch.randn(len(truth), 1, generator=random) + 2.0 * truth[:, None], truth

    known = (*draw((20_000, 400)), *draw((5_000, 5_000)))
    optimum = 0.8413  # normal distribution function at 1: the threshold is halfway between the classes
    assert linear_accuracy(*known, epochs=20, balanced=True) == pytest.approx(optimum, abs=0.015)
    assert linear_accuracy(*known, epochs=20) < 0.7


def test_linear_accuracy_does_not_depend_on_scale_shift_or_constant_features():
    x, truth = clouds(300, 3, 5, 0.8, 0)
    held, held_truth = clouds(200, 3, 5, 0.8, 1)
    wanted = linear_accuracy(x, truth, held, held_truth)
    scale, shift = torch.tensor([1e-3, 1, 10, 1e3, 5]), torch.tensor([5.0, -1, 0, 100, 3])
    moved, held_moved = (torch.cat([t * scale + shift, torch.full((len(t), 1), 7.0)], 1) for t in (x, held))
    assert linear_accuracy(moved, truth, held_moved, held_truth) == pytest.approx(wanted, abs=0.02)


def test_linear_accuracy_depends_on_the_seed_only():
    x, truth = clouds(300, 3, 5, 1.5, 0)
    before = torch.random.get_rng_state()
    first, again = (linear_accuracy(x, truth, x, truth, epochs=3, batch=32) for _ in range(2))
    assert first == again
    assert torch.equal(before, torch.random.get_rng_state())


# --- labels ---------------------------------------------------------------------------------------------------------


def test_empirical_transition_counts_with_a_uniform_row_for_an_unseen_class():
    truth = torch.tensor([0, 0, 3, 0, 1, 1])
    excluded = torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0]])
    wanted = [[0, 2 / 3, 1 / 3, 0], [2 / 3, 0, 1 / 3, 0], [1 / 3, 1 / 3, 0, 1 / 3], [1, 0, 0, 0]]
    np.testing.assert_allclose(empirical_transition(truth, excluded).numpy(), wanted)


@pytest.mark.parametrize("matrix", [transitions.biased(6, 10), transitions.noisy(6, 0.2)])
def test_empirical_transition_of_drawn_labels_is_their_matrix(matrix):
    truth = torch.arange(6).repeat(20_000)
    torch.testing.assert_close(
        empirical_transition(truth, labels.draw(truth, matrix, seed=1)), matrix, atol=0.012, rtol=0
    )
