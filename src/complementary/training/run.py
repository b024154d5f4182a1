"""A whole run in a folder: configuration in, metrics, weights and a result out, resumable at any moment.

| file | what |
|---|---|
| config.toml | the configuration; ``cll train --config`` repeats the run from it |
| metrics.jsonl | one line per finished epoch; the same bytes however often the run was interrupted |
| checkpoint.safetensors | while it runs: everything needed to go on |
| last.safetensors, selected.safetensors | weights after the last epoch, and after the one SCEL chose |
| encoder.safetensors | where the network learnt from features: what makes them |
| result.json | written last: accuracies, noise ratio, speed, versions |
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import files, transitions
from complementary.config import Config
from complementary.data import Dataset
from complementary.engine.backend import Engine, device_name, versions
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.run_folder import carry_out, loop
from complementary.scores import thirds
from complementary.training.self_training import SelfTrainer
from complementary.training.task import Task, prepare
from complementary.training.trainer import Trainer

Progress = Callable[[Trainer], None]


def run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str | Engine = "auto",
    checkpoint_seconds: float = 30.0,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Train as ``config`` says and return the result (the content of result.json).

    ``out``: the run's folder; None keeps everything in memory. ``resume``: go on with the run that is
    there. ``progress`` is called after every step, also of a first training (see `start`). ``dataset``: use this one,
    whatever the configuration names. ``processes``: the processes that share the work; only the one that leads returns
    something.
    """
    if out is None:
        trainer = start(config, device, dataset, processes, progress)
        loop(trainer, progress=progress)
        return summarise(trainer)
    return carry_out(
        Path(out),
        config,
        lambda: start(config, device, dataset, processes, progress),
        _close,
        resume=resume,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
        processes=processes,
    )


def start(
    config: Config,
    device: str | Engine = "auto",
    dataset: Dataset | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
    progress: Progress | None = None,
) -> Trainer:
    """Prepare data and network. Trained is only what comes first: to estimate a transition matrix, and on features
    before their encoder is refined; a run that is resumed repeats that."""
    engine = Engine.of(device)
    task = prepare(config, dataset, str(engine.device))
    if config.training.transition == "estimate":
        task = _with_estimate(config, task, engine, processes, progress)
    if not config.training.self_training:
        return Trainer(config, task, engine, processes)
    self_trainer = _refiner(config, task, dataset, engine, processes)  # says what is wrong before anything is trained
    first = _trained(config, task, engine, processes, "on features, ", progress)
    if first.selected:
        first.model.load_state_dict(first.selected)
    self_trainer.begin(processes.broadcast(_predictions(first, task)), accuracies(first.history))
    return self_trainer


def _with_estimate(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, progress: Progress | None = None
) -> Task:
    """Train plainly for a while, then read the transition matrix off the anchor points; no truth involved."""
    plain = config.with_(loss="s-nl", mix="none", transition="auto", epochs=config.training.estimate_epochs)
    first = _trained(plain, task, engine, processes, "for the matrix, ", progress)
    matrix = processes.broadcast(transitions.estimate_transition(_predictions(first, task), task.excluded))
    return dataclasses.replace(task, transition=matrix, loss_transition=matrix)


def _refiner(
    config: Config, task: Task, dataset: Dataset | None, engine: Engine, processes: ProcessGroup
) -> SelfTrainer:
    """What refines the encoder of ``task``, on the same examples as pictures."""
    assert task.lens is not None  # the configuration says so
    pictures = prepare(config.with_(inputs="raw", self_training=0), dataset, str(engine.device))
    matrices: dict[str, Any] = {"transition": task.transition, "loss_transition": task.loss_transition}
    return SelfTrainer(config, dataclasses.replace(pictures, **matrices), task.lens, engine, processes)


def _trained(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, stage: str, progress: Progress | None
) -> Trainer:
    """A training that comes first, at its end."""
    trainer = Trainer(config, task, engine, processes)
    trainer.stage = stage
    loop(trainer, progress=progress)
    return trainer


def _predictions(trainer: Trainer, task: Task) -> Tensor:
    """Probabilities [N, K], on the CPU, for the training examples of all processes."""
    inputs = trainer.task.train if trainer.processes.size == 1 else task.train
    return trainer.logits(inputs).softmax(1).cpu()


def _close(folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Write the weights, of the last epoch and of the selected one."""
    p = trainer.task
    record = {
        "config": trainer.config.hash(),
        "classes": p.classes,
        "model": trainer.model.kind,
        "max_pool": trainer.model.max_pool,
        "shape": list(p.shape),
        "mean": p.mean.tolist(),
        "std": p.std.tolist(),
        "features": p.lens is not None,
    }
    files.write_checkpoint(folder / "last.safetensors", trainer.model.state_dict(), record)
    if trainer.selected:
        files.write_checkpoint(folder / "selected.safetensors", trainer.selected, record)
    if p.lens is not None:
        p.lens.write(folder / "encoder.safetensors")
    return summarise(trainer)


# --- the result -----------------------------------------------------------------------------------


def summarise(trainer: Trainer) -> dict[str, Any]:
    """The result of a finished run, as in result.json. Fractions, not percent; None where it cannot be known."""
    history, facts = trainer.history, dict(trainer.task.facts)
    images = len(history) * trainer.steps_per_epoch * trainer.config.training.batch
    last, selected = history[-1], _selected(history)
    known = "accuracy" in last
    return {
        **accuracies(history),
        **(_before(trainer.before) if isinstance(trainer, SelfTrainer) else {}),
        **({f"{k}_last": v for k, v in _by_class(last, facts).items()} if known else {}),
        **({f"{k}_selected": v for k, v in _by_class(selected, facts).items()} if known and selected else {}),
        "noise_ratio": facts.pop("oracle_noise_ratio", None),
        "images_per_second": round(images / trainer.seconds, 1) if trainer.seconds else None,
        "train_seconds": round(trainer.seconds, 3),
        "data": facts,
        "config": dataclasses.asdict(trainer.config),
        "config_hash": trainer.config.hash(),
        "device": device_name(trainer.device),
        "processes": trainer.processes.size,
        "precision": trainer.engine.precision,
        "versions": versions(),
    }


def _before(first: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_before_refining": first.get(name) for name in ("accuracy_last", "accuracy_selected")}


def accuracies(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies after the last epoch, the one that SCEL chose, and the best one on the test set."""
    selected = _selected(history)
    best = max(history, key=lambda row: row["accuracy"]) if "accuracy" in history[-1] else None
    return {
        "accuracy_last": history[-1].get("accuracy"),
        "accuracy_selected": selected.get("accuracy") if selected else None,
        "selected_epoch": selected["epoch"] if selected else None,
        "estimated_accuracy_selected": selected["estimated_accuracy"] if selected else None,
        "estimated_accuracy_error": selected["estimated_accuracy_error"] if selected else None,
        "accuracy_best_on_test": best["accuracy"] if best else None,
        "best_epoch_on_test": best["epoch"] if best else None,
    }


def _selected(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(history, key=lambda row: row["scel"]) if "scel" in history[-1] else None


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
