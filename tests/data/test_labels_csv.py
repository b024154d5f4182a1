import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data.labels_csv import read_classes, read_labels
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


def test_columns_left_unread_are_said(write, said):
    read_labels(write("file,not,worker\na.png,dog,7\n"), said.append)
    assert "left unread: column worker" in said[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("a.png\nb.png\n", "has one column"),
        ("file,worker\na.png,7\n", "has the columns file, worker; wanted file, not"),
    ],
)
def test_tables_that_cannot_be_used(write, said, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read_labels(write(text), said.append)


def test_text_that_is_no_utf_8(write, said):
    with pytest.raises(UserError, match="cannot be read as UTF-8"):
        read_labels(write("file,not\né,dog\n", "latin-1"), said.append)


words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(
    lambda w: w.lower() not in ("file",)
)


@given(st.dictionaries(words, st.lists(words, min_size=1, max_size=4, unique=True), min_size=1, max_size=6))
def test_every_table_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    path.write_text(
        "file,not\n" + "".join(f"{key},{';'.join(labels)}\n" for key, labels in rows.items()), encoding="utf-8"
    )
    table = read_labels(path, print)
    assert {key: row.excluded for key, row in table.rows.items()} == rows


def test_classes(write):
    assert read_classes(write("cat\n\n dog \n")) == ("cat", "dog")


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
