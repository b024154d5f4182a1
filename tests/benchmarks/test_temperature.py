"""The simulation of calibration: its models are calibrated up to the factor, and the notes show the stored results."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import temperature
from benchmarks.temperature import main, simulate, table

ROOT = Path(__file__).parents[2]


def test_simulated_models_are_calibrated_after_division_by_the_temperature():
    excluded, probabilities = simulate(20_000, 1, 6.0, 0.1, 1.6, 0)
    calibrated = (probabilities.log() / 1.6).softmax(1)
    # an answer excludes class k with probability (1 - p_k) (1 - rate) / 4 + p_k rate
    wanted = (1 - calibrated) * 0.9 / 4 + calibrated * 0.1
    torch.testing.assert_close(excluded.double().mean(0), wanted.mean(0), atol=0.01, rtol=0)
    sure = calibrated.max(1).values > 0.99
    named = excluded[sure].gather(1, calibrated[sure].argmax(1, keepdim=True)).double().mean()
    assert float(named) == pytest.approx(0.1, abs=0.01)


def test_command_line_writes_results_and_prints_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(temperature, "SETTINGS", ((120, 2, 8.0),))
    monkeypatch.setattr(temperature, "RATES", (0.0,))
    main(["--out", str(tmp_path / "found.json"), "--draws", "2"])
    rows = json.loads((tmp_path / "found.json").read_text())
    assert [row["temperature"] for row in rows] == list(temperature.TEMPERATURES)
    assert table(rows) in capsys.readouterr().out
    assert all(0 < row["posterior"] < 1 for row in rows)


def test_notes_show_the_stored_results():
    rows = json.loads((ROOT / "results" / "temperature.json").read_text())
    assert table(rows) in (ROOT / "docs" / "notes" / "estimates.md").read_text()
