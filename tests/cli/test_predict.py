import csv
import json
import os
import re

import numpy as np
import pytest
from PIL import Image

from complementary.config import Config
from complementary.data import load
from complementary.reports import terminal
from complementary.training import predict
from complementary.training.run import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "x"
    run(Config.of(mix="none", epochs=20, batch=128, per_example=5), folder)
    return folder


def table(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


def test_predict_folder_of_images_equals_its_arrays(cll, trained, tmp_path):
    images = load("digits").test.inputs[:20, 0].numpy()
    np.save(tmp_path / "images.npy", images)
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "images" / "deep" / f"{i:02d}.png")
    by_array = table(cll("predict", trained, tmp_path / "images.npy")[1])
    by_image = table(cll("predict", trained, tmp_path / "images")[1])
    assert by_image[0] == ["file", "class", "probability"]
    assert [row[1:] for row in by_image[1:]] == by_array[1:]
    assert by_image[1][0] == "deep/00.png"


def test_predict_writes_all_classes_by_name(cll, trained, tmp_path):
    np.save(tmp_path / "images.npy", load("digits").test.inputs[:5, 0].numpy())
    short = table(cll("predict", trained, tmp_path / "images.npy")[1])
    header, *rows = table(cll("predict", trained, tmp_path / "images.npy", "--all-classes")[1])
    assert header == ["class", "probability", *map(str, range(10))]
    assert [row[:2] for row in rows] == short[1:]
    for row in rows:
        values = [float(value) for value in row[2:]]
        assert sum(values) == pytest.approx(1, abs=0.001)
        assert values[int(row[0])] == max(values) == float(row[1])


def test_predict_resizes_and_converts_images(cll, trained, tmp_path):
    image = Image.fromarray(load("digits").test.inputs[3, 0].numpy())
    image.save(tmp_path / "small.png")
    image.resize((64, 64), Image.Resampling.BICUBIC).convert("RGB").save(tmp_path / "large.png")
    rows = table(cll("predict", trained, tmp_path)[1])[1:]
    assert len({row[1] for row in rows}) == 1


def test_predict_reaches_the_accuracy_of_the_run(cll, trained, tmp_path):
    test = load("digits").test
    np.save(tmp_path / "images.npy", test.inputs[:, 0].numpy())
    status, out, _ = cll("predict", trained, tmp_path / "images.npy", "--weights", "last")
    assert status == 0
    predicted = [int(row[0]) for row in table(out)[1:]]
    result = json.loads((trained / "result.json").read_text())
    assert np.mean(np.array(predicted) == test.truth.numpy()) == pytest.approx(result["accuracy_last"])


def test_predict_keeps_file_names_that_are_not_utf8(cll, trained, tmp_path):
    name = b"photo-\xff.png"
    (tmp_path / "images").mkdir()
    Image.fromarray(load("digits").test.inputs[3, 0].numpy()).save(tmp_path / "images" / os.fsdecode(name))
    status, _, error = cll("predict", trained, tmp_path / "images", "--out", tmp_path / "out.csv")
    assert status == 0, error
    assert (tmp_path / "out.csv").read_bytes().splitlines()[1].startswith(name + b",")
    status, out, error = cll("predict", trained, tmp_path / "images")
    assert status == 0, error
    assert out.splitlines()[1].startswith("photo-\\udcff.png,")


def test_predict_writes_to_a_new_file_only(cll, trained, tmp_path):
    np.save(tmp_path / "images.npy", load("digits").test.inputs[:9, 0].numpy())
    arguments = ("predict", trained, tmp_path / "images.npy", "--out", tmp_path / "p.csv")
    assert cll(*arguments)[0] == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 10
    status, _, error = cll(*arguments)
    assert status == 2
    assert "(--out)" in error


def test_predict_shows_progress(cll, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(predict, "BLOCK", 5)
    np.save(tmp_path / "images.npy", load("digits").test.inputs[:9, 0].numpy())
    assert cll("predict", trained, tmp_path / "images.npy")[2].splitlines() == [
        "predicting: 5 of 9",
        "predicting: 9 of 9",
    ]


def test_predict_warns_once_of_another_range_of_pixels_and_never_of_a_dark_part(cll, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "BLOCK", 5)
    images = load("digits").test.inputs[:20, 0].numpy()
    np.save(tmp_path / "dark.npy", images // 16)
    assert cll("predict", trained, tmp_path / "dark.npy")[2].count("largest pixel value is 15") == 1
    np.save(tmp_path / "some.npy", np.concatenate([images[:5] // 16, images[5:]]))
    assert "largest pixel value" not in cll("predict", trained, tmp_path / "some.npy")[2]


def test_predict_one_image(cll, trained, tmp_path):
    Image.fromarray(load("digits").test.inputs[0, 0].numpy()).save(tmp_path / "a.png")
    status, out, _ = cll("predict", trained, tmp_path / "a.png")
    assert status == 0
    assert table(out)[1][0] == "a.png"


def test_predict_names_a_damaged_image_and_keeps_its_row(cll, trained, tmp_path):
    Image.fromarray(load("digits").test.inputs[0, 0].numpy()).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"not an image")
    status, out, error = cll("predict", trained, tmp_path)
    assert status == 0
    assert table(out)[1] == ["bad.png", "", ""]
    assert table(out)[2][1] != ""
    assert re.search(r"warning: .*bad\.png", error)


def test_predict_refuses_bad_input(cll, trained, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ((trained, tmp_path / "empty"), "empty"),
        ((trained, tmp_path / "none.npy"), "none.npy"),
        ((tmp_path, tmp_path / "none.npy"), "finished run"),
        ((trained, tmp_path / "empty", "--out", tmp_path / "empty"), "--out"),
    ):
        status, _, error = cll("predict", *arguments)
        assert status == 2
        assert said in error


def test_predict_refuses_images_for_a_run_on_vectors(cll, tmp_path):
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
    assert ".npy" in error


def test_predict_npz_equals_npy(cll, trained, tmp_path):
    images = load("digits").test.inputs[:9, 0].numpy()
    np.save(tmp_path / "x.npy", images)
    np.savez(tmp_path / "x.npz", images=images, names=[f"n{i}" for i in range(9)])
    plain = table(cll("predict", trained, tmp_path / "x.npy")[1])
    named = table(cll("predict", trained, tmp_path / "x.npz")[1])
    assert plain[0] == ["class", "probability"]
    assert named == [["name", *plain[0]], *([f"n{i}", *row] for i, row in enumerate(plain[1:]))]


def test_predict_brings_named_columns_into_the_order_of_the_training(cll, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    points = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    rows = [",".join(map(str, point)) for point in points.tolist()]
    (tmp_path / "v.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
    (tmp_path / "other.csv").write_text("\n".join(["c,a,b", *(f"{c},{a},{b}" for a, b, c in points)]) + "\n")
    (tmp_path / "unknown.csv").write_text("\n".join(["a,b,d", *rows]) + "\n")
    answers = [f"{i},not {'xyz'[i % 3]}" for i in range(60)]
    (tmp_path / "answers.csv").write_text("\n".join(["id,answer", *answers]) + "\n")
    given = ("--labels", tmp_path / "answers.csv", "--out", "named")
    assert cll("data", "import", tmp_path / "v.csv", *given)[0] == 0
    options = ("--mix", "none", "--batch", 16, "--epochs", 1, "--out", tmp_path / "x")
    assert cll("train", "--data", "named", *options)[0] == 0
    usual, other = (cll("predict", tmp_path / "x", tmp_path / f"{name}.csv")[1] for name in ("v", "other"))
    assert len(table(usual)) == 61
    assert usual == other
    code, _, error = cll("predict", tmp_path / "x", tmp_path / "unknown.csv", "--out", tmp_path / "p.csv")
    assert code == 2
    assert "unknown d; missing c" in error
    assert "cannot be written" not in error


def test_predict_csv_equals_npy_for_a_run_on_vectors(cll, tmp_path):
    points = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(tmp_path / "v.npz", inputs=points, excluded=np.eye(3)[np.arange(60) % 3])
    options = ("--mix", "none", "--batch", 16, "--epochs", 1, "--out", tmp_path / "x")
    assert cll("train", "--data", tmp_path / "v.npz", *options)[0] == 0
    np.savetxt(tmp_path / "v.csv", points, delimiter=",")
    np.save(tmp_path / "v.npy", points)
    by_csv, by_npy = (cll("predict", tmp_path / "x", tmp_path / f"v.{kind}")[1] for kind in ("csv", "npy"))
    assert len(table(by_csv)) == 61
    assert by_csv == by_npy


def test_predict_says_how_images_are_converted(cll, trained, tmp_path):
    image = Image.fromarray(load("digits").test.inputs[3, 0].numpy())
    for name, changed in (("a", image), ("b", image.resize((48, 48)))):
        (tmp_path / name).mkdir()
        changed.save(tmp_path / name / "x.png")
    assert "resized" not in cll("predict", trained, tmp_path / "a")[2]
    assert "images (x.png: 48 x 48, gray) are resized to 8 x 8" in cll("predict", trained, tmp_path / "b")[2]
    red = Image.new("RGB", (48, 48), "red")
    red.save(tmp_path / "b" / "x.png")
    wanted = "warning: images (x.png: 48 x 48, color) are resized to 8 x 8 and converted to gray, as in training"
    assert wanted in cll("predict", trained, tmp_path / "b")[2]
