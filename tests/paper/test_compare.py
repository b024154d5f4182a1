import math

import pytest
from scipy import stats

from complementary.paper.compare import contrasts, lines, welch
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of

WHERE = {"data": "cifar10", "tail": 100.0, "loss": "s-nl"}
ICM, MIXUP = (entry_of("main", mix, **WHERE) for mix in ("icm", "mixup"))


def test_welch_by_hand():
    """t and the degrees of freedom from Welch's formulas, p from the t distribution."""
    a, b = [30.0, 31.0, 35.0], [20.0, 26.0]
    va, vb = 7.0 / 3, 18.0 / 2  # variances of the means
    t = (32 - 23) / math.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 1)
    test = welch(a, b)
    assert (test.difference, test.first, test.second) == (9.0, 3, 2)
    assert test.p == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-12)
    assert test.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert test.p != pytest.approx(stats.ttest_ind(a, b).pvalue, rel=1e-3)  # Student's test is another one
    assert welch(b, a).p == test.p


def test_no_p_without_spread_or_with_one_run():
    assert welch([1.0], [2.0, 3.0]).p is None
    assert welch([1.0, 1.0], [2.0, 2.0]).p is None
    assert welch([1.0, 1.0], [2.0, 3.0]).p is not None
    assert welch([], [1.0]) is None


def test_ours_stands_beside_the_published_number(fake, store):
    for seed, accuracy in enumerate((0.36, 0.38)):
        fake(ICM, accuracy, seed=seed, accuracy_selected=accuracy - 0.1)
    found = {(x.entry.where, x.entry.method): x for x in lines(STUDIES["main"], read([store]), "ours")}
    line = found[ICM.where, "icm"]
    assert line.ours.mean == pytest.approx(0.37)
    assert line.figures["selected"].mean == pytest.approx(0.27)
    assert line.difference == pytest.approx(37 - 36.21)
    assert found[MIXUP.where, "mixup"].ours is None
    assert found[MIXUP.where, "mixup"].difference is None


def test_methods_are_compared_within_their_setting(fake, store):
    for seed in range(3):
        fake(ICM, 0.36 + seed / 100, seed=seed)
        fake(MIXUP, 0.30 + seed / 50, seed=seed)
        fake(entry_of("main", "mixup", data="cifar10", tail=1.0, loss="s-nl"), 0.9, seed=seed)
    pairs = [pair for pair in contrasts(STUDIES["main"], read([store]), "ours") if pair.ours is not None]
    assert [(pair.first.entry, pair.second.entry) for pair in pairs] == [(ICM, MIXUP)]
    (pair,) = pairs
    wanted = stats.ttest_ind([36.0, 37.0, 38.0], [30.0, 32.0, 34.0], equal_var=False).pvalue
    assert pair.ours.p == pytest.approx(wanted)
    assert pair.published.difference == pytest.approx(36.21 - 31.46)
    published = stats.ttest_ind_from_stats(36.21, 0.19, 3, 31.46, 0.59, 3, equal_var=False).pvalue
    assert pair.published.p == pytest.approx(published)


def test_the_same_published_number_on_both_sides_is_no_published_test():
    pairs = contrasts(STUDIES["as-coded"], Results(), "paper")
    same = [pair for pair in pairs if pair.first.entry.published == pair.second.entry.published]
    assert len(same) == 2 * 2  # swapped - matched, labels alone - images too
    assert {pair.published for pair in same} == {None}
    assert all(pair.published is not None for pair in pairs if pair not in same)


def test_every_figure_stands_beside_its_own_published_number():
    def published(name, method, protocol="ours"):
        (line,) = [x for x in lines(STUDIES[name], Results(), protocol) if x.entry.method == method]
        return {figure: number and number.mean for figure, number in line.published.items()}

    assert published("encoders", "mocov3") == {"last": 60.45, "selected": 60.45, "noise": 15.43}
    assert published("encoders", "random") == {"last": None, "selected": None, "noise": None}
    assert published("noise-accuracy", "mixup", "paper") == {"best on test": 31.46, "last": 31.46, "noise": 15.81}
    assert published("noise-accuracy", "icm") == {"last": 36.21, "selected": 36.21, "noise": None}
    assert published("intra", "intra-class") == {"last": 48.59, "selected": 48.59, "noise": None}
    assert {x.published["tail third"] for x in lines(STUDIES["micm"], Results(), "ours")} == {None}
    noise = {x.entry.setting: x.published["noise"] for x in lines(STUDIES["noise"], Results(), "ours")}
    assert noise[entry_of("noise", "icm", data="mnist", tail=100.0).setting].mean == 0.95


def test_noise_studies_read_the_noise(fake, store):
    fake(ICM, 0.36, noise_ratio=0.03)
    (line,) = [x for x in lines(STUDIES["noise"], read([store]), "ours") if x.ours is not None]
    assert (line.entry.setting, line.ours.mean) == (ICM.setting, 0.03)
