import dataclasses

import pytest

from complementary.paper import published
from complementary.paper.claims import CHECKS, judge
from complementary.paper.compare import contrasts
from complementary.paper.protocols import PROTOCOLS
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of


def verdict(id, store, protocol="ours"):
    return judge(published.claim(id), read([store]), protocol)


def fill(fake, study, value, protocol="ours", seeds=(0,), **wanted):
    """Give every entry of a study with these properties the value (or what it returns for entry and seed)."""
    for entry in STUDIES[study].entries:
        if all(getattr(entry.setting, name) == found for name, found in wanted.items()):
            for seed in seeds:
                fake(entry, value(entry, seed) if callable(value) else value, protocol, seed)


def test_every_claim_is_judged_and_none_without_runs():
    assert list(CHECKS) == [claim.id for claim in published.claims()]
    for protocol in PROTOCOLS:
        words = {judge(claim, Results(), protocol).word for claim in published.claims()}
        assert words == {"not run yet", "cannot be checked here", "a setting"}
    assert judge(published.claim("P13"), Results(), "ours").word == "cannot be checked here"  # human labels


@pytest.mark.parametrize(("gain", "word"), [(0.30, "holds"), (0.296, "holds"), (0.29, "fails")])
def test_a_gain_holds_or_fails(fake, store, gain, word):
    value = lambda entry, _: 0.5 + gain * (entry.method == "icm")  # noqa: E731
    fill(fake, "main", value, data="mnist", tail=100.0)
    found = verdict("P1", store)
    assert found.word == f"{word} so far"
    assert f"s-nl ρ=100: {100 * gain:+.2f}" in found.evidence
    assert "(at least 1 seed, 300 epochs)" in found.evidence
    fill(fake, "main", value, data="mnist", tail=100.0, seeds=range(3))
    assert verdict("P1", store).word == word
    assert verdict("P1", store, "paper").word == "not run yet"
    assert verdict("P2", store).word == "not run yet"


def test_a_gain_of_which_a_part_is_missing_is_not_judged(fake, store):
    fill(fake, "main", lambda entry, _: 0.1 * (entry.method == "icm"), data="cifar10", tail=1.0)
    found = verdict("P2", store)
    assert found.word == "not run yet"
    assert found.evidence.startswith("4 of 8 gains known. s-nl ρ=1: +10.00, fwd")


def test_a_gain_over_a_shorter_training_is_none(fake, store):
    for method, epochs in (("mixup", 100), ("icm", 300)):
        for loss in ("s-nl", "fwd", "dm", "s-exp"):
            fake(
                entry_of("main", method, data="mnist", tail=100.0, loss=loss),
                0.5 + 0.4 * (epochs == 300),
                epochs=epochs,
            )
    assert verdict("P1", store).evidence == "0 of 4 gains known."
    pairs = contrasts(STUDIES["main"], read([store]), "ours")
    assert {pair.ours for pair in pairs} == {None}


def test_the_ends_of_a_range_are_the_smallest_and_the_largest_gain(fake, store):
    gains = {"s-nl": 0.13, "fwd": 0.21, "dm": 0.14, "s-exp": 0.15}
    fill(fake, "main", lambda e, _: 0.2 + gains[e.setting.loss] * (e.method == "icm"), data="cifar10")
    assert (verdict("P8", store).word, verdict("P9", store).word) == ("holds so far", "holds so far")
    fake(entry_of("main", "icm", data="cifar10", tail=1.0, loss="dm"), 0.3)
    assert (verdict("P8", store).word, verdict("P9", store).word) == ("fails so far", "holds so far")


def test_noise_is_compared_with_what_was_published(fake, store):
    mixup = entry_of("noise", "mixup", data="cifar10", tail=100.0)
    icm = entry_of("noise", "icm", data="mnist", tail=100.0)
    fake(mixup, 0.3, noise_ratio=0.1605), fake(icm, 0.8, noise_ratio=0.005)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("holds", "holds")
    fake(mixup, 0.3, noise_ratio=0.15), fake(icm, 0.8, noise_ratio=0.012)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("fails", "fails")
    assert verdict("P3", store).evidence == "15.00 (n = 1)"


def test_noise_that_was_counted_without_training_decides_too(fake, counted, store):
    mixup = entry_of("noise", "mixup", data="cifar10", tail=100.0)
    counted(mixup, 0.16, label_counts=[874, 1367], oracle_class_counts=[5000, 50])
    fake(mixup, 0.3, noise_ratio=0.30)  # the same seed: not a second value
    found = verdict("P3", store)
    assert (found.word, found.evidence) == ("holds", "16.00 (n = 1)")
    fake(mixup, 0.3, noise_ratio=0.30, seed=1)
    found = verdict("P3", store)
    assert (found.word, found.evidence) == ("fails", "23.00 (n = 2)")
    assert (verdict("P14", store).word, verdict("P15", store).evidence) == ("holds", "1.564")
    assert verdict("P6", store).word == verdict("P3", store, "paper").word == "not run yet"


def test_p_values_need_five_runs_and_one_counterexample_decides(fake, store, monkeypatch):
    study = STUDIES["p-values"]
    few = tuple(e for e in study.entries if e.setting.tail == 1 and e.setting.loss == "fwd")
    monkeypatch.setitem(STUDIES, "p-values", dataclasses.replace(study, entries=few))

    def value(entry, seed):
        return 0.5 + 0.2 * (entry.method == "icm") + seed / 1000

    fill(fake, "p-values", value, seeds=range(4))
    assert verdict("P11", store).word == "not run yet"
    fill(fake, "p-values", value, seeds=range(5))
    assert (verdict("P10", store).word, verdict("P11", store).word) == ("holds", "holds")
    fill(fake, "p-values", lambda e, seed: seed / 100, seeds=range(5), data="mnist", tail=1.0, loss="fwd")
    assert (verdict("P10", store).word, verdict("P11", store).word) == ("holds", "fails")
    assert "the largest p is 1" in verdict("P11", store).evidence


def test_ratios_come_from_the_counts_of_a_run(fake, store):
    entry = entry_of("main", "none", data="cifar10", tail=100.0, loss="s-nl")
    fake(entry, 0.2, data={"label_counts": [874, 1367], "oracle_class_counts": [5000, 50]})
    assert (verdict("P14", store).word, verdict("P15", store).word) == ("holds", "fails")
    assert verdict("P15", store).evidence == "1.564"


def test_the_chosen_value_of_a_sweep_is_the_best_or_not(fake, store):
    fill(fake, "clusters", lambda e, _: 0.5 + 0.1 * (e.method == "K=50"))
    assert verdict("P23", store).word == "holds so far"
    fill(fake, "clusters", lambda e, _: 0.5 + 0.1 * (e.method == "K=50"), seeds=range(3))
    assert verdict("P23", store).word == "holds"
    fill(fake, "clusters", lambda e, _: 0.5 + 0.1 * (e.method == "K=90"), data="mnist", seeds=range(3))
    found = verdict("P23", store)
    assert (found.word, found.evidence) == (
        "fails",
        "best in 4 of 5 sweeps; mnist icm: K=90 (at least 3 seeds, 300 epochs)",
    )
    fill(fake, "augment", 0.79, mix="icm", changes=(("policy", "cutout"),))
    assert verdict("P12", store).word == "holds so far"


def test_settings_are_read_from_the_configurations():
    said = {id: judge(published.claim(id), Results(), "ours").evidence for id in ("P17", "P18", "P19", "P29", "P34")}
    assert said == {
        "P17": "here 512",
        "P18": "here 300",
        "P19": "here 0.0001",
        "P29": "here 60,000 of MNIST",
        "P34": "here 10 | 50 | 100",
    }
    assert judge(published.claim("P29"), Results(), "paper").evidence == "here 50,000 of MNIST"


def test_how_long_the_augmented_runs_took_is_said(fake, store):
    fake(entry_of("augment", "icm", data="cifar10", changes=()), 0.6, epochs=100)
    assert verdict("P12", store).evidence == "flip: 60.00 (at least 1 seed, 100 epochs)"
