import numpy as np
import pytest
import torch

from complementary import transitions
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.errors import UserError
from complementary.oracle import empirical_transition
from complementary.training.task import build_mixer, hold_out, prepare, training_truth


def test_truth_stays_out_of_the_problem():
    """No tensor of the training side holds, or can be told from, the true labels."""
    task = prepare(Config.of(mix="icm"))
    truth = training_truth(Config.of(mix="icm"))
    rows = torch.arange(len(truth))
    assert len(truth) == len(task.inputs)
    assert task.excluded[rows, truth].sum() == 0
    assert not any(
        isinstance(v, torch.Tensor) and v.shape == truth.shape and torch.equal(v, truth) for v in vars(task).values()
    )


def test_holdout_is_disjoint_and_complete():
    train, held = hold_out(1001, 0.1, seed=3)
    assert len(held) == 100
    assert torch.cat([train, held]).sort().values.tolist() == list(range(1001))
    assert hold_out(10, 0.0, 0)[1].numel() == 0


def test_training_truth_belongs_to_the_training_inputs():
    config = Config.of(long_tail=10.0, seed=4)
    dataset, task = load("digits"), prepare(config)
    flat = {bytes(x.numpy().tobytes()): int(y) for x, y in zip(dataset.train.inputs, dataset.train.truth, strict=True)}
    truth = training_truth(config)
    assert [flat[x.numpy().tobytes()] for x in task.inputs] == truth.tolist()


@pytest.mark.parametrize("per_example", [1, 3])
def test_labels_per_example(per_example):
    task = prepare(Config.of(mix="none", per_example=per_example))
    assert (task.excluded.sum(1) == per_example).all()


def test_matrices_for_loss_and_for_selection():
    biased = prepare(Config.of(labels="biased:5", mix="none"))
    assert torch.equal(biased.transition, transitions.biased(10, 5))
    assert torch.equal(biased.loss_transition, biased.transition)
    told = prepare(Config.of(labels="biased:5", transition="uniform", mix="none"))
    assert torch.equal(told.transition, transitions.uniform(10))
    oracle = prepare(Config.of(labels="biased:5", transition="oracle", mix="none", holdout=0.0))
    assert torch.equal(oracle.transition, transitions.biased(10, 5)), "selection must not see the oracle"
    counted = empirical_transition(
        training_truth(Config.of(labels="biased:5", holdout=0.0)), oracle.excluded
    )
    assert torch.equal(oracle.loss_transition, counted)
    assert oracle.facts["uses_oracle"]
    assert not biased.facts["uses_oracle"]


def test_oracle_mixers_are_marked_and_given_the_truth():
    task = prepare(Config.of(mix="intra-class"))
    assert task.facts["uses_oracle"]
    assert task.facts["oracle_noise_ratio"] == 0
    assert torch.equal(task.group, training_truth(Config.of(mix="intra-class")))


def test_clusters_lower_the_noise_of_mixing():
    noise = {mix: prepare(Config.of(mix=mix)).facts["oracle_noise_ratio"] for mix in ("none", "mixup", "icm", "micm")}
    assert noise["none"] == 0
    assert noise["mixup"] == pytest.approx(0.189, abs=0.02)
    assert noise["icm"] < noise["micm"] < 0.07


def test_partners_from_the_whole_set_leave_nobody_alone():
    config = Config.of(mix="icm", partners_from="dataset", batch=16, clusters=20)
    task = prepare(config)
    mixer = build_mixer(config, task, None)
    index = torch.arange(16)
    chosen, found = mixer.choose(task.excluded[index].float(), None, index=index)
    assert found.all()
    assert torch.equal(task.group[chosen[:, 0]], task.group[index])
    assert (chosen[:, 0] != index).all()


def test_embeddings_from_a_file_follow_the_subset(tmp_path):
    dataset = load("digits")
    np.save(tmp_path / "z.npy", np.eye(10)[dataset.train.truth.numpy()] * 3)  # a perfect encoder
    config = Config.of(mix="icm", clusters=10, encoder=f"embeddings:{tmp_path / 'z.npy'}", long_tail=5.0)
    assert prepare(config).facts["oracle_noise_ratio"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mix": "icm", "clusters": 0}, "The mixer icm mixes inside clusters, but there are none"),
        ({"batch": 5000}, "fewer than one batch of 5000; set batch (--batch) to 1293 or less"),
        ({"clusters": 2000}, "2000 clusters were asked for, but there are 1437 points"),
        ({"labels": "given"}, "comes without complementary labels; use --labels uniform"),
        ({"labels": "gaussian"}, "Labels 'gaussian' are not known; use uniform, biased:RATIO"),
        ({"labels": "setup-1:10", "long_tail": 50.0}, "sets the long tail to 10, but --long-tail says 50"),
        ({"labels": "biased:10", "draws": "paper"}, "--draws paper knows only one uniform label"),
        ({"per_example": 10}, "10 labels per example were asked for"),
        ({"encoder": "clip"}, "The encoder 'clip' is not known; use one of: pixels, random, simsiam"),
        ({"encoder": "embeddings:/nowhere.npy"}, "The embeddings /nowhere.npy cannot be read"),
        ({"long_tail": 1000.0}, "leaves class 9 empty"),
        ({"mix": "extra-class", "partners_from": "dataset"}, "takes no pool"),
    ],
)
def test_bad_settings_are_one_sentence(options, said):
    with pytest.raises(UserError) as caught:
        prepare(Config.of(**options))
    assert said in str(caught.value)


def test_what_needs_truth_says_so():
    excluded = torch.eye(2, dtype=torch.uint8)[torch.arange(40) % 2]
    dataset = Dataset("mine", Split(torch.randn(40, 2), excluded=excluded), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    for options, said in (
        ({"labels": "uniform"}, "has no true labels, which drawing labels needs"),
        ({"long_tail": 2.0}, "A long tail needs true labels, but this set has none"),
        ({"mix": "intra-class"}, "The oracle mixer intra-class needs true labels"),
        ({"transition": "oracle"}, "--transition oracle counts the true labels"),
    ):
        with pytest.raises(UserError, match=said):
            prepare(Config.of(batch=8, **options), dataset)


def test_embeddings_of_the_wrong_length_are_refused(tmp_path):
    np.save(tmp_path / "z.npy", np.ones((10, 3)))
    with pytest.raises(UserError, match=r"have shape \[10, 3\]; wanted one row per training example"):
        prepare(Config.of(encoder=f"embeddings:{tmp_path / 'z.npy'}"))
