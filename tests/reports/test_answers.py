"""Answers that look wrong, against errors that were planted."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import labels, transitions
from complementary.errors import UserError
from complementary.reports.answers import (
    FILTERS,
    RANKS,
    estimate_answer_noise,
    find_answer_issues,
    get_answer_quality_scores,
    rank_answers,
)


def simulate(count=4000, classes=8, spread=5.0, rate=0.03, sharpness=1.0, seed=0, per_example=1, transition=None):
    """A calibrated model of about 80 % accuracy, whose logits are then multiplied by ``sharpness``.

    Returns:
        Probabilities [N, K], answers [N, K], and which answers are wrong, bool [N, K].
    """
    source = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(count, classes, generator=source, dtype=torch.float64)
    truth = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    base = transitions.uniform(classes) if transition is None else transition
    matrix = (1 - rate) * base + rate * torch.eye(classes, dtype=torch.float64)
    excluded = labels.draw(truth, matrix, per_example, seed)
    wrong = excluded.bool() & torch.nn.functional.one_hot(truth, classes).bool()
    return (sharpness * logits).softmax(1), excluded, wrong.numpy()


@pytest.mark.parametrize("sharpness", [1.0, 3.0], ids=["calibrated", "too confident"])
@pytest.mark.parametrize("rate", [0.03, 0.1])
def test_estimate_answer_noise_is_right_within_three_standard_errors(rate, sharpness):
    noise = estimate_answer_noise(*reversed(simulate(rate=rate, sharpness=sharpness)[:2]))
    assert noise.rate == pytest.approx(rate, abs=min(3 * noise.error, 0.02))
    assert 0.002 < noise.error < 0.015
    assert noise.p_value < (1e-3 if rate == 0.03 else 0.02)
    if rate == 0.03:  # a tenth is close to 1/8, where answers say nothing and leave the temperature to its prior
        assert noise.temperature == pytest.approx(sharpness, rel=0.35)
    assert noise.transition.diagonal() == pytest.approx(noise.rate - noise.error, abs=1e-3)


def test_find_answer_issues_ranks_planted_errors_first():
    """Oracle: precision and recall against the planted errors, and against the precision that the ranking expects."""
    probabilities, excluded, wrong = simulate()
    ranked = rank_answers(excluded, probabilities)
    planted = wrong[ranked.example, ranked.answer]
    precision = planted[ranked.is_issue].mean()
    assert precision == pytest.approx(ranked.expected_precision, abs=0.1)
    assert precision > 0.7
    assert planted[ranked.is_issue].sum() / planted.sum() > 0.35
    assert planted[:20].mean() >= 0.9  # those that are sent back to the annotators first
    assert planted.mean() < 0.04  # a random choice
    assert float((1 - ranked.quality).sum()) == pytest.approx(planted.sum(), rel=0.35)


def test_find_answer_issues_finds_nothing_in_clean_answers():
    """Negative control: in 20 clean datasets the test of level 5 % fires rarely, and few answers are accused."""
    found = [
        rank_answers(excluded, probabilities).is_issue.sum()
        for probabilities, excluded, _ in (simulate(1000, rate=0.0, seed=seed) for seed in range(20))
    ]
    assert np.count_nonzero(found) <= 3
    assert max(found) <= 30


def test_model_that_knows_nothing_accuses_nobody():
    """Negative control: confident predictions that have nothing to do with the examples."""
    source = torch.Generator().manual_seed(3)
    probabilities = (4 * torch.randn(1500, 8, generator=source, dtype=torch.float64)).softmax(1)
    truth = torch.randint(8, (1500,), generator=source)
    ranked = rank_answers(labels.draw(truth, transitions.uniform(8), seed=3), probabilities)
    assert ranked.noise.p_value > 0.05
    assert not ranked.is_issue.any()


def test_quality_is_the_probability_of_a_right_answer():
    """The scores are calibrated: among answers of quality q, a share q is right."""
    probabilities, excluded, wrong = simulate(20_000)
    ranked = rank_answers(excluded, probabilities)
    planted = wrong[ranked.example, ranked.answer]
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.95), (0.95, 1.0)):
        part = (ranked.quality >= low) & (ranked.quality <= high)
        assert 1 - planted[part].mean() == pytest.approx(ranked.quality[part].mean(), abs=0.07)


def test_posterior_is_bayes_rule():
    """A slow reference with several answers per example."""
    probabilities, excluded, _ = simulate(30, 4, spread=1.0, per_example=2)
    matrix = 0.9 * transitions.uniform(4) + 0.1 * torch.eye(4, dtype=torch.float64)
    scores = get_answer_quality_scores(excluded, probabilities, matrix)
    temperature = rank_answers(excluded, probabilities, matrix).noise.temperature
    for i in range(30):
        joint = [float(probabilities[i, j]) ** (1 / temperature) for j in range(4)]
        given_classes = [k for k in range(4) if excluded[i, k]]
        for j in range(4):
            for k in given_classes:
                joint[j] *= float(matrix[j, k])
        worst = max(joint[k] / sum(joint) for k in given_classes)
        assert scores[i] == pytest.approx(1 - worst, abs=1e-9)


def test_estimate_answer_noise_with_several_answers_and_biased_labels():
    base = transitions.biased(6, 5)
    probabilities, excluded, wrong = simulate(3000, 6, per_example=2, transition=base)
    noise = estimate_answer_noise(excluded, probabilities, base)
    assert noise.rate == pytest.approx(wrong.sum() / int(excluded.sum()), abs=0.01)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("how", FILTERS)
def test_mask_and_indices_are_the_same_examples(rank, how):
    probabilities, excluded, _ = simulate(600, rate=0.06)
    excluded[:3] = 1 - torch.eye(8, dtype=torch.uint8)[:3]  # several answers
    options = {"filter_by": how, "noise_rate": 0.06}
    mask = find_answer_issues(excluded, probabilities, **options)
    assert mask.any()
    ranked = find_answer_issues(excluded, probabilities, return_indices_ranked_by=rank, **options)
    assert mask.dtype == bool
    assert sorted(ranked) == np.flatnonzero(mask).tolist()
    scores = get_answer_quality_scores(excluded, probabilities, method=rank, noise_rate=0.06)
    assert (np.diff(scores[ranked]) >= -1e-9).all()
    half = find_answer_issues(excluded, probabilities, frac_noise=0.5, **options)
    assert half.sum() == round(mask.sum() / 2)


def test_self_confidence_and_margin_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    answers = [0, 1]
    assert get_answer_quality_scores(answers, probabilities, method="self_confidence") == pytest.approx([0.3, 0.8])
    margin = get_answer_quality_scores(answers, probabilities, method="normalized_margin")
    assert margin == pytest.approx([0.25, 0.75])  # (1 - .7 + .2) / 2 and (1 - .2 + .7) / 2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 40))
def test_scores_are_probabilities_for_any_input(seed, classes, count):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, 0.3), count)
    answers = rng.integers(0, classes, count)
    for rank in RANKS:
        scores = get_answer_quality_scores(answers, probabilities, method=rank)
        assert scores.shape == (count,)
        assert ((scores >= 0) & (scores <= 1)).all()


def simulate_both(rate, yes_rate, count=4000, classes=8, seed=0):
    """As `simulate`, but a quarter of the answers are "yes", a share ``yes_rate`` of which names a wrong class."""
    probabilities, excluded, wrong = simulate(count, classes, rate=rate, seed=seed)
    rng = np.random.default_rng(seed)
    quarter = count // 4
    cumulated = probabilities.cumsum(1).numpy()
    truth = (rng.random((count, 1)) > cumulated).sum(1).clip(0, classes - 1)  # drawn from the model
    is_wrong = rng.random(quarter) < yes_rate
    named = (truth[:quarter] + is_wrong * rng.integers(1, classes, quarter)) % classes
    excluded[:quarter] = 1
    excluded[np.arange(quarter), named] = 0
    wrong_example = wrong.any(1)
    wrong_example[:quarter] = is_wrong
    return probabilities, excluded, wrong_example


@pytest.mark.parametrize(("rate", "yes_rate"), [(0.03, 0.03), (0.03, 0.3), (0.08, 0.0), (0.0, 0.1)])
def test_rates_of_not_and_yes_answers_are_separate(rate, yes_rate):
    """With one rate for both, right "yes" answers were flagged: 2 % wrong "not" answers meant 62 % wrong "yes"."""
    probabilities, excluded, wrong = simulate_both(rate, yes_rate)
    noise = estimate_answer_noise(excluded, probabilities)
    assert noise.rate == pytest.approx(rate, abs=max(3 * noise.error, 0.005))
    assert noise.yes_rate == pytest.approx(yes_rate, abs=max(3 * noise.yes_error, 0.005))
    assert (noise.p_value < 0.05) == (rate > 0)
    assert (noise.yes_p_value < 0.05) == (yes_rate > 0)
    wanted = 0.75 * rate + 0.25 * yes_rate / 7
    assert noise.label_rate.value == pytest.approx(wanted, abs=3 * noise.label_rate.error)
    ranked = rank_answers(excluded, probabilities)
    assert len(ranked.example) == 4000  # one entry per answer, also for "yes"
    planted = wrong[ranked.example]
    for kind, right in ((ranked.is_yes, 1 - yes_rate), (~ranked.is_yes, 1 - rate)):
        found = ranked.is_issue & kind
        if right == 1:
            assert not found.any()
        else:
            assert found.sum() >= 5
            expected = (1 - ranked.quality[found]).sum()
            assert planted[found].sum() == pytest.approx(expected, abs=3 + 1.5 * np.sqrt(expected))
        assert ranked.quality[kind].mean() == pytest.approx(right, abs=0.03)
    pruned = rank_answers(excluded, probabilities, filter_by="prune_by_noise_rate").is_issue.sum()
    assert pruned == pytest.approx(wrong.sum(), rel=0.35)


def test_a_given_rate_is_that_of_yes_answers_too():
    probabilities, excluded, _ = simulate_both(0.05, 0.05, count=400)
    noise = rank_answers(excluded, probabilities, noise_rate=0.05).noise
    assert (noise.rate, noise.yes_rate) == pytest.approx((0.05, 0.05))
    scores = get_answer_quality_scores(excluded, probabilities, noise_rate=0.05)
    calibrated = (probabilities.log() / noise.temperature).softmax(1)
    for i in range(20):  # a slow reference of Bayes' rule for "yes"
        named = int(excluded[i].argmin())
        joint = [float(p) * (0.95 if k == named else 0.05 / 7) for k, p in enumerate(calibrated[i])]
        assert scores[i] == pytest.approx(joint[named] / sum(joint), abs=1e-6)


def test_examples_without_answers_are_no_issue():
    probabilities, excluded, _ = simulate(500)
    excluded[:100] = 0
    assert (get_answer_quality_scores(excluded, probabilities)[:100] == 1).all()
    assert not find_answer_issues(excluded, probabilities)[:100].any()


@pytest.mark.parametrize(
    ("answers", "probabilities", "options"),
    [
        ([0, 1], np.full((3, 2), 0.5), {}),
        ([0, 1], np.full((2, 2), 0.7), {}),
        ([0, 5], np.full((2, 2), 0.5), {}),
        ([0, 1], [0.5, 0.5], {}),
        ([0, 1], np.full((2, 2), np.nan), {}),
        (np.array([[0.5, 0], [0, 1]]), np.full((2, 2), 0.5), {}),
        (np.zeros((2, 2)), np.full((2, 2), 0.5), {}),
        ([0, 1], np.full((2, 2), 0.5), {"filter_by": "luck"}),
        ([0, 1], np.full((2, 2), 0.5), {"return_indices_ranked_by": "luck"}),
        ([0, 1], np.full((2, 2), 0.5), {"frac_noise": 2}),
        ([0, 1], np.full((2, 2), 0.5), {"noise_rate": 0.9}),
        ([0, 1], np.full((2, 2), 0.5), {"transition": np.eye(2)}),
    ],
)
def test_bad_input_is_a_user_error(answers, probabilities, options):
    with pytest.raises(UserError):
        find_answer_issues(answers, probabilities, **options)


def test_names_of_classes_are_read_in_the_order_of_the_columns():
    names = ["delta", "beta", "alpha"]
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    numbers = np.random.default_rng(1).integers(0, 3, 60)
    answers = [names[k] for k in numbers]
    wanted = get_answer_quality_scores(numbers, probabilities, noise_rate=0.1)
    assert get_answer_quality_scores(answers, probabilities, noise_rate=0.1, classes=names).tolist() == wanted.tolist()
    ranked = find_answer_issues(answers, probabilities, noise_rate=0.1, classes=np.array(names))
    assert ranked.tolist() == find_answer_issues(numbers, probabilities, noise_rate=0.1).tolist()
    for function in (find_answer_issues, rank_answers, estimate_answer_noise):
        with pytest.raises(UserError) as caught:
            function(answers, probabilities)
        assert caught.value.option == "classes"


def test_yes_answers_for_many_classes_are_judged():
    """Products of 200 probabilities are below the smallest float64."""
    truth = torch.arange(400) % 200
    excluded = 1 - torch.nn.functional.one_hot(truth)
    probabilities = (torch.nn.functional.one_hot(truth) + 0.01).double()
    noise = estimate_answer_noise(excluded, probabilities / probabilities.sum(1, keepdim=True))
    assert noise.rate == pytest.approx(0, abs=1e-3)


def test_answers_can_be_a_table_or_an_array_of_names():
    random = np.random.default_rng(0)
    truth = random.integers(0, 3, 60)
    excluded = np.eye(3, dtype=int)[(truth + random.integers(1, 3, 60)) % 3]
    probabilities = 0.9 * np.eye(3)[truth] + 0.1 / 3
    names = ["cat", "dog", "ship"]
    wanted = rank_answers(excluded, probabilities)
    table = pd.DataFrame(excluded, columns=names)[["ship", "cat", "dog"]]
    listed = np.array(names)[excluded.argmax(1)][:, None]
    for form in (table, listed):
        found = rank_answers(form, probabilities, classes=names)
        assert np.array_equal(found.example, wanted.example)
        assert np.allclose(found.quality, wanted.quality)
