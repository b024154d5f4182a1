import re

import numpy as np
import pytest
import torch
from PIL import Image

from complementary.cli.data import COMMANDS, main, relabel
from complementary.config import Config
from complementary.data import load
from complementary.data.selection import select
from complementary.errors import UserError


@pytest.fixture
def data(capsys):
    """Call ``cll data`` -> (stdout, stderr)."""

    def call(command, *arguments):
        main([command, *map(str, arguments)])
        return capsys.readouterr()

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_help(data, command, capsys):
    with pytest.raises(SystemExit) as stop:
        data(command, "--help")
    assert stop.value.code == 0
    assert f"cll data {command}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_commands_are_listed(capsys, arguments):
    main(arguments)
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_an_unknown_command(data):
    with pytest.raises(UserError, match="'fetch' is not known; choose one of: list, get, show, import"):
        data("fetch")


def test_get_says_where_from_and_what_it_is(data, tiny, tiny_folder):
    out, err = data("get", "tiny", "--from", tiny_folder)
    assert f"tiny: trying folder {tiny_folder}" in err
    assert "tiny: 12 train and 6 test examples of 1x5x4, 3 classes" in out
    assert re.search(r"mean 0\.\d{4} \(known: 0\.1307\), std", out)
    out, err = data("get", "tiny", "digits", "--check")
    assert "tiny: in the cache" in err
    assert "tiny: every byte matches its checksum" in err
    assert "digits: 1,437 train and 360 test" in out


@pytest.mark.parametrize(("names", "sentence"), [(["mnits"], "'mnits' is not known"), ([], "Name at least one")])
def test_get_of_unknown_names(data, names, sentence):
    with pytest.raises(UserError, match=sentence):
        data("get", *names)


def test_list(data, tiny, tiny_folder, tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=np.eye(4, 3), truth=[0, 1, 0, 1])
    data("get", "tiny", "--from", tiny_folder)
    data("import", tmp_path / "mine.npz")
    out, _ = data("list")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "built in" in lines["digits"]
    assert "folder" in lines["tiny"]
    assert "imported from" in lines["mine"]
    assert lines["mnist"].rstrip().endswith("-")


def test_remove_takes_a_set_out_and_says_how_much_that_was(data, tiny, tiny_folder):
    data("get", "tiny", "--from", tiny_folder)
    assert re.fullmatch(r"tiny is no longer in the cache: [\d.]+ .?B freed\n", data("remove", "tiny").out)
    with pytest.raises(UserError, match=r"There is no set tiny in the cache .*; 'cll data list' shows what is there"):
        data("remove", "tiny")
    with pytest.raises(UserError, match="cannot name a dataset"):
        data("remove", "../x")


def test_show_prints_counts_and_draws(data, tmp_path):
    sheet = tmp_path / "sheet.png"
    out, _ = data("show", "digits", "--labels", "noisy:0.2", "--per-example", 2, "--seed", 3, "--out", sheet)
    assert "2.00 complementary labels each (labels noisy:0.2, 2 per example, seed 3)" in out
    with Image.open(sheet) as picture:
        assert picture.size[0] > 1000


def test_show_without_labels(data):
    out, _ = data("show", "digits")
    assert "labelled" in out


def test_setups_and_long_tails():
    digits = load("digits")
    dataset, words = relabel(digits, "setup-3:5:10", 1, 1.0, 0)
    counts = np.bincount(dataset.train.truth)
    assert counts[0] / counts[-1] == pytest.approx(10, rel=0.1)
    assert words == "labels setup-3:5:10, 1 per example, seed 0"
    assert relabel(digits, "uniform", 2, 10.0, 3)[1] == "long tail 10; labels uniform, 2 per example, seed 3"
    assert relabel(digits, "given", 1, 1.0, 0) == (digits, "")


def test_what_is_shown_is_what_would_be_trained_on():
    digits = load("digits")
    config = Config.of(labels="biased:5", per_example=2, long_tail=10, seed=4)
    chosen, _, excluded = select(config, digits)
    shown = relabel(digits, "biased:5", 2, 10, 4)[0].train
    assert torch.equal(shown.inputs, digits.train.inputs[chosen])
    assert torch.equal(shown.excluded, excluded)


def test_labels_cannot_be_drawn_without_truth(tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=np.eye(3), excluded=np.eye(3))
    dataset = load(str(tmp_path / "mine.npz"))
    for arguments in (("uniform", 1, 1.0, 0), ("given", 1, 10.0, 0)):
        with pytest.raises(UserError, match="true labels"):
            relabel(dataset, *arguments)
    assert relabel(dataset, "given", 1, 1.0, 0) == (dataset, "labels as given")


def test_import_names_the_set_after_its_folder(data, tmp_path):
    folder = tmp_path / "pets"
    folder.mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.full((9, 9, 3), ord(name), np.uint8)).save(folder / f"{name}.png")
    (tmp_path / "not.csv").write_text("a.png,cat\nb.png,dog\n")
    out, err = data("import", folder, "--labels", tmp_path / "not.csv", "--size", 8)
    assert "pets: 2 train and 0 test examples of 1x8x8, 2 classes, 1.00 complementary labels each" in out
    assert "train: 2 pictures" in err
    assert load("pets").classes == ("cat", "dog")
