import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from complementary import labels, transitions
from complementary.data import Dataset, Split, load
from complementary.data.contact_sheet import _wrap, choose, draw_sheet
from complementary.errors import UserError


def picture(path):
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


@pytest.fixture
def coloured():
    """60 pictures of 30 classes with long names."""
    truth = torch.arange(60) % 30
    excluded = labels.draw(truth, transitions.noisy(30, 0.5), 4, seed=0)
    inputs = torch.randint(0, 256, (60, 3, 9, 9), dtype=torch.uint8)
    names = tuple(f"a class with the number {k}" for k in range(30))
    return Dataset("x", Split(inputs, truth, excluded), None, names, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("without", ["nothing", "truth", "excluded", "both"])
def test_pictures_with_and_without_labels(coloured, tmp_path, without):
    truth = None if without in ("truth", "both") else coloured.train.truth
    excluded = None if without in ("excluded", "both") else coloured.train.excluded
    dataset = replace(coloured, train=Split(coloured.train.inputs, truth, excluded))
    draw_sheet(dataset, "title", tmp_path / "sheet.png")
    assert picture(tmp_path / "sheet.png").std() > 10


def test_vectors(tmp_path):
    digits = load("digits")
    vectors = Split(digits.train.inputs.flatten(1).float(), digits.train.truth)
    mean, std = (0.0,) * 64, (1.0,) * 64
    for split in (vectors, Split(vectors.inputs)):
        draw_sheet(Dataset("v", split, None, digits.classes, mean, std), "vectors", tmp_path / "sheet.png")
        assert picture(tmp_path / "sheet.png").std() > 10


def test_class_names_of_every_kind(tmp_path):
    digits = load("digits")
    classes = ("$", "$x^", "$\\frac$", "日本", "a\nb", "", "%", "{}", "_", "é" * 99)
    draw_sheet(dataclasses.replace(digits, classes=classes), "a $ b", tmp_path / "sheet.png")
    assert picture(tmp_path / "sheet.png").std() > 10


def test_the_same_seed_draws_the_same_sheet(tmp_path):
    digits = load("digits")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        draw_sheet(digits, "digits", tmp_path / f"{name}.png", seed)
    first, second, other = (picture(tmp_path / f"{name}.png") for name in "abc")
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_every_class_is_shown():
    digits = load("digits")
    chosen = choose(digits.train, 10, 30, seed=0)
    assert torch.bincount(digits.train.truth[chosen]).tolist() == [3] * 10
    assert len(set(chosen.tolist())) == 30


def test_a_small_set_is_shown_whole():
    assert len(choose(load("digits").train.take(torch.arange(5)), 10, 30, seed=0)) == 5


def test_captions_fit():
    lines = _wrap([f"class {i}" for i in range(30)], 25)
    assert len(lines) == 3
    assert lines[0].startswith("not class 0, ")
    assert lines[-1].endswith("+24")
    assert _wrap(["cat"], 25) == ["not cat"]


@pytest.mark.parametrize("name", ["nowhere/sheet.png", "sheet.xyz"])
def test_a_file_that_cannot_be_written(tmp_path, name):
    with pytest.raises(UserError, match="cannot be written"):
        draw_sheet(load("digits"), "x", tmp_path / name)
