"""Refining: a classifier has learnt on an encoder's features; now the encoder learns too, from what is believed.

A belief is a distribution over the classes for each training example: what the classifier predicts, put together with
the example's complementary labels by Bayes' rule. The network is the encoder with a new last layer. It is shown
strongly augmented pictures, and learns from the beliefs and the complementary labels. After every epoch the predictions
move towards those of the network as it is then. No true label plays a part (docs/encoders.md).
"""

import functools
from typing import Any

import torch
from torch import Tensor

from complementary import networks
from complementary.config import Config
from complementary.encoders.backbone import describe
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import set_rate
from complementary.losses import LOSSES, Loss
from complementary.training.frozen import FrozenEncoder
from complementary.training.task import Task
from complementary.training.trainer import Trainer

KEPT = 0.95  # share of the earlier predictions that the end of an epoch leaves in place


class SelfTrainer(Trainer):
    """An encoder and its last layer in training. ``task``: of pictures; nothing is believed before `begin`.

    predicted float [N, K]: probabilities for the training examples of all processes; belief [n, K]: for its own ones.
    """

    stage, rate_option = "refining, ", "--refine-lr"

    def __init__(
        self,
        config: Config,
        task: Task,
        lens: FrozenEncoder,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        t, self.lens, self.kept = config.training, lens, KEPT
        options: dict[str, Any] = {
            "epochs": t.self_training,
            "lr": t.self_training_lr,
            "policy": t.self_training_policy,
        }
        super().__init__(config.with_(**options), task, device, processes)
        self.config, self.config_hash, self.lr = config, config.hash(), t.self_training_lr
        for group in self.optimiser.param_groups:
            group["lr"] = self.as_rate(self.lr)
        self.loss = functools.partial(self.engine.compiled(with_beliefs), LOSSES[t.loss])
        self.predicted = torch.full((self.examples, len(task.classes)), 1 / len(task.classes), device=self.device)
        self.belief = self._believe()
        self.before: dict[str, Any] = {}
        self.train_logits = self._train_logits if self.streamed else self.capture(self._train_logits)

    def begin(self, predicted: Tensor, before: dict[str, Any]) -> None:
        """Believe ``predicted`` [N, K] of a classifier on features; ``before``: its accuracies, for the result."""
        self.predicted.copy_(predicted)
        self.belief.copy_(self._believe())
        self.before = before

    def network(self) -> networks.Network:
        """The encoder, with a new last layer."""
        assert self.lens is not None  # the first thing that was set
        kind, p = describe(self.lens.body), self.task
        model = networks.build(kind["body"], p.shape, len(p.classes), self.config.seed, kind["max_pool"])
        last = {f"fc.{name}": value for name, value in model.fc.state_dict().items()}
        model.load_state_dict(self.lens.body.state_dict() | last)
        return model

    # --- the hot path -----------------------------------------------------------------------------

    def load(self, index: Tensor, random: torch.Generator | None, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Training examples at ``index`` int [B] -> (x [B, ...], excluded and beliefs side by side, [B, 2 K])."""
        x, excluded = super().load(index, random, batch)
        return x, torch.cat([excluded, self.belief[index]], 1)

    def before_step(self) -> None:
        """The learning rate: up during the first epoch, then down by a half cosine."""
        rise = min(1.0, (self.steps_before() + 1) / self.steps_per_epoch)
        for group in self.optimiser.param_groups:
            set_rate(group, self.lr * rise * self.half_cosine())

    def open_epoch(self) -> None:
        """Let predictions and beliefs follow the network."""
        super().open_epoch()
        if self.epoch > 0:
            own = self.predicted[self.processes.part()].lerp(self.train_logits().softmax(1), 1 - self.kept)
            self.predicted.copy_(self.processes.all_gather(own, self.examples))
            self.belief.copy_(self._believe())

    # --- around it --------------------------------------------------------------------------------

    def _believe(self) -> Tensor:
        return posterior(self.predicted[self.processes.part()], self.task.excluded, self.task.transition)

    def _train_logits(self) -> Tensor:
        return self.logits(self.task.train)

    def tensors(self) -> dict[str, Tensor]:
        """As of any training, and the predictions."""
        return super().tensors() | {"predicted": self.predicted}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        super().load_tensors(tensors)
        self.predicted.copy_(tensors["predicted"])
        self.belief.copy_(self._believe())


def posterior(predicted: Tensor, excluded: Tensor, transition: Tensor) -> Tensor:
    """Bayes' rule: probabilities [N, K] of the classes, excluded [N, K], transition [K, K] -> probabilities [N, K].

    Each label that an example carries multiplies the classes by how likely they give that label, as if labels were
    drawn independently. Where they are never wrong, the excluded classes are left with next to nothing.
    """
    likely = transition.to(predicted.device, torch.float32).clamp_min(1e-12).log()
    with torch.autocast(predicted.device.type, enabled=False):  # else the product would be bfloat16
        return (predicted.clamp_min(1e-6).log() + excluded.float() @ likely.T).softmax(1)


def with_beliefs(loss: Loss, logits: Tensor, labels: Tensor, transition: Tensor | None = None) -> Tensor:
    """The complementary ``loss`` and the cross-entropy to what is believed, added: [B, K], both labels [B, 2 K] -> [B].

    Beliefs that were joined (``share="hard-label"``) become a distribution again.
    """
    excluded, belief = labels[:, : logits.shape[1]], labels[:, logits.shape[1] :]
    believed = belief / belief.sum(1, keepdim=True).clamp_min(1)
    return loss(logits, excluded, transition) - (believed * logits.float().log_softmax(1)).sum(1)
