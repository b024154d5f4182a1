"""Clusters of a configuration, their cache, and assignment files."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from complementary import files
from complementary.clusters import assign, cache
from complementary.clusters.assign import cluster_points, clusters_of, points_of, read_assignment, write_assignment
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.data.selection import select
from complementary.encoders.backbone import build_backbone
from complementary.errors import UserError
from complementary.oracle import same_class
from complementary.training.task import build_task

DIGITS = load("digits")
FAST = Config.of(clusters=5, restarts=1, encoder="pixels")


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """An empty cache, which also stores clusters of the few digits."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 1)
    return tmp_path / "cache" / "stages"


def extractor(dataset=DIGITS, **options):
    config = FAST.with_(**options)
    return FeatureExtractor(config, dataset, select(config, dataset)[0], "cpu")


def clusters(**options):
    return clusters_of(extractor(**options))


def stored(stages):
    return len(list(stages.glob("clusters-*")))


# --- clusters of a configuration ----------------------------------------------------------------------------------


def test_clusters_are_computed_once(stages, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "complementary")
    first = clusters()
    assert [record.getMessage() for record in caplog.records] == ["clustering 1,437 images into 5 clusters"]

    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(assign, "kmeans", refuse)
    monkeypatch.setattr(FeatureExtractor, "_extract", refuse)
    assert torch.equal(clusters(), first)
    assert len(caplog.records) == 1
    assert torch.equal(build_task(FAST.with_(holdout=0.0)).cluster, first)


def test_clusters_of_few_examples_are_neither_cached_nor_logged(stages, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "complementary")
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 1438)
    clusters()
    assert not caplog.records
    assert not stages.exists()


def test_clusters_of_vectors_are_logged_as_such(stages, caplog):
    caplog.set_level(logging.INFO, "complementary")
    dataset = Dataset("v", Split(torch.randn(40, 2)), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    clusters_of(FeatureExtractor(FAST, dataset, torch.arange(30)))
    assert [record.getMessage() for record in caplog.records] == ["clustering 30 vectors into 5 clusters"]


@pytest.mark.parametrize(
    "options",
    [{"clusters": 6}, {"restarts": 2}, {"seed": 1}, {"long_tail": 2.0}, {"encoder": "random"}],
    ids=lambda o: next(iter(o)),
)
def test_clusters_with_other_options_are_another_stage(stages, monkeypatch, options):
    clusters()
    other = clusters(**options)
    assert stored(stages) == 2
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 10_000)
    assert torch.equal(other, clusters(**options))


def test_clusters_do_not_depend_on_options_of_the_training(stages):
    clusters()
    clusters(mix="micm", alpha=0.1, loss="dm", labels="biased:3", epochs=7, batch=32)
    assert stored(stages) == 1


def test_clusters_depend_on_the_content_of_embeddings_and_not_on_their_name(stages, tmp_path):
    table = np.random.default_rng(0).normal(size=(1437, 2))
    for name, content in (("a", table), ("b", table), ("c", -table)):
        np.save(tmp_path / f"{name}.npy", content)
        clusters(encoder=f"embeddings:{tmp_path / name}.npy")
    assert stored(stages) == 2


def test_clusters_depend_on_the_content_of_an_encoder_and_not_on_its_folder(stages, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        backbone, _ = build_backbone("cnn", (1, 8, 8), seed, True)
        record = {"shape": [1, 8, 8], "body": "cnn", "max_pool": True}
        files.write_checkpoint(tmp_path / name / "encoder.safetensors", backbone.state_dict(), record)
        clusters(encoder=f"run:{tmp_path / name}")
    assert stored(stages) == 2


def test_clusters_of_a_network_depend_on_the_normalization(stages):
    for mean in (DIGITS.mean, (0.9,)):
        clusters_of(extractor(replace(DIGITS, mean=mean), encoder="random"))
    assert stored(stages) == 2


def test_clusters_of_a_pretrained_encoder_depend_on_the_pretraining(stages, monkeypatch):
    monkeypatch.setattr(FeatureExtractor, "_extract", lambda *_: torch.rand(1437, 2))
    for options in ({}, {"pretrain_epochs": 3}, {"encoder": "byol"}, {"pretrain_epochs": 800}):
        clusters(**{"encoder": "simsiam"} | options)
    assert stored(stages) == 3


@pytest.mark.parametrize("encoder", ["pixels:x", "clip", "run:", "run:nowhere", "file:nowhere", "embeddings:nowhere"])
def test_clusters_of_a_bad_encoder_are_not_looked_up(stages, encoder):
    clusters()
    with pytest.raises(UserError):
        clusters(encoder=encoder)
    assert stored(stages) == 1


def test_clusters_of_nan_embeddings_are_rejected(tmp_path):
    table = np.ones((1437, 2))
    table[9] = np.nan
    np.save(tmp_path / "z.npy", table)
    with pytest.raises(UserError, match="NaN"):
        clusters(encoder=f"embeddings:{tmp_path / 'z.npy'}")


def test_clusters_must_not_be_0():
    with pytest.raises(UserError, match="icm") as caught:
        clusters(clusters=0)
    assert caught.value.option == "clusters"


@pytest.mark.slow
def test_spectral_clusters_are_purer_than_those_of_k_means():
    found = extractor(clusters=20, clustering="spectral")
    spectral = clusters_of(found)
    assert torch.equal(spectral, cluster_points(found.config, points_of(found), 20))
    assert same_class(spectral, DIGITS.train.truth) > same_class(clusters(clusters=20), DIGITS.train.truth)


def test_spectral_points_are_shared_by_all_numbers_of_clusters(stages, caplog):
    caplog.set_level(logging.INFO, "complementary")
    for count in (5, 12):
        clusters(clusters=count, clustering="spectral")
    assert ["neighbors" in record.getMessage() for record in caplog.records].count(True) == 1
    assert stored(stages) == 2


def test_spectral_contradicts_an_assignment_file():
    with pytest.raises(UserError, match="assignments") as caught:
        Config.of(assignments="a.safetensors", clustering="spectral")
    assert caught.value.option == "clustering"


# --- assignment files ---------------------------------------------------------------------------------------------

IMAGES = DIGITS.train.inputs[:500]
VECTORS = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
ASSIGNMENT = torch.arange(500) % 20
MADE_BY = {"data": "digits", "encoder": "pixels", "head": None, "seed": 3}


@pytest.fixture
def path(tmp_path):
    write_assignment(tmp_path / "clusters.safetensors", ASSIGNMENT, 20, IMAGES, MADE_BY)
    return tmp_path / "clusters.safetensors"


@pytest.mark.parametrize(
    ("clusters", "dtype"), [(20, torch.uint8), (256, torch.uint8), (257, torch.int32), (500, torch.int32)]
)
@pytest.mark.parametrize("inputs", [IMAGES, VECTORS], ids=["images", "vectors"])
def test_assignment_round_trips(tmp_path, clusters, dtype, inputs):
    assignment = torch.arange(500) % clusters
    write_assignment(tmp_path / "a", assignment, clusters, inputs, MADE_BY)
    assert load_file(tmp_path / "a")["assignment"].dtype == dtype
    for check in (inputs, inputs.clone(), None):
        found, record = read_assignment(tmp_path / "a", check)
        assert found.dtype == torch.int64
        assert torch.equal(found, assignment)
        assert record["clusters"] == clusters
        assert record["made_by"] == MADE_BY


def test_assignment_of_equal_content_has_equal_bytes(tmp_path, path):
    write_assignment(tmp_path / "again", ASSIGNMENT.clone(), 20, IMAGES.clone(), dict(reversed(MADE_BY.items())))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert len(path.read_bytes()) < 1500, "a byte per example, and a header"


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        (IMAGES[:499], "499"),
        (torch.cat([IMAGES, IMAGES[:1]]), "501"),
        (IMAGES.flip(0), "other examples"),
        (torch.cat([IMAGES[1:2], IMAGES[:1], IMAGES[2:]]), "other examples"),
        (DIGITS.train.inputs[500:1000], "other examples"),
        (IMAGES.view(500, 1, 4, 16), "other examples"),
        (IMAGES.view(torch.int8), "other examples"),
        (VECTORS, "other examples"),
    ],
    ids=["fewer", "more", "reversed", "two exchanged", "others", "reshaped", "retyped", "vectors"],
)
def test_assignment_of_other_examples_is_rejected(path, inputs, found):
    with pytest.raises(UserError, match=found) as caught:
        read_assignment(path, inputs)
    assert str(path) in str(caught.value)
    assert caught.value.option == "assignments"


def test_assignment_notices_one_changed_pixel(path):
    changed = IMAGES.clone()
    changed[321, 0, 5, 5] += 1
    with pytest.raises(UserError, match="other examples"):
        read_assignment(path, changed)


def test_assignment_that_is_altered_or_cut_is_rejected(path):
    content = path.read_bytes()
    altered = [content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], content.replace(b"pixels", b"quarks")]
    for other in altered + [content[:cut] for cut in (0, 7, 100, len(content) - 1)]:
        path.write_bytes(other)
        with pytest.raises(UserError, match=r"[nN]othing was loaded"):
            read_assignment(path, IMAGES)


def test_assignment_rejects_other_files(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UserError, match="There is no file"):
        read_assignment(path)
    path.write_text("cluster,example\n3,0\n")
    with pytest.raises(UserError, match="nothing was loaded"):
        read_assignment(path)
    for tensors, record in (
        ({"fc.weight": torch.ones(3)}, {"version": 1}),
        ({"assignment": ASSIGNMENT}, {}),
        ({"assignment": ASSIGNMENT}, {"version": 2}),
    ):
        files.write_checkpoint(path, tensors, record)
        with pytest.raises(UserError, match="version 1"):
            read_assignment(path)


@pytest.mark.parametrize(("clusters", "found"), [(19, ASSIGNMENT), (50, torch.arange(500)), (20, ASSIGNMENT[:-1])])
def test_assignment_that_does_not_fit_is_not_written(tmp_path, clusters, found):
    """As bytes, clusters 256 and 0 would be the same."""
    with pytest.raises(UserError, match="500 examples"):
        write_assignment(tmp_path / "a", found, clusters, IMAGES, MADE_BY)
    assert not (tmp_path / "a").exists()


SETTINGS = ("--long-tail", 3, "--clusters", 20, "--restarts", 1, "--seed", 3)
TRAINING = ("--mix", "micm", "--epochs", 2, "--batch", 128)


@pytest.mark.slow
def test_training_with_a_file_equals_training_with_its_clustering(cll, tmp_path):
    file = tmp_path / "clusters.safetensors"
    assert cll("cluster", *SETTINGS, "--out", file)[0] == 0
    assert cll("train", *SETTINGS, *TRAINING, "--out", tmp_path / "own")[0] == 0
    options = (*SETTINGS[:2], *SETTINGS[-2:])  # without options of the clustering
    assert cll("train", *options, *TRAINING, "--assignments", file, "--out", tmp_path / "file")[0] == 0
    own, read = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("own", "file"))
    assert own == read
    assert len(own.splitlines()) == 2
    last = [files.read_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("own", "file")]
    assert all(torch.equal(last[0][k], last[1][k]) for k in last[0].keys() | last[1].keys())
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("own", "file")]
    assert results[0]["oracle_noise_ratio"] == results[1]["oracle_noise_ratio"] > 0
    assert results[0]["data"]["clusters_sha256"] == results[1]["data"]["clusters_sha256"]


@pytest.mark.parametrize(
    ("options", "found"), [(("--seed", 4, "--long-tail", 3), "other examples"), (("--seed", 3), "1437")]
)
def test_training_on_other_examples_than_those_of_the_file_is_rejected(cll, tmp_path, options, found):
    file = tmp_path / "clusters.safetensors"
    assert cll("cluster", *SETTINGS, "--out", file)[0] == 0
    status, _, error = cll("train", *options, *TRAINING, "--assignments", file, "--out", tmp_path / "x")
    assert status == 2
    assert found in error
    assert "--assignments" in error
    assert not (tmp_path / "x" / "result.json").exists()
