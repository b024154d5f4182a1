"""PLNL: guessed and added labels against slow references, the two parts of the training, and resume."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import data, networks
from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.rng import generator
from complementary.training import predict
from complementary.training.evidence import neighbor_counts
from complementary.training.plnl import (
    NO_GUESS,
    RECORDED,
    PlnlTrainer,
    add_labels,
    annealed,
    guess_labels,
    guessed_loss,
)
from complementary.training.run import build_trainer, run
from tests.engine.test_distributed import in_two  # noqa: F401  # a fixture
from tests.helpers import run_files
from tests.training.test_pocr import shuffled

PLNL = Config.of(recipe="plnl", head=20, batch=32, epochs=5, model="mlp", policy="cutout")  # 20 images of each class


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


# --- guessed labels -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 5), st.integers(0, 10_000))
def test_guess_labels_matches_the_three_criteria(classes, seed):
    random = np.random.default_rng(seed)
    favorite = random.integers(0, classes, 20)
    records = random.normal(0, 2, (3, 20, classes))
    records[:, np.arange(20), favorite] += 8  # around the threshold
    excluded = (random.random((20, classes)) < 0.2).astype(np.uint8)
    found = guess_labels(torch.from_numpy(records), torch.from_numpy(excluded))
    for i in range(20):
        p = softmax(records[:, i])
        mean = p.mean(0)
        label = int(mean.argmax())
        confident = mean.max() > 0.99 and len({int(row.argmax()) for row in p}) == 1 and not excluded[i, label]
        assert int(found[i]) == (label if confident else NO_GUESS)


def test_guess_labels_needs_the_same_class_in_every_epoch():
    sure = torch.tensor([[[12.0, 0.0, 0.0]]]).repeat(3, 1, 1)
    other = sure.clone()
    other[1] = torch.tensor([0.0, 0.1, 0.0])
    none, first = torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 0.0]])
    assert guess_labels(sure, none).tolist() == [0]
    assert guess_labels(sure, first).tolist() == [NO_GUESS], "an excluded class"
    assert guess_labels(other, none).tolist() == [NO_GUESS]


def test_guessed_loss_is_the_binary_cross_entropy_of_guessed_examples():
    logits, guess = torch.randn(6, 4), torch.tensor([2, NO_GUESS, 0, NO_GUESS, 3, 3])
    known = guess >= 0
    slow = F.binary_cross_entropy_with_logits(logits[known], F.one_hot(guess[known], 4).float())
    torch.testing.assert_close(guessed_loss(logits, guess), slow)
    assert float(guessed_loss(logits, torch.full((6,), NO_GUESS))) == 0


# --- added labels ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 40), st.integers(0, 10_000))
def test_add_labels_adds_the_most_frequent_labels_of_neighbors(classes, seed):
    random = generator(seed, "test")
    logits = torch.randn(30, classes, generator=random) * torch.rand(30, 1, generator=random) * 5
    excluded = (torch.rand(30, classes, generator=random) < 0.3).to(torch.uint8)
    excluded[torch.arange(30), torch.randint(classes, (30,), generator=random)] = 0
    rows = torch.arange(0, 30, 2)
    found, counts = add_labels(logits, excluded, rows, 7), neighbor_counts(logits, excluded, rows, 7)
    confidence = logits.softmax(1).max(1).values
    assert found.dtype == excluded.dtype
    for i, row in enumerate(rows):
        own = excluded[row]
        free = classes - int(own.sum()) - 1
        allowed = min(math.ceil(0.1 * free) if confidence[row] > confidence.mean() else 1, free)
        assert (found[i] >= own).all()
        new = (found[i] > own).nonzero()[:, 0]
        left = ((found[i] == 0) & (own == 0)).nonzero()[:, 0]
        top = counts[i].sort(descending=True).values[:allowed]
        assert len(new) <= allowed
        assert len(left) >= 1, "one class remains"
        if allowed:
            assert (counts[i][new] >= top[-1]).all()
            strictly = (counts[i] > top[-1]).nonzero()[:, 0]
            assert found[i][strictly].all(), "the most frequent ones, whether excluded before or not"


def test_add_labels_breaks_ties_without_preference():
    logits, excluded = torch.randn(4000, 5), torch.zeros(4000, 5, dtype=torch.uint8)  # all counts are 0
    added = add_labels(logits, excluded, torch.arange(4000), 3).sum(0)
    assert added.tolist() == [800] * 5


# --- the two parts of the training ----------------------------------------------------------------


def test_annealed_is_the_published_schedule():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], 0.1)
    published = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200, eta_min=1e-3)
    for epoch in range(200):
        assert 0.1 * annealed(epoch, 200) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        published.step()


def advance_to(loop, epoch):
    while loop.epoch < epoch:
        loop.advance()


def test_second_part_starts_from_the_network_of_the_first():
    loop = build_trainer(PLNL, "cpu")
    assert isinstance(loop, PlnlTrainer)
    assert (loop.first_epochs, loop.epochs, loop.warm_up) == (5, 10, 3)
    advance_to(loop, 5)
    first = {k: v.clone() for k, v in loop.model.members[0].state_dict().items()}
    loop.on_epoch_start()
    assert all(torch.equal(v, first[k]) for k, v in loop.model.members[1].state_dict().items())
    assert not loop.optimizer.state, "a new optimizer"
    assert not loop.records.any()
    advance_to(loop, 7)
    a, b = (member.state_dict() for member in loop.model.members)
    assert not any(torch.equal(a[k], b[k]) for k in a), "different augmentation"


def test_records_are_the_logits_of_the_weak_view():
    loop = build_trainer(PLNL.with_(inputs="features", encoder="random", model="auto"), "cpu")
    assert loop.first_epochs == 0
    loop._shuffle()
    loop.on_epoch_start()
    index = torch.tensor([3, 1, 40])
    for member in loop.model.members:
        member.train()
    with torch.no_grad():
        wanted = loop.model.members[0](loop.views(index, generator(0, "step"), None, 2, 1)[0])
    loop.step(index, generator(0, "step"))
    torch.testing.assert_close(loop.records[0, -1, index], wanted)
    others = torch.ones(loop.examples, dtype=torch.bool)
    others[index] = False
    assert not loop.records[0, -1, others].any()
    assert loop.records[1, -1, index].any()
    assert not loop.records[:, :-1].any()


def test_labels_come_from_the_records_of_the_other_network_after_the_warm_up():
    loop = build_trainer(PLNL, "cpu")
    advance_to(loop, 8)
    assert torch.equal(loop.added, torch.stack([loop.task.excluded] * 2))
    assert (loop.guesses == NO_GUESS).all()
    latest = loop.records[:, -1].clone()
    loop.records[:, -RECORDED:] += 20 * F.one_hot(torch.arange(loop.examples) % 10, 10)  # confident records
    loop.on_epoch_start()
    torch.testing.assert_close(loop.records[:, -1], latest + 20 * F.one_hot(torch.arange(loop.examples) % 10, 10))
    for number in range(2):
        records = loop.records[1 - number, :-1]
        rows = torch.arange(loop.examples)
        added = add_labels(records[-1], loop.task.excluded, rows, loop.neighbors)
        assert torch.equal(loop.added[number], added)
        assert torch.equal(loop.guesses[number], guess_labels(records, added))
    assert 0.5 < (loop.guesses >= 0).float().mean() < 1
    assert (loop.added.sum(2) > 1).any()
    loss = loop.history[-1]["loss"]
    advance_to(loop, 9)
    assert loop.history[-1]["loss"] > loss, "the wrong guesses are learned from"


@pytest.mark.parametrize("stop", [9, pytest.param(42, marks=pytest.mark.slow), 46])
def test_resume_of_plnl_is_bitwise_equal(tmp_path, stop):
    """Five steps per epoch: in the first part, between epochs, and in an epoch with guessed and added labels."""
    run(PLNL, tmp_path / "whole", device="cpu")

    def interrupt(loop):
        if loop.global_step == stop:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(PLNL, tmp_path / "cut", device="cpu", progress=interrupt, checkpoint_seconds=0)
    run(PLNL, tmp_path / "cut", device="cpu", resume=True)
    assert run_files(tmp_path / "whole") == run_files(tmp_path / "cut")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks
def test_two_processes_share_records_and_labels(in_two):  # noqa: F811
    def work(processes):
        loop = build_trainer(PLNL.with_(epochs=4), "cpu", processes=processes)
        advance_to(loop, 7)
        loop.advance()
        return loop.records, loop.added, loop.guesses, [*loop.model.parameters()], loop.task.excluded

    (records, added, _, weights, excluded), other = in_two(work)
    assert records.abs().sum((2, 3)).min() > 0
    torch.testing.assert_close(records, other[0], rtol=0, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(weights, other[3], strict=True))
    everything = torch.empty(len(excluded) + len(other[4]), 10, dtype=torch.uint8)
    everything[0::2], everything[1::2] = excluded, other[4]
    for rank, (part, found) in enumerate(((excluded, added), (other[4], other[1]))):
        rows = torch.arange(rank, len(everything), 2)
        for number in range(2):
            wanted = add_labels(records[1 - number, -2], everything, rows, max(1, len(everything) // 100))
            assert torch.equal(found[number], wanted)
            assert (found[number] >= part).all()


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["pocr", "plnl"])
def test_captured_steps_agree_with_eager_ones(recipe):
    losses = []
    for capture in (False, True):
        engine = Engine(torch.device("cuda"), "fp32", compile=capture, capture=capture)
        loop = build_trainer(PLNL.with_(recipe=recipe, epochs=6, lr=0.01, head=20, batch=32), engine)
        while not loop.done:
            loop.advance()
        losses.append([row["loss"] for row in loop.history])
    assert all(graph.graph is not None for graph in loop.captured)
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_prediction_is_the_mean_of_both_networks(tmp_path):
    result = run(PLNL, tmp_path / "run", device="cpu")
    test, found = data.load("digits").test, predict.load(tmp_path / "run", "last")
    assert isinstance(found.network, networks.Ensemble)
    assert float((found(test.inputs).argmax(1) == test.truth).double().mean()) == pytest.approx(result["accuracy_last"])


def test_plnl_learns():
    config = PLNL.with_(head=80, per_example=4, epochs=5)
    dataset = data.load("digits")
    learned, control = (run(config, device="cpu", dataset=d)["accuracy_last"] for d in (dataset, shuffled(dataset)))
    assert learned > 0.8
    assert control < 0.3
