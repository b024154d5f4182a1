"""Vectors with rare classes: the data, a run, and the table of stored results."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import balanced_vectors
from benchmarks.balanced_vectors import CLOUDS, OPTIONS, TEST, clouds, main, table

STORED = Path(__file__).parents[2] / "results" / "balanced-vectors.jsonl"


def test_clouds_have_rare_classes_for_training_and_equal_ones_for_the_test():
    (vectors, truth), (new, new_truth) = clouds(0)
    assert np.array_equal(np.bincount(truth), CLOUDS)
    assert np.array_equal(np.bincount(new_truth), [TEST] * len(CLOUDS))
    for k in range(len(CLOUDS)):  # the same centers: the mean of 75 examples is within 4 standard errors
        assert (
            np.abs(vectors[truth == k].mean(0) - new[new_truth == k].mean(0)).max()
            < 4 * 1.3 * (1 / 75 + 1 / 500) ** 0.5
        )


def test_command_line_adds_missing_runs_and_prints_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(balanced_vectors, "CLOUDS", (60, 40, 20))
    monkeypatch.setitem(OPTIONS, "balanced", {"balanced": True, "epochs": 2, "self_training": 1})
    out, arguments = tmp_path / "rows.jsonl", ["--data", "clouds", "--options", "balanced", "--seeds"]
    main(["--out", str(out), *arguments, "0"])
    main(["--out", str(out), *arguments, "0", "1"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        assert row["macro_accuracy"] == pytest.approx(np.mean(row["per_class"]), abs=1e-4)
        assert len(row["per_class"]) == 3
    mean, deviation = (100 * f([row["macro_accuracy"] for row in rows]) for f in (np.mean, lambda v: np.std(v, ddof=1)))
    assert f"| balanced | {mean:.1f} ± {deviation:.1f} (2) |" in capsys.readouterr().out


def test_notes_show_the_stored_results():
    rows = [json.loads(line) for line in STORED.read_text().splitlines()]
    notes = (STORED.parents[1] / "docs" / "notes" / "long-tails.md").read_text()
    assert table(rows) in notes
