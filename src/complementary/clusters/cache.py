"""Cache of expensive stages: encoders, features, neighbor graphs and clusters, in the cache folder under ``stages/``.

The name of a stage is a fingerprint of everything that determines it, so a stage is computed once and never confused
with another. If two processes need the same stage, the second waits for the first.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from complementary import files
from complementary.data.cache import cache_root
from complementary.errors import UserError

log = logging.getLogger(__name__)

MIN_SLOW = 500  # examples whose features are cached if the encoder is slow
MIN_EXAMPLES = 5000  # features and clusters of fewer examples take less than a second and are not cached


def stage_path(name: str) -> Path:
    """Path of the stage ``name``; it need not exist."""
    return cache_root(None) / "stages" / name


def stage_name(kind: str, key: dict[str, Any]) -> str:
    """Name of the stage that a JSON-able ``key`` determines, such as ``clusters-1f0c…``."""
    return f"{kind}-{files.fingerprint_json(key)[:32]}"


@contextlib.contextmanager
def stage_lock(name: str, doing: str) -> Iterator[None]:
    """Hold the lock of the stage ``name``, waiting for another process if necessary.

    Args:
        name: Name of the stage.
        doing: What the holder of the lock does, for the log line of a process that waits.

    Raises:
        UserError: The cache is not writable.
    """
    path = cache_root(None) / "locks" / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The cache {cache_root(None)} is not writable ({error.strerror}).") from None
    with files.lock(path, timeout=None, waiting=f"another process is {doing}; waiting for it"):
        yield


def cached(
    kind: str,
    key: dict[str, Any] | None,
    make: Callable[[], Tensor],
    read: Callable[[Path], Tensor],
    write: Callable[[Path, Tensor], None],
) -> Tensor:
    """Return a tensor from the cache, or compute and store it.

    A damaged file is computed again. If the cache is not writable, the result is returned but not stored.

    Args:
        kind: What the tensor holds, such as ``clusters``; the first part of the stage's name.
        key: Everything that determines the tensor, JSON-able. None: compute it without the cache.
        make: Computes the tensor.
        read: Reads it from a file; raises `UserError` if the file is damaged.
        write: Writes it to a file.
    """
    if key is None:
        return make()
    name = stage_name(kind, key)
    path = stage_path(f"{name}.safetensors")
    with contextlib.suppress(UserError):
        if path.exists():
            return read(path)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(stage_lock(name, f"computing the same {kind}"))
        except UserError as error:
            log.warning("the %s are not cached: %s", kind, error)
            return make()
        try:
            if path.exists():  # written by the process that held the lock
                return read(path)
        except UserError as error:
            log.warning("the cached %s are damaged and will be computed again: %s", kind, error)
        tensor = make()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, tensor)
        except (OSError, UserError) as error:
            log.warning("the %s are not cached: %s", kind, error)
        return tensor


def cached_vectors(kind: str, key: dict[str, Any] | None, make: Callable[[], Tensor]) -> Tensor:
    """`cached` for vectors float32 [N, D]."""
    return cached(
        kind,
        None if key is None else key | {kind: 1},
        make,
        lambda path: files.read_checkpoint(path)[0]["features"],
        lambda path, vectors: files.write_checkpoint(path, {"features": vectors}, key or {}),
    )
