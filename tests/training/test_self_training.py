"""Self-training: pseudo-labels by Bayes' rule, and a network that is fine-tuned on them."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import ComplementaryClassifier, data, files, transitions
from complementary.config import Config
from complementary.encoders.backbone import build_backbone, describe, load_weights
from complementary.engine.backend import Engine
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.training import predict
from complementary.training import run as runner
from complementary.training.run import build_trainer, run
from complementary.training.self_training import MOMENTUM, SelfTrainer, posterior, pseudo_label_loss

ALL = Config.of(inputs="features", encoder="random", mix="none", epochs=2, batch=128, self_training=2)
SELF_TRAINING = ALL.with_(head=36, batch=32)  # 36 images of each class


# --- pseudo-labels --------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 10_000))
def test_posterior_is_bayes_rule(classes, most, seed):
    random = np.random.default_rng(seed)
    matrix = random.dirichlet(np.ones(classes), classes)
    predicted = random.dirichlet(np.ones(classes), 5)
    excluded = (random.random((5, classes)) < most / classes).astype(np.uint8)
    found = posterior(torch.from_numpy(predicted).float(), torch.from_numpy(excluded), torch.from_numpy(matrix))
    for row, labels, belief in zip(predicted, excluded, found, strict=True):
        slow = [
            max(row[y], 1e-6) * np.prod([max(matrix[y, k], 1e-12) for k in np.flatnonzero(labels)])
            for y in range(classes)
        ]
        torch.testing.assert_close(belief.double(), torch.tensor(slow) / sum(slow), rtol=1e-4, atol=1e-6)


def test_posterior_of_an_excluded_class_is_zero():
    predicted = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    excluded = torch.tensor([[1, 0, 0], [1, 0, 0]], dtype=torch.uint8)
    found = posterior(predicted, excluded, transitions.uniform(3))
    torch.testing.assert_close(found[0], torch.tensor([0.0, 2 / 3, 1 / 3]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], torch.tensor([0.0, 0.5, 0.5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_pseudo_label_loss_adds_the_cross_entropy(name):
    logits, random = torch.randn(6, 4), torch.Generator().manual_seed(0)
    excluded, belief = (
        torch.eye(4)[torch.randint(4, (6,), generator=random)],
        torch.rand(6, 4, generator=random).softmax(1),
    )
    matrix = transitions.uniform(4)
    found = pseudo_label_loss(LOSSES[name], logits, torch.cat([excluded, belief], 1), matrix)
    usual = torch.nn.functional.cross_entropy(logits, belief, reduction="none")
    torch.testing.assert_close(found, LOSSES[name](logits, excluded, matrix) + usual)


def test_pseudo_label_loss_normalizes_joined_labels():
    logits, excluded, joined = torch.randn(2, 3), torch.zeros(2, 3), torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.0, 0.0]])
    found = pseudo_label_loss(LOSSES["s-nl"], logits, torch.cat([excluded, joined], 1), None)
    usual = torch.nn.functional.cross_entropy(logits[:1], joined[:1] / 1.6)
    torch.testing.assert_close(found, torch.stack([usual, torch.zeros(())]))


# --- the training -------------------------------------------------------------------------------------


def test_self_trainer_starts_from_the_encoder_with_a_new_last_layer():
    loop = build_trainer(SELF_TRAINING, "cpu")
    assert isinstance(loop, SelfTrainer)
    backbone = loop.encoder.backbone.state_dict()
    found = loop.model.state_dict()
    assert found.keys() - backbone.keys() == {"fc.weight", "fc.bias"}
    assert all(torch.equal(found[k], v) for k, v in backbone.items())
    assert loop.task.shape == (1, 8, 8), "it is trained on images"


def test_pseudo_labels_start_from_the_selected_epoch_and_follow_by_ema():
    loop = build_trainer(SELF_TRAINING, "cpu")
    first = loop.predictions.clone()
    torch.testing.assert_close(first.sum(1), torch.ones(len(first)))
    classifier = build_trainer(SELF_TRAINING.with_(self_training=0), "cpu")
    classifier.run()
    classifier.model.load_state_dict(classifier.selected)
    torch.testing.assert_close(first, classifier.logits(classifier.task.train).softmax(1))
    while loop.epoch == 0:
        loop.advance()
    assert torch.equal(loop.predictions, first), "the first epoch uses the predictions of the classifier on features"
    now = loop.logits(loop.task.train).softmax(1)
    loop.advance()
    torch.testing.assert_close(loop.predictions, MOMENTUM * first + (1 - MOMENTUM) * now)
    torch.testing.assert_close(
        loop.pseudo_labels, posterior(loop.predictions, loop.task.excluded, loop.task.transition)
    )


def test_learning_rate_warms_up_and_decays():
    loop = build_trainer(SELF_TRAINING.with_(self_training=3, self_training_lr=0.5), "cpu")
    rates = []
    while not loop.done:
        loop.advance()
        rates.append(loop.optimizer.param_groups[0]["lr"])
    steps = loop.steps_per_epoch
    assert rates[0] == pytest.approx(0.5 / steps)
    assert max(rates) == rates[steps - 1]
    assert 0 < rates[-1] < 0.01 * max(rates)
    assert rates[steps - 1 :] == sorted(rates[steps - 1 :], reverse=True)


@pytest.mark.parametrize("mix", ["mixup", "icm", "micm", "same-excluded"])
def test_pseudo_labels_are_mixed_like_labels(mix):
    result = run(SELF_TRAINING.with_(mix=mix, clusters=5, restarts=1), device="cpu")
    assert 0 <= result["accuracy_last"] <= 1


@pytest.mark.slow
def test_self_training_improves_a_weak_classifier():
    config = ALL.with_(
        encoder="simsiam", pretrain_epochs=20, epochs=30, self_training=40, self_training_lr=1e-3, batch=64
    )
    result = run(config, device="cpu")
    assert result["accuracy_selected_before_self_training"] > 0.5
    assert result["accuracy_last"] > result["accuracy_last_before_self_training"] + 0.02


@pytest.mark.gpu
def test_self_training_with_captured_steps_agrees_with_eager():
    device, loops = torch.device("cuda"), []
    for capture in (False, True):
        loop = build_trainer(
            SELF_TRAINING.with_(self_training=6), Engine(device, "fp32", compile=capture, capture=capture)
        )
        loops.append(loop)
        while not loop.done:
            loop.advance()
    eager, captured = loops
    assert all(graph.graph is not None for graph in captured.captured), "the step, and three evaluations"
    torch.testing.assert_close(captured.predictions, eager.predictions, atol=2e-3, rtol=1e-2)
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
        for name in ("none", "cutout", "randaugment")
    ]
    assert [None if p is None else type(p).__name__ for p in policies] == [None, "Cutout", "RandAugment"]


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
    assert len(made) == runner.ESTIMATE_ROUNDS
    assert torch.equal(loop.task.transition, made[-1].matrix)
    assert torch.equal(loop.loss_transition, made[-1].matrix.float())


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
    assert list(dict.fromkeys(seen)) == [("on features, ", "Trainer", 2), ("self-training, ", "SelfTrainer", 2)]


def test_fine_tuned_network_can_be_used_as_an_encoder(tmp_path):
    run(SELF_TRAINING, tmp_path / "run", device="cpu")
    found = load_weights(tmp_path / "run" / "last.safetensors", (1, 8, 8))
    assert found.kind == "cnn"


# --- bad input ----------------------------------------------------------------------------------------


def test_self_training_needs_features():
    with pytest.raises(UserError, match="features") as caught:
        Config.of(self_training=3)
    assert caught.value.option == "inputs"


def test_self_training_options_are_checked_before_the_first_training():
    with pytest.raises(UserError, match="8 x 8"):
        run(SELF_TRAINING.with_(padding=9), device="cpu", progress=lambda loop: pytest.fail("trained"))


def test_divergence_of_self_training_names_its_learning_rate():
    with pytest.raises(UserError, match="NaN or infinite") as caught:
        run(SELF_TRAINING.with_(self_training_lr=1e30), device="cpu")
    assert caught.value.option == "self_training_lr"


@pytest.mark.parametrize(("name", "value"), [("self_training", -1), ("self_training_lr", 0.0)])
def test_self_training_options_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=str(value)) as caught:
        Config.of(inputs="features", **{name: value})
    assert caught.value.option == name
