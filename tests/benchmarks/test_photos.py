"""The path of a user from photos to a model: the photos and answers that it starts from."""

import csv

import numpy as np
import pytest
from PIL import Image

from benchmarks.photos import KINDS, WRONG, write_photos


def test_write_photos_writes_answers_of_which_few_are_wrong(tmp_path):
    random = np.random.default_rng(0)
    truth, names = random.integers(0, KINDS, 400), [f"kind {k}" for k in range(KINDS)]
    images = random.integers(0, 256, (400, 4, 4, 3), dtype=np.uint8)
    write_photos(tmp_path, images, truth, names, seed=1)
    with (tmp_path / "answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = np.mean([row["answer"] == f"not {names[y]}" for row, y in zip(rows, truth, strict=True)])
    assert wrong == pytest.approx(WRONG, abs=0.025)
    assert wrong > 0
    assert np.array_equal(np.asarray(Image.open(tmp_path / "photos" / rows[2]["file"])), images[2])
    with pytest.raises(OSError, match="cannot identify"):
        Image.open(tmp_path / "photos" / rows[0]["file"])
