import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary.data.answers import Answer, AnswerTable
from complementary.data.matching import match
from complementary.data.problems import Problems
from complementary.errors import UserError

CLASSES = ("cat", "dog", "ship")


@pytest.fixture
def problems():
    return Problems()


def counts(problems):
    return {kind: len(lines) for kind, lines in problems.found.items()}


def table(rows, truth=False):
    """(key, not, truth), one answer per row, from line 2."""
    return AnswerTable([Answer(k, i + 2, tuple(n), (), t or "") for i, (k, n, t) in enumerate(rows)], True, truth)


# --- names of examples ---------------------------------------------------------------------------


def test_match_gives_class_numbers(problems):
    rows = table([("a/1.png", ["cat", "ship"], "dog"), ("2.png", ["dog"], "cat")], truth=True)
    matched = match(["a/1.png", "b/2.png"], rows, CLASSES, problems, "images")
    assert matched.index.tolist() == [0, 1]
    assert matched.excluded.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert matched.truth.tolist() == [1, 0]
    assert matched.answers is None
    assert not len(problems)


def test_match_by_last_part_needs_a_unique_name(problems):
    rows = table([("1.png", ["cat"], None), ("x", ["cat"], None)])
    matched = match(["a/1.png", "b/1.png", "x"], rows, CLASSES, problems, "images")
    assert matched.index.tolist() == [2]
    assert counts(problems) == {"images without an answer": 2, "answers that match none of the images": 1}


def test_match_accepts_parent_folders(problems):
    rows = table(
        [("photos/a/1.png", ["cat"], None), ("./x/photos/a/2.png", ["dog"], None), ("b/1.png", ["ship"], None)]
    )
    matched = match(["a/1.png", "a/2.png", "b/1.png"], rows, CLASSES, problems, "images")
    assert matched.excluded.argmax(1).tolist() == [0, 1, 2]
    assert not len(problems)


def test_match_accepts_other_case_and_a_missing_suffix(problems):
    rows = table([("IMG_1.JPG", ["cat"], None), ("img_2", ["dog"], None), ("v1.2", ["ship"], None)])
    matched = match(["a/img_1.jpg", "b/IMG_2.jpeg", "c/v1.2.png"], rows, CLASSES, problems, "images")
    assert matched.excluded.argmax(1).tolist() == [0, 1, 2]
    assert not len(problems)


def test_match_refuses_ambiguous_names(problems):
    rows = [("test/1.png", ["cat"], None), ("train/1.png", ["dog"], None), ("x", ["cat"], None), ("y", ["cat"], None)]
    matched = match(["1.png", "x.png", "x.jpg", "y"], table(rows), CLASSES, problems, "images")
    assert matched.index.tolist() == [3]
    assert counts(problems) == {"images without an answer": 3, "answers that match none of the images": 3}


def test_match_distinguishes_folders(problems):
    rows = table([("b/1.png", ["cat"], None), ("a/2.png", ["cat"], None)])
    assert match(["a/1.png", "a/2.png"], rows, CLASSES, problems, "images").index.tolist() == [1]
    assert counts(problems) == {"images without an answer": 1, "answers that match none of the images": 1}


def test_match_of_nothing_at_all_names_an_example_of_both(problems):
    with pytest.raises(UserError, match=r"'b/1\.png'.*'a/1\.png'"):
        match(["a/1.png"], table([("b/1.png", ["cat"], None)]), CLASSES, problems, "images")


def test_match_refuses_repeated_names_of_examples(problems):
    matched = match(["a", "a", "b"], table([("a", ["cat"], None), ("b", ["dog"], None)]), CLASSES, problems, "rows")
    assert matched.index.tolist() == [2]
    assert counts(problems)["rows with the same name"] == 2


def test_match_reports_every_problem(problems):
    rows = table(
        [
            ("good", ["cat"], "dog"),
            ("typo", ["catt", "dgo"], "dog"),
            ("none", [], "dog"),
            ("every", ["cat", "dog", "ship"], "dog"),
            ("ghost", ["cat"], "dog"),
            ("no truth", ["cat"], None),
            ("odd truth", ["cat"], "zebra"),
            ("two truths", ["cat"], "dog"),
            ("two truths", ["cat"], "ship"),
        ],
        truth=True,
    )
    keys = ["good", "typo", "none", "every", "no truth", "odd truth", "two truths", "unlabeled"]
    matched = match(keys, rows, CLASSES, problems, "images")
    assert matched.index.tolist() == [0]
    assert problems.found == {
        "unknown class names": [
            "typo (line 3): the class 'catt' is not known; did you mean 'cat'?",
            "typo (line 3): the class 'dgo' is not known; did you mean 'dog'?",
            "odd truth (line 8): the class 'zebra' is not known; the classes are cat, dog, ship.",
        ],
        "examples whose answers are all ignored": ["none (line 4)"],
        "examples whose answers exclude every class": ["every"],
        "rows without a true class": ["no truth (line 7)"],
        "rows with contradictory true classes": ["two truths (line 9 and later)"],
        "images without an answer": ["unlabeled"],
        "answers that match none of the images": ["ghost (line 6)"],
    }
    assert problems.levels["unknown class names"] == "error"
    assert problems.levels["images without an answer"] == "unlabeled"
    assert problems.levels["examples whose answers are all ignored"] == "note"


# --- several answers -----------------------------------------------------------------------------


def combine(answers, classes=CLASSES):
    """Answers about one example: (annotator, not, yes[, time]) -> (excluded or None, counts, problems)."""
    rows = [Answer("x", i, tuple(no), tuple(yes), "", who, *time) for i, (who, no, yes, *time) in enumerate(answers)]
    problems = Problems()
    matched = match(["x"], AnswerTable(rows, True, False), classes, problems, "images")
    return (matched.excluded[0].tolist() if len(matched.index) else None), matched.counts, problems


@pytest.mark.parametrize(
    ("answers", "excluded", "counted"),
    [
        ([("", ["cat"], []), ("", ["dog"], [])], [1, 1, 0], {}),
        ([("", [], ["cat"])], [0, 1, 1], {}),
        ([("", [], ["cat", "dog"])], [0, 0, 1], {}),
        ([("ann", ["cat"], []), ("ann", ["cat"], [])], [1, 0, 0], {"repeats": 1}),
        ([("ann", [], []), ("bob", ["cat"], [])], [1, 0, 0], {"ignored": 1}),
        ([("ann", [], ["cat"]), ("bob", ["cat"], [])], [0, 1, 1], {"contradictions": 1}),  # a tie excludes nothing
        ([("ann", [], ["cat"]), ("bob", [], ["dog"])], [0, 0, 1], {"contradictions": 1}),
        ([("ann", [], ["cat"]), ("bob", [], ["dog"]), ("eve", [], ["cat"])], [0, 1, 1], {"contradictions": 1}),
        (
            [("", ["cat"], []), ("", ["cat"], []), ("", [], ["cat"])],
            None,
            {"repeats": 1},
        ),  # one vote against each class
        ([("ann", [], ["cat"]), ("ann", ["cat"], [])], [1, 0, 0], {"changed": 1}),
        ([("ann", [], ["cat"]), ("ann", [], ["dog"]), ("ann", [], ["cat"])], [0, 1, 1], {"changed": 2}),
        ([("ann", ["dog"], []), ("ann", [], ["dog"])], [1, 0, 1], {"changed": 1}),
        ([("ann", ["dog"], [], 2.0), ("ann", [], ["dog"], 1.0)], [0, 1, 0], {"changed": 1}),  # by time, not by line
        (
            [("a", ["cat"], []), ("b", ["dog"], []), ("c", ["ship"], []), ("d", ["ship"], [])],
            [0, 0, 1],
            {"contradictions": 1},
        ),
        ([("a", ["cat"], []), ("b", ["dog"], []), ("c", ["ship"], [])], None, {}),
    ],
)
def test_combined_answers_follow_the_majority(answers, excluded, counted):
    found, numbers, _ = combine(answers)
    assert found == excluded
    assert {key: n for key, n in numbers.items() if n and key != "answers"} == counted


def test_contradiction_is_a_note_that_names_the_classes():
    _, _, problems = combine([("ann", [], ["cat"]), ("bob", ["cat"], [])])
    ((kind, (text,)),) = problems.found.items()
    assert problems.levels[kind] == "note"
    assert text.startswith("x: cat both")


def test_answer_that_says_yes_and_not_is_an_error():
    excluded, _, problems = combine([("ann", ["cat"], ["cat"])])
    assert excluded is None
    assert problems.count("error") == 1


def reference(answers, classes):
    """The rule, written out: annotators take back what they contradict; excluded if more are against than for."""
    kept = []
    for place, (who, no, yes) in enumerate(answers):
        said = {k: (1 if k in no or (yes and k not in yes) else -1 if k in yes else 0) for k in classes}
        kept = [each for each in kept if each[0] != who or all(each[1][k] * said[k] >= 0 for k in classes)]
        kept.append((who or place, said))
    voters = {who for who, _ in kept}
    margin = [
        sum(next((said[k] for who, said in kept if who == voter and said[k]), 0) for voter in voters) for k in classes
    ]
    excluded = [int(m > 0) for m in margin]
    if all(excluded):
        excluded = [int(m > min(margin)) for m in margin]
    return excluded if any(excluded) else None


names = st.sets(st.sampled_from(CLASSES), max_size=2)
answer = st.tuples(st.sampled_from(["", "ann", "bob"]), names, names).filter(lambda a: not a[1] & a[2])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(answer, min_size=1, max_size=6))
def test_combined_answers_equal_the_reference(answers):
    found, numbers, problems = combine(answers)
    assert found == reference(answers, CLASSES)
    assert numbers["answers"] == sum(max(1, len(no) + (len(yes) > 0)) for _, no, yes in answers)
    if found is None:
        assert len(problems)  # nothing is left out silently


def test_answers_are_kept_one_by_one_if_annotators_are_named(problems):
    rows = [
        Answer("a", 1, ("cat",), (), "", "bob", 5.0),
        Answer("b", 2, (), ("dog",), "", "ann", math.nan),
        Answer("a", 3, ("dog",), (), "", "", 6.0),
        Answer("a", 4, (), (), "", "ann"),
    ]
    answers = match(["b", "a"], AnswerTable(rows, True, False), CLASSES, problems, "images").answers
    assert answers.example.tolist() == [0, 1, 1]
    assert answers.annotator_names() == ["ann", "bob", ""]
    assert answers.excluded.tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert np.allclose(answers.time.numpy(), [math.nan, 5, 6], equal_nan=True)


def test_match_is_fast_for_many_answers(problems):
    keys = [f"photos/{i}.png" for i in range(20_000)]
    rows = [Answer(key, i, (CLASSES[i % 3],), (), "", f"w{i % 50}") for i, key in enumerate(keys)]
    matched = match(keys, AnswerTable(rows, True, False), CLASSES, problems, "images")
    assert matched.excluded.sum(0).tolist() == [6667, 6667, 6666]
    assert list(itertools.islice(matched.answers.annotators, 2)) == ["w0", "w1"]
