import dataclasses
import json

import pytest
import torch

from complementary import data
from complementary.clusters import features
from complementary.config import Config
from complementary.errors import UserError
from complementary.paper import noise
from complementary.paper.protocols import PROTOCOLS
from complementary.paper.store import Amount, cells_of
from complementary.sweeps.grid import Cell
from complementary.sweeps.results import Damaged
from complementary.training import task
from complementary.training.run import run

ONE = Amount(seeds=1, epochs=1, pretrain_epochs=1)
MADE = "the encoder must not be trained"


@pytest.fixture
def idle(monkeypatch):
    """Fail if anything is pretrained."""

    def refuse(*_, **__):
        raise AssertionError(MADE)

    monkeypatch.setattr(features, "pretrain", refuse)


def cells(noisy, protocol="ours", **where):
    return cells_of([noisy], protocol, ONE, {name: [value] for name, value in where.items()})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_is_what_a_training_reports(noisy, store, protocol):
    """Also as coded: under the protocol paper an example may be its own partner, which makes fewer lies."""
    for cell in cells(noisy, protocol)[:2]:
        assert noise.run([cell], store, protocol, say=lambda _: None) == {}
        trained = run(cell.config, device="cpu")
        (path,) = [path for path in noise.files([store]) if f"-{cell.config.mixing.mix}-" in path.name]
        content = noise.read(path)
        assert 0 < content["noise_ratio"] == trained["noise_ratio"]
        assert content["data"] == json.loads(json.dumps(trained["data"]))
        assert content["settings"]["mixing"]["partner"] == ("distinct" if protocol == "ours" else "any")
        row = noise.row_of(path)
        assert {name: row[name] for name in cell.config.flat()} == cell.config.flat()
        assert row["config_hash"] == cell.config.hash()
        assert json.loads(row["label_counts"]) == trained["data"]["label_counts"]


def test_what_is_there_is_not_counted_again(noisy, store, monkeypatch):
    said = []
    asked = cells(noisy, encoder="pixels")
    assert noise.run(asked, store, "ours", say=said.append) == {}
    assert [line.rpartition(": ")[0] for line in said] == [
        "digits s-nl mixup ours seed=0",
        "digits s-nl icm ours seed=0",
    ]
    assert all(path.name.endswith("-seed0.json") and path.stat().st_size < 3000 for path in noise.files([store]))
    assert noise.known(store) == {cell.config.hash() for cell in asked}
    monkeypatch.setattr(noise, "prepare", lambda *_: pytest.fail("counted again"))
    assert noise.run(asked, store, "ours", say=said.append) == {}
    assert len(said) == 2


@pytest.mark.usefixtures("idle")
def test_an_encoder_is_not_trained_unasked(noisy, store):
    left = noise.run([*cells(noisy), *cells(noisy)], store, "ours", say=lambda _: None)
    assert list(left.values()) == [["digits icm"]]  # once, however many seeds there are
    assert next(iter(left)).startswith(
        "no stored clusters of simsiam fit these images, and no simsiam of 1 epochs on them is in the cache; name a "
        "folder of clusters with --assignments-from (results/clusters of the repository, or what cll "
        "cluster --out made), or pass --pretrain"
    )
    assert len(noise.files([store])) == 2  # the others go on


def test_an_encoder_is_trained_if_asked_and_then_serves_all_seeds(noisy, store, request):
    first, second = (cells_of([noisy], "ours", dataclasses.replace(ONE, seeds=2))[i] for i in (2, 5))
    assert [cell.config.seed for cell in (first, second)] == [0, 1]
    assert noise.run([first], store, "ours", pretrain=True, say=lambda _: None) == {}
    request.getfixturevalue("idle")
    assert noise.run([second], store, "ours", say=lambda _: None) == {}
    assert len(noise.files([store])) == 2
    other = Cell(first.config.with_(encoder_seed=1), "other")
    assert list(noise.run([other], store, "ours", say=lambda _: None).values()) == [["digits icm"]]


def test_which_settings_need_an_encoder():
    assert noise.needs_encoder(Config.of(mix="icm", encoder="byol"))
    assert not noise.needs_encoder(Config.of(mix="icm", encoder="byol", assignments="a.safetensors"))
    assert not noise.needs_encoder(Config.of(mix="mixup", encoder="byol"))
    assert not noise.needs_encoder(Config.of(mix="icm", encoder="random"))


def test_stored_clusters_come_from_where_one_asks_or_from_the_usual_folder(tmp_path, capsys):
    asked = tmp_path / "mine"
    assert (noise.clusters_from(None), noise.clusters_from(asked)) == (None, asked)
    noise.CLUSTERS.mkdir(parents=True)
    assert noise.clusters_from(asked) == asked
    assert capsys.readouterr().err == ""
    assert noise.clusters_from(None) == noise.CLUSTERS
    assert capsys.readouterr().err.count("\n") == 1


def test_a_set_that_cannot_be_loaded_is_left_out_and_tried_once(noisy, store, monkeypatch):
    tried, load = [], data.load

    def watched(name):
        tried.append(name)
        if name == "kmnist":
            raise UserError("kmnist could not be had.")
        return load(name)

    monkeypatch.setattr(data, "load", watched)
    mixup = cells(noisy, mix="mixup")[0]
    absent = [Cell(mixup.config.with_(data="kmnist", seed=seed, long_tail=10), "absent") for seed in (0, 1)]
    left = noise.run([*absent, mixup], store, "ours", say=lambda _: None)
    assert left == {"kmnist could not be had.": ["kmnist ρ=10 mixup"]}
    assert tried == ["kmnist", "digits"]
    assert len(noise.files([store])) == 1


def test_pairs_are_counted_by_one_thread_and_clusters_made_by_all(noisy, store, monkeypatch):
    seen, before = {}, torch.get_num_threads()
    monkeypatch.setattr(noise, "prepare", lambda config, *rest: watched(config, *rest))

    def watched(config, *rest):
        seen[config.mixing.mix] = torch.get_num_threads()
        return task.build_task(config, *rest)

    torch.set_num_threads(2)
    try:
        noise.run(cells(noisy)[:2], store, "ours", say=lambda _: None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {"mixup": 1, "icm": 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"noise_ratio": 1.5}, "its noise_ratio is 1.5, but it must be between 0 and 1"),
        ({"noise_ratio": None}, "its noise_ratio is None, but"),
        ({"settings": {"seed": 0, "mixing": {"colour": "red"}}}, "The option 'colour' is not known"),
        ({"settings": 3}, "'int' object"),
        ({"data": None}, "'NoneType' object"),
    ],
)
def test_a_damaged_file_is_one_sentence(noisy, store, change, why):
    noise.run(cells(noisy, mix="mixup"), store, "ours", say=lambda _: None)
    (path,) = noise.files([store])
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | change))
    with pytest.raises(Damaged, match=f"^{path} is damaged: {why}"):
        noise.read(path)
    path.write_text(json.dumps({name: value for name, value in good.items() if name != "seconds"}))
    with pytest.raises(Damaged, match="is damaged: it has no seconds"):
        noise.read(path)
    path.write_text(path.read_text()[:50])
    with pytest.raises(Damaged, match="is damaged: it is not whole JSON"):
        noise.row_of(path)


def test_a_store_that_cannot_be_made_is_one_sentence(noisy, store):
    (store / "file").write_text("")
    with pytest.raises(UserError, match=r"^The folder .*file/noise cannot be made \(Not a directory\); name another"):
        noise.run(cells(noisy), store / "file", "ours")
