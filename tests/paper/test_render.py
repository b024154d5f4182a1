import csv
import io

from scipy import stats

from complementary.paper.render import not_run, render, show_p, tables_of
from complementary.paper.results import Results, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of

WHERE = {"data": "cifar10", "tail": 100.0}
EXTRA, INTRA = (entry_of("intra", mix, **WHERE) for mix in ("extra-class", "intra-class"))


def test_a_study_of_which_nothing_was_run_is_blank_but_for_the_published_numbers():
    said = render(STUDIES["intra"], Results(), "ours", "text").splitlines()
    assert said[2:6] == [
        "data     method       last  selected  noise     published  difference",
        "---------------------------------------------------------------------",
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
    assert "| data | method | best on test | last | noise | published | difference |" in said
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
    assert "epochs" not in render(STUDIES["intra"], read([store]), "ours", "text")
    fake(EXTRA, 0.5, epochs=20)
    (table, _) = tables_of(STUDIES["intra"], read([store]), "ours")
    assert table.header[-1] == "epochs"
    assert [row[-1] for row in table.rows] == ["20", "100"]


def test_p_values_are_exact_not_stars():
    assert [show_p(p) for p in (0.04999, 1.2345678e-9, None)] == ["0.04999", "1.235e-09", ""]
