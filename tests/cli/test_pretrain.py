"""``cll pretrain``."""

import contextlib
import io
import json

import numpy as np
import pytest
from PIL import Image

from complementary import files
from complementary.config import PretrainConfig, options_of, read_toml
from complementary.encoders.objectives import OBJECTIVES
from tests.helpers import PRETRAIN_FILES, narrow_networks, run_files

FAST = ("--epochs", 2, "--batch", 256, "--device", "cpu")


@pytest.fixture(autouse=True)
def narrow(tmp_path, monkeypatch):
    narrow_networks(monkeypatch)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path):
    """An .npz of gray images that come with complementary labels only."""
    source = np.random.default_rng(0)
    path = tmp_path / "sets" / "photos.npz"
    path.parent.mkdir()
    np.savez(path, images=source.integers(0, 256, (300, 8, 8), dtype=np.uint8), not_y=source.integers(0, 3, 300))
    return path


def contents(folder):
    return run_files(folder, PRETRAIN_FILES)


def test_pretrain_help_names_every_option(cll):
    status, out, _ = cll("pretrain", "--help-all")
    assert status == 0
    for name in [*options_of(PretrainConfig), "show-views", "out", "config", "resume"]:
        assert f"--{name.replace('_', '-')}" in out


@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_pretrain_writes_a_run_and_prints_the_result(cll, tmp_path, encoder):
    status, out, _ = cll("pretrain", *FAST, "--encoder", encoder, "--probe-every", 2, "--out", tmp_path / "x")
    assert status == 0
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert f"loss {result['loss_last']:.4f}, collapse gauge {result['gauge_last']:.2f}" in out
    assert f"kNN {100 * result['oracle_knn']:.2f} % (oracle)" in out
    assert "views/s on cpu" in out
    assert f"cll cluster --data digits --encoder run:{tmp_path / 'x'}" in out
    config = read_toml(tmp_path / "x" / "config.toml", PretrainConfig)
    assert config == PretrainConfig(encoder=encoder, epochs=2, batch=256, probe_every=2)
    assert all((tmp_path / "x" / name).exists() for name in PRETRAIN_FILES)


def test_pretrain_adapts_the_default_batch_to_few_images(cll, tmp_path, photos):
    status, _, error = cll("pretrain", "--data", photos, "--epochs", 1, "--out", tmp_path / "x")
    assert status == 0, error
    assert read_toml(tmp_path / "x" / "config.toml", PretrainConfig).batch == 75
    assert "75 instead of 512" in error
    status, _, error = cll("pretrain", "--data", photos, "--batch", 512, "--out", tmp_path / "y")
    assert (status, "(--batch)" in error) == (2, True)


def test_pretrain_without_probe_has_no_oracle(cll, tmp_path):
    assert "oracle" not in cll("pretrain", *FAST, "--out", tmp_path / "x")[1]


def test_pretrain_default_folder_is_under_runs(cll, tmp_path, photos):
    """A probe without true labels is not an error."""
    assert cll("pretrain", *FAST, "--seed", 4)[0] == 0
    status, out, _ = cll("pretrain", *FAST, "--data", photos, "--probe-every", 1)
    assert status == 0
    assert "oracle" not in out
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"digits-simsiam-4", "photos.npz-simsiam-0"}
    assert {p.name for p in photos.parent.iterdir()} == {"photos.npz"}


def test_pretrain_config_repeats_a_run_and_options_override_it(cll, tmp_path):
    assert cll("pretrain", *FAST, "--lr", 0.05, "--flip", "True", "--out", tmp_path / "a")[0] == 0
    stored = tmp_path / "a" / "config.toml"
    assert cll("pretrain", "--config", stored, "--out", tmp_path / "b")[0] == 0
    assert cll("pretrain", f"--config={stored}", "--seed", 1, "--epochs", 1, "--out", tmp_path / "c")[0] == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    other = read_toml(tmp_path / "c" / "config.toml", PretrainConfig)
    assert other == PretrainConfig(epochs=1, batch=256, lr=0.05, flip=True, seed=1)


@contextlib.contextmanager
def interrupting(shown):
    """Replaces the progress bar: Ctrl-C after the seventh step."""
    steps = []

    def show(loop):
        steps.append(loop)
        if len(steps) == 7:
            raise KeyboardInterrupt

    yield show


def test_pretrain_resume_needs_only_the_folder(cll, tmp_path, monkeypatch):
    assert cll("pretrain", *FAST, "--encoder", "mocov3", "--out", tmp_path / "whole")[0] == 0
    command = ("pretrain", *FAST, "--encoder", "mocov3", "--checkpoint-seconds", 0, "--out", tmp_path / "x")
    with monkeypatch.context() as patched:
        patched.setattr("complementary.cli.pretrain.training_progress", interrupting)
        status, _, error = cll(*command)
    assert status == 130
    assert "cll pretrain: stopped" in error
    assert (tmp_path / "x" / "checkpoint.safetensors").exists()
    status, _, error = cll(*command)
    assert status == 2
    assert "already contains a run" in error
    status, _, error = cll("pretrain", "--resume", "--out", tmp_path / "x", "--lr", 0.5)
    assert status == 2
    assert "lr: None -> 0.5" in error
    assert cll("pretrain", "--resume", "--out", tmp_path / "x", "--device", "cpu")[0] == 0
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")
    before = contents(tmp_path / "x")
    assert cll("pretrain", "--resume", "--out", tmp_path / "x")[0] == 0, "a finished run is not repeated"
    assert contents(tmp_path / "x") == before


@pytest.mark.parametrize(
    ("options", "found", "flag"),
    [
        (["--encoder", "simclr"], "simclr", None),
        (["--batch", "5000"], "1437 images", "--batch"),
        (["--backbone", "mlp"], "mlp", None),
        (["--min-scale", "0"], "0.0", "--min-scale"),
        (["--data", "imaginary"], "imaginary", None),
        (["--data", "{vectors}"], "holds vectors", "--data"),
        (["--data", "{vectors}", "--show-views", "v.png"], "holds vectors", "--data"),
        (["--show-views", "no/such/v.png"], "v.png cannot be written", None),
        (["--long-tail", "10", "--data", "{photos}"], "true labels", None),
    ],
)
def test_pretrain_rejects_bad_input(cll, tmp_path, photos, options, found, flag):
    np.savez(tmp_path / "v.npz", x=np.eye(300, 4), not_y=np.arange(300) % 3)
    places = {"vectors": tmp_path / "v.npz", "photos": photos}
    status, _, error = cll("pretrain", *(o.format(**places) for o in options), "--out", tmp_path / "x")
    assert status == 2
    assert found in " ".join(error.replace("│", " ").split())
    assert flag is None or error.strip().endswith(f"({flag})")
    assert "Traceback" not in error
    assert not (tmp_path / "x" / "result.json").exists()


# --- views --------------------------------------------------------------------------------------------


def read_png(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return np.asarray(Image.open(io.BytesIO(content)).convert("L"))


VIEWS = [(), *(pytest.param(o, marks=pytest.mark.slow) for o in (("--long-tail", 20), ("--blur", 1, "--solarize", 1)))]


@pytest.mark.parametrize("options", VIEWS, ids=str)
def test_show_views_draws_a_png_and_does_not_train(cll, tmp_path, options):
    status, out, _ = cll("pretrain", "--show-views", tmp_path / "x.png", *options)
    assert status == 0
    assert str(tmp_path / "x.png") in out
    seen = read_png(tmp_path / "x.png")
    assert min(seen.shape) > 300
    assert seen.std() > 30, "it is not blank"
    assert {p.name for p in tmp_path.iterdir()} == {"x.png"}


@pytest.mark.slow
def test_show_views_depend_on_seed_and_options(cll, tmp_path):
    drawn = {}
    for name, options in {"a": [], "b": [], "seed": ["--seed", 1], "jitter": ["--jitter", 0, "--min-scale", 1]}.items():
        assert cll("pretrain", "--show-views", tmp_path / f"{name}.png", *options)[0] == 0
        drawn[name] = read_png(tmp_path / f"{name}.png")
    assert np.array_equal(drawn["a"], drawn["b"])
    assert not np.array_equal(drawn["a"], drawn["seed"])
    assert not np.array_equal(drawn["a"], drawn["jitter"])


def test_show_views_of_fewer_than_eight_images(cll, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", images=images, not_y=[0, 1, 2])
    assert cll("pretrain", "--data", tmp_path / "few.npz", "--show-views", tmp_path / "x.png")[0] == 0
    assert read_png(tmp_path / "x.png").std() > 10


# --- without any label --------------------------------------------------------------------------------


@pytest.fixture
def unlabeled(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (300, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "bare.npz", images=images)
    return tmp_path / "bare.npz"


def test_pretrain_needs_no_labels(cll, tmp_path, unlabeled):
    status, _, error = cll("pretrain", *FAST, "--data", unlabeled, "--probe-every", 1, "--out", tmp_path / "bare")
    assert status == 0, error
    with np.load(unlabeled) as held:
        np.savez(tmp_path / "full.npz", images=held["images"], not_y=np.arange(300) % 3)
    assert cll("pretrain", *FAST, "--data", tmp_path / "full.npz", "--out", tmp_path / "full")[0] == 0
    bare, full = (files.read_checkpoint(tmp_path / name / "encoder.safetensors")[0] for name in ("bare", "full"))
    assert all((bare[key] == full[key]).all() for key in full), "labels are not used"
    assert cll("pretrain", "--data", unlabeled, "--show-views", tmp_path / "v.png")[0] == 0


@pytest.mark.parametrize("command", [("train", "--mix", "none"), ("cluster",), ("train", "--labels", "given")])
def test_train_and_cluster_reject_images_without_labels(cll, tmp_path, unlabeled, command):
    status, _, error = cll(*command, "--data", unlabeled, "--out", tmp_path / "x")
    assert status == 2
    assert "bare has no labels" in error


def test_pretrain_rejects_a_long_tail_without_true_labels(cll, tmp_path, unlabeled):
    status, _, error = cll("pretrain", *FAST, "--data", unlabeled, "--long-tail", 5, "--out", tmp_path / "x")
    assert status == 2
    assert "true labels" in error
