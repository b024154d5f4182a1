"""PLNL, a published baseline: labels guessed from confident predictions, and labels added from neighbors.

Li, Li and Jia, "Complementary label learning with positive label guessing and negative label enhancement", ICLR 2025;
code by the authors: github.com/yhli-ml/PLNL. First one network is trained with the complementary loss alone. Two
networks start from it. In each epoch after a warm-up, a network gets from the records of the other one:

- guessed labels: a class whose probability, averaged over the last three epochs, is above .99, which was the most
  likely class in all three, and which is not excluded;
- added complementary labels: those that are most frequent among the 500 nearest examples (cosine similarity of logits).
  Examples that are more confident than the average get a tenth of the remaining classes, all others get one.

The records are the logits of the weak view in the course of the epoch. Loss of a network = complementary loss with the
added labels + binary cross-entropy with the guessed labels + weight x consistency (as in POCR) with a second weak view
and a strong one. Both networks are averaged for prediction.

The published options are those of ``recipe = plnl``: 200 epochs of each part, batch 64, lr 0.1 (two steps, then a
cosine schedule down to a hundredth), weight decay 1e-4, loss s-nl. The number of neighbors is 1 % of the examples and
at most 500, as for CIFAR-10's 50,000. A training that starts from an encoder and a linear layer has no first part.

Differences from the published code, besides those of POCR:

- Both networks see the same batches in the same order, with different augmentation. Published: one epoch of the first
  network, then one of the second. A network therefore gets labels from the previous epoch of the other one.
- Guessed labels come from the records of the *other* network, as a comment in the published code says. Its two data
  loaders share one dataset, so that the guesses which it computes for a network reach the other one.
- An added label never excludes the last remaining class. Ties are broken without preference for a class.

The text of the paper was not available; this follows the published code.
"""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary import networks
from complementary.config import Config
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import set_lr
from complementary.training.evidence import neighbor_counts
from complementary.training.pocr import PocrTrainer, risen, stepped
from complementary.training.task import Task

RECORDED = 3  # epochs that guessed labels are based on
WARM_UP = 0.1  # share of the training without guessed and added labels: 20 of 200 epochs
CONFIDENT = 0.99  # mean probability above which a label is guessed
NEIGHBORS = 500  # at most, and at most 1 % of the examples
ADDED = 0.1  # share of the remaining classes that are added as complementary labels of confident examples
LOWEST_LR = 0.01  # at the end of the cosine schedule, as a share of the learning rate
NO_GUESS = -1


class PlnlTrainer(PocrTrainer):
    """The training loop of PLNL: ``epochs`` of one network, then ``epochs`` of two.

    The arguments are those of `PocrTrainer`. If a network is given, the first part is left out.

    Attributes:
        model: The two networks; the first part trains the first one.
        first_epochs: Number of epochs of the first part.
        records: Logits of the weak views of the examples of all processes in the last three epochs and in the current
            one, for each network: float [2, 4, N, K].
        added: Complementary labels with the added ones, of the examples of this process: uint8 [2, n, K].
        guesses: Guessed labels, or `NO_GUESS`: int64 [2, n].
    """

    model: networks.Ensemble

    def __init__(
        self,
        config: Config,
        task: Task,
        device: str | torch.device | Engine,
        processes: ProcessGroup = SINGLE_PROCESS,
        network: networks.Network | None = None,
        encoder: FrozenEncoder | None = None,
    ) -> None:
        second = config.training.epochs
        self.first_epochs = second if network is None else 0
        epochs = self.first_epochs + second
        super().__init__(config, task, device, processes, network, encoder, epochs=epochs)
        self.warm_up = max(RECORDED, round(WARM_UP * second))
        self.neighbors = max(1, min(NEIGHBORS, self.examples // 100))
        excluded = self.task.excluded
        self.records = torch.zeros(2, RECORDED + 1, self.examples, excluded.shape[1], device=self.device)
        self.added = torch.stack([excluded, excluded])
        self.guesses = torch.full((2, len(excluded)), NO_GUESS, device=self.device)
        self.guessing = self.engine.compiled(guessed_loss)
        self.run_parts = (self.run_step, self.capture(self._counted_step))  # each captures the step of one part

    @property
    def in_first_part(self) -> bool:
        return self.epoch < self.first_epochs

    # --- the step ---------------------------------------------------------------------------------------------------

    def step(self, index: Tensor, random: torch.Generator, batch: Tensor | None = None) -> Tensor:
        """Train one network in the first part, two in the second. Each part has its own captured step."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        if self.in_first_part:
            loss = self._first_step(index, random, batch)
        else:
            losses = [self._step_of(network, index, random, batch) for network in range(2)]
            loss = self.processes.average_gradients(self.model, torch.stack(losses).mean())
        self.optimizer.step()
        return loss

    def _first_step(self, index: Tensor, random: torch.Generator, batch: Tensor | None) -> Tensor:
        """The gradient of the complementary loss, for the first network."""
        network = self.model.members[0]
        (weak,) = self.views(index, random, batch, weak=1, strong=0)
        excluded = self.task.excluded[index].float()
        with self.engine.autocast():
            logits = self.forward(network, weak)
        loss, labeled = self.mean_loss(self.loss(logits, excluded), excluded)
        loss.backward()
        return self.processes.average_gradients(network, loss.detach(), labeled)

    def _step_of(self, number: int, index: Tensor, random: torch.Generator, batch: Tensor | None) -> Tensor:
        """The gradient of the whole loss for a network, and its records."""
        network = self.model.members[number]
        views = self.views(index, random, batch, weak=2, strong=1)
        excluded, guess = self.added[number][index].float(), self.guesses[number][index]
        with self.engine.autocast():
            logits, weak, strong = (self.forward(network, x) for x in views)
        complementary, _ = self.mean_loss(self.loss(logits, excluded), excluded)
        apart: Tensor = self.consistency(logits, excluded, weak, strong).mean()
        guessed: Tensor = self.guessing(logits, guess)
        loss = complementary + guessed + self.weight * apart
        loss.backward()
        parts = (self.processes.global_rows(index), logits.detach().float())
        rows, values = (self.processes.all_gather_batch(part) for part in parts)
        self.records[number, -1].index_copy_(0, rows, values)
        return loss.detach()

    def on_step_start(self) -> None:
        """Set learning rate and weight of the consistency, which change from epoch to epoch, and the captured step."""
        first, epoch = self.first_epochs, self.epoch - self.first_epochs
        factor = stepped(self.epoch, first) if self.in_first_part else annealed(epoch, self.epochs - first)
        set_lr(self.optimizer.param_groups[0], self.lr * factor)
        self.weight.fill_(0.0 if self.in_first_part else risen(epoch, self.epochs - first))
        self.run_step = self.run_parts[not self.in_first_part]

    # --- guessed and added labels -----------------------------------------------------------------------------------

    def on_epoch_start(self) -> None:
        """Start the second part, or an epoch of it."""
        if self.in_first_part:
            return
        if self.epoch == self.first_epochs:
            self._copy_first_network()
            self.optimizer.state.clear()  # a new optimizer
        self.records[:, :-1] = self.records[:, 1:].clone()
        self._relabel()

    def _copy_first_network(self) -> None:
        first, second = self.model.members
        second.load_state_dict(first.state_dict())

    @torch.no_grad()
    def _relabel(self) -> None:
        """Guess and add labels for each network from the records of the other one."""
        if self.epoch < self.first_epochs + self.warm_up:
            return
        shard, count = self.processes.shard(), self.examples
        excluded = self.processes.all_gather(self.task.excluded, count)
        own = torch.arange(count, device=self.device)[shard]
        for number in range(2):
            records = self.records[1 - number, :-1]
            self.added[number] = add_labels(records[-1], excluded, own, self.neighbors)
            self.guesses[number] = guess_labels(records[:, own], self.added[number])

    # --- evaluation and checkpoints ---------------------------------------------------------------------------------

    def scores(self) -> dict[str, Any]:
        """As in `Trainer`; in the first part both networks are the same."""
        if self.in_first_part:
            self._copy_first_network()
        return super().scores()

    def evaluate(self) -> dict[str, Any]:
        """The metrics of `Trainer`, the share of guessed labels, and the mean number of added ones."""
        more = self.added.sum(2).float().mean() - self.task.excluded.sum(1).float().mean()
        return super().evaluate() | {"guessed": float((self.guesses >= 0).float().mean()), "added": float(more)}

    def build_network(self) -> networks.Network:
        """Two networks with the same weights."""
        network = super().build_network()
        return networks.Ensemble([network, copy.deepcopy(network)])

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"records": self.records}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        self.records.copy_(tensors["records"])

    def restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        """Restore what `state` returned. Guessed and added labels follow from the records."""
        super().restore(tensors, record)
        if self.step_in_epoch:
            self._relabel()


# --- pure functions -------------------------------------------------------------------------------------------------


def guess_labels(records: Tensor, excluded: Tensor) -> Tensor:
    """Guess the classes of confident examples.

    Args:
        records: Logits of some epochs, [E, N, K].
        excluded: Complementary labels, 0/1 [N, K].

    Returns:
        The guessed class of each example, or `NO_GUESS`: int64 [N].
    """
    probability = records.softmax(2)
    confidence, label = probability.mean(0).max(1)
    stable = (probability.argmax(2) == label).all(0)
    allowed = excluded.gather(1, label[:, None])[:, 0] == 0
    return torch.where((confidence > CONFIDENT) & stable & allowed, label, NO_GUESS)


def add_labels(logits: Tensor, excluded: Tensor, rows: Tensor, neighbors: int) -> Tensor:
    """Add the complementary labels that are most frequent among the nearest neighbors of an example.

    Args:
        logits: Logits of all examples, [N, K].
        excluded: Their complementary labels, 0/1 [N, K].
        rows: The examples that get more labels, int [n].
        neighbors: Number of neighbors.

    Returns:
        The complementary labels of these examples with the added ones, 0/1 [n, K], of the type of ``excluded``.
    """
    classes = logits.shape[1]
    confidence = logits.softmax(1).max(1).values
    own = excluded[rows]
    free = classes - 1 - own.sum(1, dtype=torch.long)  # one class remains
    count = torch.where(confidence[rows] > confidence.mean(), (ADDED * free).ceil().long(), 1).clamp(max=free)
    place = torch.arange(classes, device=logits.device)
    tie_break = (place + rows[:, None]) % classes / (2 * classes)  # below 1: it decides between equal counts only
    frequency = neighbor_counts(logits, excluded, rows, neighbors) + tie_break
    rank = frequency.argsort(1, descending=True).argsort(1)
    return torch.maximum(own, (rank < count[:, None]).to(own.dtype))


def guessed_loss(logits: Tensor, guess: Tensor) -> Tensor:
    """Binary cross-entropy with the guessed labels, averaged over their examples and classes.

    Args:
        logits: [B, K].
        guess: Guessed labels, or `NO_GUESS`: int [B].

    Returns:
        A scalar; 0 if no label was guessed.
    """
    known = (guess >= 0).float()[:, None]
    target = (guess[:, None] == torch.arange(logits.shape[1], device=guess.device)).float()
    losses = F.binary_cross_entropy_with_logits(logits.float(), target, reduction="none")
    return (known * losses).sum() / (known.sum() * logits.shape[1]).clamp_min(1)


def annealed(epoch: int, epochs: int) -> float:
    """Factor of the learning rate in the second part: a cosine schedule from 1 down to `LOWEST_LR`."""
    return LOWEST_LR + (1 - LOWEST_LR) * (1 + math.cos(math.pi * epoch / epochs)) / 2
