import csv
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from complementary.config import Config
from complementary.data import cache, import_dataset, load
from complementary.data.answers import Answer, AnswerTable
from complementary.data.importing import find_misspelled, read_classes
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
    assert dataset.train.names.tolist() == ["0/0.png", "0/2.png", "0/4.png", "1/1.png", "1/3.png", "1/5.png"]
    assert dataset.answers is None
    assert arrays_on_disk(root) == ["train-excluded.npy", "train-inputs.npy", "train-names.npy", "train-truth.npy"]
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
    for line in ("extra.png\n", "1/3.png (line 5): the class 'dgo'", "ghost.png (line 8)\n", "0/2.png: not an image\n"):
        assert f"  {line}" in report
    assert "did you mean 'dog'?" in report
    assert cache.names(root) == []
    assert not (root / "sets/mine").exists()
    assert arrays_on_disk(root) == []


def test_import_with_skip_bad_leaves_out_bad_examples(broken, import_photos, root, logged):
    dataset = import_photos(skip_bad=True)
    assert len(dataset.train) == 4
    assert dataset.train.truth.tolist() == [0, 1, 1, 2]  # 0/0, 0/4, 1/1, 1/5
    assert logged()[-1].startswith("4 problems")
    cache.verify(cache.read(root, "mine"))


def test_import_leaves_out_a_few_broken_files_and_names_them(tmp_path, root, logged):
    rows = ["file,not"]
    for i in range(40):
        save_image(tmp_path / f"photos/{i:02}.png", 3 * i)
        rows.append(f"{i:02}.png,{CLASSES[i % 3]}")
    (tmp_path / "photos/07.png").write_bytes(b"")
    (tmp_path / "photos/21.png").write_bytes((tmp_path / "photos/20.png").read_bytes()[:60])
    (tmp_path / "photos/33.png").write_bytes((tmp_path / "photos/32.png").read_bytes())
    (tmp_path / "labels.csv").write_text("\n".join([*rows[:-1], "gone.png,dog"]))
    dataset = import_dataset(tmp_path / "photos", "mine", tmp_path / "labels.csv", size=8, report=tmp_path / "r.txt")
    assert len(dataset.train) == 37
    assert not {"07.png", "21.png", "39.png"} & set(dataset.train.names.tolist())
    assert dataset.train.excluded.argmax(1).tolist() == [int(n[:2]) % 3 for n in dataset.train.names.tolist()]
    report = (tmp_path / "r.txt").read_text()
    for line in ("  07.png: ", "  21.png: ", "  39.png\n", "  gone.png (line 41)\n", "  33.png: 32.png\n"):
        assert line in report
    assert "4 problems" in logged()[-1]


def test_import_keeps_answers_and_annotators(tmp_path, root, logged):
    rows = ["file,answer,annotator,time"]
    for i in range(6):
        save_image(tmp_path / f"photos/{i}.png", 10 * i)
        rows.append(f"{i}.png,not {CLASSES[i % 3]},ann,2024-01-0{i + 1}T00:00:00Z")
    (tmp_path / "photos/1.png").write_bytes(b"rubbish")
    rows += ["0.png,yes dog,bob,2024-02-01", "4.png,ignore,bob,2024-02-01", "5.png,!ship,ann,2024-02-01"]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    import_dataset(tmp_path / "photos", "mine", tmp_path / "labels.csv", size=8, skip_bad=True)
    dataset = load("mine")
    answers = dataset.answers
    assert answers.annotators == ("ann", "bob")
    assert answers.annotator_names() == ["ann", "bob", "ann", "ann", "ann", "ann"]
    assert answers.example.tolist() == [0, 0, 1, 2, 3, 4]
    assert answers.excluded.tolist()[:2] == [[1, 0, 0], [1, 0, 1]]
    assert answers.time[0] == 1704067200
    assert dataset.train.excluded[0].tolist() == [1, 0, 1]
    assert any("9 answers" in line and "by 2 annotators, 1 ignored, 1 repeated" in line for line in logged())
    assert cache.read_manifest(root, "mine")["answers"]["repeats"] == 1
    part = answers.take(torch.tensor([4, 0]))
    assert part.example.tolist() == [1, 1, 0]
    assert part.annotator_names() == ["ann", "bob", "ann"]


@pytest.mark.parametrize(
    ("names", "misspelled"),
    [
        (["cat"] * 40 + ["dog"] * 40 + ["dgo"], {"dgo": "dog"}),
        (["cat"] * 40 + ["Cat"] * 30, {"Cat": "cat"}),
        (["polar bear"] * 40 + ["polar-bear"] * 30, {"polar-bear": "polar bear"}),
        (["cat"] * 40 + ["rat"] * 10, {}),
        (["100"] * 40 + ["101"], {}),
    ],
)
def test_misspelled_class_names_are_found(names, misspelled):
    answers = [Answer(str(i), i, no=(name,)) for i, name in enumerate(names)]
    assert find_misspelled(AnswerTable(answers, True, False)) == misspelled


def test_import_leaves_out_any_number_of_unlabeled_images_if_asked(photos, import_photos):
    labeled = len(import_photos().train)
    for i in range(40):
        save_image(photos / f"x{i}.png", 40 + i)
    with pytest.raises(UserError, match="more than a tenth") as caught:
        import_photos(replace=True)
    assert caught.value.option == "skip_unlabeled"
    assert len(import_photos(replace=True, skip_unlabeled=True).train) == labeled


def test_import_stops_at_a_misspelled_class_unless_classes_are_listed(photos, import_photos, root, tmp_path, logged):
    for i in range(40):
        save_image(photos / f"x{i}.png", 40 + i)
    text = (tmp_path / "labels.csv").read_text() + "".join(f"\nx{i}.png,ship,dog" for i in range(40))
    (tmp_path / "labels.csv").write_text(text.replace("x7.png,ship", "x7.png,shipp"))
    with pytest.raises(UserError, match="1 problem") as caught:
        import_photos(classes=None)
    assert caught.value.option == "skip_bad"
    assert "'shipp' (like 'ship')" in "\n".join(logged())
    (tmp_path / "classes.txt").write_text("cat\ndog\nship\nshipp")
    assert import_photos().classes == ("cat", "dog", "ship", "shipp")


LINES = (
    *("file,not", "file;answer", "0.png,dog", "1.png,not cat", "2.png,!ship", "3.png,yes dog", "ghost.png,cat"),
    *("broken.png,cat", "0.png,ignore", "1.png,", ",dog", "2.png,dgo", "3.png,dog;cat;ship", "0.png,yes dog"),
    *("1.png,yes cat", '"', ""),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(LINES), max_size=9),
    st.sampled_from(["utf-8", "utf-16", "latin-1"]),
    st.booleans(),
    st.booleans(),
)
def test_import_of_any_table_loses_nothing(tmp_path, root, lines, encoding, listed, skip_bad):
    folder = tmp_path / "five"
    if not folder.exists():
        for i in range(4):
            save_image(folder / f"{i}.png", 10 * i)
        (folder / "broken.png").write_bytes(b"rubbish")
        (tmp_path / "c.txt").write_text("cat\ndog\nship")
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode(encoding))
    report = tmp_path / "report.txt"
    report.unlink(missing_ok=True)
    options = {"classes": tmp_path / "c.txt" if listed else None, "size": 4, "skip_bad": skip_bad, "report": report}
    try:
        dataset = import_dataset(folder, "mine", tmp_path / "t.csv", replace=True, **options)
    except UserError:
        return
    kept = set(dataset.train.names.tolist())
    assert "broken.png" not in kept
    assert set(dataset.train.excluded.sum(1).tolist()) <= set(range(1, len(dataset.classes)))
    for name in {"0.png", "1.png", "2.png", "3.png", "broken.png"} - kept:
        assert name in report.read_text()  # what is left out is named


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


@pytest.mark.parametrize("wide", [False, True])
def test_import_of_a_parquet_file_with_vectors_and_answers(tmp_path, root, vectors, wide):
    columns = {"id": list("abcdef"), "not": [["dog"], ["cat", "ship"], ["cat"], ["dog"], ["cat"], ["dog"]]}
    columns |= {"annotator": ["ann", "bob"] * 3}
    inputs = {f"x{i}": vectors[:, i] for i in range(4)} if wide else {"embedding": vectors.tolist()}
    pq.write_table(pa.table(columns | inputs), tmp_path / "a.parquet")
    dataset = import_dataset(tmp_path / "a.parquet", "mine")
    assert np.allclose(dataset.train.inputs, vectors)
    assert dataset.classes == CLASSES
    assert dataset.train.excluded[:2].tolist() == [[0, 1, 0], [1, 0, 1]]
    assert dataset.train.names.tolist() == list("abcdef")
    assert dataset.answers.annotators == ("ann", "bob")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "b"], "not": ["cat", "dog"]}, "columns id, not"),
        ({"a": [[1.0], [2.0, 3.0]], "not": ["cat", "dog"]}, "differ in length"),
        ({"a": [[1.0], None], "not": ["cat", "dog"]}, "differ in length"),
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]], "not": ["cat", "dog"]}, r"several columns of vectors \(a, b\)"),
        ({"a": [[1.0], [2.0]]}, "no field|columns"),
    ],
)
def test_import_of_a_bad_parquet_file_is_refused(tmp_path, root, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        import_dataset(tmp_path / "a.parquet", "mine")


def test_import_reports_and_skips_rows_with_nan(tmp_path, root, vectors):
    vectors[2, 1] = np.nan
    np.save(tmp_path / "features.npy", vectors)
    (tmp_path / "labels.csv").write_text(label_rows([*range(5), 99]))
    report = tmp_path / "report.txt"
    arguments = {"labels": tmp_path / "labels.csv", "report": report}
    with pytest.raises(UserError, match="3 problems"):
        import_dataset(tmp_path / "features.npy", "mine", **arguments)
    assert report.read_text().split("\n")[:-1] == [
        "train examples without an answer (1):",
        "  5",
        "answers that match none of the train examples (1):",
        "  99 (line 7)",
        "train rows with a missing value, NaN or infinity (1):",
        "  2",
    ]
    dataset = import_dataset(tmp_path / "features.npy", "mine", **arguments, skip_bad=True)
    assert dataset.train.truth.tolist() == [0, 1, 0, 1]


def test_import_counts_each_class_that_a_row_excludes_as_an_answer(tmp_path, root, vectors, logged):
    """As the report does."""
    np.save(tmp_path / "features.npy", vectors)
    rows = [f"{i},{'cat' if i % 2 else 'dog'},ship" for i in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["row,not1,not2", *rows]))
    import_dataset(tmp_path / "features.npy", "mine", labels=tmp_path / "labels.csv")
    assert any("12 answers about 6 examples" in line for line in logged())


@pytest.mark.parametrize("cell", ["", "nan"])
def test_import_skips_rows_of_a_csv_with_an_empty_cell(tmp_path, root, vectors, cell):
    rows = [",".join(map(str, row)) for row in vectors.tolist()]
    rows[2] = f"{cell},{rows[2].partition(',')[2]}"
    (tmp_path / "features.csv").write_text("\n".join(rows))
    (tmp_path / "labels.csv").write_text(label_rows(range(6)))
    arguments = {"labels": tmp_path / "labels.csv"}
    with pytest.raises(UserError, match=r"1 problem; .* 1 of 6 examples would be left out") as caught:
        import_dataset(tmp_path / "features.csv", "mine", **arguments)
    assert caught.value.option == "skip_bad"
    assert len(import_dataset(tmp_path / "features.csv", "mine", **arguments, skip_bad=True).train) == 5


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
    with pytest.raises(UserError, match=r"shape \["):
        import_dataset(tmp_path / "own.npz", "mine")


def test_import_of_vectors_without_features_is_refused(tmp_path, root):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((4, 0)), truth=[0, 1, 0, 1])
    with pytest.raises(UserError, match=r"shape \["):
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
    assert (tmp_path / "report.txt").read_text() == "train examples without an answer (1):\n  bad\\udcff\\n.png\n"


def test_import_reports_an_unknown_class_folder(import_photos, tmp_path, logged):
    save_image(tmp_path / "test/cow/1.png", 3)
    with pytest.raises(UserError, match="1 problem "):
        import_photos(test=tmp_path / "test")
    assert logged()[-1].startswith("unknown class names (1):\n  cow/1.png: the class 'cow'")


def test_import_can_be_trained_on(import_photos, root, tmp_path):
    import_photos(size=16)
    options = {"epochs": 1, "batch": 2, "clusters": 2, "mix": "icm", "holdout": 0.0}
    task = build_task(Config.of(data="mine", **options))
    assert task.inputs.shape == (6, 3, 16, 16)
    assert task.test_inputs is None


# --- class names ---------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def to_file(text, encoding="utf-8"):
        path = tmp_path / "labels.csv"
        path.write_text(text, encoding=encoding)
        return path

    return to_file


def test_classes_are_read_in_order(write):
    assert read_classes(write("cat\n\n dog \n")) == ("cat", "dog")
    assert read_classes(write("cat\r\ndog\r\n", "utf-8-sig")) == ("cat", "dog")
    assert read_classes(write("cat\ncafe\u0301\n")) == ("cat", "café")
    assert read_classes(write("cat\ncafé\n", "utf-16")) == ("cat", "café")


@pytest.mark.parametrize(
    ("text", "message"), [("cat\ndog\ncat\n", "cat more than once"), ("cat\n", "contains 1 names")]
)
def test_classes_that_are_invalid_are_refused(write, text, message):
    with pytest.raises(UserError, match=message):
        read_classes(write(text))
