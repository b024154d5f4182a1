"""``cll cluster``: cluster a dataset, store the assignment, and judge it and the encoder."""

import json
import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from complementary.cli.options import parse
from complementary.config import ClusterConfig, Config, DatasetConfig
from complementary.errors import UserError, require
from complementary.reports.tables import percent_with_error
from complementary.reports.terminal import print_table

if TYPE_CHECKING:  # these import torch
    from torch import Tensor

    from complementary.clusters.features import FeatureExtractor
    from complementary.clusters.judge import Judgment, Recommendation

log = logging.getLogger(__name__)

HEADING = "The encoder, in percent (as coded: an example may be its own partner, as in the published code)"


@dataclass(frozen=True)
class Cluster:
    """Cluster a dataset by the features of an encoder, and judge the clusters with and without true labels.

    --compare judges several encoders instead and says which one is better for these answers.

    Examples: cll cluster --data digits --clusters 50 --report clusters.html --out clusters.safetensors

    cll cluster --data digits --compare pixels random simsiam
    """

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    seed: int = 0
    """As in cll train: determines the subset, the labels and the initial centers of k-means."""
    batch: int = 512
    """Batch size for the noise ratios; partners come from the batch."""
    out: Path | None = None
    """Write the assignment to this file, for cll train --assignments."""
    report: Path | None = None
    """Write an HTML page with sizes, metrics and example images of the clusters."""
    try_clusters: tuple[int, ...] = (10, 20, 30, 50, 70, 90)
    """Numbers of clusters that --report and --probe compare; the report recommends one."""
    probe: bool = False
    """Judge the encoder, too: accuracy of kNN and of a linear layer on its features (oracle), and all metrics for each
    of --try-clusters."""
    json: Path | None = None
    """Write the metrics of --probe or --compare to this file."""
    compare: tuple[str, ...] = ()
    """Compare these encoders by how well a linear layer on their features predicts unseen answers, without true labels
    (with --probe also by kNN and a linear layer that are trained with them)."""

    def __post_init__(self) -> None:
        require(self.batch >= 2, "batch", self.batch, "at least 2")
        for count in self.try_clusters:
            require(count >= 1, "try_clusters", count, "at least 1")
        if self.compare and (self.out is not None or self.report is not None):
            raise UserError("compare does not cluster, so there is nothing to write; use json.", "compare")
        if len(set(self.compare)) < len(self.compare):
            raise UserError(f"compare names an encoder twice ({', '.join(self.compare)}).", "compare")
        if self.dataset.inputs != "raw":
            raise UserError("The option inputs is for cll train; leave it out.", "inputs")
        for path in (self.out, self.report, self.json):
            if path is not None and path.exists():
                raise UserError(f"{path} exists already; choose another name.")
            if path is not None and not path.parent.is_dir():
                raise UserError(f"There is no folder {path.parent} for {path.name}; create it first.")

    def config(self) -> Config:
        """The configuration of a training with these clusters."""
        return Config(dataset=self.dataset, cluster=self.cluster, seed=self.seed)


@dataclass(frozen=True)
class Work:
    """The examples to cluster, with their labels: ``excluded`` [M, K], ``transition`` [K, K], ``truth`` int [M]."""

    options: Cluster
    extractor: "FeatureExtractor"
    excluded: "Tensor"
    transition: "Tensor | None"
    truth: "Tensor | None"

    @property
    def from_file(self) -> bool:
        return self.options.cluster.assignments is not None

    def judge(self, assignment: "Tensor", as_coded: bool = False) -> "Judgment":
        from complementary.clusters.judge import judge

        log.info("evaluating %d clusters of %s examples", int(assignment.max()) + 1, f"{len(assignment):,}")
        return judge(assignment, self.excluded, self.transition, self.truth, self.options.batch, as_coded)

    def comparison(self) -> "dict[int, Tensor]":
        """The assignment int [M] for each number of clusters to compare; only the stored one if it is from a file."""
        from complementary.clusters.assign import clusters_of, points_of

        if self.from_file:
            assignment = clusters_of(self.extractor)
            return {int(assignment.max()) + 1: assignment}
        points = points_of(self.extractor)
        counts = [k for k in self.options.try_clusters if 1 < k <= len(self.extractor.chosen) // 2]
        return {k: clusters_of(self.extractor, k, points) for k in counts}


def main(arguments: list[str]) -> None:
    """Run ``cll cluster``."""
    options = parse(Cluster, arguments, "cll cluster")
    if options.compare:
        _compare(options)
        return
    from complementary.clusters.assign import clusters_of

    work = _load(options)
    assignment = clusters_of(work.extractor)
    judgment = work.judge(assignment)
    print_table((), judgment.rows())
    if options.out is not None:
        _store(options.out, work, assignment)
    probing = options.probe or options.json is not None
    compared = work.comparison() if probing or options.report is not None else {}
    if options.report is not None:
        _report(options.report, work, assignment, judgment, compared)
    if probing:
        _probe(work, compared)


def _compare(options: Cluster) -> None:
    """Compare encoders without clustering."""
    from complementary import transitions
    from complementary.clusters.compare import compare_encoders
    from complementary.clusters.judge import PROBES, probe
    from complementary.files import atomic_write

    works = {name: _load(replace(options, cluster=replace(options.cluster, encoder=name))) for name in options.compare}
    first = next(iter(works.values()))
    known = transitions.uniform(first.excluded.shape[1]) if first.transition is None else first.transition
    features = {name: work.extractor.train for name, work in works.items()}
    found = compare_encoders(
        features,
        first.excluded,
        known,
        seed=options.seed,
        progress=lambda name: log.info("judging %s", name),
    )
    probes: dict[str, dict[str, Any]] = {}
    if options.probe:
        test = first.extractor.dataset.test
        truth = None if test is None else test.truth
        if first.truth is None or truth is None:
            log.warning("there are no true labels, so the encoders are not probed with them")
        else:
            probes = {n: probe(features[n], first.truth, work.extractor.test(), truth) for n, work in works.items()}
    header = ["encoder", "log-likelihood of unseen answers", "behind the best", "estimated accuracy"]
    shown = [key for key in PROBES if any(values[key] is not None for values in probes.values())]
    rows = [
        [
            row.name,
            f"{row.score:.4f}",
            f"{row.behind.value:.4f} ± {row.behind.error:.4f}",
            percent_with_error(*row.accuracy),
        ]
        + [f"{100 * probes[row.name][key]:.1f} %" for key in shown]
        for row in found.scores
    ]
    print_table([*header, *(PROBES[key] for key in shown)], rows)
    print(found.verdict())
    if options.json is not None:
        metrics = {"encoders": [asdict(row) | probes.get(row.name, {}) for row in found.scores], "winner": found.winner}
        made_by = {"examples": found.examples, "made_by": asdict(options.dataset) | {"seed": options.seed}}
        atomic_write(options.json, json.dumps(metrics | made_by, indent=1) + "\n")
        print(f"Metrics: {options.json}")


def _load(options: Cluster) -> Work:
    from complementary import data
    from complementary.clusters.features import FeatureExtractor
    from complementary.data.selection import select

    config = options.config()
    dataset = data.load(config.dataset.data)
    chosen, transition, excluded = select(config, dataset)
    truth = None if dataset.train.truth is None else dataset.train.truth[chosen]
    return Work(options, FeatureExtractor(config, dataset, chosen), excluded, transition, truth)


def _made_by(options: Cluster) -> dict[str, Any]:
    return asdict(options.dataset) | asdict(options.cluster) | {"seed": options.seed}


def _store(path: Path, work: Work, assignment: "Tensor") -> None:
    from complementary.clusters.assign import read_assignment, write_assignment

    if work.from_file:  # keep how the clusters were made
        _, record = read_assignment(Path(str(work.options.cluster.assignments)))
        made_by, count = record["made_by"], record["clusters"]
    else:
        made_by, count = _made_by(work.options), work.options.cluster.clusters
        made_by["encoder"] = str(work.extractor.encoder)
    write_assignment(path, assignment, count, work.extractor.inputs, made_by)
    print(f"Assignment of {len(assignment):,} examples: {path}")


def _report(path: Path, work: Work, assignment: "Tensor", judgment: "Judgment", compared: "dict[int, Tensor]") -> None:
    from complementary.clusters.judge import page, recommend_clusters
    from complementary.files import atomic_write

    choice: Recommendation | None = None
    if compared and not work.from_file:
        choice = recommend_clusters(compared, work.extractor.train, work.excluded, work.transition, work.truth)
    atomic_write(path, page(work.extractor, assignment, judgment, choice))
    print(f"Report: {path}")
    if choice is not None:
        number = choice.clusters or "unknown, the estimates are not precise enough; the paper uses 50"
        print(f"Recommended number of clusters (without true labels): {number}")


def _probe(work: Work, compared: "dict[int, Tensor]") -> None:
    """Judge the encoder and each clustering."""
    from complementary.clusters.judge import probe, table_rows
    from complementary.engine.backend import versions
    from complementary.files import atomic_write

    options, extractor, probes = work.options, work.extractor, dict[str, Any]()
    if not work.from_file:
        log.info("probing the encoder with kNN and a linear layer")
        test = extractor.dataset.test
        probes = probe(extractor.train, work.truth, extractor.test(), None if test is None else test.truth)
    judgments = [work.judge(assignment, as_coded=True).to_json() for assignment in compared.values()]
    print_table((), table_rows(probes, judgments), f"\n{HEADING}")
    if options.json is not None:
        made_by = _made_by(options) | {"batch": options.batch, "versions": versions()}
        if not work.from_file:
            made_by["encoder"] = str(extractor.encoder)
        metrics = probes | {"clusterings": judgments, "made_by": made_by}
        atomic_write(options.json, json.dumps(metrics, indent=1) + "\n")
        print(f"Metrics: {options.json}")
