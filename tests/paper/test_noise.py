import dataclasses
import json
import logging

import pytest
import torch
from torch.nn.functional import one_hot

from complementary import data, mixing, oracle, transitions
from complementary.clusters import features
from complementary.errors import UserError
from complementary.labels import draw
from complementary.paper import noise
from complementary.paper.store import RunSettings, cells_of, measurement_files, read_measurement
from complementary.paper.studies import PROTOCOLS
from complementary.rng import generator
from complementary.sweeps.grid import Cell
from complementary.training.run import run
from tests.helpers import scattered_clusters

ONE = RunSettings(seeds=1, epochs=1, pretrain_epochs=1)


@pytest.fixture
def no_pretraining(monkeypatch):
    monkeypatch.setattr(features, "pretrain", lambda *_, **__: pytest.fail("an encoder was pretrained"))


def cells(noisy, protocol="ours", **where):
    return cells_of([noisy], protocol, ONE, {name: [value] for name, value in where.items()})


def files(store):
    return measurement_files([store], "noise")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_noise_ratio_is_that_of_a_training_run(noisy, store, protocol):
    """Also under the protocol paper, where an example may be its own partner."""
    for cell in cells(noisy, protocol)[:2]:
        assert noise.run([cell], store, protocol) == {}
        trained = run(cell.config, device="cpu")
        (path,) = [path for path in files(store) if f"-{cell.config.mixing.mix}-" in path.name]
        content = json.loads(path.read_text())
        assert 0 < content["oracle_noise_ratio"] == trained["oracle_noise_ratio"]
        assert content["data"] == json.loads(json.dumps(trained["data"]))
        assert content["config"]["variant"]["partner"] == ("distinct" if protocol == "ours" else "any")
        row = read_measurement(path)
        assert {name: row[name] for name in cell.config.flat()} == cell.config.flat()
        assert row["config_hash"] == cell.config.hash()
        assert json.loads(row["label_counts"]) == trained["data"]["label_counts"]


def test_noise_ratio_that_is_stored_is_not_counted_again(noisy, store, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "complementary.paper.noise")
    wanted = cells(noisy, encoder="pixels") + cells(noisy, mix="mixup")
    assert noise.run(wanted, store, "ours") == {}
    names = [message.rpartition(": ")[0] for message in caplog.messages]
    assert sorted(names) == ["digits s-nl icm ours seed=0", "digits s-nl mixup ours seed=0"]
    assert all(path.name.endswith("-seed0.json") and path.stat().st_size < 3000 for path in files(store))
    assert noise.done(store) == {cell.config.hash() for cell in wanted}
    monkeypatch.setattr(noise, "build_task", lambda *_: pytest.fail("counted again"))
    assert noise.run(wanted, store, "ours") == {}


@pytest.mark.usefixtures("no_pretraining")
def test_noise_skips_settings_whose_encoder_is_missing(noisy, store):
    skipped = noise.run([*cells(noisy), *cells(noisy)], store, "ours")
    assert list(skipped.values()) == [["digits icm"]]  # once, however many seeds there are
    assert "simsiam" in next(iter(skipped))
    assert len(files(store)) == 2  # the other settings are counted


def test_noise_pretrains_an_encoder_on_request_and_uses_it_for_all_seeds(noisy, store, request):
    first, second = (cells_of([noisy], "ours", dataclasses.replace(ONE, seeds=2))[i] for i in (2, 5))
    assert [cell.config.seed for cell in (first, second)] == [0, 1]
    assert noise.run([first], store, "ours", pretrain=True) == {}
    request.getfixturevalue("no_pretraining")
    assert noise.run([second], store, "ours") == {}
    assert len(files(store)) == 2
    other = Cell(first.config.with_(encoder_seed=1), "other")
    assert list(noise.run([other], store, "ours").values()) == [["digits icm"]]


def test_noise_skips_a_dataset_that_is_not_available_and_tries_it_once(noisy, store, monkeypatch):
    tried, load = [], data.load

    def watched(name):
        tried.append(name)
        if name == "kmnist":
            raise UserError("kmnist is not available.")
        return load(name)

    monkeypatch.setattr(data, "load", watched)
    mixup = cells(noisy, mix="mixup")[0]
    absent = [Cell(mixup.config.with_(data="kmnist", seed=seed, long_tail=10), "absent") for seed in (0, 1)]
    skipped = noise.run([*absent, mixup], store, "ours")
    assert skipped == {"kmnist is not available.": ["kmnist ρ=10 mixup"]}
    assert tried == ["kmnist", "digits"]
    assert len(files(store)) == 1


def test_noise_in_a_folder_that_cannot_be_created_is_an_error(noisy, store):
    (store / "file").write_text("")
    with pytest.raises(UserError, match="file/noise") as caught:
        noise.run(cells(noisy), store / "file", "ours")
    assert caught.value.option == "out"


@pytest.mark.parametrize("shuffled", [0.0, 0.3, 0.9])
def test_expected_noise_follows_from_the_share_of_partners_of_the_same_class(shuffled):
    """docs/notes/theory.md: (1 - s) (2K - 3) / (K - 1)², and its bounds by purity."""
    truth, cluster = scattered_clusters(40_000, 10, 20, shuffled=shuffled)
    labels = draw(truth, transitions.uniform(10), seed=3)
    counted = oracle.noise_ratio(mixing.ICM(1.0), truth, labels, cluster, batch=4000, passes=3)
    expected = (1 - oracle.same_class(cluster, truth)) * 17 / 81
    assert counted == pytest.approx(expected, rel=0.05, abs=1e-9)
    purity = oracle.purity(cluster, truth)
    assert (1 - purity) * 17 / 81 <= expected + 1e-3
    assert expected <= (1 - purity**2 - (1 - purity) ** 2 / 9) * 17 / 81 + 1e-3


def test_risk_of_a_mix_is_linear_in_its_label():
    """docs/notes/theory.md: the terms that Proposition 1 adds are an error."""
    source = generator(0, "proposition")
    first, second, predicted = (torch.randint(10, (1000,), generator=source) for _ in range(3))
    weight = torch.rand(1000, generator=source)
    soft = weight[:, None] * one_hot(first, 10) + (1 - weight)[:, None] * one_hot(second, 10)
    risk = (soft * (1 - one_hot(predicted, 10))).sum(1).mean()
    terms = (weight * (first != predicted) + (1 - weight) * (second != predicted)).mean()
    added = (weight * (first == predicted) + (1 - weight) * (second == predicted)).mean()
    assert float(risk) == pytest.approx(float(terms), abs=1e-6)
    assert float(risk) == pytest.approx(1 - float(added), abs=1e-6)
    assert float(added) > 0.05
