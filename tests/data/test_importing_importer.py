import csv
import dataclasses
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from complementary.config import Config
from complementary.data import cache, load
from complementary.data.importing import Import, run_import
from complementary.errors import UserError
from complementary.training.task import build_task

CLASSES = ("cat", "dog", "ship")


def picture(path, level, grey=False, size=(20, 14)):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = np.full((*size, 3), level, np.uint8)
    if not grey:
        colour[..., 0] = 255 - level
    Image.fromarray(colour).save(path)


@pytest.fixture
def photos(tmp_path):
    """Six colour pictures in two folders, their labels and classes."""
    rows = ["file,not,truth"]
    for i in range(6):
        picture(tmp_path / f"photos/{i % 2}/{i}.png", 10 * i)
        rows.append(f"{i % 2}/{i}.png,{CLASSES[(i + 1) % 3]},{CLASSES[i % 3]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    return tmp_path / "photos"


@pytest.fixture
def request_(photos, tmp_path):
    def make(**changes):
        settings = {"labels": tmp_path / "labels.csv", "classes": tmp_path / "classes.txt", "size": 8}
        settings["report"] = tmp_path / "report.txt"
        return Import(photos, "mine", **settings | changes)

    return make


@pytest.fixture
def root(own_cache):
    return own_cache


def arrays_on_disk(root):
    return sorted(path.name for path in root.rglob("*.npy"))


def test_pictures_are_imported_and_found_by_name(request_, root, said):
    run_import(request_(flip=False), root, said.append)
    dataset = load("mine")
    assert dataset.train.inputs.shape == (6, 3, 8, 8)
    assert dataset.classes == CLASSES
    order = [0, 2, 4, 1, 3, 5]  # by path
    assert dataset.train.truth.tolist() == [i % 3 for i in order]
    assert dataset.train.excluded.argmax(1).tolist() == [(i + 1) % 3 for i in order]
    assert dataset.train.inputs[1, 1].unique().tolist() == [20]
    assert not dataset.flip
    assert dataset.test is None
    assert np.allclose(dataset.mean, [(255 - 25) / 255, 25 / 255, 25 / 255], atol=1e-5)
    assert arrays_on_disk(root) == ["train-excluded.npy", "train-inputs.npy", "train-truth.npy"]
    cache.verify(cache.read(root, "mine"))


def test_grey_pictures_get_one_channel(photos, request_, root, said):
    for i in range(6):
        picture(photos / f"{i % 2}/{i}.png", 10 * i, grey=True)
    assert run_import(request_(), root, said.append).train.inputs.shape == (6, 1, 8, 8)


def test_one_colour_picture_makes_three_channels(photos, request_, root, said):
    for i in range(5):
        picture(photos / f"{i % 2}/{i}.png", 10 * i, grey=True)
    assert run_import(request_(), root, said.append).train.inputs.shape == (6, 3, 8, 8)


def test_classes_may_be_left_out(request_, root, said):
    assert run_import(request_(classes=None), root, said.append).classes == CLASSES


@pytest.fixture
def broken(photos, tmp_path):
    """One broken picture, one without label, one label without picture, one misspelt class."""
    (photos / "0/2.png").write_bytes(b"rubbish")
    picture(photos / "extra.png", 5)
    text = (tmp_path / "labels.csv").read_text().replace("1/3.png,dog", "1/3.png,dgo")
    (tmp_path / "labels.csv").write_text(text + "\nghost.png,dog,cat\n")
    return photos


def test_all_problems_come_in_one_report_and_nothing_is_left(broken, request_, root, said, tmp_path):
    with pytest.raises(UserError, match=r"4 problems \(the whole list is in .*report.txt\), so nothing was imported"):
        run_import(request_(), root, said.append)
    report = (tmp_path / "report.txt").read_text()
    assert report.strip() == said[-1]
    for line in ("extra.png", "'dgo' for 1/3.png (line 5)", "ghost.png (line 8)", "0/2.png: not a picture"):
        assert f"  {line}\n" in report
    assert cache.names(root) == []
    assert not (root / "sets/mine").exists()
    assert arrays_on_disk(root) == []


def test_skip_bad_goes_on_without_them(broken, request_, root, said):
    dataset = run_import(request_(skip_bad=True), root, said.append)
    assert len(dataset.train) == 4
    assert dataset.train.truth.tolist() == [0, 1, 1, 2]  # 0/0, 0/4, 1/1, 1/5
    assert said[-1].startswith("4 problems")
    cache.verify(cache.read(root, "mine"))


def test_nothing_usable_is_an_error_even_then(photos, request_, root, said):
    for path in photos.rglob("*.png"):
        path.write_bytes(b"rubbish")
    with pytest.raises(UserError, match="None of the train pictures can be used"):
        run_import(request_(skip_bad=True), root, said.append)
    assert arrays_on_disk(root) == []


def test_a_report_that_cannot_be_written_is_on_the_screen(broken, request_, root, said):
    with pytest.raises(UserError, match="4 problems, so nothing"):
        run_import(request_(report=Path("/nowhere/report.txt")), root, said.append)
    assert "ghost.png" in said[-1]


@pytest.mark.parametrize("as_csv", [True, False])
def test_a_test_folder(request_, root, said, tmp_path, as_csv):
    for name in CLASSES:
        picture(tmp_path / f"test/{name}/x-{name}.png", 3)
    (tmp_path / "test.csv").write_text("file,truth\n" + "".join(f"x-{name}.png,{name}\n" for name in CLASSES))
    labels = tmp_path / "test.csv" if as_csv else None
    dataset = run_import(request_(test=tmp_path / "test", test_labels=labels), root, said.append)
    assert dataset.test.truth.tolist() == [0, 1, 2]
    assert dataset.test.inputs.shape == (3, 3, 8, 8)
    assert dataset.test.excluded is None


def test_test_pictures_outside_class_folders(request_, root, said, tmp_path):
    picture(tmp_path / "test/x.png", 3)
    with pytest.raises(UserError, match="lies in no subfolder"):
        run_import(request_(test=tmp_path / "test"), root, said.append)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "mnist"}, "is the name of a known dataset"),
        ({"name": "../mine"}, "cannot name a dataset; choose another"),
        ({"name": "mine.npz"}, "cannot name a dataset"),
        ({"size": 1}, "The size 1 is not possible"),
        ({"fit": "squash"}, "choose one of: crop, stretch"),
        ({"labels": None}, "Pictures need labels"),
        ({"test_labels": Path("x.csv")}, "without --test"),
        ({"path": Path("/nowhere")}, "does not exist"),
    ],
)
def test_requests_that_cannot_work(request_, root, said, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        run_import(dataclasses.replace(request_(), **changes), root, said.append)
    assert arrays_on_disk(root) == []


def test_a_name_that_is_taken(request_, root, said):
    run_import(request_(), root, said.append)
    with pytest.raises(UserError, match="or --replace it"):
        run_import(request_(size=4), root, said.append)
    assert run_import(request_(size=4, replace=True), root, said.append).train.inputs.shape[-1] == 4
    assert load("mine").train.inputs.shape[-1] == 4


# --- vectors ---------------------------------------------------------------------------------------


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def label_rows(keys):
    return "row,not,truth\n" + "".join(f"{key},{CLASSES[(i + 1) % 3]},{CLASSES[i % 3]}\n" for i, key in enumerate(keys))


@pytest.mark.parametrize("kind", ["npy", "npz", "csv"])
def test_vectors(tmp_path, root, said, vectors, kind):
    path = tmp_path / f"features.{kind}"
    if kind == "npy":
        np.save(path, vectors)
    elif kind == "npz":
        np.savez(path, features=vectors)
    else:
        path.write_text("\n".join(",".join(f"{v:.9g}" for v in row) for row in vectors))
    (tmp_path / "labels.csv").write_text(label_rows(range(6)))
    np.save(tmp_path / "test.npy", vectors[:3])
    (tmp_path / "test.csv").write_text("row,truth\n0,cat\n1,dog\n2,ship\n")
    request = Import(
        path, "mine", tmp_path / "labels.csv", test=tmp_path / "test.npy", test_labels=tmp_path / "test.csv"
    )
    run_import(request, root, said.append)
    dataset = load("mine")
    assert np.array_equal(dataset.train.inputs, vectors)
    assert dataset.train.truth.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.test.truth.tolist() == [0, 1, 2]
    assert np.allclose(dataset.mean, vectors.mean(0), atol=1e-5)
    assert np.allclose(dataset.std, vectors.std(0), atol=1e-5)


def test_rows_with_nan_are_told_and_can_be_skipped(tmp_path, root, said, vectors):
    vectors[2, 1] = np.nan
    np.save(tmp_path / "features.npy", vectors)
    (tmp_path / "labels.csv").write_text(label_rows([*range(5), 99]))
    report = tmp_path / "report.txt"
    request = Import(tmp_path / "features.npy", "mine", tmp_path / "labels.csv", report=report)
    with pytest.raises(UserError, match="3 problems"):
        run_import(request, root, said.append)
    assert report.read_text().split("\n")[:-1] == [
        "1 train rows without a label:",
        "  5",
        "1 labels without any of the train rows:",
        "  99 (line 7)",
        "1 train rows with NaN or infinity:",
        "  2",
    ]
    dataset = run_import(dataclasses.replace(request, skip_bad=True), root, said.append)
    assert dataset.train.truth.tolist() == [0, 1, 0, 1]


def test_an_npz_with_its_own_labels(tmp_path, root, said):
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(
        tmp_path / "own.npz",
        images=images,
        complementary=[[0, 1], [2, 2], [1, 0], [0, 0], [1, 1], [2, 0]],
        classes=CLASSES,
        x_test=images[:2],
        y_test=[0, 1],
    )
    imported = run_import(Import(tmp_path / "own.npz", "mine"), root, said.append)
    loaded = load(str(tmp_path / "own.npz"))
    for dataset in (imported, loaded):
        assert dataset.classes == CLASSES
        assert dataset.train.inputs.shape == (6, 1, 8, 8)
        assert dataset.train.excluded[:2].tolist() == [[1, 1, 0], [0, 0, 1]]
        assert dataset.train.truth is None
        assert len(dataset.test) == 2
    assert torch.equal(imported.train.inputs, loaded.train.inputs)
    assert imported.mean == loaded.mean


def test_an_npz_without_labels_is_not_imported_but_loaded_for_an_encoder(tmp_path, root, said, vectors):
    np.savez(tmp_path / "own.npz", inputs=vectors)
    with pytest.raises(UserError, match="holds no labels of its own; name a CSV with --labels"):
        run_import(Import(tmp_path / "own.npz", "mine"), root, said.append)
    assert arrays_on_disk(root) == []
    loaded = load(str(tmp_path / "own.npz"))
    assert len(loaded.train) == 6
    assert (loaded.train.truth, loaded.train.excluded, loaded.classes) == (None, None, ())


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"excluded": np.ones((6, 3))}, "excludes every class"),
        ({"excluded": np.ones(6)}, r"excluded is float64 \[6\]; wanted 0/1 \[N, K\]"),
        ({"excluded": np.full((6, 3), 0.5)}, r"wanted 0/1 \[N, K\]"),
        ({"not_y": np.zeros((6, 2, 2), int), "classes": CLASSES}, r"labels are \[6, 2, 2\]; wanted class numbers"),
        ({"truth": np.zeros((6, 2), int), "classes": CLASSES}, r"true labels have shape \[6, 2\]"),
        ({"not_y": [0] * 6}, "knows 1 classes; at least two"),
        ({"truth": [0, 1] * 3, "x_test": np.zeros((2, 4))}, "holds 2 test inputs and 0 test truths"),
        ({"truth": [0, 1] * 3, "x_test": np.zeros((2, 4)), "y_test": [0]}, "2 test inputs and 1 test truths"),
        ({"truth": [0, 1] * 3, "x_test": np.zeros((2, 3)), "y_test": [0, 1]}, r"test examples are \[3\], but"),
        ({"not_y": [0, 1]}, "6 examples but 2 complementary labels"),
        ({"names": ["a"], "truth": [0] * 6}, "6 examples but 1 names"),
        ({"truth": [0, 1, 2]}, "6 examples but 3 true labels"),
        ({"excluded": [[0, 1]] * 6, "truth": [0, 0, 0, 0, 0, 5]}, "a true label is 5"),
    ],
)
def test_an_npz_with_bad_labels(tmp_path, root, said, vectors, labels, sentence):
    np.savez(tmp_path / "own.npz", inputs=vectors, **labels)
    with pytest.raises(UserError, match=sentence):
        run_import(Import(tmp_path / "own.npz", "mine"), root, said.append)
    assert arrays_on_disk(root) == []
    with pytest.raises(UserError, match=sentence):
        load(str(tmp_path / "own.npz"))


def test_an_empty_npz(tmp_path, root, said):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((0, 3)), excluded=np.zeros((0, 3)))
    with pytest.raises(UserError, match="None of the train examples can be used"):
        run_import(Import(tmp_path / "own.npz", "mine"), root, said.append)
    with pytest.raises(UserError, match="holds no examples"):
        load(str(tmp_path / "own.npz"))


def test_vectors_without_any_number(tmp_path, root, said):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((4, 0)), truth=[0, 1, 0, 1])
    with pytest.raises(UserError, match="None of the train examples can be used"):
        run_import(Import(tmp_path / "own.npz", "mine"), root, said.append)


def test_test_rows_that_are_all_bad(tmp_path, root, said, vectors):
    np.savez(tmp_path / "own.npz", inputs=vectors, truth=[0, 1] * 3, x_test=np.full((2, 4), np.nan), y_test=[0, 1])
    request = Import(tmp_path / "own.npz", "mine", report=tmp_path / "report.txt", skip_bad=True)
    with pytest.raises(UserError, match="None of the test examples can be used"):
        run_import(request, root, said.append)
    assert arrays_on_disk(root) == []


def test_file_names_of_every_kind(tmp_path, root, said):
    names = [
        "a b.png",
        "comma,x.png",
        "new\nline.png",
        'quo"te.png',
        "日本.png",
        "back\\slash.png",
        " lead.png",
        "s;c.png",
    ]
    decomposed = unicodedata.normalize("NFD", "café.png")  # as macOS writes it
    for name in [*names, decomposed]:
        picture(tmp_path / "photos" / name, 9)
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8-sig") as handle:
        csv.writer(handle).writerows([("file", "not"), *((name, CLASSES[0]) for name in names), ("café.png", "dog")])
    dataset = run_import(Import(tmp_path / "photos", "mine", tmp_path / "labels.csv", size=8), root, said.append)
    assert len(dataset.train) == 9


def test_a_file_name_that_no_screen_can_show(photos, request_, root, said, tmp_path):
    try:
        (photos / "bad\udcff\n.png").write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(UserError, match="1 problem "):
        run_import(request_(), root, said.append)
    assert (tmp_path / "report.txt").read_text() == "1 train pictures without a label:\n  bad\\udcff\\n.png\n"


def test_an_unknown_class_folder_of_the_test_set_has_no_line(request_, root, said, tmp_path):
    picture(tmp_path / "test/cow/1.png", 3)
    with pytest.raises(UserError, match="1 problem "):
        run_import(request_(test=tmp_path / "test"), root, said.append)
    assert said[-1] == "1 unknown class names:\n  'cow' for cow/1.png"


def test_imported_sets_can_be_trained_on(request_, root, said, tmp_path):
    run_import(request_(size=16), root, said.append)
    options = {"epochs": 1, "batch": 2, "clusters": 2, "mix": "icm", "holdout": 0.0}
    problem = build_task(Config.of(data="mine", **options))
    assert problem.inputs.shape == (6, 3, 16, 16)
    assert problem.test_inputs is None
