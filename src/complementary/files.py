"""Files that survive a crash: atomic writes, verified checkpoints, fingerprints and locks.

A checkpoint is one safetensors file. Its header holds a JSON record and a SHA-256 over that record and all tensors, so
a truncated or altered file is detected before any of its values is used. Nothing is ever unpickled.

torch is imported where it is needed, so that commands that only read and write text start quickly.
"""

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import filelock

from complementary.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)

# --- atomic writes and checkpoints --------------------------------------------------------------------------------


def atomic_write(path: Path, content: bytes | str) -> None:
    """Replace a file in one step: write a temporary file beside it, flush it to disk, rename it.

    Args:
        path: The file. Its folder must exist.
        content: The new content; text is encoded as UTF-8.

    Raises:
        UserError: The file cannot be written. The old file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written ({error.strerror}); the old file is unchanged.") from None


def write_checkpoint(path: Path, tensors: "Mapping[str, Tensor]", record: dict[str, Any]) -> None:
    """Write named tensors and a JSON-able record atomically. Equal content gives equal bytes."""
    from safetensors.torch import save

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(record, sort_keys=True)
    # a single key: safetensors writes several keys in arbitrary order
    header = {"complementary": json.dumps({"record": text, "sha256": fingerprint(on_cpu, text)})}
    atomic_write(path, save(on_cpu, header))


def read_checkpoint(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Read and verify a checkpoint.

    Returns:
        The tensors by name, and the record.

    Raises:
        UserError: The file is missing, incomplete, altered or not a checkpoint of this package.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})["complementary"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        text, expected = stored["record"], stored["sha256"]
    except FileNotFoundError:
        raise UserError(f"There is no checkpoint {path}.") from None
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{path} is not a valid checkpoint ({reason}); nothing was loaded.") from None
    if fingerprint(tensors, text) != expected:
        raise UserError(f"{path} was altered: its contents do not match their SHA-256. Nothing was loaded.")
    record: dict[str, Any] = json.loads(text)
    return tensors, record


def read_record(path: Path) -> dict[str, Any]:
    """Read only the record of a checkpoint, without verifying the tensors; empty for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})["complementary"])
            record: dict[str, Any] = json.loads(stored["record"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return {}
    return record


# --- fingerprints: SHA-256 as 64 hexadecimal digits ---------------------------------------------------------------


class _SupportsSplit(Protocol):
    """A tensor, or anything that yields its rows in parts as a tensor does."""

    @property
    def dtype(self) -> "torch.dtype": ...
    @property
    def shape(self) -> "torch.Size": ...
    def split(self, count: int, /) -> "Iterator[Tensor] | tuple[Tensor, ...]": ...


def fingerprint(tensors: "Mapping[str, Tensor]", text: str = "") -> str:
    """SHA-256 of a text and of named tensors (their names, types, shapes and values)."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        sha.update(_bytes(tensor))
    return sha.hexdigest()


def fingerprint_rows(rows: _SupportsSplit) -> str:
    """SHA-256 of the examples ``rows`` [N, ...] in order, read in parts."""
    sha = hashlib.sha256(f"{rows.dtype} {list(rows.shape)}".encode())
    for part in rows.split(4096):
        sha.update(_bytes(part))
    return sha.hexdigest()


def fingerprint_json(value: Any) -> str:
    """SHA-256 of a JSON-able value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes(tensor: "Tensor") -> "memoryview | bytes":
    import torch

    if not tensor.numel():
        return b""
    content: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return content


# --- locks --------------------------------------------------------------------------------------------------------


class Locked(UserError):
    """Another process holds the lock."""


@contextlib.contextmanager
def lock(path: Path, timeout: float | None = 0.0, waiting: str = "") -> Iterator[None]:
    """Hold the lock file ``path``. The system releases it when the process ends, also after ``kill -9``.

    Args:
        path: The lock file. It is created if it is missing, and stays; its folder must exist.
        timeout: Seconds to wait for another process; None waits as long as it takes.
        waiting: Logged once if another process holds the lock and this one waits.

    Raises:
        Locked: Another process still holds the lock after ``timeout`` seconds.
        UserError: The disk is read-only or does not support locks.
    """
    # no soft locks, which a killed process would leave behind
    held = filelock.FileLock(path, fallback_to_soft=False)
    try:
        try:
            held.acquire(timeout=0)
        except filelock.Timeout:
            if timeout == 0:
                raise
            if waiting:
                log.info(waiting)
            held.acquire(timeout=-1 if timeout is None else timeout)
    except filelock.Timeout:
        raise Locked(f"Another process holds the lock {path}.") from None
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be locked ({reason}); use a writable disk that supports file locks.") from None
    try:
        yield
    finally:
        held.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file ``path``; nothing is written."""
    try:
        with path.open("rb") as file:
            return not filelock.lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return False
