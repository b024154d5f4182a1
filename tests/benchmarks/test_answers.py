"""The comparison of the report with the truth: its answers, its measures and its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.answers import WRONG, answers_of, measure, table


def test_answers_are_wrong_as_often_as_they_should_be():
    truth = np.arange(20_000) % 7
    answers, wrong = answers_of(truth, 7, seed=0)
    assert np.array_equal(answers == truth, wrong)
    assert wrong.mean() == pytest.approx(WRONG, abs=0.005)
    assert np.bincount((answers - truth)[~wrong] % 7)[1:] == pytest.approx(np.full(6, 20_000 * 0.97 / 6), rel=0.1)


@pytest.mark.slow
def test_measure_compares_estimates_with_the_truth():
    random = np.random.default_rng(9)
    y = random.integers(0, 3, 600)
    x = (4 * np.eye(3).repeat(20, 1)[y] + random.normal(size=(600, 60))).astype(np.float32)
    found = measure(x, y, seed=0)
    assert found["oracle_accuracy"] > 0.9
    assert found["low"] <= found["oracle_accuracy"] <= found["high"]
    assert found["error_rate"] == pytest.approx(found["oracle_error_rate"], abs=0.02)
    assert found["flagged"] > 0
    assert found["oracle_precision"] > 0.6
    assert table({"blobs": [found, found | {"oracle_precision": None}]}).count("\n") == 2


def test_guide_has_the_table_of_the_stored_result():
    root = Path(__file__).parents[2]
    stored = table(json.loads((root / "results/answers.json").read_text()))
    assert stored in (root / "docs/guide/report.md").read_text(encoding="utf-8"), "run: python -m benchmarks.answers"
