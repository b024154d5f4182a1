"""One training step, as fast as the device allows: eager on a CPU, a replayed CUDA graph on a GPU.

A graph replays thousands of small kernels with one launch. The first steps run eagerly (they are real
steps: nothing is thrown away), the next one is captured, all later ones are replays. The step must have
fixed shapes, must not wait for the device, and must draw all its randomness from the generator it is given.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, torch.Generator], Tensor]

WARM_UP = 3  # eager steps before capture: they create optimiser state and let cuDNN and the compiler choose


def compiled(model: torch.nn.Module, device: torch.device, enabled: bool) -> Callable[[Tensor], Tensor]:
    """The module, compiled on a GPU if enabled: fused elementwise kernels are what it gains."""
    if device.type != "cuda" or not enabled:
        return model
    compiled_model: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False)
    return compiled_model


def engine(step: Step, device: torch.device, capture: bool = True) -> Step:
    """``step`` itself on a CPU, a captured version of it on a GPU."""
    return Captured(step, device) if device.type == "cuda" and capture else step


class Captured:
    """A step that records itself into a CUDA graph and replays it. Falls back to eager with one warning."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self.device = step, device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device)

    def __call__(self, index: Tensor, random: torch.Generator) -> Tensor:
        """Take one step on the examples at ``index`` int [B] -> the loss, a scalar on the device."""
        self.calls += 1
        if self.graph is not None:
            self.index.copy_(index)
            self.graph.replay()
            return self.loss.clone()
        if self.calls == WARM_UP + 1:
            self._capture(index, random)
            if self.graph is not None:
                self.graph.replay()
                return self.loss.clone()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            loss = self.step(index, random)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return loss

    def _capture(self, index: Tensor, random: torch.Generator) -> None:
        self.index = index.clone()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(random)
        torch.cuda.synchronize(self.device)
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.loss = self.step(self.index, random)
        except RuntimeError as problem:
            reason = (str(problem) or type(problem).__name__).splitlines()[0]
            warnings.warn(f"The step could not be captured in a CUDA graph and runs eagerly: {reason}", stacklevel=2)
            return
        self.graph = graph
