"""How often the 95 % interval of the estimated accuracy contains the accuracy, over simulated data sets.

``python -m benchmarks.coverage`` runs everything (about an hour of one core) and writes
``results/coverage/*.json``; ``--only NAME ...`` runs some cases, ``--repeats N`` changes the number of data sets.

- ``fixed``: a classifier of known accuracy, fresh labels. Tests the interval itself.
- ``run``: whole trainings of the product on simulated data, which select an epoch; in some, the transition matrix is
  estimated. The accuracy is that of the selected epoch on a large test set.
- ``features``: trainings of a linear layer on features of CIFAR-10, by the encoder of ``results/encoders``, which was
  pretrained on the 50,000 training images. The held-out examples of a data set are training images or, as if they had
  been left out of pretraining, test images. The accuracy is that on further images of the same kind; for held-out
  training images also that on test images, which shows what the encoder's knowledge of an image is worth.

``--table`` prints the rows of docs/notes/estimates.md from the stored results.
"""

import argparse
import dataclasses
import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import data, labels, scores, transitions
from complementary.clusters.features import FeatureExtractor
from complementary.config import Config
from complementary.data import Dataset, Split
from complementary.data.selection import validation_split
from complementary.encoders.frozen import FrozenEncoder
from complementary.rng import generator
from complementary.training.run import build_trainer, run, summarize
from complementary.training.task import build_task

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
        held_out: ``features``: whether the encoder has ``seen`` the held-out images, or they are ``new`` to it.
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
    held_out: str | None = None
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
    Case("run, matrix estimated, biased 3:1", "biased:3", 4, 3000, transition="estimate", repeats=200),
    Case("run, matrix estimated, noise .05", "noisy:0.05", 4, 3000, transition="estimate", repeats=200),
)
FEATURES = (
    Case("features, new images", "uniform", 10, 10_000, held_out="new", repeats=200),
    Case("features, seen images", "uniform", 10, 10_000, held_out="seen", repeats=100),
)
ENCODER = Path("results/encoders/cifar10-rho1-simsiam-no-max-pool-800.safetensors")


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
        counts["data"].add(found.unbiased, found.low, found.high, float((prior * of_class).sum()))
        if case.tail > 1:
            found = scores.balanced_accuracy_interval(predicted, excluded, known)
            counts["balanced"].add(found.unbiased, found.low, found.high, float(of_class.mean()))
            found = scores.balanced_accuracy_interval(predicted, excluded, known, shares=prior)
            name = "balanced, class sizes known"
            counts.setdefault(name, Count()).add(found.unbiased, found.low, found.high, float(of_class.mean()))
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


@functools.cache
def cifar() -> tuple[Dataset, FrozenEncoder, Split, Split]:
    """CIFAR-10, the stored encoder, and the features of training and test images, from the cache if they are there."""
    dataset = data.load("cifar10")
    config = Config.of(data="cifar10", inputs="features", encoder=f"file:{ENCODER}")
    extractor = FeatureExtractor(config, dataset, torch.arange(len(dataset.train)), "cpu")
    test = extractor.test()
    assert dataset.test is not None
    assert test is not None
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    encoder = FrozenEncoder(extractor.backbone(), tuple(dataset.train.inputs.shape[1:]), mean, std)
    return dataset, encoder, Split(extractor.train, dataset.train.truth), Split(test, dataset.test.truth)


def on_features(case: Case) -> dict[str, Count]:
    """Intervals of trainings on features, each on its own images and labels."""
    own = f"{case.held_out} images"
    counts = {own: Count()} | ({"new images": Count()} if case.held_out == "seen" else {})
    for repeat in range(case.repeats):
        accuracy = features_run(case, repeat)
        key = "estimated_seen_accuracy" if case.held_out == "seen" else "estimated_accuracy"
        for name, count in counts.items():
            value, low, high = (accuracy[f"{key}_{end}"] for end in ("selected", "low", "high"))
            count.add(value, low, high, accuracy[name])
    return counts


def features_run(case: Case, seed: int) -> dict[str, Any]:
    """A training on features, as the product does it.

    Returns:
        Its result, and the accuracy of the selected epoch on images that were not drawn: ``seen images`` of the
        training set, and ``new images`` of the test set.
    """
    dataset, encoder, seen, new = cifar()
    assert seen.truth is not None
    assert new.truth is not None
    options: dict[str, Any] = {"labels": case.labels, "holdout": 0.3, "seed": seed, "loss": "s-exp", "mix": "none"}
    config = Config.of(epochs=20, batch=512, **options)
    rest_seen, rest_new = (
        torch.randperm(len(part), generator=generator(seed, "images", i)) for i, part in enumerate((seen, new))
    )
    drawn, rest_seen = rest_seen[: case.examples], rest_seen[case.examples :]
    inputs, truth = seen.inputs[drawn].clone(), seen.truth[drawn].clone()
    if case.held_out == "new":
        _, validation = validation_split(case.examples, config.dataset.holdout, seed)
        replaced, rest_new = rest_new[: len(validation)], rest_new[len(validation) :]
        inputs[validation], truth[validation] = new.inputs[replaced], new.truth[replaced]
    moments = tuple(inputs.mean(0).tolist()), tuple(inputs.std(0).tolist())
    vectors = Dataset("features", Split(inputs, truth), None, dataset.classes, *moments)
    task = build_task(config, vectors, "cpu")
    held_out = torch.full((len(task.validation),), case.held_out == "seen")
    task = dataclasses.replace(task, encoder=encoder, validation_seen=held_out)
    trainer = build_trainer(config, "cpu", vectors, task=task)
    trainer.run()
    result = summarize(trainer)
    trainer.model.load_state_dict(trainer.selected)
    for name, part, rest in (("seen images", seen, rest_seen), ("new images", new, rest_new)):
        assert part.truth is not None
        predicted = trainer.logits(part.inputs[rest]).argmax(1).cpu()
        result[name] = float((predicted == part.truth[rest]).double().mean())
    return result


def table(folder: Path) -> str:
    """The stored results as Markdown."""
    lines = []
    for case in (*FIXED, *RUNS, *FEATURES):
        path = folder / f"{file_name(case)}.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        kind, name = "run" if case.accuracy is None else "fixed", case.name.removeprefix("run, ")
        count, accuracy = round(0.3 * case.examples), ""
        if case.accuracy is not None:
            count, accuracy = case.examples, f"{100 * case.accuracy:.0f}"
        for i, (population, found) in enumerate(record["populations"].items()):
            row = (
                name if not i else f"the same, against {population}" if case in FEATURES else f"the same, {population}"
            )
            cells = [kind, row, str(case.classes), f"{count:,}", accuracy, f"{record['case']['repeats']:,}"]
            if found["coverage"] is None:
                cells += ["no number", "100", "", ""]
            else:
                cells.append(f"{100 * found['coverage']:.1f} ± {100 * found['coverage_error']:.1f}")
                cells += [f"{100 * found['without_number']:.0f}", f"{100 * found['mean_width']:.0f}"]
                cells.append(f"{100 * found['mean_error']:+.1f}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def file_name(case: Case) -> str:
    """Name of the stored result of a case, without its ending."""
    return "".join(c if c.isalnum() else "-" for c in case.name).replace("--", "-")


def main(arguments: list[str] | None = None) -> None:
    """Run the cases and store a file for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose name begins with one of these")
    parser.add_argument("--repeats", type=int, help="number of simulated data sets")
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of the stored results")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(options.out))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for case in (*FIXED, *RUNS, *FEATURES):
        if options.only and not case.name.startswith(tuple(options.only)):
            continue
        case = dataclasses.replace(case, repeats=options.repeats or case.repeats)
        start = time.monotonic()
        measure = fixed if case.accuracy is not None else whole_run if case.held_out is None else on_features
        counts = measure(case)
        found = {population: count.summary() for population, count in counts.items()}
        record = {"case": dataclasses.asdict(case), "populations": found, "seconds": round(time.monotonic() - start)}
        (options.out / f"{file_name(case)}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for population, summary in found.items():
            print(f"{case.name} ({population}): {summary}", flush=True)


if __name__ == "__main__":
    main()
