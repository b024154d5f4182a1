"""POCR, a published baseline: consistency of predictions on the classes that are not excluded.

Wang, Feng and Zhang, "Learning from complementary labels via partial-output consistency regularization", IJCAI 2021;
code by the authors: github.com/dengbaowang/CLL_POCR. One step:

1. The network predicts a weak view (crop, flip) and two strong views (crop, flip, cutout, AutoAugment), one after the
   other, each with its own batch-norm statistics.
2. Target = prediction of the weak view without the excluded classes, normalized; no gradient.
3. Loss = complementary loss of the weak view + weight x KL divergence from the target to each strong view. The weight
   rises from 0 to 1 over the first half of the training.

SGD with momentum, two steps of the learning rate. The published options are those of ``recipe = pocr``: 200 epochs,
batch 64, lr 0.1, weight decay 1e-4, loss s-nl. The published schedules are in epochs (100, 100 and 150 of 200). Here
they are shares of the training, so that a shorter training has all of its parts.

Differences from the published code: images are normalized with the mean and standard deviation of the dataset, the last
partial batch of an epoch is dropped, and s-nl adds 1e-6 to 1 - p instead of 1e-7. AutoAugment fills with gray (128), as
the usual implementation for Pillow does; the authors' copy is not available as text, so this was not verified.
"""

import copy

import torch
from torch import Tensor

from complementary import networks
from complementary.augment.auto import AutoAugment, Cutout, Policy, build
from complementary.augment.crop import CropAndFlip, normalize
from complementary.config import Config
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import set_lr
from complementary.errors import UserError
from complementary.training.fine_tuning import suitable_lr
from complementary.training.task import Task
from complementary.training.trainer import Trainer

MOMENTUM = 0.9  # of SGD
RAMP = 0.5  # share of the training in which the weight of the consistency rises
STEPS = (0.5, 0.75)  # shares of the training after which the learning rate is divided by 10
STRONG = (Cutout(), AutoAugment(fill=128))


class PocrTrainer(Trainer):
    """The training loop of POCR.

    Args:
        config: The configuration.
        task: The task, with images as inputs.
        device: The device, or the engine that computes.
        processes: The processes that share the work.
        network: The network to start from; None: a new one. With a given network, the learning rate is at most the one
            that fits its weights, because the published one destroys an encoder.
        encoder: The encoder that the network was initialized with, if any; a resumed run checks that it is the same.
        epochs: Number of epochs; None: as the configuration says.

    Attributes:
        lr: Learning rate at the start.
        weight: Weight of the consistency, a scalar on the device.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
        network: networks.Network | None = None,
        encoder: FrozenEncoder | None = None,
        *,
        epochs: int | None = None,
    ) -> None:
        t, self.start, self.encoder = config.training, network, encoder
        if len(task.shape) != 3:
            raise UserError(
                f"The recipe {t.recipe} compares augmented views of images, but the inputs have shape "
                f"{list(task.shape)}; use another recipe.",
                "recipe",
            )
        self.lr = t.lr if network is None else min(t.lr, suitable_lr(network))
        super().__init__(config, task, device, processes, epochs=epochs)
        self.weight = torch.zeros((), device=self.device)
        self.consistency = self.engine.compiled(consistency)

    # --- the step ---------------------------------------------------------------------------------------------------

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        self.model.train()
        views = self.views(index, random, batch, weak=1, strong=2)
        excluded = self.task.excluded[index].float()
        with self.engine.autocast():
            weak, first, second = (self.forward(self.model, x) for x in views)
        loss, labeled = self.mean_loss(self.loss(weak, excluded), excluded)
        loss = loss + self.weight * self.consistency(weak, excluded, first, second).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        loss = self.processes.average_gradients(self.model, loss.detach(), labeled)
        self.optimizer.step()
        return loss

    def views(
        self, index: Tensor, random: torch.Generator, batch: Tensor | None, weak: int, strong: int
    ) -> list[Tensor]:
        """Load augmented views of some images.

        Args:
            index: The examples, int [B].
            random: Source of the augmentation.
            batch: Their raw inputs [B, ...], if inputs are streamed.
            weak: Number of weak views.
            strong: Number of strong views.

        Returns:
            Normalized images float [B, C, H, W]: first the weak views, then the strong ones.
        """
        assert self.augment is not None
        count, size = weak + strong, len(index)
        inputs, positions = self.locate(index, batch)
        moves = self.augment.draw(count * size, self.device, random)
        raw: Tensor = self.take(self.augment, inputs, positions.repeat(count), moves)
        plain, changed = raw[: weak * size], raw[weak * size :]
        for policy in self.strong if strong else ():
            changed = policy(changed, random)
        parts = (*plain.split(size), *(changed.split(size) if strong else ()))
        return [normalize(part, self.task.mean, self.task.std) for part in parts]

    def on_step_start(self) -> None:
        """Set the learning rate and the weight of the consistency; both change from epoch to epoch."""
        set_lr(self.optimizer.param_groups[0], self.lr * stepped(self.epoch, self.epochs))
        self.weight.fill_(risen(self.epoch, self.epochs))

    # --- parts ------------------------------------------------------------------------------------------------------

    def build_network(self) -> networks.Network:
        """The network to start from, or a new one."""
        return super().build_network() if self.start is None else copy.deepcopy(self.start)

    def build_average(self) -> None:
        """The published methods do not average weights."""
        if self.config.training.ema:
            raise UserError(
                f"The recipe {self.config.training.recipe} does not average weights, but ema is "
                f"{self.config.training.ema:g}; leave it out.",
                "ema",
            )

    def build_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        decay, rate = self.config.training.weight_decay, self.lr_value(self.lr)
        return torch.optim.SGD(self.model.parameters(), rate, MOMENTUM, weight_decay=decay, fused=True)

    def build_augmentation(self) -> tuple[CropAndFlip | None, Policy | None]:
        """Crop and flip for all views; the option ``policy``, or else the published one, for the strong views."""
        augment, _ = super().build_augmentation()
        policy = build(self.config.training.policy, self.task.mean.tolist())
        self.strong: tuple[Policy, ...] = STRONG if policy is None else (policy,)
        return augment, None

    def build_mixer(self) -> None:
        """Images are not mixed."""
        t, mix = self.config.training, self.config.mixing.mix
        if mix != "none":
            raise UserError(
                f"The recipe {t.recipe} compares views of one image and mixes none, but mix is {mix}; use none.", "mix"
            )


# --- pure functions -------------------------------------------------------------------------------------------------


def masked_target(logits: Tensor, excluded: Tensor) -> Tensor:
    """Class probabilities without the excluded classes, normalized; no gradient.

    Args:
        logits: [B, K].
        excluded: Complementary labels, 0/1 [B, K]; not all classes of an example.

    Returns:
        float32 [B, K], 0 for excluded classes.
    """
    return logits.detach().float().masked_fill(excluded > 0, -torch.inf).softmax(1)


def consistency(weak: Tensor, excluded: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Sum of the KL divergences from the target of the weak view to the predictions of two other views.

    Args:
        weak: Logits of the weak view, [B, K].
        excluded: Complementary labels, 0/1 [B, K].
        first: Logits of another view, [B, K].
        second: Logits of a third view, [B, K].

    Returns:
        float32 [B].
    """
    target = masked_target(weak, excluded)
    predicted = first.float().log_softmax(1) + second.float().log_softmax(1)
    return (2 * torch.xlogy(target, target) - target * predicted).sum(1)


def stepped(epoch: int, epochs: int) -> float:
    """Factor of the learning rate: 1, then .1 from the first and .01 from the second of `STEPS`."""
    return float(0.1 ** sum(epoch >= share * epochs for share in STEPS))


def risen(epoch: int, epochs: int) -> float:
    """Weight of the consistency: from 0 in the first epoch to 1 after `RAMP` of the training."""
    return min(1.0, epoch / (RAMP * epochs))
