"""Training speed of classifiers and encoders: whole steps, their stages, several trainings on one GPU."""

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.setting import (
    Net,
    Row,
    Setting,
    by_events,
    in_turn,
    log,
    new_peak,
    random_batch,
    times_as_fast,
    wait,
)
from complementary.config import PretrainConfig
from complementary.encoders.pretrain import Pretrainer
from complementary.engine.backend import WARM_UP, Captured, together
from complementary.engine.loop import TrainingLoop
from complementary.rng import generator
from complementary.training.trainer import Trainer

Part = Callable[[Tensor, torch.Generator], Tensor]
AnyLoop = TypeVar("AnyLoop", bound=TrainingLoop)
SETTLED = WARM_UP + 3  # steps after which a captured step is replayed, with one replay to spare


def stepper(loop: TrainingLoop) -> Callable[[], None]:
    """A function that does the next step of ``loop``; epochs never end, because evaluation is timed separately."""

    def step() -> None:
        if loop.step_in_epoch + 1 >= loop.steps_per_epoch:
            loop.step_in_epoch = 0
        loop.advance()

    return step


def repeat(call: Callable[[], Any], times: int) -> Callable[[], None]:
    """Several calls as one."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def started(make: Callable[[], AnyLoop], device: torch.device) -> tuple[AnyLoop, Row]:
    """A loop after its warm-up; seconds to its first step and to its first replayed step; its memory on a GPU."""
    before, began = new_peak(device), time.perf_counter()
    loop = make()
    step = stepper(loop)
    step()
    wait(device)
    row: Row = {"first_step_s": time.perf_counter() - began}
    if device.type == "cuda":
        repeat(step, SETTLED)()
        wait(device)
        row |= {"ready_s": time.perf_counter() - began, "peak_bytes": torch.cuda.max_memory_allocated(device) - before}
    return loop, row


def trainer_of(setting: Setting, net: Net, mix: str, seed: int = 0) -> Callable[[], Trainer]:
    """A function that creates a classifier on the synthetic images."""
    return functools.partial(Trainer, setting.config(net, mix, seed=seed), setting.task, setting.engine)


# --- whole steps ----------------------------------------------------------------------------------


def steps(setting: Setting) -> list[Row]:
    """A step without mixing, with Mixup, ICM and MICM; the first row is the time of the imports."""
    rows = [] if setting.scale.images < 1000 else [{"network": "(imports alone)", "first_step_s": _imports()}]
    return rows + [row for net in setting.scale.networks for row in _mixers(setting, net)]


def no_max_pool(setting: Setting) -> list[Row]:
    """The same for the network without max-pool."""
    return [row for net in setting.scale.no_max_pool for row in _mixers(setting, net)]


def _imports() -> float | None:
    """Seconds until a new process has imported what training needs and has initialized the device; None on error."""
    code = "import torch, complementary.training.run; torch.cuda.is_available() and torch.zeros(1, device='cuda')"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    return time.perf_counter() - began if done.returncode == 0 else None


def _mixers(setting: Setting, net: Net) -> list[Row]:
    starts: dict[str, Row] = {}
    variants: dict[str, Callable[[], Any]] = {}
    for mix in sorted(net.mixers, key=lambda name: name != "icm"):  # ICM first: its start includes the compilation
        log.info("%s, %s: first steps", net.label, mix)
        loop, starts[mix] = started(trainer_of(setting, net, mix), setting.device)
        variants[mix] = stepper(loop)
    log.info("%s: %d rounds of %d steps for each of %s", net.label, net.rounds, net.steps, ", ".join(net.mixers))
    timings = in_turn({mix: variants[mix] for mix in net.mixers}, net.rounds, net.steps, setting.device)
    rows = []
    for mix, timing in timings.items():
        row = {"network": net.label, "mix": mix, "batch": net.batch, "images_per_second": net.batch / timing.median}
        row |= {"speed_to_none": times_as_fast(timing, timings["none"])}
        rows.append(row | timing.row() | starts[mix])
    return rows


# --- stages ---------------------------------------------------------------------------------------


def stages(setting: Setting) -> list[Row]:
    """Each stage of an ICM step, the whole step, the mixing of MICM, and an evaluation of the test set."""
    return [row for net in setting.scale.networks for row in _stages(setting, net)]


def _stages(setting: Setting, net: Net) -> list[Row]:
    log.info("%s: each stage alone", net.label)
    scale, whole, trainer = setting.scale, trainer_of(setting, net, "icm")(), trainer_of(setting, net, "icm")()
    index = random_batch(len(setting.task.inputs), net.batch, setting.device)
    parts = _parts(trainer, trainer_of(setting, net, "micm")(), index) | {"whole step (icm)": whole.step}
    calls = {name: replayed(setting, part, index, number) for number, (name, part) in enumerate(parts.items())}
    timings = in_turn(calls, scale.stage_rounds, scale.stage_calls, setting.device, by_events)
    repeat(whole.evaluate, SETTLED if setting.device.type == "cuda" else 0)()
    evaluation: dict[str, Callable[[], Any]] = {"evaluate the test set": whole.evaluate}
    timings |= in_turn(evaluation, scale.stage_rounds, 1, setting.device)
    step = timings["whole step (icm)"].median
    rows = []
    for name, timing in timings.items():
        share = timing.median / step if name in parts else None
        rows.append({"network": net.label, "batch": net.batch, "stage": name, "share_of_step": share} | timing.row())
    return rows


def _parts(icm: Trainer, micm: Trainer, index: Tensor) -> dict[str, Part]:
    """The stages of a step on one loaded batch: functions of the index, int [B], and a generator."""
    x, excluded = icm.load(index, icm.random)

    def load(index: Tensor, random: torch.Generator) -> Tensor:
        return icm.load(index, random)[0]

    def mix(trainer: Trainer) -> Part:
        return lambda index, random: mixed(trainer, x, excluded, index, random)[0]

    def learn(index: Tensor, random: torch.Generator) -> Tensor:
        return forward_backward(icm, icm.model, x, excluded)

    def update(index: Tensor, random: torch.Generator) -> Tensor:
        icm.optimizer.step()
        return icm.loss_sum

    named = {"load": load, "mix (icm)": mix(icm), "forward + backward": learn, "optimizer": update}
    return named | {"mix (micm)": mix(micm)}


def mixed(
    trainer: Trainer, x: Tensor, excluded: Tensor, index: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix x [B, ...] and excluded [B, K] of the examples at ``index`` as the step of ``trainer`` does."""
    assert trainer.mixer is not None
    draw = trainer.mixer.draw(len(index), trainer.device, random)
    result: tuple[Tensor, Tensor] = trainer.mix(trainer.mixer, x, excluded, trainer.task.cluster, index, draw, random)
    return result


def forward_backward(trainer: Trainer, model: nn.Module, x: Tensor, excluded: Tensor) -> Tensor:
    """The part of a step between mixing and update: x [B, ...], excluded [B, K] -> loss, with gradients set."""
    model.train()
    with trainer.engine.autocast():
        logits = trainer.forward(model, x)
    loss: Tensor = trainer.loss(logits, excluded).mean()
    model.zero_grad(set_to_none=True)
    loss.backward()
    return loss.detach()


def replayed(setting: Setting, part: Part, index: Tensor, number: int = 0) -> Callable[[], Any]:
    """A part of a step after its warm-up; on a GPU the replay of a graph captured as in training."""
    random = generator(0, "bench stage", number, device=setting.device)
    captured = setting.engine.captured(part)
    for _ in range(SETTLED if setting.device.type == "cuda" else 1):
        captured(index, random)
    if isinstance(captured, Captured) and captured.graph is not None:
        graph = captured.graph

        def replay() -> Captured:
            graph.replay()
            return captured  # keeps the memory of the graph alive

        return replay
    return lambda: captured(index, random)


# --- several trainings ----------------------------------------------------------------------------


def packing(setting: Setting) -> list[Row]:
    """Total speed of several ICM trainings on one device."""
    net, scale = setting.scale.networks[0], setting.scale
    log.info("%s: %s trainings at once", net.label, ", ".join(map(str, scale.packs)))
    trainers = [trainer_of(setting, net, "icm", seed)() for seed in range(max(scale.packs))]
    _all_at_once(trainers, SETTLED, setting.device)

    def pack(count: int) -> Callable[[], None]:
        return lambda: _all_at_once(trainers[:count], net.steps, setting.device)

    timings = in_turn({str(n): pack(n) for n in scale.packs}, min(net.rounds, 5), 1, setting.device)
    alone = timings[str(scale.packs[0])]
    rows = []
    for name, timing in timings.items():
        count = int(name)
        row = {"network": net.label, "batch": net.batch, "trainings": count} | timing.per(net.steps).row()
        row |= {"images_per_second": count * net.batch * net.steps / timing.median}
        rows.append(row | {"times_alone": count * times_as_fast(timing, alone) / scale.packs[0]})
    return rows


def _all_at_once(trainers: list[Trainer], count: int, device: torch.device) -> None:
    """Run ``count`` steps of every trainer in parallel; raise the first error."""
    for result in together([repeat(stepper(trainer), count) for trainer in trainers], device):
        if isinstance(result, Exception):
            raise result


# --- encoders -------------------------------------------------------------------------------------


def simsiam(setting: Setting) -> list[Row]:
    """Views per second of SimSiam."""
    return _pretraining(setting, "simsiam")


def byol(setting: Setting) -> list[Row]:
    """Views per second of BYOL."""
    return _pretraining(setting, "byol")


def mocov3(setting: Setting) -> list[Row]:
    """Views per second of MoCo v3."""
    return _pretraining(setting, "mocov3")


def _pretraining(setting: Setting, encoder: str) -> list[Row]:
    scale = setting.scale
    log.info("%s, %s: first steps, then %d steps per round", encoder, scale.body, scale.pretrain_steps)
    config = PretrainConfig.of(
        data="synthetic", encoder=encoder, backbone=scale.body, batch=scale.pretrain_batch, epochs=1_000_000
    )
    loop, start = started(functools.partial(Pretrainer, config, setting.dataset, setting.engine), setting.device)
    rounds = scale.networks[0].rounds
    timing = in_turn({encoder: stepper(loop)}, rounds, scale.pretrain_steps, setting.device)[encoder]
    row = {"encoder": encoder, "body": scale.body, "batch": scale.pretrain_batch}
    row |= {"views_per_second": 2 * scale.pretrain_batch / timing.median}
    return [row | timing.row() | start]
