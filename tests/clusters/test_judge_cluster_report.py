import dataclasses
import html.parser
import re

import pytest
import torch
from sklearn.metrics import silhouette_score

from complementary import labels, transitions
from complementary.clusters.assign import cluster_points, clusters_of, points_of
from complementary.clusters.judge import Choice, Figures, as_percent, measure, page, passes, recommendation, silhouette
from complementary.clusters.kmeans import kmeans
from complementary.config import Config
from complementary.data import load
from complementary.data.selection import select
from complementary.mixing import ICM, MICM, Mixup
from complementary.oracle import Estimate, estimated_same_class, noise_ratio, purity, recommend, same_class

DIGITS = load("digits")
NAN = float("nan")


@pytest.fixture(scope="module")
def clustered():
    """(configuration, chosen, matrix, excluded, assignment) of the digits in 20 clusters."""
    config = Config.of(clusters=20, restarts=1, labels="biased:3", per_example=2)
    chosen, generating, excluded = select(config, DIGITS)
    return config, chosen, generating, excluded, clusters_of(config, DIGITS, chosen)


class Reader(html.parser.HTMLParser):
    """Notes what a page would fetch, and its text."""

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
    """The page, which must be whole and fetch nothing."""
    found = Reader(markup)
    assert markup.startswith("<!doctype html>")
    assert all(address.startswith("data:image/png;base64,") for address in found.fetched)
    assert not {"script", "link", "iframe", "object", "base"} & set(found.tags)
    assert not re.search(r"https?://|@import|url\(", markup)
    return found


# --- figures ------------------------------------------------------------------------------------------


def test_measure_gives_each_figure_its_meaning(clustered):
    _, chosen, generating, excluded, home = clustered
    truth = DIGITS.train.truth[chosen]
    found = measure(home, excluded, generating, truth, batch=128)
    size = torch.bincount(home)
    assert (found.clusters, found.smallest, found.largest) == (20, int(size.min()), int(size.max()))
    assert found.alone == 0
    assert found.estimated == estimated_same_class(home, excluded, generating)
    assert passes(len(truth)) == 70
    assert found.oracle == {
        "same_class": same_class(home, truth),
        "purity": purity(home, truth),
        "noise_mixup": noise_ratio(Mixup(), truth, excluded, home, 128, passes=70),
        "noise_icm": noise_ratio(ICM(), truth, excluded, home, 128, passes=70),
        "noise_micm": noise_ratio(MICM(), truth, excluded, home, 128, passes=70),
    }
    assert found.oracle["noise_icm"] < found.oracle["noise_micm"] < found.oracle["noise_mixup"]


def test_empty_clusters_are_not_counted_and_those_of_one_are():
    home = torch.tensor([0, 0, 0, 4, 4, 7, 9])
    excluded = torch.eye(3)[torch.arange(7) % 3]
    found = measure(home, excluded, None, None, batch=512)
    assert (found.clusters, found.smallest, found.largest, found.alone) == (4, 1, 3, 2)
    assert found.rows()[0] == ("clusters", "4, of 1 to 3 examples, 2 of one example")


def test_labels_that_were_given_are_taken_as_uniform(clustered):
    _, _, _, excluded, home = clustered
    found = measure(home, excluded, None, None, batch=128)
    assert found.estimated == estimated_same_class(home, excluded, transitions.uniform(10))


def test_without_truth_no_row_is_an_oracle(clustered):
    _, chosen, generating, excluded, home = clustered
    known, unknown = (measure(home, excluded, generating, t, 128) for t in (DIGITS.train.truth[chosen], None))
    assert unknown.oracle is None
    assert unknown.rows() == known.rows()[:2]
    assert [name for name, _ in known.rows() if name.endswith("(oracle)")] == [name for name, _ in known.rows()[2:]]


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.6424, 0.013), "64.2 ± 1.3 %"),
        (Estimate(-0.05, 0.2), "-5.0 ± 20.0 %"),
        (Estimate(NAN, NAN), "cannot be told from these labels"),
    ],
)
def test_an_estimate_as_people_read_it(estimate, text):
    assert as_percent(estimate) == text
    assert Figures(3, 1, 2, 1, estimate, None).rows()[1] == (
        "same-class partners, estimated without true labels",
        text,
    )


# --- how many clusters --------------------------------------------------------------------------------


def test_the_recommendation_compares_the_clusterings_that_it_is_given(clustered):
    config, chosen, generating, excluded, home = clustered
    truth = DIGITS.train.truth[chosen]
    points = points_of(config, DIGITS, chosen)
    tried = {5: cluster_points(config, points, 5), 20: home}
    found = recommendation(tried, points, excluded, generating, truth)
    assert found.estimates[20] == estimated_same_class(home, excluded, generating)
    assert found.oracle[20] == same_class(home, DIGITS.train.truth[chosen])
    assert found.oracle[5] < found.oracle[20]
    assert found.silhouettes[20] == pytest.approx(silhouette_score(points.numpy(), home.numpy()), abs=1e-6)
    assert found.clusters == recommend(found.estimates)


def test_the_recommendation_finds_clean_clusters_without_truth():
    """Vectors of ten tight groups: fewer clusters mix classes, more do not help."""
    source = torch.Generator().manual_seed(0)
    truth = torch.arange(10).repeat(400)
    points = torch.eye(10)[truth] + 0.01 * torch.randn(4000, 10, generator=source)
    excluded = labels.draw(truth, transitions.uniform(10), 5)
    split = dataclasses.replace(DIGITS.train, inputs=points, truth=None, excluded=excluded)
    dataset = dataclasses.replace(DIGITS, train=split, test=None, mean=(0.0,) * 10, std=(1.0,) * 10)
    config = Config.of(restarts=3)
    points = points_of(config, dataset, torch.arange(4000))
    tried = {k: cluster_points(config, points, k) for k in (2, 5, 10, 20)}
    found = recommendation(tried, points, excluded, None, None)
    assert found.clusters == 10
    assert found.oracle is None
    assert max(found.silhouettes, key=lambda k: found.silhouettes[k]) == 10


def test_labels_that_tell_nothing_recommend_nothing():
    config = Config.of(labels="noisy:0.1", restarts=1)
    chosen, generating, excluded = select(config, DIGITS)
    points = points_of(config, DIGITS, chosen)
    tried = {k: cluster_points(config, points, k) for k in (5, 10)}
    found = recommendation(tried, points, excluded, generating, DIGITS.train.truth)
    assert found.clusters is None
    markup = page(
        config, DIGITS.train.inputs, torch.arange(1437) % 5, Figures(5, 1, 2, 0, found.estimates[5], None), found
    )
    assert "cannot be told from these labels" in markup
    assert "too uncertain to recommend a number" in markup
    assert "(recommended)" not in markup


def test_silhouette_of_a_sample_and_of_one_cluster():
    points = torch.randn(5000, 2, generator=torch.Generator().manual_seed(1))
    home = kmeans(points, 4, restarts=1).assignment
    assert silhouette(points, home) == pytest.approx(silhouette_score(points.numpy(), home.numpy()), abs=0.02)
    assert silhouette(points, torch.zeros(5000, dtype=torch.long)) == 0


# --- the page -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def choice():
    estimates = {10: Estimate(0.5, 0.1), 20: Estimate(0.7, 0.05), 30: Estimate(0.72, 0.05)}
    return Choice(20, estimates, {10: 0.51, 20: 0.69, 30: 0.75}, {10: 0.1, 20: 0.25, 30: 0.2})


def test_the_page_shows_everything_and_fetches_nothing(clustered, choice):
    config, chosen, generating, excluded, home = clustered
    figures = measure(home, excluded, generating, DIGITS.train.truth[chosen], 128)
    found = read_page(page(config, DIGITS.train.inputs[chosen], home, figures, choice))
    for name, value in figures.rows():
        assert name in found.text
        assert value in found.text
    assert "Clusters of digits" in found.text
    assert "1,437 training examples, encoder pixels, k-means, seed 0" in found.text
    assert "Figures marked oracle need the true labels" in found.text
    assert "20 (recommended)70.0 ± 5.0 %69.0 %0.250" in found.text
    assert found.text.count("(recommended)") == 1
    assert found.tags.count("img") == 2


def test_without_truth_the_word_oracle_does_not_appear(clustered, choice):
    config, _, generating, excluded, home = clustered
    figures = measure(home, excluded, generating, None, 128)
    found = read_page(page(config, DIGITS.train.inputs, home, figures, choice._replace(oracle=None)))
    assert "oracle" not in found.text
    assert "20 (recommended)70.0 ± 5.0 %0.250" in found.text


def test_vectors_have_no_row_of_images_and_no_comparison_needs_none(clustered):
    config, _, generating, excluded, home = clustered
    figures = measure(home, excluded, generating, None, 128)
    found = read_page(page(config, torch.randn(1437, 2), home, figures, None))
    assert found.tags.count("img") == 1
    assert "Examples" not in found.text
    assert "How many" not in found.text


def test_colour_images_few_clusters_and_lone_examples_are_drawn():
    home = torch.tensor([0, 0, 3])
    figures = measure(home, torch.eye(3), None, None, 2)
    images = torch.randint(0, 256, (3, 3, 5, 7), dtype=torch.uint8)
    assert read_page(page(Config.of(), images, home, figures, None)).tags.count("img") == 2


def test_names_are_text_and_never_markup(clustered):
    config, _, generating, excluded, home = clustered
    config = config.with_(data="a&b<script>.npz", encoder="run:<img src=http://x>")
    figures = measure(home, excluded, generating, None, 128)
    found = read_page(page(config, torch.randn(1437, 2), home, figures, None).replace("http://x", ""))
    assert "Clusters of a&b<script>.npz" in found.text
    assert "encoder run:<img src=>" in found.text
    told = config.with_(assignments="<b>.safetensors")
    assert "clusters from <b>.safetensors" in read_page(page(told, torch.randn(1437, 2), home, figures, None)).text
