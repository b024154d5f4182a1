"""Refining: beliefs by Bayes' rule, and a network that learns from them without any true label."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import ComplementaryClassifier, data, files, transitions
from complementary.config import Config
from complementary.encoders.backbone import build_body, describe, load_named
from complementary.engine.backend import Engine
from complementary.engine.run_folder import loop
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.training import predict
from complementary.training import run as runner
from complementary.training.run import run, start
from complementary.training.self_training import KEPT, SelfTrainer, posterior, with_beliefs

REFINE = Config.of(inputs="features", encoder="random", mix="none", epochs=2, batch=128, self_training=2)


# --- beliefs ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 10_000))
def test_the_posterior_is_bayes_rule_written_out(classes, most, seed):
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


def test_a_label_that_is_never_wrong_leaves_its_class_with_nothing():
    predicted = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    excluded = torch.tensor([[1, 0, 0], [1, 0, 0]], dtype=torch.uint8)
    found = posterior(predicted, excluded, transitions.uniform(3))
    torch.testing.assert_close(found[0], torch.tensor([0.0, 2 / 3, 1 / 3]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], torch.tensor([0.0, 0.5, 0.5]), atol=1e-5, rtol=0)  # sure of what cannot be


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_complementary_one_and_the_cross_entropy(name):
    logits, random = torch.randn(6, 4), torch.Generator().manual_seed(0)
    excluded, belief = (
        torch.eye(4)[torch.randint(4, (6,), generator=random)],
        torch.rand(6, 4, generator=random).softmax(1),
    )
    matrix = transitions.uniform(4)
    found = with_beliefs(LOSSES[name], logits, torch.cat([excluded, belief], 1), matrix)
    usual = torch.nn.functional.cross_entropy(logits, belief, reduction="none")
    torch.testing.assert_close(found, LOSSES[name](logits, excluded, matrix) + usual)


def test_beliefs_that_were_joined_count_as_a_distribution():
    logits, excluded, joined = torch.randn(2, 3), torch.zeros(2, 3), torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.0, 0.0]])
    found = with_beliefs(LOSSES["s-nl"], logits, torch.cat([excluded, joined], 1), None)
    usual = torch.nn.functional.cross_entropy(logits[:1], joined[:1] / 1.6)
    torch.testing.assert_close(found, torch.stack([usual, torch.zeros(())]))


# --- the training -------------------------------------------------------------------------------------


def test_the_network_begins_with_the_encoder_and_a_new_last_layer():
    job = start(REFINE, "cpu")
    assert isinstance(job, SelfTrainer)
    body = job.lens.body.state_dict()
    found = job.model.state_dict()
    assert found.keys() - body.keys() == {"fc.weight", "fc.bias"}
    assert all(torch.equal(found[k], v) for k, v in body.items())
    assert job.task.shape == (1, 8, 8), "it sees pictures"


def test_beliefs_come_from_the_chosen_epoch_and_follow_the_network():
    job = start(REFINE, "cpu")
    first = job.predicted.clone()
    torch.testing.assert_close(first.sum(1), torch.ones(len(first)))
    classifier = start(REFINE.with_(self_training=0), "cpu")
    loop(classifier)
    classifier.model.load_state_dict(classifier.selected)
    torch.testing.assert_close(first, classifier.logits(classifier.task.train).softmax(1))
    while job.epoch == 0:
        job.advance()
    assert torch.equal(job.predicted, first), "the first epoch learns from the classifier on features alone"
    now = job.logits(job.task.train).softmax(1)
    job.advance()
    torch.testing.assert_close(job.predicted, KEPT * first + (1 - KEPT) * now)
    torch.testing.assert_close(job.belief, posterior(job.predicted, job.task.excluded, job.task.transition))


def test_the_rate_rises_for_an_epoch_and_falls_to_nothing():
    job = start(REFINE.with_(self_training=3, self_training_lr=0.5), "cpu")
    rates = []
    while not job.done:
        job.advance()
        rates.append(job.optimiser.param_groups[0]["lr"])
    steps = job.steps_per_epoch
    assert rates[0] == pytest.approx(0.5 / steps)
    assert max(rates) == rates[steps - 1]
    assert 0 < rates[-1] < 0.01 * max(rates)
    assert rates[steps - 1 :] == sorted(rates[steps - 1 :], reverse=True)


def test_true_labels_play_no_part():
    dataset = data.load("digits")
    given_ = dataclasses.replace(
        dataset.train, excluded=torch.eye(10, dtype=torch.uint8)[(dataset.train.truth + 3) % 10]
    )
    blind = dataclasses.replace(dataset, train=dataclasses.replace(given_, truth=None), test=None)
    seeing = dataclasses.replace(dataset, train=given_)
    config = REFINE.with_(labels="given")
    one, two = start(config, "cpu", seeing), start(config, "cpu", blind)
    loop(one), loop(two)
    assert all(
        torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("mix", ["mixup", "icm", "micm", "same-excluded"])
def test_beliefs_are_mixed_as_the_labels_are(mix):
    result = run(REFINE.with_(mix=mix, clusters=5, restarts=1), device="cpu")
    assert 0 <= result["accuracy_last"] <= 1


def test_it_makes_a_weak_classifier_better():
    config = REFINE.with_(
        encoder="simsiam", pretrain_epochs=20, epochs=30, self_training=40, self_training_lr=1e-3, batch=64
    )
    result = run(config, device="cpu")
    assert result["accuracy_selected_before_refining"] > 0.5
    assert result["accuracy_last"] > result["accuracy_last_before_refining"] + 0.02


@pytest.mark.gpu
def test_on_a_card_captured_steps_refine_as_eager_ones_do():
    card, jobs = torch.device("cuda"), []
    for capture in (False, True):
        job = start(REFINE.with_(self_training=6), Engine(card, "fp32", compile=capture, capture=capture))
        jobs.append(job)
        while not job.done:
            job.advance()
    eager, captured = jobs
    assert all(graph.graph is not None for graph in captured.captured), "the step, and three evaluations"
    torch.testing.assert_close(captured.predicted, eager.predicted, atol=2e-3, rtol=1e-2)
    losses = [[row["loss"] for row in job.history] for job in jobs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


# --- a run in a folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [5, 10, 13])
def test_it_resumes_exactly(tmp_path, stop):
    whole = run(REFINE, tmp_path / "whole", device="cpu")
    steps = 0

    def interrupt(job):
        nonlocal steps
        steps += isinstance(job, SelfTrainer)
        if steps == stop:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(REFINE, tmp_path / "cut", device="cpu", progress=interrupt, checkpoint_seconds=0)
    again = run(REFINE, tmp_path / "cut", device="cpu", resume=True)
    assert again["accuracy_last"] == whole["accuracy_last"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("self_training", [2, 0], ids=["refining", "features alone"])
def test_another_encoder_does_not_go_on_where_the_first_one_was(tmp_path, refine):
    def put(seed):
        body, _ = build_body("cnn", (1, 8, 8), seed, True)
        record = describe(body) | {"shape": [1, 8, 8], "mean": [0.3], "std": [0.4]}
        files.write_checkpoint(tmp_path / "encoder.safetensors", body.state_dict(), record)

    def interrupt(job):
        if isinstance(job, SelfTrainer) == bool(refine) and job.steps_before() == 5:
            raise InterruptedError

    put(0)
    config = REFINE.with_(encoder=f"run:{tmp_path}", self_training=refine)
    with pytest.raises(InterruptedError):
        run(config, tmp_path / "run", device="cpu", progress=interrupt, checkpoint_seconds=0)
    put(1)
    with pytest.raises(UserError, match="is another one than this run began with; put the first one back"):
        run(config, tmp_path / "run", device="cpu", resume=True)
    put(0)
    run(config, tmp_path / "run", device="cpu", resume=True)


def test_the_augmentation_can_be_chosen():
    policies = [
        start(REFINE.with_(self_training_policy=name), "cpu").policy for name in ("none", "cutout", "randaugment")
    ]
    assert [None if p is None else type(p).__name__ for p in policies] == [None, "Cutout", "RandAugment"]


def test_predictions_are_made_from_pictures_by_the_refined_network(tmp_path):
    result = run(REFINE, tmp_path / "run", device="cpu")
    test = data.load("digits").test
    found = predict.load(tmp_path / "run", "last")
    assert found.lens is None
    assert found.shape == (1, 8, 8)
    accuracy = float((found(test.inputs).argmax(1) == test.truth).double().mean())
    assert accuracy == pytest.approx(result["accuracy_last"])


def test_an_estimated_matrix_serves_both_trainings(monkeypatch):
    made = []
    estimate = runner.transitions.estimate_transition
    monkeypatch.setattr(runner.transitions, "estimate_transition", lambda *a: made.append(estimate(*a)) or made[-1])
    job = start(REFINE.with_(loss="fwd", transition="estimate", estimate_epochs=1), "cpu")
    assert len(made) == 1
    assert torch.equal(job.task.transition, made[0])
    assert torch.equal(job.loss_transition, made[0].float())


def test_the_estimator_refines_too():
    dataset = data.load("digits")
    images, truth = dataset.train.inputs[:, 0].numpy(), dataset.train.truth.numpy()
    not_y = (truth + np.random.default_rng(0).integers(1, 10, len(truth))) % 10
    options = {"inputs": "features", "encoder": "random", "mix": "none", "epochs": 1, "self_training": 1}
    model = ComplementaryClassifier(**options).fit(images, not_y)
    assert isinstance(model.trainer_, SelfTrainer)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(images[:3]), model.predict_proba(images[:3]))


def test_progress_tells_the_first_training_from_the_second():
    seen = []
    run(REFINE, device="cpu", progress=lambda job: seen.append((job.stage, type(job).__name__, job.epochs)))
    assert list(dict.fromkeys(seen)) == [("on features, ", "Trainer", 2), ("refining, ", "SelfTrainer", 2)]


def test_a_refined_network_serves_as_an_encoder(tmp_path):
    run(REFINE, tmp_path / "run", device="cpu")
    found = load_named(f"file:{tmp_path / 'run' / 'last.safetensors'}", (1, 8, 8))
    assert found.kind == "cnn"


# --- bad input ----------------------------------------------------------------------------------------


def test_refining_needs_features():
    with pytest.raises(UserError, match=r"Refining \(--refine\) begins with a classifier on features; add --inputs"):
        Config.of(self_training=3)


def test_what_is_wrong_with_the_pictures_is_said_before_anything_is_trained():
    with pytest.raises(UserError, match="The crop padding is 9, but the pictures are only 8 x 8"):
        run(REFINE.with_(padding=9), device="cpu", progress=lambda job: pytest.fail("trained"))


def test_a_rate_that_is_too_high_is_named():
    with pytest.raises(UserError, match="Try a lower --refine-lr, and look"):
        run(REFINE.with_(self_training_lr=1e30), device="cpu")


@pytest.mark.parametrize(("name", "value"), [("self_training", -1), ("self_training_lr", 0.0)])
def test_numbers_that_mean_nothing_are_refused(name, value):
    with pytest.raises(UserError, match=f"The option {name.replace('_', '-')} is {value}"):
        Config.of(inputs="features", **{name: value})
