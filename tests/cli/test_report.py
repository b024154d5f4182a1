import csv
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from complementary.config import Config
from complementary.training.run import run
from tests.helpers import write_result

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path):
    """Two losses, two values of alpha, two seeds."""
    cells = [(loss, alpha, seed) for loss in ("s-nl", "dm") for alpha in (0.1, 0.4) for seed in (0, 1)]
    for number, (loss, alpha, seed) in enumerate(cells):
        write_result(tmp_path / "results" / f"{number}.json", number / 10, loss=loss, alpha=alpha, seed=seed)
    return tmp_path / "results"


def test_table_is_printed_or_written_to_a_file(cll, results, tmp_path):
    asked = ("report", results, "--where", "alpha=0.1", "--rows", "loss", "--format", "csv")
    status, out, error = cll(*asked)
    assert (status, error) == (0, "")
    found = [line.split(",") for line in out.splitlines()]
    assert [row[0] for row in found] == ["loss", "s-nl", "dm"]
    assert [float(row[2]) for row in found[1:]] == pytest.approx([0.05, 0.45])
    assert [row[-2:] for row in found[1:]] == [["2", "false"], ["2", "false"]]
    assert cll(*asked, "--out", tmp_path / "table.csv") == (0, f"Table: {tmp_path / 'table.csv'}\n", "")
    assert (tmp_path / "table.csv").read_text() == out


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_formats(cll, results, form):
    status, out, _ = cll("report", results, "--rows", "loss", "--columns", "alpha", "--format", form)
    assert status == 0
    assert re.search(r"s-nl.*5\.00 (±|\$\\pm\$) 7\.07 \(2\).*25\.00", out)


def test_runs_with_different_options_are_not_averaged(cll, results):
    status, out, error = cll("report", results, "--rows", "loss")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "alpha = 0.1, 0.4" in error
    assert "(--where)" in error
    assert cll("report", results, "--rows", "loss", "--columns", "alpha")[0] == 0
    assert "alpha = 0.4" in cll("report", results, "--rows", "loss", "--by", "alpha")[1]


def test_report_mentions_repeated_and_damaged_files(cll, results):
    (results / "copy.json").write_bytes((results / "0.json").read_bytes())
    status, out, error = cll("report", results)
    assert status == 0
    assert error.startswith("1 repeated configuration")
    (results / "3.json").write_text("{")
    status, _, error = cll("report", results)
    assert status == 2
    assert str(results / "3.json") in error
    assert "(--skip-damaged)" in error
    status, skipped, error = cll("report", results, "--skip-damaged")
    assert status == 0
    assert str(results / "3.json") in error
    assert skipped != out


def test_examples_of_the_documentation_work(cll, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = Path("docs/guide/sweeps.md").read_text()
    commands = re.findall(r"^cll (report results/\S+ [^\n#]*)", page, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        status, out, error = cll(*re.sub(r"--out \S+", "", command).split())
        assert (status, error) == (0, ""), command
        if "data=cifar10 long_tail=100" in command:
            assert out in page


def test_report_and_status_take_less_than_half_a_second_of_cpu(tmp_path):
    """Neither imports torch."""
    (tmp_path / "sweep.json").write_text("[]")
    for command in (["report", ROOT / "results/features"], ["sweep", "status", tmp_path]):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "complementary", *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.8  # 0.3 s on an idle machine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{results}", "--rows", "lots"], "'lots'"),
        (["{results}", "--where", "loss"], "OPTION=VALUE"),
        (["{results}", "--value", "luck"], "'luck'"),
        (["{results}/nowhere"], "nowhere"),
        (["{empty}"], "no result"),
        (["{results}", "--out", "/nowhere/table.md"], "/nowhere/table.md"),
    ],
)
def test_report_of_bad_input_is_one_line(cll, results, tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    status, _, error = cll("report", *(o.format(results=results, empty=tmp_path / "empty") for o in options))
    assert status == 2
    assert message in error
    assert error.count("\n") == 1


def test_report_mentions_runs_without_the_metric(cll, tmp_path):
    write_result(tmp_path / "results" / "0.json", None, loss="s-nl")
    status, _, error = cll("report", tmp_path / "results", "--rows", "loss")
    assert status == 0
    assert "1 run without accuracy_last" in error


# --- the page of one run ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(Config.of(data="digits", labels="noisy:0.03", per_example=2, mix="none", epochs=6, batch=128), folder)
    return folder


def test_report_of_a_run_is_a_page_and_a_csv(cll, finished):
    status, out, _ = cll("report", finished, "--folds", 2, "--top", 5)
    assert status == 0
    assert "Estimated accuracy" in out
    assert str(finished / "report.html") in out
    page = (finished / "report.html").read_text()
    assert page.count("data:image/png") == 10  # five answers, five uncertain examples
    assert 'href="report-answers.csv"' in page
    rows = list(csv.DictReader((finished / "report-answers.csv").read_text().splitlines()))
    assert len(rows) >= 50
    assert rows[0]["answer"].startswith("not ")
    assert 'href="report-uncertain.csv"' in page
    ask = list(csv.DictReader((finished / "report-uncertain.csv").read_text().splitlines()))
    assert len(ask) == 200
    certainty = [float(row["probability"]) for row in ask]
    assert certainty == sorted(certainty)
    assert all(float(row["second_probability"]) <= float(row["probability"]) for row in ask)


def test_one_fold_is_refused(cll, finished):
    status, _, error = cll("report", finished, "--folds", 1)
    assert status == 2
    assert "The option folds is 1, but it must be at least 2, or 0 for none" in error


def test_report_of_a_run_to_another_place(cll, finished, tmp_path):
    out = tmp_path / "page.html"
    (tmp_path / "answers.csv").write_text("the table of the user")
    assert cll("report", finished, "--folds", 0, "--no-baselines", "--out", out)[0] == 0
    assert "<h1>" in out.read_text()
    assert (tmp_path / "page-answers.csv").exists()
    assert (tmp_path / "answers.csv").read_text() == "the table of the user"


def test_report_of_a_run_with_table_options_is_a_table(cll, finished):
    status, out, _ = cll("report", finished, "--rows", "loss")
    assert status == 0
    assert "s-nl" in out
    assert "Estimated" not in out


def test_report_of_an_unfinished_run_is_one_line(cll, finished, tmp_path):
    for name in ("config.toml", "metrics.jsonl"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    status, _, error = cll("report", tmp_path)
    assert (status, error.count("\n")) == (2, 1)
    assert "not finished" in error


@pytest.mark.parametrize("options", [["--folds", "1"], ["--out", "/nowhere/x.html"], ["--weights", "best"]])
def test_report_of_a_run_with_bad_options_is_an_error(cll, finished, options):
    status, _, error = cll("report", finished, *options)
    assert status == 2
    assert options[1] in error
