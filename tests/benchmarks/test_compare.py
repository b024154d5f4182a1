"""The benchmark of the comparison of encoders."""

import json
from pathlib import Path

import torch

from benchmarks.compare import judge, table
from complementary.clusters import compare
from complementary.data.dataset import Dataset, Split

ROOT = Path(__file__).parents[2]


def test_judge_compares_with_the_accuracy_on_the_test_set(monkeypatch):
    monkeypatch.setattr(compare, "DECAYS", (1e-3,))
    source = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (400,), generator=source)
    vectors = torch.eye(3, 4)[truth] + 0.1 * torch.randn(400, 4, generator=source)
    train, test = (Split(vectors[rows], truth[rows]) for rows in (slice(0, 300), slice(300, None)))
    dataset = Dataset("clouds", train, test, ("a", "b", "c"), (0.0,) * 4, (1.0,) * 4)
    noise = torch.randn(400, 4, generator=source)
    found = judge(dataset, {"good": (vectors[:300], vectors[300:]), "noise": (noise[:300], noise[300:])}, seed=0)
    assert found["winner"] == found["scores"][0]["encoder"] == "good"
    assert found["oracle_accuracy"]["good"] > 0.95
    assert found["oracle_accuracy"]["noise"] < 0.6


def test_guide_has_the_table_of_the_stored_comparisons():
    rows = json.loads((ROOT / "results/compare.json").read_text())["comparisons"]
    page = (ROOT / "docs/guide/encoders.md").read_text(encoding="utf-8")
    assert table(rows) in page, "run: python -m benchmarks.compare --page results/compare.json"
