"""Unbiased risks: equal to the ordinary risk in expectation; corrections of negative partial risks."""

import itertools

import pytest
import torch

from complementary import transitions
from complementary.errors import UserError
from complementary.losses import LOSSES, ure_ga, ure_nn, ure_t, ure_tga, ure_tnn
from complementary.losses.unbiased import invert
from complementary.rng import generator
from tests.losses.references import FIXED, FIXED_LABELS, mean

LOGITS = 2 * torch.randn(5, 5, generator=generator(0, "logits"))
TRUTH = torch.tensor([0, 1, 2, 3, 4])
MATRICES = {
    "uniform": transitions.uniform(5),
    "biased": transitions.biased(5, 10),
    "noisy": transitions.noisy(5, 0.04),
}


def expected(loss, matrix, several=1):
    """The mean loss over all labels that each example can have, with their probabilities: [B]."""
    total = torch.zeros(len(LOGITS))
    if several == 1:
        for k in range(5):
            total += matrix[TRUTH, k].float() * loss(LOGITS, torch.eye(5)[k].expand(5, 5))
        return total
    sets = list(itertools.combinations(range(5), several))
    for i, y in enumerate(TRUTH.tolist()):
        allowed = [s for s in sets if y not in s]  # uniform labels, distinct
        for s in allowed:
            row = torch.zeros(1, 5)
            row[0, list(s)] = 1
            total[i] += loss(LOGITS[i : i + 1], row)[0] / len(allowed)
    return total


def ordinary():
    return -LOGITS.log_softmax(1)[torch.arange(5), TRUTH]


@pytest.mark.parametrize("name", MATRICES)
def test_ure_t_is_the_cross_entropy_of_the_truth_in_expectation(name):
    matrix = MATRICES[name]
    found = expected(lambda logits, labels: ure_t(logits, labels, matrix), matrix)
    torch.testing.assert_close(found, ordinary(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("several", [1, 2, 3, 4])
def test_ure_is_the_cross_entropy_of_the_truth_in_expectation(several):
    torch.testing.assert_close(expected(LOSSES["ure"], MATRICES["uniform"], several), ordinary(), rtol=1e-4, atol=1e-4)


def test_ure_is_biased_if_labels_are():
    assert float((expected(LOSSES["ure"], MATRICES["biased"]) - ordinary()).abs().max()) > 0.1


def test_ure_with_shares_does_not_depend_on_how_often_a_batch_has_a_label():
    pairs = [(y, k) for y in range(5) for k in range(5) if k != y]  # all labels of all examples: the population
    more = pairs + [(y, k) for y, k in pairs if k == 0] * 3
    share, found = torch.full((5,), 0.2), []
    for chosen in (pairs, more):
        logits, labels = LOGITS[[y for y, _ in chosen]], torch.eye(5)[[k for _, k in chosen]]
        found += [mean(LOSSES["ure"](logits, labels, share=share), labels), mean(LOSSES["ure"](logits, labels), labels)]
    torch.testing.assert_close(found[0], ordinary().mean(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-4)
    assert float((found[3] - found[1]).abs()) > 0.1


def test_gradient_ascent_with_shares_descends_at_the_start_of_training():
    """Without them, the noise of counting labels makes some partial risk negative in most batches."""
    logits, share = torch.zeros(500, 10), torch.full((10,), 0.1)
    labels = torch.eye(10)[torch.randint(10, (500,), generator=generator(0, "start"))]
    assert float(mean(ure_ga(logits, labels, share=share), labels)) == pytest.approx(
        float(torch.tensor(10.0).log()), rel=1e-4
    )
    assert float(mean(ure_ga(logits, labels), labels)) < 1


def test_ure_with_the_uniform_matrix_is_that_without():
    uniform = transitions.uniform(4)
    for plain, given in (("ure", "ure-t"), ("ure-nn", "ure-tnn"), ("ure-ga", "ure-tga")):
        found = LOSSES[given](FIXED, FIXED_LABELS, uniform)
        torch.testing.assert_close(found, LOSSES[plain](FIXED, FIXED_LABELS), rtol=1e-5, atol=1e-5)


def test_ure_corrections_equal_the_published_formula():
    """Theorem 1 of Ishida et al. at these logits, in float64. Others find 0.5893 and 0.1639 (the authors' code, whose
    weights differ if labels are not equally frequent) and 1.4867 and 0.5407 (libcll, which splits by label)."""
    assert float(mean(ure_nn(FIXED, FIXED_LABELS), FIXED_LABELS)) == pytest.approx(1.6301, abs=5e-5)
    assert float(mean(ure_ga(FIXED, FIXED_LABELS), FIXED_LABELS)) == pytest.approx(0.6841, abs=5e-5)


def gradient(loss, logits, labels):
    logits = logits.clone().requires_grad_()
    mean(loss(logits, labels), labels).backward()
    return logits.grad


def test_gradient_ascent_is_the_negative_gradient_of_the_negative_risks():
    """Algorithm 1 of the paper flips the gradient in the optimizer; here the loss itself has the flipped gradient."""
    logits = FIXED.clone().requires_grad_()
    inverse = torch.linalg.inv(transitions.uniform(4)).float()
    risks = ((FIXED_LABELS.float() @ inverse) * -logits.log_softmax(1)).mean(0)
    assert float(risks.detach().min()) < 0 < float(risks.detach().max())
    risks.clamp_max(0).sum().backward()
    torch.testing.assert_close(gradient(ure_ga, FIXED, FIXED_LABELS), -logits.grad, rtol=1e-4, atol=1e-6)


def test_gradient_ascent_without_a_negative_risk_is_the_plain_risk():
    logits, labels = torch.zeros(4, 4), torch.eye(4)  # every R_k is log(4) / 4
    torch.testing.assert_close(gradient(ure_ga, logits, labels), gradient(LOSSES["ure"], logits, labels))
    torch.testing.assert_close(ure_ga(logits, labels), LOSSES["ure"](logits, labels))


def test_non_negative_risk_is_never_negative_and_the_free_one_is():
    logits = FIXED * 3
    for labels in (FIXED_LABELS, FIXED_LABELS.roll(1, 0), FIXED_LABELS.roll(1, 1)):
        assert float(mean(ure_nn(logits, labels), labels)) >= 0
        assert float(mean(ure_tnn(logits, labels, transitions.biased(4, 10)), labels)) >= 0
    unlikely = torch.eye(4)[logits.argmin(1)]
    assert float(mean(LOSSES["ure"](logits, unlikely), unlikely)) < 0


def test_singular_matrix_is_named_before_training():
    singular = transitions.noisy(10, 0.1)
    with pytest.raises(UserError, match=r"ure-tga.*rank 1 of 10") as error:
        ure_tga(torch.zeros(2, 10), torch.eye(10)[:2], singular)
    assert error.value.option == "transition"


def test_invert_is_the_inverse():
    matrix = transitions.biased(6, 20)
    torch.testing.assert_close(invert(matrix).double() @ matrix, torch.eye(6).double(), atol=1e-5, rtol=0)
