"""Stores of made-up results, and a study that is small enough to be run."""

import dataclasses
import json

import pytest

from complementary.paper import published
from complementary.paper.protocols import Setting
from complementary.paper.published import Published
from complementary.paper.store import Amount
from complementary.paper.studies import STUDIES, Entry, Study


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


@pytest.fixture
def counted(store):
    """Put a noise ratio into the store that no training made: counted(entry, ratio, ...) -> its file."""

    def make(entry, ratio, protocol="ours", seed=0, amount=None, **facts):
        config = (amount or Amount()).config(entry, protocol, seed)
        content = {"noise_ratio": ratio, "data": facts, "protocol": protocol, "settings": dataclasses.asdict(config)}
        path = store / "noise" / f"noise-{config.hash()[:12]}-seed{seed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content | {"seconds": 3.0, "device": "cpu"}))
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


SMALL = (("model", "mlp"), ("batch", 256), ("padding", 0))
PIXELS = (("encoder", "pixels"), ("clusters", 10), ("restarts", 1))


def digits_entry(mix, group="", grouping=PIXELS):
    """A mixer on the 8 x 8 digits; published: 50."""
    setting = Setting("digits", "s-nl", mix, changes=SMALL + (grouping if mix in ("icm", "micm") else ()))
    return Entry(setting, mix, group, Published("Tiny", "digits", 1.0, 1.0, "s-nl", mix, 50.0, 0.5))


@pytest.fixture
def _digits_alphas(monkeypatch):
    alphas = published.alphas() | {"digits": {"icm": 0.4, "micm": 0.4}}
    monkeypatch.setattr(published, "alphas", lambda: alphas)


@pytest.fixture
def tiny(monkeypatch, _digits_alphas):
    """A study of three methods on the 8 x 8 digits."""
    study = Study("tiny", "Digits", "nowhere", "figure", tuple(map(digits_entry, ("none", "mixup", "icm"))))
    monkeypatch.setitem(STUDIES, "tiny", study)
    return study


@pytest.fixture
def noisy(monkeypatch, _digits_alphas):
    """A study of their noise: of two mixers, and of one whose encoder (one epoch) must be trained first."""
    trained = digits_entry("icm", "simsiam", (("encoder", "simsiam"), *PIXELS[1:], ("pretrain_epochs", 1)))
    entries = (digits_entry("mixup"), digits_entry("icm"), trained)
    study = Study("noisy", "Digits", "nowhere", "figure", entries, value="noise", pairs=())
    monkeypatch.setitem(STUDIES, "noisy", study)
    return study
