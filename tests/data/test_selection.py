"""Which examples are chosen, and which labels they get."""

import torch

from complementary import transitions
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.data.selection import resolve, supervise


def test_setups_by_name():
    dataset = load("digits")
    one, _, _ = supervise(Config.of(labels="setup-1:10"), dataset)
    same, _, _ = supervise(Config.of(long_tail=10.0), dataset)
    assert torch.equal(one, same)
    everyone, matrix, _ = supervise(Config.of(labels="setup-2:5"), dataset)
    assert len(everyone) == len(dataset.train)
    assert torch.equal(matrix, transitions.biased(10, 5))
    tail, matrix, _ = supervise(Config.of(labels="setup-3:5:10"), dataset)
    assert torch.equal(tail, one)
    assert torch.equal(matrix, transitions.biased(10, 5))


def test_paper_draws_are_the_papers():
    truth = torch.arange(10).repeat_interleave(5000)
    split = Split(torch.zeros(50_000, 1), truth)
    dataset = Dataset("c", split, None, tuple("0123456789"), (0.0,), (1.0,), head=5000)
    chosen, _, excluded = supervise(Config.of(draws="paper", long_tail=100.0), dataset)
    assert len(chosen) == 12_406
    assert excluded.sum(0).tolist() == [874, 1084, 1166, 1267, 1296, 1316, 1340, 1349, 1367, 1347]


def test_auto_takes_the_labels_that_came_with_the_data():
    dataset = load("digits")
    assert resolve(Config.of(), dataset) == ("uniform", 1.0)
    given = Dataset(
        "g", Split(torch.randn(4, 2), excluded=torch.eye(2)[[0, 1, 0, 1]]), None, ("a", "b"), (0.0,), (1.0,)
    )
    assert resolve(Config.of(long_tail=2.0), given) == ("given", 2.0)
    assert resolve(Config.of(labels="setup-3:5:10"), dataset) == ("biased:5", 10.0)
