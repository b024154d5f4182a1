import pytest
import torch

from benchmarks import parts
from benchmarks.setting import QUICK, Setting
from complementary.engine.backend import Engine


@pytest.fixture
def setting():
    return Setting(Engine.choose("cpu"), QUICK)


def test_kmeans_inertia_is_close_to_that_of_scikit_learn(setting):
    ours, theirs = parts.kmeans(setting)
    assert (ours["by"], theirs["by"]) == ("ours", "scikit-learn (CPU)")
    assert ours["inertia"] == pytest.approx(theirs["inertia"], rel=0.1)
    assert ours["times_as_fast"] == 1.0
    assert theirs["times_as_fast"] == pytest.approx(theirs["ms"] / ours["ms"])


def test_kmeans_runs_without_scikit_learn(setting, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [row["by"] for row in parts.kmeans(setting)] == ["ours"]


def test_label_generation_counts_labels_per_second(setting):
    [row] = parts.label_generation(setting)
    assert row["labels"] == 1000
    assert row["labels_per_second"] == pytest.approx(1000 / row["ms"] * 1e3)


def test_scan_changes_one_size_at_a_time(setting, monkeypatch):
    asked = []
    mixing = parts._mixing

    def spied(setting, **sizes):
        asked.append(sizes)
        return mixing(setting, **sizes)

    monkeypatch.setattr(parts, "_mixing", spied)
    rows = parts.scan(setting)
    usual = {"batch": 16, "clusters": 4, "classes": 10, "examples": 96}
    for row, sizes in zip(rows, asked, strict=True):
        assert sizes == usual | {row["grows"]: row["value"]}
    assert [row["value"] for row in rows] == [16, 32, 2, 8, 5, 10, 100, 200]
    assert [row["times_first"] for row in rows][::2] == [1.0] * 4


def test_scan_mixes_a_batch_of_the_given_size(setting, monkeypatch):
    seen = []

    def spied(_, x, excluded, group, *__):
        seen.append((x, excluded, group))
        return x, excluded

    monkeypatch.setattr(parts, "mix", spied)
    monkeypatch.setattr(parts, "replayed", lambda _, part, index: part(index, torch.Generator()))
    parts._mixing(setting, batch=16, clusters=3, classes=7, examples=50)
    [(x, excluded, group)] = seen
    assert (x.shape, excluded.shape, group.shape) == ((16, 3, 32, 32), (16, 7), (50,))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert int(group.max()) == 2
