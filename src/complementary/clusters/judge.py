"""How good a clustering is for mixing, and how good its encoder is: metrics and an HTML report.

Metrics that need true labels are named oracle.
"""

import dataclasses
import html
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary import transitions
from complementary.clusters.features import FeatureExtractor
from complementary.mixing import ICM, MICM, Mixup
from complementary.oracle import (
    knn_accuracy,
    linear_accuracy,
    noise_ratio,
    noise_ratio_as_coded,
    purity,
    same_class,
)
from complementary.reports import figures
from complementary.reports.tables import percent_with_error
from complementary.scores import Estimate, estimated_same_class, recommend

PAIRS = 100_000  # mixes to count at least, for a standard error below 0.1 percentage points
COLUMNS = 7  # numbers of clusters side by side: as many as fit 100 characters
ESTIMATED = {
    "same_class_estimated": "same-class partners, estimated",
    "same_class_error": "standard error of that",
}
ORACLE = {
    "oracle_same_class": "same-class partners (oracle)",
    "oracle_purity": "purity (oracle)",
    "oracle_noise_mixup": "noisy mixes of Mixup (oracle)",
    "oracle_noise_icm": "of ICM (oracle)",
    "oracle_noise_micm": "of MICM (oracle)",
    "oracle_noise_mixup_as_coded": "Mixup as coded (oracle)",
    "oracle_noise_icm_as_coded": "ICM as coded (oracle)",
    "oracle_noise_micm_as_coded": "MICM as coded (oracle)",
}
PROBES = {
    "oracle_knn": "kNN accuracy, k = 200 (oracle)",
    "oracle_linear": "linear probe accuracy (oracle)",
    "oracle_linear_balanced": "linear probe accuracy, logits adjusted to equal classes (oracle)",
}


# --- metrics ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Judgment:
    """Metrics of a clustering.

    Attributes:
        clusters: Number of clusters that are not empty.
        smallest: Size of the smallest cluster.
        largest: Size of the largest cluster.
        alone: Number of clusters with a single example.
        estimated: How often partners are of the same class, estimated from complementary labels.
        oracle: Metrics with true labels, by the keys of `ORACLE`; empty without true labels.
    """

    clusters: int
    smallest: int
    largest: int
    alone: int
    estimated: Estimate
    oracle: dict[str, float]

    def rows(self) -> list[tuple[str, str]]:
        """Names and values as text."""
        sizes = f"{self.clusters}, of {self.smallest:,} to {self.largest:,} examples, {self.alone} of one example"
        rows = [("clusters", sizes), ("same-class partners, estimated without true labels", as_percent(self.estimated))]
        return rows + [(ORACLE[key], f"{100 * value:.2f} %") for key, value in self.oracle.items()]

    def to_json(self) -> dict[str, Any]:
        """All metrics, JSON-able; None for an estimate that is not possible."""
        known = not math.isnan(self.estimated.value)
        sizes = {name: getattr(self, name) for name in ("clusters", "smallest", "largest", "alone")}
        estimate = {
            "same_class_estimated": self.estimated.value if known else None,
            "same_class_error": self.estimated.error if known else None,
        }
        return sizes | estimate | self.oracle


def judge(
    assignment: Tensor,
    excluded: Tensor,
    transition: Tensor | None,
    truth: Tensor | None,
    batch: int,
    as_coded: bool = False,
) -> Judgment:
    """Judge a clustering.

    Args:
        assignment: The cluster of each example, int [N].
        excluded: Complementary labels, [N, K].
        transition: Transition matrix of the labels, [K, K]; None: uniform.
        truth: True labels, int [N]; None: no oracle metrics.
        batch: Batch size of the training; partners are drawn from the batch.
        as_coded: Also compute the noise ratios of the published code.
    """
    assignment, excluded = assignment.cpu(), excluded.cpu()
    size = torch.bincount(assignment)
    size = size[size > 0]
    estimate = estimated_same_class(assignment, excluded, _or_uniform(transition, excluded))
    oracle = {} if truth is None else _oracle_metrics(assignment, excluded, truth.cpu(), batch, as_coded)
    return Judgment(len(size), int(size.min()), int(size.max()), int((size == 1).sum()), estimate, oracle)


def _oracle_metrics(
    assignment: Tensor, excluded: Tensor, truth: Tensor, batch: int, as_coded: bool
) -> dict[str, float]:
    metrics = {"oracle_same_class": same_class(assignment, truth), "oracle_purity": purity(assignment, truth)}
    batch, passes = min(batch, len(truth)), passes_over(len(truth))
    for name, mixer in (("mixup", Mixup()), ("icm", ICM()), ("micm", MICM())):
        metrics[f"oracle_noise_{name}"] = noise_ratio(mixer, truth, excluded, assignment, batch, passes=passes)
    everyone = torch.zeros_like(assignment)
    if not as_coded:
        return metrics
    for name, group, partners in (("mixup", everyone, 1), ("icm", assignment, 1), ("micm", assignment, 2)):
        noise = noise_ratio_as_coded(truth, excluded, group, partners, batch, passes=passes)
        metrics[f"oracle_noise_{name}_as_coded"] = noise
    return metrics


def passes_over(count: int) -> int:
    """Passes over ``count`` examples that count enough mixes for a noise ratio."""
    return max(3, math.ceil(PAIRS / count))


def _or_uniform(transition: Tensor | None, excluded: Tensor) -> Tensor:
    return transitions.uniform(excluded.shape[1]) if transition is None else transition


def probe(
    train: Tensor, train_truth: Tensor | None, test: Tensor | None, test_truth: Tensor | None
) -> dict[str, float | int | None]:
    """Accuracy of kNN (k = 200) and of a linear layer on features.

    Args:
        train: Unit vectors, [N, D].
        train_truth: int [N].
        test: Unit vectors, [M, D].
        test_truth: int [M].

    Returns:
        The size of the features and the metrics of `PROBES`, which are None if an argument is None.
        ``oracle_linear_balanced`` is also None if no class is more than twice as large as another.
    """
    metrics: dict[str, float | int | None] = {"examples": len(train), "features": train.shape[1]}
    if train_truth is None or test is None or test_truth is None:
        return metrics | dict.fromkeys(PROBES)
    device = train.device
    known = (train, train_truth.to(device), test.to(device), test_truth.to(device))
    metrics |= {"oracle_knn": knn_accuracy(*known), "oracle_linear": linear_accuracy(*known)}
    counts = train_truth.bincount()
    uneven = bool(counts.max() > 2 * counts.min())
    return metrics | {"oracle_linear_balanced": linear_accuracy(*known, balanced=True) if uneven else None}


class Recommendation(NamedTuple):
    """A number of clusters, and the comparison behind it.

    Attributes:
        clusters: The recommended number; None if the estimates are not precise enough.
        estimates: `estimated_same_class` for each number.
        oracle: `same_class` for each number; None without true labels.
        silhouettes: Silhouette for each number.
    """

    clusters: int | None
    estimates: dict[int, Estimate]
    oracle: dict[int, float] | None
    silhouettes: dict[int, float]


def recommend_clusters(
    assignments: dict[int, Tensor], points: Tensor, excluded: Tensor, transition: Tensor | None, truth: Tensor | None
) -> Recommendation:
    """Recommend a number of clusters, by an estimate that needs no true labels.

    Args:
        assignments: The cluster of each example, int [N], for each number of clusters.
        points: Features, [N, D].
        excluded: Complementary labels, [N, K].
        transition: Transition matrix of the labels, [K, K]; None: uniform.
        truth: int [N]; None: no oracle metrics.
    """
    transition = _or_uniform(transition, excluded)
    estimates = {k: estimated_same_class(a, excluded, transition) for k, a in assignments.items()}
    oracle = None if truth is None else {k: same_class(a, truth) for k, a in assignments.items()}
    silhouettes = {k: silhouette(points, a) for k, a in assignments.items()}
    return Recommendation(recommend(estimates), estimates, oracle, silhouettes)


def silhouette(points: Tensor, assignment: Tensor, sample: int = 2000) -> float:
    """Mean silhouette of up to ``sample`` points: 1 is well separated, 0 is not. points [N, D], assignment int [N]."""
    from sklearn.metrics import silhouette_score

    picked = torch.linspace(0, len(points) - 1, min(sample, len(points))).long()
    if len(assignment[picked].unique()) < 2:
        return 0.0
    return float(silhouette_score(points[picked].numpy(), assignment[picked].numpy()))


# --- text -------------------------------------------------------------------------------------------------------------


def as_percent(estimate: Estimate) -> str:
    """``64.2 ± 1.3 %``; "not possible with these labels" for NaN."""
    if math.isnan(estimate.value):
        return "not possible with these labels"
    return percent_with_error(estimate.value, estimate.error)


def table_rows(probes: dict[str, Any], judgments: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of a text table in percent: a column per number of clusters, a new block of rows after 7 columns.

    Args:
        probes: The result of `probe`; may be empty.
        judgments: The result of `Judgment.to_json` for each number of clusters.
    """
    table = [[name, _percent(probes[key])] for key, name in PROBES.items() if probes.get(key) is not None]
    for first in range(0, len(judgments), COLUMNS):
        table += ([[""]] if first else []) + _block(judgments[first : first + COLUMNS])
    width = max(map(len, table), default=0)
    return [row + [""] * (width - len(row)) for row in table]


def _block(judgments: list[dict[str, Any]]) -> list[list[str]]:
    table = [["clusters", *(str(j["clusters"]) for j in judgments)]]
    for key, name in ESTIMATED.items():
        table.append([name, *("unknown" if j[key] is None else f"{100 * j[key]:.1f}" for j in judgments)])
    for key, name in ORACLE.items():
        if key in judgments[0]:
            table.append([name, *(_percent(j[key]) for j in judgments)])
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


# --- HTML -------------------------------------------------------------------------------------------------------------


def page(extractor: FeatureExtractor, assignment: Tensor, judgment: Judgment, choice: Recommendation | None) -> str:
    """The report of a clustering as an HTML page that needs no other file.

    Args:
        extractor: The examples and the configuration.
        assignment: The cluster of each example, int [N].
        judgment: Its metrics.
        choice: A comparison of numbers of clusters; None: none.
    """
    config, inputs = extractor.config, extractor.inputs.whole()
    title = f"Clusters of {config.dataset.data}"
    note = " Metrics marked <em>oracle</em> need the true labels; the others do not." if judgment.oracle else ""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{len(assignment):,} training examples, {_method(extractor)}, seed {config.seed}.{note}</p>",
        figures.table(["metric", "value"], [list(row) for row in judgment.rows()]),
        figures.image_tag(_sizes(assignment), "Sizes of the clusters"),
    ]
    if choice is not None:
        parts += ["<h2>How many clusters?</h2>", _comparison(choice)]
    if inputs.ndim == 4:
        parts += ["<h2>Examples</h2>", figures.image_tag(_examples(inputs, assignment), "Example images of clusters")]
    return figures.page(title, parts)


def _method(extractor: FeatureExtractor) -> str:
    options = extractor.config.cluster
    if options.assignments:
        return f"clusters from <code>{html.escape(options.assignments)}</code>"
    mirrored = ", averaged with mirror images" if options.mirror else ""
    what = "k-means on the neighbor graph" if options.clustering == "spectral" else "k-means"
    return f"encoder <code>{html.escape(str(extractor.encoder))}</code>{mirrored}, {what}"


def _comparison(choice: Recommendation) -> str:
    columns = {
        "clusters": [f"{k} (recommended)" if k == choice.clusters else str(k) for k in choice.estimates],
        "same-class partners, estimated": [as_percent(estimate) for estimate in choice.estimates.values()],
    }
    if choice.oracle is not None:
        columns["the same (oracle)"] = [f"{100 * choice.oracle[k]:.1f} %" for k in choice.estimates]
    columns["silhouette"] = [f"{choice.silhouettes[k]:.3f}" for k in choice.estimates]
    reason = (
        "The estimates are not precise enough to recommend a number; the paper uses 50."
        if choice.clusters is None
        else "Recommended: the smallest number whose estimate, made from the complementary labels alone, lies within "
        "one standard error of the best."
    )
    table = figures.table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])
    return table + f"<p>{reason} More clusters are purer, but leave fewer partners in a batch.</p>"


def _sizes(assignment: Tensor) -> Any:
    figure, axes = figures.new_figure(8, 2.2)
    size = torch.bincount(assignment).sort(descending=True).values
    axes[0][0].bar(range(len(size)), size.tolist(), color=figures.COLORS["icm"], width=0.8)
    axes[0][0].set_title("examples per cluster, largest first", fontsize=10, loc="left", color=figures.INK)
    return figure


def _examples(inputs: Tensor, assignment: Tensor, rows: int = 12, columns: int = 14) -> Any:
    """A row of images for each of up to ``rows`` clusters, from the largest to the smallest."""
    order = torch.bincount(assignment).argsort(descending=True)
    order = order[torch.linspace(0, len(order) - 1, min(rows, len(order))).long()]
    channels, height, width = inputs.shape[1:]
    gap = max(1, height // 8)
    # a single mosaic, because drawing an axis per image takes seconds
    mosaic = torch.ones(channels, len(order) * (height + gap), columns * (width + gap))
    for row, k in enumerate(order.tolist()):
        for column, i in enumerate((assignment == k).nonzero()[:columns, 0].tolist()):
            top, left = row * (height + gap), column * (width + gap)
            mosaic[:, top : top + height, left : left + width] = inputs[i].float() / 255
    figure, axes = figures.new_figure(0.62 * columns, 0.62 * len(order) * height / width + 0.2)
    figures.show_image(axes[0][0], mosaic)
    return figure
