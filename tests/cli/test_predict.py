import csv

import numpy as np
import pytest
from PIL import Image

from complementary.config import Config
from complementary.data import load
from complementary.training.run import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "x"
    run(Config.of(mix="none", epochs=20, batch=128, per_example=5), folder)
    return folder


def table(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


def test_a_folder_of_pictures_gives_the_predictions_of_its_arrays(cll, trained, tmp_path):
    images = load("digits").test.inputs[:20, 0].numpy()
    np.save(tmp_path / "images.npy", images)
    (tmp_path / "pictures" / "deep").mkdir(parents=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "pictures" / "deep" / f"{i:02d}.png")
    by_array = table(cll("predict", trained, tmp_path / "images.npy")[1])
    by_picture = table(cll("predict", trained, tmp_path / "pictures")[1])
    assert by_picture[0] == ["file", "class", "probability"]
    assert [row[1:] for row in by_picture[1:]] == by_array[1:]
    assert by_picture[1][0] == "deep/00.png"


def test_pictures_of_another_size_and_colour_are_fitted(cll, trained, tmp_path):
    image = Image.fromarray(load("digits").test.inputs[3, 0].numpy())
    image.save(tmp_path / "small.png")
    image.resize((64, 64), Image.Resampling.BICUBIC).convert("RGB").save(tmp_path / "large.png")
    rows = table(cll("predict", trained, tmp_path)[1])[1:]
    assert len({row[1] for row in rows}) == 1


def test_one_picture_is_enough(cll, trained, tmp_path):
    Image.fromarray(load("digits").test.inputs[0, 0].numpy()).save(tmp_path / "a.png")
    status, out, _ = cll("predict", trained, tmp_path / "a.png")
    assert status == 0
    assert table(out)[1][0] == "a.png"


def test_a_broken_picture_keeps_its_row_and_is_named(cll, trained, tmp_path):
    Image.fromarray(load("digits").test.inputs[0, 0].numpy()).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    status, out, error = cll("predict", trained, tmp_path)
    assert status == 0
    assert table(out)[1] == ["bad.png", "", ""]
    assert table(out)[2][1] != ""
    assert "bad.png cannot be read: not a picture" in error


def test_what_cannot_work_is_one_sentence(cll, trained, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ((trained, tmp_path / "empty"), "holds no pictures"),
        ((trained, tmp_path / "none.npy"), "cannot be read"),
        ((tmp_path, tmp_path / "none.npy"), "holds no finished run"),
        ((trained, tmp_path / "empty", "--out", tmp_path / "empty"), "exists already"),
    ):
        status, _, error = cll("predict", *arguments)
        assert status == 2
        assert said in error


def test_a_run_on_vectors_does_not_take_pictures(cll, tmp_path):
    np.savez(
        tmp_path / "v.npz", inputs=np.random.default_rng(0).normal(size=(60, 4)), excluded=np.eye(3)[np.arange(60) % 3]
    )
    status, _, error = cll(
        "train", "--data", tmp_path / "v.npz", "--mix", "none", "--batch", 16, "--epochs", 1, "--out", tmp_path / "x"
    )
    assert status == 0, error
    (tmp_path / "p").mkdir()
    status, _, error = cll("predict", tmp_path / "x", tmp_path / "p")
    assert status == 2
    assert "not on square pictures; give a .npy, .npz or .csv file" in error


def test_npz_and_csv_give_the_predictions_of_the_npy(cll, trained, tmp_path):
    images = load("digits").test.inputs[:9, 0].numpy()
    np.save(tmp_path / "x.npy", images)
    np.savez(tmp_path / "x.npz", images=images, names=[f"n{i}" for i in range(9)])
    plain = table(cll("predict", trained, tmp_path / "x.npy")[1])
    named = table(cll("predict", trained, tmp_path / "x.npz")[1])
    assert plain[0] == ["class", "probability"]
    assert named == [["name", *plain[0]], *([f"n{i}", *row] for i, row in enumerate(plain[1:]))]


def test_a_run_on_vectors_takes_a_csv(cll, tmp_path):
    points = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(tmp_path / "v.npz", inputs=points, excluded=np.eye(3)[np.arange(60) % 3])
    options = ("--mix", "none", "--batch", 16, "--epochs", 1, "--out", tmp_path / "x")
    assert cll("train", "--data", tmp_path / "v.npz", *options)[0] == 0
    np.savetxt(tmp_path / "v.csv", points, delimiter=",")
    np.save(tmp_path / "v.npy", points)
    by_csv, by_npy = (cll("predict", tmp_path / "x", tmp_path / f"v.{kind}")[1] for kind in ("csv", "npy"))
    assert len(table(by_csv)) == 61
    assert by_csv == by_npy
