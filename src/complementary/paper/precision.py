"""What bf16 changes: the same runs with bf16 and with fp32, compared in pairs of the same configuration and seed.

The precision is no part of a configuration: both runs have the same hash, and those with fp32 a folder of their own.
"""

import statistics
from collections.abc import Iterable

from complementary.paper.compare import METRICS, show_signed
from complementary.reports.tables import Spread, Table, show_spread
from complementary.sweeps.results import Row

Pair = tuple[Row, Row]


def pairs(with_bf16: Iterable[Row], with_fp32: Iterable[Row]) -> dict[str, list[Pair]]:
    """The runs that differ only in their precision, by setting; each setting has one pair per seed."""
    exact = {row["config_hash"]: row for row in with_fp32 if row.get("precision") == "fp32"}
    found: dict[str, list[Pair]] = {}
    for row in with_bf16:
        other = exact.get(row["config_hash"])
        if other is not None and row.get("precision") == "bf16":
            name = f"{row['data']}, ρ = {row['long_tail']:g}, {row['loss']}, {row['mix']}, {row['epochs']} epochs"
            found.setdefault(name, []).append((row, other))
    return found


def table(found: dict[str, list[Pair]]) -> Table:
    """Means, mean difference with its standard error, and p of the paired t-test; a row per setting and statistic."""
    rows = []
    for name, members in found.items():
        for title, metric in METRICS["ours"].items():
            both = [
                (float(a[metric]), float(b[metric])) for a, b in members if None not in (a.get(metric), b.get(metric))
            ]
            if both:
                means = [show_spread(Spread.of(values), True) for values in zip(*both, strict=True)]
                rows.append([name, title, *means, *_difference([100 * (a - b) for a, b in both])])
    return Table("", ["setting", "accuracy", "bf16", "fp32", "bf16 minus fp32", "p (paired)"], rows, 2)


def _difference(points: list[float]) -> list[str]:
    """The mean difference ± its standard error, and p; blank where one pair says nothing."""
    from scipy import stats  # slow to import

    if len(points) < 2:
        return [show_signed(points[0]), ""]
    error = statistics.stdev(points) / len(points) ** 0.5
    p = f"{stats.ttest_1samp(points, 0).pvalue:.2g}" if error else ""
    return [f"{show_signed(statistics.fmean(points))} ± {error:.2f}", p]
