from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data.assemble import assemble, multi_hot, order_by_name
from complementary.errors import UserError


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1))
def test_multi_hot_holds_each_distinct_label_once(rows):
    excluded = multi_hot(np.array(rows), 7, "x")
    assert [set(np.flatnonzero(row).tolist()) for row in excluded] == [set(row) for row in rows]
    assert excluded.max() == 1


def test_multi_hot_refuses_labels_out_of_range():
    with pytest.raises(UserError, match="labels run from 0 to 7; wanted 0 to 6"):
        multi_hot(np.array([[0], [7]]), 7, "x")


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.randoms(use_true_random=False))
def test_order_by_name_joins_every_shuffle(names, random):
    wanted = names.copy()
    random.shuffle(wanted)
    order = order_by_name(np.array(names), np.array(wanted), "x")
    assert [names[i] for i in order] == wanted
    assert sorted(order.tolist()) == list(range(len(names)))


def test_equal_names_pair_up_in_order():
    assert order_by_name(np.array(["b", "a", "b"]), np.array(["b", "b", "a"]), "x").tolist() == [0, 2, 1]


def test_other_names_are_refused():
    with pytest.raises(UserError, match=r"\(1 images have none\)"):
        order_by_name(np.array(["a", "b"]), np.array(["a", "c"]), "x")


@pytest.fixture
def labelled(tiny):
    return replace(tiny, name="labelled", base="tiny", sha256={}, seed=5)


def test_labels_by_row(labelled, tiny_arrays):
    labels = np.array([[1, 1]] * 12)
    own = assemble(labelled, {"labels": labels}, tiny_arrays)
    assert list(own) == ["train/excluded"]
    assert own["train/excluded"].tolist() == [[0, 1, 0]] * 12


def test_one_label_each_may_be_a_vector(labelled, tiny_arrays):
    own = assemble(labelled, {"labels": np.arange(12) % 3}, tiny_arrays)
    assert own["train/excluded"].argmax(1).tolist() == [0, 1, 2] * 4


def test_labels_by_name(labelled, tiny_arrays):
    names = np.array([f"{i:02d}.png" for i in range(12)])
    base = {**tiny_arrays, "train/names": names.astype("S")}
    shuffled = np.random.default_rng(0).permutation(12)
    own = assemble(labelled, {"labels": shuffled[:, None] % 3, "names": names[shuffled]}, base)
    assert own["train/excluded"].argmax(1).tolist() == [0, 1, 2] * 4


def test_simulated_labels_follow_the_matrix_and_the_seed(labelled, tiny_arrays):
    matrix = np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    own = assemble(labelled, {"transition": matrix}, tiny_arrays)
    assert np.array_equal(own["train/excluded"].argmax(1), (tiny_arrays["train/truth"] + 1) % 3)
    even = np.full((3, 3), 1 / 3)
    first, again = (assemble(labelled, {"transition": even}, tiny_arrays)["train/excluded"] for _ in range(2))
    other = assemble(replace(labelled, seed=6), {"transition": even}, tiny_arrays)["train/excluded"]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"train/inputs": np.zeros((3, 1, 5, 4), np.uint8)},
            r"inputs are \[3, 1, 5, 4\], wanted \[12, 1, 5, 4\]",
        ),
        ({"test/truth": np.full(6, 3)}, "true labels run from 3 to 3"),
        ({"train/truth": np.zeros(12, np.int64)}, "train/truth has SHA-256 .* but the real set has"),
    ],
)
def test_what_is_not_the_set_is_refused(tiny, tiny_arrays, change, sentence):
    with pytest.raises(UserError, match=sentence):
        assemble(tiny, {**tiny_arrays, **change}, None)


def test_missing_arrays_are_named(tiny, tiny_arrays):
    with pytest.raises(UserError, match="test inputs are nothing"):
        assemble(tiny, {k: v for k, v in tiny_arrays.items() if k != "test/inputs"}, None)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [(np.zeros((5, 1), int), r"labels are \[5, 3\]"), (np.array([[0, 1, 2]] * 12), "excludes every class")],
)
def test_labels_that_do_not_fit(labelled, tiny_arrays, labels, sentence):
    with pytest.raises(UserError, match=sentence):
        assemble(labelled, {"labels": labels}, tiny_arrays)


def test_a_labels_file_without_labels(labelled, tiny_arrays):
    with pytest.raises(UserError, match="holds no complementary labels"):
        assemble(labelled, {"classes": np.array(["a"])}, tiny_arrays)
