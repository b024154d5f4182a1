import dataclasses
import json

import pytest

from complementary.config import configure


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two losses, two values of alpha, two seeds."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "results"
    folder.mkdir()
    cells = [(loss, alpha, seed) for loss in ("s-nl", "dm") for alpha in (0.1, 0.4) for seed in (0, 1)]
    for number, (loss, alpha, seed) in enumerate(cells):
        config = configure(loss=loss, alpha=alpha, seed=seed)
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
        "cll report: The rows average over alpha = 0.1, 0.4; choose by --where alpha=..., or tell them apart by "
        "--rows, --columns or --by alpha.\n"
    )
    assert cll("report", results, "--rows", "loss", "--columns", "alpha")[0] == 0
    assert "alpha = 0.4" in cll("report", results, "--rows", "loss", "--by", "alpha")[1]


def test_repeated_and_damaged_files_are_mentioned(cll, results):
    (results / "copy.json").write_bytes((results / "0.json").read_bytes())
    status, out, error = cll("report", results)
    assert status == 0
    assert error == "1 results repeat a configuration; each counts once.\n"
    (results / "3.json").write_text("{")
    status, _, error = cll("report", results)
    assert status == 2
    assert f"{results / '3.json'} is damaged" in error
    status, skipped, error = cll("report", results, "--skip-damaged")
    assert status == 0
    assert "left out: " in error
    assert skipped != out


@pytest.mark.parametrize(
    ("options", "said"),
    [
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
