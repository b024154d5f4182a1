"""Self-supervised pretraining: one loop for SimSiam, BYOL and MoCo v3.

The result is an encoder: the body's weights, with what is needed to apply it. True labels are not used;
the kNN probe, where asked for, is an oracle figure in the log.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary import data, files
from complementary.augment.crop import normalise
from complementary.augment.views import NUMBERS, Views
from complementary.config import PretrainConfig
from complementary.data import Dataset
from complementary.data.rows import rows_of
from complementary.encoders.backbone import body_for, build_objective, describe, features
from complementary.engine.backend import Engine, device_name, versions
from complementary.engine.batches import too_large
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import TrainingLoop, load_optimiser, named, optimiser_tensors, set_rate
from complementary.engine.run_folder import carry_out
from complementary.errors import UserError
from complementary.long_tail import subset
from complementary.oracle import knn_accuracy

COLLAPSED = 0.05  # the gauge of healthy features is near 1
SETTLED = 50  # steps before the gauge counts: it rests on running batch-norm statistics, which lag behind


def two_views(
    objective: nn.Module, views: Views, images: Tensor, first: Tensor, second: Tensor, mean: Tensor, std: Tensor
) -> Tensor:
    """Images uint8 [B, C, H, W] and the random numbers of each view [NUMBERS, B] -> the loss.

    Pure, so that it compiles as a whole.
    """
    draws = (views.read(numbers, (images.shape[2], images.shape[3])) for numbers in (first, second))
    seen = (normalise(255 * views.apply(images, draw), mean, std) for draw in draws)
    loss: Tensor = objective(*(x.contiguous(memory_format=torch.channels_last) for x in seen))
    return loss


class Pretrainer(TrainingLoop):
    """An encoder in training."""

    def __init__(
        self,
        config: PretrainConfig,
        dataset: Dataset,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        chosen, engine = chosen_images(config, dataset), Engine.of(device)
        check_images(dataset, config.batch, len(chosen))
        super().__init__(config.hash(), config.seed, config.epochs, config.batch, len(chosen), engine, processes)
        self.config, self.dataset, self.chosen = config, dataset, chosen
        self.rows, shape = rows_of(dataset.train.inputs, chosen), tuple(dataset.train.inputs.shape[1:])
        own = self.rows if processes.size == 1 else self.rows.take(processes.part())
        self.feed = self.feed_of(own, too_large((own,), engine))
        self.mean, self.std = (torch.tensor(t, device=self.device) for t in (dataset.mean, dataset.std))
        self.body_name = config.backbone if config.backbone != "auto" else body_for(shape)
        objective = build_objective(config.encoder, self.body_name, shape, config.seed, config.max_pool, config.start)
        self.objective = objective.to(self.device, memory_format=torch.channels_last)
        self.views = views_for(config, dataset)
        self.loss = engine.compiled(two_views)
        self.lr = (config.lr or self.objective.base_lr) * config.batch / 256
        self.optimiser = self._new_optimiser()
        self.momentum = torch.zeros((), device=self.device)

    def _new_optimiser(self) -> torch.optim.SGD:
        """SGD; where an objective has a part of constant rate, in two groups."""
        constant = self.objective.constant
        parts: list[list[nn.Parameter]] = [[], []]
        for name, parameter in self.objective.named_parameters():
            if parameter.requires_grad:
                parts[constant is not None and name.startswith(constant)].append(parameter)
        groups = [{"params": part, "lr": self.as_rate(self.lr)} for part in parts if part]
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=self.config.weight_decay, fused=True)

    # --- the hot path -----------------------------------------------------------------------------

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """One update on two views of the images at ``index`` int [B] -> the loss, a scalar on the device."""
        self.objective.train()
        inputs, places = self.feed.find(index, batch)
        images = inputs[places]
        first, second = (torch.rand(NUMBERS, len(index), device=self.device, generator=random) for _ in range(2))
        with self.engine.autocast():
            loss: Tensor = self.loss(self.objective, self.views, images, first, second, self.mean, self.std)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        loss = self.processes.average(self.objective, loss.detach())
        self.optimiser.step()
        self.objective.follow(self.momentum)
        return loss

    def before_step(self) -> None:
        """Set this step's learning rate and momentum: a half cosine over the whole training."""
        fall = self.half_cosine()
        set_rate(self.optimiser.param_groups[0], self.lr * fall)  # the second, if any, does not decay
        if self.objective.momentum is not None:
            low, high = self.objective.momentum
            self.momentum.fill_(high - (high - low) * fall)

    # --- around it --------------------------------------------------------------------------------

    def networks(self) -> list[nn.Module]:
        """Body and heads."""
        return [self.objective]

    def scores(self) -> dict[str, Any]:
        """Learning rate, collapse gauge and, when it is time, the kNN probe."""
        scores: dict[str, Any] = {"lr": float(self.optimiser.param_groups[0]["lr"]), "gauge": self.gauge()}
        if not scores["gauge"] >= COLLAPSED and self.epoch >= 2 and self.steps_before() >= SETTLED:
            raise UserError(
                f"The encoder collapsed: at epoch {self.epoch + 1} all images have nearly the same features "
                f"(gauge {scores['gauge']:.3f}, healthy is near 1). The last checkpoint is kept. Try a lower --lr or a "
                "larger --batch."
            )
        every = self.config.probe_every
        if every and ((self.epoch + 1) % every == 0 or self.epoch + 1 == self.epochs):
            scores["oracle_knn"] = self.knn()
        return scores

    @torch.no_grad()
    def gauge(self) -> float:
        """Spread of the projections' directions on up to 1,024 images: 1 is isotropic, 0 is collapsed."""
        self.objective.eval()
        count = self.own_examples  # evenly over the set, because long tails come in class order
        spread = torch.arange(min(count, 1024), device=self.device) * count // min(count, 1024)
        inputs, places = self.feed.find(spread, None)
        x = normalise(inputs[places], self.mean, self.std)
        z = F.normalize(self.objective.project(x).float())
        return float(z.std(0).mean() * z.shape[1] ** 0.5)

    def knn(self) -> float | None:
        """kNN accuracy on the test set: an oracle figure; None without true labels."""
        train, test = self.dataset.train, self.dataset.test
        if train.truth is None or test is None or test.truth is None:
            return None
        bank, queries = (features(self.objective.body, part, self.mean, self.std) for part in (self.rows, test.inputs))
        truth = train.truth[self.chosen].to(self.device)
        return knn_accuracy(bank, truth, queries, test.truth.to(self.device))

    def tensors(self) -> dict[str, Tensor]:
        """Body, heads, slow copy and the optimiser's state."""
        return {f"objective/{k}": v for k, v in self.objective.state_dict().items()} | optimiser_tensors(self.optimiser)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        self.objective.load_state_dict(named("objective", tensors))
        load_optimiser(self.optimiser, tensors)


def chosen_images(config: PretrainConfig, dataset: Dataset) -> Tensor:
    """The training images of this configuration: indices int [M], the same as those of a run of that subset."""
    seed = None if config.subset == "first" else config.seed
    ratio, usual = config.long_tail, dataset.head
    return subset(dataset.train.truth, len(dataset.classes), len(dataset.train), ratio, config.head, usual, seed)


def check_images(dataset: Dataset, batch: int, count: int) -> None:
    """Raise unless there are images, and enough of them for a batch."""
    if dataset.train.inputs.ndim != 4:
        raise UserError(
            f"The set {dataset.name} holds vectors, and encoders learn from images; vectors are clustered as they are."
        )
    if count < batch:
        raise UserError(f"There are {count} images, fewer than one batch of {batch}; pass --batch {count} or less.")


def views_for(config: PretrainConfig, dataset: Dataset) -> Views:
    """The augmentation of this configuration."""
    c, flip = config, dataset.flip if config.flip is None else config.flip
    return Views(c.min_scale, 0.5 * flip, c.jitter, grey=c.grayscale, blur=c.blur, solarise=c.solarize)


def pretrain(
    config: PretrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    device: str | Engine = "auto",
    checkpoint_seconds: float = 30.0,
    progress: Any = None,
    dataset: Dataset | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Pretrain in the folder ``out`` -> the result; encoder.safetensors there holds the body."""

    def make() -> Pretrainer:
        return Pretrainer(config, dataset or data.load(config.data), device, processes)

    how: dict[str, Any] = {"resume": resume, "checkpoint_seconds": checkpoint_seconds, "progress": progress}
    return carry_out(Path(out), config, make, _finish, processes=processes, **how)


def _finish(folder: Path, job: Pretrainer) -> dict[str, Any]:
    record = describe(job.objective.body) | {
        "shape": list(job.rows.shape[1:]),
        "mean": job.mean.tolist(),
        "std": job.std.tolist(),
        "config": job.config_hash,
    }
    files.write_checkpoint(folder / "encoder.safetensors", job.objective.body.state_dict(), record)
    views = 2 * len(job.history) * job.steps_per_epoch * job.batch
    return {
        "loss_last": job.history[-1]["loss"],
        "gauge_last": job.history[-1]["gauge"],
        "oracle_knn": job.history[-1].get("oracle_knn"),
        "images": job.examples,
        "views_per_second": round(views / job.seconds, 1),
        "train_seconds": round(job.seconds, 3),
        "config": vars(job.config),
        "config_hash": job.config_hash,
        "device": device_name(job.device),
        "processes": job.processes.size,
        "precision": job.engine.precision,
        "versions": versions(),
    }
