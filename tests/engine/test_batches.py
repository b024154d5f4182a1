"""PrefetchedBatches training must be the same training, bit for bit; and its thread must never stay behind."""

import gc
import os
import resource
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from complementary.config import Config, PretrainConfig
from complementary.data import Dataset, Split, load
from complementary.data.rows import Rows
from complementary.encoders.pretrain import Pretrainer
from complementary.engine.backend import Engine
from complementary.engine.batches import DEPTH, Prefetcher, pieces, should_stream
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training.run import build_trainer, run
from complementary.training.task import build_task
from complementary.training.trainer import Trainer

CPU = torch.device("cpu")
STREAM = Engine.choose("cpu", stream="always")
IMAGES = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8, generator=generator(0, "images"))


@pytest.fixture(autouse=True)
def _no_thread_stays_behind():
    yield
    gc.collect()
    for thread in feeding():
        thread.join(5)
    assert not feeding()


def feeding():
    return [thread for thread in threading.enumerate() if thread.name == "feed"]


def pictures(count=200):
    """Images large enough for crops, of which a part is tested."""
    source = generator(0, "pictures")
    x = torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8, generator=source)
    y = torch.arange(count) % 5
    half = (0.5, 0.5, 0.5)
    return Dataset("pictures", Split(x, y), Split(x[:60], y[:60]), tuple("abcde"), half, half)


# --- the iterator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [IMAGES, torch.randn(50, 7, generator=generator(0, "x"))], ids=["images", "vectors"])
@pytest.mark.parametrize("count", [1, DEPTH, 40])
def test_pieces_come_in_the_order_of_the_plan(source, count):
    rows = Rows(source, torch.randperm(50, generator=generator(0, "rows"))[:30])
    plan = [torch.randint(30, (8 - i % 3,), generator=generator(i, "plan")) for i in range(count)]
    found = [piece.clone() for piece in Prefetcher(rows, plan, 8, CPU)]
    assert [f.tolist() for f in found] == [rows.whole()[index].tolist() for index in plan]


def test_a_piece_stays_good_until_the_next_is_asked_for():
    plan = torch.arange(50).split(5)
    for piece, index in zip(Prefetcher(Rows(IMAGES), plan, 5, CPU), plan, strict=True):
        time.sleep(0.01)  # the thread goes on meanwhile, as far as it can
        assert torch.equal(piece, IMAGES[index])


def test_the_thread_works_ahead_but_not_further_than_its_buffers():
    asked = []
    ahead = Prefetcher(Rows(IMAGES), (asked.append(i) or torch.tensor([i]) for i in range(50)), 1, CPU)
    time.sleep(0.2)
    assert DEPTH <= len(asked) <= DEPTH + 1
    next(ahead)
    time.sleep(0.2)
    assert len(asked) <= DEPTH + 1
    ahead.close()


@pytest.mark.parametrize("end", ["plan", "close", "drop", "drop unused"])
def test_the_thread_ends_whatever_happens(end):
    ahead = Prefetcher(Rows(IMAGES), torch.arange(50).split(10), 10, CPU)
    if end != "drop unused":
        next(ahead)
    if end == "plan":
        assert len(list(ahead)) == 4
        assert list(ahead) == []
    if end == "close":
        ahead.close()
        assert not ahead.thread.is_alive()
        ahead.close()


def test_what_goes_wrong_in_the_thread_reaches_the_caller_as_a_sentence():
    def plan():
        yield torch.tensor([1])
        raise OSError("the disk is gone\nand more")

    ahead = Prefetcher(Rows(IMAGES), plan(), 1, CPU)
    next(ahead)
    for _ in range(2):
        with pytest.raises(UserError, match=r"could not be read ahead \(the disk is gone\); are the data still"):
            next(ahead)
    with pytest.raises(UserError, match="out of range"):
        next(Prefetcher(Rows(IMAGES), [torch.tensor([50])], 1, CPU))


@pytest.mark.parametrize("ahead", [None, True])
@pytest.mark.parametrize("index", [None, torch.arange(30).flip(0)], ids=["all", "some"])
def test_pieces_are_the_whole_in_parts(ahead, index):
    rows = Rows(IMAGES, index)
    assert torch.equal(torch.cat([p.clone() for p in chunks(rows, CPU, 7, ahead)]), rows.whole())
    assert bool(feeding()) <= bool(ahead)


def test_pieces_of_large_images_are_smaller():
    large = Rows(torch.zeros(1).expand(5000, 2**20))  # 4 MiB each
    assert len(next(iter(chunks(large.take(slice(0, 100)), CPU)))) == 64
    assert len(next(iter(chunks(IMAGES, CPU)))) == 50


# --- when -----------------------------------------------------------------------------------------


def test_inputs_are_streamed_when_told_or_when_they_need_half_of_the_card(monkeypatch):
    parts = (Rows(IMAGES), IMAGES, None)
    assert should_stream(parts, STREAM)
    assert not should_stream(parts, Engine.choose("cpu"))
    assert not should_stream(parts, Engine.choose("cpu", stream="never"))
    card = Engine(torch.device("cuda"), "bf16")
    for free, streamed in ((4 * IMAGES.nbytes, False), (4 * IMAGES.nbytes - 2, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10**12))
        assert should_stream(parts, card) == streamed
    assert not should_stream(parts, replace(card, stream="never"))


def test_on_a_cpu_the_inputs_are_not_copied():
    dataset = pictures()
    for engine in (Engine.choose("cpu"), STREAM):
        trainer = build_trainer(Config.of(mix="none", model="linear", batch=20), engine, dataset)
        assert trainer.task.train.source is dataset.train.inputs
        assert "inputs" not in vars(trainer.task), "nobody asked for a copy"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("stream", ["auto", "always"])
def test_a_large_memory_map_stays_on_the_disk(tmp_path, in_child, stream):
    """3 GB in a file with holes: labels, steps and an evaluation take a fraction of that."""
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (60_000, 3, 128, 128))
    inputs = torch.from_numpy(array)
    dataset = Dataset("holes", Split(inputs, torch.arange(60_000) % 3), None, tuple("abc"), (0.5,) * 3, (0.5,) * 3)

    def work():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        config = Config.of(mix="none", model="linear", batch=64, holdout=0.01, long_tail=2.0)
        trainer = build_trainer(config, Engine.choose("cpu", stream=stream), dataset)
        for _ in range(5):
            trainer.advance()
        trainer.evaluate()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kB

    assert os.waitpid(in_child(work), 0)[1] == 0


# --- training -------------------------------------------------------------------------------------

CASES = {
    "icm": {"mix": "icm"},
    "micm, long tail": {"mix": "micm", "long_tail": 3.0, "batch": 16},
    "none, cnn, policy": {"mix": "none", "model": "cnn", "policy": "randaugment"},
    "estimated matrix": {"mix": "mixup", "loss": "fwd", "transition": "estimate", "estimate_epochs": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_a_streamed_run_writes_the_same_bytes(tmp_path, case):
    config = Config.of(**{"epochs": 3, "batch": 32, "clusters": 5, "restarts": 1, "seed": 3} | CASES[case])
    for name, engine in (("resident", "cpu"), ("streamed", STREAM)):
        run(config, tmp_path / name, device=engine, dataset=pictures())
    for file in ("metrics.jsonl", "last.safetensors", "selected.safetensors"):
        assert (tmp_path / "resident" / file).read_bytes() == (tmp_path / "streamed" / file).read_bytes()
    assert not feeding()


def test_vectors_are_streamed_too():
    x, y = torch.randn(90, 2, generator=generator(0, "x")), torch.arange(90) % 3
    dataset = Dataset("blobs", Split(x, y), Split(x, y), tuple("abc"), (0.0, 0.0), (1.0, 1.0))
    config = Config.of(mix="icm", clusters=3, epochs=2, batch=20)
    resident, streamed = (run(config, device=engine, dataset=dataset) for engine in ("cpu", STREAM))
    assert resident["per_class_accuracy_last"] == streamed["per_class_accuracy_last"]


@pytest.mark.parametrize("stop", [0, 3, 4, 7])
def test_a_streamed_training_goes_on_exactly_where_a_resident_one_stopped(stop):
    config = Config.of(mix="icm", clusters=20, restarts=1, batch=256, epochs=2)
    task = build_task(config)
    whole, half, resumed = (Trainer(config, task, engine) for engine in ("cpu", "cpu", STREAM))
    for _ in range(stop):
        half.advance()
    for _ in range(2):  # its thread is somewhere else by now
        resumed.advance()
    resumed.restore(*half.state())
    whole.run()
    resumed.run()
    a, b = whole.state()[0], resumed.state()[0]
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert whole.history == resumed.history


def test_examples_outside_of_the_plan_are_fetched_at_once():
    trainer, index = build_trainer(Config.of(mix="none", batch=64), STREAM), torch.tensor([9, 0, 700])
    wanted = build_trainer(Config.of(mix="none", batch=64), "cpu").load(index, None)
    assert all(torch.equal(a, b) for a, b in zip(trainer.load(index, None), wanted, strict=True))


def test_partners_from_the_whole_set_need_resident_inputs():
    with pytest.raises(
        UserError, match=r"--partners-from dataset\) need inputs that lie on the device.*--stream never"
    ):
        build_trainer(Config.of(mix="icm", partners_from="dataset", clusters=5, restarts=1), STREAM)


@pytest.mark.parametrize("encoder", ["simsiam", "byol"])
def test_streamed_pretraining_is_the_same(encoder):
    config = PretrainConfig(encoder=encoder, epochs=2, batch=512, long_tail=1.5, probe_every=1)
    jobs = [Pretrainer(config, load("digits"), engine) for engine in ("cpu", STREAM)]
    for job in jobs:
        job.run()
    a, b = (job.state()[0] for job in jobs)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert jobs[0].history == jobs[1].history


def test_a_failure_in_the_loop_stops_the_thread_too():
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Config.of(mix="none", model="linear", batch=64), device=STREAM, progress=stop)
    assert not feeding()


def test_the_command_takes_the_option(tmp_path, cll):
    status, _, said = cll("train", "--epochs", 1, "--mix", "none", "--stream", "always", "--out", tmp_path / "x")
    assert status == 0, said
    status, _, said = cll(
        "train", "--mix", "icm", "--partners-from", "dataset", "--stream", "always", "--out", tmp_path / "y"
    )
    assert status == 2
    assert said.count("\n") == 1
    assert "are streamed" in said


# --- on a card ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("rest", [0, 5_000_000])
def test_pieces_arrive_whole_while_the_card_is_busy_with_earlier_ones(rest):
    """``rest``: clock cycles that the card spends on each piece before it looks at it."""
    source = torch.randint(256, (512, 3, 64, 64), dtype=torch.uint8, generator=generator(0, "x"))
    plan = [torch.randint(512, (64,), generator=generator(i, "plan")) for i in range(40)]
    sums = []
    for piece in Prefetcher(Rows(source), plan, 64, torch.device("cuda")):
        torch.cuda._sleep(rest)
        sums.append(piece.long().flatten(1).sum(1))
    assert torch.equal(torch.stack(sums).cpu(), torch.stack([source[i].long().flatten(1).sum(1) for i in plan]))


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [True, False])
def test_on_a_card_a_streamed_captured_step_has_the_same_bits(compile):
    config = Config.of(mix="icm", model="cnn", clusters=5, restarts=1, batch=32, epochs=4)
    try:
        trainers, replayed = [], []
        for stream in ("never", "always"):
            engine = Engine.choose("cuda", compile=compile, deterministic=True, stream=stream)
            trainers.append(build_trainer(config, engine, pictures()))
            loop(trainers[-1], progress=lambda job: replayed.append(job.run_step.graph is not None))
            assert replayed[-1], "until the job lets its graphs go"
    finally:
        torch.use_deterministic_algorithms(False)
    a, b = (trainer.state()[0] for trainer in trainers)
    assert trainers[0].history == trainers[1].history
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
