"""Speed of training on streamed images, compared with resident ones, and of the copies alone."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.data.rows import Rows
from complementary.engine.backend import WARM_UP, Engine, device_name
from complementary.engine.batches import Prefetcher
from complementary.rng import generator
from complementary.training.task import build_task
from complementary.training.trainer import Trainer

CLASSES = 10


def stream_speed(
    device: str | Engine = "auto",
    *,
    images: int = 20_000,
    size: int = 224,
    model: str = "resnet18",
    batch: int = 256,
    steps: int = 60,
    mix: str = "mixup",
    folder: str | Path | None = None,
) -> dict[str, Any]:
    """Train on random images uint8 [N, 3, size, size] in a memory map, resident and streamed.

    Returns:
        One row: images per second of both and their ratio; GB per second of gathering rows from the map (in the page
        cache after the first pass), and of gathering and copying to the device without a network.
    """
    engine = Engine.of(device)
    with written(images, size, folder) as inputs:
        row: dict[str, Any] = {"device": device_name(engine.device), "images": images, "size": size, "model": model}
        row |= {"batch": batch, "gigabytes": inputs.nbytes / 1e9}
        random = generator(0, "stream speed")
        plan = [torch.randint(images, (batch,), generator=random) for _ in range(steps)]
        seconds = _seconds(lambda: [inputs[rows] for rows in plan], engine)
        row["gathered_gb_per_second"] = steps * batch * inputs[:1].nbytes / 1e9 / seconds
        seconds = _seconds(lambda: _through(Prefetcher(Rows(inputs), plan, batch, engine.device)), engine)
        row["copied_gb_per_second"] = steps * batch * inputs[:1].nbytes / 1e9 / seconds
        options = {"model": model, "batch": batch, "mix": mix, "holdout": 0.0, "epochs": 1_000_000}
        for how in ("never", "always"):
            name = "resident" if how == "never" else "streamed"
            speed = _training(inputs, dataclasses.replace(engine, stream=how), options, steps)
            row[f"{name}_images_per_second"] = speed
    row["streamed_to_resident"] = row["streamed_images_per_second"] / row["resident_images_per_second"]
    return row


@contextlib.contextmanager
def written(images: int, size: int, folder: str | Path | None = None) -> Iterator[Tensor]:
    """Random images uint8 [N, 3, size, size] in a memory-mapped file, which is deleted afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path, random = Path(place) / "images.npy", np.random.default_rng(0)
        array = np.lib.format.open_memmap(path, "w+", np.uint8, (images, 3, size, size))
        for start in range(0, images, 1000):
            part = array[start : start + 1000]
            part[:] = np.frombuffer(random.bytes(part.size), np.uint8).reshape(part.shape)
        array.flush()
        yield torch.from_numpy(np.load(path, mmap_mode="c"))


def _training(inputs: Tensor, engine: Engine, options: dict[str, Any], steps: int) -> float:
    """Images per second of training steps, after the steps that compile and capture."""
    truth, half = torch.arange(len(inputs)) % CLASSES, (0.5, 0.5, 0.5)
    names = tuple(map(str, range(CLASSES)))
    dataset = Dataset("random", Split(inputs, truth), None, names, half, half)
    config = Config.of(data="random", **options)
    trainer = Trainer(config, build_task(config, dataset, str(engine.device)), engine)
    with contextlib.closing(trainer):
        for _ in range(WARM_UP + 2):
            trainer.advance()
        seconds = _seconds(lambda: [trainer.advance() for _ in range(steps)], engine)
    return steps * trainer.batch / seconds


def _through(batches: Prefetcher) -> None:
    for _ in batches:
        pass


def _seconds(work: Callable[[], object], engine: Engine) -> float:
    _wait(engine)
    started = time.perf_counter()
    work()
    _wait(engine)
    return time.perf_counter() - started


def _wait(engine: Engine) -> None:
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
