import csv
import io
import math

import pytest
from scipy import stats

from complementary.paper.compare import contrasts, entry_results, heading, render, show_p, tables_of, welch
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of

WHERE = {"data": "cifar10", "tail": 100.0}
ICM, MIXUP = (entry_of("main", mix, **WHERE, loss="s-nl") for mix in ("icm", "mixup"))
EXTRA, INTRA = (entry_of("intra", mix, **WHERE) for mix in ("extra-class", "intra-class"))


# --- numbers and tests ----------------------------------------------------------------------------------------------


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
    assert test.p != pytest.approx(stats.ttest_ind(a, b).pvalue, rel=1e-3)  # Student's test differs
    assert welch(b, a).p == test.p


def test_welch_has_no_p_without_spread_or_with_one_run():
    assert welch([1.0], [2.0, 3.0]).p is None
    assert welch([1.0, 1.0], [2.0, 2.0]).p is None
    assert welch([1.0, 1.0], [2.0, 3.0]).p is not None
    assert welch([], [1.0]) is None


def test_entry_results_compare_with_the_published_number(add_run, store):
    for seed, accuracy in enumerate((0.36, 0.38)):
        add_run(ICM, accuracy, seed=seed, accuracy_selected=accuracy - 0.1)
    results = read([store])
    found = {(x.entry.where, x.entry.method): x for x in entry_results(STUDIES["main"], results, "ours")}
    one = found[ICM.where, "icm"]
    assert one.ours.mean == pytest.approx(0.37)
    assert one.spreads["selected"].mean == pytest.approx(0.27)
    assert one.difference == pytest.approx(37 - 36.21)
    assert found[MIXUP.where, "mixup"].ours is None
    assert found[MIXUP.where, "mixup"].difference is None
    started = entry_results(STUDIES["main"], results, "ours", only_run=True)
    assert {each.entry.where for each in started} == {ICM.where}


def test_contrasts_compare_methods_of_one_setting(add_run, store):
    for seed in range(3):
        add_run(ICM, 0.36 + seed / 100, seed=seed)
        add_run(MIXUP, 0.30 + seed / 50, seed=seed)
        add_run(entry_of("main", "mixup", data="cifar10", tail=1.0, loss="s-nl"), 0.9, seed=seed)
    pairs = [pair for pair in contrasts(STUDIES["main"], read([store]), "ours") if pair.ours is not None]
    assert [(pair.first.entry, pair.second.entry) for pair in pairs] == [(ICM, MIXUP)]
    (pair,) = pairs
    wanted = stats.ttest_ind([36.0, 37.0, 38.0], [30.0, 32.0, 34.0], equal_var=False).pvalue
    assert pair.ours.p == pytest.approx(wanted)
    assert pair.published.difference == pytest.approx(36.21 - 31.46)
    published = stats.ttest_ind_from_stats(36.21, 0.19, 3, 31.46, 0.59, 3, equal_var=False).pvalue
    assert pair.published.p == pytest.approx(published)


def test_contrasts_of_different_lengths_are_not_made(add_run, store):
    add_run(ICM, 0.9), add_run(MIXUP, 0.3, epochs=100)
    assert {pair.ours for pair in contrasts(STUDIES["main"], read([store]), "ours")} == {None}


def test_contrasts_with_the_same_published_number_have_no_published_test():
    pairs = contrasts(STUDIES["as-coded"], Results(), "paper")
    same = [pair for pair in pairs if pair.first.entry.published == pair.second.entry.published]
    assert len(same) == 2 * 2  # swapped - matched, labels alone - images too
    assert {pair.published for pair in same} == {None}
    assert all(pair.published is not None for pair in pairs if pair not in same)


def test_published_number_of_each_column():
    def published(name, method, protocol="ours"):
        (one,) = [x for x in entry_results(STUDIES[name], Results(), protocol) if x.entry.method == method]
        return {column: number and number.mean for column, number in one.published.items()}

    assert published("encoders", "mocov3") == {
        "best on test": 60.45,
        "last": None,
        "selected": None,
        "noise": 15.43,
    }
    assert set(published("encoders", "random").values()) == {None}
    assert published("noise-accuracy", "mixup", "paper") == {"best on test": 31.46, "last": None, "noise": 15.81}
    assert published("intra", "intra-class")["best on test"] == 48.59
    assert {x.published["tail third"] for x in entry_results(STUDIES["minority"], Results(), "ours")} == {None}
    noise = {x.entry.setting: x.published["noise"] for x in entry_results(STUDIES["noise"], Results(), "ours")}
    assert noise[entry_of("noise", "icm", data="mnist", tail=100.0).setting].mean == 0.95


def test_noise_study_reads_the_noise_ratio(add_run, store):
    add_run(ICM, 0.36, oracle_noise_ratio=0.03)
    (one,) = [x for x in entry_results(STUDIES["noise"], read([store]), "ours") if x.ours is not None]
    assert (one.entry.setting, one.ours.mean) == (ICM.setting, 0.03)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_render_without_runs_is_blank_except_for_the_published_numbers():
    lines = render(STUDIES["intra"], Results(), "ours", "text").splitlines()
    assert lines[2:6] == [
        "data     method       best on test  last  selected  noise     published  best on test - published",
        "-------------------------------------------------------------------------------------------------",
        "cifar10  extra-class                                       37.17 ± 0.30",
        "cifar10  intra-class                                       48.59 ± 0.40",
    ]
    assert tables_of(STUDIES["intra"], Results(), "ours", only_run=True) == []


def test_render_shows_numbers_differences_and_tests(add_run, store):
    for seed, accuracy in enumerate((0.40, 0.42)):
        add_run(EXTRA, accuracy, "paper", seed, accuracy_best_on_test=accuracy + 0.01)
    add_run(INTRA, 0.50, "paper")
    text = render(STUDIES["intra"], read([store]), "paper", "markdown")
    assert "| data | method | best on test | last | noise | published | best on test - published |" in text
    assert (
        "| cifar10 | extra-class | 42.00 ± 1.41 (2) | 41.00 ± 1.41 (2) | 10.00 ± 0.00 (2) | 37.17 ± 0.30 | +4.83 |"
        in text
    )
    assert "| cifar10 | intra-class | 50.00 (1) | 50.00 (1) | 10.00 (1) | 48.59 ± 0.40 | +1.41 |" in text
    p = stats.ttest_ind_from_stats(48.59, 0.40, 3, 37.17, 0.30, 3, equal_var=False).pvalue
    assert f"| cifar10 | intra-class - extra-class | +8.00 |  | 1, 2 | +9.00 | +11.42 | {p:.4g} |" in text
    assert r"extra-class & 42.00 $\pm$ 1.41 (2)" in render(STUDIES["intra"], read([store]), "paper", "latex")


def test_render_of_gradients_shows_means_per_method(add_gradients, store):
    add_gradients("mnist"), add_gradients("mnist", seed=1)
    text = render(STUDIES["gradients"], read([store]), "ours", "markdown")
    assert "| data | target | method | MSE | bias² | variance | MSE / \\|f\\|² |" in text
    assert "| mnist | clean | icm | 3 | 1 | 2 | 0.75 | 0.25 | 0.5 | 2 |" in text


def test_csv_has_full_precision_and_the_published_value_of_each_metric(add_run, store):
    def rows_of(name):
        return list(csv.DictReader(io.StringIO(render(STUDIES[name], read([store]), "ours", "csv"))))

    add_run(INTRA, 0.123456789)
    rows = rows_of("intra")
    assert len(rows) == 2 * 4
    (row,) = [row for row in rows if row["method"] == "intra-class" and row["metric"] == "best on test"]
    assert float(row["mean"]) == 12.3456789
    assert (row["std"], row["n"], row["epochs"], row["published_mean"]) == ("", "1", "300", "48.59")
    assert float(row["difference"]) == 12.3456789 - 48.59
    assert {(row["mean"], row["n"]) for row in rows if row["method"] == "extra-class"} == {("", "0")}
    add_run(entry_of("encoders", "mocov3"), 0.5, oracle_noise_ratio=0.16)
    found = {row["metric"]: row for row in rows_of("encoders") if row["method"] == "mocov3"}
    published = {name: row["published_mean"] for name, row in found.items()}
    assert published == {"best on test": "60.45", "last": "", "selected": "", "noise": "15.43"}
    assert float(found["noise"]["difference"]) == pytest.approx(16 - 15.43)
    assert {(row["mix"], row["model"]) for row in rows_of("encoders")} == {("icm", "resnet18")}
    assert {row["published_mean"] for row in rows_of("minority") if row["metric"] == "tail third"} == {""}


def test_show_p_is_exact():
    assert [show_p(p) for p in (0.04999, 1.2345678e-9, None)] == ["0.04999", "1.235e-09", ""]


# --- captions -------------------------------------------------------------------------------------------------------


def test_heading_names_a_common_length_and_a_column_names_different_ones(add_run, store):
    add_run(INTRA, 0.5)
    assert ", 300 epochs): mean" in heading(STUDIES["intra"], read([store]), "ours")
    (store / next(store.iterdir())).unlink()
    add_run(INTRA, 0.5, epochs=100)
    assert ", 100 epochs (the paper: 300)): mean" in heading(STUDIES["intra"], read([store]), "ours")
    add_run(EXTRA, 0.5, epochs=20)
    (table, _) = tables_of(STUDIES["intra"], read([store]), "ours")
    assert table.header[-1] == "epochs"
    assert [row[-1] for row in table.rows] == ["20", "100"]
    assert "epochs" not in heading(STUDIES["intra"], read([store]), "ours")


@pytest.mark.parametrize(
    ("only_run", "constant"),
    [
        (True, "cifar10, ρ = 100, uniform labels, s-nl, resnet18, 300 epochs"),
        (False, "uniform labels, resnet18, 300 epochs"),
    ],
)
def test_heading_names_what_the_shown_settings_share(add_run, store, only_run, constant):
    add_run(entry_of("main", "none", data="cifar10", tail=100.0, loss="s-nl"), 0.3)
    assert f"protocol ours ({constant}): mean" in heading(STUDIES["main"], read([store]), "ours", only_run)


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("encoders", "cifar10, ρ = 1, uniform labels, s-nl, icm, resnet18"),
        ("setup3-5", "labels biased by 5, resnet18"),
        ("real", "resnet18"),
        ("noise", "uniform labels"),
        ("models-tail", "mnist, ρ = 100, uniform labels"),
        ("clusters", "ρ = 100, uniform labels, s-nl, icm, resnet18"),
    ],
)
def test_heading_names_what_all_settings_share(name, constant):
    assert f"protocol ours ({constant}): mean" in heading(STUDIES[name], Results(), "ours")
