"""Parts around training: k-means, label generation, streaming, and the cost of mixing as the data grows."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.setting import CLASSES, SHAPE, Row, Setting, by_events, in_turn, log, random_batch, times_as_fast
from benchmarks.streaming import stream_speed
from benchmarks.training import replayed
from complementary import labels, transitions
from complementary.clusters.kmeans import kmeans as our_kmeans
from complementary.mixing import ICM
from complementary.rng import generator
from complementary.training.trainer import mix


def kmeans(setting: Setting) -> list[Row]:
    """k-means on random blobs, and scikit-learn's with the same number of iterations if it is installed."""
    count, width, clusters, iterations = setting.scale.points
    points = _blobs(count, width, clusters)
    there = points.to(setting.device)
    inertia: dict[str, float] = {}

    def ours() -> None:
        inertia["ours"] = our_kmeans(there, clusters, restarts=1, iterations=iterations).inertia

    variants: dict[str, Callable[[], Any]] = {"ours": ours}
    if importlib.util.find_spec("sklearn") is not None:
        variants["scikit-learn (CPU)"] = _sklearn(points, clusters, iterations, inertia)
    log.info("k-means: %d x %d, K = %d, %d iterations: %s", *setting.scale.points, ", ".join(variants))
    timings = in_turn(variants, setting.scale.kmeans_rounds, 1, setting.device)
    rows = []
    for name, timing in timings.items():
        row = {"by": name, "points": count, "width": width, "clusters": clusters, "iterations": iterations}
        row |= {"inertia": inertia[name], "times_as_fast": times_as_fast(timings["ours"], timing)}
        rows.append(row | timing.row())
    return rows


def _blobs(count: int, width: int, clusters: int) -> Tensor:
    """Overlapping blobs float32 [N, D], four per cluster, so that no algorithm converges in two iterations."""
    source = generator(0, "bench points")
    centers = 0.3 * torch.randn(4 * clusters, width, generator=source)
    return centers[torch.arange(count) % len(centers)] + torch.randn(count, width, generator=source)


def _sklearn(points: Tensor, clusters: int, iterations: int, inertia: dict[str, float]) -> Callable[[], None]:
    from sklearn.cluster import KMeans

    def fit() -> None:
        found = KMeans(clusters, n_init=1, max_iter=iterations, random_state=0).fit(points.numpy())
        inertia["scikit-learn (CPU)"] = float(found.inertia_)

    return fit


def label_generation(setting: Setting) -> list[Row]:
    """Draw one uniform complementary label per example (always on the CPU)."""
    count = setting.scale.labels
    log.info("labels: %d uniform ones", count)
    truth = torch.randint(CLASSES, (count,), generator=generator(0, "bench truth"))
    transition = transitions.uniform(CLASSES)
    draw: dict[str, Callable[[], Any]] = {"labels": lambda: labels.draw(truth, transition)}
    timing = in_turn(draw, 5, 1, torch.device("cpu"))["labels"]
    return [{"labels": count, "classes": CLASSES, "labels_per_second": count / timing.median} | timing.row()]


def stream(setting: Setting) -> list[Row]:
    """Training on images prefetched from a memory map, and with all images on the device."""
    images, size, batch, steps = setting.scale.streamed
    log.info("stream: %d images of %d x %d: resident, then streamed, %d steps each", images, size, size, steps)
    model = setting.scale.networks[-1].model
    return [stream_speed(setting.engine, images=images, size=size, model=model, batch=batch, steps=steps)]


def scan(setting: Setting) -> list[Row]:
    """The mixing of ICM alone (captured on a GPU, not compiled) for growing batch, clusters, classes and examples."""
    scale = setting.scale
    usual = {"batch": scale.networks[0].batch, "clusters": scale.clusters, "classes": CLASSES, "examples": scale.images}
    grown = {"batch": scale.batches, "clusters": scale.many_clusters, "classes": scale.many_classes}
    rows = []
    for name, values in (grown | {"examples": scale.many_examples}).items():
        log.info("mixing alone, %s: %s", name, ", ".join(map(str, values)))
        calls = {str(value): _mixing(setting, **usual | {name: value}) for value in values}
        timings = in_turn(calls, scale.stage_rounds, 10 * scale.stage_calls, setting.device, by_events)
        first = timings[str(values[0])].median
        for value, timing in zip(values, timings.values(), strict=True):
            row = {"grows": name, "value": value, "times_first": timing.median / first}
            rows.append(row | usual | {name: value} | timing.row())
    return rows


def _mixing(setting: Setting, batch: int, clusters: int, classes: int, examples: int) -> Callable[[], Any]:
    """A function that looks up the labels and clusters of a batch among ``examples`` and mixes it."""
    source, device = generator(0, "bench scan"), setting.device
    examples = max(examples, batch)
    excluded = labels.one_hot(torch.randint(classes, (examples,), generator=source), classes).to(device)
    group = torch.randint(clusters, (examples,), generator=source).to(device)
    x = torch.randn(batch, *SHAPE, generator=source).to(device, memory_format=torch.channels_last)
    mixer = ICM()

    def part(index: Tensor, random: torch.Generator) -> Tensor:
        draw = mixer.draw(batch, device, random)
        return mix(mixer, x, excluded[index].float(), group, index, draw, random)[0]

    return replayed(setting, part, random_batch(examples, batch, device))
