import pytest
import torch

from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.mixing import MIXERS
from complementary.training.predict import load
from complementary.training.run import build_trainer, run
from complementary.training.task import build_task
from complementary.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize("mix", MIXERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_step_with_any_loss_mixer_and_number_of_labels(loss, mix):
    for per_example in (1, 4):
        config = Config.of(
            loss=loss, mix=mix, clusters=20, restarts=1, epochs=1, per_example=per_example, head=40, batch=128
        )
        trainer = build_trainer(config, "cpu")
        before = [p.clone() for p in trainer.model.parameters()]
        trainer.run()
        assert torch.isfinite(torch.tensor(trainer.history[0]["loss"]))
        assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


@pytest.mark.parametrize(
    "share", ["new-data", *(pytest.param(share, marks=pytest.mark.slow) for share in ("soft-label", "hard-label"))]
)
@pytest.mark.parametrize("partners_from", ["batch", "dataset"])
def test_sharing_modes_and_pools_train(share, partners_from):
    result = run(Config.of(mix="icm", share=share, partners_from=partners_from, clusters=20, restarts=1, epochs=30))
    assert result["accuracy_last"] > 0.3


def test_step_matches_the_formulas():
    """One update without mixing, compared with Adam from its formulas."""
    config = Config.of(mix="none", model="linear", epochs=1, batch=64, lr=0.01, weight_decay=0.1)
    trainer = build_trainer(config, "cpu")
    weight = trainer.model.fc.weight.detach().clone().double()
    bias = trainer.model.fc.bias.detach().clone().double()
    index = torch.arange(64)
    x, excluded = (t.double() for t in trainer.load(index, None))
    weight.requires_grad_(True)
    p = (x.flatten(1) @ weight.T + bias).softmax(1)
    loss = -(excluded * (1 - p + 1e-6).log()).sum(1).mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    gradient = gradient + 0.1 * weight.detach()
    expected = weight.detach() - 0.01 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
    found = trainer.step(index, torch.Generator())
    assert float(found) == pytest.approx(float(loss.detach()), rel=1e-5)
    # where the gradient is almost zero, rounding decides the first step of Adam
    clear = gradient.abs() > 1e-6
    assert torch.allclose(trainer.model.fc.weight.detach().double()[clear], expected[clear], atol=1e-5)


def test_loss_is_the_mean_over_labeled_examples():
    """Only two examples have a partner: the loss is the mean over these two, not over the batch."""
    config = Config.of(mix="icm", model="linear", clusters=20, restarts=1, batch=8)
    task = build_task(config)
    task.cluster[:8] = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6])
    means = {}
    for alone in ("skip", "black"):
        trainer = Trainer(config.with_(alone=alone), task, CPU)
        means[alone] = float(trainer.step(torch.arange(8), torch.Generator().manual_seed(0)))
    assert means["skip"] == pytest.approx(4 * means["black"], rel=1e-5)


def test_sgd_follows_its_schedule_and_formulas():
    """Three updates of a linear model, compared with Nesterov momentum, warm-up and cosine from their formulas."""
    options = {"mix": "none", "model": "linear", "epochs": 2, "batch": 640, "optimizer": "sgd"}
    trainer = build_trainer(Config.of(**options, lr=0.5, weight_decay=0.1), "cpu")
    assert trainer.steps_per_epoch == 2
    weight = trainer.model.fc.weight.detach().clone().double()
    bias = trainer.model.fc.bias.detach().clone().double()
    velocity = {"weight": torch.zeros_like(weight), "bias": torch.zeros_like(bias)}
    rates = [0.5 * 0.5, 0.5 * (1 + 2**-0.5) / 2, 0.5 * 0.5]  # half of the warm-up; the cosine after 1/4 and 1/2
    for rate in rates:
        trainer.advance()
        start = (trainer.global_step - 1) % 2 * 640
        x, excluded = (part.double() for part in trainer.load(trainer.order[start : start + 640], None))
        for part in (weight, bias):
            part.requires_grad_(True)
        p = (x.flatten(1) @ weight.T + bias).softmax(1)
        loss = -(excluded * (1 - p + 1e-6).log()).sum(1).mean()
        gradients = torch.autograd.grad(loss, (weight, bias))
        moved = []
        for (name, old), part, gradient in zip(velocity.items(), (weight, bias), gradients, strict=True):
            gradient = gradient + 0.1 * part.detach()
            velocity[name] = 0.9 * old + gradient
            moved.append(part.detach() - rate * (gradient + 0.9 * velocity[name]))
        weight, bias = moved
        assert torch.allclose(trainer.model.fc.weight.detach().double(), weight, atol=1e-5)
        assert torch.allclose(trainer.model.fc.bias.detach().double(), bias, atol=1e-5)


def test_ema_is_the_result_and_leaves_out_the_first_steps():
    """The average is a copy of the network for as many steps as it averages over, and then their average."""
    config = Config.of(mix="none", model="mlp", epochs=2, batch=128, optimizer="sgd", lr=0.05, ema=0.8)
    trainer, plain = build_trainer(config, "cpu"), build_trainer(config.with_(ema=0.0), "cpu")
    wanted = None
    for step in range(12):
        before = plain.model.fc.weight.detach().clone()
        trainer.advance()
        plain.advance()
        now = plain.model.fc.weight.detach()
        assert torch.equal(trainer.model.fc.weight.detach(), now), "an average does not change the training"
        wanted = 0.8 * (before if step <= 5 else wanted) + 0.2 * now
        torch.testing.assert_close(trainer.average.fc.weight, wanted)
    assert trainer.evaluated is trainer.average
    assert plain.evaluated is plain.model


@pytest.mark.parametrize(("ema", "warned"), [(0.98, True), (0.8, False), (0.0, False)])
def test_ema_that_is_too_long_for_the_training_gives_a_warning(ema, warned, caplog):
    build_trainer(Config.of(mix="none", epochs=2, batch=128, ema=ema), "cpu")  # 20 steps
    assert ("ema = 0.98 averages over about 50 steps, but the training has only 20" in caplog.text) == warned


def test_ema_is_what_a_folder_keeps_and_predicts_with(tmp_path):
    config = Config.of(mix="none", epochs=3, ema=0.9)
    result = run(config, tmp_path / "run")
    loaded = load(tmp_path / "run", "last")
    trainer = build_trainer(config, "cpu")
    trainer.run()
    test = trainer.task.test_inputs
    torch.testing.assert_close(loaded(test).log(), trainer.logits(test).log_softmax(1))
    assert not torch.equal(trainer.average.fc.weight, trainer.model.fc.weight)
    assert result["accuracy_last"] == trainer.history[-1]["accuracy"]


def test_clean_pass_updates_only_batch_norm_statistics():
    config = Config.of(mix="icm", model="cnn", clusters=20, restarts=1, batch=64, lr=1e-9)
    plain, clean = (build_trainer(config.with_(clean_pass=c), "cpu") for c in (False, True))
    index = torch.arange(64)
    for trainer in (plain, clean):
        trainer.step(index, torch.Generator().manual_seed(0))
    states = [t.model.state_dict() for t in (plain, clean)]
    assert int(states[0]["norms.0.num_batches_tracked"]) == 1
    assert int(states[1]["norms.0.num_batches_tracked"]) == 2
    assert torch.allclose(states[0]["fc.weight"], states[1]["fc.weight"], atol=1e-6)


def test_reset_optimizer_resets_adam_at_every_epoch():
    counts = {}
    for reset in (False, True):
        trainer = build_trainer(
            Config.of(mix="none", model="linear", epochs=3, batch=512, reset_optimizer=reset), "cpu"
        )
        trainer.run()
        counts[reset] = int(trainer.optimizer.state_dict()["state"][0]["step"])
    assert counts == {False: 6, True: 2}


def test_epoch_uses_every_example_at_most_once():
    trainer = build_trainer(Config.of(mix="none", model="linear", batch=512, epochs=2), "cpu")
    trainer.advance()
    first = trainer.order.clone()
    assert first.sort().values.tolist() == list(range(1293))
    trainer.advance()
    trainer.advance()
    assert not torch.equal(first, trainer.order)
    assert trainer.steps_per_epoch == 2


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "lr": 0.05, "ema": 0.8}], ids=str)
def test_restore_in_mid_epoch_continues_exactly(options):
    config = Config.of(mix="micm", clusters=20, restarts=1, batch=128, epochs=2, **options)
    whole, half = build_trainer(config, "cpu"), build_trainer(config, "cpu")
    for _ in range(13):
        whole.advance()
    for _ in range(7):
        half.advance()
    other = build_trainer(config, "cpu")
    other.restore(*half.state())
    for _ in range(6):
        other.advance()
    a, b = whole.state()[0], other.state()[0]
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert whole.history == other.history


@pytest.mark.gpu
@pytest.mark.parametrize("compile_", [False, True], ids=["captured", "compiled and captured"])
def test_sgd_and_ema_with_captured_steps_agree_with_eager(compile_):
    device, loops = torch.device("cuda"), []
    config = Config.of(mix="none", model="mlp", epochs=6, batch=128, optimizer="sgd", lr=0.05, ema=0.9)
    for capture in (False, True):
        loop = build_trainer(config, Engine(device, "fp32", compile=compile_ and capture, capture=capture))
        loops.append(loop)
        while not loop.done:
            loop.advance()
    eager, captured = loops
    assert all(graph.graph is not None for graph in captured.captured), "the step, and two evaluations"
    for name in ("model", "average"):
        states = [getattr(loop, name).state_dict() for loop in (captured, eager)]
        for key, value in states[0].items():
            torch.testing.assert_close(value, states[1][key], atol=1e-4, rtol=1e-3)


def test_evaluate_changes_nothing():
    trainer = build_trainer(Config.of(model="cnn", clusters=20, restarts=1, epochs=1), "cpu")
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    assert trainer.evaluate() == trainer.evaluate()
    assert all(torch.equal(v, before[k]) for k, v in trainer.model.state_dict().items())


def test_padding_wider_than_the_image_is_refused():
    with pytest.raises(UserError, match="8 x 8") as caught:
        build_trainer(Config.of(padding=8, mix="none"), "cpu")
    assert caught.value.option == "padding"


@pytest.mark.slow
def test_training_learns_digits_from_complementary_labels():
    """Far above the 10 % of chance, from complementary labels alone."""
    result = run(Config.of(mix="icm", epochs=60, batch=128, per_example=3))
    assert result["accuracy_last"] > 0.85
    assert result["accuracy_selected"] > 0.8
    assert abs(result["estimated_accuracy_selected"] - result["accuracy_selected"]) < 0.25
