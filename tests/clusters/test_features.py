"""Features by encoders of every kind, and how ``encoder = auto`` is resolved."""

import functools
import json
import logging
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from complementary import files, networks
from complementary.clusters import cache, features
from complementary.clusters.features import FeatureExtractor, cached_encoder, encoder_folder, read_embeddings
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset, Split, load
from complementary.data.rows import Rows
from complementary.data.selection import Subset, select
from complementary.encoders.backbone import build_backbone, describe, extract_features
from complementary.encoders.objectives import OBJECTIVES
from complementary.encoders.pretrain import pretrain
from complementary.encoders.spec import EncoderSpec
from complementary.errors import UserError
from complementary.training.run import run
from tests.helpers import narrow_networks

DIGITS = load("digits")
SOME = torch.tensor([5, 3, 1000, 17, 42])
ALL = torch.arange(len(DIGITS.train))
COLOR = Dataset(
    "color",
    Split(torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))),
    None,
    ("a", "b"),
    (0.4, 0.5, 0.6),
    (0.2, 0.3, 0.25),
)
VECTORS = Dataset("blobs", Split(torch.randn(40, 3)), None, ("a", "b"), (0.0,) * 3, (1.0,) * 3)


@pytest.fixture(autouse=True)
def stages(tmp_path, monkeypatch):
    """Narrow networks, and a cache that is empty."""
    narrow_networks(monkeypatch)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stages"


def extractor(encoder, dataset=DIGITS, chosen=SOME, progress=None, **options):
    config = Config.of(encoder=encoder, **{"pretrain_epochs": 2} | options)
    return FeatureExtractor(config, dataset, chosen, "cpu", progress)


def is_unit(z):
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    return True


# --- pixels, random, embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [DIGITS, VECTORS], ids=["images", "vectors"])
def test_pixels_are_the_flat_inputs_as_unit_vectors(dataset):
    chosen = torch.tensor([7, 2, 30])
    z = extractor("pixels", dataset, chosen).train
    assert is_unit(z)
    for row, i in zip(z, chosen.tolist(), strict=True):
        flat = dataset.train.inputs[i].flatten().float()
        torch.testing.assert_close(row, flat / flat.norm())


def test_random_features_depend_on_the_seed_only():
    torch.manual_seed(4)
    first, again, other = (extractor("random", seed=seed).train for seed in (0, 0, 1))
    assert is_unit(first)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=0.05)


def test_random_is_a_resnet_for_larger_images():
    found = extractor("random", COLOR, torch.tensor([4, 1]))
    assert isinstance(found.backbone(), networks.ResNet18)
    assert found.train.shape == (2, 512)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
def test_embeddings_follow_the_subset_and_become_unit_vectors(tmp_path, dtype):
    table = (np.random.default_rng(0).normal(size=(1437, 4)) * 9).astype(dtype)
    np.save(tmp_path / "z.npy", table)
    found = extractor(f"embeddings:{tmp_path / 'z.npy'}")
    assert is_unit(found.train)
    torch.testing.assert_close(found.train, F.normalize(torch.from_numpy(table).float())[SOME])
    assert found.test() is None


def test_embeddings_work_for_vectors(tmp_path):
    np.save(tmp_path / "z.npy", np.eye(40))
    found = extractor(f"embeddings:{tmp_path / 'z.npy'}", VECTORS, torch.tensor([3]))
    assert torch.equal(found.train, torch.eye(40)[[3]])


def save_archive(path):
    with path.open("wb") as file:
        np.savez(file, z=np.ones((1437, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: np.save(path, np.ones(1437)), r"\[1437\].*\[1437, D\]"),
        (lambda path: np.save(path, np.ones((1436, 3))), r"\[1436, 3\]"),
        (lambda path: np.save(path, np.array([{}] * 1437)), "table of numbers"),
        (lambda path: np.save(path, np.array([["a"]] * 1437)), "table of numbers"),
        (lambda path: path.write_text("1,2\n3,4\n"), "table of numbers"),
        (lambda path: path.write_bytes(b""), "table of numbers"),
        (lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "table of numbers"),
        (save_archive, "table of numbers"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: None, "There is no file .* of embeddings"),
    ],
    ids=["1-d", "short", "objects", "text", "csv", "empty", "half a zip", "npz", "folder", "nothing"],
)
def test_read_embeddings_rejects_what_is_not_a_table(tmp_path, make, message):
    make(tmp_path / "z.npy")
    with pytest.raises(UserError, match=message) as caught:
        read_embeddings(EncoderSpec.parse(f"embeddings:{tmp_path / 'z.npy'}"), 1437)
    assert str(tmp_path / "z.npy") in str(caught.value)


@pytest.mark.parametrize("encoder", ["random", "simsiam", "run:x", "file:x.pt"])
def test_networks_reject_vectors(encoder, stages):
    with pytest.raises(UserError, match="blobs") as caught:
        _ = extractor(encoder, VECTORS, torch.arange(4)).train
    assert caught.value.option == "encoder"
    assert not stages.exists()


@pytest.mark.parametrize("encoder", ["pixels", "random"])
def test_test_features_are_computed_like_training_features(encoder):
    swapped = replace(DIGITS, train=DIGITS.test, test=DIGITS.train)
    z = extractor(encoder).test()
    assert is_unit(z)
    torch.testing.assert_close(z, extractor(encoder, swapped, torch.arange(len(DIGITS.test))).train)
    assert extractor("pixels", COLOR, torch.arange(2)).test() is None


def test_features_of_a_run_folder(tmp_path):
    pretrain(PretrainConfig(epochs=2, batch=256, seed=3), tmp_path / "run", device="cpu")
    found = extractor(f"run:{tmp_path / 'run'}")
    backbone = networks.SmallCNN((1, 8, 8), 1)
    del backbone.fc
    tensors, _ = files.read_checkpoint(tmp_path / "run" / "encoder.safetensors")
    tensors.pop("pretraining_images")
    backbone.load_state_dict(tensors)
    wanted = extract_features(backbone, DIGITS.train.inputs[SOME], torch.tensor(DIGITS.mean), torch.tensor(DIGITS.std))
    assert is_unit(found.train)
    torch.testing.assert_close(found.train, wanted)
    assert not torch.allclose(found.train, extractor("random", seed=3).train, atol=1e-3), "it was trained"


@pytest.mark.parametrize(
    ("options", "flip"),
    [({"flip": False}, True), ({}, False), ({"encoder": "pixels"}, True), ({"encoder": "embeddings:z.npy"}, True)],
    ids=str,
)
def test_mirror_needs_flips_and_a_network(options, flip):
    with pytest.raises(UserError) as caught:
        _ = extractor(**{"encoder": "random", "mirror": True} | options, dataset=replace(DIGITS, flip=flip)).train
    assert caught.value.option == "mirror"


def test_mirror_averages_the_features_of_both_images():
    mirrored = replace(DIGITS, flip=True, train=replace(DIGITS.train, inputs=DIGITS.train.inputs.flip(-1)))
    one, other = (extractor("random", d, mirror=True).train for d in (replace(DIGITS, flip=True), mirrored))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


# --- simsiam, byol, mocov3: pretrained once -----------------------------------------------------------------------


@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_pretraining_happens_once(stages, encoder):
    steps = []
    first = extractor(encoder, progress=steps.append).train
    assert is_unit(first)
    assert len(steps) == 2 * (1437 // 512)
    (folder,) = stages.iterdir()
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir() if p.name != ".lock"}
    assert "encoder.safetensors" in before
    assert torch.equal(first, extractor(encoder, progress=steps.append).train)
    assert len(steps) == 4, "no further step"
    assert list(stages.iterdir()) == [folder]
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir() if p.name != ".lock"}
    assert torch.equal(first, extractor(f"run:{folder}").train)


def test_encoder_folder_depends_on_the_pretraining(stages):
    options = ({}, {"seed": 1}, {"pretrain_epochs": 1}, {"long_tail": 2.0}, {"encoder": "byol"})
    found = {encoder_folder(extractor(**{"encoder": "simsiam"} | o).pretraining, DIGITS) for o in options}
    assert len(found) == 5


def test_encoder_folder_depends_on_the_images_and_not_on_their_name():
    """Two files /a/photos.npz and /b/photos.npz are both called photos."""
    other = replace(DIGITS, train=replace(DIGITS.train, inputs=255 - DIGITS.train.inputs))
    pretraining = extractor("simsiam").pretraining
    assert encoder_folder(pretraining, DIGITS) != encoder_folder(pretraining, other)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_pretraining_resumes_after_an_interrupt(stages, monkeypatch, tmp_path, stop):
    monkeypatch.setattr(features, "pretrain", functools.partial(pretrain, checkpoint_seconds=0))
    seen = []

    def interrupt(loop):
        seen.append((loop.epoch, loop.step_in_epoch))
        if len(seen) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _ = extractor("byol", progress=interrupt).train
    (folder,) = stages.iterdir()
    assert not (folder / "encoder.safetensors").exists()
    z = extractor("byol", progress=interrupt).train
    assert seen == [(0, 1), (1, 0), (1, 1), (2, 0)], "each step was taken once"
    resumed = [(folder / name).read_bytes() for name in ("encoder.safetensors", "metrics.jsonl")]
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "another"))
    assert torch.equal(z, extractor("byol").train)
    (other,) = (tmp_path / "another" / "stages").iterdir()
    assert resumed == [(other / name).read_bytes() for name in ("encoder.safetensors", "metrics.jsonl")]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"long_tail": 10.0, "seed": 3},
        {"long_tail": 10.0, "head": 100, "seed": 1},
        {"long_tail": 10.0, "draws": "paper"},
        {"labels": "setup-1:10", "seed": 2},
        {"labels": "setup-3:5:10", "seed": 2},
        {"labels": "setup-2:5"},
    ],
    ids=str,
)
def test_pretraining_uses_exactly_the_images_of_the_run(options):
    config = Config.of(encoder="simsiam", **options)
    chosen = select(config, DIGITS)[0]
    assert torch.equal(Subset.of(FeatureExtractor(config, DIGITS, chosen).pretraining).index(DIGITS), chosen)


def test_pretraining_of_a_small_subset_has_a_smaller_batch(stages):
    config = Config.of(encoder="simsiam", pretrain_epochs=1, long_tail=100.0)
    chosen = select(config, DIGITS)[0]
    assert len(chosen) == 326
    assert FeatureExtractor(config, DIGITS, chosen).train.shape == (326, 32)
    (folder,) = stages.iterdir()
    assert "batch = 326\n" in (folder / "config.toml").read_text()


@pytest.mark.slow
def test_pretraining_waits_for_another_process(tmp_path, in_child, caplog):
    caplog.set_level(logging.INFO, "complementary")
    started = tmp_path / "started"

    def slow(loop):
        started.touch()
        time.sleep(0.2)

    def refuse(loop):
        raise AssertionError("trained again")

    pretraining = extractor("simsiam").pretraining
    child = in_child(lambda: cached_encoder(pretraining, DIGITS, "cpu", slow))
    while not started.exists():
        time.sleep(0.01)
    folder = cached_encoder(pretraining, DIGITS, "cpu", refuse)
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / "encoder.safetensors").exists()
    assert ["waiting" in record.getMessage() for record in caplog.records] == [True]


def test_pretraining_of_a_killed_process_is_resumed_by_the_one_that_waits(tmp_path, in_child, monkeypatch):
    monkeypatch.setattr(features, "pretrain", functools.partial(pretrain, checkpoint_seconds=0))
    started, steps = tmp_path / "started", []

    def stuck(loop):
        if loop.epoch == 1:
            started.touch()
            time.sleep(600)

    pretraining = extractor("simsiam").pretraining
    child = in_child(lambda: cached_encoder(pretraining, DIGITS, "cpu", stuck))
    while not started.exists():
        time.sleep(0.01)
    threading.Timer(0.3, os.kill, (child, signal.SIGKILL)).start()
    cached_encoder(pretraining, DIGITS, "cpu", lambda loop: steps.append((loop.epoch, loop.step_in_epoch)))
    os.waitpid(child, 0)
    assert steps == [(1, 1), (2, 0)]


def test_features_of_many_examples_are_cached(stages, monkeypatch, caplog):
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 3)
    caplog.set_level(logging.INFO, "complementary")
    first = extractor("random").train
    assert "5 images" in caplog.records[-1].getMessage()
    monkeypatch.setattr(FeatureExtractor, "backbone", None)
    assert torch.equal(extractor("random").train, first)
    assert len(list(stages.glob("features-*"))) == 1


# --- auto ---------------------------------------------------------------------------------------------------------


def photos(seed=0, size=16, classes=4):
    """A small dataset of images of 16 pixels and more, with true labels."""
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (40, 3, size, size), dtype=torch.uint8, generator=source)
    split = Split(images, torch.arange(40) % classes)
    return Dataset("photos", split, None, tuple("abcd"[:classes]), (0.5,) * 3, (0.25,) * 3)


def store_encoder(dataset, epochs, finished=True, **options):
    """Put an encoder for the images of a dataset into the cache, as a pretraining does -> its folder."""
    pretraining = PretrainConfig(data=dataset.name, epochs=epochs, batch=8, **options)
    folder = encoder_folder(pretraining, dataset)
    folder.mkdir(parents=True)
    backbone, _ = build_backbone("resnet18", tuple(dataset.train.inputs.shape[1:]), epochs, True)
    record = describe(backbone) | {"shape": list(dataset.train.inputs.shape[1:]), "epochs": epochs}
    files.write_checkpoint(folder / "encoder.safetensors", backbone.state_dict(), record)
    if finished:
        (folder / "result.json").write_text("{}")
    return folder


def auto(dataset, **options):
    return extractor("auto", dataset, torch.arange(len(dataset.train)), **options)


def test_encoder_default_is_auto():
    assert Config().cluster.encoder == "auto"


@pytest.mark.parametrize("dataset", [DIGITS, VECTORS], ids=["digits", "vectors"])
def test_auto_means_pixels_for_small_images_and_vectors(dataset, caplog):
    caplog.set_level(logging.INFO, "complementary")
    found = auto(dataset)
    assert str(found.encoder) == "pixels"
    assert torch.equal(found.train, extractor("pixels", dataset, found.chosen).train)
    assert not caplog.records


def test_auto_warns_once_about_clusters_of_raw_pixels(caplog):
    found = auto(photos(), mix="micm")
    assert str(found.encoder) == "pixels"
    assert found.train.shape == (40, 768)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for word in ("micm", "raw pixels", "17.1 %", "simsiam", "cll pretrain"):
        assert word in record.getMessage()


def test_explicit_pixels_do_not_warn(caplog):
    assert str(extractor("pixels", photos(), torch.arange(40)).encoder) == "pixels"
    assert not caplog.records


@pytest.mark.slow
def test_auto_prefers_the_cached_encoder_with_the_most_epochs(caplog):
    caplog.set_level(logging.INFO, "complementary")
    dataset = photos()
    store_encoder(dataset, 9)
    best = store_encoder(dataset, 100, encoder="byol")
    store_encoder(dataset, 200, encoder="mocov3", finished=False)
    store_encoder(photos(seed=1), 800)
    found = auto(dataset)
    assert str(found.encoder) == f"run:{best}"
    assert found.train.shape == (40, 512)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert str(best) in record.getMessage()
    without = store_encoder(dataset, 100, encoder="byol", holdout=0.1)
    assert str(auto(dataset).encoder) == f"run:{without}", "it has not seen the held-out images"
    assert str(auto(dataset, seed=1).encoder) == f"run:{best}", "the held-out images of another seed are others"


def test_auto_finds_a_stored_encoder_in_a_checkout(tmp_path, monkeypatch):
    dataset = photos()
    cached = store_encoder(dataset, 9)
    stored = tmp_path / "results" / "encoders"
    stored.mkdir(parents=True)
    (stored / "a.safetensors").write_bytes((cached / "encoder.safetensors").read_bytes())
    sha = files.fingerprint_rows(dataset.train.inputs)
    entries = [
        {"file": "a.safetensors", "epochs": 10, "images_sha256": sha},
        {"file": "missing.safetensors", "epochs": 99, "images_sha256": sha},
        {"file": "a.safetensors", "epochs": 99, "images_sha256": "0" * 64},
    ]
    (stored / "index.json").write_text(json.dumps(entries))
    assert str(auto(dataset).encoder) == f"run:{cached}"
    monkeypatch.chdir(tmp_path)
    found = auto(dataset)
    assert str(found.encoder) == "file:results/encoders/a.safetensors"
    assert found.train.shape == (40, 512)


def test_auto_index_of_the_repository_names_its_encoders():
    folder = Path(__file__).parents[2] / "results" / "encoders"
    entries = json.loads((folder / "index.json").read_text())
    assert all(set(entry) == {"file", "epochs", "images_sha256"} for entry in entries)
    weights = {path.name for path in folder.glob("*.safetensors")}
    assert not weights or weights & {entry["file"] for entry in entries}, "a checkout may come without the weights"


def test_auto_ignores_an_encoder_of_other_images(caplog):
    store_encoder(photos(seed=1), 800)
    assert str(auto(photos()).encoder) == "pixels"
    assert extractor("auto", photos(seed=1), torch.arange(39)).encoder.kind == "pixels", "a subset is other images"


def test_auto_with_features_needs_a_cached_encoder():
    dataset = photos()
    with pytest.raises(UserError, match="auto") as caught:
        _ = auto(dataset, inputs="features").encoder
    assert caught.value.option == "encoder"
    folder = store_encoder(dataset, 5)
    assert auto(dataset, inputs="features").encoder == EncoderSpec("run", folder)


@pytest.mark.parametrize("encoder", ["pixels", "embeddings:z.npy"])
def test_features_as_inputs_need_a_network(encoder):
    with pytest.raises(UserError, match="simsiam") as caught:
        _ = extractor(encoder, inputs="features").encoder
    assert caught.value.option == "encoder"


def test_features_as_inputs_need_images():
    with pytest.raises(UserError, match="blobs") as caught:
        _ = auto(VECTORS, inputs="features").encoder
    assert caught.value.option == "inputs"


TRAINING = {"mix": "icm", "clusters": 3, "restarts": 1, "epochs": 2, "batch": 8, "model": "linear", "holdout": 0.0}


def test_auto_is_recorded_in_the_result_and_not_in_the_configuration(caplog):
    dataset, config = photos(), Config.of(**TRAINING)
    before = run(config, dataset=dataset, device="cpu")
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    folder = store_encoder(dataset, 5)
    after = run(config, dataset=dataset, device="cpu")
    assert (before["data"]["encoder"], after["data"]["encoder"]) == ("pixels", f"run:{folder}")
    assert before["config"]["cluster"]["encoder"] == after["config"]["cluster"]["encoder"] == "auto"
    assert before["config_hash"] == after["config_hash"]
    assert before["data"]["clusters_sha256"] != after["data"]["clusters_sha256"]
    explicit = run(config.with_(encoder="pixels"), dataset=dataset, device="cpu")
    assert explicit["data"]["clusters_sha256"] == before["data"]["clusters_sha256"]
    assert "encoder" not in run(config.with_(mix="mixup"), dataset=dataset, device="cpu")["data"]


@pytest.mark.slow
def test_resume_notices_that_auto_now_means_another_encoder(tmp_path):
    dataset, config = photos(), Config.of(**TRAINING)

    def stop(loop):
        if loop.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "a", dataset=dataset, device="cpu", checkpoint_seconds=0, progress=stop)
    folder = store_encoder(dataset, 5)
    with pytest.raises(UserError, match="clusters have changed") as caught:
        run(config, tmp_path / "a", dataset=dataset, device="cpu", resume=True)
    assert str(folder) in str(caught.value)
    (folder / "result.json").unlink()
    assert run(config, tmp_path / "a", dataset=dataset, device="cpu", resume=True)["data"]["encoder"] == "pixels"


def test_pixels_of_many_images_take_half_the_memory(monkeypatch):
    images = torch.randint(256, (50, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    exact = features._unit_pixels(Rows(images))
    torch.testing.assert_close(exact, F.normalize(images.flatten(1).float()), rtol=0, atol=0)
    monkeypatch.setattr(features, "LARGE", 49)
    monkeypatch.setattr(features, "BLOCK", 7)
    small = features._unit_pixels(Rows(images))
    assert small.dtype == torch.float16
    torch.testing.assert_close(small.float(), exact, rtol=1e-3, atol=1e-4)
    assert features._unit_pixels(Rows(images.flatten(1).float())).dtype == torch.float32, "vectors"
