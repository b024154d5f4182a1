"""``cll cluster``: cluster a dataset, store the assignment, judge it and the encoder."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from complementary import data
from complementary.cli.options import OptionalPath, parse
from complementary.clusters import assignments
from complementary.clusters.assign import clusters_of, features_of, points_of, source_of
from complementary.clusters.features import embed_test
from complementary.clusters.judge import Choice, judge, measure, page, probe, recommendation, rows
from complementary.config import ClusterConfig, Config, DatasetConfig
from complementary.data import Dataset, Split
from complementary.data.selection import supervise
from complementary.engine.backend import versions
from complementary.errors import UserError, require
from complementary.files import atomic_write
from complementary.reports.terminal import console, to_stderr


@dataclass(frozen=True)
class Cluster:
    """Cluster a dataset by an encoder's features, and judge the clusters with and without true labels.

    Example: cll cluster --data digits --clusters 50 --report clusters.html --out clusters.safetensors
    """

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    seed: int = 0
    """As in cll train: decides subset, labels and k-means starts."""
    batch: int = 512
    """Batch size for the noise ratios, in which partners are sought."""
    out: OptionalPath = None
    """Store the assignment in this file, for cll train --assignments."""
    report: OptionalPath = None
    """Write an HTML page with sizes, scores and rows of example images."""
    try_clusters: tuple[int, ...] = (10, 20, 30, 50, 70, 90)
    """Numbers of clusters that --report and --probe compare; the report recommends one."""
    probe: bool = False
    """Judge the encoder too: accuracy of kNN and of a linear layer on its features (oracle), and all figures for
    each of --try-clusters."""
    json: OptionalPath = None
    """Write what --probe finds to this file."""

    def __post_init__(self) -> None:
        require(self.batch >= 2, "batch", self.batch, "at least 2")
        for count in self.try_clusters:
            require(count >= 1, "try-clusters", count, "at least 1")

    def config(self) -> Config:
        """The configuration of a training with these clusters."""
        return Config(dataset=self.dataset, cluster=self.cluster, seed=self.seed)


@dataclass(frozen=True)
class Work:
    """What is clustered: the examples at ``chosen`` int [M], their labels ``excluded`` [M, K] and how those arose."""

    config: Config
    dataset: Dataset
    chosen: Tensor
    generating: Tensor | None
    excluded: Tensor
    split: Split

    def features(self) -> Tensor | None:
        """What the encoder sees: unit vectors [M, D]; None where clusters come from a file."""
        if self.config.cluster.assignments:
            return None
        return features_of(self.config, self.dataset, self.chosen)

    def compared(self, counts: tuple[int, ...], points: Tensor | None) -> dict[int, Tensor]:
        """The assignment int [M] for each sensible number of clusters; the one that there is, if it is a file's."""
        if points is None:
            assignment = clusters_of(self.config, self.dataset, self.chosen)
            return {int(assignment.max()) + 1: assignment}
        sensible = [k for k in counts if 1 < k <= len(self.chosen) // 2]
        return {k: self.clusters(k, points) for k in sensible}

    def clusters(self, count: int, points: Tensor | None) -> Tensor:
        """The assignment int [M] to ``count`` clusters."""
        return clusters_of(self.config.with_(clusters=count), self.dataset, self.chosen, points=points)


def main(arguments: list[str]) -> None:
    """The command ``cll cluster``."""
    options = parse(Cluster, arguments, "cll cluster")
    if options.dataset.inputs != "raw":
        raise UserError("--inputs is for cll train; what is clustered here is what --encoder says. Leave it out.")
    _check(options.out, options.report, options.json)
    work, probing = start(options.config()), options.probe or options.json is not None
    comparing = probing or options.report is not None
    features = work.features() if comparing else None  # embedded once, for all numbers of clusters
    points = None if features is None else points_of(work.config, work.dataset, work.chosen, features=features)
    assignment = work.clusters(options.cluster.clusters, points)
    if comparing:
        _judging(assignment)
    figures = measure(assignment, work.excluded, work.generating, work.split.truth, options.batch)
    _print([list(row) for row in figures.rows()])
    if options.out is not None:
        _store(options.out, work, assignment)
    found = work.compared(options.try_clusters, points) if comparing else {}
    if options.report is not None:
        choice = None
        if features is not None and found:
            choice = recommendation(found, features, work.excluded, work.generating, work.split.truth)
        _report(options.report, page(work.config, work.split.inputs, assignment, figures, choice), choice)
    if probing:
        _probe(options, work, features, found)


def _check(*paths: Path | None) -> None:
    """Raise, before any work is done, if one of the files could not be written."""
    for path in paths:
        if path is not None and path.exists():
            raise UserError(f"{path} exists already; choose another name.")
        if path is not None and not path.parent.is_dir():
            raise UserError(f"There is no folder {path.parent} for {path.name}; make it first.")


def start(config: Config) -> Work:
    """Load the examples of ``config`` and draw their labels."""
    dataset = data.load(config.dataset.data)
    chosen, generating, excluded = supervise(config, dataset)
    return Work(config, dataset, chosen, generating, excluded, dataset.train.take(chosen))


def _print(rows: list[list[str]]) -> None:
    table = Table(show_header=False, box=None)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _store(path: Path, work: Work, assignment: Tensor) -> None:
    config = work.config
    made_by = asdict(config.dataset) | asdict(config.cluster) | {"seed": config.seed}
    count = config.cluster.clusters
    if config.cluster.assignments is not None:  # what it was made by stays true
        _, record = assignments.read(Path(config.cluster.assignments))
        made_by, count = record["made_by"], record["clusters"]
    assignments.write(path, assignment, count, work.split.inputs, made_by)
    Console().print(f"Assignment of {len(assignment):,} examples: {path}", soft_wrap=True)


def _report(path: Path, markup: str, choice: Choice | None) -> None:
    """Write the page and say what it recommends."""
    atomic_write(path, markup.encode())
    Console().print(f"Report: {path}", soft_wrap=True)
    if choice is not None:
        said = choice.clusters or "too uncertain to tell; the paper uses 50"
        Console().print(f"Recommended number of clusters (without true labels): {said}")


# --- the encoder --------------------------------------------------------------------------------------


HEADING = "The encoder, in percent (as coded: an example may be its own partner, as in the published code)"


def _judging(assignment: Tensor) -> None:
    """Say what takes minutes on a slow machine."""
    to_stderr(f"judging {int(assignment.max()) + 1} clusters of {len(assignment):,} examples")


def _probe(options: Cluster, work: Work, features: Tensor | None, found: dict[int, Tensor]) -> None:
    """Judge the encoder and each clustering, print it all, and write it if asked to."""
    figures: dict[str, Any] = {}
    if features is not None:
        test = work.dataset.test
        to_stderr("probing the encoder by kNN and a linear layer")
        vectors = embed_test(source_of(work.config, work.dataset), work.dataset)
        figures = probe(features, work.split.truth, vectors, None if test is None else test.truth)
    figures["clusterings"] = []
    for count, assignment in found.items():
        _judging(assignment)
        one = {count: assignment}
        figures["clusterings"] += judge(one, work.excluded, work.split.truth, work.generating, options.batch)
    Console().print(f"\n{HEADING}", soft_wrap=True)
    _print(rows(figures))
    if options.json is not None:
        made_by = asdict(work.config.dataset) | asdict(work.config.cluster)
        made_by |= {"seed": options.seed, "batch": options.batch, "versions": versions()}
        atomic_write(options.json, (json.dumps(figures | {"made_by": made_by}, indent=1) + "\n").encode())
        Console().print(f"Figures: {options.json}", soft_wrap=True)
