"""The figures of a clustering and the page that shows them. What needs true labels is marked oracle."""

import dataclasses
import html
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary import report, transitions
from complementary.cluster_scores import Estimate, estimated_same_class, purity, recommend, same_class
from complementary.config import Config
from complementary.diagnose import noise_ratio
from complementary.mix import ICM, MICM, Mixup

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
    title, grouping = f"Clusters of {config.source.data}", config.grouping
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
