"""Where and how to compute: device, precision, compilation and CUDA graphs.

On a CPU a step runs eagerly. On a GPU it is captured in a CUDA graph, which replays hundreds of small kernels with one
launch. The first steps run eagerly (they are real steps), the next one is captured, all later ones are replays. A
captured function must have fixed shapes, must not synchronize, and must draw all random numbers from generators that it
is given.

A small network leaves most of a large GPU idle between its kernels. `together` runs several trainings on one GPU, each
in its own thread with its own streams and graphs. Threads are enough, because a replay costs almost no Python time.
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
from complementary.reports.tables import counted

# --- devices ------------------------------------------------------------------------------------------------------


def choose_device(name: str) -> torch.device:
    """The device of that name; ``auto``: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"The device {name!r} is not available on this machine; use auto or cpu.", "device") from None
    return device


def device_name(device: torch.device) -> str:
    """``NVIDIA H200``, or ``cpu (2 threads)``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({counted(torch.get_num_threads(), 'thread')})"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one CPU thread in the block: more do not help small operations, and are much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def versions() -> dict[str, str]:
    """Versions of the software that computes a result."""
    return {
        "complementary": complementary.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


# --- the engine ---------------------------------------------------------------------------------------------------

Precision = Literal["bf16", "fp32"]
Stream = Literal["auto", "always", "never"]
WARM_UP = 3  # eager steps before capture: they create the optimizer's state and let cuDNN and the compiler choose
_CAPTURE_LOCK = threading.RLock()  # one thread at a time compiles or captures; replays run concurrently


@dataclass(frozen=True)
class Engine:
    """Where and how to compute. Nothing here changes the results, except for rounding.

    Attributes:
        device: The device.
        precision: bf16: products are computed in bfloat16; weights, losses and sums stay float32.
        compile: Fuse element-wise kernels (GPU only).
        capture: Replay steps as CUDA graphs (GPU only).
        deterministic: Give the same bits in every run on the same machine.
        stream: Prefetch inputs from the host instead of keeping them on the device.
    """

    device: torch.device
    precision: Precision
    compile: bool = True
    capture: bool = True
    deterministic: bool = False
    stream: Stream = "auto"

    @staticmethod
    def of(device: "str | torch.device | Engine") -> "Engine":
        """The engine itself, or the default engine of a device."""
        return device if isinstance(device, Engine) else Engine.choose(str(device))

    @staticmethod
    def choose(
        device: str = "auto",
        precision: Literal["auto", "bf16", "fp32"] = "auto",
        compile: bool = True,
        deterministic: bool = False,
        stream: Stream = "auto",
    ) -> "Engine":
        """Build an engine from the user's options, and set torch's global switches.

        Args:
            device: Name of a device, or auto.
            precision: auto: bf16 on a GPU, fp32 on a CPU.
            compile: As the attribute.
            deterministic: As the attribute.
            stream: As the attribute.
        """
        one_of("The precision", precision, ("auto", "bf16", "fp32"), "precision")
        found = choose_device(device)
        usual: Precision = "bf16" if found.type == "cuda" else "fp32"
        chosen: Precision = usual if precision == "auto" else precision
        if found.type == "cuda":
            _set_switches(deterministic, chosen)
        else:
            _keep_freed_memory()
        return Engine(found, chosen, compile, True, deterministic, stream)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which networks compute."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a pure function of fixed shapes; on a CPU, or if switched off, return it unchanged.

        A function is compiled once per process: modules must be arguments, not part of its closure.
        """
        return _compiled(function) if self.device.type == "cuda" and self.compile else function

    def captured(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Capture a function of tensors and generators in a CUDA graph; on a CPU, or if switched off, unchanged."""
        return Captured(function, self.device) if self.device.type == "cuda" and self.capture else function


def _set_switches(deterministic: bool, precision: Precision) -> None:
    """Set torch's global switches. With fp32, products are not rounded to TF32 (10 bits), as cuDNN does by default."""
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = False  # torch's default; what autocast leaves in float32 needs the bits
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it before its first use
        torch.use_deterministic_algorithms(True)
    # benchmark the convolution algorithms and keep the fastest; the choice can differ between runs
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc keep freed memory: returning activations and faulting them in again takes a third of the time of a
    small network on a CPU. No effect on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no separate mappings, which would be unmapped when freed
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


# --- compilation and capture --------------------------------------------------------------------------------------


@functools.cache
def _compiled(function: Callable[..., Any]) -> "Compiled":
    return Compiled(function)


class Compiled:
    """A compiled function. If compilation fails, it runs eagerly after one warning."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch._dynamo.config.recompile_limit = 64  # a sweep in one process has many networks and shapes
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # fp32 was requested
        self.function = function
        self.run: Callable[..., Any] = torch.compile(function, dynamic=False)

    def __call__(self, *args: Any) -> Any:
        with _CAPTURE_LOCK:
            try:
                return self.run(*args)
            except Exception as error:
                if self.run is self.function:
                    raise
                result = self.function(*args)  # an error of the function itself is raised here
                _warn("compiled", error)
                self.run = self.function
                return result


class Captured:
    """A function that captures itself in a CUDA graph and replays it; if that fails it runs eagerly, with a warning."""

    def __init__(self, function: Callable[..., Tensor], device: torch.device) -> None:
        self.function, self.device = function, device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Any] = []
        self.result: Tensor | None = None

    def __call__(self, *args: Any) -> Tensor:
        """Call with tensors (of the same shapes each time) and generators (the same ones each time)."""
        self.calls += 1
        if self.graph is None and self.calls <= WARM_UP + 1:
            with _CAPTURE_LOCK:
                if self.calls == WARM_UP + 1:
                    self._capture(args)
                if self.graph is None:
                    return self._eagerly(args)
        if self.graph is None:
            return self.function(*args)
        for own, given in zip(self.inputs, args, strict=True):
            if isinstance(given, Tensor):
                own.copy_(given, non_blocking=True)
        self.graph.replay()
        assert self.result is not None
        return self.result.clone()

    def close(self) -> None:
        """Free the graph now; the next calls capture a new one.

        If the garbage collector freed it later, memory that it shares with graphs captured on the same stream (cuBLAS
        has one workspace per stream) could be freed with it.
        """
        if self.graph is not None:
            torch.cuda.current_stream(self.device).synchronize()
            with _CAPTURE_LOCK:
                self.graph.reset()
        self.graph, self.result, self.inputs, self.calls = None, None, [], 0

    def _eagerly(self, args: tuple[Any, ...]) -> Tensor:
        """Run on the capture stream, where the allocator and autograd will expect the work."""
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
        try:  # thread_local: other threads may continue meanwhile
            stream = _capture_stream(self.device, _LANE.number)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.result = self.function(*self.inputs)
        except RuntimeError as error:
            for random, before in sources:  # otherwise it would stay bound to the failed capture
                random.graphsafe_set_state(torch.Generator(self.device).graphsafe_get_state())
                random.set_state(before)
            _warn("captured in a CUDA graph", error)
            return
        self.graph = graph


def _warn(what: str, error: Exception) -> None:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    warnings.warn(f"The step could not be {what} and runs eagerly: {reason}", stacklevel=3)


# --- several trainings on one GPU ---------------------------------------------------------------------------------


class _Lane(threading.local):
    """Which of several concurrent trainings this thread works for; 0: there is only one."""

    number = 0


_LANE = _Lane()
Result = TypeVar("Result")


def together(tasks: Sequence[Callable[[], Result]], device: torch.device) -> list[Result | Exception]:
    """Run several tasks concurrently on one device, each in its own thread.

    Args:
        tasks: Functions without arguments.
        device: Where they compute.

    Returns:
        Their results in order; for a task that failed, the exception. A failure does not affect the other tasks.
        KeyboardInterrupt is raised once all tasks have ended.
    """
    if device.type == "cuda":  # torch loads its solvers at first use, which fails in two threads (pytorch#90613)
        torch.linalg.inv(torch.ones(1, 1, device=device))
    with ThreadPoolExecutor(max(1, len(tasks)), thread_name_prefix="lane") as threads:
        futures = [threads.submit(_in_lane, task, device, number) for number, task in enumerate(tasks, 1)]
    return [future.result() for future in futures]


def _in_lane(task: Callable[[], Result], device: torch.device, number: int) -> Result | Exception:
    with lane(number, device):
        try:
            return task()
        except Exception as error:
            return error


@contextlib.contextmanager
def lane(number: int, device: torch.device) -> Iterator[None]:
    """Run this thread as lane 1, 2, … of several. On a GPU each lane has its own streams."""
    _LANE.number = number
    try:
        with torch.cuda.stream(_stream(device, number)) if device.type == "cuda" else contextlib.nullcontext():
            yield
    finally:
        _LANE.number = 0


@contextlib.contextmanager
def no_capture() -> Iterator[None]:
    """Run networks outside of `Captured` in this block, while no lane captures a graph.

    The first convolution of a shape lets cuDNN compare algorithms, for which it synchronizes the device. That fails
    while a stream is captured.
    """
    with _CAPTURE_LOCK:
        yield


def release_memory() -> None:
    """Return cached GPU memory after a training: graphs do not share it, and another process may need it."""
    if torch.cuda.is_initialized():
        with _CAPTURE_LOCK:
            torch.cuda.empty_cache()


@functools.cache
def _stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    """The stream of a lane. Torch has only 32 streams of a priority, which new ones share, so they are reused."""
    return torch.cuda.Stream(device)


@functools.cache
def _capture_stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    """The stream on which a lane captures. Nothing else uses this priority, so torch never hands out a stream that is
    being captured. Lanes do not share one, because graphs captured on the same stream share a cuBLAS workspace."""
    return torch.cuda.Stream(device, priority=-1)
