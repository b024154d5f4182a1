"""One row of the encoder table: each figure against its own function, or against all pairs one by one."""

import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.neighbors import KNeighborsClassifier

from complementary import labels, transitions
from complementary.clusters.assign import clusters_of
from complementary.clusters.judge import NAMES, WIDE, encoder_report, judge, measure, noise_as_coded, probe, rows
from complementary.config import Config
from complementary.data import load
from complementary.oracle import (
    estimated_same_class,
    expected_noise_ratio,
    knn_accuracy,
    linear_accuracy,
    purity,
    same_class,
)

DIGITS = load("digits")
TRUTH, TEST_TRUTH = DIGITS.train.truth, DIGITS.test.truth
POINTS, TEST = (F.normalize(split.inputs.flatten(1).float()) for split in (DIGITS.train, DIGITS.test))
EXCLUDED = labels.draw(TRUTH, transitions.uniform(10), 3)


@pytest.fixture(scope="module")
def reported():
    return encoder_report(POINTS, TRUTH, TEST, TEST_TRUTH, EXCLUDED, (5, 20), batch=128, seed=3)


def test_clusters_are_those_of_cll_cluster(reported):
    for k, found in reported[1].items():
        config = Config.of(clusters=k, seed=3)
        assert torch.equal(found, clusters_of(config, DIGITS, torch.arange(1437)))


def test_every_figure_is_its_own_function(reported):
    figures, found = reported
    assert (figures["examples"], figures["features"]) == (1437, 64)
    assert figures["oracle_knn"] == knn_accuracy(POINTS, TRUTH, TEST, TEST_TRUTH)
    assert figures["oracle_linear"] == linear_accuracy(POINTS, TRUTH, TEST, TEST_TRUTH)
    assert [c["clusters"] for c in figures["clusterings"]] == [5, 20]
    for c, home in zip(figures["clusterings"], found.values(), strict=True):
        measured = measure(home, EXCLUDED, None, TRUTH, 128)
        assert c["oracle_same_class"] == same_class(home, TRUTH)
        assert c["oracle_purity"] == purity(home, TRUTH)
        estimate = estimated_same_class(home, EXCLUDED, transitions.uniform(10))
        assert (c["same_class_estimated"], c["same_class_error"]) == estimate
        for mixer in ("mixup", "icm", "micm"):
            assert c[f"oracle_noise_{mixer}"] == measured.oracle[f"noise_{mixer}"]
            assert c[f"oracle_noise_{mixer}_as_coded"] < c[f"oracle_noise_{mixer}"]
        assert c["oracle_noise_mixup_as_coded"] == pytest.approx(127 / 128 * c["oracle_noise_mixup"], rel=0.02)


def test_the_figures_are_near_those_of_scikit_learn(reported):
    figures, _ = reported
    neighbours = KNeighborsClassifier(200, metric="cosine", weights=lambda d: __import__("numpy").exp((1 - d) / 0.1))
    wanted = neighbours.fit(POINTS.numpy(), TRUTH.numpy()).score(TEST.numpy(), TEST_TRUTH.numpy())
    assert figures["oracle_knn"] == pytest.approx(wanted, abs=0.006)
    home = torch.from_numpy(KMeans(20, n_init=10, random_state=0).fit_predict(POINTS.numpy())).long()
    assert figures["clusterings"][1]["oracle_same_class"] == pytest.approx(same_class(home, TRUTH), abs=0.04)


def test_a_known_transition_is_used():
    home = torch.arange(1437) % 5
    matrix = transitions.biased(10, 5)
    (told,) = judge({5: home}, EXCLUDED, None, matrix, 128)
    assert told["same_class_estimated"] == estimated_same_class(home, EXCLUDED, matrix).value


def test_without_truth_there_is_no_oracle():
    figures, found = encoder_report(POINTS, None, TEST, None, EXCLUDED, (5,), restarts=1)
    assert figures["oracle_knn"] is None
    assert figures["oracle_linear"] is None
    assert not any("oracle" in name for c in figures["clusterings"] for name in c)
    assert not any("oracle" in row[0] for row in rows(figures))
    assert set(found) == {5}
    assert probe(POINTS, TRUTH, None, None)["oracle_knn"] is None


def test_figures_are_json_also_where_nothing_can_be_told():
    """Ten classes, a tenth of the labels wrong: the estimate is NaN, which JSON does not know."""
    figures, _ = encoder_report(
        POINTS, TRUTH, TEST, TEST_TRUTH, EXCLUDED, (5,), restarts=1, transition=transitions.noisy(10, 0.1)
    )
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert figures["clusterings"][0]["same_class_estimated"] is None
    assert ["same-class partners, estimated", "unknown"] in rows(figures)
    assert ["standard error of that", "unknown"] in rows(figures)


def test_rows_show_every_figure_and_mark_each_oracle(reported):
    table = {row[0]: row[1:] for row in rows(reported[0])}
    assert table["clusters"] == ["5", "20"]
    for key, name in NAMES.items():
        assert key.startswith("oracle_")
        assert name.endswith("(oracle)")
        assert table[name] == [f"{100 * c[key]:.2f}" for c in reported[0]["clusterings"]]
    for key, name in (("estimated", "same-class partners, estimated"), ("error", "standard error of that")):
        assert table[name] == [f"{100 * c[f'same_class_{key}']:.1f}" for c in reported[0]["clusterings"]]
    assert table["kNN accuracy, k = 200 (oracle)"] == [f"{100 * reported[0]['oracle_knn']:.2f}"]


def test_many_numbers_of_clusters_go_into_blocks(reported):
    one = reported[0]["clusterings"][0]
    many = [one | {"clusters": k} for k in range(2, 2 + 2 * WIDE)]
    table = rows({"clusterings": many})
    assert max(map(len, table)) == 1 + WIDE
    assert [k for row in table if row[0] == "clusters" for k in row[1:]] == [str(c["clusters"]) for c in many]
    assert [row[0] for row in table].count("") == 1
    assert rows({"clusterings": []}) == []


@pytest.mark.gpu
def test_features_may_lie_on_a_gpu(reported):
    on_gpu = [t.cuda() for t in (POINTS, TRUTH, TEST, TEST_TRUTH, EXCLUDED)]
    figures, found = encoder_report(*on_gpu, (5, 20), batch=128, seed=3)
    assert all(home.device.type == "cpu" for home in found.values())
    assert figures["oracle_knn"] == pytest.approx(reported[0]["oracle_knn"], abs=0.01)
    encoder_report(POINTS.cuda(), TRUTH, TEST, TEST_TRUTH, EXCLUDED, (5,), transition=transitions.uniform(10).cuda())


# --- noise as the published code counts it ------------------------------------------------------------


def one_by_one(truth, excluded, group, others):
    """All draws of partners, each example its own possible partner, in plain Python."""
    truth, said = truth.tolist(), [set(row.nonzero()[:, 0].tolist()) for row in excluded]
    shares = []
    for i in range(len(truth)):
        members = [j for j in range(len(truth)) if group[j] == group[i]]
        draws = list(itertools.product(members, repeat=others))
        lies = [
            any(
                truth[b] in said[a]
                for a, b in itertools.permutations(range(len(mix)), 2)
                for a, b in [(mix[a], mix[b])]
            )
            for mix in ((i, *draw) for draw in draws)
        ]
        shares.append(sum(lies) / len(draws))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("others", [1, 2])
def test_noise_as_coded_is_that_of_all_draws(others):
    source = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 4, (40,), generator=source)
    excluded = labels.draw(truth, transitions.uniform(4), 1)
    group = torch.arange(40) % 7
    group[-1] = 9  # alone: it mixes with itself, and counts
    wanted = one_by_one(truth, excluded, group.tolist(), others)
    assert 0.1 < wanted < 0.9
    assert noise_as_coded(truth, excluded, group, others, 40) == pytest.approx(wanted, abs=0.008)


def test_alone_everywhere_is_never_noisy():
    assert noise_as_coded(TRUTH, EXCLUDED, torch.arange(1437), 1, 128) == 0


def test_self_pairs_take_the_share_that_the_batch_gives_them():
    """50 clusters that know nothing, batches of 500: an example is its own partner in a tenth of its draws."""
    truth = torch.arange(10).repeat(500)
    excluded = labels.draw(truth, transitions.uniform(10), 1)
    group = torch.randperm(5000, generator=torch.Generator().manual_seed(0)) % 50
    expected = 0.9 * expected_noise_ratio(truth, transitions.uniform(10))
    assert noise_as_coded(truth, excluded, group, 1, 500) == pytest.approx(expected, abs=0.004)
