import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from complementary import labels, transitions
from complementary.data import Dataset, Split, load
from complementary.data.contact_sheet import choose, draw_sheet, wrap
from complementary.errors import UserError


def pixels(path):
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


@pytest.fixture
def colored():
    """60 images of 30 classes with long names."""
    truth = torch.arange(60) % 30
    excluded = labels.draw(truth, transitions.noisy(30, 0.5), 4, seed=0)
    inputs = torch.randint(0, 256, (60, 3, 9, 9), dtype=torch.uint8)
    names = tuple(f"a class with the number {k}" for k in range(30))
    return Dataset("x", Split(inputs, truth, excluded), None, names, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    "without", ["nothing", *(pytest.param(name, marks=pytest.mark.slow) for name in ("truth", "excluded")), "both"]
)
def test_sheet_of_images_with_and_without_labels(colored, tmp_path, without):
    truth = None if without in ("truth", "both") else colored.train.truth
    excluded = None if without in ("excluded", "both") else colored.train.excluded
    dataset = replace(colored, train=Split(colored.train.inputs, truth, excluded))
    draw_sheet(dataset, "title", tmp_path / "sheet.png")
    assert pixels(tmp_path / "sheet.png").std() > 10


def test_sheet_of_vectors(tmp_path):
    digits = load("digits")
    vectors = Split(digits.train.inputs.flatten(1).float(), digits.train.truth)
    mean, std = (0.0,) * 64, (1.0,) * 64
    for split in (vectors, Split(vectors.inputs)):
        draw_sheet(Dataset("v", split, None, digits.classes, mean, std), "vectors", tmp_path / "sheet.png")
        assert pixels(tmp_path / "sheet.png").std() > 10


@pytest.mark.slow
def test_sheet_with_unusual_class_names(tmp_path):
    digits = load("digits")
    classes = ("$", "$x^", "$\\frac$", "日本", "a\nb", "", "%", "{}", "_", "é" * 99)
    draw_sheet(dataclasses.replace(digits, classes=classes), "a $ b", tmp_path / "sheet.png")
    assert pixels(tmp_path / "sheet.png").std() > 10


@pytest.mark.slow
def test_sheet_depends_on_the_seed_only(tmp_path):
    digits = load("digits")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        draw_sheet(digits, "digits", tmp_path / f"{name}.png", seed)
    first, second, other = (pixels(tmp_path / f"{name}.png") for name in "abc")
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_choose_takes_equally_many_of_each_class():
    digits = load("digits")
    chosen = choose(digits.train, 10, 30, seed=0)
    assert torch.bincount(digits.train.truth[chosen]).tolist() == [3] * 10
    assert len(set(chosen.tolist())) == 30


def test_choose_takes_all_of_a_small_split():
    assert len(choose(load("digits").train.take(torch.arange(5)), 10, 30, seed=0)) == 5


def test_wrap_limits_the_number_of_lines():
    lines = wrap([f"class {i}" for i in range(30)], 25)
    assert len(lines) == 3
    assert lines[0].startswith("not class 0, ")
    assert lines[-1].endswith("+24")
    assert wrap(["cat"], 25) == ["not cat"]


@pytest.mark.parametrize("name", ["nowhere/sheet.png", "sheet.xyz"])
def test_sheet_that_cannot_be_written(tmp_path, name):
    digits = load("digits")
    few = replace(digits, train=digits.train.take(torch.arange(3)))
    with pytest.raises(UserError, match="cannot be written"):
        draw_sheet(few, "x", tmp_path / name)
