"""The temperature that calibrates a model, estimated from complementary labels of which some may be wrong.

A wrong answer looks like a confident mistake. If every answer were taken for right, a few wrong ones would make any
model look too confident: with 5 classes, two answers per example and 5 % wrong ones, the temperature of a calibrated
model would be 5. So the rate of wrong answers is estimated with it, unless it is known.

A few hundred answers hardly determine both: the maximum of their likelihood is often a factor of 1.7 off. The estimate
is therefore the mean of the posterior, with a prior of the temperature that leaves the model as it is unless its
answers say otherwise, and averaged over the rates that are possible (docs/notes/estimates.md).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from complementary.reports.answers import LARGEST, is_yes, likelihood_of_classes, with_errors

LOG_TEMPERATURES = tuple(x / 10 for x in range(-20, 21))  # temperatures from 0.14 to 7.4
SPREAD = 0.5  # standard deviation of the prior of the log-temperature: 95 % are between 0.38 and 2.7
NONE_WRONG = 0.5  # prior probability that no answer is wrong; else all possible rates are equally likely
RATES = 16
MOST_ENTRIES = 2_000_000  # examples times classes; more would only take time


@dataclass(frozen=True)
class Temperature:
    """A temperature that calibrates a model: its logits are to be divided by it.

    Attributes:
        value: The temperature: above 1 the model is too confident, below 1 it is not confident enough.
        low: Lower end of the 95 % interval.
        high: Upper end.
        rate: Share of the answers that are taken for wrong.
        rate_known: Whether the transition matrix says so, else the rate was estimated, too.
        examples: Number of examples.
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
    matrix, count = transition.double().cpu(), len(excluded)
    given, logs = excluded.double().cpu(), probabilities.double().cpu().clamp_min(1e-12).log()
    rows = (given.sum(1) > 0).nonzero()[:, 0][: max(1, MOST_ENTRIES // len(matrix))]
    given, logs = given[rows], logs[rows]
    known, yes = rate_known or float(matrix.diagonal().max()) > 0, is_yes(given)
    posterior = torch.tensor([-(x**2) / 2 / SPREAD**2 for x in LOG_TEMPERATURES], dtype=torch.float64)
    rates = torch.zeros(len(LOG_TEMPERATURES), dtype=torch.float64)
    if known:
        own = float(matrix.diagonal().mean())
        posterior += _log_likelihood(logs, given, [(matrix, own)])[:, 0]
        rates += own
    else:
        shares = (torch.arange(RATES, dtype=torch.float64) + 0.5) / RATES
        prior = torch.cat([torch.tensor([NONE_WRONG]), torch.full((RATES,), (1 - NONE_WRONG) / RATES)]).double().log()
        for part, highest in ((~yes, LARGEST / len(matrix)), (yes, LARGEST * (1 - 1 / len(matrix)))):
            if bool(part.any()):
                possible = torch.cat([torch.zeros(1, dtype=torch.float64), shares * highest])
                cases = [(with_errors(matrix, rate), rate) for rate in possible.tolist()]
                joint = _log_likelihood(logs[part], given[part], cases) + prior
                posterior += joint.logsumexp(1)
                rates += joint.softmax(1) @ possible * float(part.double().mean())
    weight, places = posterior.softmax(0), torch.tensor(LOG_TEMPERATURES, dtype=torch.float64)
    low, high = (places[int((weight.cumsum(0) < level).sum())] for level in (0.025, 0.975))
    value = math.exp(float(weight @ places))
    return Temperature(value, math.exp(low), math.exp(high), float(weight @ rates), known, count)


def _log_likelihood(logs: Tensor, given: Tensor, cases: list[tuple[Tensor, float]]) -> Tensor:
    """Log-likelihood of all answers for every temperature and every case: a matrix and the rate of "yes" answers."""
    found = torch.empty(len(LOG_TEMPERATURES), len(cases), dtype=torch.float64)
    of_classes = [likelihood_of_classes(given, matrix, rate) for matrix, rate in cases]
    for row, log_temperature in enumerate(LOG_TEMPERATURES):
        prediction = (logs / math.exp(log_temperature)).log_softmax(1)
        for column, each in enumerate(of_classes):
            found[row, column] = (prediction + each).logsumexp(1).sum()
    return found
