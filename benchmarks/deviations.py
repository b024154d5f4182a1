"""How far every loss is from a slow reference of its formula, and from libcll.

    python -m benchmarks.deviations     # writes results/methods/deviations.json, which is part of docs/notes/methods.md

The references are those of the tests: Python numbers in float64, written from the papers. The values of libcll are its
formulas, evaluated once in float64 at fixed logits, with its own factors (see docs/guide/methods.md).
"""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import transitions
from complementary.files import atomic_write
from complementary.losses import LOSSES
from complementary.rng import generator

OUT = Path("results/methods/deviations.json")
BATCHES = 100
FLOOR = 0.1  # smaller values count as this much, so that a relative deviation means something
NEAR_ZERO = 1e-4  # GA is not continuous: batches with a partial risk nearer to 0 are left out


def random_batch(number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits [B, K], one to three labels [B, K], a biased matrix [K, K] and a class prior [K]."""
    source = generator(number, "deviations")
    classes, count = int(torch.randint(4, 11, (), generator=source)), int(torch.randint(4, 33, (), generator=source))
    logits, order = (torch.randn(count, classes, generator=source) for _ in range(2))
    several = torch.randint(1, 4, (count, 1), generator=source)
    excluded = (order.argsort(1).argsort(1) < several).float()
    prior = torch.rand(classes, generator=source) + 0.2
    return 2 * logits, excluded, transitions.biased(classes, 5), prior / prior.sum()


def mean(losses: Tensor, excluded: Tensor) -> float:
    """The mean over examples with a label."""
    return float(losses.double().sum() / (excluded.sum(1) > 0).sum())


def deviation(found: float, wanted: float) -> float:
    """Relative to the wanted value, or to `FLOOR` if that is larger."""
    return abs(found - wanted) / max(abs(wanted), FLOOR)


def from_reference(name: str, references: Any) -> float:
    """The largest deviation of a loss from its reference over random batches."""
    worst = 0.0
    for number in range(BATCHES):
        batch = random_batch(number)
        logits, excluded, matrix, prior = (part.tolist() for part in batch)
        if name in ("ure-ga", "ure-tga"):
            used = matrix if name == "ure-tga" else references.uniform(len(matrix))
            if min(map(abs, references.partial_risks(logits, excluded, used))) < NEAR_ZERO:
                continue
        found = mean(LOSSES[name](*batch), batch[1])
        worst = max(worst, deviation(found, references.SLOW[name](logits, excluded, matrix, prior)))
    return worst


def from_libcll(name: str, references: Any, values: dict[str, tuple[float, float]]) -> float | None:
    """The deviation of a loss from libcll's value; None if there is no such value."""
    if name not in values:
        return None
    logits, excluded = references.FIXED, references.FIXED_LABELS
    found = mean(LOSSES[name](logits, excluded, transitions.biased(4, 10), torch.full((4,), 0.25)), excluded)
    value, factor = values[name]
    return deviation(found, value * factor)


def main() -> None:
    """Write the deviations of all losses."""
    references = importlib.import_module("tests.losses.references")
    values = importlib.import_module("tests.losses.test_table").LIBCLL
    formulas = {name: from_reference(name, references) for name in LOSSES}
    found = {name: [formulas[name], from_libcll(name, references, values)] for name in LOSSES}
    atomic_write(OUT, json.dumps(found, indent=1) + "\n")
    print(f"largest: {max(formulas.values()):.0e} from a formula; written to {OUT}")


if __name__ == "__main__":
    main()
