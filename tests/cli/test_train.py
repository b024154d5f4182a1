"""``cll train``."""

import json

import numpy as np
import pytest

from complementary.cli.train import print_result
from complementary.config import Config, read_toml, to_toml
from complementary.reports.tables import interval_text
from complementary.training.run import run

FAST = ("--epochs", 2, "--clusters", 20, "--restarts", 1)


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "used"
    run(Config.of(epochs=2, clusters=20, restarts=1), folder)
    return folder


def test_train_writes_a_run_and_prints_its_result(cll, tmp_path):
    options = ("--data", "digits", "--loss", "s-nl", "--mix", "icm", "--clusters", 20, "--seed", 3, "--epochs", 2)
    status, out, error = cll("train", *options, "--out", tmp_path / "x")
    assert status == 0, error
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert f"{100 * result['accuracy_last']:.2f} %" in out
    assert f"{100 * result['oracle_noise_ratio']:.2f} %" in out
    assert str(tmp_path / "x") in out
    config = read_toml(tmp_path / "x" / "config.toml", Config)
    assert (config.seed, config.cluster.clusters, config.mixing.mix) == (3, 20, "icm")


def test_train_config_repeats_a_run_and_options_override_it(cll, tmp_path):
    assert cll("train", *FAST, "--alpha", 0.7, "--flip", "True", "--out", tmp_path / "a")[0] == 0
    stored = tmp_path / "a" / "config.toml"
    assert cll("train", "--config", stored, "--out", tmp_path / "b")[0] == 0
    assert cll("train", f"--config={stored}", "--seed", 9, "--out", tmp_path / "c")[0] == 0
    names = ("config.toml", "metrics.jsonl", "last.safetensors")
    a, b = ([(tmp_path / run / name).read_bytes() for name in names] for run in "ab")
    assert a == b
    c = read_toml(tmp_path / "c" / "config.toml", Config)
    assert (c.seed, c.mixing.alpha, c.training.flip) == (9, 0.7, True)


@pytest.fixture
def small(tmp_path):
    """A dataset of 60 vectors, of which 54 are trained on."""
    source = np.random.default_rng(0)
    np.savez(tmp_path / "small.npz", X=source.normal(size=(60, 4)), not_y=source.integers(0, 3, 60))
    return tmp_path / "small.npz"


def test_train_with_a_recipe_sets_what_the_same_configuration_in_python_has(cll, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("complementary.training.run.run", lambda config, *_, **__: seen.append(config) or {})
    monkeypatch.setattr("complementary.cli.train.print_result", lambda *_: None)
    common = {"data": "digits", "batch": 64}
    stored = Config.of(**common, recipe="features", loss="fwd", weight_decay=0.0001)
    (tmp_path / "stored.toml").write_text(to_toml(stored))
    (tmp_path / "auto.toml").write_text('[training]\nrecipe = "auto"\nfit = "gradient"\n')
    wanted = {
        "--recipe auto": Config.of(**common, recipe="auto"),
        "--recipe auto --fit gradient": Config.of(**common, recipe="auto", fit="gradient"),
        f"--config {tmp_path / 'auto.toml'}": Config.of(**common, recipe="auto", fit="gradient"),
        f"--config {tmp_path / 'auto.toml'} --recipe icm": Config.of(**common, recipe="icm"),
        "--recipe self-training --long-tail 100": Config.of(**common, recipe="self-training", long_tail=100.0),
        "--recipe self-training --inputs raw": Config.of(**common, recipe="self-training", inputs="raw"),
        "--recipe features --loss dm": Config.of(**common, recipe="features", loss="dm"),
        f"--config {tmp_path / 'stored.toml'}": stored,
    }
    for options in wanted:
        cll("train", "--data", "digits", "--batch", "64", *options.split(), "--out", str(tmp_path / "run"))
    assert seen == list(wanted.values())


def test_train_adapts_the_default_batch_to_small_data(cll, tmp_path, small):
    options = ("--data", small, "--epochs", 2, "--mix", "none", "--out", tmp_path / "x")
    status, _, error = cll("train", *options)
    assert status == 0, error
    assert "13 instead of 256" in error
    assert read_toml(tmp_path / "x" / "config.toml", Config).training.batch == 13
    assert cll("train", "--resume", "--out", tmp_path / "x")[0] == 0
    assert cll("train", *options, "--resume")[0] == 0


def test_train_that_stops_before_its_first_step_can_be_resumed(cll, tmp_path, small, monkeypatch):
    options = ("--data", small, "--recipe", "auto", "--out", tmp_path / "x")
    short = ("--epochs", 2, "--self-training", 1, "--restarts", 1)
    assert "There is no run" in cll("train", *options, *short, "--resume")[2], "it was never started"

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("complementary.training.run.build_task", stop)
        assert cll("train", *options, *short)[0] == 130
        assert cll("train", *options, *short)[0] == 130, "it may be started again, too"
    assert cll("train", *options, *short, "--resume")[0] == 0
    assert (tmp_path / "x" / "result.json").exists()


def test_train_refuses_a_batch_that_is_given_and_too_large(cll, tmp_path, small):
    own = tmp_path / "own.toml"
    own.write_text("[training]\nbatch = 64\n")
    for given in (("--batch", 64), ("--batch=64",), ("--config", own)):
        status, _, error = cll("train", "--data", small, "--mix", "none", *given, "--out", tmp_path / "x")
        assert (status, "(--batch)" in error) == (2, True), error
    own.write_text("[training]\nepochs = 1\n")
    assert cll("train", "--data", small, "--mix", "none", "--config", own, "--out", tmp_path / "x")[0] == 0


def test_train_as_coded_sets_the_variant_and_explicit_options_win(cll, tmp_path):
    options = ("--as-coded", "--mix", "mixup", "--epochs", 1, "--partner", "distinct")
    status, _, error = cll("train", *options, "--out", tmp_path / "x")
    assert status == 0, error
    coded = Config.of(mix="mixup", epochs=1).as_coded()
    assert coded.mixing.alpha == 1.0
    assert read_toml(tmp_path / "x" / "config.toml", Config) == coded.with_(partner="distinct")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--data", "imaginary"], "imaginary"),
        (["--mix", "icm", "--clusters", "0"], "clusters"),
        (["--mix", "nix"], "nix"),
        (["--batch", "4000"], "4000"),
        (["--labels", "matrix:{bad}"], "0.9"),
        (["--labels", "matrix:{negative}"], "-0.5"),
        (["--labels", "matrix:/nowhere.csv"], "/nowhere.csv"),
        (["--epochs", "two"], "--epochs"),
        (["--epoks", "2"], "--epoks"),
        (["--device", "abacus"], "abacus"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
        (["--out", "{used}"], "{used}"),
        (["--out", "{used}", "--resume", "--alpha", "0.9"], "0.9"),
    ],
)
def test_train_with_bad_input_names_it_and_leaves_every_file_as_it_was(cll, used, tmp_path, options, found):
    before = {p.name: p.read_bytes() for p in used.iterdir()}
    matrix = np.full((10, 10), 1 / 9) - np.eye(10) / 9
    np.savetxt(tmp_path / "bad.csv", matrix * 0.9, delimiter=",")
    matrix[0, 0], matrix[0, 1] = -0.5, 0.5 + 1 / 9
    np.savetxt(tmp_path / "negative.csv", matrix, delimiter=",")
    places = {"used": used, "bad": tmp_path / "bad.csv", "negative": tmp_path / "negative.csv"}
    out = () if "--out" in options else ("--out", tmp_path / "new")
    status, _, error = cll("train", *(o.format(**places) for o in options), *out)
    assert status == 2
    assert found.format(**places) in "".join(error.replace("│", " ").split("\n"))
    assert "Traceback" not in error
    assert before == {p.name: p.read_bytes() for p in used.iterdir()}
    assert not (tmp_path / "new" / "result.json").exists()


RESULT = {
    "accuracy_last": 0.5,
    "accuracy_selected": None,
    "oracle_noise_ratio": 0.0,
    "images_per_second": None,
    "device": "cpu",
    "data": {"uses_oracle": False},
    "config": {"mixing": {"mix": "none"}},
}


def test_print_result_leaves_out_what_is_unknown_or_does_not_apply(capsys, tmp_path):
    print_result(RESULT, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "50.00 %" in lines[0]


def test_print_result_says_that_true_labels_were_used(capsys, tmp_path):
    print_result(RESULT, tmp_path)
    assert "oracle" not in capsys.readouterr().out.lower()
    print_result(RESULT | {"data": {"uses_oracle": True}}, tmp_path)
    assert "oracle" in capsys.readouterr().out.lower()


def test_train_with_an_oracle_says_so_on_screen_and_in_the_name_of_its_folder(cll, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for mix, name in (("intra-class", "digits-s-nl-intra-class-oracle-0"), ("none", "digits-s-nl-none-0")):
        status, out, _ = cll("train", "--data", "digits", "--mix", mix, "--epochs", 1)
        assert status == 0
        assert (tmp_path / "runs" / name / "result.json").exists()
        assert ("trained with the help of true labels" in out) == (mix == "intra-class")


def test_train_with_a_singular_transition_has_no_accuracy_estimate(cll, tmp_path):
    status, out, _ = cll("train", "--labels", "noisy:0.1", "--mix", "none", "--epochs", 1, "--out", tmp_path / "x")
    assert status == 0
    assert "No estimated accuracy" in out
    assert "URE" not in out


def test_train_with_recipe_auto_keeps_given_options_that_equal_a_default(cll, tmp_path):
    options = ("--data", "digits", "--recipe", "auto", "--mix", "none", "--model", "linear", "--batch", 512)
    status, _, error = cll("train", *options, "--epochs", 100, "--self-training", 0, "--out", tmp_path / "x")
    assert status == 0, error
    config = read_toml(tmp_path / "x" / "config.toml", Config)
    assert (config.training.epochs, config.pseudo_labels.self_training) == (100, 0)
    file = tmp_path / "wanted.toml"
    file.write_text('[training]\nrecipe = "auto"\nepochs = 100\n[pseudo_labels]\nself_training = 0\n')
    assert cll("train", "--config", file, *options[4:], "--out", tmp_path / "y")[0] == 0
    assert read_toml(tmp_path / "y" / "config.toml", Config) == config


def test_train_adapts_the_default_number_of_clusters_to_small_data(cll, tmp_path, small):
    options = ("--data", small, "--epochs", 1, "--batch", 8)
    status, _, error = cll("train", *options, "--out", tmp_path / "x")
    assert (status, "6 clusters instead of 50, because there are only 60 examples" in error) == (0, True), error
    assert cll("train", *options, "--out", tmp_path / "x", "--resume")[0] == 0
    status, _, error = cll("train", *options, "--clusters", 70, "--out", tmp_path / "y")
    assert (status, "(--clusters)" in error) == (2, True), error


def test_train_on_true_classes_says_that_labels_were_drawn(cll, tmp_path):
    source = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=source.normal(size=(60, 4)), y=np.arange(60) % 3)
    options = ("--data", tmp_path / "mine.npz", "--mix", "none", "--epochs", 1)
    error = cll("train", *options, "--out", tmp_path / "x")[2]
    assert error.count("mine has no complementary labels; y was read as true classes") == 1
    assert "name it not_y" not in cll("train", *options, "--labels", "uniform", "--out", tmp_path / "y")[2]
    assert "name it not_y" not in cll("train", *FAST, "--out", tmp_path / "z")[2]


def test_train_warns_if_nothing_was_learned_and_only_then(cll, tmp_path):
    bad = cll("train", *FAST, "--mix", "none", "--lr", 1e8, "--out", tmp_path / "bad")
    assert (bad[0], bad[2].count("The classifier may be no better than chance")) == (0, 1)
    assert "lower learning rate (lr)" in bad[2]
    good = cll("train", "--epochs", 30, "--mix", "none", "--per-example", 3, "--out", tmp_path / "good")
    assert (good[0], "no better than chance" in good[2]) == (0, False)


def test_train_says_which_options_are_not_used(cll, tmp_path):
    options = ("--mix", "none", "--epochs", 1)
    error = cll("train", *options, "--clusters", 30, "--assignments", "nofile", "--out", tmp_path / "a")[2]
    assert "clusters and assignments are not used: mix = none needs no clusters" in error
    assert "not used" not in cll("train", *options, "--out", tmp_path / "b")[2]


def test_train_shows_intervals_as_the_report_and_says_why_there_is_none(cll, tmp_path):
    common = ("--mix", "none", "--per-example", 5)
    out = cll("train", *common, "--epochs", 30, "--out", tmp_path / "a")[1]
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert interval_text(result["estimated_accuracy_low"], result["estimated_accuracy_high"]) in out
    out = cll("train", *common, "--epochs", 1, "--holdout", 0, "--out", tmp_path / "b")[1]
    assert "No estimated accuracy: no examples are held out." in out
