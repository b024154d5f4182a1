"""``cll cluster``: cluster a dataset, store the assignment, judge it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from complementary import assignments, data
from complementary.checkpoint import write_bytes
from complementary.cluster_report import Choice, Figures, measure, page, recommendation
from complementary.config import ClusterConfig, Config, DataConfig
from complementary.errors import UserError
from complementary.problem import cluster_points, clusters_of, points_of, supervise
from complementary.settings import require


@dataclass(frozen=True)
class Cluster:
    """Cluster a dataset by an encoder's features, and judge the clusters with and without true labels.

    Example: cll cluster --data digits --clusters 50 --report clusters.html --out clusters.safetensors
    """

    source: DataConfig = field(default_factory=DataConfig)
    grouping: ClusterConfig = field(default_factory=ClusterConfig)
    seed: int = 0
    """As in cll train: decides subset, labels and k-means starts."""
    batch: int = 512
    """Batch size for the noise ratios, in which partners are sought."""
    out: Path | None = None
    """Store the assignment in this file, for cll train --assignments."""
    report: Path | None = None
    """Write an HTML page with sizes, scores and rows of example images."""
    try_clusters: tuple[int, ...] = (10, 20, 30, 50, 70, 90)
    """Numbers of clusters that the report compares, to recommend one."""

    def __post_init__(self) -> None:
        require(self.batch >= 2, "batch", self.batch, "at least 2")


def main(arguments: list[str]) -> None:
    """The command ``cll cluster``."""
    import tyro

    options = tyro.cli(tyro.conf.OmitArgPrefixes[Cluster], args=arguments, prog="cll cluster")
    for path in (options.out, options.report):
        if path is not None and path.exists():
            raise UserError(f"{path} exists already; choose another name.")
        if path is not None and not path.parent.is_dir():
            raise UserError(f"There is no folder {path.parent} for {path.name}; make it first.")
    config = Config(source=options.source, grouping=options.grouping, seed=options.seed)
    dataset = data.load(config.source.data)
    chosen, generating, excluded = supervise(config, dataset)
    split = dataset.train.take(chosen)
    clusters = 0 if config.grouping.assignments is not None else config.grouping.clusters
    points = points_of(config, dataset, chosen) if clusters else None  # embedded once, for all numbers of clusters
    assignment = clusters_of(config, dataset, chosen) if points is None else cluster_points(config, points, clusters)
    figures = measure(assignment, excluded, generating, split.truth, options.batch)
    _print(figures)
    if options.out is not None:
        made_by = asdict(config.source) | asdict(config.grouping) | {"seed": config.seed}
        assignments.write(options.out, assignment, clusters or int(assignment.max()) + 1, split.inputs, made_by)
        Console().print(f"Assignment of {len(assignment):,} examples: {options.out}", soft_wrap=True)
    if options.report is not None:
        counts = tuple(k for k in options.try_clusters if 1 < k <= len(chosen) // 2)
        choice = None
        if points is not None and counts:
            choice = recommendation(config, points, excluded, generating, split.truth, counts)
        _report(options.report, page(config, split.inputs, assignment, figures, choice), choice)


def _print(figures: Figures) -> None:
    table = Table(show_header=False, box=None)
    for name, value in figures.rows():
        table.add_row(name, value)
    Console().print(table)


def _report(path: Path, markup: str, choice: Choice | None) -> None:
    """Write the page and say what it recommends."""
    write_bytes(path, markup.encode())
    Console().print(f"Report: {path}", soft_wrap=True)
    if choice is not None:
        said = choice.clusters or "too uncertain to tell; the paper uses 50"
        Console().print(f"Recommended number of clusters (without true labels): {said}")
