"""The engine. Real captures need a GPU; the bookkeeping is tested on a stand-in that records and replays."""

import contextlib
import copy
import types

import pytest
import torch
from torch import nn

from complementary.config import Config
from complementary.engine.backend import WARM_UP, Captured, Engine, lane
from complementary.engine.backend import backend as module
from complementary.engine.run_folder import loop
from complementary.errors import UserError
from complementary.training.run import start

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def on_gpu(**options):
    return Engine(CUDA, "bf16", **options)


def double(x):
    return 2 * x


def test_on_a_cpu_a_step_is_neither_compiled_nor_captured():
    engine = Engine.choose("cpu")
    assert engine == Engine(CPU, "fp32") == Engine.of("cpu") == Engine.of(CPU) == Engine.of(engine)
    assert engine.captured(double) is double
    assert engine.compiled(double) is double


def test_compiling_and_capturing_can_be_switched_off_on_a_gpu():
    assert on_gpu(compile=False).compiled(double) is double
    assert on_gpu(capture=False).captured(double) is double


def test_a_function_is_compiled_once_whichever_engine_asks():
    assert on_gpu().compiled(double) is on_gpu(deterministic=True).compiled(double)


@pytest.mark.parametrize(("precision", "wanted"), [("auto", False), ("fp32", False), ("bf16", True)])
def test_precision_on_a_cpu_is_full_unless_asked(precision, wanted):
    x = torch.ones(2, 2)
    with Engine.choose("cpu", precision).autocast():
        assert (x @ x).dtype == (torch.bfloat16 if wanted else torch.float32)


def test_an_unknown_precision_is_a_sentence():
    with pytest.raises(UserError, match=r"The precision 'fp16' is not known; choose one of: auto, bf16"):
        Engine.choose("cpu", "fp16")


class Uncompilable:
    """Stands for torch.compile's product where the compiler fails."""

    def __init__(self, function, **options):
        self.calls = 0

    def __call__(self, *args):
        raise RuntimeError("no Triton here\nmany more lines")


def test_what_cannot_be_compiled_runs_as_it_is_with_one_warning(monkeypatch):
    monkeypatch.setattr(torch, "compile", Uncompilable)
    fused = module.Fused(double)
    with pytest.warns(UserWarning, match="could not be compiled and runs eagerly: no Triton here$"):
        assert fused(4) == 8
    assert fused(5) == 10  # a second warning would be an error


def test_a_mistake_in_the_function_is_not_taken_for_one_of_the_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", Uncompilable)

    def wrong(x):
        raise TypeError("a bug")

    fused = module.Fused(wrong)
    for _ in range(2):
        with pytest.raises(TypeError, match="a bug"):
            fused(1)


# --- a stand-in for the GPU: work is done at once, or recorded while a graph is being captured -------


class Gpu:
    """Runs what is launched, or records it into a graph; can refuse to record."""

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
    """A step whose effect is seen: it adds the batch to a total, and its loss is that total."""

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
        module._capture_stream.cache_clear()
        gpu = Gpu(refuse)
        stand_in = types.SimpleNamespace(cuda=gpu.namespace(), Tensor=torch.Tensor, Generator=torch.Generator)
        monkeypatch.setattr(module, "torch", stand_in)
        counter = Counter(gpu)
        return gpu, counter, on_gpu().captured(counter.step)

    yield make
    module._capture_stream.cache_clear()


BATCHES = [torch.tensor([1.0, k]) for k in range(9)]
TOTALS = torch.stack(BATCHES).sum(1).cumsum(0).tolist()


def test_eager_steps_come_first_then_one_is_captured_and_later_ones_replayed(fake):
    gpu, counter, run = fake()
    random = torch.Generator()
    losses = [run(batch, random) for batch in BATCHES]
    assert [float(loss) for loss in losses] == TOTALS, "each step must have happened once, on its own batch"
    assert counter.calls == WARM_UP + 1
    assert len(gpu.log) == 1
    assert gpu.log[0].generators == [random]
    assert gpu.log[0].works


def test_each_lane_records_on_a_stream_of_its_own_and_on_no_other(fake):
    gpu, _, _ = fake()
    for number in [0, *[1, 2, 3] * 15]:  # torch has 32 streams of a priority, and lends them again and again
        with lane(number, torch.device("cpu")):
            run = on_gpu().captured(Counter(gpu).step)
            for batch in BATCHES:
                run(batch, None)
    assert gpu.lent == [-1] * 4
    assert len({id(graph.stream) for graph in gpu.log}) == 4


def test_a_graph_that_was_let_go_is_recorded_anew(fake):
    gpu, counter, run = fake()
    losses = [run(batch, None) for batch in BATCHES[:7]]
    run.close()
    assert gpu.log[0].works == []
    losses += [run(batch, None) for batch in BATCHES[7:]]
    assert [float(loss) for loss in losses] == TOTALS
    assert counter.calls == WARM_UP + 3  # the two after `close` are eager again


def test_the_caller_may_reuse_its_index_and_keep_its_losses(fake):
    _, _, run = fake()
    index, losses = torch.zeros(2), []
    for batch in BATCHES:
        index.copy_(batch)
        losses.append(run(index, None))
    assert [float(loss) for loss in losses] == TOTALS
    assert torch.equal(index, BATCHES[-1])


@pytest.mark.parametrize(
    "refuse", [RuntimeError("operation not permitted\nmore"), RuntimeError()], ids=["said", "mute"]
)
def test_a_step_that_cannot_be_captured_runs_eagerly_with_one_warning(fake, refuse):
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


def test_a_mistake_in_the_step_is_not_hidden(fake):
    _, _, run = fake(TypeError("a bug"))
    for batch in BATCHES[:WARM_UP]:
        run(batch, None)
    with pytest.raises(TypeError, match="a bug"):
        run(BATCHES[WARM_UP], None)


# --- the real thing -----------------------------------------------------------------------------------


class Noisy:
    """A step with weights, an optimiser and random numbers."""

    def __init__(self, device, wait=False):
        self.x = torch.arange(64.0, device=device).reshape(16, 4) / 64
        self.model = nn.Linear(4, 1, device=device)
        nn.init.ones_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self.optimiser = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9, fused=True)
        self.wait = wait

    def step(self, index, random):
        noise = torch.rand(len(index), 1, device=index.device, generator=random)
        loss = (self.model(self.x[index]) - noise).square().mean()
        if self.wait:
            loss.item()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
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
def test_captured_and_eager_steps_agree():
    eager, captured = Noisy(CUDA), Noisy(CUDA)
    run = on_gpu().captured(captured.step)
    assert isinstance(run, Captured)
    wanted, found = trained(eager.step, eager), trained(run, captured)
    assert run.graph is not None
    torch.testing.assert_close(found[0], wanted[0])
    for name, value in wanted[1].items():
        torch.testing.assert_close(found[1][name], value)


@pytest.mark.gpu
def test_a_step_that_waits_for_the_device_falls_back_and_still_agrees():
    eager, waiting = Noisy(CUDA), Noisy(CUDA, wait=True)
    wanted = trained(eager.step, eager)
    with pytest.warns(UserWarning, match="could not be captured"):
        found = trained(on_gpu().captured(waiting.step), waiting)
    torch.testing.assert_close(found[0], wanted[0])


def weights_after(engine, **options):
    """Train a small classifier for two epochs -> all its weights, and its history."""
    config = Config.of(data="digits", clusters=10, restarts=1, epochs=2, batch=128, **{"mix": "icm", **options})
    trainer = start(config, engine)
    loop(trainer)
    return torch.cat([p.detach().flatten().cpu() for p in trainer.model.parameters()]), trainer.history


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["mlp", "resnet18"])
@pytest.mark.parametrize("compile", [True, False])
def test_deterministic_runs_have_the_same_bits(model, compile):
    try:
        engine = Engine.choose("cuda", compile=compile, deterministic=True)
        first, second = (weights_after(engine, model=model) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


@pytest.mark.gpu
@pytest.mark.parametrize("mix", ["none", "mixup", "icm", "micm"])
def test_a_captured_compiled_step_computes_what_the_eager_one_does(mix):
    eager = Engine(CUDA, "fp32", compile=False, capture=False)
    fast = Engine(CUDA, "fp32")
    (wanted, _), (found, _) = (weights_after(e, model="mlp", mix=mix) for e in (eager, fast))
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-3)
