"""Locks on files, which end with the process that holds them; without fcntl (Windows) there are none."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def _take(file: IO[str], shared: bool = False) -> bool:
    """Lock an open file unless another process has it -> whether that went well."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def hold(path: Path, patience: float) -> Iterator[bool]:
    """Hold the lock ``path``, waiting ``patience`` seconds for it at most -> whether it is held."""
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while not (held := _take(file)) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield held


def is_held(path: Path) -> bool:
    """Whether some process holds the lock ``path`` right now."""
    if not path.exists():
        return False
    with path.open() as file:
        return not _take(file, shared=True)
