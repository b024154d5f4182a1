"""Cross-fitted predictions: nothing of an example's labels reaches its prediction."""

import pytest
import torch

from complementary import data
from complementary.clusters import features
from complementary.config import Config
from complementary.data.selection import select
from complementary.engine.backend import Engine
from complementary.errors import UserError
from complementary.training.cross_fit import cross_fit
from complementary.training.run import build_trainer, run
from tests.helpers import narrow_networks, with_labels

QUICK = Config.of(data="digits", mix="none", epochs=3, batch=128)


def test_cross_fit_predicts_every_example():
    found = cross_fit(QUICK.with_(epochs=8), folds=2, device="cpu")
    dataset = data.load("digits")
    assert found.shape == (len(dataset.train), 10)
    assert torch.allclose(found.sum(1), torch.ones(len(found)), atol=1e-5)
    assert float((found.argmax(1) == dataset.train.truth).double().mean()) > 0.25


def test_cross_fit_does_not_see_the_labels_of_the_part_it_predicts():
    """Other labels for one example change the predictions of the other parts, but not its own."""
    dataset = data.load("digits")
    excluded = select(QUICK, dataset).excluded
    changed = excluded.clone()
    changed[7] = changed[7].roll(1)
    first, second = (
        cross_fit(QUICK.with_(labels="given"), with_labels(dataset, e), 4, "cpu") for e in (excluded, changed)
    )
    assert torch.equal(first[7], second[7])
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_cross_fit_with_clusters_features_and_self_training(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    narrow_networks(monkeypatch)
    for options in (
        {"mix": "icm", "clusters": 20},
        {"inputs": "features", "encoder": "simsiam", "pretrain_epochs": 1, "pretrain_images": "training"},
        {"inputs": "features", "encoder": "random", "self_training": 2},
    ):
        found = cross_fit(QUICK.with_(**options), folds=2, device="cpu")
        assert torch.isfinite(found).all()
        assert found.std() > 0
    run(QUICK.with_(inputs="features", encoder="simsiam", pretrain_epochs=1, pretrain_images="training"), device="cpu")
    assert len(list((tmp_path / "stages").glob("pretrain-*"))) == 1, "the encoder of a cross-fit is that of the run"


@pytest.mark.parametrize("train", [run, build_trainer, cross_fit])
@pytest.mark.parametrize("options", [{"mix": "icm"}, {"inputs": "features"}], ids=["clusters", "features"])
def test_engine_of_a_run_also_pretrains_its_encoder(tmp_path, monkeypatch, train, options):
    """Its options, such as the precision, are not lost."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    engine, seen = Engine(torch.device("cpu"), "bf16", compile=False, deterministic=True, stream="always"), []

    def note(*_, device, **options):
        seen.append(device)
        raise InterruptedError

    monkeypatch.setattr(features, "pretrain", note)
    with pytest.raises(InterruptedError):
        train(QUICK.with_(encoder="simsiam", **options), device=engine)
    assert seen == [engine]


@pytest.mark.parametrize("folds", [0, 1, 10_000])
def test_cross_fit_refuses_odd_numbers_of_parts(folds):
    with pytest.raises(UserError) as caught:
        cross_fit(QUICK, folds=folds, device="cpu")
    assert caught.value.option == "folds"
