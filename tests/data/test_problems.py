from pathlib import Path

import pytest

from complementary.data.problems import Problems
from complementary.errors import UserError


def test_problems_text_can_be_limited():
    problems = Problems()
    for i in range(5):
        problems.add("odd things", str(i))
    assert problems.text(2) == "odd things (5):\n  0\n  1\n  ... and 3 more"
    assert problems.text().count("\n") == 5


def test_problems_escape_what_cannot_be_displayed():
    problems = Problems()
    problems.add("odd things", "a\nb\udcff")
    assert problems.text() == "odd things (1):\n  a\\nb\\udcff"


@pytest.mark.parametrize(
    ("level", "count", "examples", "stops"),
    [
        ("error", 1, 1000, True),
        ("left out", 100, 1000, False),
        ("left out", 101, 1000, True),
        ("left out", 1, 5, True),
        ("unmatched", 100, 1000, False),
        ("unmatched", 101, 1000, True),
        ("note", 1000, 1000, False),
    ],
)
def test_problems_stop_an_import_by_their_level(tmp_path, logged, level, count, examples, stops):
    problems = Problems()
    for i in range(count):
        problems.add("odd things", f"example {i}", level)
    report = tmp_path / "problems.txt"
    if stops:
        with pytest.raises(UserError, match=r"problem.*problems\.txt") as caught:
            problems.report(Path("photos"), report, False, examples)
        assert caught.value.option == "skip_bad"
    else:
        problems.report(Path("photos"), report, False, examples)
    assert report.read_text().count("  example ") == count  # all are listed
    problems.report(Path("photos"), None, True, examples)
    assert f"  example {count - 1}" in "\n".join(logged())


@pytest.mark.parametrize(
    ("errors", "defects", "option"),
    [(0, 5, "skip_unlabeled"), (0, 11, "skip_bad"), (1, 0, "skip_bad")],
)
def test_unlabeled_examples_can_be_skipped_without_hiding_other_problems(errors, defects, option):
    problems = Problems()
    for level, count in (("error", errors), ("left out", defects), ("unlabeled", 60)):
        for i in range(count):
            problems.add(f"{level} things", str(i), level)
    with pytest.raises(UserError, match="more than a tenth") as caught:
        problems.report(Path("photos"), None, False, 100)
    assert caught.value.option == option
    if option == "skip_unlabeled":
        problems.report(Path("photos"), None, False, 100, skip_unlabeled=True)
    else:
        with pytest.raises(UserError) as caught:
            problems.report(Path("photos"), None, False, 100, skip_unlabeled=True)
        assert caught.value.option == "skip_bad"


@pytest.mark.parametrize(
    ("defects", "unmatched", "text"),
    [
        (
            499,
            3003,
            r"3,502 problems; .*\. 499 of 499 examples .* left out, and 3,003 names in the table match none of 499",
        ),
        (0, 3003, r"imported\. 3,003 names in the table match none of 499 examples: more than a tenth\. Fix"),
        (499, 0, r"imported\. 499 of 499 examples would be left out: more than a tenth\. Fix"),
    ],
)
def test_problems_tell_examples_from_answers_without_one(defects, unmatched, text):
    problems = Problems()
    for level, count in (("unlabeled", defects), ("unmatched", unmatched)):
        for i in range(count):
            problems.add(f"{level} things", str(i), level)
    with pytest.raises(UserError, match=text):
        problems.report(Path("photos"), None, False, 499)


def test_problems_write_no_report_if_there_are_none(tmp_path):
    Problems().report(Path("photos"), tmp_path / "problems.txt", False, 10)
    assert not (tmp_path / "problems.txt").exists()
