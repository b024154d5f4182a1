import csv
import io

import pytest
from scipy import stats

from complementary.paper.render import heading, not_run, render, show_p, tables_of
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of

WHERE = {"data": "cifar10", "tail": 100.0}
EXTRA, INTRA = (entry_of("intra", mix, **WHERE) for mix in ("extra-class", "intra-class"))


def test_a_study_of_which_nothing_was_run_is_blank_but_for_the_published_numbers():
    said = render(STUDIES["intra"], Results(), "ours", "text").splitlines()
    assert said[2:6] == [
        "data     method       last  selected  noise     published  last - published",
        "---------------------------------------------------------------------------",
        "cifar10  extra-class                         37.17 ± 0.30",
        "cifar10  intra-class                         48.59 ± 0.40",
    ]
    assert tables_of(STUDIES["intra"], Results(), "ours", only_run=True) == []


def test_what_to_run_is_said_under_the_protocol_that_was_asked_for():
    assert "run it with 'cll paper intra'," in not_run(STUDIES["intra"], "ours")
    assert "run it with 'cll paper intra --protocol paper'," in not_run(STUDIES["intra"], "paper")
    assert "run it with 'cll paper as-coded'," in not_run(STUDIES["as-coded"], "paper")
    assert not_run(STUDIES["as-coded"], "ours").endswith("'cll paper show as-coded --protocol ours --blank'.")


def test_numbers_differences_and_tests(fake, store):
    for seed, accuracy in enumerate((0.40, 0.42)):
        fake(EXTRA, accuracy, "paper", seed, accuracy_best_on_test=accuracy + 0.01)
    fake(INTRA, 0.50, "paper")
    said = render(STUDIES["intra"], read([store]), "paper", "markdown")
    assert "| data | method | best on test | last | noise | published | best on test - published |" in said
    assert (
        "| cifar10 | extra-class | 42.00 ± 1.41 (2) | 41.00 ± 1.41 (2) | 10.00 ± 0.00 (2) | 37.17 ± 0.30 | +4.83 |"
        in said
    )
    assert "| cifar10 | intra-class | 50.00 (1) | 50.00 (1) | 10.00 (1) | 48.59 ± 0.40 | +1.41 |" in said
    p = stats.ttest_ind_from_stats(48.59, 0.40, 3, 37.17, 0.30, 3, equal_var=False).pvalue
    assert f"| cifar10 | intra-class - extra-class | +8.00 |  | 1, 2 | +11.42 | {p:.4g} |" in said
    assert r"extra-class & 42.00 $\pm$ 1.41 (2)" in render(STUDIES["intra"], read([store]), "paper", "latex")


def test_csv_has_full_precision(fake, store):
    fake(INTRA, 0.123456789)
    rows = list(csv.DictReader(io.StringIO(render(STUDIES["intra"], read([store]), "ours", "csv"))))
    assert len(rows) == 2 * 3
    (row,) = [row for row in rows if row["method"] == "intra-class" and row["figure"] == "last"]
    assert float(row["mean"]) == 12.3456789
    assert (row["std"], row["n"], row["epochs"], row["published_mean"]) == ("", "1", "300", "48.59")
    assert float(row["difference"]) == 12.3456789 - 48.59
    assert {(row["mean"], row["n"]) for row in rows if row["method"] == "extra-class"} == {("", "0")}


def test_different_lengths_are_shown(fake, store):
    fake(INTRA, 0.5, epochs=100)
    for form in ("text", "markdown", "latex"):
        said = render(STUDIES["intra"], read([store]), "ours", form)
        assert ", 100 epochs where the paper has 300): mean" in said.partition("\n")[0]
        assert said.count("epochs") == 1
    fake(EXTRA, 0.5, epochs=20)
    (table, _) = tables_of(STUDIES["intra"], read([store]), "ours")
    assert table.header[-1] == "epochs"
    assert [row[-1] for row in table.rows] == ["20", "100"]
    assert "epochs" not in heading(STUDIES["intra"], read([store]), "ours")


def test_the_published_length_is_named_without_comment(fake, store):
    fake(INTRA, 0.5)
    assert ", 300 epochs): mean" in heading(STUDIES["intra"], read([store]), "ours")


@pytest.mark.parametrize(
    ("only_run", "constant"),
    [
        (True, "cifar10, ρ = 100, uniform labels, s-nl, resnet18, 300 epochs"),
        (False, "uniform labels, resnet18, 300 epochs"),
    ],
)
def test_what_is_constant_stands_in_the_heading(fake, store, only_run, constant):
    fake(entry_of("main", "none", data="cifar10", tail=100.0, loss="s-nl"), 0.3)
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
def test_what_all_settings_of_a_study_share(name, constant):
    assert f"protocol ours ({constant}): mean" in heading(STUDIES[name], Results(), "ours")


def test_csv_rows_carry_the_published_value_of_their_own_figure(fake, store):
    fake(entry_of("encoders", "mocov3"), 0.5, noise_ratio=0.16)
    rows = list(csv.DictReader(io.StringIO(render(STUDIES["encoders"], read([store]), "ours", "csv"))))
    found = {row["figure"]: row for row in rows if row["method"] == "mocov3"}
    assert {name: row["published_mean"] for name, row in found.items()} == {
        "last": "60.45",
        "selected": "60.45",
        "noise": "15.43",
    }
    assert float(found["noise"]["difference"]) == pytest.approx(16 - 15.43)
    assert {(row["mix"], row["model"]) for row in rows} == {("icm", "resnet18")}
    micm = list(csv.DictReader(io.StringIO(render(STUDIES["micm"], Results(), "ours", "csv"))))
    assert {row["published_mean"] for row in micm if row["figure"] == "tail third"} == {""}
    assert {row["published_mean"] for row in micm if row["figure"] == "last"} > {""}


def test_p_values_are_exact_not_stars():
    assert [show_p(p) for p in (0.04999, 1.2345678e-9, None)] == ["0.04999", "1.235e-09", ""]
