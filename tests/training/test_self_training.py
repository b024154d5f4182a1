"""Self-training: pseudo-labels by Bayes' rule, and a network that is fine-tuned on them."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import ComplementaryClassifier, data, files, networks, scores, transitions
from complementary.augment.crop import normalize
from complementary.config import Config
from complementary.encoders.backbone import build_backbone, describe
from complementary.engine.backend import Engine
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.losses.registry import LOSS_METHODS
from complementary.rng import address
from complementary.training import predict, self_training
from complementary.training import run as runner
from complementary.training.evidence import cluster_evidence, log_likelihood, neighbor_evidence
from complementary.training.run import build_trainer, run
from complementary.training.self_training import (
    HIGHEST_FACTOR,
    SelfTrainer,
    alignment_factors,
    pseudo_label_loss,
    pseudo_labels,
    search_epochs,
)

ALL = Config.of(inputs="features", encoder="random", mix="none", epochs=2, batch=128, self_training=2)
SELF_TRAINING = ALL.with_(head=36, batch=32)  # 36 images of each class


# --- pseudo-labels --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.floats(0.2, 1), st.integers(0, 10_000))
def test_pseudo_labels_are_bayes_rule_aligned_and_sharpened(classes, most, temperature, seed):
    random = np.random.default_rng(seed)
    matrix = random.dirichlet(np.ones(classes), classes)
    predicted = random.dirichlet(np.ones(classes), 5)
    excluded = (random.random((5, classes)) < most / classes).astype(np.uint8)
    alignment, prior = random.uniform(0.5, 2, classes), random.dirichlet(np.ones(classes)) + 0.01
    likelihood = log_likelihood(torch.from_numpy(excluded), torch.from_numpy(matrix))
    factors = (torch.from_numpy(part).float() for part in (alignment, np.log(prior)))
    found, posterior = pseudo_labels(temperature, torch.from_numpy(predicted).float(), likelihood, *factors)
    for row, labels, soft, before in zip(predicted, excluded, found, posterior, strict=True):
        joint = np.array(
            [
                max(row[y], 1e-6) * np.prod([max(matrix[y, k], 1e-12) for k in np.flatnonzero(labels)])
                for y in range(classes)
            ]
        )
        slow = prior * (joint * alignment / prior) ** (1 / temperature)
        torch.testing.assert_close(before.double(), torch.tensor(joint / joint.sum()), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(soft.double(), torch.tensor(slow / slow.sum()), rtol=1e-3, atol=1e-5)


def test_pseudo_label_of_an_excluded_class_is_zero():
    predicted = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    excluded = torch.tensor([[1, 0, 0], [1, 0, 0]], dtype=torch.uint8)
    found, _ = pseudo_labels(
        1.0, predicted, log_likelihood(excluded, transitions.uniform(3)), torch.ones(3), torch.zeros(3)
    )
    torch.testing.assert_close(found[0], torch.tensor([0.0, 2 / 3, 1 / 3]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], torch.tensor([0.0, 0.5, 0.5]), atol=1e-5, rtol=0)


def test_yes_answers_leave_one_class():
    excluded = 1 - torch.eye(4, dtype=torch.uint8)
    found, _ = pseudo_labels(
        1.0, torch.full((4, 4), 0.25), log_likelihood(excluded, transitions.uniform(4)), torch.ones(4), torch.zeros(4)
    )
    torch.testing.assert_close(found, torch.eye(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["s-nl", "fwd"])
def test_pseudo_label_loss_adds_the_cross_entropy_of_adjusted_logits(name):
    random = torch.Generator().manual_seed(0)
    logits, prior = torch.randn(6, 4, generator=random), torch.tensor([0.4, 0.3, 0.2, 0.1])
    excluded = torch.eye(4)[torch.randint(4, (6,), generator=random)]
    soft, matrix = torch.rand(6, 4, generator=random).softmax(1), transitions.uniform(4)
    found = pseudo_label_loss(LOSSES[name], logits, torch.cat([excluded, soft], 1), prior.log(), matrix)
    usual = torch.nn.functional.cross_entropy(logits + prior.log(), soft, reduction="none")
    torch.testing.assert_close(found, LOSSES[name](logits + prior.log(), excluded, matrix) + usual)


@pytest.mark.parametrize("highest", [HIGHEST_FACTOR, math.inf], ids=["limit", "no limit"])
def test_share_of_a_lost_class_is_not_spread_over_the_largest_class(highest):
    """All examples of the third class are taken for the second one; an ideal network predicts its pseudo-labels."""
    prior = torch.tensor([0.9, 0.095, 0.005])
    remembered = torch.tensor([[0.999, 0.0005, 0.0005], [0.0005, 0.999, 0.0005]]).repeat_interleave(
        torch.tensor([900, 100]), 0
    )
    for _ in range(200):
        posterior = remembered / remembered.sum(1, keepdim=True)
        factors = alignment_factors(prior, posterior.mean(0), highest)
        remembered, _ = pseudo_labels(0.5, posterior, torch.zeros(1000, 3), factors, prior.log())
    evidence = remembered[0] / prior  # what a classifier of a balanced population compares
    if highest == math.inf:
        assert evidence[2] > 0.9 * evidence[0], "the failure that the limit prevents"
    else:
        assert evidence[2] < 0.01 * evidence[0]
    assert remembered[-1].argmax() == 1


def test_only_a_balanced_population_has_a_limit_of_the_alignment():
    uniform, balanced = (build_trainer(SELF_TRAINING.with_(balanced=chosen), "cpu") for chosen in (False, True))
    for loop, wanted in ((uniform, 10.0), (balanced, HIGHEST_FACTOR)):
        loop.mean_posterior.copy_(loop.prior * torch.tensor([0.1, *[1.1] * 9]))
        torch.testing.assert_close(loop.alignment(), torch.tensor([wanted, *[1 / 1.1] * 9]))


@pytest.mark.parametrize("options", [{"model": "mlp"}, {"model": "linear", "student": "mlp"}], ids=["same", "student"])
def test_self_training_of_an_mlp_on_thousands_of_features_does_not_diverge(options):
    random = np.random.default_rng(0)
    inputs, not_y = random.normal(size=(120, 6000)), random.integers(0, 3, 120)
    config = {"self_training": 6} | {name: value for name, value in options.items() if name == "student"}
    model = ComplementaryClassifier(mix="none", epochs=2, batch=16, model=options["model"], config=config)
    assert max(row["loss"] for row in model.fit(inputs, not_y).history_) < 3


# --- the training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("holdout", [0.0, 0.1])
def test_self_training_starts_from_the_average_of_the_first_classifier(holdout):
    """With ema, the first classifier is the average, or its selected epoch; all of its weights are trained further."""
    options = {"inputs": "raw", "mix": "none", "model": "mlp", "batch": 128, "epochs": 3, "holdout": holdout}
    config = Config.of(self_training=1, optimizer="sgd", lr=0.05, ema=0.95, **options)
    first = build_trainer(config.with_(self_training=0), "cpu")
    first.run()
    weights = first.selected or first.average.state_dict()
    loop = build_trainer(config, "cpu")
    for network in (loop.model, loop.teacher):
        assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())
    assert all(weight.requires_grad for weight in loop.model.parameters())
    first.average.load_state_dict(weights)
    torch.testing.assert_close(loop.memory, first.logits(first.task.train).softmax(1))


def test_self_training_starts_from_the_encoder_and_its_linear_layer():
    loop = build_trainer(SELF_TRAINING, "cpu")
    assert isinstance(loop, SelfTrainer)
    assert loop.task.shape == (1, 8, 8), "it is trained on images"
    classifier = build_trainer(SELF_TRAINING.with_(self_training=0), "cpu")
    classifier.run()
    if classifier.selected:
        classifier.model.load_state_dict(classifier.selected)
    wanted, found = classifier.logits(classifier.task.train), loop.logits(loop.task.train)
    assert float((found.argmax(1) == wanted.argmax(1)).double().mean()) > 0.85, "equal but for the norms of features"
    assert float(found.std() / wanted.std()) == pytest.approx(1, abs=0.1)
    torch.testing.assert_close(loop.memory, wanted.softmax(1), atol=1e-5, rtol=1e-4)


TAIL = Config.of(recipe="self-training", long_tail=10, head=120, encoder="random", epochs=3, batch=64, self_training=10)


def test_encoder_after_a_discriminant_keeps_the_layer_and_learns_the_predictions_of_the_discriminant():
    """The weights of the discriminant itself make fine-tuning diverge (docs/notes/long-tails.md)."""
    assert TAIL.training.fit == "discriminant"
    loop, from_layer = build_trainer(TAIL, "cpu"), build_trainer(TAIL.with_(fit="gradient"), "cpu")
    assert torch.equal(loop.model.fc.weight, from_layer.model.fc.weight), "not those of the discriminant"
    discriminant = build_trainer(TAIL.with_(self_training=0), "cpu")
    discriminant.run()
    if discriminant.selected:
        discriminant.model.load_state_dict(discriminant.selected)
    logits = discriminant.logits(discriminant.task.train) + discriminant.selected_log_prior
    torch.testing.assert_close(loop.memory, logits.softmax(1), atol=1e-4, rtol=1e-3)
    assert not torch.allclose(loop.memory, from_layer.memory, atol=0.1)
    before = loop.memory.clone()
    for _ in range(2 * loop.steps_per_epoch):
        loop.advance()
    assert loop.epoch == 2
    assert torch.equal(loop.memory, before), "a fifth of the epochs is for learning them"
    loop.advance()
    assert not torch.equal(loop.memory, before)
    from_layer.advance()
    assert not from_layer.learns_start


def test_encoder_after_fit_neighbors_starts_with_a_layer_that_predicts_the_same_with_small_weights():
    """With the weights of the discriminant, fine-tuning diverged on CIFAR-100 (docs/notes/many-classes.md)."""
    config = TAIL.with_(fit="neighbors", long_tail=1.0, neighbors=20)
    loop = build_trainer(config, "cpu")
    discriminant = build_trainer(config.with_(self_training=0), "cpu")
    discriminant.run()
    if discriminant.selected:
        discriminant.model.load_state_dict(discriminant.selected)
    torch.testing.assert_close(loop.memory, discriminant.outputs(discriminant.task.train).softmax(1))
    assert not loop.learns_start, "the layer predicts the same already"
    predicted = loop.outputs(loop.task.train)
    assert float((predicted.argmax(1) == loop.memory.argmax(1)).double().mean()) > 0.9
    std = discriminant.task.std
    norm, weight = loop.features(loop.task.train).norm(dim=1).mean(), discriminant.model.fc.weight / std
    assert float(loop.model.fc.weight.detach().norm() * norm) < 0.5 * float(weight.detach().norm())


def test_loss_with_logit_adjustment_enters_self_training_once():
    """Logits that minimize fwd-la describe equal classes. The first predictions are for the training data."""
    config = Config.of(mix="none", epochs=3, batch=64, loss="fwd-la", long_tail=20, head=120, self_training=1)
    loop, first = build_trainer(config, "cpu"), build_trainer(config.with_(self_training=0), "cpu")
    first.run()
    if first.selected:
        first.model.load_state_dict(first.selected)
    log_prior = first.criterion.prior.log()
    predicted = (first.logits(loop.task.train) + log_prior).softmax(1)
    torch.testing.assert_close(loop.memory, predicted)
    torch.testing.assert_close((loop.logits(loop.task.train) + loop.log_prior).softmax(1), predicted)
    logits, targets = torch.randn(5, 10), torch.cat([torch.eye(10)[:5], torch.full((5, 10), 0.1)], 1)
    arguments = (logits, targets, loop.log_prior, loop.loss_transition)
    torch.testing.assert_close(loop.loss(*arguments), pseudo_label_loss(LOSSES["fwd"], *arguments))


def test_losses_with_logit_adjustment_are_those_for_equal_classes():
    for name, method in LOSS_METHODS.items():
        assert Config.of(loss=name).is_balanced is method.adjusted


def test_loss_with_logit_adjustment_is_for_equal_classes_unless_balanced_is_false():
    for options, balanced in (({}, True), ({"balanced": False}, False), ({"loss": "fwd"}, False)):
        config = Config.of(**({"mix": "none", "epochs": 1, "batch": 64, "loss": "fwd-la", "head": 20} | options))
        assert config.is_balanced is balanced
        loop = build_trainer(config.with_(self_training=1), "cpu")
        assert bool(loop.log_prior.any()) is balanced


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "fwd-la", "epochs": 2},
        {"inputs": "features", "encoder": "random", "fit": "discriminant", "model": "linear", "epochs": 2},
        {"epochs": 1, "self_training": 2},
        {"epochs": 2, "loss": "fwd"},
    ],
    ids=["fwd-la", "discriminant", "self-training", "not balanced"],
)
def test_scel_of_a_classifier_for_equal_classes_includes_the_prior(options):
    balanced = options.get("loss") != "fwd"
    prior = "0.3,0.2,0.1,0.1,0.08,0.06,0.06,0.04,0.03,0.03"
    config = Config.of(mix="none", batch=64, long_tail=20, head=120, balanced=balanced, prior=prior, **options)
    loop = build_trainer(config, "cpu")
    loop.run()
    task, outputs = loop.task, loop.outputs(loop.task.validation)
    plain, found = scores.scel(outputs, task.validation_excluded, task.transition), loop.history[-1]["scel"]
    joint = outputs.softmax(1) * torch.as_tensor(loop.log_prior).exp()
    predicted = joint / joint.sum(1, keepdim=True) @ task.transition.float()
    wanted = -predicted.clamp_min(1e-6).log()[task.validation_excluded > 0].mean()
    assert found == pytest.approx(float(wanted), abs=1e-4)
    assert (abs(found - float(plain)) > 1e-3) is balanced


def test_self_training_without_an_encoder_continues_the_network():
    config = Config.of(mix="none", epochs=2, batch=128, self_training=1)
    loop, first = build_trainer(config, "cpu"), build_trainer(config.with_(self_training=0), "cpu")
    first.run()
    torch.testing.assert_close(loop.logits(loop.task.train), first_logits(first), atol=1e-5, rtol=1e-4)


def first_logits(trainer):
    """Logits of the epoch that was selected."""
    if trainer.selected:
        trainer.model.load_state_dict(trainer.selected)
    return trainer.logits(trainer.task.train)


def test_step_remembers_predictions_and_moves_the_running_mean():
    loop = build_trainer(SELF_TRAINING.with_(padding=0), "cpu")
    before, mean, teacher = loop.memory.clone(), loop.mean_posterior.clone(), copy.deepcopy(loop.teacher)
    loop.advance()
    index = loop.order[: loop.batch]
    x = normalize(loop.task.inputs[index], loop.task.mean, loop.task.std)
    wanted = 0.9 * before[index] + 0.1 * teacher.eval()(x).softmax(1)
    torch.testing.assert_close(loop.memory[index], wanted.detach(), atol=1e-5, rtol=1e-4)
    others = torch.ones(len(before), dtype=torch.bool).index_fill(0, index, False)
    assert torch.equal(loop.memory[others], before[others])
    posterior = (wanted.log() + log_likelihood(loop.task.excluded[index], loop.task.transition)).softmax(1)
    torch.testing.assert_close(
        loop.mean_posterior, (0.99 * mean + 0.01 * posterior.mean(0)).detach(), atol=1e-5, rtol=1e-4
    )


STUDENT = SELF_TRAINING.with_(student="cnn", self_training=5)


@pytest.mark.parametrize("options", [{}, {"inputs": "raw", "model": "mlp"}], ids=["features", "raw"])
def test_student_is_a_new_network_that_first_learns_the_first_predictions(options):
    loop = build_trainer(STUDENT.with_(**options), "cpu")
    assert loop.model.kind == "cnn"
    assert loop.task.shape == (1, 8, 8)
    new = networks.build("cnn", (1, 8, 8), 10, STUDENT.seed)
    assert all(torch.equal(a, b) for a, b in zip(new.parameters(), loop.model.parameters(), strict=True))
    before = loop.memory.clone()
    if options:
        first = build_trainer(STUDENT.with_(student="same", self_training=0, **options), "cpu")
        first.run()
        torch.testing.assert_close(before, first_logits(first).softmax(1), atol=1e-4, rtol=1e-3)
    while loop.epoch < 1:
        assert torch.equal(loop.memory, before), "a fifth of the epochs is for learning them"
        loop.advance()
    loop.advance()
    assert not torch.equal(loop.memory, before)


def test_student_learns_from_the_self_trained_layer_on_features(monkeypatch):
    config, layers = STUDENT.with_(self_training=3, long_tail=4, head=100, batch=64), []
    usual = SelfTrainer.run

    def run_layer(loop, progress=None):
        usual(loop, progress)
        layers.append(loop)

    monkeypatch.setattr(SelfTrainer, "run", run_layer)
    loop = build_trainer(config, "cpu")
    (layer,) = layers
    assert layer.model.kind == "linear", "also if the encoder could be fine-tuned"
    assert layer.epoch == 3
    wanted = (layer.logits(layer.task.train) + layer.prior.log()).softmax(1)
    torch.testing.assert_close(loop.memory, wanted, atol=1e-5, rtol=1e-4)


def test_student_learns_from_the_selected_epoch_of_the_layer(monkeypatch):
    config, layers = STUDENT.with_(self_training=3, student="mlp", head=100, batch=64), []
    usual = SelfTrainer.run

    def run_layer(loop, progress=None):
        usual(loop, progress)
        loop.history[-1]["selected"] = 1
        loop.best = {name: torch.zeros_like(value) for name, value in loop.teacher.state_dict().items()}
        layers.append(loop)

    monkeypatch.setattr(SelfTrainer, "run", run_layer)
    loop = build_trainer(config, "cpu")
    assert len(layers) == 1
    torch.testing.assert_close(loop.memory, torch.full_like(loop.memory, 1 / loop.memory.shape[1]))


def test_partners_of_self_training_come_from_the_batch(tmp_path):
    config = SELF_TRAINING.with_(mix="icm", self_training_mix="icm", partners_from="dataset", clusters=5)
    assert run(config.with_(self_training=1), tmp_path, device="cpu")["accuracy_last"] > 0


@pytest.mark.parametrize("options", [{}, {"inputs": "raw", "model": "linear"}], ids=["features", "raw"])
def test_student_mlp_learns_on_the_inputs_of_the_first_classifier(options, tmp_path):
    config = STUDENT.with_(student="mlp", neighbors=10, **options)
    loop = build_trainer(config, "cpu")
    assert loop.model.kind == "mlp"
    assert loop.task.shape == ((1, 8, 8) if options else (128,))  # features of the encoder, or the images themselves
    assert (loop.task.encoder is None) == bool(options)
    assert loop.lr == self_training.NEW_MLP_LR
    assert build_trainer(config.with_(self_training_lr=0.02), "cpu").lr == 0.02
    result = run(config, tmp_path / "whole", device="cpu")
    found, test = predict.load(tmp_path / "whole", "last"), data.load("digits").test
    assert float((found(test.inputs).argmax(1) == test.truth).double().mean()) == pytest.approx(result["accuracy_last"])


@pytest.mark.slow
def test_student_mlp_finds_a_curved_boundary_that_a_linear_layer_cannot():
    random = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(4000, 2, generator=random)
    sector = ((torch.atan2(x[:, 1], x[:, 0]) / math.pi + 1) * 1.5).long().clamp(max=2)
    truth = torch.where(x.norm(dim=1) < 2, 3, sector)  # a disk in the middle; a linear layer takes it for a triangle
    train, test = (data.Split(x[part], truth[part]) for part in (slice(2500), slice(2500, None)))
    disk = data.Dataset("disk", train, test, ("a", "b", "c", "disk"), (0.0,) * 2, (2.0,) * 2)
    config = Config.of(inputs="raw", model="linear", mix="none", epochs=20, batch=128, lr=0.01, self_training=20)
    found = {name: run(config.with_(student=name), dataset=disk, device="cpu") for name in ("same", "mlp")}
    assert found["mlp"]["accuracy_last"] > found["same"]["accuracy_last"] + 0.02


def test_student_of_a_long_tail_starts_without_a_preference():
    loop = build_trainer(STUDENT.with_(long_tail=4, head=100, prior=",".join(["0.1"] * 10)), "cpu")
    new = networks.build("cnn", (1, 8, 8), 10, STUDENT.seed)
    assert torch.equal(loop.model.fc.bias, new.fc.bias), "log_prior, which is added in training, is not subtracted"


def test_student_run_resumes_to_the_same_bits_and_predicts(tmp_path):
    config = STUDENT.with_(neighbors=10)  # found again before epoch 1, not at its third step
    whole = run(config, tmp_path / "whole", device="cpu")

    def interrupt(loop):
        if isinstance(loop, SelfTrainer) and loop.epoch == 1 and loop.global_step > loop.steps_per_epoch + 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(config, tmp_path / "cut", device="cpu", progress=interrupt, checkpoint_seconds=0)
    run(config, tmp_path / "cut", device="cpu", resume=True)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1]
    found, test = predict.load(tmp_path / "whole", "last"), data.load("digits").test
    accuracy = float((found(test.inputs).argmax(1) == test.truth).double().mean())
    assert accuracy == pytest.approx(whole["accuracy_last"])


@pytest.mark.parametrize(
    "options", [{"inputs": "raw", "model": "mlp"}, {"student": "cnn"}, {"student": "mlp"}, {}], ids=str
)
def test_neighbors_are_found_again_in_the_features_of_the_teacher(options, monkeypatch):
    loop = build_trainer(SELF_TRAINING.with_(self_training=8, neighbors=10, **options), "cpu")
    own = log_likelihood(loop.task.excluded, loop.task.transition)
    searched, usual = [], self_training.evidence_of_neighbors
    assert not torch.equal(loop.log_likelihood, own)

    def search(trainer, neighborhood):
        searched.append((trainer.epoch, trainer.features(trainer.task.train), usual(trainer, neighborhood)))
        return searched[-1][-1]

    monkeypatch.setattr(self_training, "evidence_of_neighbors", search)
    loop.run()
    for _, features, found in searched:
        wanted = neighbor_evidence(features, loop.task.excluded, loop.task.transition, 10)
        torch.testing.assert_close(found, wanted)
    assert not torch.equal(searched[0][1], searched[-1][1]), "the features change"
    torch.testing.assert_close(loop.log_likelihood, own + searched[-1][-1])
    learned = 2 if options.get("student") else 1  # a student learns the first predictions before that
    assert [epoch for epoch, *_ in searched] == list(range(learned, 8))


def test_neighborhood_cluster_counts_the_labels_of_clusters_when_neighbors_are_found_again():
    nearest, cluster = (
        build_trainer(SELF_TRAINING.with_(student="mlp", self_training=3, neighbors=10, neighborhood=name), "cpu")
        for name in ("nearest", "cluster")
    )
    assert torch.equal(nearest.evidence, cluster.evidence), "the first neighbors are the nearest ones"
    for loop in (nearest, cluster):
        loop.epochs = 2  # the first epoch learns the first predictions
        loop.run()
    task, features = cluster.task, cluster.features(cluster.task.train)
    assert not torch.equal(nearest.evidence, cluster.evidence)
    cluster.epoch = 1
    found = self_training.evidence_of_neighbors(cluster, "cluster")
    seed = address(cluster.config.seed, "clusters", 1)
    torch.testing.assert_close(found, cluster_evidence(features, task.excluded, task.transition, 20, seed))


def test_neighborhood_cluster_is_used_in_the_last_searches_only(monkeypatch):
    loop = build_trainer(
        SELF_TRAINING.with_(inputs="raw", model="mlp", self_training=8, neighbors=10, neighborhood="cluster"), "cpu"
    )
    searched, usual = {}, self_training.evidence_of_neighbors

    def search(trainer, neighborhood):
        searched[trainer.epoch] = neighborhood
        return usual(trainer, neighborhood)

    monkeypatch.setattr(self_training, "evidence_of_neighbors", search)
    loop.run()
    assert searched == dict.fromkeys(range(1, 5), "nearest") | dict.fromkeys(range(5, 8), "cluster")


def test_neighbors_of_a_layer_on_fixed_features_are_found_once(monkeypatch):
    loop = build_trainer(SELF_TRAINING.with_(inputs="raw", model="linear", self_training=4, neighbors=10), "cpu")
    monkeypatch.setattr(self_training, "evidence_of_neighbors", lambda *_: pytest.fail("searched again"))
    before = loop.log_likelihood.clone()
    loop.run()
    assert torch.equal(loop.log_likelihood, before)


@pytest.mark.parametrize(
    ("epochs", "wanted"), [(1, []), (2, [1]), (3, [1, 2]), (200, [25, 50, 75, 100, 125, 150, 175])]
)
def test_search_epochs(epochs, wanted):
    assert search_epochs(epochs) == wanted


def test_learning_rate_warms_up_and_decays_to_zero():
    loop = build_trainer(SELF_TRAINING.with_(self_training=5, self_training_lr=0.5), "cpu")
    rates = []
    while not loop.done:
        loop.advance()
        rates.append(loop.optimizer.param_groups[0]["lr"])
    warm = 2 * loop.steps_per_epoch
    assert rates[0] == pytest.approx(0.5 / warm)
    assert rates[warm:] == sorted(rates[warm:], reverse=True)
    assert rates[-1] == pytest.approx(0.5 * math.cos(math.pi / 2 * (1 - 1 / len(rates))))


@pytest.mark.parametrize("mix", ["none", "icm", "micm"])
def test_pseudo_labels_are_mixed_like_labels(mix):
    result = run(SELF_TRAINING.with_(self_training_mix=mix, clusters=5, restarts=1), device="cpu")
    assert 0 <= result["accuracy_last"] <= 1


@pytest.mark.parametrize("options", [{"align": False}, {"teacher_ema": 0.0}, {"memory": 0.0}, {"temperature": 1.0}])
def test_each_piece_can_be_removed(options):
    whole, without = (run(c, device="cpu") for c in (SELF_TRAINING, SELF_TRAINING.with_(**options)))
    assert without["config"] != whole["config"]
    assert math.isfinite(without["confidence_last"])


def test_self_training_of_vectors():
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 60)
    x = random.normal(size=(180, 5)) + 4 * np.eye(5)[truth]
    not_y = (truth + random.integers(1, 3, 180)) % 3
    model = ComplementaryClassifier(mix="none", epochs=5, batch=60, config={"self_training": 10}).fit(x, not_y)
    assert np.mean(model.predict(x) == truth) > 0.95


# --- prior and balance --------------------------------------------------------------------------------

LONG_TAIL = Config.of(long_tail=10.0, mix="none", epochs=3, batch=64, self_training=2)


def test_start_for_a_balanced_population_predicts_with_the_prior_what_the_first_classifier_predicted():
    loop = build_trainer(LONG_TAIL.with_(prior=",".join(["0.19"] + ["0.09"] * 9)), "cpu")
    x = normalize(loop.task.train.take(slice(0, 50)).whole(), loop.task.mean, loop.task.std)
    for network in (loop.model, loop.teacher):
        torch.testing.assert_close(network.eval()(x) + loop.log_prior, loop.start.eval()(x))


def test_long_tail_is_trained_for_a_balanced_population():
    config = LONG_TAIL.with_(prior=",".join(["0.19"] + ["0.09"] * 9))
    loop = build_trainer(config, "cpu")
    assert loop.config.is_balanced
    assert loop.log_prior.exp().tolist() == pytest.approx([0.19] + [0.09] * 9)
    plain = build_trainer(config.with_(balanced=False), "cpu")
    assert not plain.log_prior.any()
    assert not build_trainer(SELF_TRAINING, "cpu").config.is_balanced


def test_prior_can_be_given_or_uniform():
    shares = ",".join(["0.19"] + ["0.09"] * 9)
    given = build_trainer(LONG_TAIL.with_(prior=shares), "cpu").prior
    assert given.tolist() == pytest.approx([0.19] + [0.09] * 9)
    assert build_trainer(LONG_TAIL.with_(prior="uniform"), "cpu").prior.tolist() == pytest.approx([0.1] * 10)


@pytest.mark.parametrize(
    ("prior", "found"), [("0.5,0.4", "0.9"), ("1.0,0.0", "0"), ("0.5,x", "0.5,x"), ("0.5,0.5", "2 shares")]
)
def test_bad_prior_is_refused(prior, found):
    with pytest.raises(UserError, match=found) as caught:
        build_trainer(SELF_TRAINING.with_(prior=prior), "cpu")
    assert caught.value.option == "prior"


def test_collapse_of_pseudo_labels_is_reported(caplog):
    loop = build_trainer(SELF_TRAINING, "cpu")
    loop.memory.fill_(1e-6)
    loop.memory[:, 3] = 1
    with caplog.at_level("WARNING"):
        found = loop.evaluate()
    assert found["class_coverage"] < 0.2
    assert "collapsing" in caplog.text
    assert build_trainer(SELF_TRAINING, "cpu").evaluate()["class_coverage"] > 0.5


@pytest.mark.parametrize("informative", [True, False])
def test_start_that_is_no_better_than_chance_is_reported(informative, caplog):
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 100)
    x = random.normal(size=(300, 5)) + 4 * np.eye(5)[truth] * informative
    options = {"mix": "none", "epochs": 5, "batch": 60, "holdout": 0.4, "config": {"self_training": 1}}
    with caplog.at_level("WARNING"):
        ComplementaryClassifier(**options).fit(x, (truth + random.integers(1, 3, 300)) % 3)
    assert ("no better than chance" in caplog.text) is not informative


def test_a_good_start_with_few_held_out_labels_is_not_reported(caplog):
    """With 20 labels of ten classes, two contradictions are expected by chance. An accurate classifier may have one."""
    loop = build_trainer(Config.of(mix="none", epochs=1, batch=64, head=20), "cpu")
    loop.run()
    excluded = loop.task.validation_excluded
    allowed = (1 - excluded.float()).multinomial(1, generator=torch.Generator().manual_seed(0))[:, 0]
    for contradictions, warned in ((0, False), (1, False), (len(excluded), True)):
        predicted = allowed.clone()
        predicted[:contradictions] = excluded[:contradictions].argmax(1).to(predicted)
        loop.validation_predictions[:] = predicted
        with caplog.at_level("WARNING"):
            runner._check_start(loop)
        assert ("no better than chance" in caplog.text) is warned


def test_fewer_examples_than_classes_are_refused():
    x = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(UserError, match="4 training examples for 6 classes"):
        ComplementaryClassifier(recipe="self-training").fit(x, np.eye(6, dtype=int)[:4])


@pytest.mark.parametrize(("sizes", "shown"), [((1500, 300, 12), True), ((600, 600, 600), False)])
def test_rare_classes_whose_share_the_labels_do_not_show_are_named(caplog, sizes, shown):
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], sizes)
    x = random.normal(size=(len(truth), 5)) + 4 * np.eye(5)[truth]
    excluded = np.array(["a", "b", "c"])[(truth + random.integers(1, 3, len(truth))) % 3]
    options = {"mix": "none", "epochs": 5, "batch": 60, "config": {"self_training": 1}}
    with caplog.at_level("INFO"):
        ComplementaryClassifier(**options).fit(x, excluded)
    assert ("The labels alone do not show the share of 1 of 3 classes" in caplog.text) is shown
    assert ("): c. If they are rare, they may be lost" in caplog.text) is shown
    assert ("class prior: a 0.8" in caplog.text) is shown
    assert ("class prior: equal shares" in caplog.text) is not shown


def test_classes_that_are_never_predicted_are_reported(caplog):
    loop = build_trainer(SELF_TRAINING, "cpu")
    loop.run()
    loop.memory.copy_(torch.eye(10)[torch.arange(len(loop.memory)) % 8])
    with caplog.at_level("WARNING"):
        runner.summarize(loop)
    assert "2 of 10 classes are never predicted: 8, 9" in caplog.text


@pytest.mark.parametrize("broken", [True, False])
def test_epoch_that_held_out_labels_contradict_is_not_the_result(tmp_path, monkeypatch, caplog, broken):
    """From the fourth epoch on, the teacher predicts one class."""
    config = Config.of(
        mix="none", inputs="raw", model="mlp", epochs=40, batch=64, lr=3e-3, self_training=6, holdout=0.4
    )

    def spoil(self):
        if broken and self.epoch >= 3:
            for network in (self.model, self.teacher):
                network.fc.weight.data.zero_()

    monkeypatch.setattr(SelfTrainer, "on_step_start", spoil)
    with caplog.at_level("WARNING"):
        result = run(config, tmp_path / "run", device="cpu")
    assert result["selected_epoch"] == (3 if broken else 6)
    assert (result["accuracy_selected"] > result["accuracy_last"] + 0.3) is broken
    assert ("Self-training became worse: by the held-out labels" in caplog.text) is broken
    assert caplog.text.count("became worse") == broken, "one warning"
    test = data.load("digits").test
    predicted = predict.load(tmp_path / "run")(test.inputs).argmax(1)
    assert float((predicted == test.truth).double().mean()) == pytest.approx(result["accuracy_selected"])


def test_result_reports_where_self_training_started():
    result = run(SELF_TRAINING, device="cpu")
    assert result["accuracy_last_before_self_training"] is not None
    assert sum(result["class_prior"]) == pytest.approx(1)
    assert all(0 < error < 0.2 for error in result["class_prior_error"])
    assert result["self_training_lr_used"] > 0
    assert result["accuracy_last_mirrored"] is None, "digits must not be mirrored"


@pytest.mark.slow
def test_self_training_improves_a_weak_classifier():
    config = Config.of(mix="icm", epochs=15, batch=64, lr=3e-3, self_training=20)
    result = run(config, device="cpu")
    assert result["accuracy_selected_before_self_training"] > 0.7
    assert result["accuracy_last"] > result["accuracy_selected_before_self_training"] + 0.02


FROM_IMAGES = {"inputs": "raw", "model": "cnn", "epochs": 15, "lr": 3e-3, "memory": 0.5}


@pytest.mark.gpu
@pytest.mark.parametrize("compile_", [False, True], ids=["captured", "compiled and captured"])
@pytest.mark.parametrize(
    "options",
    [FROM_IMAGES, {"student": "cnn"}, {"student": "mlp"}, FROM_IMAGES | {"neighbors": 10, "balanced": True}],
    ids=str,
)
def test_self_training_with_captured_steps_agrees_with_eager(options, compile_):
    """From a network whose training is well-conditioned: a change of 1e-6 in the weights changes nothing beyond 1e-5.
    (After ``encoder = random``, the same change alters remembered predictions by .2.)"""
    device, loops = torch.device("cuda"), []
    config = SELF_TRAINING.with_(self_training=6, **options)
    for capture in (False, True):
        loop = build_trainer(config, Engine(device, "fp32", compile=compile_ and capture, capture=capture))
        loops.append(loop)
        before = loop.memory.clone()
        while not loop.done:
            loop.advance()
        assert float((loop.memory - before).abs().max()) > 0.02
    eager, captured = loops
    assert all(graph.graph is not None for graph in captured.captured), "the step, and two evaluations"
    torch.testing.assert_close(captured.memory, eager.memory, atol=2e-3, rtol=1e-2)
    losses = [[row["loss"] for row in loop.history] for loop in loops]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


# --- a run in a folder --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stop", [pytest.param(5, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.slow), 13]
)
def test_resume_of_self_training_is_bitwise_equal(tmp_path, stop):
    whole = run(SELF_TRAINING, tmp_path / "whole", device="cpu")
    steps = 0

    def interrupt(loop):
        nonlocal steps
        steps += isinstance(loop, SelfTrainer)
        if steps == stop:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(SELF_TRAINING, tmp_path / "cut", device="cpu", progress=interrupt, checkpoint_seconds=0)
    again = run(SELF_TRAINING, tmp_path / "cut", device="cpu", resume=True)
    assert again["accuracy_last"] == whole["accuracy_last"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("self_training", [2, 0], ids=["self-training", "features only"])
def test_resume_with_another_encoder_is_refused(tmp_path, self_training):
    def put(seed):
        backbone, _ = build_backbone("cnn", (1, 8, 8), seed, True)
        record = describe(backbone) | {"shape": [1, 8, 8], "mean": [0.3], "std": [0.4]}
        files.write_checkpoint(tmp_path / "encoder.safetensors", backbone.state_dict(), record)

    def interrupt(loop):
        if isinstance(loop, SelfTrainer) == bool(self_training) and loop.global_step == 5:
            raise InterruptedError

    put(0)
    config = SELF_TRAINING.with_(encoder=f"run:{tmp_path}", self_training=self_training)
    with pytest.raises(InterruptedError):
        run(config, tmp_path / "run", device="cpu", progress=interrupt, checkpoint_seconds=0)
    put(1)
    with pytest.raises(UserError, match="changed since this run started") as caught:
        run(config, tmp_path / "run", device="cpu", resume=True)
    assert caught.value.option == "encoder"
    put(0)
    run(config, tmp_path / "run", device="cpu", resume=True)


def test_self_training_policy():
    policies = [
        build_trainer(SELF_TRAINING.with_(self_training_policy=name), "cpu").policy
        for name in ("none", "cutout", "randaugment", "strong")
    ]
    assert [None if p is None else type(p).__name__ for p in policies] == [None, "Cutout", "RandAugment", "Strong"]


def test_predictions_after_self_training_need_no_encoder(tmp_path):
    result = run(SELF_TRAINING, tmp_path / "run", device="cpu")
    test = data.load("digits").test
    found = predict.load(tmp_path / "run", "last")
    assert found.encoder is None
    assert found.shape == (1, 8, 8)
    accuracy = float((found(test.inputs).argmax(1) == test.truth).double().mean())
    assert accuracy == pytest.approx(result["accuracy_last"])


def test_estimated_transition_is_used_by_both_trainings(monkeypatch):
    made = []
    estimate = runner.transitions.estimate_transition
    monkeypatch.setattr(runner.transitions, "estimate_transition", lambda *a: made.append(estimate(*a)) or made[-1])
    loop = build_trainer(SELF_TRAINING.with_(loss="fwd", transition="estimate", estimate_epochs=1), "cpu")
    assert len(made) == 1 + runner.ESTIMATE_ROUNDS
    best = max(made, key=lambda e: e.likelihood)
    assert torch.equal(loop.task.transition, best.matrix)
    assert torch.equal(loop.loss_transition, best.matrix.float())


def test_estimator_with_self_training():
    dataset = data.load("digits")
    images, truth = dataset.train.inputs[:360, 0].numpy(), dataset.train.truth[:360].numpy()
    not_y = (truth + np.random.default_rng(0).integers(1, 10, len(truth))) % 10
    options = {"inputs": "features", "self_training": 1}
    model = ComplementaryClassifier(encoder="random", mix="none", epochs=1, config=options).fit(images, not_y)
    assert model.predictor_.encoder is None, "the fine-tuned network is applied to images"
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(images[:3]), model.predict_proba(images[:3]))


def test_progress_names_the_stage():
    seen = []
    run(SELF_TRAINING, device="cpu", progress=lambda loop: seen.append((loop.stage, type(loop).__name__, loop.epochs)))
    assert list(dict.fromkeys(seen)) == [("first classifier, ", "Trainer", 2), ("self-training, ", "SelfTrainer", 2)]


# --- bad input ----------------------------------------------------------------------------------------


def test_self_training_options_are_checked_before_the_first_training():
    with pytest.raises(UserError, match="8 x 8"):
        run(SELF_TRAINING.with_(padding=9), device="cpu", progress=lambda loop: pytest.fail("trained"))


def test_student_needs_images_and_self_training():
    with pytest.raises(UserError, match="self_training") as caught:
        build_trainer(STUDENT.with_(self_training=0), "cpu")
    assert caught.value.option == "student"
    digits = data.load("digits")
    split = dataclasses.replace(digits.train, inputs=digits.train.inputs.flatten(1).float())
    vectors = dataclasses.replace(digits, train=split, test=None, mean=(0.0,) * 64, std=(1.0,) * 64)
    with pytest.raises(UserError, match="images") as caught:
        build_trainer(Config.of(inputs="raw", self_training=2, student="cnn"), "cpu", vectors)
    assert caught.value.option == "student"


def test_divergence_of_self_training_names_its_learning_rate():
    with pytest.raises(UserError, match="NaN or infinite") as caught:
        run(SELF_TRAINING.with_(self_training_lr=1e30), device="cpu")
    assert caught.value.option == "self_training_lr"


@pytest.mark.parametrize(
    ("name", "value"),
    [("self_training", -1), ("self_training_lr", 0.0), ("temperature", 0.0), ("memory", 1.0), ("teacher_ema", 1.5)],
)
def test_self_training_options_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=str(value)) as caught:
        Config.of(inputs="features", **{name: value})
    assert caught.value.option == name
