"""Metrics of clusterings and encoders, the recommended number of clusters, and the HTML report."""

import dataclasses
import html.parser
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import silhouette_score
from sklearn.neighbors import KNeighborsClassifier

from complementary import labels, transitions
from complementary.clusters.assign import cluster_points, clusters_of, points_of
from complementary.clusters.features import FeatureExtractor
from complementary.clusters.judge import (
    COLUMNS,
    ORACLE,
    PAIRS,
    Judgment,
    Recommendation,
    as_percent,
    judge,
    page,
    passes_over,
    probe,
    recommend_clusters,
    silhouette,
    table_rows,
)
from complementary.clusters.kmeans import kmeans
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.data.selection import select
from complementary.mixing import ICM, MICM, Mixup
from complementary.oracle import (
    knn_accuracy,
    linear_accuracy,
    noise_ratio,
    noise_ratio_as_coded,
    purity,
    same_class,
)
from complementary.scores import Estimate, estimated_same_class, recommend

DIGITS = load("digits")
TRUTH, TEST_TRUTH = DIGITS.train.truth, DIGITS.test.truth
POINTS, TEST = (F.normalize(split.inputs.flatten(1).float()) for split in (DIGITS.train, DIGITS.test))
NAN = float("nan")


@pytest.fixture(scope="module", autouse=True)
def _few_pairs():
    """Noise ratios of fewer mixes than usual."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("complementary.clusters.judge.PAIRS", PAIRS // 5)
        yield


@pytest.fixture(scope="module")
def clustered():
    """(extractor, transition, excluded, assignment) of the digits in 20 clusters."""
    config = Config.of(clusters=20, restarts=1, labels="biased:3", per_example=2, encoder="pixels")
    chosen, transition, excluded = select(config, DIGITS)
    extractor = FeatureExtractor(config, DIGITS, chosen)
    return extractor, transition, excluded, clusters_of(extractor)


@pytest.fixture(scope="module")
def judged(clustered):
    _, transition, excluded, assignment = clustered
    return judge(assignment, excluded, transition, TRUTH, 128, as_coded=True)


# --- metrics ------------------------------------------------------------------------------------------------------


def test_judge_computes_each_metric_with_its_function(clustered, judged):
    _, transition, excluded, assignment = clustered
    size = torch.bincount(assignment)
    assert (judged.clusters, judged.smallest, judged.largest) == (20, int(size.min()), int(size.max()))
    assert judged.alone == 0
    assert judged.estimated == estimated_same_class(assignment, excluded, transition)
    assert passes_over(len(TRUTH)) == 14
    everyone = torch.zeros_like(assignment)
    assert judged.oracle == {
        "oracle_same_class": same_class(assignment, TRUTH),
        "oracle_purity": purity(assignment, TRUTH),
        "oracle_noise_mixup": noise_ratio(Mixup(), TRUTH, excluded, assignment, 128, passes=14),
        "oracle_noise_icm": noise_ratio(ICM(), TRUTH, excluded, assignment, 128, passes=14),
        "oracle_noise_micm": noise_ratio(MICM(), TRUTH, excluded, assignment, 128, passes=14),
        "oracle_noise_mixup_as_coded": noise_ratio_as_coded(TRUTH, excluded, everyone, 1, 128, passes=14),
        "oracle_noise_icm_as_coded": noise_ratio_as_coded(TRUTH, excluded, assignment, 1, 128, passes=14),
        "oracle_noise_micm_as_coded": noise_ratio_as_coded(TRUTH, excluded, assignment, 2, 128, passes=14),
    }
    assert list(judged.oracle) == list(ORACLE)
    assert judged.oracle["oracle_noise_icm"] < judged.oracle["oracle_noise_mixup"]
    for mixer in ("mixup", "icm", "micm"):
        assert judged.oracle[f"oracle_noise_{mixer}_as_coded"] < judged.oracle[f"oracle_noise_{mixer}"]


def test_passes_over_gives_100_000_mixes(monkeypatch):
    monkeypatch.setattr("complementary.clusters.judge.PAIRS", PAIRS)
    assert passes_over(len(TRUTH)) == 70
    assert passes_over(10**6) == 3


def test_judge_counts_clusters_that_are_not_empty():
    assignment = torch.tensor([0, 0, 0, 4, 4, 7, 9])
    found = judge(assignment, torch.eye(3)[torch.arange(7) % 3], None, None, batch=512)
    assert (found.clusters, found.smallest, found.largest, found.alone) == (4, 1, 3, 2)
    assert found.rows()[0] == ("clusters", "4, of 1 to 3 examples, 2 of one example")


def test_judge_takes_given_labels_as_uniform(clustered):
    _, transition, excluded, assignment = clustered
    assert judge(assignment, excluded, None, None, 128).estimated == estimated_same_class(
        assignment, excluded, transitions.uniform(10)
    )
    assert judge(assignment, excluded, transition, None, 128).estimated == estimated_same_class(
        assignment, excluded, transition
    )


def test_judge_without_truth_has_no_oracle_metric(clustered, judged):
    _, transition, excluded, assignment = clustered
    unknown = judge(assignment, excluded, transition, None, 128)
    assert unknown.oracle == {}
    assert unknown.rows() == judged.rows()[:2]
    assert all(name.endswith("(oracle)") for name, _ in judged.rows()[2:])
    assert not any("oracle" in name for name in unknown.to_json())


def test_judgment_is_json_also_without_an_estimate():
    """Ten classes, a tenth of the labels wrong: the transition is singular and the estimate NaN."""
    found = judge(torch.arange(1437) % 5, labels.draw(TRUTH, transitions.noisy(10, 0.1)), transitions.noisy(10, 0.1),
                  TRUTH, 128).to_json()  # fmt: skip
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["same_class_estimated"] is None
    table = {row[0]: row[1:] for row in table_rows({}, [found])}
    assert table["same-class partners, estimated"] == table["standard error of that"] == ["unknown"]


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.6424, 0.013), "64.2 ± 1.3 %"),
        (Estimate(-0.05, 0.2), "-5.0 ± 20.0 %"),
        (Estimate(NAN, NAN), "not possible with these labels"),
    ],
)
def test_as_percent_shows_an_estimate(estimate, text):
    assert as_percent(estimate) == text
    assert Judgment(3, 1, 2, 1, estimate, {}).rows()[1][1] == text


def test_probe_computes_knn_and_linear_accuracy():
    found = probe(POINTS, TRUTH, TEST, TEST_TRUTH)
    assert (found["examples"], found["features"]) == (1437, 64)
    assert found["oracle_knn"] == knn_accuracy(POINTS, TRUTH, TEST, TEST_TRUTH)
    assert found["oracle_linear"] == linear_accuracy(POINTS, TRUTH, TEST, TEST_TRUTH)
    assert found["oracle_linear_balanced"] is None
    few = (TRUTH > 0) | (torch.arange(len(TRUTH)) < 200)
    adjusted = probe(POINTS[few], TRUTH[few], TEST, TEST_TRUTH)["oracle_linear_balanced"]
    assert adjusted == linear_accuracy(POINTS[few], TRUTH[few], TEST, TEST_TRUTH, balanced=True)
    neighbors = KNeighborsClassifier(200, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.1))
    wanted = neighbors.fit(POINTS.numpy(), TRUTH.numpy()).score(TEST.numpy(), TEST_TRUTH.numpy())
    assert found["oracle_knn"] == pytest.approx(wanted, abs=0.006)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_probe_without_truth_or_test_set_is_none(missing):
    known = [POINTS, TRUTH, TEST, TEST_TRUTH]
    known[missing] = None
    found = probe(*known)
    assert found["oracle_knn"] is None
    assert found["oracle_linear"] is None
    assert found["oracle_linear_balanced"] is None


def test_table_rows_show_every_metric_and_mark_each_oracle(judged):
    probes, judgments = {"oracle_knn": 0.876, "oracle_linear": None}, [judged.to_json(), judged.to_json()]
    table = {row[0]: row[1:] for row in table_rows(probes, judgments)}
    assert table["clusters"] == ["20", "20"]
    for key, name in ORACLE.items():
        assert name.endswith("(oracle)")
        assert table[name] == [f"{100 * judged.oracle[key]:.2f}"] * 2
    assert table["same-class partners, estimated"] == [f"{100 * judged.estimated.value:.1f}"] * 2
    assert table["standard error of that"] == [f"{100 * judged.estimated.error:.1f}"] * 2
    assert table["kNN accuracy, k = 200 (oracle)"] == ["87.60", ""]
    assert not any("linear" in name for name in table)


def test_table_rows_start_a_new_block_after_7_columns(judged):
    many = [judged.to_json() | {"clusters": k} for k in range(2, 2 + 2 * COLUMNS)]
    table = table_rows({}, many)
    assert {len(row) for row in table} == {1 + COLUMNS}
    assert [k for row in table if row[0] == "clusters" for k in row[1:]] == [str(c["clusters"]) for c in many]
    assert [row[0] for row in table].count("") == 1
    assert table_rows({}, []) == []


@pytest.mark.gpu
def test_probe_and_judge_accept_tensors_on_a_gpu(clustered, judged):
    _, transition, excluded, assignment = clustered
    found = judge(assignment.cuda(), excluded.cuda(), transition.cuda(), TRUTH.cuda(), 128, as_coded=True)
    assert found == judged
    found = probe(POINTS.cuda(), TRUTH, TEST, TEST_TRUTH)
    assert found["oracle_knn"] == pytest.approx(knn_accuracy(POINTS, TRUTH, TEST, TEST_TRUTH), abs=0.01)


# --- number of clusters -------------------------------------------------------------------------------------------


def test_recommend_clusters_compares_the_given_clusterings(clustered):
    extractor, transition, excluded, assignment = clustered
    points = points_of(extractor)
    tried = {5: cluster_points(extractor.config, points, 5), 20: assignment}
    found = recommend_clusters(tried, points, excluded, transition, TRUTH)
    assert found.estimates[20] == estimated_same_class(assignment, excluded, transition)
    assert found.oracle[20] == same_class(assignment, TRUTH)
    assert found.oracle[5] < found.oracle[20]
    assert found.silhouettes[20] == pytest.approx(silhouette_score(points.numpy(), assignment.numpy()), abs=1e-6)
    assert found.clusters == recommend(found.estimates)


def test_recommend_clusters_finds_clean_clusters_without_truth():
    """Vectors of ten separate groups: fewer clusters mix classes, more do not help."""
    source = torch.Generator().manual_seed(0)
    truth = torch.arange(10).repeat(400)
    points = F.normalize(torch.eye(10)[truth] + 0.01 * torch.randn(4000, 10, generator=source))
    excluded = labels.draw(truth, transitions.uniform(10), 5)
    tried = {k: kmeans(points, k, restarts=3).assignment for k in (2, 5, 10, 20)}
    found = recommend_clusters(tried, points, excluded, None, None)
    assert found.clusters == 10
    assert found.oracle is None
    assert max(found.silhouettes, key=lambda k: found.silhouettes[k]) == 10


def test_recommend_clusters_needs_informative_labels(clustered):
    extractor, _, _, assignment = clustered
    noisy = transitions.noisy(10, 0.1)
    tried = {k: kmeans(POINTS, k, restarts=1).assignment for k in (5, 10)}
    found = recommend_clusters(tried, POINTS, labels.draw(TRUTH, noisy), noisy, TRUTH)
    assert found.clusters is None
    markup = page(of_vectors(extractor.config), assignment, Judgment(5, 1, 2, 0, found.estimates[5], {}), found)
    assert "not possible with these labels" in markup
    assert "not precise enough" in markup
    assert "(recommended)" not in markup


def test_silhouette_of_a_sample_and_of_one_cluster():
    points = torch.randn(5000, 2, generator=torch.Generator().manual_seed(1))
    assignment = kmeans(points, 4, restarts=1).assignment
    wanted = silhouette_score(points.numpy(), assignment.numpy())
    assert silhouette(points, assignment) == pytest.approx(wanted, abs=0.02)
    assert silhouette(points, torch.zeros(5000, dtype=torch.long)) == 0


# --- page ---------------------------------------------------------------------------------------------------------


class Reader(html.parser.HTMLParser):
    """Collects what a page would fetch, its tags and its text."""

    def __init__(self, markup):
        super().__init__()
        self.fetched, self.tags, self.text = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.text += data


def read_page(markup):
    """A complete page that fetches nothing."""
    found = Reader(markup)
    assert markup.startswith("<!doctype html>")
    assert all(address.startswith("data:image/png;base64,") for address in found.fetched)
    assert not {"script", "link", "iframe", "object", "base"} & set(found.tags)
    assert not re.search(r"https?://|@import|url\(", markup)
    return found


@pytest.fixture(scope="module")
def choice():
    estimates = {10: Estimate(0.5, 0.1), 20: Estimate(0.7, 0.05), 30: Estimate(0.72, 0.05)}
    return Recommendation(20, estimates, {10: 0.51, 20: 0.69, 30: 0.75}, {10: 0.1, 20: 0.25, 30: 0.2})


def of_vectors(config, count=1437):
    dataset = Dataset("v", Split(torch.randn(count, 2)), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    return FeatureExtractor(config, dataset, torch.arange(count))


def test_page_shows_all_metrics_and_fetches_nothing(clustered, choice, judged):
    extractor, _, _, assignment = clustered
    found = read_page(page(extractor, assignment, judged, choice))
    for name, value in judged.rows():
        assert name in found.text
        assert value in found.text
    assert "1,437 training examples, encoder pixels, k-means, seed 0" in found.text
    assert "20 (recommended)70.0 ± 5.0 %69.0 %0.250" in found.text
    assert found.text.count("(recommended)") == 1
    assert found.tags.count("img") == 2


def test_page_without_truth_has_no_oracle(clustered, choice, judged):
    extractor, _, _, assignment = clustered
    without = dataclasses.replace(judged, oracle={})
    found = read_page(page(of_vectors(extractor.config), assignment, without, choice._replace(oracle=None)))
    assert "oracle" not in found.text
    assert "20 (recommended)70.0 ± 5.0 %0.250" in found.text


def test_page_of_vectors_has_no_example_images(clustered, judged):
    extractor, _, _, assignment = clustered
    found = read_page(page(of_vectors(extractor.config), assignment, judged, None))
    assert found.tags.count("img") == 1
    assert "Examples" not in found.text
    assert "How many" not in found.text


def test_page_of_color_images_with_few_clusters(judged):
    images = torch.randint(0, 256, (3, 3, 5, 7), dtype=torch.uint8)
    dataset = Dataset("c", Split(images), None, ("a", "b"), (0.5,) * 3, (0.5,) * 3)
    extractor = FeatureExtractor(Config.of(), dataset, torch.arange(3))
    assert read_page(page(extractor, torch.tensor([0, 0, 3]), judged, None)).tags.count("img") == 2


def test_page_escapes_names(clustered, judged):
    extractor, _, _, assignment = clustered
    config = extractor.config.with_(data="a&b<script>.npz", encoder="run:<img src=http://x>")
    found = read_page(page(of_vectors(config), assignment, judged, None).replace("http:/x", ""))
    assert "Clusters of a&b<script>.npz" in found.text
    assert "encoder run:<img src=>" in found.text
    stored = of_vectors(config.with_(assignments="<b>.safetensors"))
    assert "clusters from <b>.safetensors" in read_page(page(stored, assignment, judged, None)).text
