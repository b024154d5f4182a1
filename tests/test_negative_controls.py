"""Negative controls: if a source of information is destroyed, the result that depends on it must vanish.

Each test fails if training, selection or pretraining uses information that it must not have.
"""

import dataclasses

import pytest
import torch

from complementary import data, labels, transitions
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset
from complementary.encoders.objectives import OBJECTIVES
from complementary.encoders.pretrain import pretrain
from complementary.rng import generator
from complementary.training.run import accuracies
from complementary.training.task import Task, build_task
from complementary.training.trainer import Trainer
from tests.helpers import PRETRAIN_FILES, narrow_networks, run_files

CLASSES = 10
SEEDS = range(8)
FAST = {"data": "digits", "model": "mlp", "epochs": 10, "batch": 128, "lr": 1e-2, "holdout": 0.3}
CLUSTERED = {"encoder": "pixels", "clusters": 20, "restarts": 1}


def permutation(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=generator(seed, "permute"))


def with_truth(dataset: Dataset, truth: torch.Tensor | None) -> Dataset:
    return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, truth=truth))


def trained(config: Config, task: Task) -> Trainer:
    trainer = Trainer(config, task, "cpu")
    trainer.run()
    return trainer


def gain_of_selection(trainer: Trainer) -> float:
    """Test accuracy of the selected weights, minus that of the last epoch."""
    trainer.model.load_state_dict(trainer.selected)
    accuracy = trainer.evaluate()["accuracy"]
    assert accuracy == accuracies(trainer.history)["accuracy_selected"]
    return accuracy - trainer.history[-1]["accuracy"]


def mean_and_error(values: list[float]) -> tuple[float, float]:
    sample = torch.tensor(values, dtype=torch.float64)
    return float(sample.mean()), float(sample.std() / len(values) ** 0.5)


@pytest.mark.parametrize("mix", ["none", pytest.param("icm", marks=pytest.mark.slow)])
def test_permuted_labels_give_chance_accuracy(tmp_path, monkeypatch, mix):
    """Complementary labels that are permuted over the examples contain no information about classes.

    Guards against true labels that leak into training (the test accuracy would be above chance; the dataset still has
    them), and against validation labels that leak into training (the estimated accuracy would be above chance).
    """
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))  # clusters are computed here
    digits, found, estimates, errors = data.load("digits"), [], [], []
    for seed in SEEDS:
        excluded = labels.draw(digits.train.truth, transitions.uniform(CLASSES), seed=seed)
        excluded = excluded[permutation(len(excluded), seed)]
        dataset = dataclasses.replace(digits, train=dataclasses.replace(digits.train, excluded=excluded))
        config = Config.of(labels="given", mix=mix, seed=seed, **FAST, **CLUSTERED)
        last = trained(config, build_task(config, dataset, "cpu")).history[-1]
        found.append(last["accuracy"])
        estimates.append(last["estimated_accuracy"])
        errors.append(last["estimated_accuracy_error"])
    # predictions within a class are correlated, so the spread over seeds is larger than binomial
    accuracy, error = mean_and_error(found)
    assert abs(accuracy - 1 / CLASSES) < 3 * error
    assert error < 0.03
    scaled = (torch.tensor(estimates) - 1 / CLASSES) / torch.tensor(errors)
    assert abs(float(scaled.mean())) < 3 / len(SEEDS) ** 0.5
    assert float(scaled.abs().max()) < 4


@pytest.mark.slow
def test_permuted_validation_labels_select_no_better_epoch():
    """SCEL on permuted validation labels contains no information about the best epoch.

    Guards against a selection by anything else, such as test accuracy or training labels, and against validation
    labels that influence the training.
    """
    digits, real, permuted = data.load("digits"), [], []
    for seed in SEEDS:
        config = Config.of(labels="uniform", mix="none", seed=seed, **FAST)
        task = build_task(config, digits, "cpu")
        order = permutation(len(task.validation), seed)
        control = dataclasses.replace(task, validation_excluded=task.validation_excluded[order])
        first, second = trained(config, task), trained(config, control)
        epochs = [[(row["loss"], row["accuracy"]) for row in trainer.history] for trainer in (first, second)]
        assert epochs[0] == epochs[1], "validation labels influence the training"
        real.append(gain_of_selection(first))
        permuted.append(gain_of_selection(second))
    gain, error = mean_and_error(permuted)
    assert gain <= 2 * error
    assert any(real), "the validation labels have no influence on the selection"


@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_pretraining_does_not_depend_on_truth(tmp_path, monkeypatch, encoder):
    """The files of a pretraining are the same bytes if true labels are present, permuted or absent.

    Guards against labels that leak into the self-supervised encoder, through a loss, the order or the augmentation.
    """
    narrow_networks(monkeypatch)
    digits = data.load("digits")
    truth = digits.train.truth
    config = PretrainConfig(data="digits", encoder=encoder, backbone="cnn", epochs=1, batch=128)
    written = {}
    for name, labeled in (("present", truth), ("permuted", truth[permutation(len(truth), 0)]), ("absent", None)):
        pretrain(config, tmp_path / name, device="cpu", dataset=with_truth(digits, labeled))
        written[name] = run_files(tmp_path / name, PRETRAIN_FILES)
    assert written["present"] == written["permuted"] == written["absent"]
