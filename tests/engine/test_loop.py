"""The training loop, on a model so small that every number can be checked."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

from complementary.engine.backend import Engine
from complementary.engine.loop import TrainingLoop, epoch_order, load_optimizer, optimizer_tensors, strip_prefix
from complementary.errors import UserError
from complementary.rng import generator

EXAMPLES, BATCH, EPOCHS = 10, 3, 4
STEPS = EXAMPLES // BATCH
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "plain": lambda p: torch.optim.SGD(p, 0.1),
}


class Line(TrainingLoop):
    """Fits one weight per feature and records everything."""

    def __init__(self, optimizer="adam", seed=0, poison=None):
        super().__init__("hash", seed, EPOCHS, BATCH, EXAMPLES, Engine.of("cpu"))
        self.x = torch.randn(EXAMPLES, 2, generator=generator(0, "x"))
        self.model = nn.Linear(2, 1)
        nn.init.ones_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.poison, self.events, self.seen, self.losses, self.drawn = poison, [], [], [], []

    def on_epoch_start(self):
        self.events.append("open")

    def on_step_start(self):
        self.events.append((self.epoch, self.step_in_epoch))

    def step(self, index, random):
        noise = torch.rand(len(index), 1, generator=random)
        loss = ((self.model(self.x[index]) - noise) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.poison is not None and (self.epoch, self.step_in_epoch) >= self.poison:
            loss = loss * math.nan
        self.seen.append(index.tolist())
        self.drawn.append(noise)
        self.losses.append(loss.item())
        return loss.detach()

    def networks(self):
        return [self.model]

    def scores(self):
        self.events.append("scores")
        return {"weight": float(self.model.weight.detach().sum())}

    def tensors(self):
        return {f"model/{k}": v for k, v in self.model.state_dict().items()} | optimizer_tensors(self.optimizer)

    def load_tensors(self, tensors):
        self.model.load_state_dict(strip_prefix("model", tensors))
        load_optimizer(self.optimizer, tensors)


def advanced(steps, **options):
    loop = Line(**options)
    ended = [loop.advance() for _ in range(steps)]
    return loop, ended


def finish(loop):
    while not loop.done:
        loop.advance()


def saved(loop):
    """The content of a checkpoint: tensors are copied, the record goes through JSON."""
    tensors, record = loop.state()
    return {k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(record))


def test_loop_takes_steps_in_order_and_drops_the_last_partial_batch():
    loop, ended = advanced(EPOCHS * STEPS)
    assert ended == [False, False, True] * EPOCHS
    epoch = [[e for e in loop.events if e == "open" or isinstance(e, tuple)][i * 4 : i * 4 + 4] for i in range(EPOCHS)]
    assert epoch == [["open", (i, 0), (i, 1), (i, 2)] for i in range(EPOCHS)]
    assert loop.events.count("scores") == EPOCHS
    assert all(len(index) == BATCH for index in loop.seen)
    assert loop.done
    assert (loop.epoch, loop.step_in_epoch) == (EPOCHS, 0)


def test_loop_shuffles_every_epoch_without_repetition():
    loop, _ = advanced(EPOCHS * STEPS)
    orders = [[*itertools.chain(*loop.seen[i * STEPS : (i + 1) * STEPS])] for i in range(EPOCHS)]
    for i, order in enumerate(orders):
        assert len(set(order)) == STEPS * BATCH
        wanted = epoch_order(0, EXAMPLES, (), i)[: STEPS * BATCH]
        assert torch.equal(wanted, torch.randperm(EXAMPLES, generator=generator(0, "order", i))[: STEPS * BATCH])
        assert order == wanted.tolist()
    assert len({tuple(o) for o in orders}) == EPOCHS


def test_loop_is_not_done_before_the_last_step():
    loop, _ = advanced(EPOCHS * STEPS - 1)
    assert not loop.done


def test_history_contains_mean_loss_and_scores():
    loop, _ = advanced(EPOCHS * STEPS)
    assert [row["epoch"] for row in loop.history] == list(range(1, EPOCHS + 1))
    for i, row in enumerate(loop.history):
        assert row["loss"] == pytest.approx(sum(loop.losses[i * STEPS : (i + 1) * STEPS]) / STEPS, rel=1e-6)
        assert set(row) == {"epoch", "loss", "weight"}
    assert loop.history[-1]["weight"] == float(loop.model.weight.detach().sum())


def test_random_draws_depend_on_seed_epoch_and_step_only():
    first, again, other = (advanced(6, seed=s)[0] for s in (0, 0, 1))
    assert first.losses == again.losses
    assert first.seen == again.seen
    assert first.seen != other.seen
    for loop, seed in ((first, 0), (other, 1)):
        for i, noise in enumerate(loop.drawn):
            assert torch.equal(noise, torch.rand(BATCH, 1, generator=generator(seed, "step", *divmod(i, STEPS))))


def test_loop_does_not_use_the_global_random_state():
    loop = Line()
    before = torch.random.get_rng_state()
    for _ in range(STEPS + 1):
        loop.advance()
    assert torch.equal(before, torch.random.get_rng_state())


def test_seconds_accumulate():
    loop, _ = advanced(1)
    first = loop.seconds
    loop.advance()
    assert 0 < first < loop.seconds


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stop", range(EPOCHS * STEPS))
def test_restore_continues_exactly_from_any_step(optimizer, stop):
    whole, _ = advanced(EPOCHS * STEPS, optimizer=optimizer)
    half, _ = advanced(stop, optimizer=optimizer)
    resumed = Line(optimizer)
    resumed.restore(*saved(half))
    assert (resumed.epoch, resumed.step_in_epoch) == divmod(stop, STEPS)
    assert resumed.seconds == half.seconds
    finish(resumed)
    assert half.seen + resumed.seen == whole.seen
    assert half.losses + resumed.losses == whole.losses
    assert resumed.history == whole.history
    assert all(torch.equal(a, whole.tensors()[k]) for k, a in resumed.tensors().items())


def test_restore_an_earlier_state():
    loop, _ = advanced(4)
    state = saved(loop)
    finish(loop)
    ahead, loop.losses = loop.losses[4:], []
    loop.restore(*state)
    finish(loop)
    assert loop.losses == ahead


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [(0, 0), (1, 1), (3, 2)])
def test_nan_loss_is_reported_with_its_step_at_the_end_of_the_epoch(poison):
    loop = Line(poison=poison)
    number = poison[0] * STEPS + poison[1] + 1
    message = rf"epoch {poison[0] + 1}, step {poison[1] + 1} \(step {number} in total\)"
    with pytest.raises(UserError, match=message):
        finish(loop)
    assert len(loop.history) == poison[0]


def test_check_finite_finds_a_bad_loss_at_once():
    loop, _ = advanced(2, poison=(0, 1))
    with pytest.raises(UserError, match="epoch 1, step 2"):
        loop.check_finite()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_check_finite_finds_a_bad_weight(bad):
    loop, _ = advanced(5)
    loop.check_finite()
    with torch.no_grad():
        loop.model.bias.fill_(bad)
    with pytest.raises(UserError, match=r"epoch 2, step 2 \(step 5 in total\)") as caught:
        loop.check_finite()
    assert caught.value.option == "lr"


# --- callbacks ------------------------------------------------------------------------------------


def test_run_calls_the_callbacks_after_every_step_and_closes():
    loop, calls = Line(), []
    loop.close = lambda: calls.append("close")
    loop.run(lambda loop: calls.append((loop.epoch, loop.step_in_epoch)), None)
    assert calls == [divmod(i + 1, STEPS) for i in range(EPOCHS * STEPS)] + ["close"]
    assert loop.global_step == EPOCHS * STEPS


def test_run_closes_after_an_error_in_a_callback():
    loop, closed = Line(), []
    loop.close = lambda: closed.append(loop.global_step)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run(stop)
    assert closed == [1]


# --- named tensors --------------------------------------------------------------------------------


def test_strip_prefix():
    a, b, c = torch.zeros(3).split(1)
    assert strip_prefix("model", {"model/fc.bias": a, "models/x": b, "optimizer/0/model/": c}) == {"fc.bias": a}
    assert strip_prefix("none", {"model/x": a}) == {}


def stepped(optimizer, channels_last=False):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    for i, parameter in enumerate(network.parameters()):
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator(i, "weights")))
    network = network.to(memory_format=torch.channels_last) if channels_last else network
    made = OPTIMIZERS[optimizer](network.parameters())
    return network, made


def take_step(network, optimizer, seed):
    x = torch.randn(4, 3, 6, 6, generator=generator(seed, "x"))
    optimizer.zero_grad()
    network(x).tanh().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_load_optimizer_continues_exactly(optimizer, channels_last):
    """Checkpoints contain contiguous tensors, whatever the memory format of the weights."""
    network, made = stepped(optimizer, channels_last)
    for seed in range(3):
        take_step(network, made, seed)
    stored = {k: v.clone(memory_format=torch.contiguous_format) for k, v in optimizer_tensors(made).items()}
    assert all(name.startswith("optimizer/") for name in stored)
    assert bool(stored) == (optimizer != "plain")
    other, again = stepped(optimizer, channels_last)
    other.load_state_dict(network.state_dict())
    load_optimizer(again, stored)
    for seed in range(3, 6):
        take_step(network, made, seed)
        take_step(other, again, seed)
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        assert bool(torch.isfinite(a).all())
        assert torch.equal(a, b)
    assert optimizer_tensors(made).keys() == optimizer_tensors(again).keys()
    assert all(torch.equal(v, optimizer_tensors(again)[k]) for k, v in optimizer_tensors(made).items())
