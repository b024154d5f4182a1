"""Several jobs on one card at once: each in its own thread, stream and graphs.

One small network leaves most of a big card idle between its kernels; a second and third job fill the gaps
(figures: docs/speed.md). Threads suffice, because a replayed step costs Python almost nothing, and a job that
waits for its figures at the end of an epoch lets the others go on.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


def together(tasks: Sequence[Callable[[], Result]], device: torch.device) -> list[Result | Exception]:
    """Do all tasks side by side -> their results in order; of one that failed, what it raised.

    A failure of one does not disturb the others. KeyboardInterrupt reaches the caller once all have ended.
    """
    with ThreadPoolExecutor(max(1, len(tasks)), thread_name_prefix="pack") as threads:
        waiting = [threads.submit(_alone, task, device, lane) for lane, task in enumerate(tasks)]
    return [done.result() for done in waiting]


def _alone(task: Callable[[], Result], device: torch.device, lane: int) -> Result | Exception:
    on_cuda = device.type == "cuda"
    with torch.cuda.stream(_stream(device, lane)) if on_cuda else contextlib.nullcontext():
        try:
            return task()
        except Exception as problem:
            return problem


@functools.cache
def _stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    """A stream of its own for each of those that run at once, and the same ones the next time: torch has but 32."""
    return torch.cuda.Stream(device)
