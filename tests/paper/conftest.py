"""Stores with made-up results, and studies that are small enough to be run."""

import dataclasses
import json

import pytest

from complementary.paper import published
from complementary.paper.published import Published
from complementary.paper.store import RunSettings
from complementary.paper.studies import STUDIES, Entry, Setting, Study


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch, forked_workers):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def add_run(store):
    """Put the result of a training into the store: add_run(entry, accuracy, ...) -> its file."""

    def add(entry, accuracy, protocol="ours", seed=0, epochs=300, settings=None, **metrics):
        config = dataclasses.replace(settings or RunSettings(), epochs=epochs).config(entry, protocol, seed)
        content = {"accuracy_last": accuracy, "accuracy_best_on_test": accuracy}
        content |= {"accuracy_selected": accuracy} if protocol == "ours" else {}
        content |= {"oracle_noise_ratio": 0.1, "train_seconds": 60.0}
        content |= {"per_class_accuracy_last": [accuracy] * 10, "tail_accuracy_last": accuracy}
        content |= {"images_per_second": 1000.0, "device": "a GPU", "data": {"examples": 1}} | metrics
        content |= {"config": dataclasses.asdict(config), "config_hash": config.hash()}
        path = store / f"{config.hash()[:16]}.json"
        path.write_text(json.dumps(content))
        return path

    return add


@pytest.fixture
def add_noise(store):
    """Put a noise ratio into the store: add_noise(entry, ratio, ...) -> its file."""

    def add(entry, ratio, protocol="ours", seed=0, settings=None):
        config = (settings or RunSettings()).config(entry, protocol, seed)
        content = {"oracle_noise_ratio": ratio, "data": {}, "protocol": protocol, "config": dataclasses.asdict(config)}
        path = store / "noise" / f"noise-{config.hash()[:12]}-seed{seed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content | {"seconds": 3.0, "device": "cpu"}))
        return path

    return add


@pytest.fixture
def add_gradients(store):
    """Put a measurement of gradients into the store: add_gradients(data, ...) -> its file."""

    def add(data, seed=0, epochs=300, protocol="ours", steps=1, icm=1.0):
        config = RunSettings(epochs=epochs).config(Entry(Setting(data, "s-nl", "icm"), "all"), protocol, seed)
        rows = [
            {"step": step, "method": method, "target": "clean", "oracle_target_squared": 4.0}
            | {"oracle_mse": 3.0 * factor, "oracle_bias_squared": 1.0 * factor, "oracle_variance": 2.0 * factor}
            for step in range(steps)
            for method, factor in (("mixup", 1.0), ("icm", icm + step / 1000))
        ]
        content = {"gradients": rows, "protocol": protocol, "config": dataclasses.asdict(config)}
        path = store / f"gradients-{data}-{protocol}-{epochs}-seed{seed}.json"
        path.write_text(json.dumps(content | {"seconds": 120.0, "device": "cpu", "draws": 16}))
        return path

    return add


def entry_of(name, method, **wanted):
    """The only entry of a study with this method and these properties (of its setting, or its group)."""
    (found,) = [
        entry
        for entry in STUDIES[name].entries
        if entry.method == method
        and all((entry.group if key == "group" else getattr(entry.setting, key)) == v for key, v in wanted.items())
    ]
    return found


SMALL = (("model", "mlp"), ("batch", 256), ("padding", 0))
PIXELS = (("encoder", "pixels"), ("clusters", 10), ("restarts", 1))


def digits_entry(mix, group="", cluster=PIXELS):
    """A mixer on the 8 x 8 digits; published: 50."""
    setting = Setting("digits", "s-nl", mix, changes=SMALL + (cluster if mix in ("icm", "micm") else ()))
    return Entry(setting, mix, group, Published("Tiny", "digits", 1.0, 1.0, "s-nl", mix, 50.0, 0.5))


@pytest.fixture
def _digits_alphas(monkeypatch):
    alphas = published.alphas() | {"digits": {"icm": 0.4, "micm": 0.4}}
    monkeypatch.setattr(published, "alphas", lambda: alphas)


@pytest.fixture
def tiny(monkeypatch, _digits_alphas):
    """A study of three methods on the 8 x 8 digits."""
    study = Study("tiny", "Digits", "nowhere", tuple(map(digits_entry, ("none", "mixup", "icm"))))
    monkeypatch.setitem(STUDIES, "tiny", study)
    return study


@pytest.fixture
def noisy(monkeypatch, _digits_alphas):
    """A study of their noise: of two mixers, and of one whose encoder (one epoch) must be pretrained first."""
    trained = digits_entry("icm", "simsiam", (("encoder", "simsiam"), *PIXELS[1:], ("pretrain_epochs", 1)))
    entries = (digits_entry("mixup"), digits_entry("icm"), trained)
    study = Study("noisy", "Digits", "nowhere", entries, runner="noise", pairs=())
    monkeypatch.setitem(STUDIES, "noisy", study)
    return study
