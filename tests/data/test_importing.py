import csv
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from complementary.config import Config
from complementary.data import cache, import_dataset, load
from complementary.data.importing import LabelTable, Problems, Row, match, normalize_key, read_classes, read_labels
from complementary.errors import UserError
from complementary.training.task import build_task

CLASSES = ("cat", "dog", "ship")


def save_image(path, level, gray=False, size=(20, 14)):
    path.parent.mkdir(parents=True, exist_ok=True)
    color = np.full((*size, 3), level, np.uint8)
    if not gray:
        color[..., 0] = 255 - level
    Image.fromarray(color).save(path)


@pytest.fixture
def photos(tmp_path):
    """Six color images in two folders, their labels and classes."""
    rows = ["file,not,truth"]
    for i in range(6):
        save_image(tmp_path / f"photos/{i % 2}/{i}.png", 10 * i)
        rows.append(f"{i % 2}/{i}.png,{CLASSES[(i + 1) % 3]},{CLASSES[i % 3]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    return tmp_path / "photos"


@pytest.fixture
def import_photos(photos, tmp_path):
    """Import the photos as "mine", with changed arguments."""

    def call(**changes):
        arguments = {"path": photos, "name": "mine", "labels": tmp_path / "labels.csv"}
        arguments |= {"classes": tmp_path / "classes.txt", "size": 8, "report": tmp_path / "report.txt"}
        return import_dataset(**arguments | changes)

    return call


@pytest.fixture
def root(own_cache):
    return own_cache


def arrays_on_disk(root):
    return sorted(path.name for path in root.rglob("*.npy"))


def test_import_of_images_is_loaded_by_name(import_photos, root):
    import_photos(flip=False)
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


def test_import_of_gray_images_has_one_channel(photos, import_photos, root):
    for i in range(6):
        save_image(photos / f"{i % 2}/{i}.png", 10 * i, gray=True)
    assert import_photos().train.inputs.shape == (6, 1, 8, 8)


def test_import_with_one_color_image_has_three_channels(photos, import_photos, root):
    for i in range(5):
        save_image(photos / f"{i % 2}/{i}.png", 10 * i, gray=True)
    assert import_photos().train.inputs.shape == (6, 3, 8, 8)


def test_import_without_classes_uses_those_in_the_labels(import_photos, root):
    assert import_photos(classes=None).classes == CLASSES


@pytest.fixture
def broken(photos, tmp_path):
    """One broken image, one without a label, one label without an image, one misspelled class."""
    (photos / "0/2.png").write_bytes(b"rubbish")
    save_image(photos / "extra.png", 5)
    text = (tmp_path / "labels.csv").read_text().replace("1/3.png,dog", "1/3.png,dgo")
    (tmp_path / "labels.csv").write_text(text + "\nghost.png,dog,cat\n")
    return photos


def test_import_reports_all_problems_together_and_changes_nothing(broken, import_photos, root, tmp_path, logged):
    with pytest.raises(UserError, match=r"4 problems \(listed in .*report.txt\); nothing was imported"):
        import_photos()
    report = (tmp_path / "report.txt").read_text()
    assert report.strip() == logged()[-1]
    for line in ("extra.png", "'dgo' for 1/3.png (line 5)", "ghost.png (line 8)", "0/2.png: not an image"):
        assert f"  {line}\n" in report
    assert cache.names(root) == []
    assert not (root / "sets/mine").exists()
    assert arrays_on_disk(root) == []


def test_import_with_skip_bad_leaves_out_bad_examples(broken, import_photos, root, logged):
    dataset = import_photos(skip_bad=True)
    assert len(dataset.train) == 4
    assert dataset.train.truth.tolist() == [0, 1, 1, 2]  # 0/0, 0/4, 1/1, 1/5
    assert logged()[-1].startswith("4 problems")
    cache.verify(cache.read(root, "mine"))


def test_import_without_a_usable_example_is_refused(photos, import_photos, root):
    for path in photos.rglob("*.png"):
        path.write_bytes(b"rubbish")
    with pytest.raises(UserError, match="None of the train examples"):
        import_photos(skip_bad=True)
    assert arrays_on_disk(root) == []


def test_import_logs_all_problems_if_there_is_no_report_file(broken, import_photos, logged):
    for report in (None, "/nowhere/report.txt"):
        with pytest.raises(UserError, match="4 problems; nothing"):
            import_photos(report=report)
        assert "ghost.png" in logged()[-1]


@pytest.mark.parametrize("as_csv", [True, False])
def test_import_of_a_test_folder(import_photos, root, tmp_path, as_csv):
    for name in CLASSES:
        save_image(tmp_path / f"test/{name}/x-{name}.png", 3)
    (tmp_path / "test.csv").write_text("file,truth\n" + "".join(f"x-{name}.png,{name}\n" for name in CLASSES))
    labels = tmp_path / "test.csv" if as_csv else None
    dataset = import_photos(test=tmp_path / "test", test_labels=labels)
    assert dataset.test.truth.tolist() == [0, 1, 2]
    assert dataset.test.inputs.shape == (3, 3, 8, 8)
    assert dataset.test.excluded is None


def test_import_refuses_test_images_outside_of_class_folders(import_photos, root, tmp_path):
    save_image(tmp_path / "test/x.png", 3)
    with pytest.raises(UserError, match="one subfolder per class"):
        import_photos(test=tmp_path / "test")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "mnist"}, "name of a known dataset"),
        ({"name": "../mine"}, "not a valid name"),
        ({"name": "mine.npz"}, "not a valid name"),
        ({"size": 1}, "size is 1"),
        ({"fit": "squash"}, "choose one of: crop, stretch"),
        ({"labels": None}, "has no labels"),
        ({"test_labels": Path("x.csv")}, "test_labels needs test"),
        ({"path": Path("/nowhere")}, "does not exist"),
    ],
)
def test_import_refuses_invalid_arguments(import_photos, root, changes, message):
    with pytest.raises(UserError, match=message):
        import_photos(**changes)
    assert arrays_on_disk(root) == []


def test_import_replaces_a_dataset_only_on_request(import_photos, root):
    import_photos()
    with pytest.raises(UserError, match="already contains a dataset mine"):
        import_photos(size=4)
    assert import_photos(size=4, replace=True).train.inputs.shape[-1] == 4
    assert load("mine").train.inputs.shape[-1] == 4


# --- vectors ---------------------------------------------------------------------------------------


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def label_rows(keys):
    return "row,not,truth\n" + "".join(f"{key},{CLASSES[(i + 1) % 3]},{CLASSES[i % 3]}\n" for i, key in enumerate(keys))


@pytest.mark.parametrize("kind", ["npy", "npz", "csv"])
def test_import_of_vectors(tmp_path, root, vectors, kind):
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
    test = {"test": tmp_path / "test.npy", "test_labels": tmp_path / "test.csv"}
    import_dataset(path, "mine", tmp_path / "labels.csv", **test)
    dataset = load("mine")
    assert np.array_equal(dataset.train.inputs, vectors)
    assert dataset.train.truth.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.test.truth.tolist() == [0, 1, 2]
    assert np.allclose(dataset.mean, vectors.mean(0), atol=1e-5)
    assert np.allclose(dataset.std, vectors.std(0), atol=1e-5)


def test_import_reports_and_skips_rows_with_nan(tmp_path, root, vectors):
    vectors[2, 1] = np.nan
    np.save(tmp_path / "features.npy", vectors)
    (tmp_path / "labels.csv").write_text(label_rows([*range(5), 99]))
    report = tmp_path / "report.txt"
    arguments = {"labels": tmp_path / "labels.csv", "report": report}
    with pytest.raises(UserError, match="3 problems"):
        import_dataset(tmp_path / "features.npy", "mine", **arguments)
    assert report.read_text().split("\n")[:-1] == [
        "1 train examples without a label:",
        "  5",
        "1 labels that match none of the train examples:",
        "  99 (line 7)",
        "1 train rows with NaN or infinity:",
        "  2",
    ]
    dataset = import_dataset(tmp_path / "features.npy", "mine", **arguments, skip_bad=True)
    assert dataset.train.truth.tolist() == [0, 1, 0, 1]


def test_import_of_an_npz_with_labels(tmp_path, root):
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(
        tmp_path / "own.npz",
        images=images,
        complementary=[[0, 1], [2, 2], [1, 0], [0, 0], [1, 1], [2, 0]],
        classes=CLASSES,
        x_test=images[:2],
        y_test=[0, 1],
    )
    imported = import_dataset(tmp_path / "own.npz", "mine")
    loaded = load(str(tmp_path / "own.npz"))
    for dataset in (imported, loaded):
        assert dataset.classes == CLASSES
        assert dataset.train.inputs.shape == (6, 1, 8, 8)
        assert dataset.train.excluded[:2].tolist() == [[1, 1, 0], [0, 0, 1]]
        assert dataset.train.truth is None
        assert len(dataset.test) == 2
    assert torch.equal(imported.train.inputs, loaded.train.inputs)
    assert imported.mean == loaded.mean


def test_import_of_an_npz_without_labels_is_refused(tmp_path, root, vectors):
    np.savez(tmp_path / "own.npz", inputs=vectors)
    with pytest.raises(UserError, match="has no labels"):
        import_dataset(tmp_path / "own.npz", "mine")
    assert arrays_on_disk(root) == []


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"excluded": np.ones((6, 3))}, "excludes every class"),
        ({"excluded": np.ones(6)}, r"float64 and shape \[6\]; expected 0/1 \[N, K\]"),
        ({"excluded": np.full((6, 3), 0.5)}, r"expected 0/1 \[N, K\]"),
        ({"not_y": np.zeros((6, 2, 2), int), "classes": CLASSES}, r"\[6, 2, 2\]; expected class numbers"),
        ({"truth": np.zeros((6, 2), int), "classes": CLASSES}, r"true labels have shape \[6, 2\]"),
        ({"not_y": [0] * 6}, "has 1 classes"),
        ({"truth": [0, 1] * 3, "x_test": np.zeros((2, 4))}, "no true labels for them"),
        ({"truth": [0, 1] * 3, "x_test": np.zeros((2, 4)), "y_test": [0]}, "2 test inputs but 1 true labels"),
        ({"truth": [0, 1] * 3, "x_test": np.zeros((2, 3)), "y_test": [0, 1]}, r"test examples have shape \[3\], but"),
        ({"not_y": [0, 1]}, "6 train inputs but 2 complementary labels"),
        ({"names": ["a"], "truth": [0] * 6}, "6 train inputs but 1 names"),
        ({"truth": [0, 1, 2]}, "6 train inputs but 3 true labels"),
        ({"excluded": [[0, 1]] * 6, "truth": [0, 0, 0, 0, 0, 5]}, "a true label is 5"),
    ],
)
def test_import_of_an_npz_with_bad_labels_is_refused(tmp_path, root, vectors, labels, message):
    np.savez(tmp_path / "own.npz", inputs=vectors, **labels)
    with pytest.raises(UserError, match=message):
        import_dataset(tmp_path / "own.npz", "mine")
    assert arrays_on_disk(root) == []
    with pytest.raises(UserError, match=message):
        load(str(tmp_path / "own.npz"))


def test_import_of_an_empty_npz_is_refused(tmp_path, root):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((0, 3)), excluded=np.zeros((0, 3)))
    with pytest.raises(UserError, match="None of the train examples"):
        import_dataset(tmp_path / "own.npz", "mine")


def test_import_of_vectors_without_features_is_refused(tmp_path, root):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((4, 0)), truth=[0, 1, 0, 1])
    with pytest.raises(UserError, match="None of the train examples"):
        import_dataset(tmp_path / "own.npz", "mine")


def test_import_without_a_usable_test_row_is_refused(tmp_path, root, vectors):
    np.savez(tmp_path / "own.npz", inputs=vectors, truth=[0, 1] * 3, x_test=np.full((2, 4), np.nan), y_test=[0, 1])
    with pytest.raises(UserError, match="None of the test examples"):
        import_dataset(tmp_path / "own.npz", "mine", skip_bad=True)
    assert arrays_on_disk(root) == []


def test_import_of_unusual_file_names(tmp_path, root):
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
        save_image(tmp_path / "photos" / name, 9)
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8-sig") as handle:
        csv.writer(handle).writerows([("file", "not"), *((name, CLASSES[0]) for name in names), ("café.png", "dog")])
    dataset = import_dataset(tmp_path / "photos", "mine", tmp_path / "labels.csv", size=8)
    assert len(dataset.train) == 9


def test_import_escapes_file_names_in_reports(photos, import_photos, root, tmp_path):
    try:
        (photos / "bad\udcff\n.png").write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(UserError, match="1 problem "):
        import_photos()
    assert (tmp_path / "report.txt").read_text() == "1 train examples without a label:\n  bad\\udcff\\n.png\n"


def test_import_reports_an_unknown_class_folder(import_photos, tmp_path, logged):
    save_image(tmp_path / "test/cow/1.png", 3)
    with pytest.raises(UserError, match="1 problem "):
        import_photos(test=tmp_path / "test")
    assert logged()[-1] == "1 unknown class names:\n  'cow' for cow/1.png"


def test_import_can_be_trained_on(import_photos, root, tmp_path):
    import_photos(size=16)
    options = {"epochs": 1, "batch": 2, "clusters": 2, "mix": "icm", "holdout": 0.0}
    task = build_task(Config.of(data="mine", **options))
    assert task.inputs.shape == (6, 3, 16, 16)
    assert task.test_inputs is None


# --- label tables --------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def to_file(text, encoding="utf-8"):
        path = tmp_path / "labels.csv"
        path.write_text(text, encoding=encoding)
        return path

    return to_file


def content(table):
    return {key: (row.excluded, row.truth) for key, row in table.rows.items()}


@pytest.mark.parametrize(
    "text",
    [
        "file,not,truth\na.png,dog;cat,ship\nb.png,dog,cat\n",
        "file,not1,not2,truth\na.png,dog,cat,ship\nb.png,dog,,cat\n",
        "file,not,truth\na.png,dog,ship\nb.png,dog,cat\na.png,cat,ship\n",
        "Filename , NOT , Truth\n ./a.png , dog ; cat , ship \n\n b.png , dog , cat \n",
        "image\tnot\ttruth\na.png\tdog;cat\tship\nb.png\tdog\tcat\n",
        'file,not,truth\n"a.png","dog;cat;dog",ship\nb.png,dog,cat',
        "picture,not,truth\na.png,dog;cat,ship\nb.png,dog,cat\n",
        "what,not,truth\na.png,dog;cat,ship\nb.png,dog,cat\n",
        "not,truth,file\ndog;cat,ship,a.png\ndog,cat,b.png\n",
        "file,not,truth\r\na.png,dog;cat,ship\r\nb.png,dog,cat\r\n",
        "file,not 1,not_2,truth\na.png,dog,cat,ship\nb.png,dog,,cat\n",
    ],
)
def test_labels_can_be_written_in_many_ways(write, logged, text):
    table = read_labels(write(text))
    assert content(table) == {"a.png": (["dog", "cat"], "ship"), "b.png": (["dog"], "cat")}
    assert table.class_names() == ["cat", "dog", "ship"]
    assert logged() == []


def test_labels_without_a_header(write):
    table = read_labels(write("a.png,dog,cat\nb.png,dog\n"))
    assert content(table) == {"a.png": (["dog", "cat"], None), "b.png": (["dog"], None)}
    assert not table.has_truth


def test_labels_with_byte_order_mark_and_backslashes(write):
    table = read_labels(write("file,not\nsub\\a.png,dog\n", "utf-8-sig"))
    assert list(table.rows) == ["sub/a.png"]


def test_labels_with_true_classes_only(write):
    table = read_labels(write("file,truth\na.png,dog\n"))
    assert (table.has_excluded, table.has_truth) == (False, True)


@pytest.mark.parametrize("column", ["worker", "notes", "label", "id", "nothing"])
def test_labels_log_ignored_columns(write, logged, column):
    table = read_labels(write(f"file,not,{column}\na.png,dog,7\n"))
    assert f"ignored columns: {column}" in logged()[0]
    assert table.rows["a.png"].excluded == ["dog"]


def test_labels_may_contain_line_breaks(write):
    table = read_labels(write('file,not\n"a\nb.png",dog\n"c\u2028d.png",cat\ne.png,cat\n'))
    assert {key: row.line for key, row in table.rows.items()} == {"a\nb.png": 2, "c\u2028d.png": 4, "e.png": 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a.png\nb.png\n", "has one column"),
        ("file,label\na.png,dog\n", "has the columns file, label; expected file, not"),
        ("not,truth\ndog,cat\n", "has the columns not, truth; expected file, not"),
        ("file,worker\na.png,7\n", "has the columns file, worker; expected file, not"),
    ],
)
def test_labels_that_are_invalid_are_refused(write, text, message):
    with pytest.raises(UserError, match=message):
        read_labels(write(text))


def test_labels_that_are_not_utf8_are_refused(write):
    with pytest.raises(UserError, match=r"labels\.csv is not UTF-8"):
        read_labels(write("file,not\né,dog\n", "latin-1"))


words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(
    lambda w: unicodedata.is_normalized("NFC", w)
)


@given(st.dictionaries(words, st.lists(words, min_size=1, max_size=4, unique=True), min_size=1, max_size=6))
def test_labels_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    path.write_text(
        "file,not\n" + "".join(f"{key},{';'.join(labels)}\n" for key, labels in rows.items()), encoding="utf-8"
    )
    table = read_labels(path)
    composed = {normalize_key(key): [normalize_key(label) for label in labels] for key, labels in rows.items()}
    assert {key: row.excluded for key, row in table.rows.items()} == composed


def test_classes_are_read_in_order(write):
    assert read_classes(write("cat\n\n dog \n")) == ("cat", "dog")
    assert read_classes(write("cat\r\ndog\r\n", "utf-8-sig")) == ("cat", "dog")
    assert read_classes(write("cat\ncafe\u0301\n")) == ("cat", "café")


@pytest.mark.parametrize(
    ("text", "message"), [("cat\ndog\ncat\n", "cat more than once"), ("cat\n", "contains 1 names")]
)
def test_classes_that_are_invalid_are_refused(write, text, message):
    with pytest.raises(UserError, match=message):
        read_classes(write(text))


def test_labels_with_contradictory_true_classes_are_marked(write):
    table = read_labels(write("file,not,truth\na,dog,cat\na,cow,cat\nb,dog,cat\nb,dog,cow\nc,dog,\nc,cow,cat\n"))
    assert {key: row.contradictory for key, row in table.rows.items()} == {"a": False, "b": True, "c": False}
    assert table.rows["c"].truth == "cat"


# --- examples and their rows ---------------------------------------------------------------------


@pytest.fixture
def problems():
    return Problems()


def counts(problems):
    return {kind: len(lines) for kind, lines in problems.found.items()}


def table(rows, truth=False):
    return LabelTable({k: Row(i + 2, list(n), t) for i, (k, n, t) in enumerate(rows)}, True, truth)


def test_match_gives_class_numbers(problems):
    rows = table([("a/1.png", ["cat", "ship"], "dog"), ("2.png", ["dog"], "cat")], truth=True)
    matched = match(["a/1.png", "b/2.png"], rows, CLASSES, problems, "images")
    assert matched.index.tolist() == [0, 1]
    assert matched.excluded.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert matched.truth.tolist() == [1, 0]
    assert not len(problems)


def test_match_by_last_part_needs_a_unique_name(problems):
    matched = match(["a/1.png", "b/1.png"], table([("1.png", ["cat"], None)]), CLASSES, problems, "images")
    assert len(matched.index) == 0
    assert counts(problems) == {"images without a label": 2, "labels that match none of the images": 1}


def test_match_accepts_parent_folders(problems):
    rows = table(
        [("photos/a/1.png", ["cat"], None), ("./x/photos/a/2.png", ["dog"], None), ("b/1.png", ["ship"], None)]
    )
    matched = match(["a/1.png", "a/2.png", "b/1.png"], rows, CLASSES, problems, "images")
    assert matched.excluded.argmax(1).tolist() == [0, 1, 2]
    assert not len(problems)


def test_match_refuses_ambiguous_rows(problems):
    rows = table([("test/1.png", ["cat"], None), ("train/1.png", ["dog"], None)])
    matched = match(["1.png"], rows, CLASSES, problems, "images")
    assert len(matched.index) == 0
    assert counts(problems) == {"images without a label": 1, "labels that match none of the images": 2}


def test_match_distinguishes_folders(problems):
    match(["a/1.png"], table([("b/1.png", ["cat"], None)]), CLASSES, problems, "images")
    assert counts(problems) == {"images without a label": 1, "labels that match none of the images": 1}


def test_match_reports_every_problem(problems):
    rows = table(
        [
            ("good", ["cat"], "dog"),
            ("typo", ["catt", "dgo"], "dog"),
            ("none", [], "dog"),
            ("every", ["cat", "dog", "ship"], "dog"),
            ("ghost", ["cat"], "dog"),
            ("no truth", ["cat"], None),
            ("odd truth", ["cat"], "dgo"),
        ],
        truth=True,
    )
    keys = ["good", "typo", "none", "every", "no truth", "odd truth", "unlabeled"]
    matched = match(keys, rows, CLASSES, problems, "images")
    assert matched.index.tolist() == [0]
    assert problems.found == {
        "unknown class names": ["'catt' for typo (line 3)", "'dgo' for typo (line 3)", "'dgo' for odd truth (line 8)"],
        "rows that exclude no class": ["none (line 4)"],
        "rows that exclude every class": ["every (line 5)"],
        "rows without a true class": ["no truth (line 7)"],
        "images without a label": ["unlabeled"],
        "labels that match none of the images": ["ghost (line 6)"],
    }


def test_problems_text_can_be_limited(problems):
    for i in range(5):
        problems.add("odd things", str(i))
    assert problems.text(2) == "5 odd things:\n  0\n  1\n  ... and 3 more"
    assert problems.text().count("\n") == 5
