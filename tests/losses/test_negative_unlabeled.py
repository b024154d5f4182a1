"""SCARCE: the one-versus-rest risk of the truth, without the absolute value, in expectation; the prior matters."""

import pytest
import torch
import torch.nn.functional as F

from complementary import transitions
from complementary.losses import scarce
from complementary.rng import generator
from tests.losses.references import mean

PRIOR = torch.tensor([0.5, 0.3, 0.2])
# a population of 10 inputs with their true classes; every wrong class is a label once for each input
TRUTH = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
LOGITS = torch.randn(10, 3, generator=generator(1, "logits"))
INPUTS = LOGITS.repeat_interleave(2, 0)
LABELS = torch.stack([torch.eye(3)[k] for y in TRUTH.tolist() for k in range(3) if k != y])


def one_versus_rest():
    truth = F.one_hot(TRUTH, 3).float()
    return float(F.binary_cross_entropy_with_logits(LOGITS, truth, reduction="none").sum(1).mean())


def test_scarce_is_the_ordinary_risk_over_the_whole_population():
    """All labels with their frequencies are one batch; no absolute value is taken of a negative number then."""
    assert float(mean(scarce(INPUTS, LABELS, None, PRIOR), LABELS)) == pytest.approx(one_versus_rest(), rel=1e-5)


def test_scarce_with_two_labels_is_the_ordinary_risk():
    both = 1 - F.one_hot(TRUTH, 3)
    assert float(mean(scarce(LOGITS, both, None, PRIOR), both)) == pytest.approx(one_versus_rest(), rel=1e-5)


def test_scarce_with_equal_priors_is_wrong_for_classes_of_different_size():
    """What libcll and the published code compute."""
    found = float(mean(scarce(INPUTS, LABELS, None, torch.full((3,), 1 / 3)), LABELS))
    assert abs(found - one_versus_rest()) > 0.02


def test_scarce_does_not_depend_on_how_often_a_label_is_given():
    """Labels 0 are given twice as often as others, to all examples alike: the risk stays the same."""
    rows = LABELS.argmax(1)
    more = torch.cat([torch.arange(20), (rows == 0).nonzero()[:, 0]])
    weight = torch.bincount(more, minlength=20).float()[:, None]
    found = scarce(INPUTS, LABELS * weight, None, PRIOR)
    assert float(mean(found, LABELS)) == pytest.approx(one_versus_rest(), rel=1e-5)


def test_scarce_prior_is_estimated_from_labels():
    from complementary import labels, priors

    truth = torch.arange(3).repeat_interleave(torch.tensor([5000, 3000, 2000]))
    uniform = transitions.uniform(3)
    found = priors.from_labels(labels.draw(truth, uniform, 1, seed=0), uniform)
    torch.testing.assert_close(found.share, PRIOR, atol=0.04, rtol=0)
