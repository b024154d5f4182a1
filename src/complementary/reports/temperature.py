"""The temperature that calibrates a model, estimated from complementary labels of which some may be wrong.

A wrong answer looks like a confident mistake. If every answer were taken for right, a few wrong ones would make any
model look far too confident. So the rate of wrong answers is estimated with it, unless it is known.

A few hundred answers hardly determine both: the maximum of their likelihood is often a factor of 1.7 off. The estimate
is therefore the mean of the posterior, with a prior of the temperature that leaves the model as it is unless its
answers say otherwise, and averaged over the rates that are possible (docs/notes/estimates.md).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from complementary.reports.answers import LARGEST, is_yes, likelihood_of_classes, with_errors

WIDEST = 2.0  # log-temperatures that are tried first are up to this: temperatures from 0.14 to 7.4
POINTS, REFINEMENTS = 41, 3  # of the grid of log-temperatures; finer ones until it resolves the posterior
SPREAD = 0.5  # standard deviation of the prior of the log-temperature: 95 % are between 0.38 and 2.7
NONE_WRONG = 0.5  # prior probability that no answer is wrong; else all possible rates are equally likely
RATES = 16
MOST_ENTRIES = 500_000  # examples times classes; more would only take time


@dataclass(frozen=True)
class Temperature:
    """A temperature that calibrates a model: its logits are to be divided by it.

    Attributes:
        value: The temperature: above 1 the model is too confident, below 1 it is not confident enough.
        low: Lower end of the 95 % interval.
        high: Upper end.
        rate: Share of the answers that are taken for wrong.
        rate_known: Whether the transition matrix says so, else the rate was estimated, too.
        examples: Number of examples with answers that were used.
    """

    value: float
    low: float
    high: float
    rate: float
    rate_known: bool
    examples: int

    def text(self) -> str:
        """``0.72, 95 % interval 0.43 to 1.2 (…)``."""
        if self.low > 1:
            meaning = "the network is too confident"
        elif self.high < 1:
            meaning = "the network is not confident enough"
        else:
            meaning = "above 1 the network is too confident, below 1 not confident enough; the answers allow both"
        return f"{self.value:.2f}, 95 % interval {self.low:.2f} to {self.high:.2f} ({meaning})"


def estimate_temperature(
    excluded: Tensor, probabilities: Tensor, transition: Tensor, rate_known: bool = False
) -> Temperature:
    """Estimate the temperature that calibrates a model.

    Args:
        excluded: Complementary labels of examples that the model was not trained on, [N, K].
        probabilities: Its class probabilities for them, [N, K].
        transition: The transition matrix, [K, K].
        rate_known: Whether its diagonal is the rate of wrong answers; else the rate is estimated. A diagonal above zero
            is always taken for it.
    """
    matrix, given = transition.double().cpu(), excluded.double().cpu()
    rows = (given.sum(1) > 0).nonzero()[:, 0][: max(1, MOST_ENTRIES // len(matrix))]
    given, logs = given[rows], probabilities.double().cpu()[rows].clamp_min(1e-12).log()
    known = rate_known or float(matrix.diagonal().max()) > 0
    places = torch.linspace(-WIDEST, WIDEST, POINTS, dtype=torch.float64)
    for _ in range(1 + REFINEMENTS):
        posterior, rates = _posterior(places, logs, given, matrix, known)
        weight, step = posterior.softmax(0), float(places[1] - places[0])
        mean = float(weight @ places)
        deviation = math.sqrt(float(weight @ (places - mean).square()))
        if 2 * step <= deviation:
            break
        half = 4 * max(deviation, step)
        places = torch.linspace(mean - half, mean + half, POINTS, dtype=torch.float64)
    low, high = _quantile(places, weight, 0.025), _quantile(places, weight, 0.975)
    rate = float(weight @ rates)
    return Temperature(math.exp(mean), math.exp(low), math.exp(high), rate, known, len(rows))


def _posterior(places: Tensor, logs: Tensor, given: Tensor, matrix: Tensor, rate_known: bool) -> tuple[Tensor, Tensor]:
    """Logarithm of the posterior of each log-temperature up to a constant, and the mean rate of wrong answers there.

    Args:
        places: Log-temperatures, [P].
        logs: Logarithms of the class probabilities, [N, K].
        given: Complementary labels, [N, K].
        matrix: The transition matrix, [K, K].
        rate_known: Whether its diagonal is the rate.
    """
    posterior, rates = -places.square() / 2 / SPREAD**2, torch.zeros_like(places)
    if rate_known:
        own = float(matrix.diagonal().mean())
        return posterior + _log_likelihood(places, logs, given, [(matrix, own)])[:, 0], rates + own
    yes, shares = is_yes(given), (torch.arange(RATES, dtype=torch.float64) + 0.5) / RATES
    prior = torch.cat([torch.tensor([NONE_WRONG]), torch.full((RATES,), (1 - NONE_WRONG) / RATES)]).double().log()
    for part, highest in ((~yes, LARGEST / len(matrix)), (yes, LARGEST * (1 - 1 / len(matrix)))):
        if bool(part.any()):
            possible = torch.cat([torch.zeros(1, dtype=torch.float64), shares * highest])
            cases = [(with_errors(matrix, rate), rate) for rate in possible.tolist()]
            joint = _log_likelihood(places, logs[part], given[part], cases) + prior
            posterior = posterior + joint.logsumexp(1)
            rates = rates + joint.softmax(1) @ possible * float(part.double().mean())
    return posterior, rates


def _quantile(places: Tensor, weight: Tensor, level: float) -> float:
    """A quantile of a distribution with these weights [P] of cells around equidistant places [P]."""
    step = places[1] - places[0]
    edges = torch.cat([places[:1] - step / 2, places + step / 2])
    return float(np.interp(level, torch.cat([torch.zeros(1), weight.cumsum(0)]).numpy(), edges.numpy()))


def _log_likelihood(places: Tensor, logs: Tensor, given: Tensor, cases: list[tuple[Tensor, float]]) -> Tensor:
    """Log-likelihood of all answers, for every log-temperature and case: a matrix and the rate of "yes" answers."""
    found = torch.empty(len(places), len(cases), dtype=torch.float64)
    of_classes = [likelihood_of_classes(given, matrix, rate) for matrix, rate in cases]
    for row, log_temperature in enumerate(places.tolist()):
        prediction = (logs / math.exp(log_temperature)).log_softmax(1)
        for column, each in enumerate(of_classes):
            found[row, column] = (prediction + each).logsumexp(1).sum()
    return found
