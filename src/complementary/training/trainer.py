"""Training a classifier: what one step does, and how the result is measured.

The step reads as one story: load, mix, forward, loss, backward, update. The loop around it is in `job`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from complementary import networks
from complementary import scores as validate
from complementary.augment import auto
from complementary.augment.crop import Augment, Moves, default_padding, normalise
from complementary.config import Config
from complementary.data.rows import Rows
from complementary.engine.backend import Engine
from complementary.engine.batches import pieces, too_large
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import TrainingLoop, load_optimiser, named, optimiser_tensors
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.mixing import Draw, GroupMixup
from complementary.training.frozen import FrozenEncoder
from complementary.training.task import Task, build_mixer


class Trainer(TrainingLoop):
    """A classifier in training. lens: the encoder that makes its features, or that it began with."""

    lens: FrozenEncoder | None = None

    def __init__(
        self, config: Config, task: Task, device: str | torch.device | Engine, processes: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        t = config.training
        super().__init__(config.hash(), config.seed, t.epochs, t.batch, len(task.train), Engine.of(device), processes)
        self.config, self.lens = config, self.lens or task.lens
        task = task.shard(processes)
        self.streamed = too_large((task.train, task.held, task.test_inputs), self.engine)
        self.task = task = task.to(self.device, inputs=not self.streamed)
        self.feed = self.feed_of(task.train, self.streamed)
        shape = task.shape
        images = len(shape) == 3
        self.model = self.network()
        if images:  # the layout that convolutions are fastest in
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.to(self.device)
        self.optimiser = torch.optim.Adam(
            self.model.parameters(),
            t.lr,
            weight_decay=t.weight_decay,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        self.augment = self._augmentation(shape) if images else None
        self.policy = self._policy(images)
        self.mixer = self._mixer()
        self.take, self.forward = self.engine.compiled(take), self.engine.compiled(forward)
        pooled = self.mixer is not None and self.mixer.pool is not None  # such a mixer loads, so it is not pure
        self.mix = mix if pooled else self.engine.compiled(mix)
        self.loss = self.engine.compiled(LOSSES[t.loss])
        self.loss_transition = task.loss_transition.to(self.device, torch.float32)
        captured = self.capture if not self.streamed else lambda function: function
        self.held_logits, self.test_logits = captured(self._held_logits), captured(self._test_logits)
        self.selected: dict[str, Tensor] = {}

    # --- the hot path -----------------------------------------------------------------------------

    def load(self, index: Tensor, random: torch.Generator | None, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Training examples at ``index`` int [B], augmented and normalised -> (x [B, ...], excluded float [B, K]).

        ``batch`` [B, ...]: their raw inputs, where those are streamed.
        """
        p, count = self.task, len(index)
        moves = None if self.augment is None else self.augment.draw(count, self.device, random)
        inputs, places = self.feed.find(index, batch)
        raw: Tensor = self.take(self.augment, inputs, places, moves)
        if self.policy is not None:
            raw = self.policy(raw, random)
        return normalise(raw, p.mean, p.std), p.excluded[index].float()

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """One update on the examples at ``index`` int [B] -> the loss, a scalar on the device."""
        self.model.train()
        x, excluded = self.load(index, random, batch)
        if self.config.variant.clean_pass:
            with torch.no_grad(), self.engine.autocast():
                self.forward(self.model, x)
        if self.mixer is not None:
            draw = self.mixer.draw(len(index), self.device, random)
            x, excluded = self.mix(self.mixer, x, excluded, self.task.group, index, draw, random)
        with self.engine.autocast():
            logits = self.forward(self.model, x)
        loss, labelled = self._mean(self.loss(logits, excluded, self.loss_transition), excluded)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        loss = self.processes.average(self.model, loss.detach(), labelled)
        self.optimiser.step()
        return loss

    def _mean(self, losses: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the examples that carry a label, and how many these are. [B], [B, K] -> two scalars.

        As coded, black images count too.
        """
        labelled = (excluded.sum(1) > 0).sum()
        if self.config.variant.alone == "black":
            return losses.mean(), torch.ones_like(labelled)
        return losses.sum() / labelled.clamp_min(1), labelled

    # --- around it --------------------------------------------------------------------------------

    def network(self) -> networks.Network:
        """A new classifier."""
        kind, p, seed = self.config.network, self.task, self.config.seed
        name = kind.model if kind.model != "auto" else _suited(p)
        return networks.build(name, p.shape, len(p.classes), seed, kind.max_pool)

    def networks(self) -> list[nn.Module]:
        """The classifier."""
        return [self.model]

    def open_epoch(self) -> None:
        """Forget Adam's moments if asked to; in place, because a captured step holds on to them."""
        if self.config.variant.reset_optimizer:
            for slots in self.optimiser.state.values():
                for value in slots.values():
                    value.zero_()

    def scores(self) -> dict[str, Any]:
        """Evaluate; keep the weights if no epoch so far predicted the held-out labels better."""
        scores = self.evaluate()
        if "scel" in scores and scores["scel"] < min((row["scel"] for row in self.history), default=math.inf):
            self.selected = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        return scores

    @torch.no_grad()
    def logits(self, inputs: Tensor | Rows, batch: int = 2048) -> Tensor:
        """Predictions without augmentation, in evaluation mode: inputs [N, ...], anywhere -> [N, K] on the device."""
        self.model.eval()
        p, ahead = self.task, True if self.streamed else None
        with self.engine.autocast():
            parts = [self.model(normalise(x, p.mean, p.std)) for x in pieces(inputs, self.device, batch, ahead)]
        return torch.cat(parts).float()

    def _held_logits(self) -> Tensor:
        return self.logits(self.task.held)

    def _test_logits(self) -> Tensor:
        assert self.task.test_inputs is not None
        return self.logits(self.task.test_inputs)

    def evaluate(self) -> dict[str, Any]:
        """Scores of this moment: truth-free ones on the held-out labels, accuracy on the test set."""
        p, scores = self.task, dict[str, Any]()
        if len(p.held):
            logits = self.held_logits()
            for score in SCORES:
                scores[score.__name__] = float(score(logits, p.held_excluded, p.transition))
        if p.test_inputs is not None and p.test_truth is not None:
            predicted = self.test_logits().argmax(1)
            per_class = validate.class_accuracy(predicted, p.test_truth, len(p.classes))
            scores["accuracy"] = float((predicted == p.test_truth).double().mean())
            scores["per_class"] = [None if math.isnan(a) else a for a in per_class.tolist()]
        return scores

    def tensors(self) -> dict[str, Tensor]:
        """Weights now, weights of the selected epoch, the optimiser's state, and a mark of the encoder, if any."""
        kept = {f"model/{k}": v for k, v in self.model.state_dict().items()}
        kept |= {} if self.lens is None else {"encoder": self.lens.mark}
        kept |= {f"selected/{k}": v for k, v in self.selected.items()}
        return kept | optimiser_tensors(self.optimiser)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        if self.lens is not None and not torch.equal(tensors.get("encoder", self.lens.mark), self.lens.mark):
            raise UserError(
                f"The encoder {self.config.cluster.encoder} is another one than this run began with; put the first "
                "one back, or start anew with another --out."
            )
        self.model.load_state_dict(named("model", tensors))
        self.selected = {k: v.to(self.device) for k, v in named("selected", tensors).items()}
        load_optimiser(self.optimiser, tensors)

    def _mixer(self) -> GroupMixup | None:
        if self.streamed and self.config.variant.partners_from == "dataset":
            raise UserError(
                "Partners from the whole set (--partners-from dataset) need inputs that lie on the device, but these "
                "are streamed; use --partners-from batch, or --stream never if they fit."
            )
        return build_mixer(self.config, self.task, self.load)

    def _policy(self, images: bool) -> auto.Policy | None:
        name = self.config.training.policy
        if name != "none" and not images:
            raise UserError(f"The policy {name} changes pictures, but the inputs are vectors; leave --policy out.")
        return auto.build(name, self.task.mean.tolist()) if images else None

    def _augmentation(self, shape: tuple[int, ...]) -> Augment:
        t = self.config.training
        padding = default_padding(shape[1]) if t.padding is None else t.padding
        if padding >= min(shape[1:]):
            raise UserError(f"The crop padding is {padding}, but the pictures are only {shape[1]} x {shape[2]} pixels.")
        return Augment(padding, self.task.flip if t.flip is None else t.flip)


def take(augment: Augment | None, inputs: Tensor, index: Tensor, moves: Moves | None) -> Tensor:
    """Examples of ``inputs`` [N, ...] at ``index`` int [B], moved if they are pictures -> the same type [B, ...]."""
    return inputs[index] if augment is None or moves is None else augment.take(inputs, index, moves)


def mix(
    mixer: GroupMixup,
    x: Tensor,
    excluded: Tensor,
    group: Tensor | None,
    index: Tensor,
    draw: Draw,
    random: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Mix a batch: x [B, ...], excluded [B, K], groups of all examples int [N] -> the mixed x and excluded."""
    mixed, soft = mixer.apply(x, excluded, None if group is None else group[index], draw, index, random)
    return (mixed.contiguous(memory_format=torch.channels_last) if mixed.ndim == 4 else mixed), soft


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """Inputs [B, ...] -> logits [B, K]; a function of the network, so that all networks of a kind are compiled once."""
    logits: Tensor = model(x)
    return logits


SCORES = (validate.scel, validate.ure, validate.estimated_accuracy, validate.estimated_accuracy_error)


def _suited(task: Task) -> str:
    """The network that ``auto`` stands for."""
    if task.lens is not None:
        return "linear"
    return "cnn" if len(task.shape) == 3 and min(task.shape[1:]) >= 16 else "mlp"
