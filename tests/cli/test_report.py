import contextlib
import dataclasses
import json
import re
import sqlite3
from pathlib import Path

import pytest

import complementary
from complementary.config import Config


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two losses, two values of alpha, two seeds."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "results"
    folder.mkdir()
    cells = [(loss, alpha, seed) for loss in ("s-nl", "dm") for alpha in (0.1, 0.4) for seed in (0, 1)]
    for number, (loss, alpha, seed) in enumerate(cells):
        config = Config.of(loss=loss, alpha=alpha, seed=seed)
        content = {"accuracy_last": number / 10, "config": dataclasses.asdict(config), "config_hash": config.hash()}
        (folder / f"{number}.json").write_text(json.dumps(content))
    return folder


def test_a_table_on_the_screen_or_in_a_file(cll, results, tmp_path):
    asked = ("report", results, "--where", "alpha=0.1", "--rows", "loss", "--format", "csv")
    status, out, error = cll(*asked)
    assert (status, error) == (0, "")
    found = [line.split(",") for line in out.splitlines()]
    assert [row[0] for row in found] == ["loss", "s-nl", "dm"]
    assert [float(row[2]) for row in found[1:]] == pytest.approx([0.05, 0.45])
    assert [row[-1] for row in found[1:]] == ["2", "2"]
    assert cll(*asked, "--out", tmp_path / "table.csv") == (0, f"Table: {tmp_path / 'table.csv'}\n", "")
    assert (tmp_path / "table.csv").read_text() == out


def test_it_refuses_to_average_over_an_option_that_is_not_named(cll, results):
    status, out, error = cll("report", results, "--rows", "loss")
    assert (status, out) == (2, "")
    assert error == (
        "cll report: The rows average over alpha = 0.1, 0.4; choose by --where alpha=0.1 (that keeps 4 of 8 runs), or "
        "tell all runs apart by --rows loss alpha (or --columns, --by).\n"
    )
    assert cll("report", results, "--rows", "loss", "--columns", "alpha")[0] == 0
    assert "alpha = 0.4" in cll("report", results, "--rows", "loss", "--by", "alpha")[1]


def test_repeated_and_damaged_files_are_mentioned(cll, results):
    (results / "copy.json").write_bytes((results / "0.json").read_bytes())
    status, out, error = cll("report", results)
    assert status == 0
    assert error == "1 result repeats a configuration; each counts once.\n"
    (results / "3.json").write_text("{")
    status, _, error = cll("report", results)
    assert status == 2
    assert f"{results / '3.json'} is damaged" in error
    status, skipped, error = cll("report", results, "--skip-damaged")
    assert status == 0
    assert "left out: " in error
    assert skipped != out


def test_the_example_of_the_documentation_is_refused_with_the_words_that_answer_it(cll, monkeypatch):
    monkeypatch.chdir(Path(complementary.__file__).parents[2])
    page = Path("docs/sweeps.md").read_text()
    question, table = "report results/paper --where {} --rows loss --columns mix", "data=cifar10 long_tail=100"
    assert f"cll {question.format(table)}\n" in page
    status, _, error = cll(*question.format(table).split())
    assert status == 2
    words = re.search(r"by --where (.*) \(that keeps \d+ of \d+ runs\), or tell all runs apart by (.*) \(or", error)
    assert f"cll {question.format(words[1])}\n" in page
    status, out, error = cll(*question.format(words[1]).split())
    assert (status, error) == (0, "")
    assert out in page
    assert cll(*question.format(table).replace("--rows loss", words[2]).split())[0] == 0


def test_only_an_index_is_replaced_by_an_index(cll, results, tmp_path):
    precious, index = tmp_path / "precious.toml", tmp_path / "all.sqlite"
    precious.write_text("lr = 0.1")
    status, out, error = cll("report", results, "--index", precious)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "is not an index of runs but a file of 8 bytes" in error
    assert precious.read_text() == "lr = 0.1"
    for accuracy in (0.25, 0.75):
        content = json.loads((results / "0.json").read_text()) | {"accuracy_last": accuracy}
        (results / "0.json").write_text(json.dumps(content))
        assert cll("report", results, "--index", index)[0] == 0
        with contextlib.closing(sqlite3.connect(index)) as database:
            assert database.execute("SELECT accuracy_last FROM runs").fetchone() == (accuracy,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{results}", "--index", "/proc/nowhere/all.sqlite"], "The index /proc/nowhere/all.sqlite cannot be written"),
        (["{results}", "--rows", "lots"], "The option 'lots' is not known"),
        (["{results}", "--where", "loss"], "write OPTION=VALUE"),
        (["{results}", "--value", "luck"], "The value 'luck' is not known"),
        (["{results}/nowhere"], "There is no file or folder"),
        (["{empty}"], "There is no result of a training run here"),
        (["{results}", "--out", "/nowhere/table.md"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(cll, results, tmp_path, options, said):
    (tmp_path / "empty").mkdir()
    status, _, error = cll("report", *(o.format(results=results, empty=tmp_path / "empty") for o in options))
    assert status == 2
    assert said in error
    assert error.count("\n") == 1
