"""Self-training: fine-tune the encoder on soft pseudo-labels, starting from a classifier on its frozen features.

The pseudo-labels of an example combine the classifier's predictions with the complementary labels by Bayes' rule. The
network is the encoder with a new last layer. It is trained on strongly augmented images with the pseudo-labels and the
complementary labels. After every epoch the predictions are updated by an exponential moving average (EMA). True labels
are not used.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from complementary import networks
from complementary.config import Config
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import set_lr
from complementary.losses import LOSSES, Loss
from complementary.training.task import Task
from complementary.training.trainer import Trainer

MOMENTUM = 0.95  # of the EMA of the predictions


class SelfTrainer(Trainer):
    """The training loop of an encoder with a classifier on top.

    Args:
        config: The configuration.
        task: The task, with images as inputs.
        encoder: Initializes the network.
        device: The device, or the engine that computes.
        processes: The processes that share the work.

    Attributes:
        predictions: EMA of the class probabilities of the training examples of all processes, float [N, K].
        pseudo_labels: Soft pseudo-labels of the examples of this process, float [n, K].
        accuracy_before: Accuracies of the classifier on frozen features.
    """

    stage, lr_option = "self-training, ", "self_training_lr"

    def __init__(
        self,
        config: Config,
        task: Task,
        encoder: FrozenEncoder,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        t, self.encoder = config.training, encoder
        options = {"epochs": t.self_training, "lr": t.self_training_lr, "policy": t.self_training_policy}
        super().__init__(config.with_(**options), task, device, processes)
        self.config, self.config_hash, self.lr = config, config.hash(), t.self_training_lr
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr_value(self.lr)
        self.loss = functools.partial(self.engine.compiled(pseudo_label_loss), LOSSES[t.loss])
        self.predictions = torch.full((self.examples, len(task.classes)), 1 / len(task.classes), device=self.device)
        self.pseudo_labels = self._posterior()
        self.accuracy_before: dict[str, Any] = {}
        train_logits = functools.partial(self.logits, self.task.train)
        self.train_logits = train_logits if self.streamed else self.capture(train_logits)

    def begin(self, predictions: Tensor, accuracy_before: dict[str, Any]) -> None:
        """Start from the predictions [N, K] of a classifier on features; its accuracies are reported in the result."""
        self.predictions.copy_(predictions)
        self.pseudo_labels.copy_(self._posterior())
        self.accuracy_before = accuracy_before

    def build_network(self) -> networks.Network:
        """The encoder with a new last layer."""
        assert self.encoder is not None
        backbone, task = self.encoder.backbone, self.task
        model = networks.build(backbone.kind, task.shape, len(task.classes), self.config.seed, backbone.max_pool)
        model.load_state_dict(model.state_dict() | backbone.state_dict())
        return model

    # --- the step ---------------------------------------------------------------------------------------------------

    def load(self, index: Tensor, random: torch.Generator | None, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As in `Trainer`, but the excluded classes are followed by the pseudo-labels, float [B, 2 K]."""
        x, excluded = super().load(index, random, batch)
        return x, torch.cat([excluded, self.pseudo_labels[index]], 1)

    def on_step_start(self) -> None:
        """Set the learning rate: linear warm-up during the first epoch, and a cosine schedule."""
        warm_up = min(1.0, (self.global_step + 1) / self.steps_per_epoch)
        for group in self.optimizer.param_groups:
            set_lr(group, self.lr * warm_up * self.cosine_factor())

    def on_epoch_start(self) -> None:
        """Update predictions and pseudo-labels."""
        super().on_epoch_start()
        if self.epoch > 0:
            own = self.predictions[self.processes.shard()].lerp(self.train_logits().softmax(1), 1 - MOMENTUM)
            self.predictions.copy_(self.processes.all_gather(own, self.examples))
            self.pseudo_labels.copy_(self._posterior())

    def _posterior(self) -> Tensor:
        return posterior(self.predictions[self.processes.shard()], self.task.excluded, self.task.transition)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"predictions": self.predictions}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        self.predictions.copy_(tensors["predictions"])
        self.pseudo_labels.copy_(self._posterior())


def posterior(predictions: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Combine predictions and complementary labels by Bayes' rule, as if the labels of an example were independent.

    Args:
        predictions: Class probabilities, [N, K].
        excluded: Complementary labels, [N, K].
        transition: Probability of each complementary label given the class, [K, K].

    Returns:
        Class probabilities, [N, K]; nearly zero for excluded classes if labels are never wrong.
    """
    log_likelihood = transition.to(predictions.device, torch.float32).clamp_min(1e-12).log()
    with torch.autocast(predictions.device.type, enabled=False):  # the product must not be bfloat16
        return (predictions.clamp_min(1e-6).log() + excluded.float() @ log_likelihood.T).softmax(1)


def pseudo_label_loss(loss: Loss, logits: Tensor, labels: Tensor, transition: Tensor | None = None) -> Tensor:
    """Sum of a complementary loss and the cross-entropy with the pseudo-labels.

    Args:
        loss: The complementary loss.
        logits: [B, K].
        labels: Excluded classes and pseudo-labels side by side, [B, 2 K]. Pseudo-labels that mixing has added up
            (``share = hard-label``) are normalized.
        transition: For the complementary loss, [K, K].

    Returns:
        The loss of each example, [B].
    """
    excluded, target = labels[:, : logits.shape[1]], labels[:, logits.shape[1] :]
    target = target / target.sum(1, keepdim=True).clamp_min(1)
    return loss(logits, excluded, transition) - (target * logits.float().log_softmax(1)).sum(1)
