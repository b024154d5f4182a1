"""All losses against slow references of their formulas, and against values of libcll; finite for all finite logits."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from complementary import transitions
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.losses.registry import LOSS_METHODS
from tests.losses.references import FIXED, FIXED_LABELS, KINDS, LOGITS, MATRIX, PRIOR, SLOW, mean, partial_risks

LINEAR = [name for name, method in LOSS_METHODS.items() if method.several == "sum" and name != "s-nl-w"]  # see there


def slow(name, logits, excluded, matrix=MATRIX, prior=PRIOR):
    return SLOW[name](logits.tolist(), excluded.tolist(), matrix.tolist(), prior.tolist())


def test_losses_have_an_entry_in_the_registry_and_a_reference():
    assert list(LOSSES) == list(LOSS_METHODS) == list(SLOW)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_equals_its_formula(name, kind):
    excluded = torch.tensor(KINDS[kind])
    found = LOSSES[name](LOGITS, excluded, MATRIX, PRIOR)
    assert found.shape == (3,)
    assert found.dtype == torch.float32
    assert float(mean(found, excluded)) == pytest.approx(slow(name, LOGITS, excluded), rel=2e-5, abs=1e-6)
    assert found[excluded.sum(1) == 0].abs().sum() == 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["one-hot", "multi-hot", "soft", "some without"])
def test_loss_gradient_equals_that_of_its_formula(name, kind):
    logits, excluded, step = LOGITS.clone().requires_grad_(), torch.tensor(KINDS[kind]), 1e-5
    mean(LOSSES[name](logits, excluded, MATRIX, PRIOR), excluded).backward()
    wanted = np.zeros((3, 5))
    for i, k in np.ndindex(3, 5):
        ends = []
        for sign in (1, -1):
            moved = LOGITS.double().clone()
            moved[i, k] += sign * step
            ends.append(slow(name, moved, excluded))
        wanted[i, k] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(logits.grad.numpy(), wanted, rtol=3e-4, atol=3e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(sorted(LOSSES)), st.integers(2, 7), st.integers(1, 5))
def test_loss_equals_its_formula_for_any_logits_and_labels(data, name, classes, batch):
    size = 6 if name.startswith("s-nl") else 12  # 1 - p is rounded in float32 and loses digits where p is nearly 1
    numbers = st.lists(st.floats(-size, size, width=32), min_size=classes, max_size=classes)
    logits = torch.tensor([data.draw(numbers) for _ in range(batch)])
    hot = st.lists(st.integers(0, classes - 1), min_size=0, max_size=classes - 1, unique=True)
    excluded = torch.zeros(batch, classes)
    for row in excluded:
        row[data.draw(hot)] = 1
    matrix, prior = transitions.biased(classes, 7), transitions.biased(classes, 5)[0] * 0.5 + 0.5 / classes
    found = float(mean(LOSSES[name](logits, excluded, matrix, prior), excluded))
    wanted = slow(name, logits, excluded, matrix, prior)
    slack = 0.1 if name.startswith("s-nl") else 1e-3 if name.startswith("ure") else 1e-4
    if name in ("ure-ga", "ure-tga"):  # not continuous: a partial risk of 0 may be rounded to either side
        used = matrix if name == "ure-tga" else transitions.uniform(classes)
        assume(min(map(abs, partial_risks(logits.tolist(), excluded.tolist(), used.tolist()))) > 1e-4)
    assert found == pytest.approx(wanted, rel=2e-3, abs=slack)


EXTREMES = torch.tensor(
    [[1e4, -1e4, 0, 0], [-1e4, 1e4, 1e4, 1e4], [1e4] * 4, [-1e4] * 4, [0, 0, 0, -1e4], [1e4, 9.9e3, 0, 1]]
)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_loss_and_gradient_are_finite_for_huge_logits(name, dtype):
    for label in ([1.0, 0, 0, 0], [1, 1, 1, 0], [0.2, 0.3, 0.5, 0], [1, 1, 1, 1], [0.0] * 4):
        logits = EXTREMES.clone().to(dtype).requires_grad_()
        excluded = torch.tensor(label).expand(6, 4)
        loss = LOSSES[name](logits, excluded, transitions.uniform(4), torch.full((4,), 0.25))
        loss.sum().backward()
        assert loss.dtype == torch.float32
        assert bool(torch.isfinite(loss).all())
        assert bool(torch.isfinite(logits.grad).all())
        if not any(label):
            assert bool((loss == 0).all() and (logits.grad == 0).all())


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_computed_in_float32_for_half_precision_logits(name):
    logits, excluded = LOGITS.bfloat16(), torch.tensor(KINDS["soft"])
    wanted = LOSSES[name](logits.float(), excluded, MATRIX, PRIOR)
    assert torch.equal(LOSSES[name](logits, excluded, MATRIX, PRIOR), wanted)
    assert torch.equal(LOSSES[name](logits, excluded.double(), MATRIX.double(), PRIOR.double()), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        inside = LOSSES[name](logits, excluded, MATRIX, PRIOR)
    assert torch.equal(inside, wanted)


@pytest.mark.parametrize("name", LINEAR)
def test_loss_of_several_labels_is_the_sum_over_labels(name):
    both = torch.tensor([[1, 0, 1, 0, 0]] * 3, dtype=torch.uint8)
    each = [torch.tensor([row] * 3, dtype=torch.uint8) for row in ([1, 0, 0, 0, 0], [0, 0, 1, 0, 0])]
    torch.testing.assert_close(
        LOSSES[name](LOGITS, both, MATRIX, PRIOR), sum(LOSSES[name](LOGITS, one, MATRIX, PRIOR) for one in each)
    )


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"cpe-i", "ure-ga", "ure-tga"}))
def test_loss_gradient_step_makes_the_excluded_class_less_likely(name):
    """Not so cpe-i, which predicts the label itself, and gradient ascent on a batch with a negative risk."""
    logits = torch.zeros(1, 4, requires_grad=True)
    excluded = torch.tensor([[0.0, 1, 0, 0]])
    LOSSES[name](logits, excluded, transitions.uniform(4), torch.full((4,), 0.25)).sum().backward()
    assert float((logits.detach() - logits.grad).softmax(1)[0, 1]) < 0.25


@pytest.mark.parametrize("name", LOSSES)
def test_loss_works_on_many_heads_at_once(name):
    heads = torch.stack([FIXED, -FIXED, FIXED.flip(0)])
    matrix, prior = transitions.uniform(4).float(), torch.full((4,), 0.25)
    options = {"inverse": torch.linalg.inv(matrix)} if LOSS_METHODS[name].matrix == "inverted" else {}
    together = torch.vmap(lambda one: LOSSES[name](one, FIXED_LABELS, matrix, prior, **options))(heads)
    for one, found in zip(heads, together, strict=True):
        torch.testing.assert_close(found, LOSSES[name](one, FIXED_LABELS, matrix, prior, **options))


BIASED, EQUAL = transitions.biased(4, 10), torch.full((4,), 0.25)
# libcll 1.0: the training_step of each strategy, its formulas evaluated once in float64 at FIXED, with the uniform
# matrix unless it is named, class_priors = shares of the labels in the batch
LIBCLL = {
    "s-nl": (0.4141208348, 1),
    "s-exp": (1.3256247665, 1),
    "fwd": (1.5933599039, 1),  # SCL-FWD and FWD, biased matrix
    "dm": (1.7234453832, 1),
    "op-w": (0.8756186974, 1),  # its OP is the weighted one
    "mcl-mae": (8.4549518955, 1 / 6),  # it adds up the batch of 6
    "mcl-exp": (17.5561235389, 1 / 12),  # and takes twice the published factor
    "mcl-log": (14.9084223913, 1 / 12),
    "ure": (0.9459481899, 1),
    "ure-t": (-0.1604378235, 1),
    "cpe-i": (2.3542815232, 1),
    "cpe-f": (1.5933599039, 1),
    "cpe-t": (1.5933599039, 1),
    "scarce": (2.9207263931, 1),  # with its prior of 1/K
}


@pytest.mark.parametrize("name", LIBCLL)
def test_loss_equals_that_of_libcll(name):
    value, factor = LIBCLL[name]
    found = mean(LOSSES[name](FIXED, FIXED_LABELS, BIASED, EQUAL), FIXED_LABELS)
    assert float(found) == pytest.approx(value * factor, rel=5e-6)  # it adds 1e-6 inside logarithms


def test_pc_is_that_of_libcll_up_to_the_constants_of_the_paper():
    found = mean(LOSSES["pc"](FIXED, FIXED_LABELS), FIXED_LABELS)
    assert float(found) == pytest.approx(3 * 1.1836101672 - 6 + 3, rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_logits_of_the_wrong_width_are_named(name):
    with pytest.raises(UserError, match=r"\[3, 4\].*\[3, 5\]"):
        LOSSES[name](torch.zeros(3, 4), torch.ones(3, 5), transitions.uniform(4), torch.full((4,), 0.25))


NEEDY = [(n, "transition") for n, m in LOSS_METHODS.items() if m.matrix in ("required", "inverted", "learned")]
NEEDY += [(n, "prior") for n, m in LOSS_METHODS.items() if m.prior]


@pytest.mark.parametrize(("name", "what"), NEEDY)
def test_loss_requires_what_the_registry_says(name, what):
    given = {"transition": MATRIX, "prior": PRIOR} | {what: None}
    with pytest.raises(UserError, match=rf"{name} .*{what}"):
        LOSSES[name](LOGITS, torch.tensor(KINDS["soft"]), **given)
    wrong = {"transition": transitions.uniform(4), "prior": torch.ones(4)}
    with pytest.raises(UserError, match=rf"{name}.*\[4"):
        LOSSES[name](LOGITS, torch.tensor(KINDS["soft"]), **(given | {what: wrong[what]}))


@pytest.mark.parametrize("name", LOSSES)
def test_loss_ignores_what_the_registry_says_is_not_used(name):
    method, excluded = LOSS_METHODS[name], torch.tensor(KINDS["one-hot"])
    wanted = LOSSES[name](LOGITS, excluded, MATRIX, PRIOR)
    if method.matrix in ("not used", "for decoding"):
        assert torch.equal(LOSSES[name](LOGITS, excluded, None, PRIOR), wanted)
    if not method.prior:
        assert torch.equal(LOSSES[name](LOGITS, excluded, MATRIX, None), wanted)
