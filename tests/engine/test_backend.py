"""Device, precision, compilation, capture and packing.

Real captures need a GPU; the bookkeeping is tested with a fake one that records and replays.
"""

import contextlib
import copy
import json
import os
import platform
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import torch
from torch import nn

from complementary import __version__
from complementary.config import Config
from complementary.engine import backend
from complementary.engine.backend import (
    WARM_UP,
    Captured,
    Engine,
    choose_device,
    device_name,
    lane,
    no_capture,
    together,
    versions,
)
from complementary.errors import UserError
from complementary.training.run import build_trainer, run

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

# --- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_choose_device_auto_prefers_a_gpu(monkeypatch, there, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert choose_device("auto") == torch.device(chosen)


def test_choose_device_cpu_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "", "cuda:99", "cpu:x", "Auto"])
def test_choose_device_refuses_an_unavailable_device(name):
    with pytest.raises(UserError, match="not available") as caught:
        choose_device(name)
    assert repr(name) in str(caught.value)
    assert caught.value.option == "device"


def test_device_name_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H200 number {device.index}")
    assert device_name(torch.device("cuda", 1)) == "NVIDIA H200 number 1"


def test_versions():
    assert versions() == {
        "complementary": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    assert json.loads(json.dumps(versions())) == versions()


def test_import_sets_the_spin_count_of_openmp():
    code = "import os, complementary; print(os.environ.get('GOMP_SPINCOUNT'))"
    for given, wanted in (({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")):
        clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        done = subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True)
        assert done.stdout.strip() == wanted


@pytest.mark.parametrize(("count", "wanted"), [(1, "cpu (1 thread)"), (2, "cpu (2 threads)")])
def test_device_name_of_a_cpu(monkeypatch, count, wanted):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert device_name(torch.device("cpu")) == wanted


# --- the engine -----------------------------------------------------------------------------------


def on_gpu(**options):
    return Engine(CUDA, "bf16", **options)


def double(x):
    return 2 * x


def test_engine_runs_eagerly_on_a_cpu():
    engine = Engine.choose("cpu")
    assert engine == Engine(CPU, "fp32") == Engine.of("cpu") == Engine.of(CPU) == Engine.of(engine)
    assert engine.captured(double) is double
    assert engine.compiled(double) is double


@pytest.fixture
def global_switches():
    """Restores what `Engine.choose` sets."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("bf16", True), ("auto", True)])
def test_engine_with_fp32_switches_tf32_off(monkeypatch, global_switches, precision, allowed):
    """cuDNN's default is on. The switches exist without a GPU, so a pretended one is enough."""
    monkeypatch.setattr(backend, "choose_device", lambda name: torch.device("cuda"))
    Engine.choose("cuda", precision)
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_engine_compile_and_capture_can_be_switched_off():
    assert on_gpu(compile=False).compiled(double) is double
    assert on_gpu(capture=False).captured(double) is double


def test_compiled_is_cached_per_function():
    assert on_gpu().compiled(double) is on_gpu(deterministic=True).compiled(double)


@pytest.mark.parametrize(("precision", "wanted"), [("auto", False), ("fp32", False), ("bf16", True)])
def test_autocast_precision_on_a_cpu(precision, wanted):
    x = torch.ones(2, 2)
    with Engine.choose("cpu", precision).autocast():
        assert (x @ x).dtype == (torch.bfloat16 if wanted else torch.float32)


def test_engine_refuses_an_unknown_precision():
    with pytest.raises(UserError, match=r"The precision 'fp16' is not known .*; choose one of: auto, bf16"):
        Engine.choose("cpu", "fp16")


class Uncompilable:
    """A result of torch.compile that fails."""

    def __init__(self, function, **options):
        self.calls = 0

    def __call__(self, *args):
        raise RuntimeError("no Triton here\nmany more lines")


def test_compiled_falls_back_with_one_warning(monkeypatch):
    monkeypatch.setattr(torch, "compile", Uncompilable)
    fused = backend.Compiled(double)
    with pytest.warns(UserWarning, match="could not be compiled and runs eagerly: no Triton here$"):
        assert fused(4) == 8
    assert fused(5) == 10  # a second warning would be an error


def test_compiled_raises_errors_of_the_function(monkeypatch):
    monkeypatch.setattr(torch, "compile", Uncompilable)

    def wrong(x):
        raise TypeError("a bug")

    fused = backend.Compiled(wrong)
    for _ in range(2):
        with pytest.raises(TypeError, match="a bug"):
            fused(1)


# --- a fake GPU: work is done at once, or recorded during capture ----------------------------------


class Gpu:
    """Runs kernels, or records them in a graph; can refuse to record."""

    def __init__(self, refuse=None):
        self.recording, self.refuse, self.log, self.lent = None, refuse, [], []

    def launch(self, work):
        if self.recording is None:
            work()
        else:
            self.recording.append(work)

    def namespace(self):
        def stream():
            return types.SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)

        return types.SimpleNamespace(
            Stream=lambda device, priority: self.lent.append(priority) or stream(),
            current_stream=lambda device: stream(),
            stream=lambda s: contextlib.nullcontext(),
            synchronize=lambda device: None,
            CUDAGraph=self.new_graph,
            graph=self.capture,
        )

    def new_graph(self):
        graph = types.SimpleNamespace(works=[], generators=[])
        graph.register_generator_state = graph.generators.append
        graph.replay = lambda: [work() for work in graph.works]
        graph.reset = graph.works.clear
        self.log.append(graph)
        return graph

    @contextlib.contextmanager
    def capture(self, graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.recording, graph.stream = graph.works, stream
        try:
            yield
            if self.refuse is not None:
                raise self.refuse
        finally:
            self.recording = None


class Counter:
    """A step with a visible effect: it adds the batch to a total, and its loss is that total."""

    def __init__(self, gpu):
        self.gpu, self.calls = gpu, 0
        self.total = torch.zeros(())

    def step(self, index, random):
        self.calls += 1
        loss = torch.zeros(())

        def work():
            self.total += index.sum()
            loss.copy_(self.total)

        self.gpu.launch(work)
        return loss


@pytest.fixture
def fake(monkeypatch):
    def make(refuse=None):
        backend._capture_stream.cache_clear()
        gpu = Gpu(refuse)
        stand_in = types.SimpleNamespace(cuda=gpu.namespace(), Tensor=torch.Tensor, Generator=torch.Generator)
        monkeypatch.setattr(backend, "torch", stand_in)
        counter = Counter(gpu)
        return gpu, counter, on_gpu().captured(counter.step)

    yield make
    backend._capture_stream.cache_clear()


BATCHES = [torch.tensor([1.0, k]) for k in range(9)]
TOTALS = torch.stack(BATCHES).sum(1).cumsum(0).tolist()


def test_captured_warms_up_captures_and_replays(fake):
    gpu, counter, run = fake()
    random = torch.Generator()
    losses = [run(batch, random) for batch in BATCHES]
    assert [float(loss) for loss in losses] == TOTALS, "each step must be taken once, on its own batch"
    assert counter.calls == WARM_UP + 1
    assert len(gpu.log) == 1
    assert gpu.log[0].generators == [random]
    assert gpu.log[0].works


def test_captured_uses_one_stream_per_lane(fake):
    gpu, _, _ = fake()
    for number in [0, *[1, 2, 3] * 15]:  # torch reuses its 32 streams of a priority
        with lane(number, torch.device("cpu")):
            run = on_gpu().captured(Counter(gpu).step)
            for batch in BATCHES:
                run(batch, None)
    assert gpu.lent == [-1] * 4
    assert len({id(graph.stream) for graph in gpu.log}) == 4


def test_captured_close_captures_again(fake):
    gpu, counter, run = fake()
    losses = [run(batch, None) for batch in BATCHES[:7]]
    run.close()
    assert gpu.log[0].works == []
    losses += [run(batch, None) for batch in BATCHES[7:]]
    assert [float(loss) for loss in losses] == TOTALS
    assert counter.calls == WARM_UP + 3  # the two after `close` are eager again


def test_captured_copies_inputs_and_results(fake):
    _, _, run = fake()
    index, losses = torch.zeros(2), []
    for batch in BATCHES:
        index.copy_(batch)
        losses.append(run(index, None))
    assert [float(loss) for loss in losses] == TOTALS
    assert torch.equal(index, BATCHES[-1])


@pytest.mark.parametrize(
    "refuse", [RuntimeError("operation not permitted\nmore"), RuntimeError()], ids=["message", "no message"]
)
def test_captured_falls_back_with_one_warning(fake, refuse):
    gpu, _, run = fake(refuse)
    losses = [run(batch, None) for batch in BATCHES[:WARM_UP]]
    with pytest.warns(UserWarning, match=r"could not be captured in a CUDA graph and runs eagerly") as caught:
        losses.append(run(BATCHES[WARM_UP], None))
    assert len(caught) == 1
    assert "more" not in str(caught[0].message)
    losses += [run(batch, None) for batch in BATCHES[WARM_UP + 1 :]]  # a second warning would be an error
    assert [float(loss) for loss in losses] == TOTALS
    assert len(gpu.log) == 1, "capture is tried once"
    assert run.graph is None


def test_captured_raises_errors_of_the_function(fake):
    _, _, run = fake(TypeError("a bug"))
    for batch in BATCHES[:WARM_UP]:
        run(batch, None)
    with pytest.raises(TypeError, match="a bug"):
        run(BATCHES[WARM_UP], None)


# --- on a GPU -------------------------------------------------------------------------------------


class Noisy:
    """A step with weights, an optimizer and random numbers."""

    def __init__(self, device, wait=False):
        self.x = torch.arange(64.0, device=device).reshape(16, 4) / 64
        self.model = nn.Linear(4, 1, device=device)
        nn.init.ones_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9, fused=True)
        self.wait = wait

    def step(self, index, random):
        noise = torch.rand(len(index), 1, device=index.device, generator=random)
        loss = (self.model(self.x[index]) - noise).square().mean()
        if self.wait:
            loss.item()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def trained(run, noisy, steps=10):
    random = torch.Generator(device=noisy.x.device)
    losses = []
    for i in range(steps):
        random.manual_seed(1000 + i)
        losses.append(
            run(torch.randperm(16, generator=torch.Generator().manual_seed(i))[:8].to(noisy.x.device), random)
        )
    return torch.stack(losses).cpu(), copy.deepcopy(noisy.model.state_dict())


@pytest.mark.gpu
def test_captured_agrees_with_eager():
    eager, captured = Noisy(CUDA), Noisy(CUDA)
    run = on_gpu().captured(captured.step)
    assert isinstance(run, Captured)
    wanted, found = trained(eager.step, eager), trained(run, captured)
    assert run.graph is not None
    torch.testing.assert_close(found[0], wanted[0])
    for name, value in wanted[1].items():
        torch.testing.assert_close(found[1][name], value)


@pytest.mark.gpu
def test_captured_step_that_synchronizes_falls_back():
    eager, waiting = Noisy(CUDA), Noisy(CUDA, wait=True)
    wanted = trained(eager.step, eager)
    with pytest.warns(UserWarning, match="could not be captured"):
        found = trained(on_gpu().captured(waiting.step), waiting)
    torch.testing.assert_close(found[0], wanted[0])


def weights_after(engine, **options):
    """Train a small classifier for two epochs -> all its weights, and its history."""
    config = Config.of(data="digits", clusters=10, restarts=1, epochs=2, batch=128, **{"mix": "icm", **options})
    trainer = build_trainer(config, engine)
    trainer.run()
    return torch.cat([p.detach().flatten().cpu() for p in trainer.model.parameters()]), trainer.history


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["mlp", "resnet18"])
@pytest.mark.parametrize("compile", [True, False])
def test_deterministic_runs_are_bitwise_equal(model, compile):
    try:
        engine = Engine.choose("cuda", compile=compile, deterministic=True)
        first, second = (weights_after(engine, model=model) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


@pytest.mark.gpu
@pytest.mark.parametrize("mix", ["none", "mixup", "icm", "micm"])
def test_captured_and_compiled_training_agrees_with_eager(mix):
    eager = Engine(CUDA, "fp32", compile=False, capture=False)
    fast = Engine(CUDA, "fp32")
    (wanted, _), (found, _) = (weights_after(e, model="mlp", mix=mix) for e in (eager, fast))
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-3)


# --- several trainings on one device ---------------------------------------------------------------


def config(seed, **options):
    usual = {"mix": "icm", "clusters": 10, "restarts": 1, "epochs": 2, "batch": 128}
    return Config.of(data="digits", seed=seed, **usual | options)


def train(seed, engine, **options):
    trainer = build_trainer(config(seed, **options), engine)
    trainer.run()
    return {k: v.cpu() for k, v in trainer.model.state_dict().items()}, trainer.history


def same(one, other):
    return one[1] == other[1] and all(torch.equal(one[0][k], other[0][k]) for k in one[0])


def test_together_runs_concurrently_and_returns_in_order():
    meet = threading.Barrier(3, timeout=20)  # only concurrent tasks meet
    assert together([lambda i=i: (meet.wait() >= 0) and i for i in range(3)], CPU) == [0, 1, 2]
    assert together([], CPU) == []


@pytest.mark.slow
def test_together_is_bitwise_equal_to_separate_runs():
    engine = Engine.of("cpu")
    tasks = [lambda s=s, m=m: train(s, engine, model=m) for s in (0, 1) for m in ("mlp", "cnn")]
    for packed, alone in zip(together(tasks, CPU), [task() for task in tasks], strict=True):
        assert same(packed, alone)


def test_together_isolates_failures(tmp_path):
    good = lambda: run(config(0), tmp_path / "good", device="cpu")["accuracy_last"]  # noqa: E731
    bad = lambda: run(config(0, lr=1e30), tmp_path / "bad", device="cpu")  # noqa: E731
    first, failed, last = together([good, bad, lambda: 7], CPU)
    assert first == run(config(0), device="cpu")["accuracy_last"]
    assert isinstance(failed, UserError)
    assert "NaN" in str(failed)
    assert last == 7


@pytest.mark.gpu
def test_together_never_uses_a_stream_that_is_being_captured():
    """Torch has 32 streams: many captures in one lane, while other lanes copy and synchronize."""
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
def test_tasks_that_run_together_can_solve_equations_at_once():
    """Torch loads its solvers at first use, so this needs a new process; the barrier makes both threads first."""
    script = """
import threading, torch
from complementary.engine.backend import together
device, meet = torch.device("cuda", 0), threading.Barrier(8)
def solve():
    matrix = torch.eye(64, dtype=torch.float64, device=device) * 2
    meet.wait()
    return float(torch.linalg.solve(matrix, matrix).trace())
assert together([solve] * 8, device) == [64.0] * 8
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_capture_waits_for_a_capture(fake):
    fake()
    calls, capturing, entered = [], threading.Event(), threading.Event()

    def step(x):
        calls.append(x)
        if len(calls) == WARM_UP + 1:
            capturing.set()
            assert not entered.wait(0.2), "another thread entered the block during the capture"
        return x

    def convolve():
        capturing.wait(10)
        with no_capture():
            entered.set()

    thread, run = threading.Thread(target=convolve), on_gpu().captured(step)
    thread.start()
    for batch in BATCHES:
        run(batch)
    thread.join(10)
    assert (entered.is_set(), len(calls)) == (True, WARM_UP + 1)


@pytest.mark.gpu
def test_convolutions_of_new_shapes_do_not_disturb_a_capture():
    """cuDNN synchronizes the device to compare algorithms, which failed while another lane captured."""
    engine, weight = Engine.choose("cuda"), torch.randn(256, 256, device="cuda")

    def capturing():
        for i in range(60):
            step = engine.captured(lambda x, i=i: sum((x @ weight).tanh() for _ in range(200)) + i)
            for _ in range(5):
                step(weight)
            assert step.graph is not None
            step.close()
        return "captured"

    def convolving():
        filters = torch.randn(16, 8, 3, 3, device="cuda")
        for side in range(8, 128):
            with no_capture():
                found = torch.nn.functional.conv2d(torch.randn(4, 8, side, side, device="cuda"), filters)
            assert bool(torch.isfinite(found).all())
        return "convolved"

    assert together([capturing, convolving], engine.device) == ["captured", "convolved"]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2, 6])
def test_together_on_a_gpu_is_bitwise_equal_to_separate_runs(count):
    """Evaluation is captured in the fourth epoch; one run ends early and frees its graphs."""
    try:
        engine = Engine.choose("cuda", deterministic=True)
        tasks = [lambda s=s: train(s, engine, model="resnet18", epochs=6 if s else 1) for s in range(count)]
        packed = together(tasks, engine.device)
        assert not [r for r in packed if isinstance(r, Exception)]
        for found, task in zip(packed, tasks, strict=True):
            assert same(found, task())
    finally:
        torch.use_deterministic_algorithms(False)
