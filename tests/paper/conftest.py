"""Stores of made-up results, and a study that is small enough to be run."""

import dataclasses
import json

import pytest

from complementary.paper import published
from complementary.paper.entries import Entry
from complementary.paper.protocols import Setting
from complementary.paper.published import Published
from complementary.paper.runs import Amount
from complementary.paper.studies import STUDIES, Study


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def fake(store):
    """Put a result into the store: fake(entry, accuracy, ...) -> its file."""

    def make(entry, accuracy, protocol="ours", seed=0, epochs=300, amount=None, **figures):
        config = dataclasses.replace(amount or Amount(), epochs=epochs).config(entry, protocol, seed)
        best = "accuracy_best_on_test" if protocol == "paper" else "accuracy_selected"
        content = {"accuracy_last": accuracy, best: accuracy, "noise_ratio": 0.1, "train_seconds": 60.0}
        content |= {"images_per_second": 1000.0, "device": "a card", "data": {"examples": 1}} | figures
        content |= {"config": dataclasses.asdict(config), "config_hash": config.hash()}
        path = store / f"{config.hash()[:16]}.json"
        path.write_text(json.dumps(content))
        return path

    return make


def entry_of(name, method, **wanted):
    """The only entry of a study with this method and these properties of its setting."""
    (found,) = [
        entry
        for entry in STUDIES[name].entries
        if entry.method == method and all(getattr(entry.setting, key) == value for key, value in wanted.items())
    ]
    return found


@pytest.fixture
def tiny(monkeypatch):
    """A study of three methods on the 8 x 8 digits."""
    alphas = published.alphas() | {"digits": {"icm": 0.4, "micm": 0.4}}
    monkeypatch.setattr(published, "alphas", lambda: alphas)
    small = (("model", "mlp"), ("batch", 256), ("padding", 0))
    grouping = (("encoder", "pixels"), ("clusters", 10), ("restarts", 1))
    entries = []
    for mix in ("none", "mixup", "icm"):
        setting = Setting("digits", "s-nl", mix, changes=small + (grouping if mix == "icm" else ()))
        entries.append(Entry(setting, mix, published=Published("Tiny", "digits", 1.0, 1.0, "s-nl", mix, 50.0, 0.5)))
    study = Study("tiny", "Digits", "nowhere", "figure", tuple(entries))
    monkeypatch.setitem(STUDIES, "tiny", study)
    return study
