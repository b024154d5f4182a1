from dataclasses import replace

import numpy as np
import pytest
import torch

import complementary.problem
from complementary import checkpoint, transitions
from complementary.config import configure
from complementary.data import Dataset, Split, load
from complementary.errors import UserError
from complementary.problem import build_mixer, clusters_of, hold_out, prepare, supervise, training_truth


def test_truth_stays_out_of_the_problem():
    """No tensor of the training side holds, or can be told from, the true labels."""
    problem = prepare(configure(mix="icm"))
    truth = training_truth(configure(mix="icm"))
    rows = torch.arange(len(truth))
    assert len(truth) == len(problem.inputs)
    assert problem.excluded[rows, truth].sum() == 0
    assert not any(
        isinstance(v, torch.Tensor) and v.shape == truth.shape and torch.equal(v, truth) for v in vars(problem).values()
    )


def test_holdout_is_disjoint_and_complete():
    train, held = hold_out(1001, 0.1, seed=3)
    assert len(held) == 100
    assert torch.cat([train, held]).sort().values.tolist() == list(range(1001))
    assert hold_out(10, 0.0, 0)[1].numel() == 0


def test_training_truth_belongs_to_the_training_inputs():
    config = configure(long_tail=10.0, seed=4)
    dataset, problem = load("digits"), prepare(config)
    flat = {bytes(x.numpy().tobytes()): int(y) for x, y in zip(dataset.train.inputs, dataset.train.truth, strict=True)}
    truth = training_truth(config)
    assert [flat[x.numpy().tobytes()] for x in problem.inputs] == truth.tolist()


@pytest.mark.parametrize("per_example", [1, 3])
def test_labels_per_example(per_example):
    problem = prepare(configure(mix="none", per_example=per_example))
    assert (problem.excluded.sum(1) == per_example).all()


def test_setups_by_name():
    dataset = load("digits")
    one, _, _ = supervise(configure(labels="setup-1:10"), dataset)
    same, _, _ = supervise(configure(long_tail=10.0), dataset)
    assert torch.equal(one, same)
    everyone, matrix, _ = supervise(configure(labels="setup-2:5"), dataset)
    assert len(everyone) == len(dataset.train)
    assert torch.equal(matrix, transitions.biased(10, 5))
    tail, matrix, _ = supervise(configure(labels="setup-3:5:10"), dataset)
    assert torch.equal(tail, one)
    assert torch.equal(matrix, transitions.biased(10, 5))


def test_paper_draws_are_the_papers():
    truth = torch.arange(10).repeat_interleave(5000)
    split = Split(torch.zeros(50_000, 1), truth)
    dataset = Dataset("c", split, None, tuple("0123456789"), (0.0,), (1.0,), head=5000)
    chosen, _, excluded = supervise(configure(draws="paper", long_tail=100.0), dataset)
    assert len(chosen) == 12_406
    assert excluded.sum(0).tolist() == [874, 1084, 1166, 1267, 1296, 1316, 1340, 1349, 1367, 1347]


def test_matrices_for_loss_and_for_selection():
    biased = prepare(configure(labels="biased:5", mix="none"))
    assert torch.equal(biased.transition, transitions.biased(10, 5))
    assert torch.equal(biased.loss_transition, biased.transition)
    told = prepare(configure(labels="biased:5", transition="uniform", mix="none"))
    assert torch.equal(told.transition, transitions.uniform(10))
    oracle = prepare(configure(labels="biased:5", transition="oracle", mix="none", holdout=0.0))
    assert torch.equal(oracle.transition, transitions.biased(10, 5)), "selection must not see the oracle"
    counted = transitions.empirical_transition(
        training_truth(configure(labels="biased:5", holdout=0.0)), oracle.excluded
    )
    assert torch.equal(oracle.loss_transition, counted)
    assert oracle.facts["uses_oracle"]
    assert not biased.facts["uses_oracle"]


def test_oracle_mixers_are_marked_and_given_the_truth():
    problem = prepare(configure(mix="intra-class"))
    assert problem.facts["uses_oracle"]
    assert problem.facts["oracle_noise_ratio"] == 0
    assert torch.equal(problem.group, training_truth(configure(mix="intra-class")))


def test_clusters_lower_the_noise_of_mixing():
    noise = {mix: prepare(configure(mix=mix)).facts["oracle_noise_ratio"] for mix in ("none", "mixup", "icm", "micm")}
    assert noise["none"] == 0
    assert noise["mixup"] == pytest.approx(0.189, abs=0.02)
    assert noise["icm"] < noise["micm"] < 0.07


def test_partners_from_the_whole_set_leave_nobody_alone():
    config = configure(mix="icm", partners_from="dataset", batch=16, clusters=20)
    problem = prepare(config)
    mixer = build_mixer(config, problem, None)
    index = torch.arange(16)
    chosen, found = mixer.choose(problem.excluded[index].float(), None, index=index)
    assert found.all()
    assert torch.equal(problem.group[chosen[:, 0]], problem.group[index])
    assert (chosen[:, 0] != index).all()


def test_embeddings_from_a_file_follow_the_subset(tmp_path):
    dataset = load("digits")
    np.save(tmp_path / "z.npy", np.eye(10)[dataset.train.truth.numpy()] * 3)  # a perfect encoder
    config = configure(mix="icm", clusters=10, encoder=f"embeddings:{tmp_path / 'z.npy'}", long_tail=5.0)
    assert prepare(config).facts["oracle_noise_ratio"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mix": "icm", "clusters": 0}, "The mixer icm mixes inside clusters, but there are none"),
        ({"batch": 5000}, "fewer than one batch of 5000; set batch to 1293 or less"),
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
        prepare(configure(**options))
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
            prepare(configure(batch=8, **options), dataset)


def test_embeddings_of_the_wrong_length_are_refused(tmp_path):
    np.save(tmp_path / "z.npy", np.ones((10, 3)))
    with pytest.raises(UserError, match=r"have shape \[10, 3\]; wanted one row per training example"):
        prepare(configure(encoder=f"embeddings:{tmp_path / 'z.npy'}"))


# --- clusters are kept --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, in which clusters of the small digits are kept too."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(complementary.problem, "LONG", 1)
    return tmp_path / "cache" / "stages"


FAST = configure(clusters=5, restarts=1)


def clusters(config=FAST, **options):
    config, dataset = configure(config, **options), load("digits")
    return clusters_of(config, dataset, supervise(config, dataset)[0], "cpu")


def refuse(*_):
    raise AssertionError("it was done again")


def test_clusters_are_made_once_and_said_once(cache, capsys, monkeypatch):
    first = clusters()
    assert capsys.readouterr().err == "clustering 1,437 images into 5 clusters\n"
    for name in ("kmeans", "embed"):
        monkeypatch.setattr(complementary.problem, name, refuse)
    assert torch.equal(clusters(), first)
    assert capsys.readouterr().err == ""
    assert torch.equal(prepare(configure(FAST, holdout=0.0)).group, first)


def test_few_examples_are_clustered_without_a_word_or_a_file(cache, capsys, monkeypatch):
    monkeypatch.setattr(complementary.problem, "LONG", 1438)
    clusters()
    assert capsys.readouterr().err == ""
    assert not cache.exists()


def test_vectors_are_called_vectors(cache, capsys):
    dataset = Dataset("v", Split(torch.randn(40, 2)), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    clusters_of(FAST, dataset, torch.arange(30))
    assert capsys.readouterr().err == "clustering 30 vectors into 5 clusters\n"


@pytest.mark.parametrize(
    "options",
    [{"clusters": 6}, {"restarts": 2}, {"seed": 1}, {"long_tail": 2.0}, {"encoder": "random"}],
    ids=lambda o: next(iter(o)),
)
def test_whatever_changes_the_clusters_is_another_stage(cache, monkeypatch, options):
    clusters()
    other = clusters(**options)
    assert len(list(cache.glob("clusters-*"))) == 2
    monkeypatch.setattr(complementary.problem, "LONG", 10_000)
    assert torch.equal(other, clusters(**options))


def test_what_does_not_change_the_clusters_is_the_same_stage(cache):
    clusters()
    clusters(mix="micm", alpha=0.1, loss="dm", labels="biased:3", epochs=7, batch=32)
    assert len(list(cache.iterdir())) == 1


def test_embeddings_count_by_their_content(cache, tmp_path):
    table = np.random.default_rng(0).normal(size=(1437, 2))
    for name, content in (("a", table), ("b", table), ("c", -table)):
        np.save(tmp_path / f"{name}.npy", content)
        clusters(encoder=f"embeddings:{tmp_path / name}.npy")
    assert len(list(cache.iterdir())) == 2


def test_an_encoder_counts_by_its_content_and_not_by_its_folder(cache, tmp_path):
    from complementary.encoders.body import build_body

    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        body, record = (
            build_body("cnn", (1, 8, 8), seed, True)[0],
            {"shape": [1, 8, 8], "body": "cnn", "max_pool": True},
        )
        checkpoint.write(tmp_path / name / "encoder.safetensors", body.state_dict(), record)
        clusters(encoder=f"run:{tmp_path / name}")
    assert len(list(cache.iterdir())) == 2


def test_the_scale_of_the_inputs_counts_for_a_network(cache):
    """Its features depend on how inputs are normalised, not on their bytes alone."""
    dataset = load("digits")
    for mean in (dataset.mean, (0.9,)):
        clusters_of(configure(FAST, encoder="random"), replace(dataset, mean=mean), torch.arange(1437), "cpu")
    assert len(list(cache.iterdir())) == 2


def test_an_encoder_that_is_pretrained_on_the_way_counts_by_its_settings(cache, monkeypatch):
    monkeypatch.setattr(complementary.problem, "embed", lambda *_: torch.rand(1437, 2))
    for options in ({}, {"pretrain_epochs": 3}, {"encoder": "byol"}, {"pretrain_epochs": 800}):
        clusters(**{"encoder": "simsiam"} | options)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("encoder", ["pixels:x", "clip", "run:", "run:nowhere", "file:nowhere", "embeddings:nowhere"])
def test_a_bad_encoder_is_told_and_not_looked_up(cache, encoder):
    clusters()
    with pytest.raises(UserError):
        clusters(encoder=encoder)
    assert len(list(cache.iterdir())) == 1
