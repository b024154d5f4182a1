"""Clusters are made once, kept by what decides them, and never taken for others."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import complementary.clusters.assign
from complementary import files
from complementary.clusters.assign import clusters_of
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.data.selection import select
from complementary.errors import UserError
from complementary.training.task import build_task


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, in which clusters of the small digits are kept too."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(complementary.clusters.assign, "LONG", 1)
    return tmp_path / "cache" / "stages"


FAST = Config.of(clusters=5, restarts=1)


def clusters(config=FAST, **options):
    config, dataset = config.with_(**options), load("digits")
    return clusters_of(config, dataset, select(config, dataset)[0], "cpu")


def refuse(*_):
    raise AssertionError("it was done again")


def test_clusters_are_made_once_and_said_once(cache, capsys, monkeypatch):
    first = clusters()
    assert capsys.readouterr().err == "clustering 1,437 images into 5 clusters\n"
    for name in ("kmeans", "embed"):
        monkeypatch.setattr(complementary.clusters.assign, name, refuse)
    assert torch.equal(clusters(), first)
    assert capsys.readouterr().err == ""
    assert torch.equal(build_task(FAST.with_(holdout=0.0)).group, first)


def test_few_examples_are_clustered_without_a_word_or_a_file(cache, capsys, monkeypatch):
    monkeypatch.setattr(complementary.clusters.assign, "LONG", 1438)
    clusters()
    assert capsys.readouterr().err == ""
    assert not cache.exists()


def test_vectors_are_called_vectors(cache, capsys):
    dataset = Dataset("v", Split(torch.randn(40, 2)), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    clusters_of(FAST, dataset, torch.arange(30))
    assert capsys.readouterr().err == "clustering 30 vectors into 5 clusters\n"


@pytest.mark.parametrize(
    "options",
    [{"clusters": 6}, {"restarts": 2}, {"seed": 1}, {"long_tail": 2.0}, {"encoder": "random"}],
    ids=lambda o: next(iter(o)),
)
def test_whatever_changes_the_clusters_is_another_stage(cache, monkeypatch, options):
    clusters()
    other = clusters(**options)
    assert len(list(cache.glob("clusters-*"))) == 2
    monkeypatch.setattr(complementary.clusters.assign, "LONG", 10_000)
    assert torch.equal(other, clusters(**options))


def test_what_does_not_change_the_clusters_is_the_same_stage(cache):
    clusters()
    clusters(mix="micm", alpha=0.1, loss="dm", labels="biased:3", epochs=7, batch=32)
    assert len(list(cache.iterdir())) == 1


def test_embeddings_count_by_their_content(cache, tmp_path):
    table = np.random.default_rng(0).normal(size=(1437, 2))
    for name, content in (("a", table), ("b", table), ("c", -table)):
        np.save(tmp_path / f"{name}.npy", content)
        clusters(encoder=f"embeddings:{tmp_path / name}.npy")
    assert len(list(cache.iterdir())) == 2


def test_an_encoder_counts_by_its_content_and_not_by_its_folder(cache, tmp_path):
    from complementary.encoders.backbone import build_body

    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        body, record = (
            build_body("cnn", (1, 8, 8), seed, True)[0],
            {"shape": [1, 8, 8], "body": "cnn", "max_pool": True},
        )
        files.write_checkpoint(tmp_path / name / "encoder.safetensors", body.state_dict(), record)
        clusters(encoder=f"run:{tmp_path / name}")
    assert len(list(cache.iterdir())) == 2


def test_the_scale_of_the_inputs_counts_for_a_network(cache):
    """Its features depend on how inputs are normalised, not on their bytes alone."""
    dataset = load("digits")
    for mean in (dataset.mean, (0.9,)):
        clusters_of(FAST.with_(encoder="random"), replace(dataset, mean=mean), torch.arange(1437), "cpu")
    assert len(list(cache.iterdir())) == 2


def test_an_encoder_that_is_pretrained_on_the_way_counts_by_its_settings(cache, monkeypatch):
    monkeypatch.setattr(complementary.clusters.assign, "embed", lambda *_: torch.rand(1437, 2))
    for options in ({}, {"pretrain_epochs": 3}, {"encoder": "byol"}, {"pretrain_epochs": 800}):
        clusters(**{"encoder": "simsiam"} | options)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("encoder", ["pixels:x", "clip", "run:", "run:nowhere", "file:nowhere", "embeddings:nowhere"])
def test_a_bad_encoder_is_told_and_not_looked_up(cache, encoder):
    clusters()
    with pytest.raises(UserError):
        clusters(encoder=encoder)
    assert len(list(cache.iterdir())) == 1
