"""The linear classifier in closed form, from the labels of similar examples."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from complementary import ComplementaryClassifier, data, labels, transitions
from complementary.config import FITS, Config
from complementary.data import Dataset, Split
from complementary.engine.backend import Engine
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training import discriminant, recipes
from complementary.training import run as runner
from complementary.training.discriminant import LAYER_DECAY, DiscriminantTrainer, align, fit_discriminant, fit_layer
from complementary.training.run import build_trainer, run
from complementary.training.self_training import SelfTrainer
from tests.helpers import run_files

VECTORS = Config.of(fit="neighbors", model="linear", mix="none")


def blobs(classes: int, per_class: int, seed: int = 0, matrix: torch.Tensor | None = None) -> Dataset:
    """Gaussian classes in 16 dimensions, which a linear classifier separates to about 95 %, with one label each."""
    random = generator(seed, "blobs")
    centers = torch.randn(classes, 16, generator=random) * 1.6
    truth = torch.arange(classes).repeat(per_class)
    inputs = centers[truth] + torch.randn(len(truth), 16, generator=random)
    test = centers[truth] + torch.randn(len(truth), 16, generator=random)
    drawn = labels.draw(truth, transitions.uniform(classes) if matrix is None else matrix, seed=seed)
    names = tuple(map(str, range(classes)))
    mean, std = tuple(inputs.mean(0).tolist()), tuple(inputs.std(0).tolist())
    return Dataset("blobs", Split(inputs, truth, drawn), Split(test, truth), names, mean, std)


# --- pure functions -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(5, 60), st.floats(0.1, 5), st.integers(0, 10_000))
def test_align_reaches_the_prior_by_a_factor_per_class(classes, count, spread, seed):
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(0, spread, (count, classes)))
    prior = torch.from_numpy(random.dirichlet(np.full(classes, 5.0)))
    found = align(logits, prior)
    assert torch.allclose(found.sum(1), torch.ones(count, dtype=torch.float64))
    assert torch.allclose(found.mean(0), prior, atol=1e-3)
    factors = found.log() - logits
    assert torch.allclose(factors - factors[:, :1], (factors - factors[:, :1])[:1].expand_as(factors), atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_fit_layer_is_the_logistic_regression_of_scikit_learn(seed):
    """Scikit-learn takes class probabilities as one weighted example per class; its C is 1 / (decay * examples)."""
    random = np.random.default_rng(seed)
    vectors, probabilities = random.normal(0, 1, (60, 5)), random.dirichlet(np.full(4, 0.3), 60)
    oracle = LogisticRegression(C=1 / (LAYER_DECAY * 60), tol=1e-8, max_iter=5_000)
    oracle.fit(np.repeat(vectors, 4, axis=0), np.tile(np.arange(4), 60), sample_weight=probabilities.ravel())
    inputs = torch.from_numpy(vectors).float()
    weight, bias = fit_layer(inputs, torch.from_numpy(probabilities).float())
    found = (inputs @ weight.T + bias).softmax(1)
    assert float((found - torch.from_numpy(oracle.predict_proba(vectors))).abs().max()) < 2e-3
    assert weight.numpy() == pytest.approx(oracle.coef_, abs=0.01)
    assert not weight.requires_grad


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 5), st.integers(2, 12), st.integers(0, 10_000))
def test_fit_discriminant_is_that_of_scikit_learn(classes, features, seed):
    random = np.random.default_rng(seed)
    truth = np.arange(60) % classes
    x = (
        random.normal(0, 1, (60, features)) @ random.normal(0, 1, (features, features))
        + random.normal(0, 2, (classes, features))[truth]
    )
    onehot = torch.eye(classes)[truth]
    weights, biases = fit_discriminant(torch.from_numpy(x), onehot)
    within = x - np.stack([x[truth == k].mean(0) for k in range(classes)])[truth]
    amount = OAS(assume_centered=True).fit(within).shrinkage_
    wanted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=amount).fit(x, truth)
    found = (torch.from_numpy(x).float() @ weights.T + biases).double().softmax(1).numpy()
    assert np.allclose(found, wanted.predict_proba(x), atol=2e-3)


def test_fit_discriminant_with_soft_labels_is_that_of_weighted_copies():
    """An example with soft labels .75 and .25 counts as three examples of one class and one of the other."""
    random = np.random.default_rng(0)
    x, quarters = torch.from_numpy(random.normal(0, 1, (400, 3))), torch.from_numpy(random.integers(0, 5, 400))
    soft = fit_discriminant(x, torch.stack([quarters / 4, 1 - quarters / 4], 1))
    copies = torch.cat([x, x, x, x])
    hard = torch.cat([(quarters > i).long() for i in range(4)])
    repeated = fit_discriminant(copies, torch.eye(2)[1 - hard])
    for a, b in zip(soft, repeated, strict=True):
        assert torch.allclose(a, b, atol=5e-3), "equal up to the shrinkage, which depends on the number of examples"


def test_fit_discriminant_of_more_features_than_examples_is_finite():
    x = torch.randn(20, 50, generator=generator(0, "x"))
    weights, biases = fit_discriminant(x, torch.eye(4)[torch.arange(20) % 4])
    assert torch.isfinite(weights).all()
    assert torch.isfinite(biases).all()
    assert fit_discriminant(torch.zeros(5, 3), torch.full((5, 2), 0.5))[0].abs().max() == 0, "constant features"


# --- training -------------------------------------------------------------------------------------------------------


def test_discriminant_learns_many_classes_where_gradients_do_not():
    dataset = blobs(30, 250)
    accuracy = {
        fit: run(VECTORS.with_(fit=fit, epochs=30), device="cpu", dataset=dataset)["accuracy_last"]
        for fit in ("neighbors", "gradient")
    }
    assert accuracy["neighbors"] > 0.75, "chance is .033"
    assert accuracy["gradient"] < 0.5 * accuracy["neighbors"]


def test_discriminant_uses_the_transition_matrix():
    matrix = transitions.biased(10, 20)
    dataset = blobs(10, 100, matrix=matrix)
    given = VECTORS.with_(transition=transitions.to_text(matrix))
    assert run(given, device="cpu", dataset=dataset)["accuracy_last"] > 0.8
    uniform = run(VECTORS.with_(transition="uniform"), device="cpu", dataset=dataset)["accuracy_last"]
    assert uniform < run(given, device="cpu", dataset=dataset)["accuracy_last"]


def test_discriminant_learns_nothing_from_permuted_labels():
    dataset = blobs(10, 150)
    order = torch.randperm(len(dataset.train), generator=generator(1, "permutation"))
    train = dataclasses.replace(dataset.train, excluded=dataset.train.excluded[order])
    result = run(VECTORS, device="cpu", dataset=dataclasses.replace(dataset, train=train))
    assert result["accuracy_last"] < 0.25, "chance is .1"


def test_discriminant_uses_only_labels_and_inputs_of_training_examples():
    """Neither true labels nor held-out labels change the weights."""
    dataset = blobs(10, 60)
    trainers = []
    for variant in ("present", "absent", "held-out labels"):
        task_data = dataset
        if variant == "absent":
            task_data = dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, truth=None), test=None)
        trainer = build_trainer(VECTORS, "cpu", task_data)
        if variant == "held-out labels":
            trainer.task = dataclasses.replace(
                trainer.task, validation_excluded=trainer.task.validation_excluded.roll(1, 1)
            )
        trainer.run()
        trainers.append(trainer)
    assert all(torch.equal(t.model.fc.weight, trainers[0].model.fc.weight) for t in trainers)


def test_discriminant_fits_are_epochs():
    trainer = build_trainer(VECTORS, "cpu", blobs(5, 60))
    assert isinstance(trainer, DiscriminantTrainer)
    trainer.run()
    assert [row["epoch"] for row in trainer.history] == list(range(1, FITS + 1))
    assert trainer.neighbors == 27, "half of a class of 54 training examples"
    assert build_trainer(VECTORS.with_(neighbors=7), "cpu", blobs(5, 60)).neighbors == 7


def test_discriminant_of_a_long_tail_follows_the_prior():
    dataset = data.load("digits")
    config = VECTORS.with_(long_tail=20.0, seed=1)
    trainer = build_trainer(config.with_(prior=",".join(["0.55"] + ["0.05"] * 9)), "cpu", dataset)
    trainer.run()
    predicted = (trainer.outputs(trainer.task.train) + trainer.log_prior).argmax(1)
    assert float((predicted == 0).float().mean()) > 0.45


# --- after a layer ------------------------------------------------------------------------------------------------

TAIL = VECTORS.with_(fit="discriminant", long_tail=50.0, epochs=20, batch=64)


def test_discriminant_after_a_layer_finds_rare_classes_that_the_layer_loses():
    dataset = blobs(10, 800)
    found = {fit: run(TAIL.with_(fit=fit), device="cpu", dataset=dataset) for fit in ("gradient", "discriminant")}
    layer, after = found["gradient"], found["discriminant"]
    assert after["accuracy_last"] > layer["accuracy_last"] + 0.05
    assert after["tail_accuracy_last"] > layer["tail_accuracy_last"] + 0.1
    assert after["selected_epoch"] <= FITS


def test_discriminant_from_the_truth_is_that_of_scikit_learn():
    """With true labels as predictions, only the prior differs: the classes of the population are of equal size."""
    dataset = blobs(6, 200)
    task = build_trainer(TAIL, "cpu", dataset).task
    truth = dataset.train.truth[task.train_index]
    start = torch.eye(6)[truth].clamp_min(1e-9)
    trainer = DiscriminantTrainer(TAIL.with_(prior=_shares(truth)), task, "cpu")
    trainer.begin(start)
    trainer.run()
    x = ((dataset.train.inputs[task.train_index] - task.mean) / task.std).double().numpy()
    within = x - np.stack([x[truth == k].mean(0) for k in range(6)])[truth]
    amount = OAS(assume_centered=True).fit(within).shrinkage_
    wanted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=amount).fit(x, truth)
    test = ((dataset.test.inputs - task.mean) / task.std).double().numpy()
    equal = torch.from_numpy(wanted.decision_function(test) - np.log(wanted.priors_)).softmax(1)
    found = trainer.logits(dataset.test.inputs).softmax(1)
    assert torch.allclose(found.double(), equal, atol=0.01)
    assert torch.allclose(trainer.log_prior.exp(), torch.bincount(truth) / len(truth), atol=2e-3)


def _shares(truth: torch.Tensor) -> str:
    return ",".join(f"{share:.6f}" for share in (torch.bincount(truth) / len(truth)).tolist())


def test_discriminant_after_a_layer_learns_nothing_from_permuted_labels():
    dataset = blobs(10, 300)
    order = torch.randperm(len(dataset.train), generator=generator(1, "permutation"))
    train = dataclasses.replace(dataset.train, excluded=dataset.train.excluded[order])
    result = run(TAIL.with_(long_tail=1.0), device="cpu", dataset=dataclasses.replace(dataset, train=train))
    assert result["accuracy_last"] < 0.25, "chance is .1"


def test_neighbors_count_after_a_layer_only_if_they_are_asked_for():
    dataset = blobs(5, 100)
    with_neighbors, without = (build_trainer(TAIL.with_(neighbors=n), "cpu", dataset) for n in (10, 0))
    with_neighbors.run()
    without.run()
    assert float(with_neighbors.evidence.abs().max()) > 0
    assert float(without.evidence.abs().max()) == 0


def test_self_training_starts_from_what_the_discriminant_says_about_the_training_examples():
    """The discriminant predicts for equal classes; as a start, it must know the prior, which self-training removes."""
    dataset, config = blobs(6, 300), TAIL.with_(self_training=2)
    first = build_trainer(TAIL, "cpu", dataset)
    first.run()
    trainer = build_trainer(config, "cpu", dataset)
    assert isinstance(trainer, SelfTrainer)
    assert trainer.before["accuracy_last"] == first.history[-1]["accuracy"]
    inputs = trainer.task.train
    wanted = (first.logits(inputs) + first.log_prior).softmax(1)
    assert torch.allclose(trainer.memory, wanted, atol=1e-5)
    assert torch.allclose((trainer.logits(inputs) + trainer.log_prior).softmax(1), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "stop"), [(VECTORS, 1), (VECTORS, 2), (TAIL.with_(epochs=1), 2), (TAIL.with_(epochs=1), 4)]
)
def test_resume_of_discriminant_is_bitwise_equal(tmp_path, config, stop):
    dataset, steps = blobs(6, 60), 0
    run(config, tmp_path / "whole", device="cpu", dataset=dataset)

    def interrupt(loop):
        nonlocal steps
        steps += 1
        if steps == stop:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(config, tmp_path / "cut", device="cpu", dataset=dataset, progress=interrupt, checkpoint_seconds=0)
    run(config, tmp_path / "cut", device="cpu", dataset=dataset, resume=True)
    assert run_files(tmp_path / "cut") == run_files(tmp_path / "whole")


def test_self_training_starts_from_the_discriminant():
    dataset = blobs(20, 80)
    first = run(VECTORS, device="cpu", dataset=dataset)
    trainer = build_trainer(VECTORS.with_(self_training=3, batch=128), "cpu", dataset)
    assert isinstance(trainer, SelfTrainer)
    assert trainer.before["accuracy_last"] == first["accuracy_last"]
    trainer.run()
    assert trainer.history[-1]["accuracy"] > first["accuracy_last"] - 0.05


def test_discriminant_on_features_of_an_encoder_starts_the_whole_network():
    config = Config.of(inputs="features", encoder="random", mix="none", fit="neighbors", head=36, batch=32)
    result = run(config.with_(self_training=1), device="cpu")
    assert result["accuracy_last_before_self_training"] > 0.3, "chance is .1"
    assert result["config"]["training"]["fit"] == "neighbors"


def test_estimator_with_discriminant():
    dataset = blobs(12, 100)
    inputs, excluded = dataset.train.inputs.numpy(), dataset.train.excluded.numpy()
    model = ComplementaryClassifier(mix="none", model="linear", config={"fit": "neighbors"}).fit(inputs, excluded)
    assert np.mean(model.predict(dataset.test.inputs.numpy()) == dataset.test.truth.numpy()) > 0.8


@pytest.mark.gpu
def test_discriminant_on_a_gpu_is_that_of_a_cpu():
    dataset, weights = blobs(12, 100), []
    for device in ("cpu", "cuda"):
        trainer = build_trainer(VECTORS, Engine.choose(device, "fp32"), dataset)
        trainer.run()
        weights.append(trainer.model.fc.weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("recipe", ["auto", "self-training", "features"])
def test_fit_neighbors_alone_is_enough_for_every_recipe(recipe):
    dataset = blobs(4, 60)
    options = {"fit": "neighbors"} | ({} if recipe == "features" else {"self_training": 2})
    model = ComplementaryClassifier(recipe=recipe, config=options)
    model.fit(dataset.train.inputs.numpy(), dataset.train.excluded.numpy())
    assert np.mean(model.predict(dataset.test.inputs.numpy()) == dataset.test.truth.numpy()) > 0.8


def test_matrix_is_estimated_with_the_usual_network(monkeypatch):
    """A linear model is right for the discriminant, but not for classes that are not linearly separable."""
    models = []
    first = runner._train_first
    monkeypatch.setattr(runner, "_train_first", lambda c, *rest: models.append(c.network.model) or first(c, *rest))
    config = VECTORS.with_(transition="estimate", loss="fwd", estimate_epochs=1, batch=64)
    trainer = build_trainer(config, "cpu", blobs(3, 60))
    assert set(models) == {"auto"}
    assert isinstance(trainer, DiscriminantTrainer)


@pytest.mark.slow
def test_auto_with_an_estimated_matrix_learns_classes_that_are_not_linearly_separable():
    """12 classes on a grid in two dimensions, with enough labels for the matrix to be estimated."""
    random = np.random.default_rng(0)
    truth = np.repeat(np.arange(12), 620)
    x = np.stack([truth % 4, truth // 4], 1) * 3.0 + random.normal(0, 0.6, (len(truth), 2))
    not_y = (truth + random.integers(1, 12, len(truth))) % 12
    model = ComplementaryClassifier(recipe="auto").fit(x, not_y)
    assert model.transition_estimate_ is not None
    assert np.mean(model.predict(x) == truth) > 0.7


def test_epochs_limit_the_fits():
    assert len(run_history(VECTORS.with_(epochs=2))) == 2
    assert len(run_history(VECTORS.with_(epochs=50))) == FITS


def run_history(config: Config) -> list[dict]:
    trainer = build_trainer(config, "cpu", blobs(4, 40))
    trainer.run()
    return trainer.history


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mlp"}, "fits a linear model, but the model is mlp"),
        ({"mix": "mixup"}, "does not mix examples, but mix is mixup"),
        ({"loss": "cpe-t"}, "the loss cpe-t predicts labels"),
        ({"fit": "closed"}, "fit 'closed' is not known"),
    ],
)
def test_discriminant_refuses_options_that_it_cannot_use(options, message):
    with pytest.raises(UserError, match=message):
        build_trainer(VECTORS.with_(**options), "cpu", blobs(4, 30))
    if "fit" not in options:  # before the layer is trained
        with pytest.raises(UserError, match=message):
            build_trainer(
                TAIL.with_(long_tail=2.0, batch=16, **options),
                "cpu",
                blobs(4, 30),
                progress=lambda _: pytest.fail("trained first"),
            )


@pytest.mark.parametrize("recipe", ["pocr", "plnl"])
def test_baselines_on_raw_inputs_refuse_the_discriminant(recipe):
    config = Config.of(recipe=recipe, fit="neighbors", epochs=2)
    with pytest.raises(UserError, match="leave fit out"):
        build_trainer(config.with_(batch=64), "cpu")
    with pytest.raises(UserError, match="fewer than one batch of 5000"):
        build_trainer(config.with_(batch=5000), "cpu")


def test_auto_does_not_choose_a_discriminant_of_too_many_features(monkeypatch):
    monkeypatch.setattr(recipes, "MOST_FEATURES", 15)
    found = recipes.resolve(Config.of(recipe="auto", labels="given"), blobs(12, 30), torch.device("cpu"))
    assert found.training.fit == "gradient"


def test_discriminant_refuses_too_many_features(monkeypatch):
    monkeypatch.setattr(discriminant, "MOST_FEATURES", 15)
    with pytest.raises(UserError, match="there are 16; at most 15"):
        build_trainer(VECTORS, "cpu", blobs(4, 30))
