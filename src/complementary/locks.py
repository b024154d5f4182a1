"""Locks on files, which end with the process that holds them; the one place that knows how the system locks.

Where it has no such locks (Windows) nothing is ever held by another process: `exist` tells, for those whom that
would harm.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None


def exist() -> bool:
    """Whether this system has locks on files."""
    return fcntl is not None


def take(file: IO[str], shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until it is closed, unless another process has it -> whether it is locked now.

    ``wait``: until the other process lets it go. A disk that cannot lock raises the system's OSError.
    """
    if fcntl is None:
        return True
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def hold(path: Path, patience: float) -> Iterator[bool]:
    """Hold the lock ``path``, waiting ``patience`` seconds for it at most -> whether it is held."""
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while not (held := _try(file)) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield held


def is_held(path: Path) -> bool:
    """Whether some process holds the lock ``path`` right now."""
    if not path.exists():
        return False
    with path.open() as file:
        return not _try(file, shared=True)


def _try(file: IO[str], shared: bool = False) -> bool:
    """`take`, where a disk that cannot lock counts as if another process had the lock."""
    try:
        return take(file, shared)
    except OSError:
        return False
