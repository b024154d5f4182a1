import json
import subprocess
import sys

import numpy as np
import pytest

from complementary import __version__
from complementary.cli import COMMANDS
from complementary.config import Config, options_of, read_toml

FAST = ("--epochs", 2, "--clusters", 20, "--restarts", 1)


def test_help_lists_every_command_without_waiting_for_torch():
    code = "import sys; from complementary.cli import usage; print(usage()); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(f"  {name}" in done.stdout for name in COMMANDS)


def test_no_command_and_an_unknown_one(cll):
    assert cll()[0] == 2
    status, _, error = cll("tarin")
    assert status == 2
    assert error == f"cll: there is no command 'tarin'; choose one of: {', '.join(COMMANDS)}.\n"


def test_version(cll):
    assert cll("--version") == (0, f"complementary {__version__}\n", "")


def test_train_help_names_every_option(cll):
    status, out, _ = cll("train", "--help")
    assert status == 0
    for name in options_of(Config):
        assert f"--{name.replace('_', '-')}" in out


def test_train_writes_a_run_and_says_what_came_out(cll, tmp_path):
    options = ("--data", "digits", "--loss", "s-nl", "--mix", "icm", "--clusters", 20, "--seed", 3, "--epochs", 2)
    status, out, _ = cll("train", *options, "--out", tmp_path / "x")
    assert status == 0
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert f"{100 * result['accuracy_last']:.2f} %" in out
    config = read_toml(tmp_path / "x" / "config.toml", Config)
    assert (config.seed, config.cluster.clusters, config.mixing.mix) == (3, 20, "icm")


def test_config_repeats_a_run_and_options_override_it(cll, tmp_path):
    assert cll("train", *FAST, "--alpha", 0.7, "--flip", "True", "--out", tmp_path / "a")[0] == 0
    stored = tmp_path / "a" / "config.toml"
    assert cll("train", "--config", stored, "--out", tmp_path / "b")[0] == 0
    assert cll("train", f"--config={stored}", "--seed", 9, "--out", tmp_path / "c")[0] == 0
    names = ("config.toml", "metrics.jsonl", "last.safetensors")
    a, b = ([(tmp_path / run / name).read_bytes() for name in names] for run in "ab")
    assert a == b
    c = read_toml(tmp_path / "c" / "config.toml", Config)
    assert (c.seed, c.mixing.alpha, c.training.flip) == (9, 0.7, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "imaginary"], "The dataset 'imaginary' is not known"),
        (["--mix", "icm", "--clusters", "0"], "mixes inside clusters, but there are none"),
        (["--mix", "nix"], "The mixer 'nix' is not known"),
        (["--batch", "4000"], "fewer than one batch of 4000"),
        (["--labels", "matrix:{bad}"], "row 0 sums to 0.9"),
        (["--labels", "matrix:{negative}"], "has -0.5 in row 0, column 0"),
        (["--labels", "matrix:/nowhere.csv"], "cannot be read"),
        (["--epochs", "two"], "invalid"),
        (["--epoks", "2"], "Unrecognized"),
        (["--device", "abacus"], "The device 'abacus' cannot be used"),
        (["--config", "/nowhere.toml"], "The configuration /nowhere.toml cannot be read"),
        (["--out", "{used}"], "already holds a run"),
        (["--out", "{used}", "--resume", "--alpha", "0.9"], "another configuration"),
    ],
)
def test_bad_input_is_one_sentence_status_2_and_nothing_lost(cll, tmp_path, options, said):
    used = tmp_path / "used"
    assert cll("train", *FAST, "--out", used)[0] == 0
    before = {p.name: p.read_bytes() for p in used.iterdir()}
    matrix = np.full((10, 10), 1 / 9) - np.eye(10) / 9
    np.savetxt(tmp_path / "bad.csv", matrix * 0.9, delimiter=",")
    matrix[0, 0], matrix[0, 1] = -0.5, 0.5 + 1 / 9
    np.savetxt(tmp_path / "negative.csv", matrix, delimiter=",")
    places = {"used": used, "bad": tmp_path / "bad.csv", "negative": tmp_path / "negative.csv"}
    out = () if "--out" in options else ("--out", tmp_path / "new")
    status, _, error = cll("train", *(o.format(**places) for o in options), *out)
    assert status == 2
    assert said.lower() in " ".join(error.replace("│", " ").split()).lower()
    assert "Traceback" not in error
    assert before == {p.name: p.read_bytes() for p in used.iterdir()}
    assert not (tmp_path / "new" / "result.json").exists()


def test_a_missing_extra_is_named(cll, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    for name in [n for n in sys.modules if n.startswith("complementary.commands.")]:
        monkeypatch.delitem(sys.modules, name)
    status, _, error = cll("train")
    assert status == 2
    assert "the package tyro is missing; pip install 'complementary[cli]' brings it" in error


def test_ctrl_c_is_not_a_traceback(cll, monkeypatch, tmp_path):
    import complementary.cli.train

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(complementary.cli.train, "run", interrupted)
    status, _, error = cll("train", "--out", tmp_path)
    assert status == 130
    assert "cll train: stopped" in error


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -m complementary train --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_predict_applies_a_run_to_new_images(cll, tmp_path):
    from complementary.data import load

    assert cll("train", "--epochs", 30, "--per-example", 5, "--out", tmp_path / "x")[0] == 0
    test = load("digits").test
    np.save(tmp_path / "images.npy", test.inputs[:, 0].numpy())
    status, out, _ = cll("predict", tmp_path / "x", tmp_path / "images.npy", "--weights", "last")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "class,probability"
    predicted = [int(line.split(",")[0]) for line in lines[1:]]
    accuracy = np.mean(np.array(predicted) == test.truth.numpy())
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert accuracy == pytest.approx(result["accuracy_last"])
    assert cll("predict", tmp_path / "x", tmp_path / "images.npy", "--out", tmp_path / "p.csv")[0] == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 361
    status, _, error = cll("predict", tmp_path / "x", tmp_path / "images.npy", "--out", tmp_path / "p.csv")
    assert status == 2
    assert "exists already" in error
