import dataclasses

import pytest

from complementary.paper import published
from complementary.paper.claims import CHECKS, judge
from complementary.paper.store import Results, read
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
        words = {judge(id, Results(), protocol).word for id in CHECKS}
        assert words == {"not run", "cannot be checked"}
    assert judge("P13", Results(), "ours").word == "cannot be checked"  # human labels
    assert judge("P15", Results(), "ours") is None  # a matter of theory


@pytest.mark.parametrize(("gain", "word"), [(0.30, "holds"), (0.296, "holds"), (0.29, "fails")])
def test_gain_holds_or_fails(add_run, store, gain, word):
    value = lambda entry, _: 0.5 + gain * (entry.method == "icm")  # noqa: E731
    fill(add_run, "main", value, data="mnist", tail=100.0)
    found = verdict("P1", store)
    assert found.word == f"{word} so far"
    assert f"s-nl ρ=100: {100 * gain:+.2f}" in found.evidence
    assert "(at least 1 seed, 300 epochs)" in found.evidence
    fill(add_run, "main", value, data="mnist", tail=100.0, seeds=range(3))
    assert verdict("P1", store).word == word
    assert verdict("P1", store, "paper").word == "not run"
    assert verdict("P2", store).word == "not run"


def test_gain_with_missing_settings_is_not_judged(add_run, store):
    fill(add_run, "main", lambda entry, _: 0.1 * (entry.method == "icm"), data="cifar10", tail=1.0)
    found = verdict("P2", store)
    assert found.word == "not run"
    assert found.evidence.startswith("4 of 8 gains known. s-nl ρ=1: +10.00, fwd")


def test_gain_over_a_shorter_training_does_not_count(add_run, store):
    for method, epochs in (("mixup", 100), ("icm", 300)):
        for loss in ("s-nl", "fwd", "dm", "s-exp"):
            entry = entry_of("main", method, data="mnist", tail=100.0, loss=loss)
            add_run(entry, 0.5 + 0.4 * (epochs == 300), epochs=epochs)
    assert verdict("P1", store).evidence == "0 of 4 gains known."


def test_gain_range_is_the_smallest_and_the_largest(add_run, store):
    gains = {"s-nl": 0.13, "fwd": 0.21, "dm": 0.14, "s-exp": 0.15}
    fill(add_run, "main", lambda e, _: 0.2 + gains[e.setting.loss] * (e.method == "icm"), data="cifar10")
    assert (verdict("P8", store).word, verdict("P9", store).word) == ("holds so far", "holds so far")
    add_run(entry_of("main", "icm", data="cifar10", tail=1.0, loss="dm"), 0.3)
    assert (verdict("P8", store).word, verdict("P9", store).word) == ("fails so far", "holds so far")


def test_noise_is_compared_with_the_published_ratio(add_run, add_noise, store):
    mixup = entry_of("noise", "mixup", data="cifar10", tail=100.0)
    icm = entry_of("noise", "icm", data="mnist", tail=100.0)
    add_run(mixup, 0.3, oracle_noise_ratio=0.1605), add_run(icm, 0.8, oracle_noise_ratio=0.005)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("holds", "holds")
    add_run(mixup, 0.3, oracle_noise_ratio=0.15), add_run(icm, 0.8, oracle_noise_ratio=0.012)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("fails", "fails")
    assert verdict("P3", store).evidence == "15.00 (n = 1)"
    add_noise(mixup, 0.16)  # the same seed, counted alone: this one counts
    assert verdict("P3", store) == ("holds", "16.00 (n = 1)")
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
    assert verdict("P12", store) == ("not run", "flip: 60.00 (at least 1 seed, 100 epochs)")
    fill(add_run, "augment", 0.79, mix="icm", changes=(("policy", "cutout"),))
    assert verdict("P12", store).word == "holds so far"
