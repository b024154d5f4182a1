import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scale

ROOT = Path(__file__).parents[2]


def record(kind, **seconds):
    sizes = [
        {"kind": kind, "count": int(count[1:]), "stages": [{"name": "fit", "cpu_seconds": s, "private_mb": 100 * s}]}
        for count, s in seconds.items()
    ]
    return {"sizes": sizes}


def test_tables_extrapolate_along_the_line_of_the_two_largest_sizes():
    text = scale.tables([record("images", n100000=2.0, n200000=3.0)])
    assert text.splitlines()[-1] == "| fit | 2 s, 0.2 GB | 3 s, 0.3 GB | *11 s, 1.1 GB* |"


def test_tables_do_not_extrapolate_k_means_to_its_other_method():
    small, large = record("images", n100000=2.0, n200000=3.0), record("images", n300000=2.0, n400000=3.0)
    for each in (small, large):
        for size in each["sizes"]:
            size["stages"][0]["name"] = "k-means"
    assert scale.tables([small]).endswith("| not measured |")
    assert scale.tables([large]).endswith("| *9 s, 0.9 GB* |")


def test_tables_show_what_was_measured_at_the_target():
    text = scale.tables([record("vectors", n1000000=2.0, n2000000=3.0), record("vectors", n10000000=40.0)])
    assert text.splitlines()[-1] == "| fit | 2 s, 0.2 GB | 3 s, 0.3 GB | 40 s, 4.0 GB |"


def test_written_vectors_have_labels_that_are_never_true(tmp_path):
    scale.write_vectors(tmp_path, 500)
    truth, not_y = scale.labels_of(500)
    assert (truth != not_y).all()
    with np.load(tmp_path / "all.npz") as content:
        assert content["inputs"].shape == (500, scale.DIMENSIONS)
        assert np.array_equal(content["not_y"], not_y)
    rows = (tmp_path / "answers.csv").read_text().splitlines()
    assert rows[1] == f"0,{scale.NAMES[not_y[0]]}"
    assert len(rows) == 501


def test_stages_are_the_same_for_all_sizes_but_for_the_csv(tmp_path):
    first, *others = scale.stages("vectors", tmp_path)
    assert "CSV" in first.name
    assert scale.stages("vectors", tmp_path, with_csv=False) == others
    commands = [stage.command[0] for stage in scale.stages("images", tmp_path)]
    assert commands == ["data", "data", "cluster", "train", "predict"]


def test_measure_says_what_a_command_took(tmp_path):
    found = scale.measure(scale.Stage("list", ("data", "list")), tmp_path)
    assert found.cpu_seconds > 0
    assert 5 < found.private_mb < found.resident_mb < 2000


def test_measure_shows_why_a_command_failed(tmp_path):
    with pytest.raises(SystemExit, match="no command"):
        scale.measure(scale.Stage("wrong", ("no-such-command",)), tmp_path)


def test_guide_has_the_tables_of_the_stored_results():
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results/scale").glob("*.json"))]
    page = (ROOT / "docs/guide/scale.md").read_text(encoding="utf-8")
    for table in scale.tables(records).split("\n\n"):
        assert table in page, "run: python -m benchmarks.scale --page results/scale/*.json"
