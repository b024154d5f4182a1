"""Something that learns in epochs and steps, and can stop after any step and go on as if it had not.

The loop itself is here, once, for classifiers and encoders alike; what a step does is up to the subclass.
Every random draw of step (epoch, step) comes from a generator seeded with just that.
"""

import functools
import hashlib
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
from complementary.engine.batches import BatchSource, PrefetchedBatches, ResidentBatches
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.errors import UserError
from complementary.rng import address, generator


class TrainingLoop(ABC):
    """Counters, order of examples, health and history of a training in progress.

    ``batch`` and ``examples`` count those of all processes of the ``processes``; each has its share of both.
    """

    stage = ""  # said before the number of an epoch, where a run has trainings of several kinds
    rate_option = "--lr"  # what to lower if the loss turns infinite
    feed: BatchSource = ResidentBatches(
        Rows(torch.empty(0))
    )  # what gives a step its raw examples; a subclass sets it, if it likes

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
        self.share = processes.share(batch)
        self.own_examples = len(range(examples)[processes.part()])
        self.epoch = self.step_in_epoch = 0
        self.random = torch.Generator(device=self.device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.steps_taken = torch.zeros((), dtype=torch.long, device=self.device)
        self.first_bad = torch.full((), -1, dtype=torch.long, device=self.device)
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.captured: list[Captured] = []
        self.run_step = self.capture(self._counted_step)

    # --- what a subclass says -----------------------------------------------------------------------

    @abstractmethod
    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """One update on the examples at ``index`` int [B] -> the loss, a scalar on the device.

        ``batch`` [B, ...]: their raw inputs, where those are streamed. Fixed shapes, no wait for the device, all
        randomness from ``random``: on a GPU it is captured.
        """

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """Everything with weights that must stay finite."""

    @abstractmethod
    def scores(self) -> dict[str, Any]:
        """What to record at the end of an epoch."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that must be saved to go on exactly."""

    @abstractmethod
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""

    def open_epoch(self) -> None:
        """Called before the first step of an epoch."""
        return

    def before_step(self) -> None:
        """Called before every step, outside of what is captured: schedules belong here."""
        return

    # --- the loop -----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all epochs are finished."""
        return self.epoch >= self.epochs

    def advance(self) -> bool:
        """Take the next step, and close the epoch if it was its last -> whether it was."""
        started = time.perf_counter()
        if self.step_in_epoch == 0:
            self._shuffle()
            self.loss_sum.zero_()
            self.open_epoch()
        index = self.order[self.step_in_epoch * self.share : (self.step_in_epoch + 1) * self.share]
        self.random.manual_seed(address(self.seed, "step", self.epoch, self.step_in_epoch, *self.processes.address))
        self.before_step()
        self.run_step(index, self.random, *self.feed.batch(self.steps_before()))
        self.step_in_epoch += 1
        closed = self.step_in_epoch == self.steps_per_epoch
        if closed and self.device.type == "cuda":  # this job's stream only: others may be capturing theirs
            torch.cuda.current_stream(self.device).synchronize()
        self.seconds += time.perf_counter() - started
        if closed:
            self._close_epoch()
        return closed

    def half_cosine(self) -> float:
        """From 1 at the first step of the whole training down to 0 at its end, for schedules."""
        done = self.steps_before() / (self.epochs * self.steps_per_epoch)
        return (1 + math.cos(math.pi * done)) / 2

    def as_rate(self, value: float) -> Any:
        """A learning rate as an optimiser wants it: a tensor on a GPU, so that a captured step sees it change."""
        return torch.tensor(value, device=self.device) if self.device.type == "cuda" else value

    def steps_before(self) -> int:
        """How many steps lie behind."""
        return self.epoch * self.steps_per_epoch + self.step_in_epoch

    def _counted_step(self, index: Tensor, random: torch.Generator, *batch: Tensor) -> Tensor:
        """A step and its bookkeeping, in place on the device: one graph holds both."""
        loss = self.step(index, random, *batch)
        self.loss_sum += loss
        new = (self.first_bad < 0) & ~torch.isfinite(loss)
        self.first_bad.copy_(torch.where(new, self.steps_taken, self.first_bad))
        self.steps_taken += 1
        return loss

    def _shuffle(self) -> None:
        self.order = order_of(self.seed, self.own_examples, self.processes.address, self.epoch).to(self.device)

    def _close_epoch(self) -> None:
        self.check_health()
        row = {"epoch": self.epoch + 1, "loss": float(self.loss_sum) / self.steps_per_epoch, **self._scores()}
        self.history.append(row)
        self.epoch, self.step_in_epoch = self.epoch + 1, 0

    def _scores(self) -> dict[str, Any]:
        return self.scores() if self.processes.is_main else {}

    def check_health(self) -> None:
        """Raise if a loss or a weight is not finite, naming the first bad step."""
        bad = int(self.first_bad)
        weights = [weight.detach() for network in self.networks() for weight in network.parameters()]
        largest = nn.utils.get_total_norm(weights, math.inf)  # of all at once: one wait, not one for each of them
        if bad < 0 and bool(torch.isfinite(largest)):
            return
        place = bad if bad >= 0 else self.steps_before() - 1
        epoch, step = divmod(place, self.steps_per_epoch)
        raise UserError(
            f"The loss turned NaN or infinite at epoch {epoch + 1}, step {step + 1} (step {place + 1} in all). "
            "Training was stopped; the last good checkpoint, if one was written, is kept. Try a lower "
            f"{self.rate_option}, and look for extreme values in the data."
        )

    def feed_of(self, rows: Rows, streamed: bool) -> BatchSource:
        """What gives the steps their share of ``rows``, this process's examples."""
        if not streamed:
            return ResidentBatches(rows.to(self.device))
        order = functools.partial(order_of, self.seed, self.own_examples, self.processes.address)
        plan = functools.partial(_plan, order, self.share, self.steps_per_epoch, self.epochs)
        return PrefetchedBatches(rows, self.device, self.share, plan)

    def check_same(self) -> None:
        """Raise unless all processes have the same configuration, place and weights."""
        if self.processes.size == 1:
            return
        self.processes.check_same(int(self.config_hash[:15], 16), "a configuration")
        self.processes.check_same(self.steps_before(), "a checkpoint")
        weights = hashlib.sha256()
        for tensor in (t for network in self.networks() for t in network.state_dict().values()):
            weights.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self.processes.check_same(int(weights.hexdigest()[:15], 16), "weights")

    def capture(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``function`` as the engine captures it, until `close`."""
        found = self.engine.captured(function)
        self.captured += [found] if isinstance(found, Captured) else []
        return found

    def close(self) -> None:
        """Stop what works ahead of the steps, and let graphs go; the next step, if there is one, starts them again."""
        self.feed.close()
        for graph in self.captured:
            graph.close()

    # --- what a checkpoint holds --------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a JSON-able record from which `restore` goes on exactly."""
        record: dict[str, Any] = {"epoch": self.epoch, "step": self.step_in_epoch, "seconds": self.seconds}
        record |= {"config": self.config_hash, "history": json.dumps(self.history), "processes": self.processes.size}
        return self.tensors() | {"loss_sum": self.loss_sum}, record

    def restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Go back to a state that `state` gave, in as many processes: their number decides who sees what."""
        if (before := record.get("processes", 1)) != self.processes.size:
            raise UserError(
                f"This training was started with {before} process{'es' * (before > 1)}, but now there "
                f"{'are' if self.processes.size > 1 else 'is'} {self.processes.size}; resume it with as many, "
                "or start anew with another --out."
            )
        self.load_tensors(tensors)
        self.loss_sum.copy_(tensors["loss_sum"])
        self.epoch, self.step_in_epoch, self.seconds = record["epoch"], record["step"], record["seconds"]
        self.steps_taken.fill_(self.steps_before())
        self.history = json.loads(record["history"])
        if self.step_in_epoch:
            self._shuffle()


def order_of(seed: int, examples: int, address: tuple[int, ...], epoch: int) -> Tensor:
    """The order in which an epoch shows a process its examples, int [N] on the CPU."""
    return torch.randperm(examples, generator=generator(seed, "order", epoch, *address))


def _plan(order: Any, batch: int, steps: int, epochs: int, start: int) -> Iterator[Tensor]:
    """The examples of step ``start`` and of all later ones, int [B] each; ``order``: epoch -> int [N]."""
    for epoch in range(start // steps, epochs):
        batches = order(epoch)[: steps * batch].split(batch)
        yield from batches[start % steps if epoch == start // steps else 0 :]


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Change the learning rate of an optimiser's group; in place where it is a tensor, which a captured step holds."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser as named tensors, ``optimiser/3/exp_avg`` and so on."""
    slots = optimiser.state_dict()["state"].items()
    return {f"optimiser/{i}/{slot}": value for i, values in slots for slot, value in values.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take back what `optimiser_tensors` gave, laid out in memory as the weights are: fused updates insist on it.

    Learning rates stay what they are, the very tensors where they are such.
    """
    rates = [group["lr"] for group in optimiser.param_groups]
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in named("optimiser", tensors).items():
        i, slot = name.split("/")
        like = torch.empty_like(weights[int(i)], dtype=value.dtype, device=value.device)
        slots.setdefault(int(i), {})[slot] = like.copy_(value) if value.shape == like.shape else value
    optimiser.load_state_dict(optimiser.state_dict() | {"state": slots})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate


def named(head: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those under ``head/``, without it: ``{"model/fc.bias": t}`` -> ``{"fc.bias": t}``."""
    return {name.removeprefix(f"{head}/"): t for name, t in tensors.items() if name.startswith(f"{head}/")}
