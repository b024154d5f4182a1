import json
from pathlib import Path

from benchmarks.coverage import FIXED, RUNS, Case, Count, fixed, main, simulate, table, whole_run


def test_count_summary_counts_what_is_covered_and_what_has_no_number():
    count = Count()
    for low, high in ((0.5, 0.8), (0.75, 0.9), (0.6, 0.72)):
        count.add(0.7, low, high, 0.7)
    count.add(None, None, None, 0.7)
    count.add(float("nan"), 0.1, 0.9, 0.7)
    found = count.summary()
    assert found["coverage"] == round(2 / 3, 4)
    assert found["without_number"] == 0.4
    assert found["mean_width"] == round((0.3 + 0.15 + 0.12) / 3, 4)


def test_fixed_measures_both_populations_of_a_tail():
    found = fixed(Case("tail", "uniform", 3, 2000, 0.8, tail=3, repeats=5))
    assert set(found) == {"data", "balanced", "balanced, class sizes known"}
    assert found["data"].covered + found["data"].missed == 5


def test_whole_run_gives_an_interval_for_each_data_set():
    found = whole_run(Case("run", "uniform", 3, 400, repeats=2))
    assert found["data"].covered + found["data"].missed + found["data"].without == 2


def test_simulate_draws_another_data_set_for_each_seed():
    one, other = (simulate(RUNS[0], seed).train.inputs for seed in (0, 1))
    assert one.shape == other.shape
    assert not (one == other).any()


def test_main_stores_a_file_for_each_case(tmp_path):
    main(["--only", "3 classes", "--repeats", "3", "--out", str(tmp_path)])
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert {f["case"]["name"] for f in found} == {c.name for c in FIXED if c.classes == 3}
    assert all(f["case"]["repeats"] == 3 for f in found)
    assert len(table(tmp_path).splitlines()) == len(found)


def test_table_in_the_docs_is_that_of_the_stored_results():
    page = Path("docs/notes/estimates.md").read_text(encoding="utf-8")
    assert table(Path("results/coverage")) in page
