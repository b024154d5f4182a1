"""Out-of-fold predictions: every example is predicted by a model that was trained without it."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from complementary.data.rows import Rows
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.training.task import Task
from complementary.training.trainer import Trainer


def predict_out_of_fold(
    task: Task,
    folds: int,
    random: torch.Generator,
    train: Callable[[int, Task], Trainer],
    inputs: Callable[[Trainer, Tensor], Rows] | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Train one model per fold, without the examples of the fold, and predict these.

    Args:
        task: N training examples and K classes.
        folds: Number of parts, whose sizes differ by one example at most.
        random: Assigns the examples to the folds.
        train: Trains a model: number of the fold, from 0, and task without its examples and without a test set ->
            trainer.
        inputs: What a trained model predicts: trainer and examples, int [F] -> inputs [F, ...]. None: the inputs of the
            task.
        processes: The processes that share the work; the predictions are those of rank 0.

    Returns:
        Class probabilities [N, K], on the CPU.
    """
    count = len(task.train)
    part = torch.randperm(count, generator=random) % folds
    probabilities = torch.zeros(count, len(task.classes))
    for fold in range(folds):
        training, other = (part != fold).nonzero()[:, 0], (part == fold).nonzero()[:, 0]
        trainer = train(fold, dataclasses.replace(task.take(training), test_inputs=None, test_truth=None))
        predicted = task.train.take(other) if inputs is None else inputs(trainer, other)
        probabilities[other] = processes.broadcast(trainer.logits(predicted).softmax(1).cpu())
    return probabilities
