"""Several jobs side by side: the same results as one after the other, and no one disturbs another."""

import threading

import pytest
import torch

from complementary.config import Config
from complementary.engine.backend import Engine, together
from complementary.engine.run_folder import loop
from complementary.errors import UserError
from complementary.training.run import run, start

CPU = torch.device("cpu")


def config(seed, **options):
    usual = {"mix": "icm", "clusters": 10, "restarts": 1, "epochs": 2, "batch": 128}
    return Config.of(data="digits", seed=seed, **usual | options)


def trained(seed, engine, **options):
    trainer = start(config(seed, **options), engine)
    loop(trainer)
    return {k: v.cpu() for k, v in trainer.model.state_dict().items()}, trainer.history


def same(one, other):
    return one[1] == other[1] and all(torch.equal(one[0][k], other[0][k]) for k in one[0])


def test_tasks_run_side_by_side_and_answer_in_order():
    meet = threading.Barrier(3, timeout=20)  # one after the other they would never meet
    assert together([lambda i=i: (meet.wait() >= 0) and i for i in range(3)], CPU) == [0, 1, 2]
    assert together([], CPU) == []


def test_packed_runs_have_the_same_bits_as_separate_ones():
    engine = Engine.of("cpu")
    tasks = [lambda s=s, m=m: trained(s, engine, model=m) for s in (0, 1) for m in ("mlp", "cnn")]
    for packed, alone in zip(together(tasks, CPU), [task() for task in tasks], strict=True):
        assert same(packed, alone)


def test_a_failure_stays_with_its_task(tmp_path):
    good = lambda: run(config(0), tmp_path / "good", device="cpu")["accuracy_last"]  # noqa: E731
    bad = lambda: run(config(0, lr=1e30), tmp_path / "bad", device="cpu")  # noqa: E731
    first, failed, last = together([good, bad, lambda: 7], CPU)
    assert first == run(config(0), device="cpu")["accuracy_last"]
    assert isinstance(failed, UserError)
    assert "NaN" in str(failed)
    assert last == 7


@pytest.mark.gpu
def test_a_long_pack_never_works_on_a_stream_that_is_being_captured():
    """Torch has 32 streams to lend: many captures in one lane, while others copy and wait all the time."""
    engine, weight = Engine.choose("cuda"), torch.randn(256, 256, device="cuda")

    def capturing():
        for i in range(40):
            step = engine.captured(lambda x, i=i: (x @ weight).tanh() + i)
            for _ in range(6):
                found = step(weight)
            assert step.graph is not None
            torch.testing.assert_close(found, (weight @ weight).tanh() + i)
        return "captured"

    def busy():
        for _ in range(400):
            x = weight + torch.randn(256, 256).to("cuda")
            torch.cuda.current_stream().synchronize()
            assert bool(torch.isfinite(x).all())
            x.cpu()
        return "busy"

    assert together([capturing, capturing, busy, busy], engine.device) == ["captured", "captured", "busy", "busy"]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2, 6])
def test_packed_runs_on_a_gpu_are_the_separate_ones(count):
    """Evaluation is captured in the fourth epoch; one ends early, and its graphs with it."""
    try:
        engine = Engine.choose("cuda", deterministic=True)
        tasks = [lambda s=s: trained(s, engine, model="resnet18", epochs=6 if s else 1) for s in range(count)]
        packed = together(tasks, engine.device)
        assert not [r for r in packed if isinstance(r, Exception)]
        for found, task in zip(packed, tasks, strict=True):
            assert same(found, task())
    finally:
        torch.use_deterministic_algorithms(False)
