"""Self-training: fine-tune a network on soft pseudo-labels from its predictions and complementary labels.

One step:

1. A teacher, the EMA of the network, predicts a weakly augmented view. The remembered prediction of each example moves
   towards it.
2. The remembered prediction times the likelihood of the complementary labels (Bayes' rule) is the posterior. Aligned
   with the class prior and sharpened, it is the pseudo-label. For a balanced population only the evidence is sharpened,
   not the prior: otherwise small classes are lost.
3. The network learns the pseudo-labels, and the complementary labels, from strongly augmented and mixed inputs.

With ``neighbors``, the labels of similar examples are part of the likelihood. These are found several times during the
training, in the features that the network has at that time.

If the first predictions are not those of the network (a ``student``, or an encoder after a discriminant), it learns
them for a fifth of the epochs. Only then are the remembered predictions updated.

The teacher at the end is the result, unless held-out labels clearly contradict it: then that of an earlier epoch. True
labels are not used.
"""

import copy
import functools
import logging
import math
from typing import Any

import torch
from torch import Tensor

from complementary import networks, priors, scores
from complementary.augment import auto
from complementary.augment.crop import normalize
from complementary.config import Config
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import set_lr
from complementary.losses import LOSSES, Loss
from complementary.mixing import GroupMixup
from complementary.training.evidence import evidence_of_neighbors, log_likelihood
from complementary.training.fine_tuning import highest_mlp_lr, suitable_lr
from complementary.training.selection import Selection, entropy, is_as_good_as_the_best, last_sound_epoch
from complementary.training.task import Task, build_mixer
from complementary.training.trainer import Trainer

log = logging.getLogger(__name__)
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4  # of SGD
WARM_UP = 2  # epochs
PERIOD = 1 / 2  # of the cosine: the learning rate ends at 0
ALIGNMENT = 0.99  # decay of the running mean of the posteriors
NEW_MLP_LR = 0.1  # of a student on features (docs/notes/long-tails.md)
DISTILLED = 0.2  # share of the epochs in which a network learns the predictions of another classifier
HIGHEST_FACTOR = 1.5  # of the alignment for a balanced population; see `alignment_factors`
SEARCHES = 8  # neighbors are found again after each such part of the training, in the features at that time
LATE = 3  # of these searches can use clusters; earlier features are not good enough (docs/notes/long-tails.md)
COLLAPSED = 0.5  # class coverage


class SelfTrainer(Trainer):
    """The training loop of self-training.

    Args:
        config: The configuration.
        task: The task, with the inputs of the network.
        network: The network to start from.
        device: The device, or the engine that computes.
        processes: The processes that share the work.
        encoder: The encoder that the network was initialized with, if any; a resumed run checks that it is the same.
        learns_start: Whether the first predictions are those of another classifier, so that the network learns them
            before it updates them.

    Attributes:
        teacher: EMA of the network. It is evaluated, and its weights are the result.
        memory: Remembered class probabilities of the training examples of all processes, float [N, K].
        mean_posterior: Running mean of the posteriors, float [K].
        prior: Class prior that the pseudo-labels are aligned with, float [K].
        log_prior: Added to the logits in training: the logarithm of the prior if ``balanced``, else 0; float [K].
        evidence: What the labels of neighbors say about the training examples of all processes, a log-likelihood
            [N, K]; empty without ``neighbors``.
        log_likelihood: Of the labels of the examples of this process and of their neighbors, float [n, K].
        update_rate: Weight of new predictions in the remembered ones, float []; 0 while the network learns the first
            predictions.
        before: Metrics of the classifier that self-training started from.
    """

    stage, lr_option = "self-training, ", "self_training_lr"
    log_prior: Tensor

    def __init__(
        self,
        config: Config,
        task: Task,
        network: networks.Network,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
        encoder: FrozenEncoder | None = None,
        learns_start: bool = False,
    ) -> None:
        p, self.start, self.encoder, self.learns_start = config.pseudo_labels, network, encoder, learns_start
        usual = NEW_MLP_LR if p.student == "mlp" else suitable_lr(network)
        usual = min(usual, highest_mlp_lr(network, config.training.batch))
        self.lr = usual if p.self_training_lr is None else p.self_training_lr
        super().__init__(config, task, device, processes, epochs=p.self_training)
        classes = len(task.classes)
        self.memory = torch.full((self.examples, classes), 1 / classes, device=self.device)
        self.mean_posterior = torch.full((classes,), 1 / classes, device=self.device)
        self.prior = torch.full((classes,), 1 / classes, device=self.device)
        self.log_prior = torch.zeros(classes, device=self.device)
        self.update_rate = torch.zeros((), device=self.device)
        self.evidence = torch.zeros_like(self.memory) if p.neighbors else torch.zeros(0, classes, device=self.device)
        self.log_likelihood = log_likelihood(self.task.excluded, self.task.transition)
        self.before: dict[str, Any] = {}
        kind = "fwd" if config.training.loss in ("fwd", "fwd-la") else "s-nl"  # log_prior is added to the logits
        self.loss = functools.partial(self.engine.compiled(pseudo_label_loss), LOSSES[kind])
        self.to_pseudo_labels = functools.partial(self.engine.compiled(pseudo_labels), p.temperature)

    def begin(
        self, probabilities: Tensor, prior: priors.Prior, before: dict[str, Any], evidence: Tensor | None = None
    ) -> None:
        """Start from the predictions [N, K] of a classifier.

        Args:
            probabilities: Its class probabilities for the training examples of all processes, [N, K].
            prior: The class prior.
            before: Its metrics, which are reported in the result.
            evidence: What the labels of neighbors say about these examples, a log-likelihood [N, K].
        """
        if evidence is not None:
            self._set_evidence(evidence)
        errors = [None if math.isnan(error) else error for error in prior.error.tolist()]
        self.before = before | {"prior": prior.share.tolist(), "prior_error": errors}
        self.prior.copy_(prior.share)
        if self.config.is_balanced:
            self.log_prior.copy_(self.prior.log())
            if self.config.pseudo_labels.student == "same":  # the sum must predict what the first classifier predicts
                with torch.no_grad():
                    for network in (self.model, self.teacher):
                        network.fc.bias.sub_(self.log_prior)
        self.memory.copy_(probabilities)
        own = self.memory[self.processes.shard()].log() + self.log_likelihood
        self.mean_posterior.copy_(self.processes.all_gather(own.softmax(1), self.examples).mean(0))

    # --- the step ---------------------------------------------------------------------------------------------------

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        self.model.train()
        weak, strong = self.views(index, random, batch)
        targets = torch.cat([self.task.excluded[index].float(), self.update_pseudo_labels(index, weak)], 1)
        if self.mixer is not None:
            draw = self.mixer.draw(len(index), self.device, random)
            strong, targets = self.mix(self.mixer, strong, targets, self.task.cluster, index, draw, random)
        with self.engine.autocast():
            logits = self.forward(self.model, strong)
        loss = self.loss(logits, targets, self.log_prior, self.loss_transition).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        loss = self.processes.average_gradients(self.model, loss.detach())
        self.optimizer.step()
        networks.update_average(self.teacher, self.model, self.config.pseudo_labels.teacher_ema)
        return loss

    def views(self, index: Tensor, random: torch.Generator, batch: Tensor | None) -> tuple[Tensor, Tensor]:
        """A weakly and a strongly augmented view of the examples at ``index`` int [B], each [B, ...] and normalized."""
        inputs, positions = self.locate(index, batch)
        if self.augment is None:
            x = normalize(inputs[positions], self.task.mean, self.task.std)
            noise = torch.randn(x.shape, device=self.device, generator=random)
            return x, x + self.config.pseudo_labels.noise * noise
        weak, strong = (
            self.take(self.augment, inputs, positions, self.augment.draw(len(index), self.device, random))
            for _ in range(2)
        )
        strong = strong if self.policy is None else self.policy(strong, random)
        return normalize(weak, self.task.mean, self.task.std), normalize(strong, self.task.mean, self.task.std)

    @torch.no_grad()
    def update_pseudo_labels(self, index: Tensor, weak: Tensor) -> Tensor:
        """Update the remembered predictions of the examples at ``index`` int [B] -> their pseudo-labels [B, K]."""
        self.teacher.eval()
        with self.engine.autocast():
            logits = self.forward(self.teacher, weak)
        parts = (self.processes.global_rows(index), logits.float())
        rows, logits = (self.processes.all_gather_batch(part) for part in parts)
        predicted = (logits + self.log_prior).softmax(1)
        remembered = self.memory[rows].lerp(predicted, self.update_rate)
        self.memory.index_copy_(0, rows, remembered)
        likelihood = self.processes.all_gather_batch(self.log_likelihood[index])
        found, posterior = self.to_pseudo_labels(remembered, likelihood, self.alignment(), self.log_prior)
        self.mean_posterior.lerp_(posterior.mean(0), 1 - ALIGNMENT)
        return self.processes.own_part(found)

    def alignment(self) -> Tensor:
        """Factors that align the mean of the posteriors with the prior, [K]."""
        if not self.config.pseudo_labels.align:
            return torch.ones_like(self.prior)
        return alignment_factors(
            self.prior, self.mean_posterior, HIGHEST_FACTOR if self.config.is_balanced else math.inf
        )

    def on_epoch_start(self) -> None:
        """Find the neighbors again where this is due: features improve in the training, and with them the neighbors."""
        super().on_epoch_start()
        options, due = self.config.pseudo_labels, search_epochs(self.epochs)
        fixed = not options.neighbors or self.model.kind == "linear"
        if not fixed and not self._distills and self.epoch in due:
            late = self.epoch in due[-LATE:]
            self._set_evidence(evidence_of_neighbors(self, options.neighborhood if late else "nearest"))

    def _set_evidence(self, evidence: Tensor) -> None:
        """In place, because a captured step refers to the tensors."""
        self.evidence.copy_(evidence)
        labels = log_likelihood(self.task.excluded, self.task.transition)
        self.log_likelihood.copy_(labels + self.evidence[self.processes.shard()])

    @property
    def _distills(self) -> bool:
        """Whether the network still learns the predictions of another classifier."""
        return self.learns_start and self.epoch < DISTILLED * self.epochs

    def on_step_start(self) -> None:
        """Set the learning rate (linear warm-up, then a part of a cosine) and the rate of the memory."""
        self.update_rate.fill_(0.0 if self._distills else 1 - self.config.pseudo_labels.memory)
        warm_up = min(1.0, (self.global_step + 1) / (WARM_UP * self.steps_per_epoch))
        done = self.global_step / (self.epochs * self.steps_per_epoch)
        set_lr(self.optimizer.param_groups[0], self.lr * warm_up * math.cos(math.pi * PERIOD * done))

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Any]:
        """The metrics of `Trainer`, and the state of the pseudo-labels.

        ``confidence`` is the mean of the largest remembered probability. ``class_coverage`` is the effective number of
        classes (the exponential of the entropy of the mean prediction) divided by that of the prior; it should be near
        1.
        """
        mean = self.memory.mean(0)
        coverage = float((entropy(mean) - entropy(self.prior)).exp())
        if coverage < COLLAPSED and not any(row.get("class_coverage", 1) < COLLAPSED for row in self.history):
            log.warning(
                "Self-training may be collapsing: at epoch %d the predictions cover only %.0f %% of the expected "
                "number of classes. If this stays so, the result may be worse than the classifier it started from. "
                "Try a better encoder, a lower self_training_lr, or a transition matrix that fits.",
                self.epoch + 1,
                100 * coverage,
            )
        found = super().evaluate() | {"class_coverage": coverage, "confidence": float(self.memory.max(1).values.mean())}
        self._warn_if_worse(found)
        return found

    def _warn_if_worse(self, found: dict[str, Any]) -> None:
        """Warn when held-out labels contradict the present epoch for the first time."""
        epoch, selected = self.epoch + 1, found.get("selected", self.epoch + 1)
        if selected < epoch and not any(row.get("selected", row["epoch"]) < row["epoch"] for row in self.history):
            log.warning(
                "Self-training became worse: by the held-out labels the accuracy is %.1f %% at epoch %d, and was %.1f "
                "%% at epoch %d. If this stays so, that epoch is the result. Rare classes, a poor encoder or a "
                "transition matrix that does not fit can be the cause.",
                100 * found["estimated_accuracy"],
                epoch,
                100 * self.history[selected - 1]["estimated_accuracy"],
                selected,
            )

    def _select(self, selection: Selection, table: Tensor, part: Tensor | slice) -> dict[str, Any]:
        """Select the last epoch, because the pseudo-labels improve to the end.

        If held-out labels clearly contradict it, select the last epoch that they do not contradict.
        """
        found = super()._select(selection, table, part)
        if "selected" in found:
            found["selected"] = last_sound_epoch(*self._correctness(part))
        return found

    def _is_candidate(self) -> bool:
        return len(self.task.validation) > 0 and is_as_good_as_the_best(*self._correctness(slice(None)))

    def _correctness(self, part: Tensor | slice) -> tuple[Tensor, float]:
        """`scores.correctness` of the validation examples of a part in all epochs so far, [E, V'], and its range."""
        part = part.cpu() if isinstance(part, Tensor) else part
        excluded, matrix = self.task.validation_excluded.cpu()[part], self.task.transition.cpu()
        every_class = torch.arange(excluded.shape[1])[:, None].expand(-1, len(excluded))
        possible = scores.correctness(every_class, excluded, matrix)
        predicted = self.validation_predictions[: self.epoch + 1, part]
        return scores.correctness(predicted, excluded, matrix), float(possible.max() - possible.min())

    @torch.no_grad()
    def mirrored_accuracy(self) -> float | None:
        """Test accuracy if each image is predicted together with its mirror image; None where that makes no sense."""
        test, truth = self.task.test_inputs, self.task.test_truth
        if self.augment is None or not self.augment.flip or test is None or truth is None:
            return None
        both = self.logits(test) + self.logits(test.flip(-1))
        return float((both.argmax(1) == truth).double().mean())

    # --- parts ------------------------------------------------------------------------------------------------------

    def build_network(self) -> networks.Network:
        """The network to start from."""
        return copy.deepcopy(self.start)

    def build_average(self) -> networks.Network:
        """The teacher: an average whatever the option ``ema`` of the first classifier says."""
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        return self.teacher

    def build_optimizer(self) -> torch.optim.Optimizer:
        """SGD with Nesterov momentum."""
        weights, rate = self.model.parameters(), self.lr_value(self.lr)
        return torch.optim.SGD(weights, rate, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True, fused=True)

    def build_augmentation(self) -> tuple[Any, Any]:
        """Crop and flip for the weak view; the policy of self-training for the strong one."""
        augment, _ = super().build_augmentation()
        name = self.config.pseudo_labels.self_training_policy
        return augment, None if augment is None else auto.build(name, self.task.mean.tolist())

    def build_mixer(self) -> GroupMixup | None:
        """The mixer of self-training. Partners come from the batch: only there are pseudo-labels computed."""
        p = self.config.pseudo_labels
        options = {"mix": p.self_training_mix, "alpha": p.self_training_alpha, "partners_from": "batch"}
        return build_mixer(self.config.with_(**options), self.task)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        own = {"memory": self.memory, "mean_posterior": self.mean_posterior, "evidence": self.evidence}
        return super().tensors() | own

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        self.memory.copy_(tensors["memory"])
        self.mean_posterior.copy_(tensors["mean_posterior"])
        if len(self.evidence):
            self._set_evidence(tensors["evidence"])


# --- pure functions -------------------------------------------------------------------------------------------------


def search_epochs(epochs: int) -> list[int]:
    """Epochs (from 0) before which neighbors are found again."""
    return sorted({epochs * part // SEARCHES for part in range(1, SEARCHES)} - {0})


def alignment_factors(prior: Tensor, mean_posterior: Tensor, highest: float) -> Tensor:
    """Factors that align the mean of the posteriors with the prior.

    Without a limit, the share of a rare class whose examples were all taken for other classes is spread over the
    examples of a large class, until these are as likely under both classes. With logits adjusted to the prior, the
    large class is then lost as well. (MNIST, rho = 100: accuracy of the largest class 6 % after 200 epochs.)

    Args:
        prior: Share of each class, [K].
        mean_posterior: Running mean of the posteriors, [K].
        highest: The largest factor.

    Returns:
        float [K].
    """
    return (prior / mean_posterior.clamp_min(1e-6)).clamp(max=highest)


def pseudo_labels(
    temperature: float, remembered: Tensor, likelihood: Tensor, alignment: Tensor, log_prior: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine predictions and complementary labels by Bayes' rule, align the result with the prior, and sharpen it.

    pseudo-label ~ prior x (alignment x posterior / prior) ^ (1 / temperature): the prior itself is not sharpened.

    Args:
        temperature: 1: no sharpening.
        remembered: Class probabilities, [B, K].
        likelihood: Logarithm of the likelihood of the labels, [B, K].
        alignment: Factor of each class, [K].
        log_prior: Logarithm of the class prior up to a constant; 0: equal classes, [K].

    Returns:
        The pseudo-labels and the posteriors (before alignment and sharpening), each [B, K].
    """
    joint = remembered.clamp_min(1e-6).log() + likelihood
    sharpened = (joint + alignment.log() - log_prior) / temperature + log_prior
    return sharpened.softmax(1), joint.softmax(1)


def pseudo_label_loss(
    loss: Loss, logits: Tensor, targets: Tensor, log_prior: Tensor, transition: Tensor | None = None
) -> Tensor:
    """Sum of a complementary loss and the cross-entropy with the pseudo-labels.

    Args:
        loss: The complementary loss.
        logits: [B, K].
        targets: Excluded classes and pseudo-labels side by side, [B, 2 K].
        log_prior: Added to the logits, [K].
        transition: For the complementary loss, [K, K].

    Returns:
        The loss of each example, [B].
    """
    logits = logits.float() + log_prior
    excluded, soft = targets[:, : logits.shape[1]], targets[:, logits.shape[1] :]
    return loss(logits, excluded, transition) - (soft * logits.log_softmax(1)).sum(1)
