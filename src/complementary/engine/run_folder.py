"""A job in a folder: started, interrupted, resumed and finished, without ever losing what is there.

| file | what |
|---|---|
| config.toml | the configuration |
| metrics.jsonl | one line per finished epoch; the same bytes however often the job was interrupted |
| checkpoint.safetensors | while it runs: everything needed to go on |
| result.json | written last; the job is finished once it is there |
"""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from complementary import files
from complementary.config import BaseConfig, differences, read_toml, to_toml
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import TrainingLoop
from complementary.errors import UserError

AnyLoop = TypeVar("AnyLoop", bound=TrainingLoop)


def carry_out(
    folder: Path,
    config: BaseConfig,
    make: Callable[[], AnyLoop],
    finish: Callable[[Path, AnyLoop], dict[str, Any]],
    *,
    resume: bool = False,
    checkpoint_seconds: float = 30.0,
    progress: Callable[[AnyLoop], None] | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Do the job that ``make`` makes, in ``folder`` -> what ``finish`` returns, also written to result.json.

    ``finish`` writes what the job leaves behind (weights). ``resume``: go on with the job that is there;
    one that is finished is not done again. Of a ``processes`` only process 0 writes, and returns something.
    """
    if not processes.is_main:
        _follow(folder, make, processes)
        return {}
    with _locked(folder):
        finished = _finished(folder, config, resume)
        processes.broadcast(torch.tensor(int(finished)))
        if finished:
            return result_of(folder)
        job = make()
        _restore(folder, job)
        _open(folder, config, job)
        loop(job, folder, checkpoint_seconds, progress)
        result = finish(folder, job)
        files.atomic_write(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        return result


def result_of(folder: Path) -> dict[str, Any]:
    """What the finished job in ``folder`` has left in result.json."""
    path = folder / "result.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or "config_hash" not in stored:
            raise ValueError("it holds no result")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({error}); put back a good copy, or delete it, and the run is made again."
        ) from None
    return stored


def _follow(folder: Path, make: Callable[[], TrainingLoop], processes: ProcessGroup) -> None:
    """The part of a process that writes nothing: the same steps on other examples."""
    if not int(processes.broadcast(torch.tensor(0))):
        job = make()
        _restore(folder, job)
        loop(job)


def loop(
    job: AnyLoop,
    folder: Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: Callable[[AnyLoop], None] | None = None,
) -> None:
    """Train to the end, appending to metrics.jsonl and saving checkpoints if there is a folder.

    Ctrl-C is heard after the step, so that nothing done so far is lost.
    """
    saved = time.monotonic()
    patient = folder is not None and job.processes.size == 1  # several would not stop at the same step
    with contextlib.closing(job), _heard_later() if patient else contextlib.nullcontext(list[int]()) as interrupted:
        while not job.done:
            closed = job.advance()
            if folder is not None:
                if closed:
                    with (folder / "metrics.jsonl").open("a") as file:
                        file.write(_line(job.history[-1]))
                if time.monotonic() - saved >= checkpoint_seconds or job.done:
                    _save(job, folder)
                    saved = time.monotonic()
            if progress is not None:
                progress(job)
            if interrupted and folder is not None:
                _save(job, folder)
                where = f"stopped in {job.stage}epoch {job.epoch + 1} of {job.epochs}"
                raise KeyboardInterrupt(f"{where}; --resume --out {folder} goes on")


def _save(job: TrainingLoop, folder: Path) -> None:
    job.check_health()
    files.write_checkpoint(folder / "checkpoint.safetensors", *job.state())


@contextlib.contextmanager
def _heard_later() -> Iterator[list[int]]:
    """Ctrl-C only enters the list that is given; a second one interrupts at once. In the main thread, that is."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    usual = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def note(number: int, frame: Any) -> None:
        heard.append(number)
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, usual)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; a second process is turned away.

    A folder that was made for a job which could not even begin goes again.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be made ({error.strerror}); choose another --out.") from None
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.lock(folder / ".lock"))
        except files.Locked:
            raise UserError(f"Another process is training in {folder}; wait for it or choose another --out.") from None
        try:
            yield
        except BaseException:
            if new and {path.name for path in folder.iterdir()} <= {".lock"}:
                (folder / ".lock").unlink(missing_ok=True)
                folder.rmdir()
            raise


def _finished(folder: Path, config: BaseConfig, resume: bool) -> bool:
    """Check what the folder holds -> whether this very run is already complete there."""
    names = ("config.toml", "metrics.jsonl", "result.json", "checkpoint.safetensors")
    found = [name for name in names if (folder / name).exists()]
    if not found:
        return False
    if not resume:
        raise UserError(
            f"{folder} already holds a run ({', '.join(found)}); pass --resume to go on with it, or another --out."
        )
    if "config.toml" in found:
        changed = differences(read_toml(folder / "config.toml", type(config)), config)
        if changed:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changed)}); resume it with "
                f"--config {folder}/config.toml, or choose another --out."
            )
    else:
        raise UserError(
            f"{folder} holds {', '.join(found)} but no config.toml, so it cannot be resumed; choose another --out."
        )
    return "result.json" in found


def _restore(folder: Path, job: TrainingLoop) -> None:
    """Go back to the checkpoint if there is one; all processes must then stand at the same place."""
    path = folder / "checkpoint.safetensors"
    if path.exists():
        try:
            tensors, record = files.read_checkpoint(path)
        except UserError as error:
            raise UserError(f"{error} Delete it to start the run again, or put back a good copy.") from None
        if record.get("config") != job.config_hash:
            raise UserError(f"{path} belongs to another configuration; nothing was changed. Choose another --out.")
        job.restore(tensors, record)
    job.check_same()


def _open(folder: Path, config: BaseConfig, job: TrainingLoop) -> None:
    """Bring config.toml and metrics.jsonl in step with the job."""
    for leftover in folder.glob(".*.tmp"):  # of a process killed while it wrote; the lock says it is gone
        leftover.unlink()
    files.atomic_write(folder / "config.toml", to_toml(config).encode())
    files.atomic_write(folder / "metrics.jsonl", "".join(map(_line, job.history)).encode())


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"
