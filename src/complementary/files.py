"""Checkpoints: written atomically, verified on reading, never unpickled.

A checkpoint is one safetensors file. Its header carries a JSON record and a SHA-256 over that record and
every tensor, so a truncated or altered file is noticed before a single value of it is used.

Locks on files, which end with the process that holds them; the one place that knows how the system locks.

Where it has no such locks (Windows) nothing is ever held by another process: `exist` tells, for those whom that
would harm.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from complementary.errors import UserError


def write(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Save named tensors and a JSON-able record, so that after a crash either the old or the new file is there."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(record, sort_keys=True)
    # one key: safetensors writes several in no fixed order, and equal content should give equal bytes
    header = {"complementary": json.dumps({"record": text, "sha256": digest(tensors, text)})}
    write_bytes(path, save(tensors, header))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: a temporary file beside it, flushed to disk, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written ({error.strerror}); the file that was there is unchanged.") from None


def record_of(path: Path) -> dict[str, Any]:
    """The record of a file that `write` made; empty for any other. `read` says whether the file is whole."""
    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})["complementary"])
            record: dict[str, Any] = json.loads(stored["record"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return {}
    return record


def is_whole(path: Path) -> bool:
    """Whether ``path`` is there, and just as `write` made it."""
    try:
        read(path)
    except UserError:
        return False
    return True


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load and verify a checkpoint -> (tensors, record)."""
    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})["complementary"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        text, wanted = stored["record"], stored["sha256"]
    except FileNotFoundError:
        raise UserError(f"There is no checkpoint {path}.") from None
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise UserError(
            f"{path} is not a whole file of this package ({str(error) or type(error).__name__}); nothing "
            "was loaded from it."
        ) from None
    if digest(tensors, text) != wanted:
        raise UserError(f"{path} was altered: its contents do not match their SHA-256. Nothing was loaded from it.")
    record: dict[str, Any] = json.loads(text)
    return tensors, record


def digest(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 over a text and named tensors, which must be contiguous and on the CPU."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name]
        sha.update(f"{name} {t.dtype} {list(t.shape)}".encode())
        sha.update(t.reshape(-1).view(torch.uint8).numpy().data if t.numel() else b"")
    return sha.hexdigest()


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
