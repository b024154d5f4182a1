"""The page about all losses on features, from the results that `benchmarks.methods` stored."""

import functools
import json
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from complementary.errors import UserError
from complementary.losses.registry import LOSS_METHODS

SIGNIFICANT = 0.05
FINDINGS, FORMULAS = (
    "findings.md",
    "formulas.md",
)  # in the folder of results: parts of the page that are written by hand
DEVIATIONS = "deviations.json"  # written by `benchmarks.deviations`
WANTED, HEADS = ("cifar10", "cifar20", "mnist", "fmnist"), ("linear", "mlp")
CLASSES = {"cifar20": 20}  # of the others: 10
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

    @property
    def first(self) -> str:
        """The most accurate loss."""
        return max(self.chosen, key=lambda loss: self.chosen[loss].mean)

    def ranks(self) -> dict[str, float]:
        """The rank of each loss by its chosen accuracy; 1 is the best. Equal losses share the mean of their ranks."""
        ranks = stats.rankdata([-choice.mean for choice in self.chosen.values()])
        return dict(zip(self.chosen, map(float, ranks), strict=True))

    def behind(self) -> dict[str, float]:
        """By how much each loss is less accurate than the first."""
        return {loss: self.chosen[self.first].mean - choice.mean for loss, choice in self.chosen.items()}

    @functools.cached_property
    def best(self) -> set[str]:
        """The first, and those that Welch's test does not tell from it."""
        top = self.chosen[self.first]
        return {loss for loss, each in self.chosen.items() if loss == self.first or not _differ(top, each)}


def _differ(first: Choice, second: Choice) -> bool:
    return _p_value(first, second) < SIGNIFICANT


def _p_value(first: Choice, second: Choice) -> float:
    """Of Welch's test; 1 if there are too few seeds to know."""
    a, b = first.accuracies, second.accuracies
    if len(a) < 2 or len(b) < 2:
        return 1.0
    if len({*a}) == len({*b}) == 1:  # no variance
        return float(a[0] == b[0])
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


@dataclass(frozen=True)
class Study:
    """The results of one file: a dataset and a kind of head."""

    conditions: dict[str, Any]
    columns: list[Column]

    def is_learned(self, column: Column) -> bool:
        """Whether any loss is more accurate than twice chance; otherwise ranks would be noise."""
        return column.chosen[column.first].mean > 2 / CLASSES.get(self.conditions["data"], 10)

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
    """The learning rate with the largest (sign 1) or smallest (-1) mean of a metric over seeds; NaN is the worst."""

    def score(lr: float) -> float:
        mean = sign * statistics.fmean(row[metric] for row in by_lr[lr])
        return -math.inf if math.isnan(mean) else mean

    lr = max(by_lr, key=score)
    return Choice(lr, tuple(row["accuracy_selected"] for row in by_lr[lr]))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def render(folder: Path) -> str:
    """The page of all results in a folder."""
    found = {path.stem: read(path) for path in sorted(folder.glob("*.jsonl"))}
    if not found:
        raise UserError(f"{folder} has no results (*.jsonl); run `python -m benchmarks.methods run` first.")
    order = [f"{data}-{head}" for data in WANTED for head in HEADS]
    studies = [
        found[name] for name in sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    ]
    columns = [(study, column) for study in studies for column in study.columns]
    learned = [(study, column) for study, column in columns if study.is_learned(column)]
    parts = [INTRODUCTION, _by_hand(folder / FINDINGS), _by_labels(learned), _ranks(learned, columns), METHOD]
    for study in studies:
        parts += [f"## {study.title}\n", _conditions(study), _table(study)]
    parts += [_firsts(columns), _choice(learned), _missing(studies), _by_hand(folder / FORMULAS), _deviations(folder)]
    return "\n".join(part for part in parts if part)


INTRODUCTION = """# All losses on features

<!-- written by: python -m benchmarks.methods page results/methods -->

Every loss of the package trains the same small heads on the same features of a frozen encoder, and no true label is
used for any choice. Numbers are test accuracies in %.
"""
METHOD = """## How it was measured

All losses have the same labels, batches and grid of learning rates. Training goes on for a fixed number of epochs and
is evaluated five times; the epoch is the one with the lowest calibrated SCEL on held-out complementary labels. The
learning rate of each loss is the one with the lowest mean of that score over the seeds. SCEL uses the same matrix as
the losses (see below), also for losses without one. The test set is balanced, also for the long tail.

Tables show mean ± standard deviation over seeds, with the learning rate that is chosen without true labels. In
parentheses: with the learning rate that is best on the test set (oracle), if that is higher by .1 or more. Bold: the
most accurate loss of a column, and those that Welch's test does not tell from it.

Losses with a matrix get the one that the labels were drawn with; for ACL labels, whose matrix is not known, the uniform
one. Priors are estimated from the labels. Seeds differ in labels and initial weights; the examples are the same. ACL
labels come with the data, so there seeds differ in initial weights only.

All heads of a loss (learning rates x seeds x kinds of labels) are trained as one computation (`benchmarks/methods.py`),
on a GPU as one CUDA graph. `cll sweep results/grids/methods.toml` and `cll report` train and compare the same cells one
by one, which takes days on a CPU.
"""


def _by_hand(path: Path) -> str:
    """A part of the page that is written by hand; empty if it is not there."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _deviations(folder: Path) -> str:
    """The table that `benchmarks.deviations` stored."""
    path = folder / DEVIATIONS
    if not path.exists():
        return ""
    lines = [
        "## Largest deviations\n",
        "Relative, of the mean loss of a batch: from a slow reference of the formula in float64 (100 random batches), "
        "and from libcll's formulas at fixed logits, with its own factors (`python -m benchmarks.deviations`).\n",
        "| loss | from its formula | from libcll |\n|---|---|---|",
    ]
    for loss, (formula, libcll) in json.loads(path.read_text(encoding="utf-8")).items():
        lines.append(f"| `{loss}` | {formula:.0e} | {'' if libcll is None else f'{libcll:.0e}'} |")
    return "\n".join(lines) + "\n"


Columns = list[tuple[Study, Column]]


def _collect(columns: Columns) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, int]]:
    """Ranks, accuracy behind the first, and the number of columns in which it is among the best, of each loss."""
    ranks: dict[str, list[float]] = defaultdict(list)
    behind: dict[str, list[float]] = defaultdict(list)
    wins: dict[str, int] = defaultdict(int)
    for _, column in columns:
        for loss, rank in column.ranks().items():
            ranks[loss].append(rank)
            behind[loss].append(column.behind()[loss])
        for loss in column.best:
            wins[loss] += 1
    return ranks, behind, wins


def _by_labels(columns: Columns, shown: int = 5) -> str:
    """The best losses for each kind of labels."""
    lines = [
        "## Best losses for each kind of labels\n",
        "By mean rank over datasets and heads. In parentheses: points behind the most accurate loss, on average and at "
        f"most. Only losses that were run everywhere; the first {shown}.\n",
        "| labels | columns | losses |\n|---|---|---|",
    ]
    for kind in dict.fromkeys(column.name for _, column in columns):
        chosen = [(study, column) for study, column in columns if column.name == kind]
        ranks, behind, _ = _collect(chosen)
        everywhere = [loss for loss, found in ranks.items() if len(found) == len(chosen)]
        order = sorted(everywhere, key=lambda loss: statistics.fmean(ranks[loss]))[:shown]
        cells = [
            f"`{loss}` {statistics.fmean(ranks[loss]):.1f} "
            f"({100 * statistics.fmean(behind[loss]):.1f}, {100 * max(behind[loss]):.1f})"
            for loss in order
        ]
        lines.append(f"| {kind} | {len(chosen)} | " + ", ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ranks(columns: Columns, all_columns: Columns) -> str:
    ranks, behind, wins = _collect(columns)
    left_out = [f"{study.title}, {column.name}" for study, column in all_columns if not study.is_learned(column)]
    lines = [
        "## Ranks\n",
        f"Over {len(columns)} columns (datasets x heads x kinds of labels) with up to {len(ranks)} losses. "
        + (f"Left out, because no loss is better than twice chance: {'; '.join(left_out)}. " if left_out else "")
        + "*Among the best*: columns in which the loss is the most accurate, or Welch's test does not tell it from "
        "that one (p < 0.05, not corrected for the number of losses). *Behind*: points behind the first.\n",
        "| loss | method | mean rank | worst rank | among the best | behind, mean | behind, at most |",
        "|---|---|---|---|---|---|---|",
    ]
    for loss in sorted(ranks, key=lambda loss: statistics.fmean(ranks[loss])):
        mean, worst = statistics.fmean(ranks[loss]), max(ranks[loss])
        gaps = f"{100 * statistics.fmean(behind[loss]):.1f} | {100 * max(behind[loss]):.1f}"
        best = f"{wins[loss]} of {len(ranks[loss])}"
        lines.append(f"| `{loss}` | {LOSS_METHODS[loss].title} | {mean:.1f} | {worst:g} | {best} | {gaps} |")
    return "\n".join(lines) + "\n"


def _firsts(columns: Columns) -> str:
    """What Welch's test says about the first place of each column."""
    lines = [
        "## First places\n",
        "The most accurate loss of each column, and how many others Welch's test (p < 0.05) does not tell from it.\n",
        "| column | first | accuracy | not told apart | second | p of first against second |",
        "|---|---|---|---|---|---|",
    ]
    for study, column in columns:
        first, second = [*sorted(column.chosen, key=lambda loss: -column.chosen[loss].mean), None][:2]
        assert first is not None
        others = f"{len(column.best) - 1} of {len(column.chosen) - 1}"
        p = "" if second is None else f"{_p_value(column.chosen[first], column.chosen[second]):.2g}"
        ahead = "" if second is None else f"`{second}` {_spread(column.chosen[second])}"
        title = f"{study.title}, {column.name}"
        lines.append(f"| {title} | `{first}` | {_spread(column.chosen[first])} | {others} | {ahead} | {p} |")
    return "\n".join(lines) + "\n"


def _conditions(study: Study) -> str:
    c = study.conditions
    hidden = f" with {c['hidden']} hidden units" if c["hidden"] else ""
    asked, name = c["chosen_images"], c["encoder"].rpartition("/")[2]
    images = "all training images" if asked is None else f"{asked:,} training images, drawn at random (long tail: all)"
    other = next((data for data in WANTED if name.startswith(data) and data != c["data"]), None)
    transfer = f" (transfer: it was pretrained on {TITLES[other]})" if other else ""
    return (
        f"Encoder `{name}`{transfer}, {c['features']} standardized features, heads{hidden}; {images}, a tenth of them "
        f"held out; {c['epochs']} epochs, batch {c['batch']}, Adam, weight decay {c['weight_decay']:g}. "
        f"{c['seconds']:,.0f} s on {c['device']}.\n"
    )


def _table(study: Study) -> str:
    names = [column.name for column in study.columns]
    lines = ["| loss | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    best = [column.best for column in study.columns]
    for loss in LOSS_METHODS:
        cells = []
        for column, top in zip(study.columns, best, strict=True):
            choice = column.chosen.get(loss)
            text = "" if choice is None else _spread(choice)
            text = f"**{text}**" if loss in top else text
            oracle = column.oracle[loss].mean if choice is not None else 0.0
            better = choice is not None and round(1000 * oracle) > round(1000 * choice.mean)
            cells.append(f"{text} ({100 * oracle:.1f})" if better else text)
        if any(cells):
            lines.append(f"| `{loss}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(choice: Choice) -> str:
    deviation = f" ± {100 * statistics.stdev(choice.accuracies):.1f}" if len(choice.accuracies) > 1 else ""
    return f"{100 * choice.mean:.1f}{deviation}"


def _choice(columns: Columns) -> str:
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
