import pytest
from scipy import stats

from complementary.paper import precision
from complementary.paper.page import write_page
from complementary.paper.store import read
from tests.paper.conftest import entry_of

BF16, FP32 = (0.30, 0.32, 0.35), (0.31, 0.32, 0.33)


@pytest.fixture
def both(add_run, store):
    """The same three seeds with both precisions; one more seed with bf16 only."""
    entry = entry_of("p-values", "icm", data="cifar10", tail=100.0, loss="s-nl")
    paths = [add_run(entry, value, seed=seed, precision="fp32") for seed, value in enumerate(FP32)]
    exact = read([store])
    for path in paths:
        path.unlink()
    for seed, value in enumerate((*BF16, 0.9)):
        add_run(entry, value, seed=seed, precision="bf16")
    return read([store]), exact


def test_precision_pairs_runs_of_one_configuration_and_seed(both):
    results, exact = both
    ((name, found),) = precision.pairs(results.rows, exact.rows).items()
    assert name == "cifar10, ρ = 100, s-nl, icm, 300 epochs"
    assert sorted((a["accuracy_last"], b["accuracy_last"]) for a, b in found) == list(zip(BF16, FP32, strict=True))
    assert precision.pairs(results.rows, results.rows) == {}  # bf16 is not compared with itself


def test_precision_table_has_the_paired_test(both):
    results, exact = both
    row = precision.table(precision.pairs(results.rows, exact.rows)).rows[1]
    p = stats.ttest_rel(BF16, FP32).pvalue
    assert row[1:] == ["last", "32.33 ± 2.52 (3)", "32.00 ± 1.00 (3)", "+0.33 ± 0.88", f"{p:.2g}"]


def test_page_shows_what_bf16_changes_if_it_was_measured(both):
    results, exact = both
    assert "## What bf16 changes\n" in write_page(results, None, exact.rows)
    assert "What bf16 changes" not in write_page(results)
