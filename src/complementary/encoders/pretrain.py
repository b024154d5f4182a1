"""Self-supervised pretraining of an encoder with SimSiam, BYOL or MoCo v3.

The result is the weights of the backbone, with what is needed to apply it. Labels are not used; the optional kNN probe
is an oracle metric in the log.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary import data
from complementary.augment.crop import normalize
from complementary.augment.views import NUMBERS, Views
from complementary.config import PretrainConfig
from complementary.data import Dataset
from complementary.data.rows import rows_of
from complementary.data.selection import Subset
from complementary.encoders.backbone import (
    build_backbone,
    default_backbone,
    describe,
    extract_features,
    load_backbone,
)
from complementary.encoders.frozen import FrozenEncoder
from complementary.encoders.objectives import OBJECTIVES, Objective
from complementary.encoders.seen import image_digests, read_seen
from complementary.encoders.spec import WEIGHTS, EncoderSpec
from complementary.engine.backend import Engine, device_name, versions
from complementary.engine.batches import should_stream
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import (
    Progress,
    TrainingLoop,
    add_prefix,
    load_optimizer,
    optimizer_tensors,
    set_lr,
    strip_prefix,
)
from complementary.engine.run_folder import RunFolder
from complementary.errors import UserError
from complementary.networks import Network
from complementary.oracle import knn_accuracy
from complementary.rng import address, seeded

COLLAPSED = 0.05  # the collapse gauge of healthy features is near 1
SETTLED = 50  # steps before the gauge is checked: it needs running batch-norm statistics


def pretrain(
    config: PretrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    device: str | Engine = "auto",
    checkpoint_seconds: float = 30.0,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Pretrain an encoder in a folder.

    Args:
        config: The pretraining.
        out: The folder; encoder.safetensors contains the backbone in the end.
        resume: Continue the pretraining in the folder.
        device: The device, or the engine that computes.
        checkpoint_seconds: Time between checkpoints.
        progress: Called after every step.
        dataset: The dataset; None: the one that the configuration names.
        processes: The processes that share the work.

    Returns:
        The content of result.json.
    """
    with RunFolder(Path(out), config, resume=resume, processes=processes) as folder:
        if folder.finished:
            return folder.result()
        trainer = Pretrainer(config, dataset or data.load(config.data), device, processes)
        folder.train(trainer, progress, checkpoint_seconds)
        if processes.is_main:
            trainer.write_encoder(folder.path / WEIGHTS)
        return folder.finish(trainer.result())


class Pretrainer(TrainingLoop):
    """The training loop of an encoder.

    Args:
        config: The pretraining.
        dataset: Its dataset: the training images, and the test set for the kNN probe.
        device: The device, or the engine that computes.
        processes: The processes that share the work.
    """

    def __init__(
        self,
        config: PretrainConfig,
        dataset: Dataset,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        chosen, engine = Subset.of(config).index(dataset), Engine.of(device)
        check_images(dataset, config.batch, len(chosen))
        super().__init__(config.hash(), config.seed, config.epochs, config.batch, len(chosen), engine, processes)
        self.config, self.dataset, self.chosen = config, dataset, chosen
        self.rows, shape = rows_of(dataset.train.inputs, chosen), tuple(dataset.train.inputs.shape[1:])
        local = self.rows if processes.world_size == 1 else self.rows.take(processes.shard())
        self.set_inputs(local, should_stream((local,), engine))
        self.mean, self.std = (torch.tensor(t, device=self.device) for t in (dataset.mean, dataset.std))
        self.objective = build_objective(config, shape).to(self.device)
        self.objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the fastest layout
        self.views = views_for(config, dataset)
        self.loss = engine.compiled(two_views)
        self.lr = (config.lr or self.objective.base_lr) * config.batch / 256
        self.optimizer = self._new_optimizer()
        self.momentum = torch.zeros((), device=self.device)

    def _new_optimizer(self) -> torch.optim.SGD:
        """SGD, with a second group of parameters if the objective has a part of constant learning rate."""
        constant = self.objective.constant_lr
        parts: list[list[nn.Parameter]] = [[], []]
        for name, parameter in self.objective.named_parameters():
            if parameter.requires_grad:
                parts[constant is not None and name.startswith(constant)].append(parameter)
        groups = [{"params": part, "lr": self.lr_value(self.lr)} for part in parts if part]
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=self.config.weight_decay, fused=True)

    # --- the step ---------------------------------------------------------------------------------------------------

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """One update on two views of the images at ``index`` int [B] -> the loss, a scalar on the device."""
        self.objective.train()
        inputs, positions = self.locate(index, batch)
        images = inputs[positions]
        first, second = (torch.rand(NUMBERS, len(index), device=self.device, generator=random) for _ in range(2))
        with self.engine.autocast():
            loss: Tensor = self.loss(self.objective, self.views, images, first, second, self.mean, self.std)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        loss = self.processes.average_gradients(self.objective, loss.detach())
        self.optimizer.step()
        self.objective.update_target(self.momentum)
        return loss

    def on_step_start(self) -> None:
        """Set the learning rate and the momentum of this step: a half cosine over the whole training."""
        factor = self.cosine_factor()
        set_lr(self.optimizer.param_groups[0], self.lr * factor)  # the second group, if any, does not decay
        if self.objective.momentum is not None:
            low, high = self.objective.momentum
            self.momentum.fill_(high - (high - low) * factor)

    # --- the end of an epoch ----------------------------------------------------------------------------------------

    def scores(self) -> dict[str, Any]:
        """Learning rate, collapse gauge and, every ``probe_every`` epochs, the kNN probe."""
        scores: dict[str, Any] = {"lr": float(self.optimizer.param_groups[0]["lr"]), "gauge": self.gauge()}
        if not scores["gauge"] >= COLLAPSED and self.epoch >= 2 and self.global_step >= SETTLED:
            raise UserError(
                f"The encoder collapsed: at epoch {self.epoch + 1} all images have nearly the same features "
                f"(gauge {scores['gauge']:.3f}, healthy: near 1). Try a lower lr or a larger batch.",
                "lr",
            )
        every = self.config.probe_every
        if every and ((self.epoch + 1) % every == 0 or self.epoch + 1 == self.epochs):
            scores["oracle_knn"] = self.knn()
        return scores

    @torch.no_grad()
    def gauge(self) -> float:
        """The collapse gauge: spread of the directions of up to 1,024 projections; 1 is isotropic, 0 collapsed."""
        self.objective.eval()
        count = self.local_examples
        # evenly over the set, because long tails are sorted by class
        spread = torch.arange(min(count, 1024), device=self.device) * count // min(count, 1024)
        inputs, positions = self.locate(spread, None)
        x = normalize(inputs[positions], self.mean, self.std)
        z = F.normalize(self.objective.project(x).float())
        return float(z.std(0).mean() * z.shape[1] ** 0.5)

    def knn(self) -> float | None:
        """kNN accuracy on the test set (an oracle metric); None without true labels."""
        train, test = self.dataset.train, self.dataset.test
        if train.truth is None or test is None or test.truth is None:
            return None
        backbone, inputs = self.objective.backbone, (self.rows, test.inputs)
        bank, queries = (extract_features(backbone, part, self.mean, self.std) for part in inputs)
        truth = train.truth[self.chosen].to(self.device)
        return knn_accuracy(bank, truth, queries, test.truth.to(self.device))

    # --- state ------------------------------------------------------------------------------------------------------

    def networks(self) -> list[nn.Module]:
        """Backbone, heads and target network."""
        return [self.objective]

    def tensors(self) -> dict[str, Tensor]:
        """Backbone, heads, target network and the state of the optimizer."""
        return add_prefix("objective", self.objective.state_dict()) | optimizer_tensors(self.optimizer)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        self.objective.load_state_dict(strip_prefix("objective", tensors))
        load_optimizer(self.optimizer, tensors)

    def write_encoder(self, path: Path) -> None:
        """Write the backbone, what is needed to apply it, and which images it has seen."""
        shape, seen = tuple(self.rows.shape[1:]), self._seen()
        encoder = FrozenEncoder(self.objective.backbone, shape, self.mean, self.std, seen=seen)
        encoder.write(path, config=self.config_hash, objective=self.config.encoder, epochs=self.config.epochs)

    def _seen(self) -> Tensor | None:
        """Digests of the images of this pretraining and of the encoder that it started from; None: not known."""
        own, start = image_digests(self.rows), self.config.start
        if start is not None:
            weights = EncoderSpec.parse(start, "start").weights
            before = None if weights is None else read_seen(weights)
            if before is None:
                return None
            own = torch.cat([own, before])
        return torch.from_numpy(np.unique(own.numpy()))

    def result(self) -> dict[str, Any]:
        """The result of a finished pretraining; an empty dictionary in all processes except rank 0."""
        if not self.processes.is_main:
            return {}
        views = 2 * len(self.history) * self.steps_per_epoch * self.batch
        return {
            "loss_last": self.history[-1]["loss"],
            "gauge_last": self.history[-1]["gauge"],
            "oracle_knn": self.history[-1].get("oracle_knn"),
            "images": self.examples,
            "views_per_second": round(views / self.seconds, 1),
            "train_seconds": round(self.seconds, 3),
            "config": self.config.flat(),
            "config_hash": self.config_hash,
            "device": device_name(self.device),
            "processes": self.processes.world_size,
            "precision": self.engine.precision,
            "versions": versions(),
        }


def two_views(
    objective: nn.Module, views: Views, images: Tensor, first: Tensor, second: Tensor, mean: Tensor, std: Tensor
) -> Tensor:
    """The loss of a batch; a pure function, so that it can be compiled as a whole.

    Args:
        objective: Backbone and heads.
        views: The augmentation.
        images: uint8 [B, C, H, W].
        first: Random numbers of the first view, [NUMBERS, B].
        second: Those of the second view.
        mean: [C].
        std: [C].

    Returns:
        A scalar.
    """
    draws = (views.read(numbers, (images.shape[2], images.shape[3])) for numbers in (first, second))
    pair = (normalize(255 * views.apply(images, draw), mean, std) for draw in draws)
    loss: Tensor = objective(*(x.contiguous(memory_format=torch.channels_last) for x in pair))
    return loss


def build_objective(config: PretrainConfig, shape: tuple[int, ...]) -> Objective:
    """Build the backbone and the heads of a pretraining, for images of ``shape`` [C, H, W].

    The weights depend on the seed only, unless ``start`` names an encoder: then the backbone is loaded from there.
    """
    name = default_backbone(shape) if config.backbone == "auto" else config.backbone
    backbone, width = build_backbone(name, shape, config.seed, config.max_pool)
    if config.start is not None:
        start = load_backbone(EncoderSpec.parse(config.start, "start"), shape)
        if describe(start) != describe(backbone):
            raise UserError(
                f"The encoder {config.start} is a {_name(start)}, but this pretraining has a {_name(backbone)}; "
                "change backbone or max_pool.",
                "start",
            )
        backbone.load_state_dict(start.state_dict())
    with seeded(address(config.seed, "heads")):
        return OBJECTIVES[config.encoder](backbone, width)  # type: ignore[call-arg]


def _name(backbone: Network) -> str:
    return backbone.kind if backbone.max_pool else f"{backbone.kind} without max-pool"


def check_images(dataset: Dataset, batch: int, count: int) -> None:
    """Raise unless the dataset has images, and enough of them for a batch."""
    if dataset.train.inputs.ndim != 4:
        raise UserError(f"The dataset {dataset.name} holds vectors, but encoders are pretrained on images.", "data")
    if count < batch:
        raise UserError(f"There are {count} images, fewer than one batch of {batch}; use {count} or less.", "batch")


def views_for(config: PretrainConfig, dataset: Dataset) -> Views:
    """The augmentation of a pretraining."""
    c, flip = config, dataset.flip if config.flip is None else config.flip
    return Views(c.min_scale, 0.5 * flip, c.jitter, grayscale=c.grayscale, blur=c.blur, solarize=c.solarize)
