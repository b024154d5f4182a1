"""Long tails: class sizes of the paper, exact subsets, and the three setups of the paper."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary.errors import UserError
from complementary.long_tail import class_sizes, long_tail, setup, subset

CIFAR10 = {
    100: [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
    50: [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100],
    10: [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500],
    1: [5000] * 10,
}


@pytest.mark.parametrize(("ratio", "sizes"), CIFAR10.items())
def test_class_sizes_of_cifar10_are_the_papers(ratio, sizes):
    assert class_sizes(5000, ratio, 10) == sizes


@pytest.mark.parametrize(
    ("head", "ratio", "classes", "total", "tail"),
    [
        (5000, 100, 10, 12_406, 50),
        (5000, 10, 10, 20_431, 500),
        (2500, 100, 20, 11_514, 25),
        (6000, 100, 10, 14_886, 60),
        (5000, 1, 10, 50_000, 5000),
    ],
    ids=["cifar10-100", "cifar10-10", "cifar20-100", "fmnist-100", "mnist-1"],
)
def test_class_sizes_have_the_papers_totals_and_tails(head, ratio, classes, total, tail):
    sizes = class_sizes(head, ratio, classes)
    assert (sum(sizes), sizes[-1]) == (total, tail)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 10_000), st.floats(1, 1000), st.integers(2, 40))
def test_class_sizes_fall_from_head_to_head_over_ratio(head, ratio, classes):
    if head / ratio < 1.001:
        return
    sizes = class_sizes(head, ratio, classes)
    assert len(sizes) == classes
    assert sizes[0] == head
    assert sizes == sorted(sizes, reverse=True)
    assert abs(sizes[-1] - head / ratio) <= 1


@pytest.mark.parametrize(("head", "ratio", "tail"), [(49, 49, 1), (98, 49, 2), (103, 103, 1), (500, 100, 5)])
def test_class_sizes_are_robust_to_rounding(head, ratio, tail):
    assert class_sizes(head, ratio, 2) == [head, tail]  # 49 * 49 ** -1.0 is .9999999999999999


TRUTH = torch.tensor([2, 0, 1, 0, 2, 1, 0, 1, 2, 0, 0, 2, 1, 2, 1] * 20)  # 100 of each class


def test_long_tail_without_a_seed_takes_the_first_of_each_class():
    chosen = long_tail(TRUTH, 3, 4)
    assert torch.bincount(TRUTH[chosen]).tolist() == [100, 50, 25]
    wanted = [TRUTH.eq(k).nonzero()[:n, 0] for k, n in enumerate([100, 50, 25])]
    assert torch.equal(chosen, torch.cat(wanted))


def test_long_tail_with_a_seed_is_random_and_repeatable():
    first, again, other = (long_tail(TRUTH, 3, 4, seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.bincount(TRUTH[first]).tolist() == [100, 50, 25]
    assert len(first.unique()) == len(first)
    assert all(torch.equal(part, part.sort().values) for part in first.split([100, 50, 25]))
    tail = first[TRUTH[first] == 2]
    assert not torch.equal(tail, (TRUTH == 2).nonzero()[:25, 0])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=40, max_size=80), st.floats(1, 3), st.none() | st.integers(0, 9))
def test_long_tail_default_head_always_fits(more, ratio, seed):
    truth = torch.tensor([0, 1, 2, 3] * 10 + more)
    chosen = long_tail(truth, 4, ratio, seed=seed)
    head = int(torch.bincount(truth).min())
    assert torch.bincount(truth[chosen]).tolist() == class_sizes(head, ratio, 4)


def test_long_tail_uses_the_given_head():
    assert torch.bincount(TRUTH[long_tail(TRUTH, 3, 9, head=90)]).tolist() == [90, 30, 10]


def test_subset_selects_everything_unless_ratio_or_head_is_given():
    assert torch.equal(subset(None, 3, 300), torch.arange(300))
    assert torch.equal(subset(TRUTH, 3, 300, 4), long_tail(TRUTH, 3, 4))
    assert torch.equal(subset(TRUTH, 3, 300, 4, usual_head=80, seed=1), long_tail(TRUTH, 3, 4, 80, 1))
    assert torch.bincount(TRUTH[subset(TRUTH, 3, 300, head=20, usual_head=80)]).tolist() == [20, 20, 20]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("setup-1:100", (100.0, "uniform")),
        ("setup-2:10", (1.0, "biased:10")),
        ("setup-3:5:50", (50.0, "biased:5")),
        ("setup-2:2.5", (1.0, "biased:2.5")),
    ],
)
def test_setup_gives_ratio_and_labels(spec, wanted):
    assert setup(spec) == wanted


def test_setup_keeps_every_digit_of_the_bias():
    assert float(setup("setup-2:1.23456789")[1].removeprefix("biased:")) == 1.23456789


@pytest.mark.parametrize(
    ("call", "found", "option"),
    [
        (lambda: class_sizes(100, 0.5, 3), r"0\.5.*at least 1", None),
        (lambda: class_sizes(100, float("nan"), 3), "nan.*at least 1", None),
        (lambda: class_sizes(100, 101, 3), "101 .*class 2 .*at most 100", "long_tail"),
        (lambda: class_sizes(100, 2, 1), "2 classes, found 1", None),
        (lambda: long_tail(TRUTH, 3, 2, head=101), "101 .*class 0.* 100;", "head"),
        (lambda: long_tail(TRUTH, 4, 2), r"^(?=.*Class 3)(?!.*at most 0)", None),
        (lambda: long_tail(TRUTH, 2, 2), r"label is 2 .*2 classes.*0 and 1", None),
        (lambda: long_tail(torch.tensor([0, 1, -1]), 2, 2), r"label is -1 ", None),
        (lambda: subset(None, 3, 300, 4), "long_tail .*true labels", "long_tail"),
        (lambda: subset(None, 3, 300, head=9), "head .*true labels", "head"),
        (lambda: setup("setup-4:1"), "'setup-4:1'.*setup-1:RATIO", "labels"),
        (lambda: setup("setup-1"), "'setup-1' .*setup-1:RATIO", "labels"),
        (lambda: setup("setup-1:x"), "'setup-1:x' .*setup-1:RATIO", "labels"),
        (lambda: setup("setup-3:10"), "'setup-3:10' .*setup-3:BIAS:RATIO", "labels"),
        (lambda: setup("setup-2:10:100"), "setup-2:BIAS", "labels"),
    ],
)
def test_long_tail_errors_name_value_and_option(call, found, option):
    with pytest.raises(UserError, match=found) as caught:
        call()
    assert caught.value.option == option
