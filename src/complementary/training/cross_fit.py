"""Out-of-sample predictions of all training examples: each is predicted by a model that has not seen its labels."""

import logging

from torch import Tensor

from complementary import data
from complementary.config import Config
from complementary.data import Dataset
from complementary.data.rows import Rows, rows_of
from complementary.engine.backend import Engine
from complementary.engine.loop import Progress
from complementary.errors import require
from complementary.rng import generator
from complementary.training.folds import predict_out_of_fold
from complementary.training.run import build_trainer
from complementary.training.task import Task, build_task
from complementary.training.trainer import Trainer

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
    everything = build_task(config, dataset, engine, hold_out=False)
    count = len(everything.train)
    require(folds <= count, "folds", folds, f"at most {count}, the number of examples")

    def train(fold: int, task: Task) -> Trainer:
        options = config.with_(batch=min(config.training.batch, len(task.train)))
        trainer = build_trainer(options, engine, dataset, progress=progress, task=task)
        trainer.stage = f"part {fold + 1} of {folds}, {trainer.stage}"
        trainer.run(progress)
        log.info("part %d of %d: trained on %s examples", fold + 1, folds, f"{len(task.train):,}")
        return trainer

    def inputs(trainer: Trainer, rows: Tensor) -> Rows:
        if trainer.task.shape == everything.shape:
            return everything.train.take(rows)
        return rows_of(dataset.train.inputs, everything.train_index[rows])  # the encoder of the features is fine-tuned

    return predict_out_of_fold(everything, folds, generator(config.seed, "cross-fit"), train, inputs)
