"""Recipes: what ``auto`` chooses, and how recipes adapt to the data."""

import dataclasses
import logging
import re

import numpy as np
import pytest
import torch

from complementary import ComplementaryClassifier, data
from complementary.config import Config, read_toml
from complementary.data.dataset import Dataset, Split, moments
from complementary.encoders.spec import EncoderSpec
from complementary.errors import UserError
from complementary.sweeps.grid import read_grid
from complementary.training import recipes
from complementary.training.recipes import resolve
from complementary.training.run import build_trainer, run
from complementary.training.self_training import SelfTrainer

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def dataset_of(inputs: torch.Tensor, classes: int = 3) -> Dataset:
    """A dataset with given complementary labels."""
    excluded = torch.eye(classes, dtype=torch.uint8)[torch.arange(len(inputs)) % classes]
    return Dataset("own", Split(inputs, excluded=excluded), None, tuple(map(str, range(classes))), *moments(inputs))


VECTORS = dataset_of(torch.randn(300, 5, generator=torch.Generator().manual_seed(0)))
IMAGES = dataset_of(torch.randint(256, (300, 3, 16, 16), dtype=torch.uint8))
AUTO = Config.of(recipe="auto", labels="given")


def test_auto_for_vectors_is_self_training_without_an_encoder(caplog):
    with caplog.at_level(logging.INFO):
        found = resolve(AUTO, VECTORS, CPU)
    assert found.training.recipe == "self-training"
    assert (found.dataset.inputs, found.mixing.mix) == ("raw", "icm")
    assert found.pseudo_labels.self_training > 0
    assert len([r for r in caplog.records if "recipe = auto" in r.message]) == 1


def test_auto_for_images_depends_on_encoder_and_device(monkeypatch):
    on_cpu = resolve(AUTO, IMAGES, CPU)
    assert (on_cpu.training.recipe, on_cpu.dataset.inputs) == ("self-training", "features")
    assert (on_cpu.cluster.encoder, on_cpu.cluster.pretrain_images) == ("patches", "training")
    small = dataset_of(torch.randint(256, (300, 3, 8, 8), dtype=torch.uint8))
    pixels = AUTO.with_(encoder="pixels")
    for config, images in ((AUTO, small), (pixels, IMAGES)):
        for device in (CPU, GPU):
            found = resolve(config, images, device)
            assert (found.training.recipe, found.dataset.inputs) == ("self-training", "raw")
    on_gpu = resolve(AUTO, IMAGES, GPU)
    assert (on_gpu.dataset.inputs, on_gpu.cluster.encoder) == ("features", "simsiam")
    assert on_gpu.cluster.pretrain_images == "training", "the estimated accuracy is for new images"
    monkeypatch.setattr(recipes, "find_encoder_of", lambda *_: EncoderSpec.parse("run:runs/encoder"))
    for device, recipe in ((CPU, "features"), (GPU, "self-training")):
        found = resolve(AUTO, IMAGES, device)
        assert (found.dataset.inputs, found.cluster.encoder) == ("features", "run:runs/encoder")
        assert found.training.recipe == recipe
        assert bool(found.pseudo_labels.self_training) == (device is GPU)


@pytest.mark.parametrize(
    ("classes", "count", "device", "options", "wanted"),
    [
        (10, 9000, GPU, {}, 0),
        (20, 9000, GPU, {}, 150),
        (20, 9000, CPU, {}, 0),
        (20, 300, GPU, {}, 7),  # half of a class
        (20, 9000, GPU, {"neighbors": 7}, 7),
        (20, 9000, GPU, {"long_tail": 2, "labels": "uniform"}, 50),  # as the recipe sets it
    ],
)
def test_auto_uses_the_labels_of_neighbors_for_many_classes(classes, count, device, options, wanted):
    found = dataset_of(torch.zeros(count, 1, 16, 16, dtype=torch.uint8), classes)
    truth = torch.arange(count) % classes
    found = dataclasses.replace(found, train=dataclasses.replace(found.train, truth=truth))
    assert resolve(AUTO.with_(**options), found, device).pseudo_labels.neighbors == wanted


@pytest.mark.parametrize(
    ("classes", "options", "wanted"),
    [
        (10, {}, ("gradient", "auto", "icm", "same")),
        (20, {}, ("neighbors", "linear", "none", "mlp")),
        (20, {"model": "linear", "mix": "none"}, ("neighbors", "linear", "none", "mlp")),
        (20, {"model": "auto", "fit": "auto", "encoder": "auto"}, ("neighbors", "linear", "none", "mlp")),
        (20, {"model": "mlp"}, ("gradient", "mlp", "icm", "same")),
        (20, {"mix": "mixup"}, ("gradient", "auto", "mixup", "same")),
        (20, {"balanced": True}, ("gradient", "auto", "icm", "same")),
        (20, {"fit": "gradient"}, ("gradient", "auto", "icm", "same")),
        (10, {"fit": "neighbors"}, ("neighbors", "linear", "none", "mlp")),
    ],
)
def test_auto_for_vectors_of_many_classes_starts_from_a_discriminant(classes, options, wanted):
    inputs = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
    found = resolve(AUTO.with_(**options), dataset_of(inputs, classes), CPU)
    assert (found.training.fit, found.network.model, found.mixing.mix, found.pseudo_labels.student) == wanted


@pytest.mark.parametrize(
    ("classes", "options", "wanted", "absent"),
    [
        (3, {}, "vectors: ICM, then self-training", ("discriminant", "as given")),
        (20, {}, "vectors of many classes: .*; a discriminant from the labels of neighbors first, because", ("given",)),
        (
            3,
            {"fit": "discriminant"},
            "vectors: .* MLP; a discriminant first, as fit = discriminant",
            ("many", "neighbors"),
        ),
        (3, {"fit": "neighbors"}, "; a discriminant from the labels of neighbors first, as fit = neighbors", ("many",)),
        (3, {"mix": "none", "self_training": 0}, "; as given: mix = none, self_training = 0$", ()),
        (3, {"transition": "uniform"}, "self-training; as given: transition = uniform$", ("estimated",)),
    ],
)
def test_auto_logs_what_is_done_and_why(caplog, classes, options, wanted, absent):
    inputs = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
    with caplog.at_level(logging.INFO):
        resolve(AUTO.with_(**options), dataset_of(inputs, classes), CPU)
    (found,) = [message for message in caplog.messages if message.startswith("recipe = auto")]
    assert re.search(wanted, found)
    assert not any(word in found for word in absent)


def test_auto_on_features_of_many_classes_is_a_discriminant(monkeypatch):
    monkeypatch.setattr(recipes, "find_encoder_of", lambda *_: EncoderSpec.parse("run:runs/encoder"))
    images = dataset_of(torch.zeros(600, 3, 16, 16, dtype=torch.uint8), 20)
    for device, recipe, neighbors in ((CPU, "features", 0), (GPU, "self-training", 15)):
        found = resolve(AUTO, images, device)
        assert (found.training.recipe, found.training.fit) == (recipe, "neighbors")
        assert found.pseudo_labels.neighbors == neighbors
    assert resolve(AUTO, IMAGES, GPU).training.fit == "gradient", "three classes"
    assert resolve(AUTO.with_(encoder="patches"), images, CPU).training.fit == "gradient", "poor neighbors"
    assert resolve(AUTO.with_(fit="gradient"), images, GPU).training.fit == "gradient", "as given"


def test_auto_with_patches_is_what_auto_chooses_without_a_gpu():
    wanted = resolve(AUTO, IMAGES, CPU)
    for device in (CPU, GPU):
        assert resolve(AUTO.with_(encoder="patches"), IMAGES, device) == wanted


def test_auto_keeps_options_that_were_given():
    found = resolve(AUTO.with_(encoder="random", self_training=7, alpha=0.3, seed=5), IMAGES, CPU)
    assert (found.cluster.encoder, found.pseudo_labels.self_training) == ("random", 7)
    assert (found.mixing.alpha, found.seed) == (0.3, 5)


def test_auto_chooses_options_that_were_given_as_auto(monkeypatch):
    """They must not replace what was found, such as the encoder."""
    monkeypatch.setattr(recipes, "find_encoder_of", lambda *_: EncoderSpec.parse("run:runs/encoder"))
    named = Config.of(recipe="auto", labels="given", encoder="auto", fit="auto", model="auto", transition="auto")
    for device in (CPU, GPU):
        for dataset in (IMAGES, VECTORS):
            assert resolve(named, dataset, device) == resolve(AUTO, dataset, device)
    assert resolve(named, IMAGES, CPU).cluster.encoder == "run:runs/encoder"


def test_auto_chooses_epochs_for_the_batch_that_was_given():
    """About as many steps as for its own batch."""
    vectors = dataset_of(torch.randn(3000, 5))
    usual, small = (resolve(AUTO.with_(**options), vectors, CPU) for options in ({}, {"batch": 60}))

    def steps(config):
        return config.training.epochs * int(0.9 * 3000 / config.training.batch)

    assert small.training.batch == 60 < usual.training.batch
    assert small.training.epochs < usual.training.epochs / 2
    assert steps(small) == pytest.approx(steps(usual), rel=0.05)


def test_auto_for_vectors_of_unequal_classes_sets_the_loss_and_neighbors_of_long_tails():
    many = dataset_of(torch.randn(900, 5))
    for options in ({"balanced": True}, {"loss": "fwd-la"}):
        found = resolve(AUTO.with_(**options), many, CPU)
        assert found.pseudo_labels.neighbors == 50
        assert found.training.loss == options.get("loss", "s-nl-w")
        assert (found.training.transition, found.mixing.mix) == ("estimate", "icm")
    usual = resolve(AUTO, many, CPU)
    assert (usual.training.loss, usual.pseudo_labels.neighbors) == ("fwd", 0)
    few = resolve(AUTO.with_(balanced=True), VECTORS, CPU)
    assert few.pseudo_labels.neighbors == 50, "half of a class"
    given = resolve(AUTO.with_(balanced=True, neighbors=0, loss="s-nl"), many, CPU)
    assert (given.training.loss, given.pseudo_labels.neighbors) == ("s-nl", 0)


@pytest.mark.parametrize("classes", [3, 20])
@pytest.mark.parametrize("encoder", ["patches", "random"])
@pytest.mark.parametrize("recipe", ["auto", "self-training", "features"])
def test_logit_adjustment_sets_the_same_options_as_balanced(classes, encoder, recipe):
    images = dataset_of(torch.zeros(9000, 1, 16, 16, dtype=torch.uint8), classes)
    adjusted, balanced = (
        resolve(Config.of(recipe=recipe, labels="given", encoder=encoder, loss="fwd-la", **options), images, CPU)
        for options in ({}, {"balanced": True})
    )
    assert adjusted.with_(balanced=True) == balanced
    assert adjusted.pseudo_labels.neighbors == 50
    assert adjusted.training.weight_decay == pytest.approx(0.001 * min(1, 10 / classes))


def test_auto_estimates_the_matrix_of_given_labels_if_there_are_enough():
    many = dataset_of(torch.randn(50 * 9, 5))
    assert resolve(AUTO, many, CPU).training.transition == "estimate"
    assert resolve(AUTO, VECTORS, CPU).training.transition == "auto"
    many_images = dataset_of(torch.randint(256, (50 * 9, 3, 8, 8), dtype=torch.uint8))
    assert resolve(AUTO, many_images, CPU).training.transition == "auto", "15 trainings of a CNN are too slow"
    drawn = resolve(Config.of(recipe="auto"), data.load("digits"), CPU)
    assert drawn.training.transition == "auto", "labels that are drawn have a known matrix"


def test_auto_is_deterministic_and_complete():
    first, second = (resolve(AUTO, VECTORS, CPU) for _ in range(2))
    assert first == second
    assert resolve(first, VECTORS, CPU) == first


def test_auto_refuses_fewer_examples_than_classes():
    with pytest.raises(UserError, match="2 examples of 3 classes") as caught:
        resolve(AUTO, dataset_of(torch.randn(2, 5)), CPU)
    assert caught.value.option == "data"


def test_weight_decay_of_recipes_on_features_is_not_used_for_vectors():
    usual = Config().training.weight_decay
    for options, wanted in (({}, usual), ({"long_tail": 10.0}, usual), ({"weight_decay": 0.05}, 0.05)):
        found = resolve(Config.of(recipe="self-training", labels="given", **options), VECTORS, CPU)
        assert found.training.weight_decay == wanted
    assert resolve(AUTO, VECTORS, CPU).training.weight_decay == usual


@pytest.mark.parametrize(("classes", "wanted"), [(8, 0.01), (10, 0.01), (20, 0.005), (100, 0.001)])
def test_weight_decay_of_recipes_on_features_falls_with_the_number_of_classes(classes, wanted):
    dataset = dataset_of(IMAGES.train.inputs, classes)
    config = Config.of(recipe="self-training", labels="given", encoder="random")
    found = resolve(config, dataset, CPU)
    assert found.training.weight_decay == pytest.approx(wanted)
    assert resolve(found, dataset, CPU) == found
    assert resolve(config.with_(weight_decay=0.02), dataset, CPU).training.weight_decay == 0.02


@pytest.mark.parametrize(
    ("examples", "options", "wanted"),
    [
        (3600, {}, 0.01),
        (14400, {}, 0.01 / 8),
        (400_000, {}, 0.0001),
        (14400, {"encoder": "random"}, 0.01),
        (14400, {"weight_decay": 0.02}, 0.02),
        (14400, {"long_tail": 2.0}, 0.001),
    ],
)
def test_weight_decay_on_features_of_patches_falls_with_the_number_of_images(examples, options, wanted):
    dataset = dataset_of(torch.zeros(1, 1, 16, 16, dtype=torch.uint8).expand(examples, -1, -1, -1), 10)
    config = Config.of(**{"recipe": "features", "labels": "given", "encoder": "patches"} | options)
    assert resolve(config, dataset, CPU).training.weight_decay == pytest.approx(wanted)


def test_weight_decay_on_features_of_patches_follows_the_examples_of_the_run():
    inputs, truth = torch.zeros(1, 1, 16, 16, dtype=torch.uint8).expand(14400, -1, -1, -1), torch.arange(14400) % 10
    dataset = Dataset("own", Split(inputs, truth=truth), None, tuple("0123456789"), *moments(inputs))
    config = Config.of(recipe="features", encoder="patches", head=360)
    assert resolve(config, dataset, CPU).training.weight_decay == pytest.approx(0.01)


def test_recipes_on_features_do_without_an_encoder_for_vectors():
    config = Config.of(recipe="self-training", labels="given", epochs=1, self_training=1, batch=64)
    assert resolve(config, VECTORS, CPU).dataset.inputs == "raw"
    assert isinstance(build_trainer(resolve(config, VECTORS, CPU), "cpu", VECTORS), SelfTrainer)


def test_run_stores_the_resolved_configuration(tmp_path):
    config = Config.of(recipe="auto", data="digits", epochs=1, self_training=1, clusters=5, restarts=1)
    result = run(config, tmp_path / "run", device="cpu")
    assert result["config"]["training"]["recipe"] == "self-training"
    assert 'recipe = "self-training"' in (tmp_path / "run" / "config.toml").read_text()
    again = run(config, tmp_path / "run", device="cpu", resume=True)
    assert again["config_hash"] == result["config_hash"]


def test_estimator_with_a_recipe_keeps_only_parameters_that_were_set():
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 40)
    x = random.normal(size=(120, 4)) + 4 * np.eye(4)[truth]
    not_y = (truth + random.integers(1, 3, 120)) % 3
    model = ComplementaryClassifier(recipe="auto", epochs=4, config={"self_training": 5}).fit(x, not_y)
    assert np.mean(model.predict(x) == truth) > 0.9
    assert len(model.history_) == 5, "the epochs of self-training"


@pytest.mark.parametrize("fit", ["neighbors", "discriminant"])
@pytest.mark.parametrize("of", ["images", "vectors"])
def test_auto_leaves_out_what_a_given_closed_form_cannot_use(fit, of):
    inputs = (IMAGES if of == "images" else VECTORS).train.inputs
    found = resolve(Config.of(recipe="auto", fit=fit, labels="given", encoder="pixels"), dataset_of(inputs, 3), CPU)
    assert (found.training.fit, found.mixing.mix, found.network.model) == (fit, "none", "linear")


@pytest.mark.parametrize("recipe", ["features", "self-training"])
def test_a_long_tail_of_vectors_is_fitted_by_gradients(recipe):
    """The discriminant is for a layer on features; vectors have a network of their own."""
    found = resolve(Config.of(recipe=recipe, long_tail=12.0), dataset_of(VECTORS.train.inputs, 20), CPU)
    assert (found.training.fit, found.dataset.inputs, found.pseudo_labels.neighbors) == ("gradient", "raw", 0)


@pytest.mark.parametrize("of", ["images", "vectors"])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.003}, {"encoder": "patches"}, {"long_tail": 9.0}, {"long_tail": 12.0}], ids=str
)
@pytest.mark.parametrize("recipe", ["features", "self-training", "icm"])
def test_adapted_configuration_leads_back_to_the_given_one(recipe, options, of):
    inputs = IMAGES.train.inputs if of == "images" else VECTORS.train.inputs
    config = Config.of(recipe=recipe, **options)
    assert config in resolve(config, dataset_of(inputs, 20), CPU).before_adaptation()
    assert config not in config.with_(epochs=77).before_adaptation()


@pytest.mark.parametrize("where", ['recipe = "auto"\n', '[grid]\nrecipe = ["features", "auto"]\n'])
def test_grid_with_recipe_auto_is_refused(tmp_path, where):
    (tmp_path / "grid.toml").write_text('data = "digits"\nseeds = [0]\n' + where)
    with pytest.raises(UserError, match="recipe"):
        read_grid(tmp_path / "grid.toml")


def test_auto_keeps_given_options_that_equal_a_default():
    config = Config.of(recipe="auto", labels="given", epochs=100, self_training=0)
    for given in (config, AUTO.with_(epochs=100, self_training=0)):
        found = resolve(given, VECTORS, CPU)
        assert (found.training.epochs, found.pseudo_labels.self_training) == (100, 0)
    assert (config, config.hash()) == (AUTO, AUTO.hash()), "what was given is no part of the configuration"
    assert resolve(AUTO, VECTORS, CPU).pseudo_labels.self_training > 0


def test_a_resumed_run_of_auto_has_the_options_that_were_given(tmp_path):
    config = Config.of(recipe="auto", data="digits", epochs=100, self_training=0, mix="none", model="linear", batch=512)
    result = run(config, tmp_path / "run", device="cpu")
    assert (result["config"]["training"]["epochs"], result["config"]["pseudo_labels"]["self_training"]) == (100, 0)
    stored = read_toml(tmp_path / "run" / "config.toml", Config)
    for again in (config, stored):
        assert run(again, tmp_path / "run", device="cpu", resume=True)["config_hash"] == result["config_hash"]


def test_estimator_with_auto_keeps_options_in_config_that_equal_a_default():
    x, not_y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    options = {"self_training": 0, "epochs": 100, "mix": "none", "model": "linear"}
    assert len(ComplementaryClassifier(recipe="auto", config=options).fit(x, not_y).history_) == 100
