"""Which encoder is better for these answers, judged without true labels.

A linear layer on the features of each encoder is cross-fitted: it predicts the answers of examples that it has not
seen. Few answers suit few features, so the layer gets the number of main components and the weight decay that predict
best. The encoder whose layer gives these answers the highest likelihood is the best one. The likelihood is a proper
score, so with enough answers this is the encoder whose features tell the classes apart best. All encoders are judged on
the same answers and parts, so that the difference of two encoders has a standard error.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.reports.confusions import Estimated, estimate_accuracy
from complementary.rng import generator

log = logging.getLogger(__name__)
MAX_EXAMPLES = 10_000  # more change the ranking little, and the time much
COMPONENTS = (32, 64, 256)  # numbers of main components of the features, and
DECAYS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # penalties of the weights; the best ones are taken for each encoder
LENGTH = 6.0  # of an average vector, which the decays suit
CLEAR = 3.0  # standard errors between the best encoder and the next: they do not contain the variance of the training


@dataclass(frozen=True)
class EncoderScore:
    """How well one encoder does.

    Attributes:
        name: The encoder.
        score: Mean log-likelihood of the answers of an example that the layer has not seen; higher is better.
        behind: How far it is behind the best one, with the standard error of this difference.
        accuracy: Estimated accuracy of the linear layer.
    """

    name: str
    score: float
    behind: Estimated
    accuracy: Estimated


@dataclass(frozen=True)
class EncoderComparison:
    """Encoders, the best one first.

    Attributes:
        scores: The encoders.
        winner: The best one if it is clearly better than the next, else None.
        examples: Number of examples that were used.
    """

    scores: list[EncoderScore]
    winner: str | None
    examples: int

    def verdict(self) -> str:
        """The result as a sentence."""
        best, *others = self.scores
        if not others:
            return f"{best.name} is the only encoder."
        next_one = others[0]
        gap, error = next_one.behind
        margin = f"{gap:.4f} ± {error:.4f} nats per example ahead of {next_one.name}"
        if self.winner is not None:
            return f"{best.name} is the best encoder for these answers: {margin}."
        if gap <= 0 or not math.isfinite(error) or error == 0:
            return f"There is no clear winner: {best.name} and {next_one.name} do equally well."
        needed = math.ceil(self.examples * (CLEAR * error / gap) ** 2)
        more = f", or about {needed:,} examples" if needed < 100 * self.examples else ""
        return f"There is no clear winner: {best.name} is {margin}. A decision needs a larger difference{more}."


def compare_encoders(
    features: dict[str, Tensor],
    excluded: Tensor,
    transition: Tensor,
    *,
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> EncoderComparison:
    """Compare encoders by how well a linear layer on their features predicts unseen answers.

    Args:
        features: Vectors of the same examples for each encoder: name -> [N, D].
        excluded: Complementary labels, [N, K].
        transition: Transition matrix of the labels, [K, K].
        folds: Parts of the cross-fit.
        seed: Determines the parts and, for more than 10,000 examples, the sample.
        progress: Called with the name of each encoder before it is judged.
    """
    if not features:
        raise UserError("There is no encoder to compare; name at least two.", "compare")
    counts = {name: len(vectors) for name, vectors in features.items()}
    if set(counts.values()) != {len(excluded)}:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise UserError(f"There are {len(excluded)} examples with answers, but features of {listed}.", "compare")
    source = generator(seed, "compare")
    chosen = torch.randperm(len(excluded), generator=source)[:MAX_EXAMPLES].sort().values
    if len(chosen) < 2 * folds:
        raise UserError(f"There are {len(chosen)} examples; a comparison of encoders needs at least {2 * folds}.")
    part = torch.randperm(len(chosen), generator=source) % folds
    given, matrix = excluded[chosen].cpu().double(), transition.cpu().double()
    each, accuracy = dict[str, Tensor](), dict[str, Estimated]()
    for name, vectors in features.items():
        progress(name)
        predicted = cross_fit_linear(reduce(vectors[chosen].float().cpu()), given, matrix, part).predicted
        each[name] = _likelihood(predicted, given, matrix)
        accuracy[name] = estimate_accuracy(predicted.argmax(1), given, matrix)
    order = sorted(each, key=lambda name: -float(each[name].mean()))
    best = each[order[0]]
    rows = [
        EncoderScore(name, float(each[name].mean()), _difference(best, each[name]), accuracy[name]) for name in order
    ]
    clear = len(rows) > 1 and rows[1].behind.value > CLEAR * rows[1].behind.error
    return EncoderComparison(rows, order[0] if clear else None, len(chosen))


def _difference(best: Tensor, other: Tensor) -> Estimated:
    """Mean and standard error of paired differences, [N] each."""
    difference = best - other
    return Estimated(float(difference.mean()), float(difference.std()) / math.sqrt(len(difference)))


def reduce(points: Tensor) -> Tensor:
    """The main components of vectors [N, D], at most 256, the largest first; centered, and of a common length."""
    points = points - points.mean(0)
    count = min(COMPONENTS[-1], *points.shape)
    if points.shape[1] > COMPONENTS[-1]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _, _, main = torch.pca_lowrank(points, count, center=False)
    else:
        main = torch.linalg.eigh(points.T.double() @ points.double()).eigenvectors.flip(1)[:, :count].float()
    points = points @ main
    length = (points**2).sum(1).mean().sqrt().clamp_min(1e-12)
    return LENGTH * points / length  # one scale for all features: those of small variance are mostly noise


@dataclass(frozen=True)
class LinearFit:
    """A cross-fitted linear layer.

    Attributes:
        predicted: Class probabilities of examples that the layer has not seen, float64 [N, K].
        components: Number of features that predict the answers best, and
        decay: the decay.
    """

    predicted: Tensor
    components: int
    decay: float


def cross_fit_linear(points: Tensor, given: Tensor, matrix: Tensor, part: Tensor) -> LinearFit:
    """Out-of-sample predictions of a linear layer, with the features and the decay that predict the answers best.

    Args:
        points: Features, [N, D], as `reduce` scales them.
        given: Complementary labels, [N, K].
        matrix: Transition matrix, [K, K].
        part: The part of each example, int [N]; it is predicted by a layer that was fitted to the other parts.
    """
    given, matrix = given.double(), matrix.double()

    def fit(count: int, decay: float) -> LinearFit:
        return LinearFit(_cross_fit(points[:, :count], given, matrix, part, decay), count, decay)

    def best(found: list[LinearFit]) -> LinearFit:
        return max(found, key=lambda each: float(_likelihood(each.predicted, given, matrix).mean()))

    few, usual, many = (min(count, points.shape[1]) for count in COMPONENTS)
    first = best([fit(usual, decay) for decay in DECAYS])
    place = DECAYS.index(first.decay)  # the best decays for other numbers of features are near
    further = [fit(few, decay) for decay in DECAYS[place : place + 2] if few < usual]
    further += [fit(many, decay) for decay in DECAYS[max(0, place - 1) : place + 1] if many > usual]
    return best([first, *further])


def _cross_fit(points: Tensor, given: Tensor, matrix: Tensor, part: Tensor, decay: float) -> Tensor:
    predicted = torch.zeros(len(points), given.shape[1], dtype=torch.float64)
    for fold in range(int(part.max()) + 1):
        rest, own = part != fold, part == fold
        weight, bias = fit_linear(points[rest], given[rest].float(), matrix.float(), decay)
        predicted[own] = (points[own] @ weight + bias).double().softmax(1)
    return predicted


def fit_linear(points: Tensor, given: Tensor, matrix: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Fit a linear layer to answers by maximum likelihood, with L-BFGS.

    Args:
        points: Features, [N, D].
        given: Complementary labels, float [N, K].
        matrix: Transition matrix, [K, K].
        decay: Penalty of the squared weights.

    Returns:
        Weight [D, K] and bias [K].
    """

    def loss(logits: Tensor) -> Tensor:
        return -_likelihood(logits.softmax(1), given, matrix).mean()

    return minimize_linear(points, given.shape[1], loss, decay, 40)


def minimize_linear(
    points: Tensor, classes: int, loss: Callable[[Tensor], Tensor], decay: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Minimize a loss of the logits of a linear layer by L-BFGS, from weights of 0.

    Args:
        points: Features, [N, D].
        classes: K.
        loss: Maps logits [N, K] to a scalar.
        decay: Penalty of the squared weights.
        steps: Most iterations.

    Returns:
        Weight [D, K] and bias [K].
    """
    weight = torch.zeros(points.shape[1], classes, device=points.device, requires_grad=True)
    bias = torch.zeros(classes, device=points.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        objective = decay * weight.square().sum() + loss(points @ weight + bias)
        objective.backward()
        return objective

    optimizer.step(closure)
    return weight.detach(), bias.detach()


def _likelihood(predicted: Tensor, given: Tensor, matrix: Tensor) -> Tensor:
    """Mean log-likelihood of the answers of each example, [N]: the negative of SCEL."""
    share = given / given.sum(1, keepdim=True).clamp_min(1)
    return (share * (predicted @ matrix.to(predicted.dtype) + 1e-6).log()).sum(1)
