"""Prefetched batches: training must be bitwise equal, and the thread must always end."""

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
from complementary.engine.batches import BUFFERS, Prefetcher, chunks, evaluation_batch, should_stream
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training.run import build_trainer, run
from complementary.training.task import build_task
from complementary.training.trainer import Trainer
from tests.helpers import narrow_networks

CPU = torch.device("cpu")
STREAM = Engine.choose("cpu", stream="always")
IMAGES = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8, generator=generator(0, "images"))


@pytest.fixture(autouse=True)
def _no_thread_stays_behind():
    yield
    if prefetching():
        gc.collect()
    for thread in prefetching():
        thread.join(5)
    assert not prefetching()


def prefetching():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def images(count=200):
    """Images that are large enough for crops."""
    source = generator(0, "images")
    x = torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8, generator=source)
    y = torch.arange(count) % 5
    half = (0.5, 0.5, 0.5)
    return Dataset("images", Split(x, y), Split(x[:60], y[:60]), tuple("abcde"), half, half)


# --- the iterator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [IMAGES, torch.randn(50, 7, generator=generator(0, "x"))], ids=["images", "vectors"])
@pytest.mark.parametrize("count", [1, BUFFERS, 40])
def test_prefetcher_follows_the_plan(source, count):
    rows = Rows(source, torch.randperm(50, generator=generator(0, "rows"))[:30])
    plan = [torch.randint(30, (8 - i % 3,), generator=generator(i, "plan")) for i in range(count)]
    found = [batch.clone() for batch in Prefetcher(rows, plan, 8, CPU)]
    assert [f.tolist() for f in found] == [rows.whole()[index].tolist() for index in plan]


def test_prefetcher_batch_is_valid_until_the_next():
    plan = torch.arange(50).split(5)
    for batch, index in zip(Prefetcher(Rows(IMAGES), plan, 5, CPU), plan, strict=True):
        time.sleep(0.01)  # the thread continues meanwhile
        assert torch.equal(batch, IMAGES[index])


def test_prefetcher_stays_within_its_buffers():
    asked = []
    prefetcher = Prefetcher(Rows(IMAGES), (asked.append(i) or torch.tensor([i]) for i in range(50)), 1, CPU)
    time.sleep(0.2)
    assert BUFFERS <= len(asked) <= BUFFERS + 1
    next(prefetcher)
    time.sleep(0.2)
    assert len(asked) <= BUFFERS + 1
    prefetcher.close()


@pytest.mark.parametrize("end", ["plan", "close", "drop", "drop unused"])
def test_prefetcher_thread_always_ends(end):
    prefetcher = Prefetcher(Rows(IMAGES), torch.arange(50).split(10), 10, CPU)
    if end != "drop unused":
        next(prefetcher)
    if end == "plan":
        assert len(list(prefetcher)) == 4
        assert list(prefetcher) == []
    if end == "close":
        prefetcher.close()
        assert not prefetcher.thread.is_alive()
        prefetcher.close()


def test_prefetcher_passes_errors_on():
    def plan():
        yield torch.tensor([1])
        raise OSError("the disk is gone\nand more")

    prefetcher = Prefetcher(Rows(IMAGES), plan(), 1, CPU)
    next(prefetcher)
    for _ in range(2):
        with pytest.raises(UserError, match="the disk is gone"):
            next(prefetcher)
    with pytest.raises(UserError, match="out of range"):
        next(Prefetcher(Rows(IMAGES), [torch.tensor([50])], 1, CPU))


@pytest.mark.parametrize("prefetch", [None, True])
@pytest.mark.parametrize("index", [None, torch.arange(30).flip(0)], ids=["all", "some"])
def test_chunks_are_all_rows(prefetch, index):
    rows = Rows(IMAGES, index)
    assert torch.equal(torch.cat([p.clone() for p in chunks(rows, CPU, 7, prefetch)]), rows.whole())
    assert bool(prefetching()) <= bool(prefetch)


def test_chunks_of_large_images_are_smaller():
    large = Rows(torch.zeros(1).expand(5000, 2**20))  # 4 MiB each
    assert len(next(iter(chunks(large.take(slice(0, 100)), CPU)))) == 64
    assert len(next(iter(chunks(IMAGES, CPU)))) == 50


def test_evaluation_batch_is_small_only_for_images_on_a_cpu():
    found = {
        (x.ndim, d): evaluation_batch(x, torch.device(d)) for x in (IMAGES, IMAGES[:, 0, 0]) for d in ("cpu", "cuda")
    }
    assert found[(4, "cpu")] < min(found[(4, "cuda")], found[(2, "cpu")], found[(2, "cuda")])


# --- when -----------------------------------------------------------------------------------------


def test_should_stream_if_requested_or_if_inputs_need_half_of_the_memory(monkeypatch):
    parts = (Rows(IMAGES), IMAGES, None)
    assert should_stream(parts, STREAM)
    assert not should_stream(parts, Engine.choose("cpu"))
    assert not should_stream(parts, Engine.choose("cpu", stream="never"))
    gpu = Engine(torch.device("cuda"), "bf16")
    for free, streamed in ((4 * IMAGES.nbytes, False), (4 * IMAGES.nbytes - 2, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 10**12))
        assert should_stream(parts, gpu) == streamed
    assert not should_stream(parts, replace(gpu, stream="never"))


def test_inputs_are_not_copied_on_a_cpu():
    dataset = images()
    for engine in (Engine.choose("cpu"), STREAM):
        trainer = build_trainer(Config.of(mix="none", model="linear", batch=20), engine, dataset)
        assert trainer.task.train.source is dataset.train.inputs
        assert "inputs" not in vars(trainer.task), "no copy was needed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("stream", ["auto", "always"])
def test_large_memory_map_stays_on_the_disk(tmp_path, in_child, stream):
    """A sparse file of 3 GB: labels, steps and an evaluation need a fraction of that in memory."""
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
def test_streamed_run_is_bitwise_equal(tmp_path, case):
    config = Config.of(**{"epochs": 3, "batch": 32, "clusters": 5, "restarts": 1, "seed": 3} | CASES[case])
    for name, engine in (("resident", "cpu"), ("streamed", STREAM)):
        run(config, tmp_path / name, device=engine, dataset=images())
    for file in ("metrics.jsonl", "last.safetensors", "selected.safetensors"):
        assert (tmp_path / "resident" / file).read_bytes() == (tmp_path / "streamed" / file).read_bytes()
    assert not prefetching()


def test_streamed_vectors():
    x, y = torch.randn(90, 2, generator=generator(0, "x")), torch.arange(90) % 3
    dataset = Dataset("blobs", Split(x, y), Split(x, y), tuple("abc"), (0.0, 0.0), (1.0, 1.0))
    config = Config.of(mix="icm", clusters=3, epochs=2, batch=20)
    resident, streamed = (run(config, device=engine, dataset=dataset) for engine in ("cpu", STREAM))
    assert resident["per_class_accuracy_last"] == streamed["per_class_accuracy_last"]


@pytest.mark.parametrize("stop", [0, 3, 4, 7])
def test_streamed_training_resumes_a_resident_one(stop):
    config = Config.of(mix="icm", clusters=20, restarts=1, batch=256, epochs=2)
    task = build_task(config)
    whole, half, resumed = (Trainer(config, task, engine) for engine in ("cpu", "cpu", STREAM))
    for _ in range(stop):
        half.advance()
    for _ in range(2):  # its thread is elsewhere in the plan
        resumed.advance()
    resumed.restore(*half.state())
    whole.run()
    resumed.run()
    a, b = whole.state()[0], resumed.state()[0]
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert whole.history == resumed.history


def test_locate_loads_examples_outside_of_the_plan():
    trainer, index = build_trainer(Config.of(mix="none", batch=64), STREAM), torch.tensor([9, 0, 700])
    wanted = build_trainer(Config.of(mix="none", batch=64), "cpu").load(index, None)
    assert all(torch.equal(a, b) for a, b in zip(trainer.load(index, None), wanted, strict=True))


def test_partners_from_dataset_refuses_streaming():
    with pytest.raises(UserError, match="streamed") as caught:
        build_trainer(Config.of(mix="icm", partners_from="dataset", clusters=5, restarts=1), STREAM)
    assert caught.value.option == "partners_from"


@pytest.mark.parametrize("encoder", ["simsiam", "byol"])
def test_streamed_pretraining_is_bitwise_equal(monkeypatch, encoder):
    narrow_networks(monkeypatch)
    config = PretrainConfig(encoder=encoder, epochs=2, batch=512, long_tail=1.5, probe_every=1)
    loops = [Pretrainer(config, load("digits"), engine) for engine in ("cpu", STREAM)]
    for loop in loops:
        loop.run()
    a, b = (loop.state()[0] for loop in loops)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert loops[0].history == loops[1].history


def test_prefetcher_thread_ends_after_an_error_in_the_loop():
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Config.of(mix="none", model="linear", batch=64), device=STREAM, progress=stop)
    assert not prefetching()


def test_stream_option_of_the_command(tmp_path, cll):
    status, _, said = cll("train", "--epochs", 1, "--mix", "none", "--stream", "always", "--out", tmp_path / "x")
    assert status == 0, said
    status, _, said = cll(
        "train", "--mix", "icm", "--partners-from", "dataset", "--stream", "always", "--out", tmp_path / "y"
    )
    assert status == 2
    assert "--partners-from" in said


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("rest", [0, 5_000_000])
def test_prefetcher_on_a_busy_gpu(rest):
    """``rest``: clock cycles that the GPU spends on each batch before it reads it."""
    source = torch.randint(256, (512, 3, 64, 64), dtype=torch.uint8, generator=generator(0, "x"))
    plan = [torch.randint(512, (64,), generator=generator(i, "plan")) for i in range(40)]
    sums = []
    for batch in Prefetcher(Rows(source), plan, 64, torch.device("cuda")):
        torch.cuda._sleep(rest)
        sums.append(batch.long().flatten(1).sum(1))
    assert torch.equal(torch.stack(sums).cpu(), torch.stack([source[i].long().flatten(1).sum(1) for i in plan]))


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [True, False])
def test_streamed_captured_step_is_bitwise_equal(compile):
    config = Config.of(mix="icm", model="cnn", clusters=5, restarts=1, batch=32, epochs=4)
    try:
        trainers, replayed = [], []
        for stream in ("never", "always"):
            engine = Engine.choose("cuda", compile=compile, deterministic=True, stream=stream)
            trainers.append(build_trainer(config, engine, images()))
            trainers[-1].run(lambda loop: replayed.append(loop.run_step.graph is not None))
            assert replayed[-1], "graphs are released at the end only"
    finally:
        torch.use_deterministic_algorithms(False)
    a, b = (trainer.state()[0] for trainer in trainers)
    assert trainers[0].history == trainers[1].history
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
