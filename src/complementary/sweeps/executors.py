"""Who does the work of a sweep: processes on this machine, or a Ray cluster, behind one small interface.

An executor takes tasks and gives back how each ended, once. A task whose worker died is tried again by the
executor itself, so that what it reports is final.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

Failures = dict[str, str]
"""What went wrong: the key of a cell or stage -> a sentence. Empty: all is well."""


@dataclass(frozen=True)
class Task:
    """A unit of work: ``work`` (picklable) is called with the name of a device, and must not raise."""

    key: str
    work: Callable[[str], Failures]


@dataclass(frozen=True)
class Ended:
    """How a task ended. ``lost``: a sentence, if its worker died more often than it may."""

    key: str
    failures: Failures = field(default_factory=dict)
    lost: str = ""


OnDeath = Callable[[str, str], None]
"""Told the key of a task and, as a sentence, how its worker died."""


def silent(key: str, why: str) -> None:
    """Nobody wants to know how a worker died."""


class Executor(Protocol):
    """What a sweep wants of those who do its work."""

    workers: int | None
    """How many tasks run at once, where that is known."""

    on_death: OnDeath
    """Called when a task goes on because its worker died, where that is known; a sweep sets it."""

    @property
    def free(self) -> bool:
        """Whether another task can be submitted now."""

    def submit(self, task: Task) -> None:
        """Begin a task; only while `free`."""

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that ended since the last call; waits for one, but not longer than ``seconds``."""

    def close(self) -> None:
        """Stop everything at once; whatever is under way can be resumed."""
