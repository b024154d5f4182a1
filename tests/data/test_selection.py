"""Which examples are selected, and which labels they get."""

import pytest
import torch

from complementary import transitions
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset, Split, load
from complementary.data.selection import (
    Subset,
    count_examples,
    label_source,
    same_for_all_seeds,
    select,
    transition_matrices,
    validation_split,
)
from complementary.errors import UserError


def test_select_with_the_setups_of_the_paper():
    dataset = load("digits")
    one, _, _ = select(Config.of(labels="setup-1:10"), dataset)
    same, _, _ = select(Config.of(long_tail=10.0), dataset)
    assert torch.equal(one, same)
    everything, matrix, _ = select(Config.of(labels="setup-2:5"), dataset)
    assert len(everything) == len(dataset.train)
    assert torch.equal(matrix, transitions.biased(10, 5))
    tail, matrix, _ = select(Config.of(labels="setup-3:5:10"), dataset)
    assert torch.equal(tail, one)
    assert torch.equal(matrix, transitions.biased(10, 5))


def test_select_draws_designed_labels_with_a_known_matrix():
    dataset = load("digits")
    _, matrix, excluded = select(Config.of(labels="designed:3:0.8"), dataset)
    assert torch.equal(matrix, transitions.designed(10, 3, 0.8))
    label, truth = excluded.argmax(1), dataset.train.truth
    assert (matrix[truth, label] > 0).all(), "no label outside of the design"
    assert abs(float((matrix[truth, label] > 0.5).double().mean()) - 0.8) < 4 * (0.16 / len(truth)) ** 0.5


def test_select_with_the_draws_of_the_paper():
    truth = torch.arange(10).repeat_interleave(5000)
    split = Split(torch.zeros(50_000, 1), truth)
    dataset = Dataset("c", split, None, tuple("0123456789"), (0.0,), (1.0,), head=5000)
    chosen, _, excluded = select(Config.of(draws="paper", long_tail=100.0), dataset)
    assert len(chosen) == 12_406
    assert excluded.sum(0).tolist() == [874, 1084, 1166, 1267, 1296, 1316, 1340, 1349, 1367, 1347]


def test_select_without_any_labels_is_refused():
    dataset = Dataset("none", Split(torch.randn(4, 2)), None, ("a", "b"), (0.0,), (1.0,))
    with pytest.raises(UserError, match="none has no labels"):
        select(Config.of(), dataset)


def test_an_estimated_matrix_does_not_start_from_the_generating_one():
    excluded = torch.eye(3, dtype=torch.uint8)
    options = Config.of(labels="biased:5", transition="estimate"), None, excluded, transitions.biased(3, 5)
    assert all(torch.equal(matrix, transitions.uniform(3)) for matrix in transition_matrices(*options))


def test_label_source_resolves_auto_and_setups():
    dataset = load("digits")
    excluded = torch.eye(2, dtype=torch.uint8)[[0, 1, 0, 1]]
    given = Dataset("g", Split(torch.randn(4, 2), excluded=excluded), None, ("a", "b"), (0.0,), (1.0,))
    assert label_source(Config.of(), dataset) == "uniform"
    assert label_source(Config.of(), given) == "given"
    assert label_source(Config.of(labels="setup-3:5:10"), dataset) == "biased:5"
    assert label_source(Config.of(labels="noisy:0.1"), dataset) == "noisy:0.1"


def test_validation_split_is_disjoint_and_complete():
    train, validation = validation_split(1001, 0.1, seed=3)
    assert len(validation) == 100
    assert torch.cat([train, validation]).sort().values.tolist() == list(range(1001))
    assert validation_split(10, 0.0, 0)[1].numel() == 0


def test_subset_of_a_pretraining_leaves_out_the_validation_split_of_the_run():
    config = Config.of(long_tail=10.0, holdout=0.2, seed=3)
    dataset = load("digits")
    everything = select(config, dataset).examples
    train, validation = validation_split(len(everything), 0.2, seed=3)
    found = Subset.of(PretrainConfig(long_tail=10.0, holdout=0.2, seed=3)).index(dataset)
    assert torch.equal(found, everything[train])
    assert not set(found.tolist()) & set(everything[validation].tolist())


def test_subset_of_a_run_and_of_its_pretraining_are_equal():
    for options in ({"long_tail": 5.0, "seed": 3}, {"long_tail": 5.0, "head": 50, "subset": "first"}, {}):
        run, pretraining = Subset.of(Config.of(**options)), Subset.of(PretrainConfig.of(**options))
        assert run == pretraining
        assert torch.equal(run.index(load("digits")), pretraining.index(load("digits")))
    assert Subset.of(Config.of(draws="paper")).order == "first"
    assert Subset.of(Config.of(labels="setup-3:5:10")).long_tail == 10


def test_subset_refuses_two_long_tails():
    with pytest.raises(UserError, match="50") as caught:
        Subset.of(Config.of(labels="setup-1:10", long_tail=50.0))
    assert caught.value.option == "long_tail"


@pytest.mark.parametrize(
    ("options", "count", "same"),
    [
        ({}, 50_000, True),
        ({"long_tail": 100.0}, 12_406, False),
        ({"long_tail": 100.0, "subset": "first"}, 12_406, True),
        ({"labels": "setup-1:100", "draws": "paper"}, 12_406, True),
        ({"head": 100}, 1000, False),
    ],
)
def test_count_examples_and_same_for_all_seeds(options, count, same):
    config = Config.of(data="cifar10", **options)
    assert (count_examples(config), same_for_all_seeds(config)) == (count, same)
