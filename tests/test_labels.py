"""Complementary labels: draws follow the matrix; all forms of labels are converted; bad labels are rejected."""

import contextlib
from collections import Counter
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from complementary import labels, transitions
from complementary.errors import UserError
from complementary.long_tail import class_sizes

PAPER_COUNTS = {
    100: [874, 1084, 1166, 1267, 1296, 1316, 1340, 1349, 1367, 1347],
    1: [4982, 5032, 5050, 5022, 4982, 4872, 4977, 5027, 4983, 5073],
}


@pytest.mark.parametrize(("ratio", "counts"), PAPER_COUNTS.items())
def test_draw_as_paper_reproduces_the_published_counts(ratio, counts):
    truth = torch.arange(10).repeat_interleave(torch.tensor(class_sizes(5000, ratio, 10)))
    assert labels.draw_as_paper(truth, 10).sum(0).tolist() == counts


def test_draw_as_paper_does_not_depend_on_the_order_of_classes():
    truth = torch.tensor([2, 0, 1, 0, 2])
    in_class_order = labels.draw_as_paper(truth.sort().values, 3)
    assert torch.equal(labels.draw_as_paper(truth, 3)[torch.argsort(truth, stable=True)], in_class_order)
    before = np.random.get_state()[1].copy()
    labels.draw_as_paper(truth, 3)
    assert (before == np.random.get_state()[1]).all()


MATRICES = {
    "uniform": transitions.uniform(10),
    "biased": transitions.biased(10, 10),
    "noisy": transitions.noisy(10, 0.3),
    "sparse": torch.roll(torch.eye(10), 3, 1) * 0.75 + torch.roll(torch.eye(10), 1, 1) * 0.25,
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_draw_follows_the_matrix(matrix):
    per_class = 10_000
    truth = torch.arange(10).repeat(per_class)
    excluded = labels.draw(truth, matrix, seed=0)
    assert excluded.dtype == torch.uint8
    assert bool((excluded.sum(1) == 1).all())
    for y in range(10):
        seen, wanted = excluded[truth == y].sum(0).numpy(), per_class * matrix[y].double().numpy()
        assert (seen[wanted == 0] == 0).all()
        assert stats.chisquare(seen[wanted > 0], wanted[wanted > 0]).pvalue > 1e-4


def test_draw_of_several_labels_is_sequential_without_replacement():
    matrix = transitions.check_transition(torch.tensor([[0, 0.6, 0.3, 0.1]] * 4))
    truth = torch.zeros(60_000, dtype=torch.long)
    pairs = Counter(map(tuple, labels.draw(truth, matrix, 2, seed=3).numpy()))
    row = matrix[0].tolist()
    wanted: Counter[tuple[int, ...]] = Counter()
    for a, b in permutations([1, 2, 3], 2):
        key = tuple(int(k in (a, b)) for k in range(4))
        wanted[key] += row[a] * row[b] / (1 - row[a])
    assert set(pairs) == set(wanted)
    seen, expected = [pairs[k] for k in wanted], [60_000 * wanted[k] for k in wanted]
    assert stats.chisquare(seen, expected).pvalue > 1e-3


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.integers(2, 12), st.integers(0, 5))
def test_draw_is_distinct_and_repeatable_and_never_the_truth(data, classes, seed):
    per_example = data.draw(st.integers(1, classes - 1))
    truth = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=50)))
    excluded = labels.draw(truth, transitions.biased(classes, 5), per_example, seed)
    assert excluded.shape == (len(truth), classes)
    assert bool((excluded.sum(1) == per_example).all())
    assert bool((excluded[torch.arange(len(truth)), truth] == 0).all())
    assert torch.equal(excluded, labels.draw(truth, transitions.biased(classes, 5), per_example, seed))


@pytest.mark.parametrize("per_example", [1, 3])
def test_draw_differs_between_seeds(per_example):
    truth = torch.arange(100_000) % 100
    first = labels.draw(truth, transitions.uniform(100), per_example, seed=0)
    second = labels.draw(truth, transitions.uniform(100), per_example, seed=1)
    same = (first.bool() & second.bool()).any(1).double().mean()
    assert same < 0.15  # 1 - C(96, 3) / C(99, 3) = .088 for three labels


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("per_example", [1, 2])
def test_draw_is_the_same_for_any_integer_type(dtype, per_example):
    truth = torch.arange(20)
    wanted = labels.draw(truth, transitions.uniform(20), per_example)
    assert torch.equal(labels.draw(truth.to(dtype), transitions.uniform(20), per_example), wanted)


@pytest.mark.parametrize(("point", "wanted"), [(0.0, [1] + [0] * 9), (1 - 2**-53, [9] * 9 + [8])])
def test_draw_stays_in_the_row_at_both_ends(monkeypatch, point, wanted):
    monkeypatch.setattr(torch, "rand", lambda n, dtype, generator: torch.full((n,), point, dtype=dtype))
    assert labels.draw(torch.arange(10), transitions.uniform(10)).argmax(1).tolist() == wanted


@pytest.mark.parametrize("per_example", [1, 2, 3, 4])
@pytest.mark.parametrize("matrix", [transitions.biased(5, 10), transitions.noisy(5, 0.2), transitions.designed(5, 4)])
def test_marginal_equals_an_enumeration_of_all_draws(per_example, matrix):
    found = labels.marginal(matrix, per_example)
    for y in range(5):
        wanted = np.zeros(5)
        for drawn in permutations([k for k in range(5) if matrix[y, k] > 0], per_example):
            chance, left = 1.0, 1.0
            for k in drawn:
                chance, left = chance * float(matrix[y, k]) / left, left - float(matrix[y, k])
            wanted[list(drawn)] += chance / per_example
        np.testing.assert_allclose(found[y].numpy(), wanted, atol=1e-9)


@pytest.mark.parametrize(("classes", "per_example"), [(3, 2), (10, 3), (10, 9), (40, 7)])
def test_marginal_of_uniform_labels_is_uniform(classes, per_example):
    wanted = transitions.uniform(classes)
    torch.testing.assert_close(labels.marginal(wanted, per_example), wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("per_example", [0, 4, -1])
def test_draw_rejects_an_impossible_number_of_labels(per_example):
    with pytest.raises(UserError, match=f"is {per_example},.*4 classes.*between 1 and 3") as caught:
        labels.draw(torch.tensor([0]), transitions.uniform(4), per_example)
    assert caught.value.option == "per_example"


def test_draw_allows_one_label_if_the_matrix_has_one_entry_per_row():
    matrix = torch.eye(3).roll(1, 1)
    assert labels.draw(torch.tensor([0, 1, 2]), matrix).argmax(1).tolist() == [1, 2, 0]
    with pytest.raises(UserError, match="between 1 and 1"):
        labels.draw(torch.tensor([0]), matrix, 2)


@pytest.mark.parametrize(
    "make", [lambda y: labels.draw(y, transitions.uniform(3)), lambda y: labels.draw_as_paper(y, 3)]
)
@pytest.mark.parametrize("bad", [-1, 3])
def test_draw_rejects_a_true_label_outside_the_classes(make, bad):
    with pytest.raises(UserError, match=rf"true label is {bad} \(example 2\).*0 and 2"):
        make(torch.tensor([0, 1, bad]))


# --- conversion -------------------------------------------------------------------------------------------------------

WANTED = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    "given_labels",
    [
        [1, 0, 2],
        (1, 0, 2),
        [1.0, 0.0, 2.0],
        [{1}, {0}, {2}],
        [[1], (0,), np.array([2])],
        np.array([1, 0, 2], dtype=np.uint8),
        np.array([1, 0, 2], dtype=np.uint16),
        np.array([1.0, 0.0, 2.0]),
        np.array([2, 0, 1])[::-1],
        np.array(WANTED),
        np.array(WANTED, dtype=bool),
        np.asfortranarray(np.array(WANTED, dtype=float)),
        torch.tensor([1, 0, 2], dtype=torch.int16),
        list(torch.tensor([1, 0, 2])),
        list(np.array([1, 0, 2])),
        torch.tensor(WANTED),
        range(3),
        iter([1, 0, 2]),
    ],
)
def test_to_excluded_accepts_every_form_of_labels(given_labels):
    wanted = np.eye(3).tolist() if isinstance(given_labels, range) else WANTED
    excluded = labels.to_excluded(given_labels, 3)
    assert excluded.dtype == torch.uint8
    assert excluded.tolist() == wanted


def test_to_excluded_accepts_a_read_only_array():
    array = np.array([1, 0, 2])
    array.flags.writeable = False
    assert labels.to_excluded(array).tolist() == WANTED


def test_to_excluded_counts_classes_by_the_largest_label():
    assert labels.to_excluded([0, 4]).shape == (2, 5)
    assert labels.to_excluded([{0, 4}, {1}]).tolist() == [[1, 0, 0, 0, 1], [0, 1, 0, 0, 0]]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(2, 9).flatmap(
        lambda k: st.tuples(
            st.just(k), st.lists(st.sets(st.integers(0, k - 1), min_size=1, max_size=k - 1), min_size=1, max_size=20)
        )
    )
)
def test_to_excluded_keeps_sets(case):
    classes, rows = case
    excluded = labels.to_excluded(rows, classes)
    assert [set(row.nonzero()[:, 0].tolist()) for row in excluded] == rows
    assert torch.equal(labels.to_excluded(excluded), excluded)
    assert torch.equal(labels.to_excluded(excluded.numpy(), classes), excluded)


@pytest.mark.parametrize(
    ("given_labels", "classes", "message"),
    [
        ([0, 3], 3, r"label is 3 \(example 1\).*0 and 2"),
        ([0, -1], 3, r"label is -1 \(example 1\).*0 and 2"),
        ([-1, -1], None, "label is -1"),
        ([{0}, {1, 7}], 3, r"label is 7 \(example 1\).*0 and 2"),
        ([{0}, {-2}], 3, r"label is -2 \(example 1\)"),
        ([{0}, set()], 3, r"Example 1 excludes no class \(1 .*1 and 2 of the 3"),
        ([set(), set()], None, "Example 0 excludes no class"),
        ([{0}, {0, 1, 2}, {0, 1, 2}], 3, r"Example 1 excludes every class \(2 "),
        (np.zeros((2, 3)), None, "Example 0 excludes no class"),
        (np.ones((2, 3)), 3, "Example 0 excludes every class"),
        (np.eye(3), 4, "3 columns.*4 classes.*list of sets"),
        (np.array([[0, 2, 1]]), None, "only 0 and 1.*list of sets"),
        (np.array([[0, np.nan, 1]]), None, "only 0 and 1"),
        ([[0, 1, 0], [1, 0, 0]], 3, r"Example 0 .*twice \(\[0, 1, 0\]\).*array"),
        ([0.5, 1], None, "integers.*example 0 has the label 0.5"),
        ([1, float("nan")], None, "Example 1 has no label"),
        ([float("inf"), 1], None, "example 0 has the label inf"),
        ([{0.5}], 3, "integers.*example 0 has the label 0.5"),
        ([{0}, {1, float("nan")}], 3, "Example 1 has no label"),
        (np.array([1, None]), None, "Example 1 has no label"),
        (torch.tensor([1, float("nan")]), None, "Example 1 has no label"),
        *(
            (pd.Series([0, None, 1], dtype=kind), None, "Example 1 has no label")
            for kind in ("float", "Int64", "object")
        ),
        (pd.Series(["cat", "nan", "dog"]), None, "Example 1 has no label"),  # after astype(str)
        (["cat", 1], None, "Example 1 is 1.*names"),
        (["cat", None], None, "Example 1 has no label"),
        ([{"cat"}, {"dog", ""}], None, "Example 1 has no label"),
        ([{"cat"}, set()], ["cat", "dog"], "Example 1 excludes no class"),
        ([{"cat"}], None, "one class"),
        (["not cat", "yes dog"], None, "from_answers"),
        (["cat", "dgo"], ["cat", "dog"], "Example 1.*'dgo'.*mean 'dog'"),
        (["cat", "Ship"], ["cat", "dog", "SHIP"], "mean 'SHIP'"),
        (["cat", "zebra"], ["cat", "dog"], "'zebra'.*cat, dog"),
        (["cat", "dog"], 3, "name 2 classes.*3"),
        (["cat", "dog"], ["cat", "dog", "cat"], "cat more than once"),
        ([0, 1, 2], ["cat", "dog"], r"label is 2 \(example 2\)"),
        (["0", "1"], [0, 1], "Example 0: the label '0' is text, but the class 0 is a number; convert"),
        ([{"0"}, {1}], ["0", "1"], "Example 1: the label 1 is a number, but the class '1' is text; convert"),
        (["0.0", "1.0"], ["0", "1"], "'0.0' is not known; did you mean '0'"),
        *((form, ["1", "2", "3"], "1 may mean the class '1' or a position") for form in ([1, 2], np.array([1, 2]))),
        ([{1}, {2, 3}], ["1", "2", "3"], "1 may mean the class '1' or a position"),
        ("cat", None, "found str"),
        (pd.Series(["cat", pd.NA], dtype="string"), None, "Example 1 has no label"),
        (pd.Series(pd.Categorical(["cat", None], ["cat", "dog"])), None, "Example 1 has no label"),
        ([1, {0}], None, "integers|sets"),
        ([{0}, 1], None, "integers|sets"),
        ([[[0], [1]]], None, "integers|sets"),
        ([], None, r"shape \[0\].*one label per example"),
        (np.zeros((0, 5)), None, "at least one example"),
        (np.zeros((2, 2, 2)), None, r"shape \[2, 2, 2\]"),
        (torch.tensor(1), None, r"shape \[\]"),
        (7, None, "found int"),
        (None, None, "found NoneType"),
    ],
)
def test_to_excluded_rejects_bad_labels(given_labels, classes, message):
    with pytest.raises(UserError, match=message):
        labels.to_excluded(given_labels, classes)


def test_one_hot_sets_one_class_and_checks_labels():
    assert labels.one_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(UserError, match=r"label is 3 \(example 1\)"):
        labels.one_hot(torch.tensor([0, 3]), 3)


@pytest.mark.parametrize(
    ("counts", "found"),
    [((0, 50, 50), "start at 1"), ((50, 50, 1), "misspelled"), ((50, 50, 0), "misspelled"), ((50, 40, 5), None)],
)
def test_describe_rare_labels_names_classes_that_are_hardly_excluded(counts, found):
    excluded = torch.nn.functional.one_hot(torch.repeat_interleave(torch.tensor(counts)), 3).to(torch.uint8)
    message = labels.describe_rare_labels(excluded, ("0", "1", "2"))
    assert (message is None) == (found is None)
    if found is not None:
        assert found in message
        assert f"{counts.index(min(counts))} ({min(counts)})" in message


@pytest.mark.parametrize(
    ("classes", "per_example", "examples", "wanted"),
    [
        (2, 1, 9, 10),
        (2, 1, 10, None),
        (3, 1, 14, 15),
        (3, 2, 8, None),
        (10, 1, 89, 90),
        (10, 9, 10, None),
        (3, 1, 1, 15),
    ],
)
def test_describe_few_labels_asks_for_five_and_k_minus_1_per_class(classes, per_example, examples, wanted):
    excluded = labels.draw(torch.arange(examples) % classes, transitions.uniform(classes), per_example)
    message = labels.describe_few_labels(excluded)
    assert (message is None) == (wanted is None)
    if message is not None:
        assert f"{examples} label" in message
        assert f"at least {wanted}, {wanted // classes} per class" in message


def test_describe_rare_labels_does_not_take_names_for_numbers():
    excluded = torch.eye(3, dtype=torch.uint8)[[1, 2] * 30]
    assert "start at 1" not in labels.describe_rare_labels(excluded, ("cat", "dog", "ship"))
    assert "start at 1" in labels.describe_rare_labels(excluded, ("1", "2", "3"))


@pytest.mark.parametrize("form", [np.array([1, 100_000]), [{1}, {100_000}]], ids=["vector", "sets"])
def test_to_excluded_refuses_a_huge_label_unless_classes_is_given(form):
    with pytest.raises(UserError, match="100000"):
        labels.to_excluded(form)
    assert labels.to_excluded(form, 100_001).shape == (2, 100_001)


@pytest.mark.parametrize("form", [list, np.array, lambda rows: [{row} for row in rows]], ids=["list", "array", "sets"])
@pytest.mark.parametrize(
    ("values", "repeats", "message"),
    [
        ((10, 20, 30, 40), 31, r"10, 20, 30, 40\. .* leave 37 of 41 .* classes=\[10, 20, 30, 40\].* classes=41"),
        ((10, 20, 30, 40), 30, None),  # fewer than three labels per class
        ((1, 2, 3, 4), 13, r"leave 1 of 5 classes .* classes=\[1, 2, 3, 4\]; if there are 5 classes, pass classes=5"),
        ((1, 2, 3, 4), 12, None),
        ((0, 1, 3), 14, "leave 1 of 4 classes"),
        ((0, 1, 2), 100, None),
        ((2019, 2024), 1, "leave 2023 of 2025 classes"),  # however few labels there are
        ((0, *range(30, 60)), 30, r"0, 30, .*, 40, …\. .* classes=\[\.\.\.\]"),
    ],
)
def test_encode_refuses_numbers_that_leave_classes_without_a_label(values, repeats, message, form):
    rows = form([value for value in values for _ in range(repeats)])
    if message is not None:
        with pytest.raises(UserError, match=message) as caught:
            labels.encode(rows)
        assert caught.value.option == "classes"
    else:
        assert labels.encode(rows).classes == tuple(range(max(values) + 1))
    assert labels.encode(rows, sorted(values)).excluded.sum(0).tolist() == [repeats] * len(values)
    assert labels.encode(rows, max(values) + 1).excluded.shape[1] == max(values) + 1


def test_from_answers_refuses_numbers_that_leave_classes_without_a_label():
    with pytest.raises(UserError, match="leave 37 of 41 classes"):
        labels.from_answers(yes=[10, 20] * 200, no=[{30}, {40}] * 200)
    for huge in (100_000, 10**20):
        with pytest.raises(UserError, match=f"The largest label is {huge}"):
            labels.from_answers(no=[huge, 1, 2])


# --- names --------------------------------------------------------------------------------------------------------

NAMED = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
PETS = ("cat", "dog", "ship")


@pytest.mark.parametrize(
    "given_labels",
    [
        ["dog", "cat", "ship"],
        [{"dog"}, ["cat"], ("ship",)],
        np.array(["dog", "cat", "ship"]),
        np.array(["dog", "cat", "ship"], dtype=object),
        np.array([b"dog", b"cat", b"ship"]),
        pd.Series(["dog", "cat", "ship"]),
        pd.Series(["dog", "cat", "ship"], dtype=object),
        pd.Series(["dog", "cat", "ship"], dtype="category"),
        pd.Series([["dog"], ["cat"], ["ship"]]),
        pd.DataFrame({"not1": ["dog", "cat", "ship"], "not2": [None, "", "ship"]}),
        pd.DataFrame(NAMED, columns=PETS),
        pd.DataFrame(NAMED, columns=PETS).astype(bool),
        iter(["dog", "cat", "ship"]),
        ["not dog", "!cat", "not a ship"],
        pd.Series(["not dog", "not cat", "not ship"], dtype="category"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_encode_accepts_every_form_of_names(given_labels):
    excluded, classes = labels.encode(given_labels)
    assert classes == PETS
    assert excluded.tolist() == NAMED


@pytest.mark.parametrize("classes", [None, 2], ids=str)
@pytest.mark.parametrize(
    "signs",
    [
        np.array([1, -1, 1]),
        [1, -1, 1],
        [1.0, -1.0, 1.0],
        [[1], [-1], [1]],
        [{1}, {-1}, {1.0}],
        [np.array([1]), np.array([-1]), np.array([1])],
        pd.Series([[1], [-1], [1]]),
    ],
    ids=str,
)
def test_encode_takes_minus_one_and_one_for_two_classes_in_every_form(signs, classes):
    excluded, found = labels.encode(signs, classes)
    assert found == (-1, 1)
    assert excluded.tolist() == [[0, 1], [1, 0], [0, 1]]


def test_minus_one_and_one_are_no_two_of_three_classes():
    for signs in (np.array([1, -1]), [[1], [-1]], [1, -1]):
        with pytest.raises(UserError, match=r"label is -1 .*0 and 2"):
            labels.encode(signs, 3)
    with pytest.raises(UserError, match="label is -1"):
        labels.encode([[1], [-1], [0]])


def test_answers_of_minus_one_and_one_are_of_two_classes():
    excluded, classes = labels.from_answers(yes=[1, -1])
    assert (classes, excluded.tolist()) == ((-1, 1), [[1, 0], [0, 1]])


def test_encode_uses_the_order_of_the_given_classes():
    excluded, classes = labels.encode([{"dog", "cat"}, {"ship"}], ["ship", "dog", "cat", "frog"])
    assert classes == ("ship", "dog", "cat", "frog")
    assert excluded.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
    assert labels.encode(pd.Series(pd.Categorical(["b", "a"], ["b", "c", "a"]))).classes == ("b", "c", "a")
    assert labels.encode([1, 0], PETS).excluded.tolist() == [[0, 1, 0], [1, 0, 0]]  # numbers of the given classes
    assert labels.encode(np.array([20, 10]), [10, 20, 30]).excluded.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert labels.encode([{20.0}, {10}], [10, 20, 30]).excluded.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert labels.encode(np.array([1, -1])).classes == (-1, 1)
    assert labels.encode(["food", "not food"]).classes == ("food", "not food")
    assert labels.encode(["not food", "not drink"], ["not food", "not drink", "x"]).excluded.tolist() == [
        [1, 0, 0],
        [0, 1, 0],
    ]


@pytest.mark.parametrize(
    "convert",
    [
        *(lambda y, kind=kind: y.astype(kind) for kind in ("uint8", "uint16", "uint32", "int64", "float32", "float64")),
        *(lambda y, kind=kind: pd.Series(y, dtype=kind) for kind in ("int64", "Int64", "float64")),
        lambda y: torch.tensor(y).float(),
        lambda y: [{float(label)} for label in y],
        list,
    ],
)
def test_encode_of_numbers_as_classes_does_not_depend_on_their_type(convert):
    wanted = [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert labels.encode(convert(np.array([1, 2, 1])), [2, 1, 3]).excluded.tolist() == wanted


def test_encode_sorts_the_columns_of_a_frame_by_name():
    frame = pd.DataFrame(NAMED, columns=PETS)
    for order in (["ship", "dog", "cat"], ["dog", "ship", "cat"]):
        assert labels.encode(frame, order).excluded.tolist() == labels.encode(frame[order]).excluded.tolist()
    numbered = pd.DataFrame(NAMED, columns=[20, 30, 10])
    assert labels.encode(numbered).classes == (20, 30, 10)
    assert labels.encode(numbered, [10, 20, 30]).excluded.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert labels.encode(pd.DataFrame(NAMED), PETS).excluded.tolist() == NAMED  # columns without names
    with pytest.raises(UserError, match="columns 'cat', 'dog', 'ship', but the classes are 'cat', 'dog', 'frog'; keep"):
        labels.encode(frame, ["cat", "dog", "frog"])


def test_encode_refuses_labels_with_and_without_not():
    with pytest.raises(UserError, match=r"Some labels are 'cat' and others 'not cat'.* in the same way"):
        labels.encode(["cat", "not cat", "dog"])
    assert labels.encode(["cat", "not cat", "dog"], ["cat", "dog", "not cat"]).classes == ("cat", "dog", "not cat")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sets(st.text(min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=12))
def test_encode_keeps_sets_of_names(rows):
    classes = (*sorted(set().union(*rows)), "\x00 a class that no label excludes")
    excluded, found = labels.encode([list(row) for row in rows], classes)
    assert found == classes
    assert [{classes[k] for k in row.nonzero()[:, 0]} for row in excluded] == rows


def test_from_answers_turns_yes_into_all_other_classes():
    excluded, classes = labels.from_answers(
        yes=["cat", None, {"dog", "ship"}], no=[None, {"dog"}, "dog2"], classes=None
    )
    assert classes == ("cat", "dog", "dog2", "ship")
    assert excluded.tolist() == [[0, 1, 1, 1], [0, 1, 0, 0], [1, 0, 1, 0]]
    assert labels.from_answers(yes=[2, 0], classes=3).excluded.tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"yes": ["cat", "dog"], "no": [None, "dog"]}, "Example 1 .*yes and with no for dog"),
        ({"yes": ["cat"], "no": [None, "dog"]}, "1 and 2 answers"),
        ({}, "no answers"),
        ({"yes": ["cat", None], "classes": ["cat", "dog"]}, "Example 1 excludes no class"),
        ({"yes": ["cta"], "classes": ["cat", "dog"]}, "mean 'cat'"),
    ],
)
def test_from_answers_rejects_bad_answers(answers, message):
    with pytest.raises(UserError, match=message):
        labels.from_answers(**answers)


atoms = st.one_of(st.none(), st.booleans(), st.integers(-2, 5), st.floats(), st.sampled_from(["cat", "dog", ""]))
anything = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(anything, st.one_of(st.none(), st.integers(-1, 5), st.just(["cat", "dog", "ship"]), st.just([1, 2, 3])))
def test_encode_of_anything_is_valid_or_refused(given_labels, classes):
    forms = [given_labels, pd.Series(given_labels) if isinstance(given_labels, list) else given_labels]
    for form in forms:
        with contextlib.suppress(UserError):
            excluded, names = labels.encode(form, classes)
            assert excluded.shape[1] == len(names)
            assert bool((excluded.sum(1) > 0).all())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(anything, anything), max_size=4), st.sampled_from([None, 3, ("cat", "dog", "ship")]))
def test_from_answers_of_anything_is_valid_or_refused(answers, classes):
    yes, no = [each for each, _ in answers], [each for _, each in answers]
    with contextlib.suppress(UserError):
        excluded, names = labels.from_answers(yes, no, classes)
        assert excluded.shape == (len(answers), len(names))


@pytest.mark.parametrize("kind", ["Int64", "boolean", "object", "uint8", "float32"])
def test_tables_of_zeros_and_ones_mean_the_same_whatever_their_type(kind):
    table = pd.DataFrame({"cat": [1, 0, 0], "dog": [0, 1, 0], "ship": [0, 0, 1]}).astype(kind)
    found, classes = labels.encode(table)
    assert tuple(classes) == ("cat", "dog", "ship")
    assert found.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("kind", ["Int64", "boolean", "object"])
def test_tables_of_zeros_and_ones_with_missing_cells_are_refused(kind):
    table = pd.DataFrame({"cat": [1, None, 0], "dog": [0, 1, 1]}, dtype=kind)
    with pytest.raises(UserError, match="row 1, column 0 is missing; fill such cells first"):
        labels.encode(table)
    empty = pd.DataFrame({"cat": [None, 1, 0], "dog": [None, 0, 1]}, dtype=kind)
    with pytest.raises(UserError, match="row 0, column 0 is missing"):
        labels.encode(empty)


TABLE = {"cat": [1, 0, 0], "dog": [0, 1, 0], "ship": [0, 0, 1]}


@pytest.mark.parametrize(
    ("table", "classes", "message"),
    [
        (TABLE | {"id": [17, 18, 19]}, PETS, "column 'id' of the labels contains 17.*only 0 and 1"),
        (TABLE | {"bad": [0, 1, 0]}, PETS, "'ship', 'bad', but the classes are 'cat', 'dog', 'ship'; keep one column"),
        (TABLE | {"bad": [0, 1, 0]}, 3, "4 classes .*'bad'.*classes is 3"),
        (TABLE | {"file": ["a", "b", "c"]}, PETS, r"names \('file'\) and of other values \('cat', 'dog', 'ship'\)"),
        ({"id": [7, 8], "not": ["cat", "dog"]}, None, r"names \('not'\) and of other values \('id'\)"),
        ({"not": [0, 1, 2], "annotator": [7, 8, 9]}, None, "column 'not' of the labels contains 2.*alone"),
        ({"not": [0, 1], "time": [0.5, 0.7]}, None, "column 'time' of the labels contains 0.5"),
        ({"file": [f"{i}.png" for i in range(30)], "not": ["cat", "dog"] * 15}, None, "'file'.* in each of its 30"),
        ({"0": [0, 1], "1": [1, 0]}, [0, 1], "columns '0', '1', but the classes are 0, 1; keep one column"),
    ],
)
def test_encode_names_the_columns_of_a_table_that_are_no_labels(table, classes, message):
    with pytest.raises(UserError, match=message):
        labels.encode(pd.DataFrame(table), classes)


def test_encode_warns_of_a_column_that_shares_no_class_with_the_others(caplog):
    answers = ["cat", "dog", "cat", "bird"]
    labels.encode(pd.DataFrame({"not": answers, "also not": ["dog", "cat", None, "cat"]}))
    assert not caplog.text
    found = labels.encode(pd.DataFrame({"not": answers, "annotator": ["ann", "bob", "ann", "bob"]}))
    assert "The column 'annotator' of the labels shares no class with the others" in caplog.text
    assert "'ann', 'bob'" in caplog.text
    assert found.classes == ("ann", "bird", "bob", "cat", "dog")
