"""The training loop, shared by classifiers and encoders. A subclass defines what a step does.

Training can stop after any step and continue exactly: every random draw of a step comes from a generator that is seeded
with the seed, the epoch and the step.
"""

import contextlib
import functools
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from complementary.data.rows import Rows
from complementary.engine.backend import Captured, Engine
from complementary.engine.batches import PrefetchedBatches
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.errors import UserError
from complementary.files import fingerprint
from complementary.rng import address, generator

Progress = Callable[["TrainingLoop"], None]
"""Called after every step."""


class TrainingLoop(ABC):
    """A training in progress: position, order of the examples, check for NaN, and history.

    Args:
        config_hash: Identifies the configuration.
        seed: Seed of every random draw.
        epochs: Number of epochs.
        batch: Batch size over all processes.
        examples: Number of examples of all processes.
        engine: Where and how to compute.
        processes: The processes that share the work.
    """

    stage = ""  # shown before the epoch, if a run trains several networks in turn
    lr_option = "lr"  # option to lower if the loss diverges

    def __init__(
        self,
        config_hash: str,
        seed: int,
        epochs: int,
        batch: int,
        examples: int,
        engine: Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.config_hash, self.seed, self.epochs, self.batch = config_hash, seed, epochs, batch
        self.examples, self.engine, self.device, self.processes = examples, engine, engine.device, processes
        self.steps_per_epoch = examples // batch
        self.epoch = self.step_in_epoch = 0
        self.random = torch.Generator(device=self.device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.steps_taken = torch.zeros((), dtype=torch.long, device=self.device)
        self.first_bad_step = torch.full((), -1, dtype=torch.long, device=self.device)
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.seconds_before = 0.0  # of the trainings that came before this one
        self.captured: list[Captured] = []
        self.run_step = self.capture(self._counted_step)
        self.local_batch = processes.local_batch(batch)
        self.local_examples = len(range(examples)[processes.shard()])
        self.prefetched: PrefetchedBatches | None = None

    # --- what a subclass defines ------------------------------------------------------------------------------------

    @abstractmethod
    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """Update the weights once. It is captured on a GPU: fixed shapes, no synchronization, all randomness explicit.

        Args:
            index: The examples, int [B].
            random: Source of all random draws of the step.
            batch: Their raw inputs [B, ...], if inputs are streamed.

        Returns:
            The loss, a scalar on the device.
        """

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """All networks whose weights must stay finite."""

    @abstractmethod
    def scores(self) -> dict[str, Any]:
        """Metrics to record at the end of an epoch."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must contain."""

    @abstractmethod
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned."""

    def on_epoch_start(self) -> None:
        """Called before the first step of an epoch."""
        return

    def on_step_start(self) -> None:
        """Called before every step, outside of the captured part, for schedules."""
        return

    # --- the loop ---------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.epoch >= self.epochs

    @property
    def global_step(self) -> int:
        """Number of steps taken so far."""
        return self.epoch * self.steps_per_epoch + self.step_in_epoch

    def run(self, *callbacks: Progress | None) -> None:
        """Train to the end and call the callbacks after every step."""
        with contextlib.closing(self):
            while not self.done:
                self.advance()
                for callback in callbacks:
                    if callback is not None:
                        callback(self)

    def advance(self) -> bool:
        """Take one step; after the last step of an epoch, record its metrics.

        Returns:
            Whether an epoch has ended.
        """
        started = time.perf_counter()
        if self.step_in_epoch == 0:
            self._shuffle()
            self.loss_sum.zero_()
            self.on_epoch_start()
        index = self.order[self.step_in_epoch * self.local_batch : (self.step_in_epoch + 1) * self.local_batch]
        self.random.manual_seed(address(self.seed, "step", self.epoch, self.step_in_epoch, *self.processes.address))
        self.on_step_start()
        batch = () if self.prefetched is None else (self.prefetched.batch(self.global_step),)
        self.run_step(index, self.random, *batch)
        self.step_in_epoch += 1
        ended = self.step_in_epoch == self.steps_per_epoch
        if ended and self.device.type == "cuda":  # only this stream: other threads may be capturing on theirs
            torch.cuda.current_stream(self.device).synchronize()
        self.seconds += time.perf_counter() - started
        if ended:
            self._end_epoch()
        return ended

    def _counted_step(self, index: Tensor, random: torch.Generator, *batch: Tensor) -> Tensor:
        """A step and its bookkeeping, in place on the device, so that one graph contains both."""
        loss = self.step(index, random, *batch)
        self.loss_sum += loss
        bad = (self.first_bad_step < 0) & ~torch.isfinite(loss)
        self.first_bad_step.copy_(torch.where(bad, self.steps_taken, self.first_bad_step))
        self.steps_taken += 1
        return loss

    def _shuffle(self) -> None:
        self.order = epoch_order(self.seed, self.local_examples, self.processes.address, self.epoch).to(self.device)

    def _end_epoch(self) -> None:
        self.check_finite()
        scores = self.scores() if self.processes.is_main else {}
        self.history.append({"epoch": self.epoch + 1, "loss": float(self.loss_sum) / self.steps_per_epoch, **scores})
        self.epoch, self.step_in_epoch = self.epoch + 1, 0

    def check_finite(self) -> None:
        """Raise if a loss or a weight is not finite, and name the first such step."""
        bad = int(self.first_bad_step)
        weights = [weight.detach() for network in self.networks() for weight in network.parameters()]
        largest = nn.utils.get_total_norm(weights, math.inf)  # of all weights at once: one synchronization
        if bad < 0 and bool(torch.isfinite(largest)):
            return
        place = bad if bad >= 0 else self.global_step - 1
        epoch, step = divmod(place, self.steps_per_epoch)
        raise UserError(
            f"The loss became NaN or infinite at epoch {epoch + 1}, step {step + 1} (step {place + 1} in total). "
            f"Training was stopped; the last good checkpoint, if there is one, is kept. Lower {self.lr_option}, and "
            "check the data for extreme values.",
            self.lr_option,
        )

    def check_in_sync(self) -> None:
        """Raise unless all processes have the same configuration, position and weights."""
        self.processes.check_equal(int(self.config_hash[:15], 16), "configuration")
        self.processes.check_equal(self.global_step, "checkpoint")
        weights = {f"{i}/{k}": v for i, n in enumerate(self.networks()) for k, v in n.state_dict().items()}
        self.processes.check_equal(int(fingerprint(weights)[:15], 16), "network (weights)")

    # --- tools for subclasses ---------------------------------------------------------------------------------------

    def set_inputs(self, rows: Rows, streamed: bool) -> None:
        """Set the inputs of this process, which `locate` finds: kept on the device, or prefetched batch by batch."""
        self.local_inputs = rows if streamed else rows.to(self.device)
        if streamed:
            order = functools.partial(epoch_order, self.seed, self.local_examples, self.processes.address)
            plan = functools.partial(_plan, order, self.local_batch, self.steps_per_epoch, self.epochs)
            self.prefetched = PrefetchedBatches(rows, self.device, self.local_batch, plan)

    def locate(self, index: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Find the raw inputs of some examples.

        Args:
            index: The examples, int [B].
            batch: Their prefetched inputs [B, ...], in a step of a streamed training.

        Returns:
            Inputs [M, ...] on the device, and the positions of the examples in them, int [B].
        """
        rows = self.local_inputs
        if self.prefetched is None:
            return rows.source, rows.positions(index)
        if batch is None:
            batch = rows.source[rows.positions(index.cpu())].to(self.device)
        return batch, torch.arange(len(index), device=self.device)

    def capture(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function as the engine captures it; `close` releases the graph."""
        found = self.engine.captured(function)
        self.captured += [found] if isinstance(found, Captured) else []
        return found

    def close(self) -> None:
        """Stop prefetching and release the CUDA graphs; the next step, if there is one, starts them again."""
        if self.prefetched is not None:
            self.prefetched.close()
        for graph in self.captured:
            graph.close()

    def cosine_factor(self) -> float:
        """Cosine schedule: 1 at the first step of the training, 0 at its end."""
        done = self.global_step / (self.epochs * self.steps_per_epoch)
        return (1 + math.cos(math.pi * done)) / 2

    def lr_value(self, lr: float) -> Any:
        """A learning rate for an optimizer: a tensor on a GPU, so that it can change in a captured step."""
        return torch.tensor(lr, device=self.device) if self.device.type == "cuda" else lr

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a JSON-able record from which `restore` continues exactly."""
        record: dict[str, Any] = {"epoch": self.epoch, "step": self.step_in_epoch, "seconds": self.seconds}
        record |= {"config": self.config_hash, "history": json.dumps(self.history)}
        return self.tensors() | {"loss_sum": self.loss_sum}, record | {"processes": self.processes.world_size}

    def restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Restore what `state` returned. The number of processes must be the same, because it determines the shards."""
        if (before := record["processes"]) != self.processes.world_size:
            raise UserError(
                f"This training was started with {before} processes, but now there are {self.processes.world_size}; "
                f"resume it with {before}, or start another run."
            )
        self.load_tensors(tensors)
        self.loss_sum.copy_(tensors["loss_sum"])
        self.epoch, self.step_in_epoch, self.seconds = record["epoch"], record["step"], record["seconds"]
        self.steps_taken.fill_(self.global_step)
        self.history = json.loads(record["history"])
        if self.step_in_epoch:
            self._shuffle()


def epoch_order(seed: int, examples: int, address: tuple[int, ...], epoch: int) -> Tensor:
    """The order of a process's examples in an epoch, int [N], on the CPU."""
    return torch.randperm(examples, generator=generator(seed, "order", epoch, *address))


def _plan(order: Any, batch: int, steps: int, epochs: int, start: int) -> Iterator[Tensor]:
    """The examples of step ``start`` and of all later steps, int [B] each; ``order``: epoch -> int [N]."""
    for epoch in range(start // steps, epochs):
        batches = order(epoch)[: steps * batch].split(batch)
        yield from batches[start % steps if epoch == start // steps else 0 :]


# --- optimizers and state dicts -----------------------------------------------------------------------------------


def set_lr(group: dict[str, Any], lr: float) -> None:
    """Set the learning rate of a parameter group; in place if it is a tensor, which a captured step refers to."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer as named tensors, such as ``optimizer/3/exp_avg``."""
    slots = optimizer.state_dict()["state"].items()
    return {f"optimizer/{i}/{slot}": value for i, values in slots for slot, value in values.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` returned, in the memory format of the weights, which fused updates require.

    Learning rates keep their values, and stay the same tensors.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in strip_prefix("optimizer", tensors).items():
        i, slot = name.split("/")
        like = torch.empty_like(weights[int(i)], dtype=value.dtype, device=value.device)
        slots.setdefault(int(i), {})[slot] = like.copy_(value) if value.shape == like.shape else value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": slots})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """``{"fc.bias": t}`` -> ``{"model/fc.bias": t}``."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under ``prefix/``, without it: ``{"model/fc.bias": t}`` -> ``{"fc.bias": t}``."""
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}
