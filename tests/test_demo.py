import json
import re

from complementary.demo import MIXES


def test_the_demo_runs_and_its_page_stands_alone(cll, tmp_path):
    status, _, _ = cll("demo", "--out", tmp_path, "--seeds", 2, "--epochs", 2)
    assert status == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(r["mix"], r["config"]["seed"]) for r in results] == [(m, s) for s in (0, 1) for m in MIXES]
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', page), "a self-contained page fetches nothing"
    assert len(page) > 50_000


def test_table_and_page_show_the_results_that_were_stored(cll, tmp_path):
    _, out, _ = cll("demo", "--out", tmp_path, "--seeds", 2, "--epochs", 2)
    results = json.loads((tmp_path / "results.json").read_text())
    page = (tmp_path / "report.html").read_text()
    for name in MIXES:
        values = [100 * r["accuracy_last"] for r in results if r["mix"] == name]
        mean = f"{sum(values) / len(values):.1f}"
        assert any(name in line and mean in line for line in out.splitlines())
        assert mean in page


def test_a_second_demo_replaces_only_its_own_files(cll, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    for _ in range(2):
        assert cll("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1)[0] == 0
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert {p.name for p in tmp_path.iterdir()} == {"mine.txt", "results.json", "report.html"}
