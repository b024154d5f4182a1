"""Losses in training: what the loss needs reaches it, decoding reaches predictions, a learned matrix is kept."""

import math

import pytest
import torch

from complementary import ComplementaryClassifier, data, load, losses, priors, transitions
from complementary.config import Config
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.training.run import build_trainer, run
from tests.helpers import run_files


def config(loss, **options):
    return Config.of(data="digits", mix="none", model="linear", loss=loss, epochs=1, batch=256, **options)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_trains(loss):
    result = run(config(loss, labels="biased:3"), device="cpu")
    assert 0 <= result["accuracy_last"] <= 1


@pytest.mark.parametrize("mix", ["icm", "micm"])
@pytest.mark.parametrize("loss", ["mcl-log", "ure-tga", "scarce", "cpe-t"])
def test_losses_that_use_the_batch_work_with_mixers(loss, mix):
    trainer = build_trainer(config(loss).with_(mix=mix, clusters=10, restarts=1), "cpu")
    trainer.run()
    assert math.isfinite(trainer.history[-1]["loss"])


def test_trainer_gives_the_loss_the_estimated_prior_and_the_shares_of_labels():
    trainer = build_trainer(config("scarce", long_tail=10.0), "cpu")
    wanted = priors.from_labels(trainer.task.excluded, trainer.task.transition).share
    torch.testing.assert_close(trainer.criterion.prior, wanted)
    given = build_trainer(config("scarce", prior=",".join(["0.1"] * 10)), "cpu")
    torch.testing.assert_close(given.criterion.prior, torch.full((10,), 0.1))
    shares = build_trainer(config("ure-ga"), "cpu")
    torch.testing.assert_close(shares.criterion.share, shares.task.excluded.float().mean(0))


def test_trainer_refuses_a_matrix_that_cannot_be_inverted():
    with pytest.raises(UserError, match=r"ure-tnn.*singular") as error:
        build_trainer(config("ure-tnn", labels="noisy:0.1"), "cpu")
    assert error.value.option == "transition"


def test_trainer_refuses_a_prior_that_cannot_be_estimated():
    with pytest.raises(UserError, match="scarce") as error:
        build_trainer(config("scarce", labels="noisy:0.1"), "cpu")
    assert error.value.option == "prior"
    equal = build_trainer(config("scarce", labels="noisy:0.1", prior="uniform"), "cpu")
    torch.testing.assert_close(equal.criterion.prior, torch.full((10,), 0.1))


@pytest.mark.parametrize("loss", ["cpe-i", "cpe-t"])
def test_predictions_of_a_run_are_decoded(tmp_path, loss):
    result = run(config(loss, labels="biased:3").with_(epochs=6, lr=0.01), tmp_path, device="cpu")
    test = data.load("digits").test
    for weights in ("last", "selected"):
        found = float((load(tmp_path, weights)(test.inputs).argmax(1) == test.truth).double().mean())
        assert found == pytest.approx(result[f"accuracy_{weights}"])
    assert result["accuracy_last"] > 0.2  # cpe-i without decoding: below chance


def test_scel_of_cpe_i_is_that_of_the_label_itself():
    trainer = build_trainer(config("cpe-i"), "cpu")
    trainer.run()
    outputs, excluded = trainer.outputs(trainer.task.validation), trainer.task.validation_excluded.float()
    wanted = -(excluded * (outputs.softmax(1) + 1e-6).log()).sum(1).mean()
    assert trainer.history[-1]["scel"] == pytest.approx(float(wanted), rel=1e-5)


def test_resume_with_a_learned_matrix_is_bitwise_equal(tmp_path):
    options = config("cpe-t").with_(epochs=3)
    run(options, tmp_path / "whole", device="cpu")

    def stop(loop):
        if (loop.epoch, loop.step_in_epoch) == (1, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(options, tmp_path / "parts", device="cpu", checkpoint_seconds=0, progress=stop)
    run(options, tmp_path / "parts", resume=True, device="cpu")
    assert run_files(tmp_path / "whole") == run_files(tmp_path / "parts")


def test_learned_matrix_changes_during_training():
    trainer = build_trainer(config("cpe-t").with_(epochs=3, lr=0.01), "cpu")
    before = trainer.criterion.learned.detach().clone()
    trainer.run()
    assert float((trainer.criterion.learned.detach() - before).abs().max()) > 1e-3


def squared(logits, excluded):
    return (excluded * logits.softmax(1) ** 2).sum(1)


def test_classifier_takes_a_function_and_decodes():
    digits = data.load("digits").train
    labels = 9 - digits.truth  # never the true class
    model = ComplementaryClassifier(loss=squared, mix="none", epochs=1).fit(digits.inputs[:600].numpy(), labels[:600])
    assert model.predictor_.decoder is None
    assert Config.of(loss=squared).training.loss == "tests.training.test_losses:squared"
    with pytest.raises(UserError, match="top level"):
        Config.of(loss=lambda logits, excluded: logits)
    cpe = ComplementaryClassifier(loss="cpe-i", mix="none", epochs=1).fit(digits.inputs[:600].numpy(), labels[:600])
    matrix, rows = cpe.predictor_.decoder
    assert torch.equal(matrix, torch.eye(10))
    torch.testing.assert_close(rows, transitions.uniform(10).float())


def test_losses_is_a_module_with_all_names():
    assert set(dir(losses)) == set(losses.__all__)
    assert all(getattr(losses, name) is not None for name in losses.__all__)
