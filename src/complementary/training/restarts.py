"""Initial weights of a linear layer: the best of several, because the loss has local minima.

If the transition matrix is estimated, the labels of two classes may hardly differ. The loss fwd then has minima in
which such classes are merged or exchanged. Which one a training reaches depends on its initial weights. The objective
that the training minimizes tells a bad minimum from a good one (docs/notes/estimates.md, Local minima).
"""

import copy
import dataclasses
import logging

import torch
from torch import Tensor

from complementary import networks
from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.engine.distributed import ProcessGroup
from complementary.engine.loop import Progress
from complementary.rng import address
from complementary.training.task import Task
from complementary.training.trainer import Trainer

log = logging.getLogger(__name__)
STARTS = 8


def has_local_minima(config: Config, trainer: Trainer) -> bool:
    """Whether this is a training of a linear layer on features of an encoder by fwd with an estimated matrix."""
    options, linear = config.training, trainer.model.kind == "linear" and trainer.task.encoder is not None
    estimated = options.loss == "fwd" and options.transition == "estimate" and options.fit == "gradient"
    return estimated and linear and config.mixing.mix == "none"


def best_start(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, progress: Progress | None = None
) -> dict[str, Tensor]:
    """Train from several initial weights -> those that led to the lowest objective.

    Args:
        config: The configuration.
        task: The task, with features as inputs.
        engine: The engine that computes.
        processes: The processes that share the work.
        progress: Called after every step.
    """
    task = dataclasses.replace(task, test_inputs=None, test_truth=None)
    starts, reached = [], []
    for number in range(STARTS):
        trainer = Trainer(config, task, engine, processes)
        trainer.stage = f"initial weights {number + 1} of {STARTS}, "
        if number:
            seed = address(config.seed, "restart", number)
            trainer.load_weights(networks.build("linear", task.shape, len(task.classes), seed).state_dict())
        starts.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
        trainer.run(progress)
        reached.append(objective(trainer))
    best = reached.index(min(reached))
    values = ", ".join(f"{value:.6f}" for value in reached)
    log.info("initial weights %d of %d are used, with the lowest objective (%s)", best + 1, STARTS, values)
    return starts[best]


@torch.no_grad()
def objective(trainer: Trainer) -> float:
    """What the training minimizes: mean loss of all examples, plus the penalty whose gradient is the weight decay.

    In float32: in bfloat16 the outputs are too coarse for the differences that matter.
    """
    exact = copy.copy(trainer)
    exact.engine = dataclasses.replace(trainer.engine, precision="fp32")
    excluded = trainer.task.excluded.float()
    parts = (trainer.loss(exact.outputs(trainer.task.train), excluded), excluded)
    losses, labels = (trainer.processes.all_gather(part, trainer.examples) for part in parts)
    squares = sum(float(weight.double().square().sum()) for weight in trainer.evaluated.parameters())
    return float(trainer.mean_loss(losses.double(), labels)[0]) + trainer.config.training.weight_decay / 2 * squares
