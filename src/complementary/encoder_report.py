"""How good is an encoder for mixing inside clusters? One row of the encoder table, from features alone.

Tensors in, plain numbers out; features may lie on a GPU. What needs true labels is named oracle.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from complementary import partners
from complementary.cluster import kmeans
from complementary.cluster_report import measure, passes
from complementary.diagnose import noisy_share
from complementary.probes import knn_accuracy, linear_accuracy
from complementary.rng import address


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
        groups = partners.group(group[index])
        chosen = partners.draw(groups, torch.arange(len(index)), others, distinct=False, generator=source)
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
