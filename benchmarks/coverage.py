"""How often the 95 % interval of the estimated accuracy contains the accuracy, over simulated data sets.

``python -m benchmarks.coverage`` runs everything (about 20 minutes on two idle cores) and writes
``results/coverage/*.json``; ``--only NAME ...`` runs some cases, ``--repeats N`` changes the number of data sets.

- ``fixed``: a classifier of known accuracy, fresh labels. Tests the interval itself.
- ``run``: whole trainings of the product on simulated data, which select an epoch; in some, the transition matrix is
  estimated. The accuracy is that of the selected epoch on a large test set.
"""

import argparse
import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import labels, scores, transitions
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.rng import generator
from complementary.training.run import run

TEST = 4000  # examples of a test set, which give the accuracy of a run to about half a point


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: Name of the case.
        labels: Distribution of the labels, as the option ``labels``.
        classes: Number of classes.
        examples: ``fixed``: labeled examples; ``run``: training examples, of which a share is held out.
        accuracy: ``fixed``: accuracy of the classifier; ``run``: ignored.
        per_example: Labels per example.
        tail: Ratio of the largest to the smallest class.
        confusion: ``fixed``: wrong predictions are ``any`` class, or always the ``next`` one.
        transition: ``run``: the option ``transition``.
        repeats: Number of simulated data sets.
    """

    name: str
    labels: str
    classes: int
    examples: int
    accuracy: float | None = None
    per_example: int = 1
    tail: float = 1.0
    confusion: str = "any"
    transition: str = "auto"
    repeats: int = 1000

    @property
    def prior(self) -> Tensor:
        """Shares of the classes, float64 [K]."""
        sizes = torch.tensor(transitions.decay(self.tail, self.classes), dtype=torch.float64)
        return sizes / sizes.sum()


FIXED = (
    Case("3 classes, 30 labels", "uniform", 3, 30, 0.9),
    Case("3 classes, 200 labels", "uniform", 3, 200, 0.7),
    Case("uniform, 150 labels", "uniform", 10, 150, 0.9),
    Case("uniform, 150 labels, nearly perfect", "uniform", 10, 150, 0.99),
    Case("uniform, 5,000 labels", "uniform", 10, 5000, 0.9),
    Case("biased 10:1", "biased:10", 10, 500, 0.8),
    Case("biased 10:1, one confusion", "biased:10", 10, 2000, 0.8, confusion="next"),
    Case("biased 10:1, nearly perfect", "biased:10", 10, 500, 0.99),
    Case("noise .05", "noisy:0.05", 10, 5000, 0.8),
    Case("noise .10, 4 classes", "noisy:0.1", 4, 300, 0.8),
    Case("3 labels per example", "uniform", 10, 300, 0.8, per_example=3),
    Case("3 labels, biased 5:1", "biased:5", 10, 500, 0.8, per_example=3),
    Case("2 labels, noise .10", "noisy:0.1", 5, 300, 0.8, per_example=2),
    Case("long tail 10:1", "uniform", 10, 2000, 0.8, tail=10),
    Case("long tail 100:1, biased 5:1", "biased:5", 10, 2000, 0.8, tail=100),
    Case("long tail 3:1, 20,000 labels", "uniform", 4, 20_000, 0.8, tail=3, repeats=400),
    Case("20 classes", "uniform", 20, 1000, 0.7),
    Case("100 classes", "uniform", 100, 5000, 0.6, repeats=400),
    Case("100 classes, 10 labels", "uniform", 100, 2000, 0.6, per_example=10, repeats=400),
)
RUNS = (
    Case("run, uniform", "uniform", 5, 2000, repeats=200),
    Case("run, biased 5:1", "biased:5", 5, 2000, repeats=200),
    Case("run, noise .05", "noisy:0.05", 5, 2000, repeats=200),
    Case("run, 2 labels", "uniform", 5, 1000, per_example=2, repeats=200),
    Case("run, long tail 4:1", "uniform", 4, 6000, tail=4, repeats=200),
    Case("run, matrix estimated, biased 3:1", "biased:3", 4, 3000, transition="estimate", repeats=60),
    Case("run, matrix estimated, noise .05", "noisy:0.05", 4, 3000, transition="estimate", repeats=60),
)


@dataclass
class Count:
    """How the intervals of one case did."""

    covered: int = 0
    missed: int = 0
    without: int = 0
    widths: list[float] = dataclasses.field(default_factory=list)
    errors: list[float] = dataclasses.field(default_factory=list)

    def add(self, value: float | None, low: float | None, high: float | None, truth: float) -> None:
        """Count an interval; None or NaN: there is none."""
        if value is None or low is None or high is None or value != value:
            self.without += 1
            return
        inside = low <= truth <= high
        self.covered, self.missed = self.covered + inside, self.missed + (not inside)
        self.widths.append(high - low)
        self.errors.append(value - truth)

    def summary(self) -> dict[str, Any]:
        """Coverage with its standard error, share of data sets without a number, mean width and mean error."""
        count = self.covered + self.missed
        if not count:
            return {"coverage": None, "without_number": 1.0}
        share = self.covered / count
        return {
            "coverage": round(share, 4),
            "coverage_error": round((share * (1 - share) / count) ** 0.5, 4),
            "without_number": round(self.without / (count + self.without), 4),
            "mean_width": round(sum(self.widths) / count, 4),
            "mean_error": round(sum(self.errors) / count, 4),
        }


def fixed(case: Case) -> dict[str, Count]:
    """Intervals for a classifier of known accuracy: the same for all classes, or falling along the tail."""
    matrix = transitions.parse(case.labels, case.classes)
    known, prior = labels.marginal(matrix, case.per_example), case.prior
    assert case.accuracy is not None
    of_class = torch.full((case.classes,), case.accuracy, dtype=torch.float64)
    if case.tail > 1:
        of_class = torch.linspace(0.98, 2 * case.accuracy - 0.98, case.classes, dtype=torch.float64)
    counts = {"data": Count(), "balanced": Count()}
    for repeat in range(case.repeats):
        source = generator(repeat, "coverage", case.classes, case.examples)
        truth = torch.multinomial(prior, case.examples, True, generator=source)
        right = torch.rand(case.examples, generator=source) < of_class[truth]
        step = torch.randint(1, case.classes, (case.examples,), generator=source) if case.confusion == "any" else 1
        predicted = torch.where(right, truth, (truth + step) % case.classes)
        excluded = labels.draw(truth, matrix, case.per_example, seed=repeat)
        found = scores.accuracy_interval(predicted, excluded, known)
        counts["data"].add(found.value, found.low, found.high, float((prior * of_class).sum()))
        if case.tail > 1:
            found = scores.balanced_accuracy_interval(predicted, excluded, known)
            counts["balanced"].add(found.value, found.low, found.high, float(of_class.mean()))
            found = scores.balanced_accuracy_interval(predicted, excluded, known, shares=prior)
            name = "balanced, class sizes known"
            counts.setdefault(name, Count()).add(found.value, found.low, found.high, float(of_class.mean()))
    return {name: count for name, count in counts.items() if name == "data" or case.tail > 1}


def whole_run(case: Case) -> dict[str, Count]:
    """Intervals of whole trainings, each on its own simulated data set."""
    counts = {"data": Count(), "balanced": Count()}
    for repeat in range(case.repeats):
        options = {"labels": case.labels, "per_example": case.per_example, "holdout": 0.3, "seed": repeat}
        options |= {"model": "linear", "mix": "none", "epochs": 10, "batch": 128, "lr": 0.02, "estimate_epochs": 5}
        options |= {"transition": case.transition, "loss": "fwd" if case.transition == "estimate" else "s-nl"}
        result = run(Config.of(**options), device="cpu", dataset=simulate(case, repeat))
        for name, key, truth in (
            ("data", "estimated_accuracy", "accuracy_selected"),
            ("balanced", "estimated_balanced_accuracy", "macro_accuracy_selected"),
        ):
            value, low, high = (result[f"{key}_{end}"] for end in ("selected", "low", "high"))
            counts[name].add(value, low, high, result[truth])
    return {name: count for name, count in counts.items() if name == "data" or case.tail > 1}


def simulate(case: Case, seed: int) -> Dataset:
    """Vectors of 20 normal features around a center per class; training and test set are of the same population."""
    source = generator(seed, "simulated", case.classes)
    centers = torch.randn(case.classes, 20, generator=generator(0, "centers")) * 0.55

    def part(count: int) -> Split:
        truth = torch.multinomial(case.prior, count, True, generator=source)
        return Split(centers[truth] + torch.randn(count, 20, generator=source), truth)

    names = tuple(map(str, range(case.classes)))
    train, test = part(case.examples), part(TEST)
    mean, std = train.inputs.mean(0).tolist(), train.inputs.std(0).tolist()
    return Dataset("simulated", train, test, names, tuple(mean), tuple(std))


def main(arguments: list[str] | None = None) -> None:
    """Run the cases and store a file for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose name begins with one of these")
    parser.add_argument("--repeats", type=int, help="number of simulated data sets")
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for case in (*FIXED, *RUNS):
        if options.only and not case.name.startswith(tuple(options.only)):
            continue
        case = dataclasses.replace(case, repeats=options.repeats or case.repeats)
        start = time.monotonic()
        counts = fixed(case) if case.accuracy is not None else whole_run(case)
        found = {population: count.summary() for population, count in counts.items()}
        record = {"case": dataclasses.asdict(case), "populations": found, "seconds": round(time.monotonic() - start)}
        name = "".join(c if c.isalnum() else "-" for c in case.name).replace("--", "-")
        (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for population, summary in found.items():
            print(f"{case.name} ({population}): {summary}", flush=True)


if __name__ == "__main__":
    main()
