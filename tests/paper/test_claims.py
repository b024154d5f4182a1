import dataclasses
import itertools

import pytest

from complementary.paper import published
from complementary.paper.claims import CHECKS, NOT_FOR_PLAIN, judge, label_ratio, own_tables
from complementary.paper.store import Results, RunSettings, read
from complementary.paper.studies import PROTOCOLS, STUDIES
from tests.paper.conftest import entry_of


def verdict(id, store, protocol="ours"):
    return judge(id, read([store]), protocol)


def fill(add_run, study, value, protocol="ours", seeds=(0,), **wanted):
    """Give every entry of a study with these properties the value (or what it returns for entry and seed)."""
    for entry in STUDIES[study].entries:
        if all(getattr(entry.setting, name) == found for name, found in wanted.items()):
            for seed in seeds:
                add_run(entry, value(entry, seed) if callable(value) else value, protocol, seed)


def test_judge_gives_no_verdict_without_runs():
    assert set(CHECKS) <= set(published.claims())
    for protocol in PROTOCOLS:
        verdicts = {id: judge(id, Results(), protocol) for id in CHECKS}
        assert {v.text for v in verdicts.values() if v is not None} == {"not run", "cannot be checked"}
        left_out = [id for id, v in verdicts.items() if v is None]
        assert set(left_out) == set(NOT_FOR_PLAIN if protocol == "plain" else ())
    assert judge("P13", Results(), "ours").word == "cannot be checked"  # human labels
    assert judge("P15", Results(), "ours") is None  # a matter of theory


@pytest.mark.parametrize(("gain", "word"), [(0.30, "holds"), (0.296, "holds"), (0.27, "fails")])
def test_gain_holds_or_fails(add_run, store, gain, word):
    value = lambda entry, seed: 0.5 + gain * (entry.method == "icm") + seed / 1000  # noqa: E731
    fill(add_run, "main", value, data="mnist", tail=100.0)
    found = verdict("P1", store)
    assert found.text == f"{word} so far"
    assert f"s-nl ρ=100: {100 * gain:+.2f}" in found.evidence
    assert "(1 seed)" in found.evidence
    fill(add_run, "main", value, data="mnist", tail=100.0, seeds=range(3))
    assert verdict("P1", store).text == word
    assert verdict("P1", store, "paper").word == "not run"
    assert verdict("P2", store).word == "not run"


def test_gain_with_missing_settings_is_not_judged(add_run, store):
    fill(add_run, "main", lambda entry, _: 0.1 * (entry.method == "icm"), data="cifar10", tail=1.0)
    found = verdict("P2", store)
    assert found.word == "not run"
    assert found.evidence.startswith("4 of 8 gains known. s-nl ρ=1: +10.00, fwd")


def test_gain_within_two_standard_errors_of_the_claimed_one_is_undecided(add_run, store):
    """28.9 is 0.6 below 29.5; the error of the mean of four gains of single runs is 0.7 if seeds differ by a point."""
    fill(add_run, "main", lambda entry, _: 0.5 + 0.289 * (entry.method == "icm"), data="mnist", tail=100.0)
    assert verdict("P1", store).text == "undecided so far"
    assert "+28.90 ± 0.71" in verdict("P1", store).evidence


def test_gain_over_a_shorter_training_does_not_count(add_run, store):
    for method, epochs in (("mixup", 100), ("icm", 300)):
        for loss in ("s-nl", "fwd", "dm", "s-exp"):
            entry = entry_of("main", method, data="mnist", tail=100.0, loss=loss)
            add_run(entry, 0.5 + 0.4 * (epochs == 300), epochs=epochs)
    assert verdict("P1", store).evidence == "0 of 4 gains known."


def test_gain_range_is_the_smallest_and_the_largest(add_run, store):
    gains = {"s-nl": 0.13, "fwd": 0.21, "dm": 0.14, "s-exp": 0.15}
    fill(add_run, "main", lambda e, _: 0.2 + gains[e.setting.loss] * (e.method == "icm"), data="cifar10")
    assert (verdict("P8", store).text, verdict("P9", store).text) == ("holds so far", "holds so far")
    add_run(entry_of("main", "icm", data="cifar10", tail=1.0, loss="dm"), 0.25)
    assert (verdict("P8", store).text, verdict("P9", store).text) == ("fails so far", "holds so far")


def test_noise_is_compared_with_the_published_ratio(add_run, add_noise, store):
    mixup = entry_of("noise", "mixup", data="cifar10", tail=100.0)
    icm = entry_of("noise", "icm", data="mnist", tail=100.0)
    add_run(mixup, 0.3, oracle_noise_ratio=0.1605), add_run(icm, 0.8, oracle_noise_ratio=0.005)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("holds", "holds")
    add_run(mixup, 0.3, oracle_noise_ratio=0.15), add_run(icm, 0.8, oracle_noise_ratio=0.012)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("fails", "fails")
    assert verdict("P3", store) == ("fails", "15.00 (1 seed)", True)
    add_noise(mixup, 0.16)  # the same seed, counted alone: this one counts
    assert verdict("P3", store).text == "holds so far"
    for seed in (1, 2):
        add_noise(mixup, 0.16, seed=seed)
    assert verdict("P3", store) == ("holds", "16.00", False)
    assert verdict("P6", store).word == verdict("P3", store, "paper").word == "not run"


def test_p_values_need_five_runs_and_one_counterexample_decides(add_run, store, monkeypatch):
    study = STUDIES["p-values"]
    few = tuple(e for e in study.entries if e.setting.tail == 1 and e.setting.loss == "fwd")
    monkeypatch.setitem(STUDIES, "p-values", dataclasses.replace(study, entries=few))

    def value(entry, seed):
        return 0.5 + 0.2 * (entry.method == "icm") + seed / 1000

    fill(add_run, "p-values", value, seeds=range(4))
    assert verdict("P11", store).word == "not run"
    fill(add_run, "p-values", value, seeds=range(5))
    assert (verdict("P10", store).word, verdict("P11", store).word) == ("holds", "holds")
    fill(add_run, "p-values", lambda e, seed: seed / 100, seeds=range(5), data="mnist", tail=1.0, loss="fwd")
    assert (verdict("P10", store).word, verdict("P11", store).word) == ("holds", "fails")
    assert "the largest p is 1" in verdict("P11", store).evidence


def test_augmented_accuracy_of_one_policy_is_enough(add_run, store):
    add_run(entry_of("augment", "icm", data="cifar10", changes=()), 0.6, epochs=100)
    assert verdict("P12", store)[:2] == ("not run", "flip: 60.00 (1 seed, 100 epochs)")
    fill(add_run, "augment", 0.79, mix="icm", changes=(("policy", "cutout"),))
    assert verdict("P12", store).text == "holds so far"


# --- central statements ---------------------------------------------------------------------------------------------


def test_own_tables_contradict_two_central_statements():
    """ICM against both baselines and Mixup against none, in the 152 groups of the published tables."""
    cells = published.cells()
    places = dict.fromkeys(place[:-1] for place in cells if place[0] in ("Table 1", "Table 2", *SETUPS))
    assert len(places) == 152
    lost = [p for p in places if cells[(*p, "icm")].mean < max(cells[(*p, mix)].mean for mix in ("none", "mixup"))]
    assert len(lost) == 5  # one of them within two standard errors
    assert own_tables("C1").startswith("fails: 152 settings: clearly better in 134, level in 14, clearly worse in 4")
    hurt = [p for p in places if cells[(*p, "mixup")].mean < cells[(*p, "none")].mean]
    assert len(hurt) < 152 / 2
    assert own_tables("C2").startswith("fails: 152 settings")
    assert own_tables("C3").startswith("holds: 48 settings")


SETUPS = ("Table 6", "Table 7", "Table 8", "Table 9")


def test_label_ratio_of_setup_3_is_smaller_than_that_of_setup_2():
    assert label_ratio(1, 10) == pytest.approx(9.70, abs=0.005)
    assert label_ratio(100, 10) == pytest.approx(5.86, abs=0.005)
    assert label_ratio(100, 1) == pytest.approx(1.668, abs=0.0005)
    assert "5.86" in own_tables("C16")
    assert judge("C16", Results(), "ours") is None


@pytest.mark.parametrize(("icm", "text"), [(0.5, "holds"), (0.301, "undecided"), (0.2, "fails")])
def test_better_in_every_setting_counts_clear_differences(add_run, store, icm, text):
    value = lambda entry, seed: (icm if entry.method == "icm" else 0.3) + seed / 1000  # noqa: E731
    fill(add_run, "same-label", value, seeds=range(3), data="cifar10")
    found = verdict("C6", store)
    assert found.text == f"{text} so far"  # one of five datasets
    assert found.evidence.startswith("1 setting of 5: ")
    fill(add_run, "same-label", value, seeds=range(3))
    assert verdict("C6", store).text == text
    assert verdict("C6", store, "paper").text == "not run"


def test_better_with_one_seed_uses_the_deviation_of_other_settings(add_run, store):
    for method, accuracy in (("icm", 0.33), ("same-excluded", 0.3)):
        add_run(entry_of("same-label", method, data="cifar10"), accuracy)
    assert verdict("C6", store).text == "holds so far"  # 3 points against 2 x 1.41
    for seed, accuracy in enumerate((0.2, 0.3)):
        add_run(entry_of("intra", "intra-class"), accuracy, seed=seed)
    assert verdict("C6", store).text == "undecided so far"


def test_noise_removed_is_compared_between_simple_and_complex_datasets(add_noise, store):
    for data, ratio in (("cifar10", 0.06), ("mnist", 0.01)):
        add_noise(entry_of("noise", "mixup", data=data, tail=100.0), 0.16)
        add_noise(entry_of("noise", "icm", data=data, tail=100.0), ratio)
    assert verdict("C12", store).text == "holds so far"
    assert "cifar10 -10.00, mnist -15.00" in verdict("C12", store).evidence
    add_noise(entry_of("noise", "icm", data="mnist", tail=100.0), 0.1)
    assert verdict("C12", store).text == "fails so far"


def test_gradients_and_encoders_are_judged(add_gradients, add_noise, store):
    add_gradients("mnist")
    assert verdict("C13", store).text == "undecided so far"  # one measurement
    assert "mnist MSE 0.75 against 0.75" in verdict("C13", store).evidence
    add_gradients("mnist", steps=3, icm=0.9)
    assert verdict("C13", store).text == "holds so far"
    add_gradients("cifar10", steps=3, icm=1.1)
    assert verdict("C13", store).text == "fails so far"
    assert verdict("C14", store).text == "not run"  # noise-free Mixup was not measured
    for group, ratio in (("", 0.03), ("mocov3", 0.1), ("byol", 0.1)):
        add_noise(entry_of("noise", "icm", data="cifar10", tail=1.0, group=group), ratio)
    assert verdict("C15", store).text == "holds so far"


def test_verdict_on_clusters_of_a_short_encoder_is_so_far(add_noise, store):
    entry = entry_of("noise", "icm", data="mnist", tail=100.0)
    for seed in range(3):
        add_noise(entry, 0.005, seed=seed, settings=RunSettings(pretrain_epochs=400))
    assert verdict("P7", store) == ("holds", "0.50 (encoder of 400 epochs)", True)


def test_a_part_of_the_settings_counts_by_how_much_they_differ(add_run, store):
    """Four of 152 settings: the mean difference is clear for their seeds, but not for other settings."""

    def value(gains):
        return lambda e, _: 0.3 + gains[e.setting.loss] * (e.method == "none")

    where = {"data": "cifar10", "tail": 100.0}
    for loss, seed in itertools.product(("s-nl", "fwd"), range(3)):  # the deviation between seeds is small
        add_run(entry_of("main", "icm", data="mnist", tail=100.0, loss=loss), 0.5 + seed / 10_000, seed=seed)
    fill(add_run, "main", value({"s-nl": 0.2, "fwd": 0.0, "dm": 0.0, "s-exp": 0.0}), **where)
    found = verdict("C2", store)
    assert found.word == "undecided"
    assert "mean difference +5.00" in found.evidence
    assert "published there -8.51" in found.evidence, "the paper's own difference in the same settings"
    fill(add_run, "main", value({"s-nl": 0.2, "fwd": 0.21, "dm": 0.19, "s-exp": 0.2}), **where)
    assert verdict("C2", store).word == "holds"
