"""POCR: target, loss and step against slow references, published schedules, resume, and bad input."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import data
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.rng import generator
from complementary.training import run as runner
from complementary.training.pocr import MOMENTUM, PocrTrainer, consistency, masked_target, risen, stepped
from complementary.training.run import build_trainer, run
from tests.helpers import run_files

POCR = Config.of(recipe="pocr", head=20, batch=32, epochs=3, model="mlp")  # 20 images of each class


# --- target and loss ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_masked_target_and_consistency_match_the_formulas(classes, seed):
    random = np.random.default_rng(seed)
    weak, first, second = (random.normal(0, 4, (3, classes)) for _ in range(3))
    excluded = (random.random((3, classes)) < 0.5).astype(np.uint8)
    excluded[np.arange(3), random.integers(0, classes, 3)] = 0  # one class remains
    tensors = [torch.from_numpy(t).float() for t in (weak, excluded, first, second)]
    target, loss = masked_target(*tensors[:2]), consistency(*tensors)
    for i in range(3):
        p, q, r = (np.exp(t[i]) / np.exp(t[i]).sum() for t in (weak, first, second))
        kept = [p[k] * (1 - excluded[i, k]) for k in range(classes)]
        slow = [value / sum(kept) for value in kept]
        divergence = sum(t * np.log(t / o[k]) for o in (q, r) for k, t in enumerate(slow) if t > 0)
        assert target[i].tolist() == pytest.approx(slow, abs=1e-5)
        assert float(loss[i]) == pytest.approx(divergence, rel=1e-3, abs=1e-4)


def test_consistency_has_no_gradient_for_the_weak_view():
    weak, first, second = (torch.randn(4, 3, requires_grad=True) for _ in range(3))
    consistency(weak, torch.eye(3)[[0, 1, 2, 0]], first, second).sum().backward()
    assert weak.grad is None
    assert (first.grad.abs().sum(1) > 0).all()


def test_masked_target_survives_a_certain_prediction_of_an_excluded_class():
    target = masked_target(torch.tensor([[500.0, 1.0, 0.0]]), torch.tensor([[1, 0, 0]]))
    assert target.tolist() == [pytest.approx([0, np.e / (np.e + 1), 1 / (np.e + 1)])]


@pytest.mark.parametrize("epochs", [200, 40])
def test_schedules_are_the_published_ones(epochs):
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], 0.1)
    published = torch.optim.lr_scheduler.MultiStepLR(optimizer, [epochs // 2, 3 * epochs // 4])
    for epoch in range(epochs):
        assert 0.1 * stepped(epoch, epochs) == pytest.approx(optimizer.param_groups[0]["lr"])
        assert risen(epoch, epochs) == pytest.approx(min(epoch / (epochs / 2), 1))
        optimizer.step()
        published.step()


def test_recipe_has_the_published_options():
    t = Config.of(recipe="pocr").training
    assert (t.epochs, t.batch, t.lr, t.weight_decay, t.loss) == (200, 64, 0.1, 1e-4, "s-nl")
    assert Config.of(recipe="pocr", epochs=7).training.epochs == 7


# --- the step -------------------------------------------------------------------------------------


def test_step_matches_a_slow_reference():
    loop = build_trainer(POCR, "cpu")
    index = torch.arange(32)
    model = copy.deepcopy(loop.model)
    loop.weight.fill_(0.7)
    found = loop.step(index, generator(0, "step"))
    weak, first, second = loop.views(index, generator(0, "step"), None, 1, 2)
    excluded = loop.task.excluded[index].float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=MOMENTUM, weight_decay=1e-4)
    logits = [model(x) for x in (weak, first, second)]
    target = masked_target(logits[0], excluded)
    apart = sum(F.kl_div(other.log_softmax(1), target, reduction="batchmean") for other in logits[1:])
    loss = LOSSES["s-nl"](logits[0], excluded, None).mean() + 0.7 * apart
    loss.backward()
    optimizer.step()
    assert float(found) == pytest.approx(loss.item(), rel=1e-5)
    for ours, slow in zip(loop.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, slow)


def test_views_are_weak_then_strong():
    loop = build_trainer(POCR, "cpu")
    index = torch.arange(32)
    weak, *strong = loop.views(index, generator(0, "step"), None, 1, 2)
    inputs = loop.task.train.take(index).whole()
    plain = (inputs.float() - 255 * loop.task.mean) / (255 * loop.task.std)
    torch.testing.assert_close(weak, plain)  # digits have neither crop nor flip
    changed = [(view != plain).flatten(1).any(1).float().mean() for view in strong]
    assert min(changed) > 0.9
    assert not torch.equal(*strong)


def test_policy_replaces_the_strong_augmentation():
    assert [type(p).__name__ for p in build_trainer(POCR, "cpu").strong] == ["Cutout", "AutoAugment"]
    assert [type(p).__name__ for p in build_trainer(POCR.with_(policy="randaugment"), "cpu").strong] == ["RandAugment"]


# --- a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["raw", "features"])
def test_resume_of_pocr_is_bitwise_equal(tmp_path, inputs):
    config = POCR.with_(inputs=inputs, encoder="random", model="auto")
    run(config, tmp_path / "whole", device="cpu")

    def interrupt(loop):
        if isinstance(loop, PocrTrainer) and loop.global_step == 8:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(config, tmp_path / "cut", device="cpu", progress=interrupt, checkpoint_seconds=0)
    run(config, tmp_path / "cut", device="cpu", resume=True)
    assert run_files(tmp_path / "whole") == run_files(tmp_path / "cut")


def test_pocr_starts_from_encoder_and_linear_layer_with_a_rate_that_fits():
    loop = build_trainer(POCR.with_(inputs="features", encoder="random", model="auto", lr=10.0), "cpu")
    assert isinstance(loop, PocrTrainer)
    assert loop.task.shape == (1, 8, 8)
    backbone, found = loop.encoder.backbone.state_dict(), loop.model.state_dict()
    assert all(torch.equal(found[k], v) for k, v in backbone.items())
    assert loop.lr < 1, "the given rate would destroy the encoder"


def test_pocr_after_a_discriminant_starts_from_the_layer_before_it():
    """The weights of a discriminant are too large for fine-tuning. ``fit = neighbors`` has no such layer."""
    directions = []
    for fit in ("gradient", "discriminant", "neighbors"):
        config = POCR.with_(inputs="features", encoder="random", model="auto", fit=fit)
        weight = build_trainer(config, "cpu").model.fc.weight.detach()
        directions.append(weight / weight.norm())
    assert torch.equal(directions[0], directions[1])
    assert not torch.allclose(directions[0], directions[2], atol=0.01)


def shuffled(dataset: Dataset) -> Dataset:
    """The same images with true labels that have nothing to do with them: a negative control."""
    order = torch.randperm(len(dataset.train), generator=generator(0, "shuffled"))
    train = Split(dataset.train.inputs, dataset.train.truth[order])
    return Dataset("shuffled", train, dataset.test, dataset.classes, dataset.mean, dataset.std, flip=dataset.flip)


def test_pocr_learns():
    config = POCR.with_(head=80, per_example=4, epochs=8, policy="cutout")
    dataset = data.load("digits")
    learned, control = (run(config, device="cpu", dataset=d)["accuracy_last"] for d in (dataset, shuffled(dataset)))
    assert learned > 0.8
    assert control < 0.3


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["pocr", "plnl"])
@pytest.mark.parametrize(
    ("options", "option"), [({"mix": "icm", "clusters": 3}, "mix"), ({"self_training": 2}, "self_training")]
)
def test_pocr_refuses_other_methods(recipe, options, option):
    with pytest.raises(UserError, match=recipe) as caught:
        build_trainer(Config.of(recipe=recipe, head=20, batch=32, **options), "cpu")
    assert caught.value.option == option


@pytest.mark.parametrize("recipe", ["pocr", "plnl"])
def test_pocr_refuses_vectors(recipe):
    x, y = torch.randn(80, 5), torch.arange(80) % 4
    dataset = Dataset("vectors", Split(x, y), None, tuple("abcd"), (0.0,) * 5, (1.0,) * 5)
    with pytest.raises(UserError, match=r"\[5\]") as caught:
        build_trainer(Config.of(recipe=recipe, batch=16), "cpu", dataset)
    assert caught.value.option == "recipe"


@pytest.mark.parametrize("recipe", ["pocr", "plnl"])
def test_an_encoder_that_stays_frozen_is_refused_before_anything_is_trained(recipe, monkeypatch):
    monkeypatch.setattr(runner, "_train_first", None)
    images = torch.randint(256, (200, 1, 16, 16), dtype=torch.uint8)
    dataset = Dataset("images", Split(images, torch.arange(200) % 4), None, tuple("abcd"), (0.5,), (0.25,))
    with pytest.raises(UserError, match="patches is an encoder that stays frozen") as caught:
        build_trainer(Config.of(recipe=recipe, batch=16, inputs="features", encoder="patches"), "cpu", dataset)
    assert caught.value.option == "encoder"


def test_ema_is_refused():
    with pytest.raises(UserError, match="does not average") as caught:
        build_trainer(POCR.with_(ema=0.9), "cpu")
    assert caught.value.option == "ema"
