"""Two processes that train one network: the same mathematics as one process, and one message if one of them dies."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch import distributed as torch_distributed
from torch.distributed import run as launcher

from complementary import files, transitions
from complementary.config import Config, PretrainConfig
from complementary.data import load
from complementary.encoders.pretrain import Pretrainer, pretrain
from complementary.engine import distributed
from complementary.engine.backend import Engine
from complementary.engine.distributed import SINGLE_PROCESS, LostProcess, ProcessGroup, join_processes, local_device
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.rng import generator
from complementary.training import selection
from complementary.training.run import build_trainer, run
from complementary.training.self_training import SelfTrainer
from complementary.training.task import build_task
from complementary.training.trainer import Trainer
from tests.helpers import run_files
from tests.processes import start_forked

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of forks, which save the time of importing torch


@pytest.fixture
def in_two(tmp_path, in_child):
    """Call work(processes) in two connected processes -> the result of each."""
    calls = 0

    def call(work):
        nonlocal calls
        calls += 1
        store = tmp_path / f"store{calls}"

        def child(rank):
            processes = distributed.connect(rank, 2, torch.device("cpu"), f"file://{store}")
            torch.save(work(processes), f"{store}-{rank}.pt")
            os._exit(0)

        children = [in_child(lambda rank=rank: child(rank)) for rank in range(2)]
        assert [os.waitpid(c, 0)[1] for c in children] == [0, 0]
        return [torch.load(f"{store}-{rank}.pt") for rank in range(2)]

    return call


# --- shards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4])
def test_shards_are_disjoint_and_complete(size):
    config = Config.of(mix="icm", clusters=5, restarts=1, batch=240)
    task = build_task(config)
    trainers = [Trainer(config, task, "cpu", ProcessGroup(rank, size)) for rank in range(size)]
    for index in (lambda task: task.train.index, lambda task: task.train_index):
        assert torch.cat([index(t.task) for t in trainers]).sort().values.tolist() == index(task).tolist()
    alone = Trainer(config, task, "cpu")
    for rank, trainer in enumerate(trainers):
        part = trainer.task
        assert torch.equal(part.inputs, task.inputs[rank::size])
        assert torch.equal(part.excluded, task.excluded[rank::size])
        assert torch.equal(part.cluster, task.cluster[rank::size])
        assert (len(part.validation) > 0, part.test_inputs is not None) == (rank == 0, rank == 0)
        assert (trainer.local_batch, trainer.steps_per_epoch) == (240 // size, alone.steps_per_epoch)
        trainer._shuffle()
        assert trainer.order.sort().values.tolist() == list(range(trainer.local_examples))
    assert not torch.equal(trainers[0].order[:9], trainers[1].order[:9])


def test_local_batch_refuses_an_indivisible_batch():
    with pytest.raises(UserError, match=r"256 .* 3 processes; use a batch of 255") as caught:
        build_trainer(Config.of(mix="none"), "cpu", processes=ProcessGroup(1, 3))
    assert caught.value.option == "batch"


# --- the same mathematics -------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "loss"), [("linear", "cpe-t"), ("mlp", "s-nl")])
def test_average_gradients_is_the_gradient_of_the_whole_batch(in_two, model, loss):
    """Also of a matrix that the loss learns."""
    config = Config.of(mix="none", model=model, loss=loss, batch=64, epochs=1)

    def work(processes):
        trainer = build_trainer(config, "cpu", processes=processes)
        index = generator_order(processes.rank)
        loss = trainer.step(index, torch.Generator())
        return loss, [p.grad for p in learned(trainer)]

    def learned(trainer):
        return [*trainer.model.parameters(), *trainer.criterion.parameters()]

    def generator_order(rank):
        return torch.randperm(640, generator=generator(rank, "some"))[:32]

    (loss, gradients), (other_loss, others) = in_two(work)
    trainer = build_trainer(config, "cpu")
    both = torch.cat([2 * generator_order(0), 2 * generator_order(1) + 1])  # process r has examples r, r + 2, ...
    wanted = trainer.step(both, torch.Generator())
    assert float(loss) == float(other_loss) == pytest.approx(float(wanted), rel=1e-6)
    for found, other, parameter in zip(gradients, others, learned(trainer), strict=True):
        assert torch.equal(found, other)
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-7)


def test_loss_is_the_mean_over_the_labeled_examples_of_all_processes(in_two):
    """Two examples have a partner in one process, five in the other: weights of 2 / 7 and 5 / 7."""
    config = Config.of(mix="icm", model="linear", clusters=20, restarts=1, batch=12)
    task, groups = build_task(config), [[0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 1]]
    for rank, group in enumerate(groups):
        task.cluster[rank:12:2] = torch.tensor(group)

    def work(processes):
        trainer = Trainer(config, task, "cpu", processes)
        loss = trainer.step(torch.arange(6), torch.Generator().manual_seed(processes.rank))
        return loss, trainer.model.fc.weight.grad

    (loss, gradient), (other, _) = in_two(work)
    sums, count, total = [], 0, 0
    for rank in range(2):
        trainer = Trainer(config, task, "cpu", ProcessGroup(rank, 2))
        random = torch.Generator().manual_seed(rank)
        x, excluded = trainer.load(torch.arange(6), random)
        x, soft = trainer.mixer(x, excluded, trainer.task.cluster[:6], generator=random)
        losses = LOSSES["s-nl"](trainer.model(x), soft)
        losses.sum().backward()
        sums.append(trainer.model.fc.weight.grad)
        count, total = count + int((soft.sum(1) > 0).sum()), total + float(losses.detach().sum())
    assert count == 7
    assert float(loss) == float(other) == pytest.approx(total / 7, rel=1e-5)
    torch.testing.assert_close(gradient, sum(sums) / 7, rtol=1e-4, atol=1e-7)


def test_loss_as_coded_counts_black_images(in_two):
    config = Config.of(mix="icm", model="linear", clusters=20, restarts=1, batch=12, alone="black")
    task = build_task(config)
    task.cluster[:12] = torch.tensor([0, 1] * 2 + [2, 3, 4, 5, 6, 7, 8, 9])
    task.cluster[2] = 11  # no example of process 0 has a partner, two of process 1 have

    def work(processes):
        return Trainer(config, task, "cpu", processes).step(torch.arange(6), torch.Generator().manual_seed(0))

    def one(rank):
        trainer = Trainer(config, task, "cpu", ProcessGroup(rank, 2))
        trainer.processes = SINGLE_PROCESS
        return float(trainer.step(torch.arange(6), torch.Generator().manual_seed(0)))

    assert one(0) == 0
    assert [float(loss) for loss in in_two(work)] == pytest.approx([(one(0) + one(1)) / 2] * 2, rel=1e-5)


def test_average_gradients_keeps_weights_and_statistics_equal(in_two):
    config = Config.of(mix="icm", model="cnn", clusters=20, restarts=1, batch=256, epochs=1)

    def work(processes):
        trainer = build_trainer(config, "cpu", processes=processes)
        seen = []
        real = trainer.processes.average_gradients
        trainer.processes.average_gradients = lambda network, *rest: seen.append(mean(network)) or real(network, *rest)
        states = []
        for _ in range(3):
            trainer.advance()
            states.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
        return states, seen, trainer.random.initial_seed()

    def mean(network):
        return network.norms[0].running_mean.clone()

    (first, seen, seed), (second, others, other_seed) = in_two(work)
    assert seed != other_seed, "each process has its own random numbers"
    for a, b, mine, its in zip(first, second, seen, others, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)
        assert not torch.equal(mine, its), "each process has its own examples"
        torch.testing.assert_close(a["norms.0.running_mean"], (mine + its) / 2)


@pytest.mark.slow
def test_two_processes_reach_the_accuracy_of_one(in_two, tmp_path):
    config = Config.of(mix="icm", epochs=50, batch=128, per_example=3, clusters=30, restarts=1)

    def work(processes):
        result = run(config, tmp_path / f"out{processes.rank}", device="cpu", processes=processes)
        return result.get("accuracy_last"), result.get("processes")

    (accuracy, processes), nothing = in_two(work)
    alone = run(config, device="cpu")["accuracy_last"]
    assert min(accuracy, alone) > 0.8
    assert abs(accuracy - alone) < 0.06
    assert (processes, nothing) == (2, (None, None))
    assert (tmp_path / "out0" / "result.json").exists()
    assert not (tmp_path / "out1").exists()


def test_streaming_in_two_processes_is_bitwise_equal(in_two):
    config = Config.of(mix="icm", clusters=20, restarts=1, batch=256, epochs=2)

    def work(processes):
        histories = []
        for stream in ("never", "always"):
            trainer = build_trainer(config, Engine.choose("cpu", stream=stream), processes=processes)
            trainer.run()
            histories.append(([row["loss"] for row in trainer.history], trainer.model.state_dict()))
        return histories

    for (losses, weights), (streamed, others) in in_two(work):
        assert losses == streamed
        assert all(torch.equal(weights[k], others[k]) for k in weights)


def test_estimated_transition_is_the_same_in_all_processes(in_two):
    config = Config.of(labels="biased:10", loss="fwd", transition="estimate", mix="none", estimate_epochs=2)
    real = transitions.estimate_transition

    def work(processes):
        seen = []
        transitions.estimate_transition = lambda p, e: seen.append((len(p), len(e))) or real(p, e)
        return build_trainer(config, "cpu", processes=processes).loss_transition, seen

    (first, seen), (second, _) = in_two(work)
    assert set(seen) == {(1293, 1293)}, "the examples of both processes"
    assert torch.equal(first, second)
    assert len(first.unique()) > 10


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["simsiam", "mocov3"])
def test_pretraining_in_two_processes(in_two, tmp_path, encoder):
    config = PretrainConfig(encoder=encoder, epochs=2, batch=256, probe_every=2)

    def work(processes):
        loop = Pretrainer(config, load("digits"), "cpu", processes)
        for _ in range(2):
            loop.advance()
        folder = tmp_path / f"{encoder}{processes.rank}"
        result = pretrain(config, folder, device="cpu", processes=processes)
        return loop.objective.state_dict(), result.get("oracle_knn")

    (first, knn), (second, none) = in_two(work)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert knn > 0.5
    assert none is None


# --- checks ---------------------------------------------------------------------------------------


def test_check_in_sync_finds_different_weights(in_two):
    def work(processes):
        trainer = build_trainer(Config.of(mix="none", seed=0), "cpu", processes=processes)
        trainer.check_in_sync()
        if processes.rank == 1:
            with torch.no_grad():
                trainer.model.fc.bias += 1e-6
        try:
            trainer.check_in_sync()
        except UserError as error:
            return str(error)
        return ""

    first, second = in_two(work)
    assert first == ""
    assert "Process 1" in second
    assert "weights" in second


def test_check_in_sync_finds_different_configurations(in_two, tmp_path):
    def work(processes):
        try:
            run(Config.of(mix="none", seed=processes.rank), tmp_path / "x", device="cpu", processes=processes)
        except UserError as error:
            return str(error)
        return ""

    first, second = in_two(work)
    assert first == distributed.LOST
    assert "Process 1" in second
    assert "configuration" in second


def test_restore_refuses_another_number_of_processes():
    config = Config.of(mix="none", model="linear")
    pair, alone = build_trainer(config, "cpu", processes=ProcessGroup(0, 2)), build_trainer(config, "cpu")
    with pytest.raises(UserError, match="started with 2 processes, but now there are 1"):
        alone.restore(*pair.state())
    with pytest.raises(UserError, match="started with 1 processes, but now there are 2"):
        pair.restore(*alone.state())


@pytest.mark.parametrize("count", [7, 8])
def test_all_gather_restores_the_order(in_two, count):
    rows = torch.arange(3.0 * count).view(count, 3)
    found = in_two(lambda processes: processes.all_gather(rows[processes.shard()], count))
    assert all(torch.equal(one, rows) for one in found)
    assert SINGLE_PROCESS.all_gather(rows, count) is rows


@pytest.mark.parametrize("size", [1, 2, 3])
def test_global_rows_are_the_positions_of_the_examples_of_a_shard(size):
    rows = torch.arange(10)
    for rank in range(size):
        processes = ProcessGroup(rank, size)
        own = rows[processes.shard()]
        assert torch.equal(processes.global_rows(torch.arange(len(own))), own)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"holdout": 0.1}, {"holdout": 0.0995, "neighbors": 5, "student": "cnn"}],
    ids=["odd", "even, neighbors and student"],
)
def test_self_training_in_two_processes_resumes_bitwise(in_two, tmp_path, options):
    """Each process has its own shard of the pseudo-labels, with an odd and an even number of examples."""
    config = Config.of(inputs="features", encoder="random", mix="none", epochs=1, self_training=3, batch=256, **options)

    def cut(loop):
        if loop.stage == SelfTrainer.stage and (loop.epoch, loop.step_in_epoch) == (1, 3):
            raise InterruptedError

    def interrupted(processes):
        with pytest.raises((InterruptedError, UserError)):
            run(config, tmp_path / "cut", device="cpu", processes=processes, checkpoint_seconds=0, progress=cut)

    in_two(lambda processes: run(config, tmp_path / "whole", device="cpu", processes=processes) and None)
    in_two(interrupted)
    assert files.read_checkpoint(tmp_path / "cut" / "checkpoint.safetensors")[1]["epoch"] == 1
    in_two(lambda processes: run(config, tmp_path / "cut", device="cpu", processes=processes, resume=True) and None)
    assert run_files(tmp_path / "cut") == run_files(tmp_path / "whole")


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_self_training_starts_from_the_selected_weights_in_all_processes(in_two, monkeypatch, ema):
    monkeypatch.setattr(selection, "CONFIDENCE", 0.1)  # so that an earlier epoch is selected
    config = Config.of(mix="none", epochs=8, lr=0.05, model="linear", self_training=1, batch=256, ema=ema)

    def work(processes):
        first = []
        trainer = build_trainer(config, "cpu", processes=processes, progress=first.append)
        return first[-1].history[-1].get("selected"), trainer.model.state_dict()

    (selected, weights), (unknown, others) = in_two(work)
    assert selected < config.training.epochs
    assert unknown is None, "rank 0 alone selects"
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("holdout", [0.1, 0.0995], ids=["odd", "even"])
def test_discriminant_in_two_processes_is_that_of_one(in_two, tmp_path, holdout):
    config = Config.of(fit="neighbors", model="linear", mix="none", holdout=holdout)
    whole = run(config, tmp_path / "one", device="cpu")
    in_two(lambda processes: run(config, tmp_path / "two", device="cpu", processes=processes) and None)
    one, two = (files.read_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)
    metrics = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["accuracy"] == pytest.approx(whole["accuracy_last"], abs=0.005)


@pytest.mark.parametrize("holdout", [0.1, 0.0995], ids=["odd", "even"])
def test_discriminant_after_a_layer_in_two_processes(in_two, holdout):
    """The layer sees other batches than in one process; the discriminant must be the same in both processes."""
    config = Config.of(fit="discriminant", neighbors=9, long_tail=3.0, model="linear", mix="none", holdout=holdout)

    def work(processes):
        trainer = build_trainer(config, "cpu", processes=processes)
        trainer.run()
        return trainer.model.state_dict(), trainer.log_prior, trainer.history[-1].get("accuracy")

    (first, prior, accuracy), (second, other, _) = in_two(work)
    whole = run(config, device="cpu")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(prior, other)
    assert accuracy == pytest.approx(whole["accuracy_last"], abs=0.03)


def test_join_processes_without_torchrun():
    with join_processes("cpu") as processes:
        assert processes is SINGLE_PROCESS
    assert not torch_distributed.is_initialized()
    loss = torch.ones(())
    assert SINGLE_PROCESS.average_gradients(torch.nn.Linear(1, 1), loss) is loss
    assert SINGLE_PROCESS.broadcast(loss) is loss
    assert SINGLE_PROCESS.address == ()


@pytest.mark.parametrize(
    ("name", "gpus", "place", "wanted"),
    [
        ("auto", 0, 1, "auto"),
        ("cuda", 0, 1, "cuda"),  # `choose_device` refuses it
        ("cpu", 2, 1, "cpu"),
        ("auto", 2, 1, "cuda:1"),
        ("cuda", 2, 0, "cuda:0"),
        ("cuda:1", 2, 0, "cuda:1 would be shared by all processes"),
        ("cuda", 2, 2, "started 3 processes .* there are 2 GPUs"),
    ],
)
def test_local_device_is_one_gpu_per_process(monkeypatch, name, gpus, place, wanted):
    for key, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": 3, "LOCAL_RANK": place, "LOCAL_WORLD_SIZE": 3}.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if " " in wanted:
        with pytest.raises(UserError, match=wanted) as caught:
            local_device(name)
        assert caught.value.option == "device"
    else:
        assert local_device(name) == wanted


@pytest.mark.gpu
def test_average_gradients_is_captured_with_the_step(tmp_path):
    """NCCL with one process that is configured as one of two: its sums are its own values, so it trains as if alone."""
    config = Config.of(mix="none", model="mlp", batch=128, epochs=2)
    gpu = torch.device("cuda:0")
    distributed.connect(0, 1, gpu, f"file://{tmp_path / 'store'}")
    try:
        pair = build_trainer(config, Engine(gpu, "fp32"), processes=ProcessGroup(0, 2, gpu))
        for _ in range(8):
            pair.advance()
        assert pair.run_step.graph is not None
    finally:
        distributed.disconnect()
    alone = Trainer(config.with_(batch=64), build_task(config).shard(ProcessGroup(0, 2)), Engine(gpu, "fp32"))
    alone.processes = pair.processes  # for its random addresses
    alone.processes.average_gradients = lambda network, loss, weight: loss
    for _ in range(8):
        alone.advance()
    for mine, its in zip(pair.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-4)


# --- failures -------------------------------------------------------------------------------------


OPTIONS = ["--epochs", "8", "--clusters", "20", "--restarts", "1", "--batch", "128", "--model", "mlp", "--seed", "5"]


def torchrun(out, *options):
    """The launcher is a fork of this process; the processes that it starts are new interpreters."""
    command = ["--standalone", "--nproc-per-node", "2", "-m", "complementary", "train", "--device", "cpu"]
    command += ["--checkpoint-seconds", "0", "--out", str(out), *options]
    return start_forked(lambda: launcher.main(command), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def process_of(rank, parent):
    """The process id of a worker, found by the environment that torchrun sets."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


def epochs(out):
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


@pytest.mark.slow
def test_resume_after_one_process_died_is_bitwise_equal(tmp_path, in_child, in_two):
    """Process 1 kills itself in the middle of an epoch; process 0 must not hang."""
    config = Config.of(mix="micm", model="cnn", clusters=20, restarts=1, batch=128, epochs=4)
    in_two(lambda processes: run(config, tmp_path / "alone", device="cpu", processes=processes) and None)

    def child(rank):
        processes = distributed.connect(rank, 2, torch.device("cpu"), f"file://{tmp_path / 'x'}")
        average, steps = ProcessGroup.average_gradients, iter(range(17))
        if rank == 1:
            ProcessGroup.average_gradients = lambda *args: (
                average(*args) if next(steps) < 16 else os.kill(os.getpid(), signal.SIGKILL)
            )
        with pytest.raises(LostProcess):
            run(config, tmp_path / "killed", device="cpu", processes=processes, checkpoint_seconds=0)
        os._exit(7)

    first, second = (in_child(lambda rank=rank: child(rank)) for rank in range(2))
    assert os.waitpid(second, 0)[1] == signal.SIGKILL
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 7
    record = files.read_checkpoint(tmp_path / "killed" / "checkpoint.safetensors")[1]
    assert (record["epoch"], record["step"]) == (1, 6)
    in_two(lambda processes: run(config, tmp_path / "killed", device="cpu", processes=processes, resume=True) and None)
    assert run_files(tmp_path / "killed") == run_files(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers by /proc")
def test_torchrun_after_kill_reports_once_and_resumes_bitwise(tmp_path, in_two):
    """torchrun, kill -9 of the process that writes, and resume by torchrun."""
    out, options = tmp_path / "killed", {k[2:]: v for k, v in zip(OPTIONS[::2], OPTIONS[1::2], strict=True)}
    config = Config.of(**{k: int(v) if v.isdigit() else v for k, v in options.items()})
    in_two(lambda processes: run(config, tmp_path / "alone", device="cpu", processes=processes) and None)
    process = torchrun(out, *OPTIONS)
    while epochs(out) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    os.kill(process_of(0, process.pid), signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert stderr.count("cll train: ") == 1
    assert f"cll train: {distributed.LOST}\n" in stderr
    assert "gloo" not in stderr.lower()
    assert not (out / "result.json").exists()
    process = torchrun(out, "--resume")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert run_files(out) == run_files(tmp_path / "alone")


@pytest.mark.slow
def test_torchrun_reports_an_error_of_all_processes_once(tmp_path):
    process = torchrun(tmp_path / "x", "--batch", "5001")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert stderr.count("cll train: ") == 1
    assert "5001" in stderr


@pytest.fixture
def torchrun_environment(monkeypatch):
    """One of two processes under torchrun, with its store; joining always succeeds."""
    store = torch_distributed.TCPStore("127.0.0.1", 0, is_master=True)
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_RUN_ID": "x"}
    for name, value in (values | {"WORLD_SIZE": 2, "RANK": 0}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(distributed, "connect", ProcessGroup)
    return store


def test_join_processes_reports_the_first_error_only(torchrun_environment, in_child):
    def work(expected):
        with pytest.raises(expected), join_processes("cpu"):
            raise UserError("No.")

    for expected in (UserError, SystemExit):
        assert os.waitpid(in_child(lambda expected=expected: work(expected)), 0)[1] == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [(torch_distributed.DistBackendError("NCCL"), LostProcess), (ZeroDivisionError("x"), ZeroDivisionError)],
)
def test_join_processes_converts_errors_of_the_backend(torchrun_environment, in_child, error, expected):
    def work():
        with pytest.raises(expected), join_processes("cpu"):
            raise error

    assert os.waitpid(in_child(work), 0)[1] == 0


def test_join_processes_reports_a_termination_by_torchrun(torchrun_environment, in_child):
    def terminated():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    def work():
        with pytest.raises(LostProcess), join_processes("cpu"):
            terminated()

    assert os.waitpid(in_child(work), 0)[1] == 0
