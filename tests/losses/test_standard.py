"""Losses against slow references written from their formulas; finite for all finite logits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import transitions
from complementary.errors import UserError
from complementary.losses import LOSSES, dm, fwd, s_exp, s_nl
from complementary.rng import dirichlet, generator


def softmax(row):
    top = max(row)
    parts = [math.exp(v - top) for v in row]
    return [p / sum(parts) for p in parts]


def slow_s_nl(row, t, matrix):
    return -sum(tk * math.log(1 - pk + 1e-6) for tk, pk in zip(t, softmax(row), strict=True))


def slow_s_exp(row, t, matrix):
    return sum(tk * math.exp(pk) for tk, pk in zip(t, softmax(row), strict=True))


def slow_fwd(row, t, matrix):
    p = softmax(row)
    predicted = [sum(p[y] * matrix[y][k] for y in range(len(p))) for k in range(len(p))]
    return -sum(tk * math.log(max(q, 1e-8)) for tk, q in zip(t, predicted, strict=True))


def slow_dm(row, t, matrix):
    s = [1 - p for p in softmax(row)]
    log_q = [math.log(q) for q in softmax(s)]
    first = -sum(tk * lq for tk, lq in zip(t, log_q, strict=True))
    return first - sum(tk * sk * lq for tk, sk, lq in zip(t, s, log_q, strict=True)) / (len(row) - 1)


SLOW = {"s-nl": slow_s_nl, "s-exp": slow_s_exp, "fwd": slow_fwd, "dm": slow_dm}
KINDS = {
    "one-hot": [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]],
    "multi-hot": [[0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 1, 0, 1]],
    "soft": [[0, 0.3, 0.7, 0, 0], [0.1, 0.2, 0.3, 0.4, 0], [0.5, 0, 0, 0, 0]],
    "zero": [[0.0] * 5] * 3,
}
LOGITS = torch.tensor([[0.5, -1, 2, 0, 1], [3, 0, -3, 1, -1], [0, 0, 0, 0, 0.0]])
MATRIX = transitions.biased(5, 10)


def test_losses_lists_the_four_losses():
    assert list(LOSSES.items()) == [("s-nl", s_nl), ("s-exp", s_exp), ("fwd", fwd), ("dm", dm)]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_equals_its_formula(name, kind):
    excluded = torch.tensor(KINDS[kind])
    found = LOSSES[name](LOGITS, excluded, MATRIX)
    wanted = [SLOW[name](row, t, MATRIX.tolist()) for row, t in zip(LOGITS.tolist(), excluded.tolist(), strict=True)]
    assert found.shape == (3,)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_gradient_equals_that_of_its_formula(name, kind):
    logits, excluded, step = LOGITS.clone().requires_grad_(), KINDS[kind], 1e-5
    LOSSES[name](logits, torch.tensor(excluded), MATRIX).sum().backward()
    for i, row in enumerate(LOGITS.tolist()):
        for k in range(5):
            up, down = ([v + sign * step * (j == k) for j, v in enumerate(row)] for sign in (1, -1))
            slope = SLOW[name](up, excluded[i], MATRIX.tolist()) - SLOW[name](down, excluded[i], MATRIX.tolist())
            assert float(logits.grad[i, k]) == pytest.approx(slope / (2 * step), rel=2e-4, abs=2e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(sorted(LOSSES)), st.integers(2, 8))
def test_loss_equals_its_formula_for_any_logits_and_labels(data, name, classes):
    row = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=classes, max_size=classes))
    t = data.draw(st.lists(st.floats(0, 1, width=32), min_size=classes, max_size=classes))
    matrix = transitions.biased(classes, 7)
    found = float(LOSSES[name](torch.tensor([row]), torch.tensor([t]), matrix))
    # if p is nearly 1, the rounding of 1 - p in float32 is 6 % of the 1e-6 that is added to it
    slack = 0.07 * sum(t) if name == "s-nl" else 1e-4
    assert found == pytest.approx(SLOW[name](row, t, matrix.tolist()), rel=1e-4, abs=slack)
    assert found >= -1e-5  # s-nl can be slightly negative because of the 1e-6 in the logarithm


EXTREMES = torch.tensor(
    [[1e4, -1e4, 0, 0], [-1e4, 1e4, 1e4, 1e4], [1e4] * 4, [-1e4] * 4, [0, 0, 0, -1e4], [1e4, 9.9e3, 0, 1]]
)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("label", [[1.0, 0, 0, 0], [1, 1, 1, 0], [0.2, 0.3, 0.5, 0], [0, 0, 0, 0]], ids=str)
def test_loss_and_gradient_are_finite_for_huge_logits(name, dtype, label):
    logits = EXTREMES.clone().to(dtype).requires_grad_()
    excluded = torch.tensor(label).expand(6, 4)
    loss = LOSSES[name](logits, excluded, transitions.uniform(4))
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert bool(torch.isfinite(loss).all())
    assert bool(torch.isfinite(logits.grad).all())
    if not any(label):
        assert bool((loss == 0).all() and (logits.grad == 0).all())


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_computed_in_float32_for_half_precision_logits(name):
    logits, excluded = LOGITS.bfloat16(), torch.tensor(KINDS["soft"])
    wanted = LOSSES[name](logits.float(), excluded, MATRIX)
    assert torch.equal(LOSSES[name](logits, excluded, MATRIX), wanted)
    assert torch.equal(LOSSES[name](logits, excluded.double(), MATRIX.float()), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        inside = LOSSES[name](logits, excluded, MATRIX)
    assert torch.equal(inside, wanted)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_several_labels_is_the_sum_over_labels(name):
    both = torch.tensor([[1, 0, 1, 0, 0]] * 3, dtype=torch.uint8)
    each = [torch.tensor([row] * 3, dtype=torch.uint8) for row in ([1, 0, 0, 0, 0], [0, 0, 1, 0, 0])]
    torch.testing.assert_close(
        LOSSES[name](LOGITS, both, MATRIX), sum(LOSSES[name](LOGITS, one, MATRIX) for one in each)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_loss_gradient_step_makes_the_excluded_class_less_likely(name):
    logits = torch.zeros(1, 4, requires_grad=True)
    excluded = torch.tensor([[0.0, 1, 0, 0]])
    LOSSES[name](logits, excluded, transitions.uniform(4)).sum().backward()
    assert float((logits.detach() - logits.grad).softmax(1)[0, 1]) < 0.25


def test_fwd_requires_a_transition_matrix():
    with pytest.raises(UserError, match=r"fwd .*transition"):
        fwd(LOGITS, torch.tensor(KINDS["soft"]))


@pytest.mark.parametrize("matrix", [transitions.uniform(5), transitions.noisy(5, 0.3), transitions.biased(5, 10)])
def test_fwd_is_minimal_at_the_true_class(matrix):
    """Proper loss: averaged over the labels of class 2, no prediction has a smaller loss than certainty of class 2."""
    grid = torch.cat([torch.eye(5)[2:3], dirichlet(1.0, (500, 5), LOGITS.device, generator(0, "grid"))])
    logits = grid.clamp_min(1e-9).log()
    cost = sum(float(matrix[2, k]) * fwd(logits, torch.eye(5)[k].expand(501, 5), matrix) for k in range(5))
    assert float(cost[0]) <= float(cost[1:].min()) + 1e-5
