"""Transition matrices: the paper's weights of setup 2, rows that are probabilities, and errors for bad matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, transitions
from complementary.errors import UserError

GOLDEN_WEIGHTS = {
    10: [100, 77, 59, 46, 35, 27, 21, 16, 12, 10],
    5: [100, 83, 69, 58, 48, 40, 34, 28, 23, 20],
    3: [100, 88, 78, 69, 61, 54, 48, 42, 37, 33],
}


@pytest.mark.parametrize(("ratio", "weights"), GOLDEN_WEIGHTS.items())
def test_biased_has_the_papers_weights(ratio, weights):
    matrix = transitions.biased(10, ratio)
    for i in range(10):
        total = sum(w for k, w in enumerate(weights) if k != i)
        wanted = [0 if j == i else weights[j] / total for j in range(10)]
        np.testing.assert_allclose(matrix[i].numpy(), wanted, rtol=1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 60), st.floats(1, 100))
def test_biased_rows_are_probabilities_with_a_zero_diagonal(classes, ratio):
    matrix = transitions.biased(classes, ratio)
    assert matrix.shape == (classes, classes)
    assert matrix.dtype == torch.float64
    assert bool((matrix.diagonal() == 0).all() and (matrix >= 0).all())
    torch.testing.assert_close(matrix.sum(1), torch.ones(classes, dtype=torch.float64))
    if classes > 2:  # in every row that has both, the last label is about `ratio` times less likely
        seen = matrix[1:-1, 0] / matrix[1:-1, -1]
        np.testing.assert_allclose(seen.numpy(), 100 / int(100 * ratio**-1.0), rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_uniform_is_biased_by_one_and_noisy_by_zero(classes):
    uniform = transitions.uniform(classes)
    wanted = [[0 if i == j else 1 / (classes - 1) for j in range(classes)] for i in range(classes)]
    np.testing.assert_allclose(uniform.numpy(), wanted, rtol=1e-12)
    torch.testing.assert_close(transitions.biased(classes, 1), uniform)
    torch.testing.assert_close(transitions.noisy(classes, 0), uniform)


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 40), st.data())
def test_designed_is_balanced_and_can_be_inverted(classes, data):
    allowed = data.draw(st.integers(1, classes - 1))
    main = None if allowed == 1 else data.draw(st.floats(1 / allowed + 0.1, 0.95) if allowed > 2 else st.just(0.8))
    matrix = transitions.designed(classes, allowed, main)
    one = torch.ones(classes, dtype=torch.float64)
    torch.testing.assert_close(matrix.sum(1), one)
    torch.testing.assert_close(matrix.sum(0), one)
    assert ((matrix > 0).sum(1) == allowed).all()
    assert (matrix.diagonal() == 0).all(), "the true class is never excluded"
    torch.testing.assert_close(matrix.amax(1), one * (main or 1))
    assert torch.linalg.matrix_rank(matrix) == classes
    assert torch.equal(matrix, transitions.designed(classes, allowed, main)), "the same in every process"


def test_designed_label_carries_more_bits_than_a_uniform_one():
    def bits(matrix):  # mutual information of class and label, classes of equal size
        return float(-(mean := matrix.mean(0)).xlogy(mean).sum() + matrix.xlogy(matrix).sum(1).mean()) / np.log(2)

    assert bits(transitions.uniform(100)) == pytest.approx(np.log2(100 / 99))
    assert bits(transitions.designed(100, 4)) == pytest.approx(np.log2(25))
    assert bits(transitions.designed(100, 99)) == pytest.approx(np.log2(100 / 99))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.99])
def test_noisy_has_the_rate_on_its_diagonal(rate):
    matrix = transitions.noisy(5, rate)
    np.testing.assert_allclose(matrix.diagonal().numpy(), rate)
    np.testing.assert_allclose(matrix[0, 1:].numpy(), (1 - rate) / 4)
    np.testing.assert_allclose(matrix.sum(1).numpy(), 1)


def test_decay_falls_from_one_to_one_over_ratio():
    profile = transitions.decay(100, 10)
    assert profile[0] == 1
    assert profile[-1] == pytest.approx(0.01)
    steps = np.diff(np.log(profile))
    np.testing.assert_allclose(steps, steps[0])


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("uniform", transitions.uniform(4)),
        ("biased:10", transitions.biased(4, 10)),
        ("noisy:0.25", transitions.noisy(4, 0.25)),
        ("designed:1", transitions.designed(4, 1)),
        ("designed:2:0.75", transitions.designed(4, 2, 0.75)),
    ],
)
def test_parse_builds_the_matrix(spec, wanted):
    assert torch.equal(transitions.parse(spec, 4), wanted)


def test_parse_reads_a_file_and_normalizes_its_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("0, .3333, .6667\n.5,0,.5\n1,0,0\n")
    matrix = transitions.parse(f"matrix:{path}", 3)
    np.testing.assert_allclose(matrix.numpy(), [[0, 0.3333, 0.6667], [0.5, 0, 0.5], [1, 0, 0]])
    torch.testing.assert_close(matrix.sum(1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0,1\nx,0\n", "numbers"),
        ("0,1\n1\n", "numbers"),
        ("0,1,0\n1,0,0\n", r"\[2, 3\].*\[3, 3\]"),
        ("0,2,-1\n.5,0,.5\n.5,.5,0\n", "-1 in row 0, column 2"),
        ("0,.5,.5\n.5,0,.6\n.5,.5,0\n", r"row 1 .*1\.1000"),
        ("0,nan,.5\n.5,0,.5\n.5,.5,0\n", "NaN"),
        ("", "t.csv"),
    ],
    ids=["text", "ragged", "shape", "negative", "sum", "nan", "empty"],
)
def test_read_transition_names_file_and_fault(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        transitions.read_transition(path, 3)
    assert "t.csv" in str(caught.value)


def test_read_transition_names_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.csv"):
        transitions.read_transition(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: transitions.uniform(1), "2 classes, found 1"),
        (lambda: transitions.uniform(0), "2 classes, found 0"),
        (lambda: transitions.decay(10, 1), "2 classes, found 1"),
        (lambda: transitions.biased(1, 10), "2 classes, found 1"),
        (lambda: transitions.biased(5, 0.5), r"0\.5.*at least 1"),
        (lambda: transitions.biased(5, float("nan")), "nan.*at least 1"),
        (lambda: transitions.biased(5, 101), "101.*class 4.*at most 100"),
        (lambda: transitions.noisy(5, 1), "rate is 1"),
        (lambda: transitions.designed(5, 0), "between 1 and 4"),
        (lambda: transitions.designed(5, 5), "between 1 and 4"),
        (lambda: transitions.designed(5, 4, 0.2), r"least 0\.25"),
        (lambda: transitions.designed(5, 4, 1.0), "below 1"),
        (lambda: transitions.designed(5, 1, 1.0), "below 1"),
        (lambda: transitions.designed(4, 2), "invertible"),
        (lambda: transitions.noisy(5, -0.1), r"rate is -0\.1"),
        (lambda: transitions.noisy(5, float("nan")), "rate is nan"),
        (lambda: transitions.check_transition(torch.ones(3) / 3), r"\[3\].*\[3, 3\]"),
        (lambda: transitions.check_transition(torch.zeros(0, 0)), r"\[0, 0\]"),
        (lambda: transitions.check_transition(torch.tensor(1.0)), r"shape \[\]"),
        (lambda: transitions.check_transition(torch.tensor([[0, float("inf")], [1, 0]])), "infinity"),
    ],
)
def test_transition_errors_name_the_value(call, found):
    with pytest.raises(UserError, match=found):
        call()


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("biased:x", "number"),
        ("noisy", "number"),
        ("designed", "number"),
        ("designed:x", "number"),
        ("designed:2:much", "probability"),
        ("matrix:", r"matrix:FILE\.csv"),
        ("uniform:3", "uniform"),
        ("odd", "uniform"),
        ("biased:101", "101"),
        ("matrix:nowhere.csv", "nowhere"),
    ],
)
def test_parse_errors_name_value_and_option(spec, wanted):
    with pytest.raises(UserError, match=wanted) as caught:
        transitions.parse(spec, 5, "labels")
    assert spec.partition(":")[2] in str(caught.value)
    assert caught.value.option == "labels"


@pytest.mark.parametrize("kind", ["biased", "noisy"])
def test_parse_error_gives_a_valid_example(kind):
    with pytest.raises(UserError) as caught:
        transitions.parse(kind, 5)
    example = str(caught.value).split("such as ")[1].rstrip(".")
    assert transitions.parse(example, 5).shape == (5, 5)


def test_check_transition_converts_without_changing_its_input():
    given_matrix = [[0, 1], [1, 0]]
    for form in (given_matrix, np.array(given_matrix), torch.tensor(given_matrix, dtype=torch.float32)):
        checked = transitions.check_transition(form, 2)
        assert checked.dtype == torch.float64
        assert checked.tolist() == given_matrix
    rounded = torch.tensor([[0.0, 0.9995], [1.0, 0.0]])
    assert transitions.check_transition(rounded)[0, 1] == 1
    assert rounded[0, 1] < 1


@pytest.mark.parametrize("matrix", [transitions.biased(6, 10), transitions.noisy(6, 0.2)])
def test_estimate_transition_of_a_perfect_classifier_is_the_matrix(matrix):
    truth = torch.arange(6).repeat(20_000)
    excluded = labels.draw(truth, matrix, seed=1)
    # without true labels, from the most confident examples
    sure = torch.nn.functional.one_hot(truth, 6).float()
    guess = transitions.estimate_transition(sure, excluded)
    torch.testing.assert_close(guess, matrix, atol=0.03, rtol=0)
    torch.testing.assert_close(guess.sum(1), torch.ones(6, dtype=torch.float64))


def test_estimate_averages_exactly_the_surest_share():
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    excluded = torch.tensor([[0, 1], [1, 0], [1, 0], [1, 0]])
    two_each = transitions.estimate_transition(probabilities, excluded, share=1.0)
    assert two_each.tolist() == [[0.5, 0.5], [1, 0]]
    one_each = transitions.estimate_transition(probabilities, excluded, share=0.01)
    assert one_each.tolist() == [[0, 1], [1, 0]]
