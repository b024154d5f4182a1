"""Training a classifier: what one step does, and how the result is measured.

The step reads as one story: load, mix, forward, loss, backward, update. The loop around it is in `job`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from complementary import models, validate
from complementary.augment import Augment, default_padding, normalise
from complementary.config import Config
from complementary.errors import UserError
from complementary.job import Job, load_optimiser, named, optimiser_tensors
from complementary.losses import LOSSES
from complementary.problem import Problem, build_mixer


class Trainer(Job):
    """A classifier in training."""

    def __init__(self, config: Config, problem: Problem, device: torch.device) -> None:
        t, network, classes = config.training, config.network, len(problem.classes)
        super().__init__(config.hash(), config.seed, t.epochs, t.batch, len(problem.inputs), device)
        self.config = config
        self.problem = problem = problem.to(device)
        shape = tuple(problem.inputs.shape[1:])
        images = len(shape) == 3
        self.model_name = network.model if network.model != "auto" else _suited(shape)
        self.model = models.build(self.model_name, shape, classes, config.seed, network.max_pool).to(device)
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), t.lr, weight_decay=t.weight_decay, fused=True, capturable=device.type == "cuda"
        )
        self.augment = self._augmentation(shape) if images else None
        self.mixer = build_mixer(config, problem, self.load)
        self.loss = LOSSES[t.loss]
        self.loss_transition = problem.loss_transition.to(device, torch.float32)
        self.selected: dict[str, Tensor] = {}

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

    # --- around it --------------------------------------------------------------------------------

    def networks(self) -> list[nn.Module]:
        """The classifier."""
        return [self.model]

    def open_epoch(self) -> None:
        """Forget Adam's moments if asked to; in place, because a captured step holds on to them."""
        if self.config.training.reset_optimizer:
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
            for score in SCORES:
                scores[score.__name__] = float(score(logits, p.held_excluded, p.transition))
        if p.test_inputs is not None and p.test_truth is not None:
            predicted = self.logits(p.test_inputs).argmax(1)
            per_class = validate.class_accuracy(predicted, p.test_truth, len(p.classes))
            scores["accuracy"] = float((predicted == p.test_truth).double().mean())
            scores["per_class"] = [None if math.isnan(a) else a for a in per_class.tolist()]
        return scores

    def tensors(self) -> dict[str, Tensor]:
        """Weights now, weights of the selected epoch, and the optimiser's state."""
        kept = {f"model/{k}": v for k, v in self.model.state_dict().items()}
        kept |= {f"selected/{k}": v for k, v in self.selected.items()}
        return kept | optimiser_tensors(self.optimiser)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        self.model.load_state_dict(named("model", tensors))
        self.selected = {k: v.to(self.device) for k, v in named("selected", tensors).items()}
        load_optimiser(self.optimiser, tensors)

    def _augmentation(self, shape: tuple[int, ...]) -> Augment:
        t = self.config.training
        padding = default_padding(shape[1]) if t.padding is None else t.padding
        if padding >= min(shape[1:]):
            raise UserError(f"The crop padding is {padding}, but the pictures are only {shape[1]} x {shape[2]} pixels.")
        return Augment(padding, self.problem.flip if t.flip is None else t.flip)


SCORES = (validate.scel, validate.ure, validate.estimated_accuracy, validate.estimated_accuracy_error)


def _suited(shape: tuple[int, ...]) -> str:
    """The network that ``auto`` stands for."""
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
