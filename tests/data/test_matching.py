import pytest

from complementary.data.labels_csv import LabelTable, Row
from complementary.data.matching import match
from complementary.data.problems import Problems

CLASSES = ("cat", "dog", "ship")


@pytest.fixture
def problems():
    return Problems()


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
    assert problems.counts() == "2 pictures without a label, 1 labels without any of the pictures"


def test_rows_may_name_the_folders_above(problems):
    rows = table(
        [("photos/a/1.png", ["cat"], None), ("./x/photos/a/2.png", ["dog"], None), ("b/1.png", ["ship"], None)]
    )
    matched = match(["a/1.png", "a/2.png", "b/1.png"], rows, CLASSES, problems, "pictures")
    assert matched.excluded.argmax(1).tolist() == [0, 1, 2]
    assert not len(problems)


def test_other_folders_are_other_pictures(problems):
    match(["a/1.png"], table([("b/1.png", ["cat"], None)]), CLASSES, problems, "pictures")
    assert problems.counts() == "1 pictures without a label, 1 labels without any of the pictures"


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
