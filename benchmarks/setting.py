"""What the benchmarks share: synthetic data, the amount of work, timers, memory.

Every number is measured several times after a warm-up and given as median and quartiles. Variants that are compared
are measured alternately (a, b, a, b ...), so that their ratio is meaningful on a shared machine.
"""

import dataclasses
import functools
import gc
import logging
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.engine.backend import Engine
from complementary.rng import generator
from complementary.training.task import Task, build_task

log = logging.getLogger("benchmarks")
Row = dict[str, Any]
SHAPE, CLASSES = (3, 32, 32), 10  # of CIFAR-10


@dataclass(frozen=True)
class Net:
    """A network to measure: for each mixer, ``rounds`` times ``steps`` steps."""

    model: str
    batch: int
    steps: int
    rounds: int
    mixers: tuple[str, ...] = ("none", "mixup", "icm", "micm")
    max_pool: bool = True

    @property
    def label(self) -> str:
        return self.model if self.max_pool else f"{self.model}, no max-pool"


@dataclass(frozen=True)
class Scale:
    """How much to measure: `GPU`, `CPU` or `QUICK`."""

    images: int
    test_images: int
    clusters: int
    networks: tuple[Net, ...]
    no_max_pool: tuple[Net, ...]
    body: str  # backbone of the encoders
    pretrain_batch: int
    pretrain_steps: int
    reference_steps: int  # of the plain loop; ours takes `speedup` times as many, so that both take long enough
    speedup: int
    reference_rounds: int
    stage_calls: int
    stage_rounds: int
    points: tuple[int, int, int, int]  # k-means: N, D, K, iterations
    kmeans_rounds: int
    labels: int
    packs: tuple[int, ...]
    batches: tuple[int, ...]
    many_clusters: tuple[int, ...]
    many_classes: tuple[int, ...]
    many_examples: tuple[int, ...]
    streamed: tuple[int, int, int, int]  # images, their size, batch, steps


GPU = Scale(
    images=50_000,
    test_images=10_000,
    clusters=50,
    networks=(Net("resnet18", 512, 60, 9),),
    no_max_pool=(Net("resnet18", 512, 40, 7, ("none", "icm"), max_pool=False),),
    body="resnet18",
    pretrain_batch=512,
    pretrain_steps=40,
    reference_steps=20,
    speedup=10,
    reference_rounds=3,
    stage_calls=20,
    stage_rounds=9,
    points=(50_000, 512, 50, 20),
    kmeans_rounds=2,
    labels=1_000_000,
    packs=(1, 2, 3, 4, 6),
    batches=(128, 256, 512, 1024, 2048, 4096),
    many_clusters=(10, 100, 1000),
    many_classes=(10, 100, 1000),
    many_examples=(10_000, 100_000, 1_000_000),
    streamed=(20_000, 224, 256, 60),
)
CPU = dataclasses.replace(
    GPU,
    images=10_000,
    test_images=1000,
    networks=(Net("cnn", 256, 1, 15), Net("resnet18", 32, 1, 7, ("none", "icm"))),
    body="cnn",
    pretrain_batch=128,
    pretrain_steps=1,
    reference_steps=4,
    speedup=1,
    reference_rounds=5,
    stage_calls=1,
    stage_rounds=7,
    points=(20_000, 256, 50, 20),
    batches=(128, 512, 2048, 4096),
    streamed=(256, 224, 16, 4),
)
QUICK = Scale(
    images=96,
    test_images=32,
    clusters=4,
    networks=(Net("cnn", 16, 1, 2),),
    no_max_pool=(Net("resnet18", 4, 1, 1, ("none", "icm"), max_pool=False),),
    body="cnn",
    pretrain_batch=16,
    pretrain_steps=1,
    reference_steps=2,
    speedup=1,
    reference_rounds=2,
    stage_calls=1,
    stage_rounds=2,
    points=(500, 16, 5, 5),
    kmeans_rounds=1,
    labels=1000,
    packs=(1, 2),
    batches=(16, 32),
    many_clusters=(2, 8),
    many_classes=(5, 10),
    many_examples=(100, 200),
    streamed=(32, 16, 8, 2),
)


@dataclass(frozen=True)
class Setting:
    """Where and how much to measure."""

    engine: Engine
    scale: Scale

    @property
    def device(self) -> torch.device:
        return self.engine.device

    @functools.cached_property
    def dataset(self) -> Dataset:
        """Random images of CIFAR-10's shape with random classes: speed does not depend on the content."""
        return synthetic(self.scale.images, self.scale.test_images)

    @functools.cached_property
    def task(self) -> Task:
        """The random images with uniform complementary labels and random clusters, on the device."""
        return clustered(self.dataset, self.scale.clusters).to(self.device)

    def config(self, net: Net, mix: str, **options: Any) -> Config:
        chosen: Row = {"mix": mix, "model": net.model, "max_pool": net.max_pool, "batch": net.batch, "clusters": 0}
        return Config.of(data="synthetic", holdout=0.0, epochs=1_000_000, **chosen, **options)


def synthetic(images: int, test_images: int, classes: int = CLASSES) -> Dataset:
    """A dataset of random images uint8 [N, 3, 32, 32] with random true classes."""
    source = generator(0, "bench")

    def split(count: int) -> Split:
        pixels = torch.randint(256, (count, *SHAPE), dtype=torch.uint8, generator=source)
        return Split(pixels, torch.randint(classes, (count,), generator=source))

    half = (0.5, 0.5, 0.5)
    return Dataset("synthetic", split(images), split(test_images), tuple(map(str, range(classes))), half, half)


def clustered(dataset: Dataset, clusters: int) -> Task:
    """All images of ``dataset`` with one uniform complementary label each, and random clusters."""
    task = build_task(Config.of(data="synthetic", mix="none", holdout=0.0, batch=2), dataset)
    group = torch.randint(clusters, (len(task.inputs),), generator=generator(0, "bench clusters"))
    return dataclasses.replace(task, cluster=group)


# --- timers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, for each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def per(self, parts: float) -> "Timing":
        """The time of one of the ``parts`` of a call."""
        return Timing(tuple(s / parts for s in self.seconds))

    def row(self) -> Row:
        """Median and quartiles in milliseconds, and the number of rounds."""
        low, _, high = (
            statistics.quantiles(self.seconds, n=4, method="inclusive") if len(self.seconds) > 1 else (self.seconds * 3)
        )
        return {"ms": 1e3 * self.median, "ms_low": 1e3 * low, "ms_high": 1e3 * high, "rounds": len(self.seconds)}


def times_as_fast(this: Timing, that: Timing) -> float:
    """How many times as fast ``this`` is as ``that``: median of the ratios of neighboring rounds."""
    return statistics.median(b / a for a, b in zip(this.seconds, that.seconds, strict=True))


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by_clock(call: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Wall-clock seconds per call, including the time until the device has finished."""
    wait(device)
    started = time.perf_counter()
    for _ in range(calls):
        call()
    wait(device)
    return (time.perf_counter() - started) / calls


def by_events(call: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Seconds per call measured with CUDA events; wall-clock seconds on a CPU."""
    if device.type != "cuda":
        return by_clock(call, calls, device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait(device)
    first.record()
    for _ in range(calls):
        call()
    last.record()
    wait(device)
    return float(first.elapsed_time(last)) / 1e3 / calls


def in_turn(
    variants: dict[str, Callable[[], Any]],
    rounds: int,
    calls: int,
    device: torch.device,
    clock: Callable[[Callable[[], Any], int, torch.device], float] = by_clock,
) -> dict[str, Timing]:
    """Time all variants once per round, in rotating order, after one warm-up call each."""
    for call in variants.values():
        call()
    names, found = list(variants), {name: list[float]() for name in variants}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(clock(variants[name], calls, device))
    return {name: Timing(tuple(seconds)) for name, seconds in found.items()}


# --- memory ---------------------------------------------------------------------------------------


def release_memory(device: torch.device) -> None:
    """Free the memory of earlier sections; a trainer and its graphs form reference cycles, so collect garbage."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reserved_memory(device: torch.device) -> int:
    """Bytes: on a GPU the memory reserved since `release_memory`; on a CPU the peak of this process."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest


def new_peak(device: torch.device) -> int:
    """Reset the peak of a GPU's tensor memory; return the bytes allocated now."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def random_batch(examples: int, batch: int, device: torch.device) -> Tensor:
    """Indices of a random batch, int [B]."""
    order = torch.randperm(examples, generator=generator(0, "bench batch", examples))
    return order[:batch].to(device)
