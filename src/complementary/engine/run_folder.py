"""The folder of a run: locked while it runs, resumable after any interruption.

| file | content |
|---|---|
| config.toml | the configuration, and its checksum in the first line |
| metrics.jsonl | one line per epoch; the same bytes however often the run was interrupted |
| checkpoint.safetensors | while it runs: everything needed to continue |
| result.json | written last, with its checksum; the run is finished if it exists |

A run that is resumed refuses a configuration, checkpoint or result that was altered.
"""

import contextlib
import hashlib
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from complementary import files
from complementary.config import BaseConfig, differences, read_toml, to_toml
from complementary.engine.backend import device_name, versions
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import Progress, TrainingLoop
from complementary.errors import UserError

log = logging.getLogger(__name__)
CHECKSUM = "# sha256 of the lines below: "  # first line of config.toml
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
FILES = ("config.toml", "metrics.jsonl", "result.json", "checkpoint.safetensors")


class RunFolder:
    """The folder of one run, as a context manager.

        with RunFolder(path, config, resume=True) as folder:
            if not folder.finished:
                folder.train(loop)
                folder.finish(result)
            return folder.result()

    Entering creates and locks the folder and writes the configuration, so that a run that is stopped before its first
    checkpoint can be resumed: it starts over. With several processes only rank 0 locks and writes. If the run turns out
    to be impossible before it trains, what was written is removed again.

    Args:
        path: The folder.
        config: The configuration of the run.
        resume: Continue the run in the folder; a finished run is not repeated.
        processes: The processes that share the work.

    Attributes:
        finished: Whether the folder contains the result of this run.

    Raises:
        UserError: Another process uses the folder, or it contains something other than this run.
    """

    def __init__(
        self, path: Path, config: BaseConfig, *, resume: bool = False, processes: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self.path, self.config, self.resume, self.processes = path, config, resume, processes
        self.finished = False
        self._new = self._began = False
        self._replaced: bytes | None = None  # the config.toml of an earlier run that was stopped before it trained
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            if self.processes.is_main:
                self._acquire()
            finished = self.processes.is_main and self._check()
            self._began = self.processes.is_main and (
                self._replaced is not None or not (self.path / "config.toml").exists()
            )
            if self._began:
                self._write_config()
            self.finished = bool(self.processes.broadcast(torch.tensor(int(finished))))
        except BaseException:
            self._release(failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is UserError and self._began:  # not `Stopped`, which can be resumed
            self._forget_start()
        self._release(failed=kind is not None)

    def train(self, loop: TrainingLoop, progress: Progress | None = None, checkpoint_seconds: float = 30.0) -> None:
        """Train to the end, from the checkpoint if there is one.

        Ctrl-C and SIGTERM take effect after the current step, once a checkpoint is written.

        Args:
            loop: The training.
            progress: Called after every step.
            checkpoint_seconds: Time between checkpoints.
        """
        self._restore(loop)
        if not self.processes.is_main:
            loop.run()
            return
        self._write_start(loop)
        saved = time.monotonic()
        # several processes would not stop at the same step
        deferred = _deferred_interrupt() if self.processes.world_size == 1 else contextlib.nullcontext(list[int]())
        with deferred as interrupts:

            def record(loop: TrainingLoop) -> None:
                nonlocal saved
                if loop.step_in_epoch == 0:
                    files.append_line(self.path / "metrics.jsonl", json.dumps(loop.history[-1]))
                if time.monotonic() - saved >= checkpoint_seconds or loop.done or interrupts:
                    loop.check_finite()
                    tensors, place = loop.state()
                    computed = {"computed_by": _computed_by(loop)}
                    files.write_checkpoint(self.path / "checkpoint.safetensors", tensors, place | computed)
                    saved = time.monotonic()
                if interrupts:
                    position = f"{loop.stage}epoch {min(loop.epoch + 1, loop.epochs)} of {loop.epochs}"
                    message = f"stopped in {position}; resume continues the run in {self.path}"
                    raise Stopped(message, interrupts[0])

            loop.run(record, progress)

    def finish(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write the result; the checkpoint is no longer needed.

        Returns:
            The result; an empty dictionary in all processes except rank 0.
        """
        if not self.processes.is_main:
            return {}
        result = files.seal(result)
        files.atomic_write(self.path / "result.json", json.dumps(result, indent=1) + "\n")
        with contextlib.suppress(OSError):
            (self.path / "checkpoint.safetensors").unlink(missing_ok=True)
        return result

    def result(self) -> dict[str, Any]:
        """The result of the finished run."""
        return read_result(self.path) if self.processes.is_main else {}

    # --- entering and leaving ---------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        self._new = files.make_folder(self.path, "out")
        try:
            self._lock.enter_context(files.lock(self.path / ".lock"))
        except files.Locked:
            raise UserError(f"Another process is training in {self.path}; use another folder.", "out") from None

    def _forget_start(self) -> None:
        """Remove the configuration of a run that ended with an error before its training began.

        If it replaced that of an earlier run, which can still be resumed, that one is restored.
        """
        with contextlib.suppress(OSError):
            if any((self.path / name).exists() for name in FILES if name != "config.toml"):
                return
            if self._replaced is None:
                (self.path / "config.toml").unlink(missing_ok=True)
            else:
                files.atomic_write(self.path / "config.toml", self._replaced)

    def _release(self, failed: bool) -> None:
        with contextlib.suppress(OSError):
            if failed and self._new and {path.name for path in self.path.iterdir()} <= {".lock"}:
                (self.path / ".lock").unlink(missing_ok=True)
                self.path.rmdir()
        self._lock.close()

    def _check(self) -> bool:
        """Check what the folder contains; whether the run is finished."""
        with files.reading(self.path, option="out"):
            found = [name for name in FILES if (self.path / name).exists()]
        if not found:
            return False
        if not self.resume and found == ["config.toml"] and _is_as_written(self.path / "config.toml"):
            with files.reading(self.path / "config.toml"):  # nothing else was kept; it may be another one now
                self._replaced = (self.path / "config.toml").read_bytes()
            return False
        if not self.resume:
            raise UserError(
                f"{self.path} already contains a run ({', '.join(found)}); resume it, or use another folder.",
                "resume",
            )
        if "config.toml" not in found:
            raise UserError(f"{self.path} contains {', '.join(found)} but no config.toml; use another folder.", "out")
        changed = differences(read_toml(self.path / "config.toml", type(self.config)), self.config)
        if changed:
            raise UserError(
                f"{self.path} contains a run with another configuration ({'; '.join(changed)}); use that of its "
                "config.toml, or another folder.",
                "out",
            )
        if _is_as_written(self.path / "config.toml") is False:
            raise UserError(
                f"{self.path / 'config.toml'} was changed after the run began; restore it, or start another run with "
                "it as configuration.",
                "resume",
            )
        if not {"result.json", "checkpoint.safetensors"} & set(found):
            log.info("%s has no checkpoint yet; the run starts from the beginning", self.path)
        return "result.json" in found

    # --- before the first step --------------------------------------------------------------------------------------

    def _restore(self, loop: TrainingLoop) -> None:
        """Continue from the checkpoint, if there is one; all processes must then agree."""
        path = self.path / "checkpoint.safetensors"
        if path.exists():
            try:
                tensors, record = files.read_checkpoint(path)
            except UserError as error:
                raise UserError(f"{error} Restore a copy of it, or delete it to start again.") from None
            if record.get("config") != loop.config_hash:
                raise UserError(f"{path} belongs to another configuration; nothing was changed.")
            with files.reading(path, "restore a copy of it, or delete it to start again"):
                loop.restore(tensors, record)
                _check_position(loop, path)
            _warn_if_rounding_differs(record.get("computed_by"), _computed_by(loop))
            log.info("continuing in epoch %d of %d", min(loop.epoch + 1, loop.epochs), loop.epochs)
        if self.processes.world_size > 1:
            loop.check_in_sync()

    def _write_config(self) -> None:
        text = to_toml(self.config)
        files.atomic_write(self.path / "config.toml", f"{CHECKSUM}{_sha256(text)}\n{text}")

    def _write_start(self, loop: TrainingLoop) -> None:
        """Write config.toml and the metrics up to the checkpoint."""
        with contextlib.suppress(OSError):
            for leftover in self.path.glob(".*.tmp"):  # of a killed process, as the lock was free
                leftover.unlink()
        self._write_config()
        files.atomic_write(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in loop.history))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_as_written(path: Path) -> bool | None:
    """Whether a config.toml matches the checksum in its first line. None: it has none, so a run of this version did not
    write it."""
    with files.reading(path):
        first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    return first == f"{CHECKSUM}{_sha256(rest)}" if first.startswith(CHECKSUM) else None


def _computed_by(loop: TrainingLoop) -> dict[str, str]:
    """What rounding depends on: versions of the software, and the device with its number of threads."""
    return versions() | {"device": device_name(loop.device)}


def _warn_if_rounding_differs(before: Any, now: dict[str, str]) -> None:
    """A resumed run gives the same bytes only with the same software, device and number of threads."""
    known = before if isinstance(before, dict) else {}
    changed = [f"{name}: {known[name]} -> {now[name]}" for name in now if known.get(name, now[name]) != now[name]]
    if changed:
        log.warning("the run began with another setup (%s); results may differ in rounding", "; ".join(changed))


def _check_position(loop: TrainingLoop, path: Path) -> None:
    """Raise if a checkpoint continues at a place that this training does not have."""
    inside = 0 <= loop.epoch <= loop.epochs and 0 <= loop.step_in_epoch < loop.steps_per_epoch
    if not inside or len(loop.history) != loop.epoch:
        raise UserError(
            f"{path} continues at epoch {loop.epoch + 1}, step {loop.step_in_epoch + 1}, with the metrics of "
            f"{len(loop.history)} epochs, which does not fit a training of {loop.epochs}; delete it to start again."
        )


def read_result(folder: Path) -> dict[str, Any]:
    """Read the result.json of a finished run."""
    path = folder / "result.json"
    advice = "restore a copy, or delete it and run again"
    with files.reading(path, advice):
        stored = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(stored, dict) or "config_hash" not in stored:
        raise UserError(f"{path} is damaged (it is not a result); {advice}.")
    if files.is_altered(stored):
        raise UserError(f"{path} is damaged (its values do not match their SHA-256); {advice}.")
    return stored


class Stopped(KeyboardInterrupt):
    """A run was stopped by Ctrl-C or SIGTERM after a checkpoint was written. ``number``: the signal."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are only added to the list; a second one takes effect at once. In the main thread only."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def note(number: int, frame: Any) -> None:
        interrupts.append(number)
        restore()

    for number in STOP_SIGNALS:
        if previous[number] is not signal.SIG_IGN:  # a worker of a sweep ignores Ctrl-C
            signal.signal(number, note)
    try:
        yield interrupts
    finally:
        restore()
