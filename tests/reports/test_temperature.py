"""The temperature of a model, from answers of which some are wrong, against the one that was planted."""

import math

import numpy as np
import pytest
import torch

from complementary import labels, transitions
from complementary.reports.answers import with_errors
from complementary.reports.temperature import estimate_temperature

K = 4


def simulate(temperature, rate, count=1000, per_example=2, seed=0, yes=False):
    """Probabilities [N, K] of a model whose logits must be divided by ``temperature``, and answers [N, K]."""
    source = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(count, K, generator=source, dtype=torch.float64)
    truth = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    excluded = labels.draw(truth, with_errors(transitions.uniform(K), rate), per_example, seed)
    if yes:
        wrong = torch.rand(count, generator=source) < rate
        named = (truth + wrong * torch.randint(1, K, (count,), generator=source)) % K
        excluded = 1 - torch.nn.functional.one_hot(named, K)
    return excluded, (temperature * logits).softmax(1)


def estimates(temperature, rate, count=1000, **options):
    """Estimates of ten draws, and the mean error of the logarithm and its root mean square."""
    matrix, found = transitions.uniform(K), []
    for seed in range(10):
        excluded, probabilities = simulate(temperature, rate, count, seed=seed)
        found.append(estimate_temperature(excluded, probabilities, matrix, **options))
    errors = np.log([each.value / temperature for each in found])
    return found, float(errors.mean()), float(np.sqrt((errors**2).mean()))


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.6])
def test_temperature_is_recovered_whatever_share_of_the_answers_is_wrong(temperature, rate):
    """If the answers say little, the model is left as it is: the error is not above that of no calibration."""
    found, bias, error = estimates(temperature, rate)
    if rate <= 0.05:
        assert abs(bias) < 0.2
    assert error < max(0.33, abs(math.log(temperature)))
    assert sum(each.low <= temperature <= each.high for each in found) >= 8
    assert np.mean([each.rate for each in found]) == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize(
    ("temperature", "count", "known"), [(1.05, 10_000, True), (1.17, 10_000, True), (0.95, 4000, False)]
)
def test_interval_of_many_answers_is_narrow_and_contains_the_temperature(temperature, count, known):
    """The grid of temperatures must be finer than the interval: 1.05 and .95 are halfway between its first points."""
    found, bias, _ = estimates(temperature, 0.0, count, rate_known=known)
    widths = [math.log(each.high / each.low) for each in found]
    assert min(widths) > 0.02
    assert max(widths) < 0.4
    assert sum(each.low <= temperature <= each.high for each in found) >= 8
    if known:
        assert abs(bias) < 0.03


def test_few_answers_do_not_move_a_calibrated_model_far():
    """With 150 examples the maximum of the likelihood is off by a factor of 1.7 (root mean square)."""
    assert estimates(1.0, 0.05, 150)[2] < 0.35
    assert estimates(1.0, 0.0, 150)[2] < 0.25


def test_wrong_answers_do_not_count_as_overconfidence():
    """Negative control: with the false assumption that none is wrong, a calibrated model looks far too confident."""
    assert estimates(1.0, 0.05, rate_known=True)[1] > 0.5
    assert abs(estimates(1.0, 0.05)[1]) < 0.15


def test_known_rates_are_used():
    """The diagonal of the matrix says how many answers are wrong; a zero one does so if the labels were drawn."""
    for rate in (0.0, 0.05):
        matrix = with_errors(transitions.uniform(K), rate)
        excluded, probabilities = simulate(0.6, rate, 3000)
        found = estimate_temperature(excluded, probabilities, matrix, rate_known=True)
        assert (found.rate, found.rate_known) == (pytest.approx(rate), True)
        assert found.value == pytest.approx(0.6, rel=0.2)
        if rate:
            assert estimate_temperature(excluded, probabilities, matrix) == found


def test_yes_answers_have_a_rate_of_their_own():
    excluded, probabilities = simulate(0.6, 0.1, 1500, yes=True)
    found = estimate_temperature(excluded, probabilities, transitions.uniform(K))
    assert found.value == pytest.approx(0.6, rel=0.15)
    assert found.rate == pytest.approx(0.1, abs=0.03)


def test_text_names_the_direction():
    for temperature, wanted in ((0.4, "not confident enough"), (2.5, "is too confident"), (1.0, "allow both")):
        excluded, probabilities = simulate(temperature, 0.0, 2000)
        assert wanted in estimate_temperature(excluded, probabilities, transitions.uniform(K), rate_known=True).text()


def test_examples_without_answers_do_not_count():
    excluded, probabilities = simulate(0.6, 0.05, 400)
    wanted = estimate_temperature(excluded[:300], probabilities[:300], transitions.uniform(K))
    excluded[300:] = 0
    found = estimate_temperature(excluded, probabilities, transitions.uniform(K))
    assert found == wanted
    assert found.examples == 300
