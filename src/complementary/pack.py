"""Several jobs on one card at once: each in its own thread, stream and graphs.

One small network leaves most of a big card idle between its kernels; a second and third job fill the gaps
(figures: docs/speed.md). Threads suffice, because a replayed step costs Python almost nothing, and a job that
waits for its figures at the end of an epoch lets the others go on.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from complementary.engine import lane

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
        except Exception as problem:
            return problem
