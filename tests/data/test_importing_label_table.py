import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data.importing import LabelTable, Problems, Row, match, plain_key, read_classes, read_labels
from complementary.errors import UserError


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
def test_many_ways_to_write_the_same(write, said, text):
    table = read_labels(write(text), said.append)
    assert content(table) == {"a.png": (["dog", "cat"], "ship"), "b.png": (["dog"], "cat")}
    assert table.class_names() == ["cat", "dog", "ship"]
    assert said == []


def test_without_a_header(write, said):
    table = read_labels(write("a.png,dog,cat\nb.png,dog\n"), said.append)
    assert content(table) == {"a.png": (["dog", "cat"], None), "b.png": (["dog"], None)}
    assert not table.has_truth


def test_a_byte_order_mark_and_backslashes(write, said):
    table = read_labels(write("file,not\nsub\\a.png,dog\n", "utf-8-sig"), said.append)
    assert list(table.rows) == ["sub/a.png"]


def test_only_truth(write, said):
    table = read_labels(write("file,truth\na.png,dog\n"), said.append)
    assert (table.has_excluded, table.has_truth) == (False, True)


@pytest.mark.parametrize("column", ["worker", "notes", "label", "id", "nothing"])
def test_columns_left_unread_are_said(write, said, column):
    table = read_labels(write(f"file,not,{column}\na.png,dog,7\n"), said.append)
    assert f"left unread: column {column}" in said[0]
    assert table.rows["a.png"].excluded == ["dog"]


def test_cells_may_hold_line_ends(write, said):
    table = read_labels(write('file,not\n"a\nb.png",dog\n"c\u2028d.png",cat\ne.png,cat\n'), said.append)
    assert {key: row.line for key, row in table.rows.items()} == {"a\nb.png": 2, "c\u2028d.png": 4, "e.png": 5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("a.png\nb.png\n", "has one column"),
        ("file,label\na.png,dog\n", "has the columns file, label; wanted file, not"),
        ("not,truth\ndog,cat\n", "has the columns not, truth; wanted file, not"),
        ("file,worker\na.png,7\n", "has the columns file, worker; wanted file, not"),
    ],
)
def test_tables_that_cannot_be_used(write, said, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read_labels(write(text), said.append)


def test_text_that_is_no_utf_8(write, said):
    with pytest.raises(UserError, match=r"labels\.csv is not UTF-8 text"):
        read_labels(write("file,not\né,dog\n", "latin-1"), said.append)


words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(
    lambda w: unicodedata.is_normalized("NFC", w)
)


@given(st.dictionaries(words, st.lists(words, min_size=1, max_size=4, unique=True), min_size=1, max_size=6))
def test_every_table_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    path.write_text(
        "file,not\n" + "".join(f"{key},{';'.join(labels)}\n" for key, labels in rows.items()), encoding="utf-8"
    )
    table = read_labels(path, print)
    composed = {plain_key(key): [plain_key(label) for label in labels] for key, labels in rows.items()}
    assert {key: row.excluded for key, row in table.rows.items()} == composed


def test_classes(write):
    assert read_classes(write("cat\n\n dog \n")) == ("cat", "dog")
    assert read_classes(write("cat\r\ndog\r\n", "utf-8-sig")) == ("cat", "dog")
    assert read_classes(write("cat\ncafe\u0301\n")) == ("cat", "café")


@pytest.mark.parametrize(("text", "sentence"), [("cat\ndog\ncat\n", "cat more than once"), ("cat\n", "holds 1 names")])
def test_classes_that_cannot_be_used(write, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read_classes(write(text))


def test_rows_that_disagree_are_marked(write, said):
    table = read_labels(
        write("file,not,truth\na,dog,cat\na,cow,cat\nb,dog,cat\nb,dog,cow\nc,dog,\nc,cow,cat\n"), said.append
    )
    assert {key: row.disagrees for key, row in table.rows.items()} == {"a": False, "b": True, "c": False}
    assert table.rows["c"].truth == "cat"


# --- examples and their rows ---------------------------------------------------------------------


CLASSES = ("cat", "dog", "ship")


@pytest.fixture
def problems():
    return Problems()


def counts(problems):
    return {kind: len(lines) for kind, lines in problems.found.items()}


def table(rows, truth=False):
    return LabelTable({k: Row(i + 2, list(n), t) for i, (k, n, t) in enumerate(rows)}, True, truth)


def test_labels_become_numbers(problems):
    rows = table([("a/1.png", ["cat", "ship"], "dog"), ("2.png", ["dog"], "cat")], truth=True)
    matched = match(["a/1.png", "b/2.png"], rows, CLASSES, problems, "pictures")
    assert matched.index.tolist() == [0, 1]
    assert matched.excluded.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert matched.truth.tolist() == [1, 0]
    assert not len(problems)


def test_a_last_part_that_is_not_unique_belongs_to_nobody(problems):
    matched = match(["a/1.png", "b/1.png"], table([("1.png", ["cat"], None)]), CLASSES, problems, "pictures")
    assert len(matched.index) == 0
    assert counts(problems) == {"pictures without a label": 2, "labels without any of the pictures": 1}


def test_rows_may_name_the_folders_above(problems):
    rows = table(
        [("photos/a/1.png", ["cat"], None), ("./x/photos/a/2.png", ["dog"], None), ("b/1.png", ["ship"], None)]
    )
    matched = match(["a/1.png", "a/2.png", "b/1.png"], rows, CLASSES, problems, "pictures")
    assert matched.excluded.argmax(1).tolist() == [0, 1, 2]
    assert not len(problems)


def test_two_rows_that_could_both_be_meant_are_told(problems):
    rows = table([("test/1.png", ["cat"], None), ("train/1.png", ["dog"], None)])
    matched = match(["1.png"], rows, CLASSES, problems, "pictures")
    assert len(matched.index) == 0
    assert counts(problems) == {"pictures without a label": 1, "labels without any of the pictures": 2}


def test_other_folders_are_other_pictures(problems):
    match(["a/1.png"], table([("b/1.png", ["cat"], None)]), CLASSES, problems, "pictures")
    assert counts(problems) == {"pictures without a label": 1, "labels without any of the pictures": 1}


def test_every_problem_is_told(problems):
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
    keys = ["good", "typo", "none", "every", "no truth", "odd truth", "unlabelled"]
    matched = match(keys, rows, CLASSES, problems, "pictures")
    assert matched.index.tolist() == [0]
    assert problems.found == {
        "unknown class names": ["'catt' for typo (line 3)", "'dgo' for typo (line 3)", "'dgo' for odd truth (line 8)"],
        "rows that exclude no class": ["none (line 4)"],
        "rows that exclude every class": ["every (line 5)"],
        "rows without a truth": ["no truth (line 7)"],
        "pictures without a label": ["unlabelled"],
        "labels without any of the pictures": ["ghost (line 6)"],
    }


def test_reports_can_be_cut(problems):
    for i in range(5):
        problems.add("odd things", str(i))
    assert problems.report(2) == "5 odd things:\n  0\n  1\n  ... and 3 more"
    assert problems.report().count("\n") == 5
