import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from complementary.cli.data import COMMANDS, main, relabel
from complementary.config import Config
from complementary.data import REGISTRY, load
from complementary.data.selection import select
from complementary.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COMPLEMENTARY_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder with the named dataset "tiny", registered during the test."""
    places = (("tiny.npz", "npz"),)
    spec = replace(REGISTRY["mnist"], name="tiny", classes=("a", "b", "c"), shape=(1, 5, 4), train=12, test=6)
    monkeypatch.setitem(REGISTRY, "tiny", replace(spec, places=places, downloads=(), sha256={}))
    (tmp_path / "official").mkdir()
    images, truth = np.zeros((12, 5, 4), np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "official/tiny.npz", x_train=images, y_train=truth, x_test=images[:6], y_test=truth[:6])
    return tmp_path / "official"


@pytest.fixture
def data(cll):
    """Call ``cll data`` -> (stdout, stderr); it must succeed."""

    def call(*arguments):
        status, out, err = cll("data", *arguments)
        assert status == 0, err
        return out, err

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_data_help_shows_the_options(data, command):
    assert f"cll data {command}" in data(command, "--help")[0]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_data_help_lists_the_commands(data, arguments):
    out, _ = data(*arguments)
    assert all(f"  {name} " in out for name in COMMANDS)


def test_data_refuses_an_unknown_command():
    with pytest.raises(UserError, match="'fetch' is not known; choose one of: list, get, show, import"):
        main(["fetch"])


def test_data_list_does_not_import_torch():
    code = "import sys; from complementary.cli.data import main; main(['list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_data_get_names_the_source(data, tiny):
    out, err = data("get", "tiny", "--from", tiny)
    assert f"tiny: trying folder {tiny}" in err
    assert "tiny: 12 train and 6 test examples of shape 1x5x4, 3 classes" in out
    out, err = data("get", "tiny", "digits", "--check")
    assert f"(from folder {tiny}, all checksums match)" in out
    assert "digits: 1,437 train and 360 test" in out


@pytest.mark.parametrize(("names", "message"), [(["mnits"], "'mnits' is not known"), ([], "at least one dataset")])
def test_data_get_refuses_unknown_names(cll, names, message):
    status, _, err = cll("data", "get", *names)
    assert status == 2
    assert message in err


def test_data_get_goes_on_after_a_dataset_that_is_not_available(cll, tiny, monkeypatch):
    for name in ("absent", "missing"):
        monkeypatch.setitem(REGISTRY, name, replace(REGISTRY["tiny"], name=name, places=((f"{name}.npz", "npz"),)))
    status, out, err = cll("data", "get", "absent", "tiny", "missing", "digits", "--from", tiny)
    assert status == 2
    assert [line.partition(":")[0] for line in out.splitlines()] == ["tiny", "digits"]
    error = err.splitlines()[-1]
    assert "These datasets could not be fetched: absent, missing. absent is not available from" in error
    assert "put missing.npz into a folder" in error
    status, _, err = cll("data", "get", "absent", "--from", tiny)
    assert (status, "These datasets" in err) == (2, False)


def test_data_list_shows_where_datasets_come_from(data, tiny, tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=np.eye(4, 3), truth=[0, 1, 0, 1])
    data("get", "tiny", "--from", tiny)
    data("import", tmp_path / "mine.npz")
    out, _ = data("list")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "built in" in lines["digits"]
    assert "folder" in lines["tiny"]
    assert lines["mine"].split()[:6] == ["mine", "2", "3", "4", "0", "truth"]
    assert "imported from" in lines["mine"]
    assert lines["mnist"].rstrip().endswith("-")


def test_data_list_marks_damaged_datasets(data, own_cache, tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=np.eye(4, 3), truth=[0, 1, 0, 1])
    data("import", tmp_path / "mine.npz")
    (own_cache / "sets/mine/manifest.json").write_text("{")
    assert any(line.startswith("mine") and line.rstrip().endswith("damaged") for line in data("list")[0].splitlines())


def test_data_remove_deletes_a_dataset(data, cll, tiny):
    data("get", "tiny", "--from", tiny)
    assert "freed" in data("remove", "tiny")[0]
    status, _, err = cll("data", "remove", "tiny")
    assert status == 2
    assert "no dataset tiny" in err


@pytest.mark.slow
def test_data_show_prints_counts_and_draws_a_sheet(data, tmp_path):
    sheet = tmp_path / "sheet.png"
    out, _ = data("show", "digits", "--labels", "noisy:0.2", "--per-example", 2, "--seed", 3, "--out", sheet)
    assert "2.00 complementary labels per example (labels noisy:0.2, 2 per example, seed 3)" in out
    with Image.open(sheet) as image:
        assert image.size[0] > 1000


def test_data_show_without_labels(data):
    out, _ = data("show", "digits")
    assert "labeled" in out


def test_relabel_applies_setups_and_long_tails():
    digits = load("digits")
    dataset, words = relabel(digits, "setup-3:5:10", 1, 1.0, 0)
    counts = np.bincount(dataset.train.truth)
    assert counts[0] / counts[-1] == pytest.approx(10, rel=0.1)
    assert words == "labels setup-3:5:10, 1 per example, seed 0"
    assert relabel(digits, "uniform", 2, 10.0, 3)[1] == "long tail 10; labels uniform, 2 per example, seed 3"
    assert relabel(digits, "given", 1, 1.0, 0) == (digits, "")


def test_relabel_gives_the_examples_and_labels_of_training():
    digits = load("digits")
    config = Config.of(labels="biased:5", per_example=2, long_tail=10, seed=4)
    chosen, _, excluded = select(config, digits)
    shown = relabel(digits, "biased:5", 2, 10, 4)[0].train
    assert torch.equal(shown.inputs, digits.train.inputs[chosen])
    assert torch.equal(shown.excluded, excluded)


def test_relabel_cannot_draw_labels_without_true_classes(tmp_path):
    np.savez(tmp_path / "mine.npz", inputs=np.eye(3), excluded=np.eye(3))
    dataset = load(str(tmp_path / "mine.npz"))
    for arguments in (("uniform", 1, 1.0, 0), ("given", 1, 10.0, 0)):
        with pytest.raises(UserError, match="true labels"):
            relabel(dataset, *arguments)
    assert relabel(dataset, "given", 1, 1.0, 0) == (dataset, "labels as given")


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """Two images in a folder, with their labels beside it, in the current directory."""
    (tmp_path / "pets").mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.full((9, 9, 3), ord(name), np.uint8)).save(tmp_path / "pets" / f"{name}.png")
    (tmp_path / "not.csv").write_text("a.png,cat\nb.png,dog\n")
    monkeypatch.chdir(tmp_path)


def test_data_import_names_the_dataset_after_its_folder(data, pets):
    out, err = data("import", "pets", "--labels", "not.csv", "--size", 8)
    assert "pets: 2 train and 0 test examples of shape 1x8x8, 2 classes, 1.00 complementary labels per example" in out
    assert "train: 2 examples" in err
    assert load("pets").classes == ("cat", "dog")


def test_data_show_lists_annotators(data, pets, tmp_path):
    (tmp_path / "not.csv").write_text("file,answer,worker\na.png,not cat,ann\nb.png,yes cat,bob\na.png,!cat,bob\n")
    data("import", "pets", "--labels", "not.csv", "--size", 8, "--classes", _write(tmp_path, "cat\ndog\nship"))
    out, _ = data("show", "pets")
    lines = [line.split() for line in out.splitlines()]
    assert ["bob", "2"] in lines
    assert lines.index(["bob", "2"]) < lines.index(["ann", "1"])


def _write(folder, text):
    (folder / "classes.txt").write_text(text)
    return folder / "classes.txt"


def test_data_import_asks_for_the_meaning_of_a_label(cll, data, pets, tmp_path):
    (tmp_path / "not.csv").write_text("file,label\na.png,cat\nb.png,dog\n")
    status, _, err = cll("data", "import", "pets", "--labels", "not.csv")
    assert status == 2
    assert "--meaning" in err
    data("import", "pets", "--labels", "not.csv", "--meaning", "not")
    assert load("pets").train.excluded.tolist() == [[1, 0], [0, 1]]


def test_data_import_lists_problems_in_a_file_and_names_the_flag(cll, pets, tmp_path):
    (tmp_path / "pets/b.png").write_text("no image")
    status, _, err = cll("data", "import", "pets", "--labels", "not.csv", "--out", "mine")
    assert status == 2
    assert "--skip-bad" in err
    assert "b.png" in (tmp_path / "mine-problems.txt").read_text()


@pytest.mark.parametrize("name", ["arrays", "classes", "source", "version"])
def test_list_shows_a_damaged_manifest(cll, tmp_path, monkeypatch, name):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "own.npz", X=np.eye(4), not_y=[0, 1, 2, 0])
    assert cll("data", "import", tmp_path / "own.npz")[0] == 0
    path = tmp_path / "cache" / "sets" / "own" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[name], manifest["manifest_sha256"]
    path.write_text(json.dumps(manifest))
    status, out, error = cll("data", "list")
    assert (status, error) == (0, "")
    assert re.search(r"^own ", out, re.MULTILINE)
    assert cll("data", "show", "own")[0] == (0 if name == "source" else 2)
