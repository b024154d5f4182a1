"""k-means in two stages, on a sample and then on all points, against k-means on all points: time and inertia.

    python -m benchmarks.kmeans 400000

The points are unit vectors around 200 centers, 64 dimensions; 50 clusters, 3 restarts, one thread.
"""

import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.clusters import kmeans
from complementary.rng import generator

DIMENSIONS, CENTERS, CLUSTERS, RESTARTS = 64, 200, 50, 3


@dataclass(frozen=True)
class Measured:
    """CPU seconds and inertia of a clustering."""

    cpu_seconds: float
    inertia: float


def points(count: int) -> Tensor:
    """Unit vectors, float32 [N, D]."""
    source = generator(0, "benchmark points")
    centers = 0.6 * torch.randn(CENTERS, DIMENSIONS, generator=source)
    noise = 0.5 * torch.randn(count, DIMENSIONS, generator=source)
    return F.normalize(noise + centers[torch.randint(CENTERS, (count,), generator=source)])


def measure(vectors: Tensor, one_stage: bool) -> Measured:
    """Cluster ``vectors`` [N, D] in one stage or two."""
    before, started = kmeans.LARGE, time.process_time()
    kmeans.LARGE = 2**62 if one_stage else before
    try:
        found = kmeans.kmeans(vectors, CLUSTERS, seed=0, restarts=RESTARTS)
    finally:
        kmeans.LARGE = before
    return Measured(time.process_time() - started, found.inertia)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("points", type=int, nargs="+", help="numbers of points")
    torch.set_num_threads(1)
    print("| points | on all points, CPU s | in two stages, CPU s | inertia of two stages |\n|---|---|---|---|")
    for count in parser.parse_args(arguments).points:
        vectors = points(count)
        whole, staged = (measure(vectors, one_stage) for one_stage in (True, False))
        difference = 100 * (staged.inertia / whole.inertia - 1)
        print(f"| {count:,} | {whole.cpu_seconds:.1f} | {staged.cpu_seconds:.1f} | {difference:+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
