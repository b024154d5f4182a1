"""The figures of a clustering and the page that shows them. What needs true labels is marked oracle.

How good is an encoder for mixing inside clusters? One row of the encoder table, from features alone.

Tensors in, plain numbers out; features may lie on a GPU. What needs true labels is named oracle.
"""

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary import mixing, transitions
from complementary.clusters.kmeans import kmeans
from complementary.config import Config
from complementary.mixing import ICM, MICM, Mixup
from complementary.oracle import (
    Estimate,
    estimated_same_class,
    knn_accuracy,
    linear_accuracy,
    noise_ratio,
    noisy_share,
    purity,
    recommend,
    same_class,
)
from complementary.reports import figures as report
from complementary.rng import address

ORACLE = {  # the oracle figures of a clustering, as people read them
    "same_class": "same-class partners",
    "purity": "purity",
    "noise_mixup": "noisy mixes of Mixup",
    "noise_icm": "of ICM",
    "noise_micm": "of MICM",
}
PAIRS = 100_000  # so many mixes are counted at least, for a standard error below a tenth of a percent


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is known of a clustering; the oracle part is None without true labels."""

    clusters: int
    smallest: int
    largest: int
    alone: int
    estimated: Estimate
    oracle: dict[str, float] | None

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, as a person reads them."""
        lines = [
            (
                "clusters",
                f"{self.clusters}, of {self.smallest:,} to {self.largest:,} examples, {self.alone} of one example",
            ),
            ("same-class partners, estimated without true labels", as_percent(self.estimated)),
        ]
        oracle = self.oracle or {}
        return lines + [(f"{ORACLE[key]} (oracle)", f"{100 * value:.2f} %") for key, value in oracle.items()]


def as_percent(estimate: Estimate) -> str:
    """``64.2 ± 1.3 %``, or that it cannot be told."""
    if math.isnan(estimate.value):
        return "cannot be told from these labels"
    return f"{100 * estimate.value:.1f} ± {100 * estimate.error:.1f} %"


def measure(
    assignment: Tensor, excluded: Tensor, generating: Tensor | None, truth: Tensor | None, batch: int
) -> Figures:
    """assignment int [N], excluded [N, K], generating matrix [K, K] (None: taken as uniform), truth int [N] or None."""
    size = torch.bincount(assignment)
    size = size[size > 0]
    oracle = None
    if truth is not None:
        oracle = {"same_class": same_class(assignment, truth), "purity": purity(assignment, truth)}
        for name, mixer in (("mixup", Mixup()), ("icm", ICM()), ("micm", MICM())):
            oracle[f"noise_{name}"] = noise_ratio(
                mixer, truth, excluded, assignment, min(batch, len(truth)), passes=passes(len(truth))
            )
    estimate = estimated_same_class(assignment, excluded, _known(generating, excluded))
    return Figures(len(size), int(size.min()), int(size.max()), int((size == 1).sum()), estimate, oracle)


def passes(count: int) -> int:
    """How often ``count`` examples are gone through to count noisy mixes."""
    return max(3, math.ceil(PAIRS / count))


def _known(generating: Tensor | None, excluded: Tensor) -> Tensor:
    """The generating matrix; uniform where labels were given and nothing is known of how they arose. [K, K]."""
    return transitions.uniform(excluded.shape[1]) if generating is None else generating


class Choice(NamedTuple):
    """A recommended number of clusters (None if labels tell too little), and the comparison that it rests on."""

    clusters: int | None
    estimates: dict[int, Estimate]
    oracle: dict[int, float] | None
    silhouettes: dict[int, float]


def recommendation(
    found: dict[int, Tensor], points: Tensor, excluded: Tensor, generating: Tensor | None, truth: Tensor | None
) -> Choice:
    """Choose a number of clusters by the truth-free estimate.

    found: the assignment int [N] for each number; points [N, D]: the features; excluded [N, K] and generating
    matrix as in `measure`; truth int [N] or None adds oracle figures.
    """
    transition = _known(generating, excluded)
    estimates = {k: estimated_same_class(a, excluded, transition) for k, a in found.items()}
    oracle = None if truth is None else {k: same_class(a, truth) for k, a in found.items()}
    return Choice(recommend(estimates), estimates, oracle, {k: silhouette(points, a) for k, a in found.items()})


def silhouette(points: Tensor, assignment: Tensor, sample: int = 2000) -> float:
    """Mean silhouette of up to ``sample`` points: 1 is well separated, 0 is not. points [N, D], assignment int [N]."""
    from sklearn.metrics import silhouette_score

    picked = torch.linspace(0, len(points) - 1, min(sample, len(points))).long()
    if len(assignment[picked].unique()) < 2:
        return 0.0
    return float(silhouette_score(points[picked].numpy(), assignment[picked].numpy()))


def page(config: Config, inputs: Tensor, assignment: Tensor, figures: Figures, choice: Choice | None) -> str:
    """The report as HTML; ``inputs`` [N, ...] are shown in rows if they are images."""
    title, grouping = f"Clusters of {config.dataset.data}", config.cluster
    if grouping.assignments:
        how = f"clusters from <code>{html.escape(grouping.assignments)}</code>"
    else:
        how = f"encoder <code>{html.escape(grouping.encoder)}</code>{', mirrored too' if grouping.mirror else ''}, "
        how += "k-means on the neighbour graph" if grouping.clustering == "spectral" else "k-means"
    marked = " Figures marked <em>oracle</em> need the true labels; the others do not." if figures.oracle else ""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{len(assignment):,} training examples, {how}, seed {config.seed}.{marked}</p>",
        report.table(["figure", "value"], [list(row) for row in figures.rows()]),
        report.picture(_sizes(assignment), "Sizes of the clusters"),
    ]
    if choice is not None:
        parts += ["<h2>How many clusters?</h2>", _comparison(choice)]
    if inputs.ndim == 4:
        parts += ["<h2>Examples</h2>", report.picture(_examples(inputs, assignment), "Example images of clusters")]
    return report.page(title, parts)


def _comparison(choice: Choice) -> str:
    columns = {
        "clusters": [f"{k} (recommended)" if k == choice.clusters else str(k) for k in choice.estimates],
        "same-class partners, estimated": [as_percent(estimate) for estimate in choice.estimates.values()],
    }
    if choice.oracle is not None:
        columns["the same (oracle)"] = [f"{100 * choice.oracle[k]:.1f} %" for k in choice.estimates]
    columns["silhouette"] = [f"{choice.silhouettes[k]:.3f}" for k in choice.estimates]
    said = (
        "The estimates are too uncertain to recommend a number; the paper uses 50."
        if choice.clusters is None
        else "Recommended: the smallest number whose estimate, made from the complementary labels alone, lies within "
        "one standard error of the best."
    )
    table = report.table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])
    return table + f"<p>{said} More clusters are purer, but leave fewer partners in a batch.</p>"


def _sizes(assignment: Tensor) -> Any:
    figure, axes = report.new_figure(8, 2.2)
    size = torch.bincount(assignment).sort(descending=True).values
    axes[0][0].bar(range(len(size)), size.tolist(), color=report.COLOURS["icm"], width=0.8)
    axes[0][0].set_title("examples per cluster, largest first", fontsize=10, loc="left", color=report.INK)
    return figure


def _examples(inputs: Tensor, assignment: Tensor, rows: int = 12, columns: int = 14) -> Any:
    """A row of images for each of up to ``rows`` clusters, spread from the largest to the smallest."""
    order = torch.bincount(assignment).argsort(descending=True)
    order = order[torch.linspace(0, len(order) - 1, min(rows, len(order))).long()]
    figure, axes = report.new_figure(0.62 * columns, 0.62 * len(order) + 0.2, rows=len(order), columns=columns)
    for axes_row, k in zip(axes, order.tolist(), strict=True):
        members = (assignment == k).nonzero()[:columns, 0].tolist()
        for axis in axes_row:
            axis.axis("off")
        for axis, i in zip(axes_row, members, strict=False):
            report.show_image(axis, inputs[i].float() / 255)
    return figure


def encoder_report(
    train_features: Tensor,
    train_truth: Tensor | None,
    test_features: Tensor | None,
    test_truth: Tensor | None,
    excluded: Tensor,
    clusters: Sequence[int] = (30, 50, 90),
    batch: int = 512,
    seed: int = 0,
    restarts: int = 3,
    transition: Tensor | None = None,
) -> tuple[dict[str, Any], dict[int, Tensor]]:
    """Probe features, cluster them with each number of ``clusters``, and judge the clusters.

    train_features [N, D], test_features [M, D]: unit vectors; truth int [N], [M]; excluded [N, K]; transition
    [K, K]: how the labels arose (None: uniformly). Seed and restarts as in ``cll cluster``, which gives the same
    clusters. -> (figures, JSON-able; the assignment int64 [N] for each number, on the CPU)
    """
    start = address(seed, "clusters")
    found = {k: kmeans(train_features, k, start, restarts).assignment.cpu() for k in clusters}
    figures = probe(train_features, train_truth, test_features, test_truth)
    return figures | {"clusterings": judge(found, excluded, train_truth, transition, batch)}, found


def probe(
    train_features: Tensor, train_truth: Tensor | None, test_features: Tensor | None, test_truth: Tensor | None
) -> dict[str, Any]:
    """Accuracy of kNN (k = 200) and of a linear layer on the features: oracle figures, None where truth is missing."""
    figures = {"examples": len(train_features), "features": train_features.shape[1]}
    if train_truth is None or test_features is None or test_truth is None:
        return figures | {"oracle_knn": None, "oracle_linear": None}
    here = train_features.device
    known = (train_features, train_truth.to(here), test_features.to(here), test_truth.to(here))
    return figures | {"oracle_knn": knn_accuracy(*known), "oracle_linear": linear_accuracy(*known)}


def judge(
    found: dict[int, Tensor], excluded: Tensor, truth: Tensor | None, transition: Tensor | None, batch: int
) -> list[dict[str, Any]]:
    """The figures of each assignment int [N] in ``found``; the rest as in `encoder_report`."""
    excluded, truth = excluded.cpu(), None if truth is None else truth.cpu()
    return [_figures(a.cpu(), excluded, truth, transition, batch) for a in found.values()]


def _figures(
    assignment: Tensor, excluded: Tensor, truth: Tensor | None, transition: Tensor | None, batch: int
) -> dict[str, Any]:
    figures = measure(assignment, excluded, transition, truth, batch)
    known = not math.isnan(figures.estimated.value)
    plain = {name: value for name, value in dataclasses.asdict(figures).items() if name not in ("estimated", "oracle")}
    plain["same_class_estimated"] = figures.estimated.value if known else None
    plain["same_class_error"] = figures.estimated.error if known else None
    if truth is None:
        return plain
    oracle = {f"oracle_{name}": value for name, value in (figures.oracle or {}).items()}
    everyone = torch.zeros_like(assignment)
    for name, group, others in (("mixup", everyone, 1), ("icm", assignment, 1), ("micm", assignment, 2)):
        oracle[f"oracle_noise_{name}_as_coded"] = noise_as_coded(truth, excluded, group, others, min(batch, len(truth)))
    return plain | oracle


def noise_as_coded(truth: Tensor, excluded: Tensor, group: Tensor, others: int, batch: int, seed: int = 0) -> float:
    """Share of noisy mixes where an example may be its own partner, as in the paper's published code.

    truth, group int [N], excluded [N, K]. ``others`` partners each, drawn from its group in the batch, itself
    included; who is alone there mixes with itself, and counts. At 50 clusters and batches of 512 a tenth of the
    pairs are such, and never noisy, so that this is about .9 of the noise among real pairs.
    """

    def draw(index: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        groups = mixing.group(group[index])
        chosen = mixing.draw(groups, torch.arange(len(index)), others, distinct=False, generator=source)
        return index[chosen], torch.ones(len(index), dtype=torch.bool)

    return noisy_share(draw, truth, excluded, batch, passes(len(truth)), seed, "noise-as-coded")


ESTIMATED = {
    "same_class_estimated": "same-class partners, estimated",
    "same_class_error": "standard error of that",
}
NAMES = {
    "oracle_same_class": "same-class partners (oracle)",
    "oracle_purity": "purity (oracle)",
    "oracle_noise_mixup": "noisy mixes of Mixup (oracle)",
    "oracle_noise_icm": "of ICM (oracle)",
    "oracle_noise_micm": "of MICM (oracle)",
    "oracle_noise_mixup_as_coded": "Mixup as coded (oracle)",
    "oracle_noise_icm_as_coded": "ICM as coded (oracle)",
    "oracle_noise_micm_as_coded": "MICM as coded (oracle)",
}


WIDE = 7  # numbers of clusters side by side: as many as fit 100 characters


def rows(figures: dict[str, Any]) -> list[list[str]]:
    """Names and values in percent; a column for each number of clusters, and another block of rows after `WIDE`."""
    probes = {"oracle_knn": "kNN accuracy, k = 200 (oracle)", "oracle_linear": "linear probe accuracy (oracle)"}
    table = [[name, _percent(figures[key])] for key, name in probes.items() if figures.get(key) is not None]
    columns = figures["clusterings"]
    for first in range(0, len(columns), WIDE):
        table += ([[""]] if first else []) + _block(columns[first : first + WIDE])
    return table


def _block(columns: list[dict[str, Any]]) -> list[list[str]]:
    table = [["clusters", *(str(c["clusters"]) for c in columns)]]
    for key, name in ESTIMATED.items():
        table.append([name, *("unknown" if c[key] is None else f"{100 * c[key]:.1f}" for c in columns)])
    for key, name in NAMES.items():
        if key in columns[0]:
            table.append([name, *(_percent(c[key]) for c in columns)])
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
