"""What is kept between runs: encoders, features and clusters, in the cache under ``stages/``, named by content.

A stage that is there is not made again. Where two processes want the same one, the second waits for the first.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from complementary import files
from complementary.clusters import assignments
from complementary.data.cache import Unwritable, cache_root, lock
from complementary.data.rows import Rows
from complementary.errors import UserError
from complementary.reports.terminal import to_stderr


def place(name: str) -> Path:
    """Where the stage ``name`` lies, or will."""
    return cache_root(None) / "stages" / name


def named(kind: str, decides: dict[str, Any]) -> str:
    """A name for what ``decides`` (JSON-able) determines: the kind and a hash, such as ``clusters-1f0c…``."""
    return f"{kind}-{files.fingerprint_json(decides)[:32]}"


@contextlib.contextmanager
def alone(name: str, doing: str) -> Iterator[None]:
    """Hold the right to make the stage ``name``; while another process has it, say what that one is ``doing`` and wait.

    The right ends with the process, also when it is killed.
    """
    waiting = f"another process is {doing} right now; waiting for it"
    with lock(cache_root(None), name, lambda _: to_stderr(waiting)):
        yield


def clusters(inputs: Tensor | Rows, count: int, decides: dict[str, Any], make: Callable[[], Tensor]) -> Tensor:
    """The assignment int64 [M] of ``inputs`` [M, ...] to ``count`` clusters: from the cache, or made and kept.

    ``decides``: all that ``make`` depends on, JSON-able. A damaged file is made again; a cache that cannot be
    written only costs the keeping. Each of the two is one line on standard error.
    """
    return _kept(
        Kind("clusters", "clustering"),
        decides,
        make,
        lambda path: assignments.read(path, inputs)[0],
        lambda path, found: assignments.write(path, found, count, inputs, decides),
    )


def features(decides: dict[str, Any], make: Callable[[], Tensor]) -> Tensor:
    """Vectors float32 [N, D] that ``make`` gives: from the cache, or made and kept, as `clusters` are."""
    return _kept(
        Kind("features", "embedding"),
        decides,
        make,
        lambda path: files.read_checkpoint(path)[0]["features"],
        lambda path, found: files.write_checkpoint(path, {"features": found}, decides),
    )


class Kind(NamedTuple):
    """What is kept, and what one does to make it."""

    what: str
    doing: str


def _kept(
    kind: Kind,
    decides: dict[str, Any],
    make: Callable[[], Tensor],
    read: Callable[[Path], Tensor],
    write: Callable[[Path, Tensor], None],
) -> Tensor:
    name = named(kind.what, decides)
    path = place(f"{name}.safetensors")

    def stored(say: Callable[[str], None]) -> Tensor | None:
        try:
            return read(path) if path.exists() else None
        except UserError:
            say(f"the {kind.what} kept in {path} are damaged; {kind.doing} again")
            return None

    found = stored(lambda _: None)
    if found is not None:
        return found
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone(name, f"{kind.doing} the same examples"))
        except Unwritable as error:
            to_stderr(f"the {kind.what} will not be kept: {error}")
            return make()
        found = stored(to_stderr)  # the process that we waited for has made it
        if found is None:
            found = make()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, found)
            except (OSError, UserError) as error:
                to_stderr(f"the {kind.what} are not kept: {error}")
        return found
