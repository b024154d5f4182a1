"""Noise ratios: a loop over pairs, and the protocol's 18.89 %, 15.67 % and 16.05 %."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, mixing, transitions
from complementary.errors import UserError
from complementary.long_tail import class_sizes
from complementary.mixing import ICM, MICM, ExtraClass, IntraClass, Mixup, SameExcluded
from complementary.oracle import expected_noise_ratio, is_noisy, noise_ratio, noisy_share
from complementary.rng import generator


def tail(ratio, head=5000):
    return torch.arange(10).repeat_interleave(torch.tensor(class_sizes(head, ratio, 10)))


def slow_is_noisy(row, truth, excluded):
    return any(int(excluded[i, truth[j]]) == 1 for a, i in enumerate(row) for b, j in enumerate(row) if a != b)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 3), st.integers(0, 999))
def test_a_mix_is_noisy_if_a_members_label_names_anothers_class(classes, size, per_example, seed):
    source = generator(seed, "n")
    truth = torch.randint(classes, (12,), generator=source)
    excluded = labels.draw(truth, transitions.noisy(classes, 0.2), min(per_example, classes - 1), seed)
    members = torch.randint(12, (20, size), generator=source)
    wanted = [slow_is_noisy(row, truth.tolist(), excluded) for row in members.tolist()]
    assert is_noisy(members, truth, excluded).tolist() == wanted


def test_a_micm_mix_is_noisy_by_any_of_the_six_cross_conditions():
    truth = torch.tensor([0, 1, 2])
    members = torch.tensor([[0, 1, 2]])
    for teller in range(3):
        for told in range(3):
            excluded = torch.zeros(3, 5)
            excluded[:, 3] = 1
            excluded[teller] = torch.eye(5)[told]
            assert bool(is_noisy(members, truth, excluded)) == (teller != told)


@pytest.mark.parametrize(("ratio", "percent"), [(1, 18.89), (100, 15.67)])
def test_expected_noise_of_mixup_is_the_protocols(ratio, percent):
    truth = tail(ratio)
    found = expected_noise_ratio(truth, transitions.uniform(10))
    share = torch.bincount(truth).double() / len(truth)
    formula = float((1 - share.square().sum()) * (1 - (1 - 1 / 9) ** 2))
    assert found == pytest.approx(formula, rel=1e-12)
    assert round(100 * found, 2) == percent


def test_the_papers_own_labels_give_16_05_percent():
    truth = tail(100)
    excluded = labels.draw_as_paper(truth, 10)
    counted = transitions.empirical_transition(truth, excluded)
    assert round(100 * expected_noise_ratio(truth, counted), 2) == 16.05
    assert noise_ratio(Mixup(), truth, excluded, None, batch=512) == pytest.approx(0.1605, abs=0.003)


@pytest.mark.parametrize(
    "matrix",
    [transitions.uniform(10), transitions.biased(10, 10), transitions.noisy(10, 0.2)],
    ids=["uniform", "biased", "noisy"],
)
def test_expected_noise_is_what_mixup_does(matrix):
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
def test_the_ratio_counts_examples_that_have_a_partner(kind, partner, pooled):
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
def test_the_oracle_mixers_are_noise_free(same_class):
    truth = tail(10, head=100)
    excluded = labels.draw(truth, transitions.uniform(10))
    assert noise_ratio(ExtraClass(same_class=same_class), truth, excluded, truth, 64) == 0
    assert noise_ratio(IntraClass(), truth, excluded, truth, 64) == 0
    assert noise_ratio(SameExcluded(), truth, excluded, None, 64) == 0  # a shared label is wrong for neither


def test_the_seed_decides_and_the_mixer_without_clusters_is_refused():
    truth = tail(1, head=50)
    excluded = labels.draw(truth, transitions.uniform(10))
    first, again, other = (noise_ratio(Mixup(), truth, excluded, None, 64, seed=s, passes=1) for s in (0, 0, 1))
    assert first == again != other
    with pytest.raises(UserError, match="no clusters were given"):
        noise_ratio(ICM(), truth, excluded, None, 64)


def test_nobody_with_a_partner_is_no_noise():
    truth = torch.arange(4)
    for excluded in (torch.eye(4).roll(1, 1), torch.eye(4)):  # right labels, and labels that are wrong by themselves
        assert noise_ratio(ICM(), truth, excluded, torch.arange(4), batch=4) == 0


@pytest.mark.parametrize(("limit", "share"), [(4, 3 / 12), (2, 3 / 6), (1, 0), (0, 0)])
def test_whoever_draws_says_who_counts(limit, share):
    """Everybody's partner is example 0, whose label is wrong for class 1 alone; classes below ``limit`` count."""
    truth, excluded, seen = torch.arange(4).repeat(3), torch.zeros(12, 4), []
    excluded[0, 1] = 1

    def draw(index, source):
        seen.extend(index.tolist())
        return torch.zeros(len(index), 1, dtype=torch.long), truth[index] < limit

    assert noisy_share(draw, truth, excluded, 5, 2, 0, "test") == share
    assert sorted(seen) == sorted([*range(12)] * 2)
