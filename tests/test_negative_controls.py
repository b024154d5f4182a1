"""Negative controls: if a source of information is destroyed, the result that depends on it must vanish.

Each test fails if training, selection or pretraining uses information that it must not have.
"""

import dataclasses

import pytest
import torch

from complementary import data, labels, transitions
from complementary.config import MIXED_WITHIN, Config, MixerName, PretrainConfig
from complementary.data import Dataset
from complementary.encoders.objectives import OBJECTIVES
from complementary.encoders.pretrain import pretrain
from complementary.rng import generator
from complementary.training.run import accuracies, build_trainer, run
from complementary.training.task import Task, build_task
from complementary.training.trainer import Trainer
from tests.helpers import PRETRAIN_FILES, narrow_networks, run_files

CLASSES = 10
SEEDS = range(8)
FAST = {"data": "digits", "model": "mlp", "epochs": 10, "batch": 128, "lr": 1e-2, "holdout": 0.3}
CLUSTERED = {"encoder": "pixels", "clusters": 20, "restarts": 1}
METHODS = {
    "neighbors": {"mix": "none", "self_training": 3, "neighbors": 20},
    "clusters of neighbors": {"mix": "none", "self_training": 3, "neighbors": 20, "neighborhood": "cluster"},
    "fit = neighbors": {"mix": "none", "fit": "neighbors", "model": "linear"},
    "student": {"mix": "none", "self_training": 6, "student": "mlp", "neighbors": 20, "batch": 64},
    "pocr": {"recipe": "pocr", "batch": 16, "lr": 0.1},
    "plnl": {"recipe": "plnl", "batch": 32, "lr": 0.03},
}
"""Methods with training loops or sources of information of their own; all learn something from labels that are not
permuted."""


def permutation(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=generator(seed, "permute"))


def trained(config: Config, task: Task) -> Trainer:
    trainer = build_trainer(config, "cpu", data.load("digits"), task=task)
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


# --- complementary labels -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"mix": "none"}, id="none"),
        pytest.param({"mix": "icm"}, id="icm", marks=pytest.mark.slow),
        *(pytest.param(options, id=name, marks=pytest.mark.slow) for name, options in METHODS.items()),
    ],
)
def test_permuted_labels_give_chance_accuracy(tmp_path, monkeypatch, method):
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
        config = Config.of(**(FAST | CLUSTERED | {"labels": "given", "seed": seed} | method))
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


# --- true labels: present, absent or permuted, the results are the same bytes -------------------------


def with_truth(dataset: Dataset, truth: torch.Tensor | None) -> Dataset:
    return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, truth=truth))


def few_digits() -> Dataset:
    """400 digits with complementary labels that are part of the data."""
    dataset = data.load("digits")
    dataset = dataclasses.replace(dataset, train=dataset.train.take(torch.arange(400)))
    other = torch.randint(1, 10, (len(dataset.train),), generator=generator(0, "labels"))
    excluded = torch.eye(10, dtype=torch.uint8)[(dataset.train.truth + other) % 10]
    return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, excluded=excluded))


def permuted(dataset: Dataset) -> Dataset:
    """The same data with the true labels of training and test set in random order."""

    def shuffle(split):
        order = torch.randperm(len(split), generator=generator(1, "permutation"))
        return dataclasses.replace(split, truth=split.truth[order])

    return dataclasses.replace(dataset, train=shuffle(dataset.train), test=shuffle(dataset.test))


def assert_truth_is_not_used(config: Config, folder) -> None:
    dataset = few_digits()
    absent = dataclasses.replace(with_truth(dataset, None), test=None)
    for name, variant in (("present", dataset), ("absent", absent), ("permuted", permuted(dataset))):
        result = run(config, folder / name, device="cpu", dataset=variant)
        assert result["data"]["uses_oracle"] is False
    weights = ("last.safetensors", "selected.safetensors")
    present, absent, other = (run_files(folder / name, weights) for name in ("present", "absent", "permuted"))
    assert present == absent == other


TRUTH_FREE = [name for name in MixerName.__args__ if MIXED_WITHIN.get(name) != "truth"]
INPUTS = {
    "raw": {},
    "features": {"inputs": "features", "encoder": "random"},
    "self-training": {"inputs": "features", "encoder": "random", "self_training": 2},
    "estimated transition": {"loss": "fwd", "transition": "estimate", "estimate_epochs": 1},
}
SLOW = [pytest.param(name, marks=pytest.mark.slow if name == "self-training" else ()) for name in INPUTS]


@pytest.mark.parametrize("inputs", SLOW)
@pytest.mark.parametrize("mix", TRUTH_FREE)
def test_training_does_not_depend_on_true_labels(tmp_path, mix, inputs):
    assert_truth_is_not_used(
        Config.of(mix=mix, clusters=10, restarts=1, epochs=2, batch=64, **INPUTS[inputs]), tmp_path
    )


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_their_own_do_not_depend_on_true_labels(tmp_path, method):
    assert_truth_is_not_used(Config.of(**(FAST | {"batch": 64} | METHODS[method] | {"epochs": 3})), tmp_path)


def test_training_of_oracle_mixers_depends_on_true_labels():
    """The control itself works: an oracle mixer gives other weights if the true labels are permuted."""
    config = Config.of(mix="intra-class", epochs=2, batch=64)
    losses = []
    for dataset in (few_digits(), permuted(few_digits())):
        seen = []
        result = run(config, device="cpu", dataset=dataset, progress=seen.append)
        assert result["data"]["uses_oracle"] is True
        losses.append([row["loss"] for row in seen[-1].history])
    assert losses[0] != losses[1]


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
