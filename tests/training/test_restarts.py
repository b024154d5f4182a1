"""Initial weights: the objective against a slow reference, the choice, and where it is made."""

import dataclasses

import pytest
import torch

from complementary import data, networks
from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS
from complementary.rng import address
from complementary.training import restarts
from complementary.training import run as runner
from complementary.training.run import build_trainer

CPU = Engine.choose("cpu")
OPTIONS = {"loss": "fwd", "labels": "biased:3", "encoder": "random", "epochs": 2, "estimate_epochs": 1, "batch": 256}
ESTIMATED = Config.of(recipe="features", transition="estimate", **OPTIONS)


def test_objective_is_the_mean_loss_plus_the_penalty_of_the_weight_decay():
    trainer = build_trainer(Config.of(recipe="features", weight_decay=0.3, **OPTIONS), "cpu")
    trainer.run()
    task = trainer.task
    fc, x = trainer.model.fc, (task.train.whole() - task.mean) / task.std
    predicted = (x @ fc.weight.detach().T + fc.bias.detach()).softmax(1).double()
    likelihood = (predicted @ task.loss_transition.double()).gather(1, task.excluded.argmax(1, keepdim=True))
    penalty = 0.15 * sum(float(w.detach().double().square().sum()) for w in trainer.model.parameters())
    assert restarts.objective(trainer) == pytest.approx(float(-likelihood.log().mean()) + penalty, rel=1e-5)
    trainer.engine = dataclasses.replace(CPU, precision="bf16")
    assert restarts.objective(trainer) == pytest.approx(float(-likelihood.log().mean()) + penalty, rel=1e-5)
    assert trainer.engine.precision == "bf16", "it is as before"
    with torch.no_grad():
        fc.bias.add_(1.0)  # changes no prediction
    assert restarts.objective(trainer) > float(-likelihood.log().mean()) + penalty


@pytest.mark.parametrize("best", range(restarts.STARTS))
def test_weights_that_lead_to_the_lowest_objective_are_used(monkeypatch, best):
    """The first initial weights are those of a training without restarts; the others are new."""
    task = build_trainer(ESTIMATED.with_(transition="auto"), "cpu").task
    values = [2.0 + number for number in range(restarts.STARTS)]
    values[best] = 1.0
    monkeypatch.setattr(restarts, "objective", lambda trainer: values.pop(0))
    found = restarts.best_start(ESTIMATED, task, CPU, SINGLE_PROCESS)
    assert not values
    seed = address(ESTIMATED.seed, "restart", best) if best else ESTIMATED.seed
    wanted = networks.build("linear", task.shape, len(task.classes), seed).state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_training_with_an_estimated_matrix_starts_from_the_best_weights(monkeypatch):
    monkeypatch.setattr(restarts, "STARTS", 3)
    chosen, objectives = [], []
    usual, measure = restarts.best_start, restarts.objective
    monkeypatch.setattr(runner, "best_start", lambda *given: chosen.append(usual(*given)) or chosen[0])
    monkeypatch.setattr(restarts, "objective", lambda trainer: objectives.append(measure(trainer)) or objectives[-1])
    trainer = build_trainer(ESTIMATED, "cpu")
    assert all(torch.equal(trainer.model.state_dict()[name], value) for name, value in chosen[0].items())
    trainer.run()
    assert len(set(objectives)) == 3, "the starts differ"
    assert measure(trainer) == pytest.approx(min(objectives), rel=1e-6), "it is the same training again"


@pytest.mark.parametrize(
    "options",
    [
        {"transition": "auto"},
        {"loss": "s-nl"},
        {"fit": "neighbors"},
        {"model": "mlp"},
        {"inputs": "raw", "model": "linear"},
        {"mix": "mixup"},
    ],
    ids=str,
)
def test_no_restarts_where_they_were_not_found_to_help(monkeypatch, options):
    calls, usual = [], restarts.best_start
    monkeypatch.setattr(runner, "best_start", lambda *given: calls.append(given[0]) or usual(*given))
    build_trainer(Config.of(**{"recipe": "features", "transition": "estimate"} | OPTIONS | options), "cpu")
    assert not calls


def test_self_training_starts_from_a_layer_with_the_best_weights(monkeypatch):
    calls, usual = [], restarts.best_start
    monkeypatch.setattr(runner, "best_start", lambda *given: calls.append(given[0]) or usual(*given))
    build_trainer(ESTIMATED.with_(recipe="custom", self_training=1), "cpu", data.load("digits"))
    assert len(calls) == 1, "the trainings for the matrix have no restarts"
