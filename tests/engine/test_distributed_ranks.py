"""Two processes that train one network: the same mathematics as one process, and a clear end if one of them dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

from complementary import files, transitions
from complementary.config import Config, PretrainConfig
from complementary.data import load
from complementary.encoders.pretrain import Pretrainer, pretrain
from complementary.engine.backend import Engine
from complementary.engine.backend import distributed as ranks
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup, joined, local_device
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.rng import generator
from complementary.training.run import build_trainer, run
from complementary.training.self_training import SelfTrainer
from complementary.training.task import build_task
from complementary.training.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks; they spare the import of torch
KEPT = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")


@pytest.fixture
def in_two(tmp_path, in_child):
    """Call work(processes) in each of two processes that are connected -> what each returned; all must end well."""
    calls = 0

    def call(work):
        nonlocal calls
        calls += 1
        store = tmp_path / f"store{calls}"

        def child(rank):
            processes = ranks.connect(rank, 2, torch.device("cpu"), f"file://{store}")
            torch.save(work(processes), f"{store}-{rank}.pt")
            os._exit(0)

        children = [in_child(lambda rank=rank: child(rank)) for rank in range(2)]
        assert [os.waitpid(c, 0)[1] for c in children] == [0, 0]
        return [torch.load(f"{store}-{rank}.pt") for rank in range(2)]

    return call


# --- who has what ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_example_belongs_to_one_process_and_all_take_as_many_steps(size):
    config = Config.of(mix="icm", clusters=5, restarts=1, batch=240)
    task, jobs = build_task(config), []
    for rank in range(size):
        jobs.append(Trainer(config, task, "cpu", ProcessGroup(rank, size)))
    assert torch.cat([job.task.train.index for job in jobs]).sort().values.tolist() == task.train.index.tolist()
    alone = Trainer(config, task, "cpu")
    for rank, job in enumerate(jobs):
        p = job.task
        assert torch.equal(p.inputs, task.inputs[rank::size])
        assert torch.equal(p.excluded, task.excluded[rank::size])
        assert torch.equal(p.group, task.cluster[rank::size])
        assert (len(p.held) > 0, p.test_inputs is not None) == (rank == 0, rank == 0)
        assert (job.share, job.steps_per_epoch) == (240 // size, alone.steps_per_epoch)
        job._shuffle()
        assert job.order.sort().values.tolist() == list(range(job.local_examples))
    assert not torch.equal(jobs[0].order[:9], jobs[1].order[:9])


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(UserError, match="A batch of 256 cannot be shared by 3 processes; pass --batch 255"):
        build_trainer(Config.of(mix="none"), "cpu", processes=ProcessGroup(1, 3))


# --- the same mathematics -------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_gradient_is_that_of_one_process_with_the_whole_batch(in_two, model):
    config = Config.of(mix="none", model=model, batch=64, epochs=1)

    def work(processes):
        trainer = build_trainer(config, "cpu", processes=processes)
        index = generator_order(processes.rank)
        loss = trainer.step(index, torch.Generator())
        return loss, [p.grad for p in trainer.model.parameters()]

    def generator_order(rank):
        return torch.randperm(640, generator=generator(rank, "some"))[:32]

    (loss, gradients), (other_loss, others) = in_two(work)
    trainer = build_trainer(config, "cpu")
    both = torch.cat([2 * generator_order(0), 2 * generator_order(1) + 1])  # process r has examples r, r + 2, ...
    wanted = trainer.step(both, torch.Generator())
    assert float(loss) == float(other_loss) == pytest.approx(float(wanted), rel=1e-6)
    for found, other, parameter in zip(gradients, others, trainer.model.parameters(), strict=True):
        assert torch.equal(found, other)
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-7)


def test_the_loss_is_the_mean_over_the_labelled_examples_of_both(in_two):
    """Two have a partner in one process, five in the other: 2 / 7 and 5 / 7 of the weight."""
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


def test_black_images_count_as_in_one_process(in_two):
    config = Config.of(mix="icm", model="linear", clusters=20, restarts=1, batch=12, alone="black")
    task = build_task(config)
    task.cluster[:12] = torch.tensor([0, 1] * 2 + [2, 3, 4, 5, 6, 7, 8, 9])
    task.cluster[2] = 11  # process 0: nobody has a partner; process 1: two have

    def work(processes):
        return Trainer(config, task, "cpu", processes).step(torch.arange(6), torch.Generator().manual_seed(0))

    def one(rank):
        trainer = Trainer(config, task, "cpu", ProcessGroup(rank, 2))
        trainer.processes = SINGLE_PROCESS
        return float(trainer.step(torch.arange(6), torch.Generator().manual_seed(0)))

    assert one(0) == 0
    assert [float(loss) for loss in in_two(work)] == pytest.approx([(one(0) + one(1)) / 2] * 2, rel=1e-5)


def test_both_hold_the_same_network_after_every_step_with_averaged_statistics(in_two):
    config = Config.of(mix="icm", model="cnn", clusters=20, restarts=1, batch=256, epochs=1)

    def work(processes):
        trainer = build_trainer(config, "cpu", processes=processes)
        seen = []
        trainer.processes.average, real = (
            lambda network, *rest: seen.append(mean(network)) or real(network, *rest),
            (trainer.processes.average),
        )
        states = []
        for _ in range(3):
            trainer.advance()
            states.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
        return states, seen, trainer.random.initial_seed()

    def mean(network):
        return network.norms[0].running_mean.clone()

    (first, seen, seed), (second, others, other_seed) = in_two(work)
    assert seed != other_seed, "each draws for itself"
    for a, b, mine, its in zip(first, second, seen, others, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)
        assert not torch.equal(mine, its), "each process sees other examples"
        torch.testing.assert_close(a["norms.0.running_mean"], (mine + its) / 2)


def test_two_processes_learn_as_well_as_one_and_only_the_first_writes(in_two, tmp_path):
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


def test_streaming_changes_nothing_in_two_processes_either(in_two):
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


def test_an_estimated_matrix_is_the_same_in_both(in_two):
    config = Config.of(labels="biased:10", loss="fwd", transition="estimate", mix="none", estimate_epochs=2)
    real = transitions.estimate_transition

    def work(processes):
        seen = []
        transitions.estimate_transition = lambda p, excluded: seen.append((len(p), len(excluded))) or real(p, excluded)
        return build_trainer(config, "cpu", processes=processes).loss_transition, seen

    (first, seen), (second, _) = in_two(work)
    assert seen == [(1293, 1293)], "the examples of both processes"
    assert torch.equal(first, second)
    assert len(first.unique()) > 10


@pytest.mark.parametrize("encoder", ["simsiam", "mocov3"])
def test_pretraining_in_two_processes(in_two, tmp_path, encoder):
    config = PretrainConfig(encoder=encoder, epochs=2, batch=256, probe_every=2)

    def work(processes):
        job = Pretrainer(config, load("digits"), "cpu", processes)
        for _ in range(2):
            job.advance()
        folder = tmp_path / f"{encoder}{processes.rank}"
        return job.objective.state_dict(), pretrain(config, folder, device="cpu", processes=processes).get("oracle_knn")

    (first, knn), (second, none) = in_two(work)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert knn > 0.5
    assert none is None


# --- checks ---------------------------------------------------------------------------------------


def test_processes_with_different_networks_are_found(in_two):
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
    assert second.startswith("Process 1 has weights other than process 0")


def test_two_commands_that_differ_do_not_train_together(in_two, tmp_path):
    def work(processes):
        try:
            run(Config.of(mix="none", seed=processes.rank), tmp_path / "x", device="cpu", processes=processes)
        except UserError as error:
            return str(error)
        return ""

    first, second = in_two(work)
    assert first == ranks.LOST
    assert second.startswith("Process 1 has a configuration other than process 0; give all machines the same command")


def test_a_checkpoint_is_for_as_many_processes():
    config = Config.of(mix="none", model="linear")
    pair, alone = build_trainer(config, "cpu", processes=ProcessGroup(0, 2)), build_trainer(config, "cpu")
    with pytest.raises(UserError, match=r"started with 2 processes, but now there is 1; resume it with as many"):
        alone.restore(*pair.state())
    with pytest.raises(UserError, match=r"started with 1 process, but now there are 2; resume"):
        pair.restore(*alone.state())
    tensors, record = alone.state()
    del record["processes"]  # as it was before there could be several
    alone.restore(tensors, record)


@pytest.mark.parametrize("count", [7, 8])
def test_rows_of_both_are_gathered_each_at_its_place(in_two, count):
    rows = torch.arange(3.0 * count).view(count, 3)
    found = in_two(lambda processes: processes.all_gather(rows[processes.part()], count))
    assert all(torch.equal(one, rows) for one in found)
    assert SINGLE_PROCESS.all_gather(rows, count) is rows


@pytest.mark.parametrize("holdout", [0.1, 0.0995], ids=["odd", "even"])
def test_refining_in_two_processes_resumes_to_the_same_bytes(in_two, tmp_path, holdout):
    """With an odd number of examples, and an even one: each process has its own part of the beliefs."""
    config = Config.of(
        inputs="features", encoder="random", mix="none", epochs=1, self_training=3, batch=256, holdout=holdout
    )

    def cut(job):
        if isinstance(job, SelfTrainer) and (job.epoch, job.step_in_epoch) == (1, 3):
            raise InterruptedError

    def interrupted(processes):
        with pytest.raises((InterruptedError, UserError)):
            run(config, tmp_path / "cut", device="cpu", processes=processes, checkpoint_seconds=0, progress=cut)

    in_two(lambda processes: run(config, tmp_path / "whole", device="cpu", processes=processes) and None)
    in_two(interrupted)
    assert files.read_checkpoint(tmp_path / "cut" / "checkpoint.safetensors")[1]["epoch"] == 1
    in_two(lambda processes: run(config, tmp_path / "cut", device="cpu", processes=processes, resume=True) and None)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_without_torchrun_there_is_nothing_of_it():
    with joined("cll train", "cpu") as processes:
        assert processes is SINGLE_PROCESS
    assert not distributed.is_initialized()
    loss = torch.ones(())
    assert SINGLE_PROCESS.average(torch.nn.Linear(1, 1), loss) is loss
    assert SINGLE_PROCESS.broadcast(loss) is loss
    assert SINGLE_PROCESS.address == ()


@pytest.mark.parametrize(
    ("name", "cards", "place", "wanted"),
    [
        ("auto", 0, 1, "auto"),
        ("cuda", 0, 1, "cuda"),  # of which `choose_device` says that it cannot be used
        ("cpu", 2, 1, "cpu"),
        ("auto", 2, 1, "cuda:1"),
        ("cuda", 2, 0, "cuda:0"),
        ("cuda:1", 2, 0, "--device cuda:1 would be one device for all processes"),
        ("cuda", 2, 2, "started 3 processes here, but there are 2 GPUs; pass --nproc-per-node 2"),
    ],
)
def test_every_process_gets_a_card_of_its_own(monkeypatch, name, cards, place, wanted):
    for key, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": 3, "LOCAL_RANK": place, "LOCAL_WORLD_SIZE": 3}.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    if " " in wanted:
        with pytest.raises(UserError, match=wanted):
            local_device(name)
    else:
        assert local_device(name) == wanted


@pytest.mark.gpu
def test_on_a_card_the_sum_over_processes_is_part_of_the_captured_step(tmp_path):
    """NCCL with one process that believes to be one of two: its sums are its own values, so it learns as one alone."""
    config = Config.of(mix="none", model="mlp", batch=128, epochs=2)
    card = torch.device("cuda:0")
    ranks.connect(0, 1, card, f"file://{tmp_path / 'store'}")
    try:
        pair = build_trainer(config, Engine(card, "fp32"), processes=ProcessGroup(0, 2, card))
        for _ in range(8):
            pair.advance()
        assert pair.run_step.graph is not None
    finally:
        ranks.disconnect()
    alone = Trainer(config.with_(batch=64), build_task(config).shard(ProcessGroup(0, 2)), Engine(card, "fp32"))
    alone.processes = pair.processes  # for its addresses
    alone.processes.average = lambda network, loss, weight: loss
    for _ in range(8):
        alone.advance()
    for mine, its in zip(pair.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-4)


# --- the death of one -----------------------------------------------------------------------------


OPTIONS = ["--epochs", "8", "--clusters", "20", "--restarts", "1", "--batch", "128", "--model", "mlp", "--seed", "5"]


def torchrun(out, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [
            *command,
            "-m",
            "complementary",
            "train",
            "--device",
            "cpu",
            "--checkpoint-seconds",
            "0",
            "--out",
            out,
            *options,
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def process_of(rank, parent):
    """The worker of that rank, by what torchrun put into its environment."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


def epochs(out):
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def test_the_other_process_is_told_and_both_resume_to_the_same_bytes(tmp_path, in_child, in_two):
    """Process 1 kills itself in the middle of an epoch; process 0 must not hang, and ends with the sentence."""
    config = Config.of(mix="micm", model="cnn", clusters=20, restarts=1, batch=128, epochs=4)
    in_two(lambda processes: run(config, tmp_path / "alone", device="cpu", processes=processes) and None)

    def child(rank):
        processes, average = (
            ranks.connect(rank, 2, torch.device("cpu"), f"file://{tmp_path / 'x'}"),
            ProcessGroup.average,
        )
        steps = iter(range(17))
        if rank == 1:
            ProcessGroup.average = lambda *args: (
                average(*args) if next(steps) < 16 else os.kill(os.getpid(), signal.SIGKILL)
            )
        with pytest.raises(UserError, match="Another process of this training died or was stopped"):
            run(config, tmp_path / "killed", device="cpu", processes=processes, checkpoint_seconds=0)
        os._exit(7)

    first, second = (in_child(lambda rank=rank: child(rank)) for rank in range(2))
    assert os.waitpid(second, 0)[1] == signal.SIGKILL
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 7
    record = files.read_checkpoint(tmp_path / "killed" / "checkpoint.safetensors")[1]
    assert (record["epoch"], record["step"]) == (1, 6)
    in_two(lambda processes: run(config, tmp_path / "killed", device="cpu", processes=processes, resume=True) and None)
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


def contents(folder):
    return {name: (folder / name).read_bytes() for name in KEPT}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers by /proc")
def test_a_process_that_is_killed_ends_the_run_with_one_sentence_and_it_resumes_to_the_same_bytes(tmp_path, in_two):
    """The real thing: torchrun, kill -9 of the process that writes, and --resume by torchrun."""
    out, options = tmp_path / "killed", {k[2:]: v for k, v in zip(OPTIONS[::2], OPTIONS[1::2], strict=True)}
    config = Config.of(**{k: int(v) if v.isdigit() else v for k, v in options.items()})
    in_two(
        lambda processes: run(config, tmp_path / "alone", device="cpu", processes=processes) and None
    )  # spares a start
    process = torchrun(out, *OPTIONS)
    while epochs(out) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    os.kill(process_of(0, process.pid), signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert said.count("cll train: ") == 1
    assert f"cll train: {ranks.LOST}\n" in said
    assert "gloo" not in said.lower()
    assert not (out / "result.json").exists()
    process = torchrun(out, "--resume")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert contents(out) == contents(tmp_path / "alone")
