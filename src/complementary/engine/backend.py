"""Which device, and what computed a result.

How a step is computed: eagerly on a CPU, as one replayed CUDA graph on a GPU.

A graph replays hundreds of small kernels with one launch. The first steps run eagerly (they are real
steps: nothing is thrown away), the next one is captured, all later ones are replays. What is captured must
have fixed shapes, must not wait for the device, and must draw all its randomness from generators it is given.
Captured steps of several jobs may run side by side, each in its own thread and stream (`pack`).

Several jobs on one card at once: each in its own thread, stream and graphs.

One small network leaves most of a big card idle between its kernels; a second and third job fill the gaps
(figures: docs/speed.md). Threads suffice, because a replayed step costs Python almost nothing, and a job that
waits for its figures at the end of an epoch lets the others go on.
"""

import contextlib
import ctypes
import functools
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

import complementary
from complementary.errors import UserError, one_of


def choose_device(name: str) -> torch.device:
    """``auto`` takes a GPU if there is one; anything else is a torch device name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"The device {name!r} cannot be used on this machine; use auto or cpu.") from None
    return device


def device_name(device: torch.device) -> str:
    """``NVIDIA H200``, or ``cpu (2 threads)``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    return f"{device.type} ({count} thread{'s' * (count > 1)})"


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    return {
        "complementary": complementary.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


Precision = Literal["bf16", "fp32"]
WARM_UP = 3  # eager steps before capture: they create optimiser state and let cuDNN and the compiler choose
_ONE_AT_A_TIME = threading.RLock()  # compiling and capturing are; replays are not


class _Lane(threading.local):
    """Which of the jobs that run side by side a thread works for."""

    number = 0


_LANE = _Lane()


@dataclass(frozen=True)
class Engine:
    """Where and how to compute. None of it changes what is computed, but for rounding.

    precision: bf16 computes products in bfloat16 (weights, losses and sums stay float32).
    compile: fuse element-wise kernels (on a GPU). capture: replay steps as CUDA graphs (on a GPU).
    deterministic: the same bits in every run on the same machine.
    stream: read inputs ahead from where they are, instead of holding them on the device (`feed`).
    """

    device: torch.device
    precision: Precision
    compile: bool = True
    capture: bool = True
    deterministic: bool = False
    stream: Literal["auto", "always", "never"] = "auto"

    @staticmethod
    def of(device: "str | torch.device | Engine") -> "Engine":
        """An engine as it is; a device with the usual choices."""
        return device if isinstance(device, Engine) else Engine.choose(str(device))

    @staticmethod
    def choose(
        device: str = "auto",
        precision: Literal["auto", "bf16", "fp32"] = "auto",
        compile: bool = True,
        deterministic: bool = False,
        stream: Literal["auto", "always", "never"] = "auto",
    ) -> "Engine":
        """Resolve what a user says; auto precision: bf16 on a GPU, fp32 on a CPU. Sets torch's global switches."""
        one_of("The precision", precision, ("auto", "bf16", "fp32"))
        found = choose_device(device)
        if found.type == "cuda":
            _switch(deterministic)
        else:
            _keep_memory()
        usual: Precision = "bf16" if found.type == "cuda" else "fp32"
        return Engine(found, usual if precision == "auto" else precision, compile, True, deterministic, stream)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which networks compute."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, a pure one of fixed shapes, with its kernels fused; itself on a CPU or if switched off.

        Compiled once per process, whichever job asks: modules must be arguments, not closed over.
        """
        return _fused(function) if self.device.type == "cuda" and self.compile else function

    def captured(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``function`` of tensors and generators as a CUDA graph; itself on a CPU or if switched off."""
        return Captured(function, self.device) if self.device.type == "cuda" and self.capture else function


def _switch(deterministic: bool) -> None:
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first use
        torch.use_deterministic_algorithms(True)
    # try the convolutions' algorithms, keep the fastest: a choice that depends on the moment
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()


@functools.cache
def _keep_memory() -> None:
    """Tell glibc to keep freed memory for the next step: giving back activations and fetching them again page by
    page takes a third of a small network's time on a CPU. No effect elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: nothing is mapped by itself, which would be unmapped when freed
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


@functools.cache
def _fused(function: Callable[..., Any]) -> "Fused":
    return Fused(function)


class Fused:
    """A compiled function. If it cannot be compiled it runs as it is, after one warning."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch._dynamo.config.recompile_limit = 64  # a sweep in one process brings many networks and shapes
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # whoever asks for fp32 means it
        self.function = function
        self.run: Callable[..., Any] = torch.compile(function, dynamic=False)

    def __call__(self, *args: Any) -> Any:
        """The same as calling the function itself."""
        with _ONE_AT_A_TIME:
            try:
                return self.run(*args)
            except Exception as error:
                if self.run is self.function:
                    raise
                result = self.function(*args)  # a mistake of its own shows here
                _say("compiled", error)
                self.run = self.function
                return result


class Captured:
    """A function that records itself into a CUDA graph and replays it. Falls back to eager with one warning."""

    def __init__(self, function: Callable[..., Tensor], device: torch.device) -> None:
        self.function, self.device = function, device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Any] = []
        self.result: Tensor | None = None

    def __call__(self, *args: Any) -> Tensor:
        """Call with tensors (of the same shapes each time) and generators (the same each time) -> its result."""
        self.calls += 1
        if self.graph is None and self.calls <= WARM_UP + 1:
            with _ONE_AT_A_TIME:
                if self.calls == WARM_UP + 1:
                    self._capture(args)
                if self.graph is None:
                    return self._eagerly(args)
        if self.graph is None:
            return self.function(*args)
        for mine, given in zip(self.inputs, args, strict=True):
            if isinstance(given, Tensor):
                mine.copy_(given, non_blocking=True)
        self.graph.replay()
        assert self.result is not None
        return self.result.clone()

    def close(self) -> None:
        """Let the graph go now; the next calls record a new one.

        A graph that died some day, when Python looks for garbage, could take along memory that later ones captured
        on the same stream still use (cuBLAS has one workspace per stream).
        """
        if self.graph is not None:
            torch.cuda.current_stream(self.device).synchronize()
            with _ONE_AT_A_TIME:  # nobody captures meanwhile
                self.graph.reset()
        self.graph, self.result, self.inputs, self.calls = None, None, [], 0

    def _eagerly(self, args: tuple[Any, ...]) -> Tensor:
        """On the stream of captures, where memory and autograd will expect the work to be."""
        stream = _capture_stream(self.device, _LANE.number)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            result = self.function(*args)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return result

    def _capture(self, args: tuple[Any, ...]) -> None:
        self.inputs = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
        graph = torch.cuda.CUDAGraph()
        sources = [(arg, arg.get_state()) for arg in args if isinstance(arg, torch.Generator)]
        for random, _ in sources:
            graph.register_generator_state(random)
        torch.cuda.synchronize(self.device)
        try:  # thread_local: other jobs' threads may go on meanwhile
            stream = _capture_stream(self.device, _LANE.number)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.result = self.function(*self.inputs)
        except RuntimeError as error:
            for random, before in sources:  # else it would wait for the failed capture for ever
                random.graphsafe_set_state(torch.Generator(self.device).graphsafe_get_state())
                random.set_state(before)
            _say("captured in a CUDA graph", error)
            return
        self.graph = graph


@contextlib.contextmanager
def lane(number: int, device: torch.device) -> Iterator[None]:
    """Work in this thread beside others: number 1, 2 … (0 is whoever is alone). On a GPU it has streams of its own."""
    _LANE.number = number
    try:
        with torch.cuda.stream(_stream(device, number)) if device.type == "cuda" else contextlib.nullcontext():
            yield
    finally:
        _LANE.number = 0


def give_memory_back() -> None:
    """After a job: another process may want the card's memory, and that of a graph serves no other graph."""
    if torch.cuda.is_initialized():
        with _ONE_AT_A_TIME:  # nobody captures meanwhile
            torch.cuda.empty_cache()


@functools.cache
def _stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    """Where a lane's work goes. Torch lends its 32 streams of a priority in turn, so the same ones are used again."""
    return torch.cuda.Stream(device)


@functools.cache
def _capture_stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    """Where a lane records. Only these are asked for at this priority: else someone would some day be lent a stream
    that is being captured. Lanes do not share one, since the graphs captured on a stream share cuBLAS's workspace."""
    return torch.cuda.Stream(device, priority=-1)


def _say(what: str, problem: Exception) -> None:
    reason = (str(problem) or type(problem).__name__).splitlines()[0]
    warnings.warn(f"The step could not be {what} and runs eagerly: {reason}", stacklevel=3)


Result = TypeVar("Result")


def together(tasks: Sequence[Callable[[], Result]], device: torch.device) -> list[Result | Exception]:
    """Do all tasks side by side -> their results in order; of one that failed, what it raised.

    A failure of one does not disturb the others. KeyboardInterrupt reaches the caller once all have ended.
    """
    with ThreadPoolExecutor(max(1, len(tasks)), thread_name_prefix="pack") as threads:
        waiting = [threads.submit(_alone, task, device, number) for number, task in enumerate(tasks, 1)]
    return [done.result() for done in waiting]


def _alone(task: Callable[[], Result], device: torch.device, number: int) -> Result | Exception:
    with lane(number, device):
        try:
            return task()
        except Exception as error:
            return error
