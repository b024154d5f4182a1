import dataclasses

import numpy as np
import pytest
import torch

from complementary import transitions
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.data.rows import Rows
from complementary.errors import UserError
from complementary.oracle import empirical_transition
from complementary.training.task import build_mixer, build_task, training_truth


def test_task_contains_no_true_labels_of_training_examples():
    """No tensor of the training examples is equal to their true labels."""
    task = build_task(Config.of(mix="icm"))
    truth = training_truth(Config.of(mix="icm"))
    rows = torch.arange(len(truth))
    assert len(truth) == len(task.inputs)
    assert task.excluded[rows, truth].sum() == 0
    assert not any(
        isinstance(v, torch.Tensor) and v.shape == truth.shape and torch.equal(v, truth) for v in vars(task).values()
    )


def test_training_truth_matches_the_training_inputs():
    config = Config.of(long_tail=10.0, seed=4)
    dataset, task = load("digits"), build_task(config)
    flat = {bytes(x.numpy().tobytes()): int(y) for x, y in zip(dataset.train.inputs, dataset.train.truth, strict=True)}
    truth = training_truth(config)
    assert [flat[x.numpy().tobytes()] for x in task.inputs] == truth.tolist()
    assert torch.equal(dataset.train.truth[task.train_index], truth)
    assert torch.equal(dataset.train.inputs[task.validation_index], task.validation.whole())


@pytest.mark.parametrize("per_example", [1, 3])
def test_labels_per_example(per_example):
    task = build_task(Config.of(mix="none", per_example=per_example))
    assert (task.excluded.sum(1) == per_example).all()


def test_transition_matrices_for_loss_and_selection():
    biased = build_task(Config.of(labels="biased:5", mix="none"))
    assert torch.equal(biased.transition, transitions.biased(10, 5))
    assert torch.equal(biased.loss_transition, biased.transition)
    uniform = build_task(Config.of(labels="biased:5", transition="uniform", mix="none"))
    assert torch.equal(uniform.transition, transitions.uniform(10))
    counted = build_task(Config.of(labels="biased:5", transition="oracle", mix="none", holdout=0.0))
    assert torch.equal(counted.transition, transitions.biased(10, 5)), "selection must not use the oracle"
    truth = training_truth(Config.of(labels="biased:5", holdout=0.0))
    assert torch.equal(counted.loss_transition, empirical_transition(truth, counted.excluded))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mix": "icm"}, False),
        ({"mix": "none", "loss": "fwd"}, False),
        ({"mix": "none", "loss": "fwd", "transition": "estimate"}, False),
        ({"mix": "none", "loss": "s-nl", "transition": "oracle"}, False),  # s-nl does not use the matrix
        ({"mix": "none", "loss": "fwd", "transition": "oracle"}, True),
        ({"mix": "intra-class"}, True),
        ({"mix": "extra-class"}, True),
        ({"mix": "same-excluded"}, False),
    ],
)
def test_uses_oracle_only_if_an_oracle_takes_part_in_training(options, expected):
    config = Config.of(clusters=5, restarts=1, **options)
    assert build_task(config).data_summary["uses_oracle"] is expected


@pytest.mark.parametrize("mix", ["intra-class", "extra-class"])
@pytest.mark.parametrize("self_training_mix", ["icm", "micm"])
def test_self_training_does_not_mix_within_true_classes(mix, self_training_mix):
    config = Config.of(mix=mix, self_training=1, self_training_mix=self_training_mix)
    with pytest.raises(UserError, match="true classes") as caught:
        build_task(config)
    assert caught.value.option == "self_training_mix"
    assert build_task(config.with_(self_training=0)).data_summary["uses_oracle"] is True
    assert build_task(config.with_(self_training_mix="mixup")).data_summary["uses_oracle"] is True


def test_oracle_mixers_use_true_labels():
    task = build_task(Config.of(mix="intra-class"))
    assert task.data_summary["oracle_noise_ratio"] == 0
    assert torch.equal(task.cluster, training_truth(Config.of(mix="intra-class")))


def test_clusters_lower_the_noise_ratio():
    noise = {
        mix: build_task(Config.of(mix=mix)).data_summary["oracle_noise_ratio"]
        for mix in ("none", "mixup", "icm", "micm")
    }
    assert noise["none"] == 0
    assert noise["mixup"] == pytest.approx(0.189, abs=0.02)
    assert noise["icm"] < noise["micm"] < 0.07


def test_partners_from_dataset_finds_a_partner_for_all():
    config = Config.of(mix="icm", partners_from="dataset", batch=16, clusters=20)
    task = build_task(config)
    mixer = build_mixer(config, task, None)
    index = torch.arange(16)
    chosen, found = mixer.choose(task.excluded[index].float(), None, index=index)
    assert found.all()
    assert torch.equal(task.cluster[chosen[:, 0]], task.cluster[index])
    assert (chosen[:, 0] != index).all()


def test_embeddings_follow_the_subset(tmp_path):
    dataset = load("digits")
    np.save(tmp_path / "z.npy", np.eye(10)[dataset.train.truth.numpy()] * 3)  # a perfect encoder
    config = Config.of(mix="icm", clusters=10, encoder=f"embeddings:{tmp_path / 'z.npy'}", long_tail=5.0)
    assert build_task(config).data_summary["oracle_noise_ratio"] == 0


@pytest.mark.parametrize(
    ("options", "option", "value"),
    [
        ({"mix": "icm", "clusters": 0}, "clusters", "0"),
        ({"batch": 5000}, "batch", "1293"),
        ({"clusters": 2000}, "clusters", "1437"),
        ({"labels": "given"}, "labels", "digits"),
        ({"labels": "gaussian"}, "labels", "gaussian"),
        ({"labels": "setup-1:10", "long_tail": 50.0}, "long_tail", "50"),
        ({"labels": "biased:10", "draws": "paper"}, "draws", "uniform"),
        ({"per_example": 10}, "per_example", "10"),
        ({"encoder": "clip"}, "encoder", "clip"),
        ({"encoder": "embeddings:/nowhere.npy"}, "encoder", "/nowhere.npy"),
        ({"long_tail": 1000.0}, "long_tail", "class 9"),
        ({"mix": "extra-class", "partners_from": "dataset"}, "partners_from", "extra-class"),
    ],
)
def test_build_task_refuses_bad_options(options, option, value):
    with pytest.raises(UserError, match=value) as caught:
        build_task(Config.of(**options))
    assert caught.value.option == option


@pytest.mark.parametrize(
    "options", [{"labels": "uniform"}, {"long_tail": 2.0}, {"mix": "intra-class"}, {"transition": "oracle"}]
)
def test_build_task_without_true_labels(options):
    excluded = torch.eye(2, dtype=torch.uint8)[torch.arange(40) % 2]
    dataset = Dataset("mine", Split(torch.randn(40, 2), excluded=excluded), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    with pytest.raises(UserError, match="true labels"):
        build_task(Config.of(batch=8, **options), dataset)
    summary = build_task(Config.of(batch=8, clusters=3), dataset).data_summary
    assert not [name for name in summary if name.startswith("oracle")]


def test_embeddings_of_the_wrong_length_are_refused(tmp_path):
    np.save(tmp_path / "z.npy", np.ones((10, 3)))
    with pytest.raises(UserError, match=r"\[10, 3\].*1437"):
        build_task(Config.of(encoder=f"embeddings:{tmp_path / 'z.npy'}"))


# --- features as inputs ---------------------------------------------------------------------------

FEATURES = Config.of(inputs="features", encoder="random", mix="none", epochs=2, batch=128)


def test_features_are_unit_vectors_of_the_same_examples():
    config = FEATURES.with_(long_tail=5.0, seed=2)
    raw, task = build_task(config.with_(inputs="raw")), build_task(config)
    assert task.encoder.shape == (1, 8, 8)
    for images, vectors in ((raw.inputs, task.inputs), (raw.validation.whole(), task.validation.whole())):
        torch.testing.assert_close(vectors, task.encoder(images))
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(images)))
    assert torch.equal(task.excluded, raw.excluded)
    torch.testing.assert_close(task.test_inputs, task.encoder(raw.test_inputs))


def test_features_are_standardized():
    task = build_task(FEATURES.with_(holdout=0.0))
    scaled = (task.inputs - task.mean) / task.std
    torch.testing.assert_close(scaled.mean(0), torch.zeros(128), atol=1e-4, rtol=0)
    assert bool((task.std > 0).all()), "a constant feature must not lead to a division by zero"


def test_features_do_not_change_clusters_and_labels():
    config = FEATURES.with_(mix="icm", clusters=5, restarts=1)
    raw, task = build_task(config.with_(inputs="raw")), build_task(config)
    assert torch.equal(raw.cluster, task.cluster)
    assert raw.data_summary | {"held_out_seen": 0} == task.data_summary


def test_with_images_is_the_task_on_raw_inputs():
    config = FEATURES.with_(mix="icm", clusters=5, restarts=1)
    raw, images = build_task(config.with_(inputs="raw")), build_task(config).with_images(load("digits"))
    assert images.encoder is None
    for field in dataclasses.fields(raw):
        one, other = getattr(raw, field.name), getattr(images, field.name)
        if field.name == "data_summary":
            one = one | {"held_out_seen": 0}
        if field.name == "validation_seen":
            assert not other.any()
            continue
        if isinstance(one, Rows):
            one, other = one.whole(), other.whole()
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_mirrored_features_of_new_examples_match_those_of_training():
    dataset = dataclasses.replace(load("digits"), flip=True)
    plain, task = build_task(FEATURES, dataset), build_task(FEATURES.with_(mirror=True), dataset)
    images = dataset.train.inputs[task.train_index]
    torch.testing.assert_close(task.encoder(images), task.inputs)
    torch.testing.assert_close(task.encoder(dataset.test.inputs), task.test_inputs)
    assert not torch.allclose(plain.inputs, task.inputs, atol=1e-3)


@pytest.mark.parametrize("encoder", ["pixels", "embeddings:z.npy"])
def test_features_need_a_network(encoder):
    with pytest.raises(UserError, match="inputs = features") as caught:
        build_task(FEATURES.with_(encoder=encoder))
    assert caught.value.option == "encoder"


def test_features_need_images():
    dataset = Dataset("v", Split(torch.randn(40, 2), torch.arange(40) % 2), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    with pytest.raises(UserError, match="vectors") as caught:
        build_task(FEATURES.with_(batch=8), dataset)
    assert caught.value.option == "inputs"


def test_a_prior_with_the_wrong_number_of_shares_is_refused_also_if_nothing_uses_it():
    with pytest.raises(UserError, match="2 shares, but there are 10 classes"):
        build_task(Config.of(mix="none", prior="0.5,0.5"))


def test_a_single_training_example_is_refused():
    dataset = load("digits")
    one = dataclasses.replace(dataset, train=dataset.train.take(torch.arange(1)))
    with pytest.raises(UserError, match="There is 1 training example; at least 2 are needed"):
        build_task(Config.of(mix="none"), one)


@pytest.mark.parametrize(("matrix", "warned"), [("[[0,1],[1,0]]", False), ("[[1,0],[0,1]]", True)])
def test_a_matrix_of_true_labels_gives_a_warning(caplog, matrix, warned):
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    excluded = torch.eye(2, dtype=torch.uint8)[torch.arange(40) % 2]
    dataset = Dataset("two", Split(inputs, excluded=excluded), None, ("cat", "dog"), (0.0,) * 3, (1.0,) * 3)
    build_task(Config.of(mix="none", transition=f"matrix:{matrix}", loss="fwd", batch=8), dataset)
    assert ("labels name the true class more often than chance, for 2 of 2 classes" in caplog.text) is warned
