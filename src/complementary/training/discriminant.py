"""A linear classifier in closed form, from averaged complementary labels (``fit = neighbors`` or ``discriminant``).

A complementary label of many classes carries little information (.0145 bits for 100 classes), and a network that
minimizes a loss fits the noise of such labels. Here labels are averaged before anything is fitted:

1. The labels of an example's neighbors and its own labels give class probabilities (pseudo-labels), aligned with the
   class prior.
2. Linear discriminant analysis is fitted to the pseudo-labels: one mean per class, one covariance within classes.
3. Its predictions enter the pseudo-labels, and it is fitted again.

With ``discriminant``, the predictions of a linear layer that was trained by gradients enter from the first fit on,
later their geometric mean with those of the discriminant. This is for long tails: for examples of a rare class, the
layer predicts larger classes, because few labels contradict that. The mean of a class does not depend on its size.

A fit is an epoch of the training loop: it is evaluated, selected and checkpointed like one. True labels are not used.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import networks
from complementary.clusters.compare import minimize_linear
from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.errors import UserError
from complementary.training.evidence import evidence_of_neighbors, log_likelihood
from complementary.training.task import Task, class_prior
from complementary.training.trainer import Trainer

NEIGHBORS = 150  # see `usual_neighbors`
ALIGNMENTS = 20, 1_000  # fewest and most iterations of `align`
ALIGNED = 1e-3  # largest difference between mean and prior at which `align` stops
CHUNK = 8192  # examples whose products are added in float32; the sums are float64
LAYER_DECAY, LAYER_STEPS = 0.01, 100  # weight decay and most iterations of `fit_layer`
MOST_FEATURES = 16_384  # the covariance of so many has 2 GB in float64


class DiscriminantTrainer(Trainer):
    """The closed form as a training loop: one step per epoch, `TrainingConfig.total_epochs` epochs.

    Args:
        config: The configuration.
        task: Its examples and labels, with features or vectors as inputs.
        device: The device, or the engine that computes.
        processes: The processes that share the work; rank 0 alone fits.

    Attributes:
        layer: The training of the linear layer that the first fit starts from; None: it uses labels alone.
        start: Class probabilities of the training examples of this process by that layer, [n, K].
    """

    def __init__(
        self, config: Config, task: Task, device: str | torch.device | Engine, processes: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        batch = len(task.train) // processes.world_size * processes.world_size
        engine = dataclasses.replace(Engine.of(device), capture=False)  # solving equations needs synchronization
        epochs = config.training.total_epochs
        super().__init__(config, task, engine, processes, epochs=epochs, batch=max(2, batch))
        self.log_prior = 0.0  # of the loss, which is not minimized
        self._check()
        usual = max(1, usual_neighbors(len(task.train), len(task.classes))) if config.training.fit == "neighbors" else 0
        self.neighbors = config.pseudo_labels.neighbors or usual
        self.layer: Trainer | None = None
        self.start: Tensor | None = None
        self.evidence: Tensor | None = None  # of this process, [n, K]

    def begin(self, probabilities: Tensor, layer: Trainer | None = None) -> None:
        """Start from the class probabilities of the training examples of all processes, [N, K], by a linear layer."""
        self.start, self.layer = probabilities[self.processes.shard()].to(self.device), layer

    def build_network(self) -> networks.Network:
        """A linear model, unless the configuration names another, which is refused."""
        task, kind = self.task, self.config.network
        if kind.model != "auto":
            return super().build_network()
        return networks.build("linear", task.shape, len(task.classes), self.config.seed)

    def build_average(self) -> None:
        """Nothing is averaged: each fit is a solution in closed form."""

    def _check(self) -> None:
        """Raise if a discriminant cannot be fitted."""
        fit = self.config.training.fit
        if self.model.kind != "linear":
            raise UserError(
                f"fit = {fit} fits a linear model, but the model is {self.model.kind}; set model to linear, or fit "
                "to gradient.",
                "fit",
            )
        if self.mixer is not None:
            raise UserError(f"fit = {fit} does not mix examples, but mix is {self.config.mixing.mix}; use none.", "mix")
        if self.criterion.decoder() is not None:
            raise UserError(
                f"fit = {fit} fits classes, but the loss {self.config.training.loss} predicts labels; use another "
                "loss.",
                "loss",
            )
        if self.model.fc.in_features > MOST_FEATURES:
            raise UserError(
                f"fit = {fit} needs the covariance of all features, and there are {self.model.fc.in_features:,}; "
                f"at most {MOST_FEATURES:,} are possible. Use an encoder, or set fit to gradient.",
                "fit",
            )

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """Fit the discriminant to all examples -> their loss with it."""
        excluded = self.task.excluded.float()
        if self.evidence is None:
            found = evidence_of_neighbors(self, wanted=self.neighbors) if self.neighbors else None
            self.evidence = torch.zeros_like(excluded) if found is None else found[self.processes.shard()]
        parts = (self.features(self.task.train), excluded, self.evidence, self._predictions())
        gathered = [self.processes.all_gather(part, self.examples) for part in parts]
        fc = self.model.fc
        fitted = self._fit(*gathered) if self.processes.is_main else (fc.weight.detach(), fc.bias.detach(), fc.bias * 0)
        weight, bias, log_share = map(self.processes.broadcast, fitted)
        with torch.no_grad():
            fc.weight.copy_(weight)
            fc.bias.copy_(bias)
        logits = self.outputs(self.task.train) - self.criterion.log_prior
        losses = self.processes.all_gather(self.loss(logits, excluded), self.examples)
        if self.config.is_balanced:
            with torch.no_grad():
                fc.bias.sub_(log_share)
            self.log_prior = log_share
        return self.mean_loss(losses, gathered[1])[0]

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | ({"log_prior": self.log_prior} if isinstance(self.log_prior, Tensor) else {})

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        if "log_prior" in tensors:
            self.log_prior = tensors["log_prior"].to(self.device)

    def _predictions(self) -> Tensor:
        """Logarithm of the class probabilities of the examples of this process so far, [n, K]; 0 in the first fit."""
        own = (self.outputs(self.task.train) + self.log_prior).log_softmax(1) if self.epoch else None
        start = None if self.start is None else self.start.clamp_min(1e-6).log()
        known = [part for part in (start, own) if part is not None]
        return torch.stack(known).mean(0) if known else torch.zeros_like(self.task.excluded.float())

    def _fit(
        self, vectors: Tensor, excluded: Tensor, evidence: Tensor, predicted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weights [K, D], biases [K], and the logarithm of the share of each class [K], which is part of the biases.

        Args:
            vectors: Features, [N, D].
            excluded: Complementary labels, [N, K].
            evidence: Log-likelihood of the labels of the neighbors, [N, K].
            predicted: Logarithm of the class probabilities so far, [N, K]; 0: there are none.
        """
        transition, first = self.task.transition, self.start is None and not self.epoch
        prior = class_prior(self.config, excluded, transition, (evidence if first else predicted).softmax(1))
        pseudo_labels = align(predicted + evidence + log_likelihood(excluded, transition), prior.share.to(vectors))
        return *fit_discriminant(vectors, pseudo_labels), pseudo_labels.mean(0).log()


# --- pure functions -------------------------------------------------------------------------------------------------


def usual_neighbors(examples: int, classes: int) -> int:
    """Neighbors whose labels count, if the user does not say: at most half of a class of average size."""
    return min(NEIGHBORS, examples // (2 * classes))


def align(logits: Tensor, prior: Tensor) -> Tensor:
    """Class probabilities whose mean over the examples is the class prior.

    A factor per class is found by iteration: softmax(logits + b) has the mean ``prior``. Most inputs converge within
    the 20 iterations that always run; a few confident examples need up to some hundred.

    Args:
        logits: [N, K].
        prior: Share of each class, [K].

    Returns:
        float [N, K].
    """
    offset = torch.zeros_like(prior)
    fewest, most = ALIGNMENTS
    for iteration in range(most):
        mean = (logits + offset).softmax(1).mean(0)
        if iteration >= fewest and (mean - prior).abs().max() < ALIGNED:
            break
        offset = offset + (prior / mean.clamp_min(1e-12)).log()
    return (logits + offset).softmax(1)


def fit_discriminant(vectors: Tensor, pseudo_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis with soft labels.

    The covariance within classes is shrunk to a multiple of the identity by the rule of Chen et al. (2010), "Shrinkage
    algorithms for MMSE covariance estimation" (OAS), which has no parameter; without its terms of order 1 / D, as in
    scikit-learn.

    Args:
        vectors: Features, [N, D].
        pseudo_labels: Class probabilities of each example, [N, K].

    Returns:
        Weights float32 [K, D] and biases float32 [K]: the logits of features x are x @ weights.T + biases.
    """
    count, features = vectors.shape
    center = vectors.mean(0)
    total, sums = (
        torch.zeros(n, features, dtype=torch.float64, device=vectors.device) for n in (features, len(pseudo_labels[0]))
    )
    for rows, known in zip(vectors.split(CHUNK), pseudo_labels.split(CHUNK), strict=True):
        x = rows - center
        total += x.T @ x
        sums += known.to(x.dtype).T @ x
    share = pseudo_labels.double().mean(0).clamp_min(1e-12)
    means = sums / (count * share[:, None])
    within = total / count - (means.T * share) @ means
    scale = within.diagonal().mean().clamp_min(1e-12)
    identity = torch.eye(features, dtype=torch.float64, device=vectors.device)
    amount = _shrinkage(within, count)
    weights = torch.linalg.solve((1 - amount) * within + (amount + 1e-9) * scale * identity, means.T).T
    biases = share.log() - (weights * means).sum(1) / 2 - weights @ center.double()
    return weights.float(), biases.float()


def fit_layer(vectors: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """A linear layer with small weights that predicts given class probabilities.

    Cross-entropy with the probabilities plus `LAYER_DECAY` / 2 times the squared norm of the weights, which is convex,
    minimized by L-BFGS.

    Args:
        vectors: Features, [N, D].
        probabilities: Class probabilities of each example, [N, K].

    Returns:
        Weights [K, D] and biases [K].
    """

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, probabilities)

    weight, bias = minimize_linear(vectors, probabilities.shape[1], loss, LAYER_DECAY / 2, LAYER_STEPS)
    return weight.T.contiguous(), bias


def _shrinkage(covariance: Tensor, count: int) -> float:
    """OAS: the weight of the identity, from the covariance [D, D] of ``count`` examples."""
    squares, squared_trace = float(covariance.square().sum()), float(covariance.trace()) ** 2
    excess = (count + 1) * (squares - squared_trace / len(covariance))
    return 1.0 if excess <= 0 else min(1.0, (squares + squared_trace) / excess)
