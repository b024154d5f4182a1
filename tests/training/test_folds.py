"""Out-of-fold predictions: every example is predicted once, by a model that was trained without it."""

import torch

from complementary.config import Config
from complementary.rng import generator
from complementary.training.folds import predict_out_of_fold
from complementary.training.task import build_task


class Fake:
    """Stands for a trainer: predicts class 0 for the examples that it was trained on, else class 1."""

    def __init__(self, task):
        self.task = task
        self.known = {row.numpy().tobytes() for row in task.train.whole()}

    def logits(self, inputs):
        seen = torch.tensor([row.numpy().tobytes() in self.known for row in inputs.whole()])
        return 100 * torch.eye(10)[(~seen).long()]


def test_predict_out_of_fold_predicts_each_example_without_having_seen_it():
    task = build_task(Config.of(mix="none", holdout=0.0))
    trained = []

    def train(fold, without):
        assert without.test_inputs is None
        assert without.test_truth is None
        trained.append((fold, len(without.train)))
        return Fake(without)

    found = predict_out_of_fold(task, 3, generator(0, "folds"), train)
    assert found.argmax(1).tolist() == [1] * len(task.train)
    assert [fold for fold, _ in trained] == [0, 1, 2]
    assert sum(len(task.train) - count for _, count in trained) == len(task.train)
