"""Class priors from complementary labels: unbiased counts, EM with a classifier, and their combination."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, priors, transitions
from complementary.errors import UserError
from complementary.rng import generator


def long_tail(ratio: float, head: int = 5000, classes: int = 10) -> torch.Tensor:
    """True classes of an exponential long tail, int [N]."""
    sizes = [int(head * ratio ** (-k / (classes - 1))) for k in range(classes)]
    return torch.repeat_interleave(torch.arange(classes), torch.tensor(sizes))


def classifier(truth: torch.Tensor, separation: float, seed: int) -> torch.Tensor:
    """Calibrated probabilities [N, K] of Gaussian classes: their log-likelihood ratio is known exactly."""
    share = torch.bincount(truth) / len(truth)
    scores = torch.randn(len(truth), len(share), generator=torch.Generator().manual_seed(seed))
    scores[torch.arange(len(truth)), truth] += separation
    return (separation * scores + share.log()).softmax(1)


@pytest.mark.parametrize("name", ["uniform", "biased"])
def test_from_labels_is_unbiased_by_enumeration(name):
    matrix = transitions.uniform(4) if name == "uniform" else transitions.biased(4, 10)
    share = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    distribution = share @ matrix.double()
    excluded = torch.eye(4, dtype=torch.uint8).repeat_interleave((1e5 * distribution).round().long(), 0)
    torch.testing.assert_close(priors.from_labels(excluded, matrix).share.double(), share, atol=1e-3, rtol=0)


def test_error_of_from_labels_is_the_spread_over_draws():
    truth, matrix = long_tail(10, 1000, 5), transitions.uniform(5)
    found = [priors.from_labels(labels.draw(truth, matrix, seed=seed), matrix) for seed in range(200)]
    spread = torch.stack([prior.share for prior in found]).std(0)
    claimed = torch.stack([prior.error for prior in found]).mean(0)
    assert (claimed / spread).tolist() == pytest.approx([1] * 5, abs=0.25)


def test_estimate_of_balanced_classes_is_uniform_unless_labels_contradict_it():
    truth, matrix = long_tail(1), transitions.uniform(10)
    exact = 0
    for seed in range(20):
        prior = priors.estimate(classifier(truth, 1.5, seed), labels.draw(truth, matrix, seed=seed), matrix)
        exact += torch.allclose(prior.share, torch.full((10,), 0.1))
    assert exact >= 16, "at the 5 % level, about 19 of 20"


@pytest.mark.parametrize(("ratio", "sharpness"), [(8, 1.0), (8, 0.6), (1, 0.6)])
def test_error_of_the_estimate_covers_the_true_shares(ratio, sharpness):
    truth, matrix = long_tail(ratio, 1000), transitions.uniform(10)
    share, distances = torch.bincount(truth) / len(truth), []
    for seed in range(30):
        probabilities = classifier(truth, 2.0, seed).pow(sharpness)
        prior = priors.estimate(
            probabilities / probabilities.sum(1, keepdim=True), labels.draw(truth, matrix, seed=seed), matrix
        )
        distances.append((prior.share - share).abs() / prior.error)
    assert float((torch.stack(distances) > 2).double().mean()) < 0.1


def test_estimate_from_yes_answers_for_many_classes_is_the_true_share():
    truth = torch.repeat_interleave(torch.arange(200), torch.linspace(1, 20, 200).round().long())
    excluded = 1 - torch.nn.functional.one_hot(truth)
    found = priors.estimate(torch.full((len(truth), 200), 1 / 200), excluded, transitions.uniform(200))
    assert (found.share * len(truth)).tolist() == pytest.approx(torch.bincount(truth).tolist(), rel=0.05, abs=0.3)


def test_estimate_finds_a_long_tail_better_than_counts():
    truth, matrix = long_tail(100), transitions.uniform(10)
    share = torch.bincount(truth) / len(truth)
    errors = []
    for seed in range(3):
        excluded = labels.draw(truth, matrix, seed=seed)
        both = priors.estimate(classifier(truth, 2.0, seed), excluded, matrix), priors.from_labels(excluded, matrix)
        errors.append([float((prior.share / share).log().abs().mean()) for prior in both])
    with_classifier, counts = np.mean(errors, 0)
    assert with_classifier < 0.1 < counts


def test_estimate_of_a_long_tail_is_hardly_shrunk_towards_equal_shares():
    """A head that is too small would be aligned with classes that are nearly empty."""
    truth, matrix = long_tail(100), transitions.uniform(10)
    share = torch.bincount(truth) / len(truth)
    for seed in range(3):
        excluded = labels.draw(truth, matrix, seed=seed)
        found = priors.estimate(classifier(truth, 3.0, seed), excluded, matrix).share
        assert float(found[0] / share[0]) == pytest.approx(1, abs=0.03)


def test_estimate_follows_the_labels_if_the_classifier_is_biased():
    truth, matrix = long_tail(10, 5000, 4), transitions.uniform(4)
    share = torch.bincount(truth) / len(truth)
    excluded = labels.draw(truth, matrix, seed=0)
    wrong = torch.full((len(truth), 4), 0.25)
    wrong[:, 3] = 0.4  # says that a rare class is common
    found = priors.estimate(wrong / wrong.sum(1, keepdim=True), excluded, matrix).share
    assert float((found - share).abs().max()) < 0.05


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 12), st.integers(1, 40), st.integers(0, 10_000))
def test_any_labels_give_positive_shares_with_sum_one(classes, count, seed):
    random = torch.Generator().manual_seed(seed)
    excluded = torch.eye(classes, dtype=torch.uint8)[torch.randint(classes, (count,), generator=random)]
    probabilities = torch.rand(count, classes, generator=random).softmax(1)
    for prior in (
        priors.from_labels(excluded, transitions.uniform(classes)),
        priors.estimate(probabilities, excluded, transitions.uniform(classes)),
    ):
        assert float(prior.share.min()) > 0
        assert float(prior.share.sum()) == pytest.approx(1, abs=1e-5)


def test_singular_transition_gives_no_error():
    matrix = torch.full((4, 4), 0.25)
    excluded = torch.eye(4, dtype=torch.uint8)
    assert priors.from_labels(excluded, matrix).share.tolist() == pytest.approx([0.25] * 4)
    assert priors.from_labels(excluded, matrix).error.isnan().all()
    assert priors.estimate(torch.full((4, 4), 0.25), excluded, matrix).error.isnan().all()


def test_given_prior_needs_one_share_per_class():
    assert priors.given((0.5, 0.25, 0.25), 3).share.tolist() == pytest.approx([0.5, 0.25, 0.25])
    with pytest.raises(UserError, match="2 shares"):
        priors.given((0.5, 0.5), 3)


def test_error_of_a_class_that_is_never_predicted_is_that_of_the_counts():
    """Examples of the last class are taken for the first one: predictions say nothing about its share."""
    random = generator(0, "lost")
    share = torch.tensor([0.3, 0.2, 0.2, 0.15, 0.09, 0.06])
    truth = torch.multinomial(share, 6000, replacement=True, generator=random)
    excluded = labels.draw(truth, transitions.uniform(6), seed=1)
    predicted = torch.where(truth == 5, 0, truth)
    probabilities = 0.97 * torch.eye(6)[predicted] + torch.tensor([0.006] * 5 + [0.0])
    found = priors.estimate(probabilities, excluded, transitions.uniform(6))
    counts = priors.from_labels(excluded, transitions.uniform(6))
    assert float(found.share[5]) < 0.02, "the share itself is lost"
    assert float(found.error[5]) == pytest.approx(float(counts.error[5]), rel=0.05)
    assert abs(float(found.share[5]) - 0.06) < 3 * float(found.error[5])
