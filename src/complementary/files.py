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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import filelock

from complementary.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)

# --- writing ------------------------------------------------------------------------------------------------------


def atomic_write(path: Path, content: bytes | str | Iterable[str]) -> None:
    """Replace a file in one step: write a temporary file beside it, flush it to disk, rename it.

    A device or a pipe, such as /dev/null or /dev/stdout, is written to directly.

    Args:
        path: The file. Its folder must exist.
        content: The new content; text is encoded as UTF-8. Parts of a text are written as they come.

    Raises:
        UserError: The file cannot be written. The old file is unchanged.
    """
    parts = [content] if isinstance(content, bytes | str) else content
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                file.writelines(map(_encode, parts))
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.writelines(map(_encode, parts))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except UserError:  # of what produces the content
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character, or without a name
        raise UserError(f"{path} cannot be written ({reason_of(error)}); the old file is unchanged.") from None


def _encode(part: bytes | str) -> bytes:
    """Text as UTF-8; file names may contain bytes that are not UTF-8."""
    return part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part


def append_line(path: Path, line: str) -> None:
    """Append one line to a text file. A full disk raises a `UserError`, and may leave a part of the line behind."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({reason_of(error)}).") from None


def make_folder(path: Path, option: str | None = None) -> bool:
    """Create a folder and its parents.

    Args:
        path: The folder.
        option: The option that named it, for the message.

    Returns:
        Whether it is new.

    Raises:
        UserError: It cannot be created, or it is not a folder.
    """
    try:
        new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UserError(f"The folder {path} cannot be created ({reason_of(error)}).", option) from None
    return new


# --- reading files that may be damaged ----------------------------------------------------------------------------


@contextlib.contextmanager
def reading(what: object, advice: str = "", option: str | None = None) -> Iterator[None]:
    """Turn every exception of the block into a `UserError`: a damaged file can make a parser raise anything.

    Args:
        what: The file, for the message.
        advice: What to do, a clause for the end of the message.
        option: The option that named the file.
    """
    end = f"; {advice}." if advice else "."
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        reason = reason_of(error)
        raise UserError(f"{what} needs more memory than there is ({reason}); use a smaller file.", option) from None
    except Exception as error:
        raise UserError(f"{what} cannot be read ({reason_of(error)}){end}", option) from None


def reason_of(error: BaseException) -> str:
    """A short reason for a message: that of the system, else the first line of the exception's text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return first.rstrip(".:") if first else type(error).__name__


def available_memory() -> int:
    """Bytes of memory that can still be used, as far as the system says; without swap."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**62


# --- checkpoints --------------------------------------------------------------------------------------------------


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
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})["complementary"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        text, expected = str(stored["record"]), stored["sha256"]
        found = fingerprint(tensors, text)
    except FileNotFoundError:
        raise UserError(f"There is no checkpoint {path}.") from None
    except Exception as error:  # a damaged header can raise anything
        raise UserError(f"{path} is not a valid checkpoint ({reason_of(error)}); nothing was loaded.") from None
    if found != expected:
        raise UserError(f"{path} was altered: its contents do not match their SHA-256. Nothing was loaded.")
    record = _parse_record(text)
    if record is None:
        raise UserError(f"{path} is not a valid checkpoint (its record is not an object); nothing was loaded.")
    return tensors, record


def _parse_record(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_record(path: Path) -> dict[str, Any]:
    """Read only the record of a checkpoint, without verifying the tensors; empty for any other file."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})["complementary"])
        return _parse_record(str(stored["record"])) or {}
    except Exception:  # a damaged header can raise anything
        return {}


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


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """Add the SHA-256 of a JSON-able record to it, under ``sha256``, so that `is_altered` can check it later."""
    plain = json.loads(json.dumps({name: value for name, value in content.items() if name != "sha256"}))
    return content | {"sha256": fingerprint_json(plain)}


def is_altered(content: dict[str, Any]) -> bool:
    """Whether a record was changed after `seal`; False for a record without a SHA-256."""
    return "sha256" in content and seal(content)["sha256"] != content["sha256"]


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
    except (OSError, ValueError, NotImplementedError) as error:
        reason = reason_of(error)
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
    except (OSError, ValueError):
        return False
