"""The comparison of encoders without true labels, against what true labels say."""

import pytest
import torch

from complementary import labels, transitions
from complementary.clusters import compare
from complementary.clusters.compare import EncoderComparison, EncoderScore, compare_encoders, fit_linear
from complementary.errors import UserError
from complementary.reports.confusions import Estimated

K = 5
MATRIX = transitions.uniform(K)


def simulate(spreads, count=1500, seed=0):
    """Features of several encoders, whose classes overlap the more the larger the spread -> (features, labels)."""
    source = torch.Generator().manual_seed(seed)
    truth = torch.randint(K, (count,), generator=source)
    centers = torch.eye(K, 12)
    features = {
        name: centers[truth] + spread * torch.randn(count, 12, generator=source) for name, spread in spreads.items()
    }
    return features, labels.draw(truth, MATRIX, seed=seed)


@pytest.mark.slow
def test_better_encoder_wins():
    """In order of the overlap, which the comparison does not know."""
    found = compare_encoders(*simulate({"poor": 0.9, "good": 0.3, "fair": 0.5}), MATRIX, folds=3)
    assert [row.name for row in found.scores] == ["good", "fair", "poor"]
    assert found.winner == "good"
    assert found.scores[0].behind == (0.0, 0.0)
    assert found.scores[0].accuracy.value > found.scores[2].accuracy.value + 0.2
    assert "good is the best" in found.verdict()


@pytest.mark.slow
def test_equal_encoders_have_no_winner(monkeypatch):
    """Negative control: two encoders of the same quality."""
    monkeypatch.setattr(compare, "DECAYS", (1e-3, 1e-2))
    winners = [
        compare_encoders(*simulate({"a": 0.5, "b": 0.5}, 500, seed), MATRIX, folds=2).winner for seed in range(6)
    ]
    assert sum(winner is not None for winner in winners) <= 1


def test_features_that_are_always_zero_change_nothing(monkeypatch):
    monkeypatch.setattr(compare, "DECAYS", (1e-3,))
    features, excluded = simulate({"a": 0.3}, 300)
    wide = torch.cat([features["a"], torch.zeros(300, 400)], 1)
    found = compare_encoders({"a": features["a"], "wide": wide}, excluded, MATRIX)
    assert found.scores[0].score == pytest.approx(found.scores[1].score, abs=1e-3)


def test_fit_linear_recovers_the_classes():
    features, excluded = simulate({"a": 0.2})
    weight, bias = fit_linear(features["a"], excluded.float(), MATRIX.float(), 1e-3)
    source = torch.Generator().manual_seed(0)
    truth = torch.randint(K, (1500,), generator=source)
    assert float(((features["a"] @ weight + bias).argmax(1) == truth).double().mean()) > 0.95


def test_verdict_says_how_many_examples_are_missing():
    rows = [
        EncoderScore("a", -1.0, Estimated(0.0, 0.0), Estimated(0.8, 0.1)),
        EncoderScore("b", -1.01, Estimated(0.01, 0.01), Estimated(0.8, 0.1)),
    ]
    assert "9,000" in EncoderComparison(rows, None, 1000).verdict()  # three standard errors: nine times the examples
    assert "only" in EncoderComparison(rows[:1], None, 1000).verdict()


@pytest.mark.parametrize("features", [{}, {"a": torch.zeros(3, 2)}])
def test_compare_refuses_features_that_do_not_fit(features):
    with pytest.raises(UserError):
        compare_encoders(features, torch.eye(K), MATRIX)
