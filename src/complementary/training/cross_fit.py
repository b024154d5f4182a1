"""Out-of-sample predictions of all training examples: each is predicted by a model that has not seen its labels."""

import dataclasses
import logging

import torch
from torch import Tensor

from complementary import data
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.rows import Rows, rows_of
from complementary.engine.backend import Engine
from complementary.engine.loop import Progress
from complementary.errors import require
from complementary.rng import generator
from complementary.training.run import build_trainer
from complementary.training.task import Task, build_task

log = logging.getLogger(__name__)


def cross_fit(
    config: Config,
    dataset: Dataset | None = None,
    folds: int = 5,
    device: str | Engine = "auto",
    progress: Progress | None = None,
) -> Tensor:
    """Train ``folds`` models as the configuration says, each without one part of the examples, and predict that part.

    The models are those after the last epoch, so that the labels of a part do not even select an epoch. Encoder and
    clusters, which use no labels, are those of all examples.

    Args:
        config: The configuration of a run.
        dataset: The dataset; None: the one that the configuration names.
        folds: Number of parts.
        device: The device, or the engine that computes.
        progress: Called after every training step.

    Returns:
        Class probabilities [M, K] of all examples of the run, those of its validation split included, in the order of
        `complementary.data.selection.select`.
    """
    require(folds >= 2, "folds", folds, "at least 2")
    engine, dataset = Engine.of(device), dataset or data.load(config.dataset.data)
    everything = build_task(config.with_(holdout=0.0), dataset, str(engine.device))
    count = len(everything.train)
    require(folds <= count, "folds", folds, f"at most {count}, the number of examples")
    part = torch.randperm(count, generator=generator(config.seed, "cross-fit")) % folds
    probabilities = torch.zeros(count, len(everything.classes))
    for fold in range(folds):
        training, other = (part != fold).nonzero()[:, 0], (part == fold).nonzero()[:, 0]
        task = dataclasses.replace(everything.take(training), test_inputs=None, test_truth=None)
        options = config.with_(batch=min(config.training.batch, len(training)))
        trainer = build_trainer(options, engine, dataset, progress=progress, task=task)
        trainer.stage = f"part {fold + 1} of {folds}, {trainer.stage}"
        trainer.run(progress)
        on_features = trainer.task.shape == everything.shape
        inputs = everything.train.take(other) if on_features else _images(everything, dataset, other)
        probabilities[other] = trainer.logits(inputs).softmax(1).cpu()
        log.info("part %d of %d: %s examples predicted", fold + 1, folds, f"{len(other):,}")
    return probabilities


def _images(task: Task, dataset: Dataset, rows: Tensor) -> Rows:
    """The images of the examples at ``rows``, if the trainer fine-tunes the encoder of the features."""
    return rows_of(dataset.train.inputs, task.train_index[rows])
