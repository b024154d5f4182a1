"""The page about all losses on features, from the results that `benchmarks.methods` stored."""

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from complementary.errors import UserError
from complementary.losses.registry import LOSS_METHODS

SIGNIFICANT = 0.05
WANTED, HEADS = ("cifar10", "cifar20", "mnist", "fmnist"), ("linear", "mlp")
TITLES = {"cifar10": "CIFAR-10", "cifar20": "CIFAR-20", "mnist": "MNIST", "fmnist": "Fashion-MNIST", "digits": "digits"}


@dataclass(frozen=True)
class Choice:
    """A method in one column: its learning rate, and the accuracies of all seeds with it."""

    lr: float
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracies)


@dataclass(frozen=True)
class Column:
    """One kind of labels with one kind of head on one dataset.

    Attributes:
        chosen: For each loss the learning rate with the lowest SCEL on validation labels: no true label is used.
        oracle: For each loss the learning rate with the highest test accuracy.
    """

    name: str
    chosen: dict[str, Choice]
    oracle: dict[str, Choice]

    def ranks(self) -> dict[str, int]:
        """The rank of each loss by its chosen accuracy; 1 is the best."""
        order = sorted(self.chosen, key=lambda loss: -self.chosen[loss].mean)
        return {loss: i + 1 for i, loss in enumerate(order)}

    def best(self) -> set[str]:
        """The most accurate loss, and those that Welch's test does not tell from it."""
        top = max(self.chosen, key=lambda loss: self.chosen[loss].mean)
        return {loss for loss, each in self.chosen.items() if loss == top or not _differ(self.chosen[top], each)}


def _differ(first: Choice, second: Choice) -> bool:
    a, b = first.accuracies, second.accuracies
    if len(a) < 2 or len(b) < 2 or len({*a, *b}) == 1:
        return False
    return bool(stats.ttest_ind(a, b, equal_var=False).pvalue < SIGNIFICANT)


@dataclass(frozen=True)
class Study:
    """The results of one file: a dataset and a kind of head."""

    conditions: dict[str, Any]
    columns: list[Column]

    @property
    def title(self) -> str:
        """Dataset and head."""
        head = {"linear": "linear heads", "mlp": "MLP heads"}[self.conditions["head"]]
        return f"{TITLES.get(self.conditions['data'], self.conditions['data'])}, {head}"


def read(path: Path) -> Study:
    """Read a file of results."""
    conditions, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    cells: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row["labels"], row["loss"]][row["lr"]].append(row)
    columns = []
    for kind in dict.fromkeys(row["labels"] for row in rows):
        by_loss = {loss: by_lr for (labels, loss), by_lr in cells.items() if labels == kind}
        chosen = {loss: _choose(by_lr, "scel_selected", -1) for loss, by_lr in by_loss.items()}
        oracle = {loss: _choose(by_lr, "accuracy_selected", 1) for loss, by_lr in by_loss.items()}
        columns.append(Column(kind, chosen, oracle))
    return Study(conditions, columns)


def _choose(by_lr: dict[float, list[dict[str, Any]]], metric: str, sign: int) -> Choice:
    """The learning rate with the largest (sign 1) or smallest (-1) mean of a metric over seeds."""
    lr = max(by_lr, key=lambda lr: sign * statistics.fmean(row[metric] for row in by_lr[lr]))
    return Choice(lr, tuple(row["accuracy_selected"] for row in by_lr[lr]))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def render(folder: Path) -> str:
    """The page of all results in a folder."""
    studies = [read(path) for path in sorted(folder.glob("*.jsonl"))]
    if not studies:
        raise UserError(f"{folder} has no results (*.jsonl); run `python -m benchmarks.methods run` first.")
    columns = [(study, column) for study in studies for column in study.columns]
    parts = [INTRODUCTION.format(columns=len(columns)), _summary(columns)]
    for study in studies:
        parts += [f"## {study.title}\n", _conditions(study), _table(study)]
    parts += [_choice(columns), _missing(studies)]
    return "\n".join(parts)


INTRODUCTION = """# All losses on features

<!-- written by: python -m benchmarks.methods page results/methods -->

Every loss of the package trains the same small heads on the same features of a frozen encoder, with the same labels,
batches and grid of learning rates. Training goes on for a fixed number of epochs and is evaluated five times; the epoch
is the one with the lowest calibrated SCEL on held-out complementary labels. The learning rate of each loss is the one
with the lowest mean of that score over the seeds, so **no true label is used for any choice**. The test set is
balanced, also for the long tail. Numbers are test accuracies in %, mean ± standard deviation over seeds.

Losses with a matrix get the one that the labels were drawn with; for ACL labels, whose matrix is not known, the uniform
one. Priors are estimated from the labels. Seeds differ in labels and initial weights; the examples are the same. ACL
labels come with the data, so there seeds differ in initial weights only.

All heads of a loss are trained as one computation (`benchmarks/methods.py`), because {columns} columns with 25 losses,
several learning rates and seeds would be thousands of runs. `cll sweep results/grids/methods.toml` trains the same
cells one by one.
"""


def _summary(columns: list[tuple[Study, Column]]) -> str:
    ranks: dict[str, list[int]] = defaultdict(list)
    wins: dict[str, int] = defaultdict(int)
    for _, column in columns:
        for loss, rank in column.ranks().items():
            ranks[loss].append(rank)
        for loss in column.best():
            wins[loss] += 1
    lines = [
        "## Ranks\n",
        f"Over {len(columns)} columns (datasets x heads x kinds of labels) with up to {len(ranks)} losses.",
    ]
    lines += [
        "*Among the best*: columns in which the loss is the most accurate, or Welch's test does not tell it from that "
        "one (p < 0.05).\n"
    ]
    lines += ["| loss | method | mean rank | worst rank | among the best |", "|---|---|---|---|---|"]
    for loss in sorted(ranks, key=lambda loss: statistics.fmean(ranks[loss])):
        mean, worst = statistics.fmean(ranks[loss]), max(ranks[loss])
        lines.append(
            f"| `{loss}` | {LOSS_METHODS[loss].title} | {mean:.1f} | {worst} | {wins[loss]} of {len(ranks[loss])} |"
        )
    return "\n".join(lines) + "\n"


def _conditions(study: Study) -> str:
    c = study.conditions
    hidden = f" with {c['hidden']} hidden units" if c["hidden"] else ""
    asked = c["chosen_images"]
    images = (
        "all training images" if asked is None else f"{asked:,} training images, chosen at random (a long tail: all)"
    )
    return (
        f"Encoder `{c['encoder'].rpartition('/')[2]}`, {c['features']} standardized features, heads{hidden}; {images}, "
        f"a tenth of them held out; {c['epochs']} epochs, batch {c['batch']}, Adam, weight decay {c['weight_decay']:g}."
        f" {c['seconds']:,.0f} s on {c['device']}. Bold: among the best of the column.\n"
    )


def _table(study: Study) -> str:
    names = [column.name for column in study.columns]
    lines = ["| loss | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    best = [column.best() for column in study.columns]
    for loss in LOSS_METHODS:
        cells = []
        for column, top in zip(study.columns, best, strict=True):
            choice = column.chosen.get(loss)
            text = "" if choice is None else _spread(choice)
            cells.append(f"**{text}**" if loss in top else text)
        if any(cells):
            lines.append(f"| `{loss}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(choice: Choice) -> str:
    deviation = f" ± {100 * statistics.stdev(choice.accuracies):.1f}" if len(choice.accuracies) > 1 else ""
    return f"{100 * choice.mean:.1f}{deviation}"


def _choice(columns: list[tuple[Study, Column]]) -> str:
    """What the truth-free choice of the learning rate costs."""
    lines = ["## The learning rate without true labels\n"]
    lines += [
        "Accuracy lost by choosing the learning rate by calibrated SCEL, against the choice on the test set (oracle).\n"
    ]
    lines += ["| loss | mean loss | largest loss | where | same choice |", "|---|---|---|---|---|"]
    for loss in LOSS_METHODS:
        gaps = [
            (c.oracle[loss].mean - c.chosen[loss].mean, f"{s.title}, {c.name}", c.oracle[loss].lr == c.chosen[loss].lr)
            for s, c in columns
            if loss in c.chosen
        ]
        if gaps:
            gap, where, _ = max(gaps)
            mean, same = statistics.fmean(g for g, _, _ in gaps), sum(equal for _, _, equal in gaps)
            where = where if gap > 0 else ""
            lines.append(f"| `{loss}` | {100 * mean:.1f} | {100 * gap:.1f} | {where} | {same} of {len(gaps)} |")
    return "\n".join(lines) + "\n"


def _missing(studies: list[Study]) -> str:
    """What is not measured yet."""
    known = {(study.conditions["data"], study.conditions["head"]) for study in studies}
    open_ = [f"{TITLES[data]} ({head})" for data in WANTED for head in HEADS if (data, head) not in known]
    if not open_:
        return ""
    return (
        f"## Not measured yet\n\n{', '.join(open_)}. With an encoder for it: `python -m benchmarks.methods run "
        "--data NAME --encoder file:WEIGHTS`, best on a GPU.\n"
    )
