"""Training: the step, the epoch, the state that a checkpoint holds.

The step is one function of an index and a generator, with fixed shapes and no wait for the device: load,
mix, forward, loss, backward, update. Everything random in it comes from the generator, and the generator
from (seed, epoch, step), so a run can stop after any step and go on as if it had not.
"""

import json
import math
import time
from typing import Any

import torch
from torch import Tensor

from complementary import models, validate
from complementary.augment import Augment, default_padding, normalise
from complementary.config import Config
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.problem import Problem, build_mixer
from complementary.rng import address, generator


class Trainer:
    """A run in progress: network, optimiser, counters and the history of finished epochs."""

    def __init__(self, config: Config, problem: Problem, device: torch.device) -> None:
        self.config, self.device = config, device
        self.problem = problem = problem.to(device)
        shape = tuple(problem.inputs.shape[1:])
        images = len(shape) == 3
        network, classes = config.network, len(problem.classes)
        self.model_name = (
            network.model if network.model != "auto" else ("cnn" if images and min(shape[1:]) >= 16 else "mlp")
        )
        self.model = models.build(self.model_name, shape, classes, config.seed, network.max_pool).to(device)
        self.optimiser = self._new_optimiser()
        self.augment = self._augmentation(shape) if images else None
        self.mixer = build_mixer(config, problem, self.load)
        self.loss = LOSSES[config.training.loss]
        self.loss_transition = problem.loss_transition.to(device, torch.float32)
        self.random = torch.Generator(device=device)
        self.epoch = self.step_in_epoch = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.first_bad = torch.full((), -1, dtype=torch.long, device=device)
        self.history: list[dict[str, Any]] = []
        self.selected: dict[str, Tensor] = {}
        self.seconds = 0.0

    # --- the hot path -----------------------------------------------------------------------------

    def load(self, index: Tensor, random: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Training examples at ``index`` int [B], augmented and normalised -> (x [B, ...], excluded float [B, K])."""
        p = self.problem
        raw = p.inputs[index] if self.augment is None else self.augment.gather(p.inputs, index, random)
        return normalise(raw, p.mean, p.std), p.excluded[index].float()

    def step(self, index: Tensor, random: torch.Generator) -> Tensor:
        """One update on the examples at ``index`` int [B] -> the loss, a scalar on the device."""
        self.model.train()
        x, excluded = self.load(index, random)
        if self.config.mixing.clean_pass:
            with torch.no_grad():
                self.model(x)
        if self.mixer is not None:
            group = None if self.problem.group is None else self.problem.group[index]
            x, excluded = self.mixer(x, excluded, group, index=index, generator=random)
        loss = self._mean(self.loss(self.model(x), excluded, self.loss_transition), excluded)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def _mean(self, losses: Tensor, excluded: Tensor) -> Tensor:
        """Mean over the examples that carry a label; as coded, black images count too. [B], [B, K] -> scalar."""
        if self.config.mixing.alone == "black":
            return losses.mean()
        return losses.sum() / (excluded.sum(1) > 0).sum().clamp_min(1)

    # --- one step after the other -----------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in the training set."""
        return len(self.problem.inputs) // self.config.training.batch

    @property
    def done(self) -> bool:
        """Whether all epochs are finished."""
        return self.epoch >= self.config.training.epochs

    def advance(self) -> bool:
        """Take the next step, and close the epoch if it was its last -> whether it was."""
        started = time.perf_counter()
        if self.step_in_epoch == 0:
            self._open_epoch()
        batch, seed = self.config.training.batch, self.config.seed
        index = self.order[self.step_in_epoch * batch : (self.step_in_epoch + 1) * batch]
        self.random.manual_seed(address(seed, "step", self.epoch, self.step_in_epoch))
        loss = self.step(index, self.random)
        self.loss_sum += loss
        here = self.epoch * self.steps_per_epoch + self.step_in_epoch
        self.first_bad = torch.where((self.first_bad < 0) & ~torch.isfinite(loss), here, self.first_bad)
        self.step_in_epoch += 1
        closed = self.step_in_epoch == self.steps_per_epoch
        if closed and self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        self.seconds += time.perf_counter() - started
        if closed:
            self._close_epoch()
        return closed

    def _open_epoch(self) -> None:
        self._shuffle()
        self.loss_sum.zero_()
        if self.config.training.reset_optimizer and self.epoch > 0:
            self.optimiser = self._new_optimiser()

    def _shuffle(self) -> None:
        source = generator(self.config.seed, "order", self.epoch)
        self.order = torch.randperm(len(self.problem.inputs), generator=source).to(self.device)

    def _close_epoch(self) -> None:
        self.check_health()
        scores = self.evaluate()
        row = {"epoch": self.epoch + 1, "loss": float(self.loss_sum) / self.steps_per_epoch, **scores}
        if "scel" in row and row["scel"] < min((r["scel"] for r in self.history), default=float("inf")):
            self.selected = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        self.history.append(row)
        self.epoch, self.step_in_epoch = self.epoch + 1, 0

    def check_health(self) -> None:
        """Raise if a loss or a weight is not finite, naming the first bad step."""
        bad = int(self.first_bad)
        if bad < 0 and all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            return
        place = bad if bad >= 0 else self.epoch * self.steps_per_epoch + self.step_in_epoch - 1
        epoch, step = divmod(place, self.steps_per_epoch)
        raise UserError(
            f"The loss turned NaN or infinite at epoch {epoch + 1}, step {step + 1} (step {place + 1} in all). "
            f"Training was stopped; the last good checkpoint, if one was written, is kept. Try a lower --lr (it was "
            f"{self.config.training.lr:g}), and look for extreme values in the data."
        )

    # --- evaluation -------------------------------------------------------------------------------

    @torch.no_grad()
    def logits(self, inputs: Tensor, batch: int = 2048) -> Tensor:
        """Predictions without augmentation, in evaluation mode: inputs [N, ...] -> [N, K]."""
        self.model.eval()
        p = self.problem
        return torch.cat([self.model(normalise(part, p.mean, p.std)) for part in inputs.split(batch)])

    def evaluate(self) -> dict[str, Any]:
        """Scores of this moment: truth-free ones on the held-out labels, accuracy on the test set."""
        p, scores = self.problem, dict[str, Any]()
        if len(p.held_inputs):
            logits = self.logits(p.held_inputs)
            for score in (validate.scel, validate.ure, validate.estimated_accuracy):
                scores[score.__name__] = float(score(logits, p.held_excluded, p.transition))
        if p.test_inputs is not None and p.test_truth is not None:
            per_class = validate.class_accuracy(self.logits(p.test_inputs).argmax(1), p.test_truth, len(p.classes))
            counts = torch.bincount(p.test_truth, minlength=len(p.classes))
            scores["accuracy"] = float((per_class.nan_to_num() * counts).sum() / counts.sum())
            scores["per_class"] = [None if math.isnan(a) else a for a in per_class.tolist()]
        return scores

    # --- what a checkpoint holds ------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a JSON-able record from which `restore` goes on exactly."""
        tensors = {f"model/{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"selected/{k}": v for k, v in self.selected.items()}
        for i, slots in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam/{i}/{slot}": value for slot, value in slots.items()}
        tensors["loss_sum"] = self.loss_sum
        record = {"epoch": self.epoch, "step": self.step_in_epoch, "seconds": self.seconds}
        return tensors, record | {"config": self.config.hash(), "history": json.dumps(self.history)}

    def restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Go back to a state that `state` gave."""
        groups = split_names(tensors)
        self.model.load_state_dict(groups["model"])
        self.selected = {k: v.to(self.device) for k, v in groups.get("selected", {}).items()}
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in groups.get("adam", {}).items():
            i, slot = name.split("/")
            slots.setdefault(int(i), {})[slot] = value
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": slots})
        self.loss_sum = tensors["loss_sum"].to(self.device)
        self.epoch, self.step_in_epoch, self.seconds = record["epoch"], record["step"], record["seconds"]
        self.history = json.loads(record["history"])
        if self.step_in_epoch:
            self._shuffle()

    # --- parts ------------------------------------------------------------------------------------

    def _new_optimiser(self) -> torch.optim.Adam:
        t = self.config.training
        return torch.optim.Adam(self.model.parameters(), lr=t.lr, weight_decay=t.weight_decay, fused=True)

    def _augmentation(self, shape: tuple[int, ...]) -> Augment:
        t = self.config.training
        padding = default_padding(shape[1]) if t.padding is None else t.padding
        if padding >= min(shape[1:]):
            raise UserError(f"The crop padding is {padding}, but the pictures are only {shape[1]} x {shape[2]} pixels.")
        return Augment(padding, self.problem.flip if t.flip is None else t.flip)


def split_names(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """``{"model/conv1.weight": t}`` -> ``{"model": {"conv1.weight": t}}``; names without a slash are dropped."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        head, slash, rest = name.partition("/")
        if slash:
            groups.setdefault(head, {})[rest] = value
    return groups
