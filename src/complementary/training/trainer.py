"""Training a classifier: what one step does, and how the result is measured.

A step reads from top to bottom: load, mix, forward, loss, backward, update. The loop around it is in `engine.loop`.
"""

import copy
import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from complementary import losses, networks, scores
from complementary.augment import auto
from complementary.augment.crop import CropAndFlip, CropDraw, default_padding, normalize
from complementary.config import Config
from complementary.data.rows import Rows
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.backend import Engine, no_capture
from complementary.engine.batches import chunks, should_stream
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import TrainingLoop, add_prefix, load_optimizer, optimizer_tensors, set_lr, strip_prefix
from complementary.errors import UserError
from complementary.losses.base import per_label
from complementary.losses.registry import method_of
from complementary.mixing import Draw, GroupMixup
from complementary.rng import generator
from complementary.training.selection import Selection, calibrate, scel_by_sharpness
from complementary.training.task import Task, build_mixer, class_prior

log = logging.getLogger(__name__)
MOMENTUM = 0.9  # of SGD
FEWEST_AVERAGES = 3  # a training should be at least so many times as long as ema averages over
MIN_HELD_OUT = 4  # validation examples: fewer are not divided into halves


class Trainer(TrainingLoop):
    """The training loop of a classifier.

    Args:
        config: The configuration.
        task: Its examples, labels and clusters.
        device: The device, or the engine that computes.
        processes: The processes that share the work.
        epochs: Number of epochs; None: as the configuration says.
        batch: Batch size; None: as the configuration says.

    Attributes:
        model: The network that is trained.
        average: EMA of the network; None: there is none.
        evaluated: The network that is evaluated, and whose weights are the result: the same one, or an average of it.
        criterion: The loss with the matrix and the prior that it needs.
        selections: Which epoch to use, by all labels of the validation split and by those of each half.
        second_half: Validation examples of the second half, bool [V]; the halves select epochs for each other.
        validation_predictions: Predicted classes of the validation split after each epoch, int32 [epochs, V].
        encoder: The frozen encoder that computed the inputs, or that the network was initialized with.
        log_prior: What is added to the outputs [K] to predict examples like those of the training. 0, unless the
            network predicts for a population with classes of equal size.
    """

    encoder: FrozenEncoder | None = None
    log_prior: Tensor | float

    def __init__(
        self,
        config: Config,
        task: Task,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
        *,
        epochs: int | None = None,
        batch: int | None = None,
    ) -> None:
        epochs = config.training.epochs if epochs is None else epochs
        batch = config.training.batch if batch is None else batch
        engine = Engine.of(device)
        super().__init__(config.hash(), config.seed, epochs, batch, len(task.train), engine, processes)
        self.config, self.encoder = config, self.encoder or task.encoder
        self.criterion = self.build_loss(task)
        task = task.shard(processes)
        self.streamed = should_stream((task.train, task.validation, task.test_inputs), engine)
        self.task = task = task.to(self.device, inputs=not self.streamed)
        self.set_inputs(task.train, self.streamed)
        self.model = self.build_network()
        if len(task.shape) == 3:  # images: the layout in which convolutions are fastest
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.to(self.device)
        self.average = self.build_average()
        self.optimizer = self.build_optimizer()
        self.augment, self.policy = self.build_augmentation()
        self.mixer = self.build_mixer()
        self.loss_transition = task.loss_transition.to(self.device, torch.float32)
        self.selections = [Selection(task.transition) for _ in range(3)]
        self.best: dict[str, Tensor] = {}  # weights of the epoch `self.selections[0].best`
        self.best_decoder: tuple[Tensor, Tensor] | None = None
        self.log_prior = self.best_log_prior = self.criterion.log_prior
        self.take, self.forward = engine.compiled(take), engine.compiled(forward)
        pooled = self.mixer is not None and self.mixer.pool is not None  # such a mixer loads examples: not pure
        self.mix = mix if pooled else engine.compiled(mix)
        self.loss = functools.partial(engine.compiled(losses.apply), self.criterion)
        captured = self.capture if not self.streamed else lambda function: function
        self.validation_logits = captured(functools.partial(self.outputs, task.validation))
        held_out = len(task.validation)
        order = torch.randperm(held_out, generator=generator(config.seed, "halves"))
        self.second_half = (order % 2 == 1).to(self.device)
        self.validation_predictions = torch.zeros(self.epochs, held_out, dtype=torch.int32)
        test = task.test_inputs
        self.test_logits = None if test is None else captured(functools.partial(self.outputs, test))

    # --- the step ---------------------------------------------------------------------------------------------------

    def load(self, index: Tensor, random: torch.Generator | None, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Load training examples, augmented and normalized.

        Args:
            index: The examples, int [B].
            random: Source of the augmentation.
            batch: Their raw inputs [B, ...], if inputs are streamed.

        Returns:
            Inputs float [B, ...], and excluded classes float [B, K].
        """
        moves = None if self.augment is None else self.augment.draw(len(index), self.device, random)
        inputs, positions = self.locate(index, batch)
        raw: Tensor = self.take(self.augment, inputs, positions, moves)
        if self.policy is not None:
            raw = self.policy(raw, random)
        return normalize(raw, self.task.mean, self.task.std), self.task.excluded[index].float()

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        self.model.train()
        x, excluded = self.load(index, random, batch)
        if self.config.variant.clean_pass:
            with torch.no_grad(), self.engine.autocast():
                self.forward(self.model, x)
        if self.mixer is not None:
            draw = self.mixer.draw(len(index), self.device, random)
            x, excluded = self.mix(self.mixer, x, excluded, self.task.cluster, index, draw, random)
        with self.engine.autocast():
            logits = self.forward(self.model, x)
        loss, labeled = self.mean_loss(self.loss(logits, excluded), excluded)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        loss = self.processes.average_gradients(self.model, loss.detach(), labeled, self.criterion.parameters())
        self.optimizer.step()
        if self.average is not None:
            networks.update_average(self.average, self.model, self.config.training.ema)
        return loss

    def mean_loss(self, losses: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the examples with a label, and their number: [B], [B, K] -> two scalars.

        In the published code (``alone = black``) examples without a label count too.
        """
        labeled = (excluded.sum(1) > 0).sum()
        if self.config.variant.alone == "black":
            return losses.mean(), torch.ones_like(labeled)
        return losses.sum() / labeled.clamp_min(1), labeled

    # --- evaluation -------------------------------------------------------------------------------------------------

    @property
    def evaluated(self) -> networks.Network:
        return self.model if self.average is None else self.average

    @property
    def selected(self) -> dict[str, Tensor]:
        """After an epoch: the weights of the selected epoch so far; empty without a validation split."""
        return dict(self.evaluated.state_dict()) if self._last_is_selected else self.best

    @property
    def selected_decoder(self) -> tuple[Tensor, Tensor] | None:
        """How outputs became classes in the selected epoch (see `BoundLoss.decoder`)."""
        return self.criterion.decoder() if self._last_is_selected else self.best_decoder

    @property
    def selected_log_prior(self) -> Tensor | float:
        """`log_prior` in the selected epoch; it is not part of a checkpoint."""
        return self.log_prior if self._last_is_selected or not self.best else self.best_log_prior

    @property
    def _last_is_selected(self) -> bool:
        return bool(self.history) and self.history[-1].get("selected") == self.history[-1]["epoch"]

    def scores(self) -> dict[str, Any]:
        """Evaluate; keep the weights of the best epoch."""
        found = self.evaluate()
        if self._is_candidate():
            self.best = {k: v.detach().clone() for k, v in self.evaluated.state_dict().items()}
            self.best_decoder, self.best_log_prior = self.criterion.decoder(), self.log_prior
        return found

    def _is_candidate(self) -> bool:
        """Whether the weights of this epoch must be kept, because later epochs may be worse."""
        return self.selections[0].best == self.epoch + 1

    def evaluate(self) -> dict[str, Any]:
        """Metrics without true labels on the validation split, and accuracy on the test set."""
        task, found = self.task, dict[str, Any]()
        outputs = self.validation_logits() if len(task.validation) else None
        predicted = None if self.test_logits is None else self.criterion.decode(self.test_logits()).argmax(1)
        if outputs is not None:
            parts: list[Tensor | slice] = [slice(None), ~self.second_half, self.second_half]
            parts = parts if len(outputs) >= MIN_HELD_OUT else parts[:1]
            if self.epoch < self.epochs:
                self.validation_predictions[self.epoch] = self.criterion.decode(outputs).argmax(1).cpu()
            to_labels = self.criterion.label_matrix(task.transition)
            table = scel_by_sharpness(outputs, task.validation_excluded, to_labels, self.log_prior)
            found, *halves = (
                self._truth_free(outputs, part) | self._select(selection, table[:, part], part)
                for part, selection in zip(parts, self.selections, strict=False)
            )
            found |= {"halves": halves} if halves else {}
        if predicted is not None and task.test_truth is not None:
            per_class = scores.class_accuracy(predicted, task.test_truth, len(task.classes))
            found["accuracy"] = float((predicted == task.test_truth).double().mean())
            found["per_class"] = [None if math.isnan(a) else a for a in per_class.tolist()]
        return found

    def _truth_free(self, outputs: Tensor, part: Tensor | slice) -> dict[str, Any]:
        """Metrics without true labels on a part of the validation split; None: the transition is singular."""
        task = self.task
        outputs, excluded = outputs[part], task.validation_excluded[part]
        logits, matrix = self.criterion.decode(outputs), task.transition
        found = {
            "scel": scores.scel(outputs + self.log_prior, excluded, self.criterion.label_matrix(matrix)),
            "ure": scores.ure(logits + self.log_prior, excluded, matrix),
            "estimated_accuracy": scores.estimated_accuracy(logits, excluded, matrix),
            "estimated_accuracy_error": scores.estimated_accuracy_error(logits, excluded, matrix),
        }
        return {name: None if value.isnan() else float(value) for name, value in found.items()}

    def _select(self, selection: Selection, table: Tensor, part: Tensor | slice) -> dict[str, Any]:
        """Calibrated SCEL and the epoch to use if the training ended now.

        Args:
            selection: What is known about earlier epochs.
            table: `scel_by_sharpness` of a part of the validation split, [S, V'].
            part: Which examples these are.
        """
        calibrated = calibrate(table)
        found: dict[str, Any] = {"scel_calibrated": float(calibrated.double().mean())}
        return found | ({"selected": selection.update(self.epoch + 1, calibrated)} if not self.done else {})

    def logits(self, inputs: Tensor | Rows) -> Tensor:
        """Predict in evaluation mode, without augmentation: inputs [N, ...], on any device -> logits [N, K].

        They are those of classes, also if the loss makes the network predict labels.
        """
        with no_capture():
            return self.criterion.decode(self.outputs(inputs))

    def outputs(self, inputs: Tensor | Rows) -> Tensor:
        """What the network predicts in evaluation mode, not decoded: inputs [N, ...] -> [N, K]."""
        return self._apply(self.evaluated.eval(), inputs)

    def features(self, inputs: Tensor | Rows) -> Tensor:
        """What the last layer of the network sees in evaluation mode: inputs [N, ...] -> [N, D]."""
        with no_capture():
            return self._apply(self.evaluated.eval().features, inputs)

    @torch.no_grad()
    def _apply(self, function: Callable[[Tensor], Tensor], inputs: Tensor | Rows) -> Tensor:
        """Apply a function to normalized inputs without augmentation, in chunks: inputs [N, ...] -> float32 [N, D]."""
        task, prefetch = self.task, True if self.streamed else None
        with self.engine.autocast():
            parts = [
                function(normalize(x, task.mean, task.std)) for x in chunks(inputs, self.device, prefetch=prefetch)
            ]
        return torch.cat(parts).float()

    # --- parts ------------------------------------------------------------------------------------------------------

    def build_network(self) -> networks.Network:
        """A new classifier."""
        kind, task = self.config.network, self.task
        name = kind.model if kind.model != "auto" else _default_model(task)
        return networks.build(name, task.shape, len(task.classes), self.config.seed, kind.max_pool)

    def build_average(self) -> networks.Network | None:
        """The EMA of the network, if there is one."""
        decay, steps = self.config.training.ema, self.epochs * self.steps_per_epoch
        if not decay:
            return None
        if steps * (1 - decay) < FEWEST_AVERAGES and self.processes.is_main:
            log.warning(
                "ema = %g averages over about %d steps, but the training has only %d, so it changes little; lower ema, "
                "or train longer.",
                decay,
                round(1 / (1 - decay)),
                steps,
            )
        return copy.deepcopy(self.model).requires_grad_(False)

    def build_loss(self, task: Task) -> losses.BoundLoss:
        """The loss with what it needs; ``task`` is that of all processes."""
        name = self.config.training.loss
        prior = self._class_prior(task) if method_of(name).prior else None
        share = per_label(task.excluded.float()).mean(0)
        return losses.build(name, task.loss_transition, prior, share).to(self.device)

    def _class_prior(self, task: Task) -> Tensor:
        """The share of each class, [K]: as the option ``prior`` says, or estimated from the labels alone."""
        found = class_prior(self.config, task.excluded, task.transition)
        if bool(found.error.isnan().any()):
            raise UserError(
                f"The loss {self.config.training.loss} needs the class prior, but it cannot be estimated: the "
                "transition matrix is singular, so the labels do not determine the classes. Give the prior, or set it "
                "to uniform.",
                "prior",
            )
        return found.share

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Adam or SGD; without weight decay for what the loss learns."""
        t, capturable = self.config.training, self.device.type == "cuda"
        groups: list[dict[str, Any]] = [{"params": list(self.model.parameters())}]
        if self.criterion.learned is not None:
            groups.append({"params": [self.criterion.learned], "weight_decay": 0.0})
        if t.optimizer == "sgd":
            rate = self.lr_value(t.lr)
            return torch.optim.SGD(groups, rate, MOMENTUM, weight_decay=t.weight_decay, nesterov=True, fused=True)
        return torch.optim.Adam(groups, t.lr, weight_decay=t.weight_decay, fused=True, capturable=capturable)

    def build_augmentation(self) -> tuple[CropAndFlip | None, auto.Policy | None]:
        """Crop and flip, and the policy for stronger augmentation; None for vectors."""
        t, shape = self.config.training, self.task.shape
        if len(shape) != 3:
            if t.policy != "none":
                raise UserError(
                    f"The policy {t.policy} augments images, but the inputs are vectors; use none.", "policy"
                )
            return None, None
        padding = default_padding(shape[1]) if t.padding is None else t.padding
        flip = self.task.flip if t.flip is None else t.flip
        return CropAndFlip(padding, flip), auto.build(t.policy, self.task.mean.tolist())

    def build_mixer(self) -> GroupMixup | None:
        """The mixer; None: examples are not mixed."""
        if self.streamed and self.config.variant.partners_from == "dataset":
            raise UserError(
                "partners_from = dataset needs inputs on the device, but these are streamed; use batch, or stop "
                "streaming.",
                "partners_from",
            )
        return build_mixer(self.config, self.task, self.load)

    def on_epoch_start(self) -> None:
        """Reset the moments of the optimizer if the configuration says so; in place, because a captured step refers to
        them."""
        if self.config.variant.reset_optimizer:
            for slots in self.optimizer.state.values():
                for value in slots.values():
                    value.zero_()

    def on_step_start(self) -> None:
        """Set the learning rate of SGD, and start the average.

        In its first steps, as many as it averages over, the average is a copy of the network: otherwise it would
        contain the initial weights.
        """
        t = self.config.training
        if t.optimizer == "sgd":
            warm_up = min(1.0, (self.global_step + 1) / self.steps_per_epoch)
            for group in self.optimizer.param_groups:
                set_lr(group, t.lr * warm_up * self.cosine_factor())
        if self.average is not None and self.global_step <= 1 / (1 - t.ema):
            self.average.load_state_dict(self.model.state_dict())

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def networks(self) -> list[nn.Module]:
        return [self.model] if self.average is None else [self.model, self.average]

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Set the weights of the network and of its average."""
        for network in self.networks():
            network.load_state_dict(weights)

    def tensors(self) -> dict[str, Tensor]:
        """Current weights, their average, weights of the best epoch, state of the optimizer, and fingerprints."""
        found = self._fingerprints() | optimizer_tensors(self.optimizer)
        if self.criterion.learned is not None:
            found |= {"loss/learned": self.criterion.learned.detach()}
            found |= {} if self.best_decoder is None else {"loss/best": self.best_decoder[0]}
        if self.average is not None:
            found |= add_prefix("average", self.average.state_dict())
        if len(self.task.validation):
            found |= {"validation_predictions": self.validation_predictions}
            for i, selection in enumerate(self.selections):
                found |= add_prefix(f"selection{i}", selection.tensors())
        return found | add_prefix("model", self.model.state_dict()) | add_prefix("best", self.best)

    def _fingerprints(self) -> dict[str, Tensor]:
        """Fingerprints of the encoder and of the clusters, if there are any, as tensors int64 []."""
        clusters = self.task.data_summary.get("clusters_sha256")
        found = {"encoder": None if self.encoder is None else self.encoder.fingerprint, "clusters": clusters}
        return {name: torch.tensor(int(value[:15], 16)) for name, value in found.items() if value is not None}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        for name, number in self._fingerprints().items():
            if not torch.equal(tensors[name], number):
                encoder = self.task.data_summary.get("encoder", self.config.cluster.assignments)
                what = "encoder has" if name == "encoder" else "clusters have"
                raise UserError(
                    f"The {what} changed since this run started (now: {encoder}); restore the old files, or start "
                    "another run.",
                    "encoder",
                )
        self.model.load_state_dict(strip_prefix("model", tensors))
        if self.average is not None:
            self.average.load_state_dict(strip_prefix("average", tensors))
        if len(self.task.validation):
            self.validation_predictions.copy_(tensors["validation_predictions"])
            for i, selection in enumerate(self.selections):
                selection.load_tensors(strip_prefix(f"selection{i}", tensors), self.device)
        self.best = {k: v.to(self.device) for k, v in strip_prefix("best", tensors).items()}
        if self.criterion.learned is not None:
            self.criterion.learned.data.copy_(tensors["loss/learned"])
        if self.best:
            learned = tensors.get("loss/best")
            self.best_decoder = self.criterion.decoder() if learned is None else (learned, learned)
        load_optimizer(self.optimizer, tensors)


def _default_model(task: Task) -> str:
    """The network that ``auto`` stands for."""
    if task.encoder is not None:
        return "linear"
    return "cnn" if len(task.shape) == 3 and min(task.shape[1:]) >= 16 else "mlp"


# --- pure functions, which are compiled once for all networks and mixers of a kind --------------------------------


def take(augment: CropAndFlip | None, inputs: Tensor, index: Tensor, moves: CropDraw | None) -> Tensor:
    """The examples of ``inputs`` [N, ...] at ``index`` int [B], augmented if they are images -> [B, ...]."""
    return inputs[index] if augment is None or moves is None else augment.apply(inputs, index, moves)


def mix(
    mixer: GroupMixup,
    x: Tensor,
    excluded: Tensor,
    cluster: Tensor | None,
    index: Tensor,
    draw: Draw,
    random: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Mix a batch x [B, ...] with excluded [B, K]; ``cluster`` int [N] is that of all examples."""
    mixed, soft = mixer.apply(x, excluded, None if cluster is None else cluster[index], draw, index, random)
    return (mixed.contiguous(memory_format=torch.channels_last) if mixed.ndim == 4 else mixed), soft


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """Inputs [B, ...] -> logits [B, K]."""
    logits: Tensor = model(x)
    return logits
