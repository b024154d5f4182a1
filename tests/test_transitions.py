"""Transition matrices: the paper's weights of setup 2, rows that are probabilities, and errors for bad matrices."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, transitions
from complementary.errors import UserError
from complementary.rng import generator

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


@pytest.mark.parametrize("classes", [6, 11, 21, 26])
def test_biased_weights_are_not_rounded_below_a_whole_number(classes):
    """32^(-2 / 5) is 1/4, but 100 times it is 24.999999999999996 in floating point."""
    weights = [
        int(Decimal(100) * Decimal(32) ** (Decimal(-k) / (classes - 1)) + Decimal("1e-20")) for k in range(classes)
    ]
    matrix = transitions.biased(classes, 32)
    np.testing.assert_allclose(
        (matrix[0, 1:] / matrix[0, 1]).numpy(), [w / weights[1] for w in weights[1:]], rtol=1e-12
    )


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
        np.testing.assert_allclose(seen.numpy(), 100 / int(100 * ratio**-1.0 + 1e-9), rtol=1e-9)


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
        (transitions.to_text(transitions.biased(4, 3)), transitions.biased(4, 3)),
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
        (lambda: transitions.designed(5, 1, 1.0), "leave it out"),
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
    truth = torch.arange(6).repeat(10_000)
    excluded = labels.draw(truth, matrix, seed=1)
    # without true labels, from the most confident examples
    sure = torch.nn.functional.one_hot(truth, 6).float()
    guess = transitions.estimate_transition(sure, excluded).matrix
    torch.testing.assert_close(guess, matrix, atol=0.03, rtol=0)
    torch.testing.assert_close(guess.sum(1), torch.ones(6, dtype=torch.float64))


def test_anchor_transition_averages_exactly_the_surest_predictions_of_a_class():
    """Two classes of 3,000 with different labels; the less certain half of each has other labels and does not count."""
    sure = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.1, 0.9], [0.4, 0.6]]).repeat_interleave(1500, 0)
    row = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.7, 0.3], [0.2, 0.8]])
    excluded = torch.cat([torch.eye(2)[(torch.arange(1500) >= 1500 * float(r[0])).long()] for r in row])
    found = transitions.anchor_transition(sure, excluded, share=0.5)
    torch.testing.assert_close(found, row[[0, 2]].double(), atol=0.01, rtol=0)


# --- estimation by maximum likelihood -------------------------------------------------------------------------------


def soft_predictions(count, prior, seed):
    """(true classes [N], calibrated class probabilities [N, K]) of normal scores with a gain of 2.5 for the class."""
    truth = torch.multinomial(prior, count, replacement=True, generator=generator(seed, "truth"))
    scores = torch.randn(count, len(prior), generator=generator(seed, "scores")).double()
    scores[torch.arange(count), truth] += 2.5
    return truth, (2.5 * scores + prior.double().log()).softmax(1)  # the posterior of this model


SKEWED = torch.tensor([[0.05, 0.6, 0.25, 0.1], [0.2, 0.1, 0.1, 0.6], [0.45, 0.3, 0.0, 0.25], [0.1, 0.2, 0.68, 0.02]])


def test_classes_that_the_labels_do_not_tell_apart_are_exchangeable():
    truth = torch.arange(3).repeat_interleave(2000)
    matrix = torch.tensor([[0.06, 0.9, 0.04], [0.5, 0.0, 0.5], [0.45, 0.45, 0.1]])
    excluded = labels.draw(truth, matrix.double(), seed=0)
    found = transitions.estimate_transition(torch.nn.functional.one_hot(truth), excluded)
    assert found.exchangeable == [(0, 2)]


def test_estimate_transition_of_a_perfect_classifier_is_a_count():
    truth = torch.arange(4).repeat(900)
    excluded = labels.draw(truth, SKEWED.double(), seed=3)
    found = transitions.estimate_transition(torch.nn.functional.one_hot(truth, 4), excluded)
    counted = torch.stack([excluded[truth == k].double().mean(0) for k in range(4)])
    torch.testing.assert_close(found.unshrunk, counted, atol=1e-6, rtol=0)
    multinomial = (counted * (1 - counted) / 900).sqrt()
    torch.testing.assert_close(found.error, multinomial, rtol=0.05, atol=0.002)


@pytest.mark.parametrize("prior", [[1, 1, 1, 1], [5, 4, 3, 2]], ids=["balanced", "long tail"])
def test_estimate_transition_error_is_the_spread_over_draws(prior):
    found = []
    for seed in range(60):
        truth, probabilities = soft_predictions(3000, torch.tensor(prior) / sum(prior), seed)
        found.append(transitions.estimate_transition(probabilities, labels.draw(truth, SKEWED.double(), seed=seed)))
    values, errors = (torch.stack(v) for v in zip(*((f.unshrunk, f.error) for f in found), strict=True))
    inside = SKEWED > 0.15  # near 0 the constraint makes the spread smaller than the error
    bias = (values.mean(0) - SKEWED) / (values.std(0) / 60**0.5).clamp_min(1e-6)
    assert float(bias[inside].abs().max()) < 3.5
    ratio = errors.mean(0) / values.std(0)
    assert float(ratio[inside].min()) > 0.8
    assert float(ratio[inside].max()) < 1.3
    gradient = torch.randn(4, 4, generator=generator(1, "g")).double() * inside
    spread = (values * gradient).sum((1, 2)).std()
    error = sum(f.variance(gradient) for f in found) / len(found)
    assert error**0.5 == pytest.approx(float(spread), rel=0.3)


@pytest.mark.parametrize("name", ["uniform", "biased:10", "noisy:0.05"])
def test_estimate_transition_shrinks_simple_matrices(name):
    matrix = transitions.parse(name, 10)
    truth = torch.arange(10).repeat(300)
    found = transitions.estimate_transition(torch.nn.functional.one_hot(truth, 10), labels.draw(truth, matrix, seed=4))
    assert float((found.matrix - matrix).square().mean()) < 0.3 * float((found.unshrunk - matrix).square().mean())


def test_estimate_transition_keeps_what_the_labels_show():
    truth = torch.arange(4).repeat(5000)
    found = transitions.estimate_transition(torch.eye(4)[truth], labels.draw(truth, SKEWED.double(), seed=5))
    torch.testing.assert_close(found.matrix, found.unshrunk, atol=0.005, rtol=0)


def test_estimate_transition_of_rare_classes_invents_no_label_noise():
    """Audit A3: 310 anchor points for a class of 50 gave a diagonal of up to .11."""
    sizes = torch.tensor([5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50])
    truth = torch.arange(10).repeat_interleave(sizes)
    excluded, sure = labels.draw(truth, transitions.uniform(10), seed=6), torch.eye(10)[truth]
    for matrix in (
        transitions.anchor_transition(sure, excluded),
        transitions.estimate_transition(sure, excluded).matrix,
    ):
        assert float(matrix.diagonal().max()) < 1e-3
        torch.testing.assert_close(matrix, transitions.uniform(10), atol=0.03, rtol=0)


def test_estimate_transition_of_several_labels_is_the_marginal():
    truth, probabilities = soft_predictions(20_000, torch.ones(4) / 4, 0)
    matrix = transitions.biased(4, 4)
    found = transitions.estimate_transition(probabilities, labels.draw(truth, matrix, 2, seed=1))
    torch.testing.assert_close(found.matrix, labels.marginal(matrix, 2), atol=0.03, rtol=0)


def test_estimate_transition_separation_tells_singular_matrices():
    truth = torch.arange(10).repeat(2000)
    sure = torch.eye(10)[truth]
    separation = {
        name: transitions.estimate_transition(sure, labels.draw(truth, transitions.parse(name, 10))).separation
        for name in ("uniform", "noisy:0.05", "noisy:0.1")
    }
    assert separation["uniform"] > separation["noisy:0.05"] > 2 > separation["noisy:0.1"]


def test_estimates_of_a_class_without_examples_are_distributions():
    truth = torch.arange(3).repeat(500)
    excluded, sure = labels.draw(truth, transitions.uniform(4), seed=2), torch.eye(4)[truth]
    for matrix in (
        transitions.anchor_transition(sure, excluded),
        transitions.estimate_transition(sure, excluded).matrix,
    ):
        torch.testing.assert_close(matrix.sum(1), torch.ones(4, dtype=torch.float64))
        assert bool((matrix >= 0).all())


@pytest.mark.parametrize("text", ["[[0,1],[1", "[[0,1,1],[1]]", '[["a","b"],["c","d"]]'])
def test_parse_refuses_text_that_is_not_a_matrix(text):
    with pytest.raises(UserError, match="is not a matrix; expected rows of numbers"):
        transitions.parse(f"matrix:{text}", 2)
