"""How pure groups of examples must be before complementary labels can name them: ``python -m benchmarks.naming``.

A learner that starts from groups of similar examples (an encoder, clusters, neighbors) still has to find out which
group is which class, and only the complementary labels can tell. Here this step is simulated alone, under the best
conditions: as many groups as classes, all of the same size; a share of each group, the purity, is of its class and the
rest are random examples; labels are uniform; the purity is known; and names are given by maximum likelihood over all
assignments of groups to classes. A real learner does not know the purity, and its mistakes are not random.

Rows: classes, labels per example, purity, share of the groups with the right name, and the accuracy of predicting the
name of the group (mean and standard deviation over draws). It takes a minute on one core.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from complementary import labels, transitions
from complementary.rng import generator

CASES = {"cifar10": (10, 1), "cifar20": (20, 1), "cifar100, 1 label": (100, 1), "cifar100, 5 labels": (100, 5)}
PURITIES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def draw_groups(classes: int, size: int, purity: float, seed: int) -> tuple[Tensor, Tensor]:
    """True classes and groups of simulated examples; group k belongs to class k.

    Args:
        classes: Number of classes, and of groups.
        size: Examples per group.
        purity: Share of the examples that are of the class of their group; the others are of random classes.
        seed: The seed.

    Returns:
        Two int64 tensors [classes x size].
    """
    random = generator(seed, "groups")
    group = torch.arange(classes).repeat_interleave(size)
    other = torch.randint(classes, group.shape, generator=random)
    own = torch.rand(group.shape, generator=random) < purity
    return torch.where(own, group, other), group


def name_groups(counts: Tensor, purity: float) -> Tensor:
    """The class of each group by maximum likelihood over all assignments.

    Args:
        counts: Complementary labels of each group, [groups, classes].
        purity: Share of the examples that are of the class of their group.

    Returns:
        int64 [groups].
    """
    classes = counts.shape[1]
    excludes_own = max((1 - purity) / classes, 1e-9)  # probability that a label of a group excludes its class
    excludes_other = (1 - excludes_own) / (classes - 1)
    gain = counts * (torch.tensor(excludes_own) / excludes_other).log()
    return torch.from_numpy(linear_sum_assignment(gain.double().numpy(), maximize=True)[1])


def measure(classes: int, per_example: int, purity: float, examples: int, draws: int) -> dict[str, Any]:
    """Share of groups with the right name, and accuracy, over several draws."""
    named, accuracy = [], []
    for seed in range(draws):
        truth, group = draw_groups(classes, examples // classes, purity, seed)
        excluded = labels.draw(truth, transitions.uniform(classes), per_example, seed)
        counts = torch.zeros(classes, classes).index_add_(0, group, excluded.float())
        names = name_groups(counts, purity)
        named.append((names == torch.arange(classes)).double().mean())
        accuracy.append((names[group] == truth).double().mean())
    shares, accuracies = torch.stack(named), torch.stack(accuracy)
    return {
        "classes": classes,
        "per_example": per_example,
        "purity": purity,
        "named": round(float(shares.mean()), 4),
        "accuracy": round(float(accuracies.mean()), 4),
        "accuracy_deviation": round(float(accuracies.std(correction=int(draws > 1))), 4),
        "draws": draws,
        "examples": examples,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure all cases and write the rows to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/naming.json"))
    options = parser.parse_args(arguments)
    rows = []
    for name, (classes, per_example) in CASES.items():
        for purity in PURITIES:
            rows.append(measure(classes, per_example, purity, options.examples, options.draws))
            share, accuracy = 100 * rows[-1]["named"], 100 * rows[-1]["accuracy"]
            print(
                f"{name}: purity {purity:.1f}, {share:.0f} % of the groups named, accuracy {accuracy:.1f} %", flush=True
            )
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
