"""A whole run in a folder: configuration in, metrics, weights and a result out, resumable at any moment.

| file | what |
|---|---|
| config.toml | the configuration; ``cll train --config`` repeats the run from it |
| metrics.jsonl | one line per finished epoch; the same bytes however often the run was interrupted |
| checkpoint.safetensors | while it runs: everything needed to go on |
| last.safetensors, selected.safetensors | weights after the last epoch, and after the one SCEL chose |
| result.json | written last: accuracies, noise ratio, speed, versions |
"""

import contextlib
import dataclasses
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import complementary
from complementary import checkpoint, transitions
from complementary.config import Config, configure, differences, read_toml, to_toml
from complementary.data import Dataset
from complementary.errors import UserError
from complementary.problem import Problem, prepare
from complementary.train import Trainer
from complementary.validate import thirds

Progress = Callable[[Trainer], None]


def run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    checkpoint_seconds: float = 30.0,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Train as ``config`` says and return the result (the content of result.json).

    ``out``: the run's folder; None keeps everything in memory. ``resume``: go on with the run that is
    there. ``progress`` is called after every step. ``dataset``: use this one, whatever the configuration
    names.
    """
    if out is None:
        trainer = start(config, device, dataset)
        loop(trainer, progress=progress)
        return summarise(trainer)
    folder = Path(out)
    with _locked(folder):
        if _finished(folder, config, resume):
            result: dict[str, Any] = json.loads((folder / "result.json").read_text())
            return result
        trainer = start(config, device, dataset)
        _open(folder, config, trainer)
        loop(trainer, folder, checkpoint_seconds, progress)
        return _close(folder, trainer)


def start(config: Config, device: str = "auto", dataset: Dataset | None = None) -> Trainer:
    """Prepare data and network; nothing is trained yet but what estimating a transition matrix takes."""
    place = choose_device(device)
    problem = prepare(config, dataset)
    if config.training.transition == "estimate":
        problem = _with_estimate(config, problem, place)
    return Trainer(config, problem, place)


def choose_device(name: str) -> torch.device:
    """``auto`` takes a GPU if there is one; anything else is a torch device name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"The device {name!r} cannot be used on this machine; use auto or cpu.") from None
    return device


def loop(
    trainer: Trainer,
    folder: Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: Progress | None = None,
) -> None:
    """Train to the end, appending to metrics.jsonl and saving checkpoints if there is a folder."""
    saved = time.monotonic()
    while not trainer.done:
        closed = trainer.advance()
        if folder is not None:
            if closed:
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(_line(trainer.history[-1]))
            if time.monotonic() - saved >= checkpoint_seconds or trainer.done:
                trainer.check_health()
                checkpoint.write(folder / "checkpoint.safetensors", *trainer.state())
                saved = time.monotonic()
        if progress is not None:
            progress(trainer)


def _with_estimate(config: Config, problem: Problem, device: torch.device) -> Problem:
    """Train plainly for a while, then read the transition matrix off the anchor points; no truth involved."""
    first = configure(config, loss="s-nl", mix="none", transition="auto", epochs=config.training.estimate_epochs)
    trainer = Trainer(first, problem, device)
    loop(trainer)
    probabilities = trainer.logits(trainer.problem.inputs).softmax(1).cpu()
    matrix = transitions.estimate_transition(probabilities, problem.excluded)
    return dataclasses.replace(problem, transition=matrix, loss_transition=matrix)


# --- the folder -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; a second process is turned away. Without fcntl (Windows) there is no lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"The folder {folder} cannot be made ({problem.strerror}); choose another --out.") from None
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"Another process is training in {folder}; wait for it or choose another --out.") from None
        yield


def _finished(folder: Path, config: Config, resume: bool) -> bool:
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
        changed = differences(read_toml(folder / "config.toml"), config)
        if changed:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changed)}); resume it with "
                f"--config {folder}/config.toml, or choose another --out."
            )
    elif found:
        raise UserError(
            f"{folder} holds {', '.join(found)} but no config.toml, so it cannot be resumed; choose another --out."
        )
    return "result.json" in found


def _open(folder: Path, config: Config, trainer: Trainer) -> None:
    """Restore the checkpoint if there is one, and bring config.toml and metrics.jsonl in step with it."""
    for leftover in folder.glob(".*.tmp"):  # of a process killed while it wrote; the lock says it is gone
        leftover.unlink()
    path = folder / "checkpoint.safetensors"
    if path.exists():
        tensors, record = checkpoint.read(path)
        if record.get("config") != config.hash():
            raise UserError(f"{path} belongs to another configuration; nothing was changed. Choose another --out.")
        trainer.restore(tensors, record)
    checkpoint.write_bytes(folder / "config.toml", to_toml(config).encode())
    checkpoint.write_bytes(folder / "metrics.jsonl", "".join(map(_line, trainer.history)).encode())


def _close(folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Write the weights, then the result; a run is finished once result.json is there."""
    p = trainer.problem
    record = {
        "config": trainer.config.hash(),
        "classes": p.classes,
        "model": trainer.model_name,
        "max_pool": trainer.config.network.max_pool,
        "shape": list(p.inputs.shape[1:]),
        "mean": p.mean.tolist(),
        "std": p.std.tolist(),
    }
    checkpoint.write(folder / "last.safetensors", trainer.model.state_dict(), record)
    if trainer.selected:
        checkpoint.write(folder / "selected.safetensors", trainer.selected, record)
    result = summarise(trainer)
    checkpoint.write_bytes(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return result


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


# --- the result -----------------------------------------------------------------------------------


def summarise(trainer: Trainer) -> dict[str, Any]:
    """The result of a finished run, as in result.json. Fractions, not percent; None where it cannot be known."""
    history, facts = trainer.history, dict(trainer.problem.facts)
    images = len(history) * trainer.steps_per_epoch * trainer.config.training.batch
    last, known = history[-1], "accuracy" in history[-1]
    selected = min(history, key=lambda row: row["scel"]) if "scel" in last else None
    best = max(history, key=lambda row: row["accuracy"]) if known else None
    return {
        "accuracy_last": last.get("accuracy"),
        "accuracy_selected": selected.get("accuracy") if selected else None,
        "selected_epoch": selected["epoch"] if selected else None,
        "estimated_accuracy_selected": selected["estimated_accuracy"] if selected else None,
        "accuracy_best_on_test": best["accuracy"] if best else None,
        "best_epoch_on_test": best["epoch"] if best else None,
        **({f"{k}_last": v for k, v in _by_class(last, facts).items()} if known else {}),
        **({f"{k}_selected": v for k, v in _by_class(selected, facts).items()} if known and selected else {}),
        "noise_ratio": facts.pop("oracle_noise_ratio", None),
        "images_per_second": round(images / trainer.seconds, 1) if trainer.seconds else None,
        "train_seconds": round(trainer.seconds, 3),
        "data": facts,
        "config": dataclasses.asdict(trainer.config),
        "config_hash": trainer.config.hash(),
        "device": device_name(trainer.device),
        "versions": versions(),
    }


def _by_class(row: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    accuracy = torch.tensor([float("nan") if a is None else a for a in row["per_class"]], dtype=torch.float64)
    result: dict[str, Any] = {
        "per_class_accuracy": row["per_class"],
        "macro_accuracy": float(accuracy.nanmean()),
    }
    counts = facts.get("oracle_class_counts")
    if counts and max(counts) > 2 * min(counts):  # thirds mean nothing where classes are of one size
        result |= {f"{part}_accuracy": value for part, value in thirds(accuracy, torch.tensor(counts)).items()}
    return result


def device_name(device: torch.device) -> str:
    """``NVIDIA H200``, or ``cpu (2 threads)``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.get_num_threads()} threads)"


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    return {
        "complementary": complementary.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
