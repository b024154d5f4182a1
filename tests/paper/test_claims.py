import dataclasses
import itertools
import math
import re
import statistics

import pytest

from complementary.paper import published
from complementary.paper.claims import CHECKS, NOT_FOR_PLAIN, judge, label_ratio, own_tables, verdict_on
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
    assert "(some with 1 seed)" in found.evidence
    fill(add_run, "main", value, data="mnist", tail=100.0, seeds=range(3))
    assert verdict("P1", store).text == word
    assert verdict("P1", store, "paper").word == "not run"
    assert verdict("P2", store).word == "not run"


def test_gain_with_missing_settings_is_not_judged(add_run, store):
    fill(add_run, "main", lambda entry, _: 0.1 * (entry.method == "icm"), data="cifar10", tail=1.0)
    found = verdict("P2", store)
    assert found.text == "undecided because runs cover 4 of 8 settings"
    assert found.evidence.startswith("mean +10.00 ± 0.00 (s-nl ρ=1: +10.00, fwd")


def test_gain_is_undecided_if_its_interval_over_the_settings_contains_the_claimed_one(add_run, store):
    """Gains of 28, 29, 29 and 30: the interval of their mean is 29 ± 1.30; of 28.9, 29, 29 and 29.1, 29 ± .13."""

    def value(gains):
        return lambda entry, _: 0.5 + gains[entry.setting.loss] / 100 * (entry.method == "icm")

    where = {"data": "mnist", "tail": 100.0}
    fill(add_run, "main", value({"s-nl": 28, "fwd": 29, "dm": 29, "s-exp": 30}), **where)
    assert verdict("P1", store).text == "undecided because the 95 % interval contains 29.5"
    assert "mean +29.00 ± 1.30" in verdict("P1", store).evidence
    fill(add_run, "main", value({"s-nl": 28.9, "fwd": 29, "dm": 29, "s-exp": 29.1}), **where)
    assert verdict("P1", store).text == "fails so far"


def test_shorter_training_does_not_refute_a_statement(add_run, store):
    entries = [e for e in STUDIES["main"].entries if (e.setting.data, e.setting.tail) == ("mnist", 100.0)]
    for entry in entries:
        accuracy = 0.6 if entry.method == "icm" else 0.5
        add_run(entry, accuracy, settings=RunSettings(pretrain_epochs=400))
    assert verdict("P1", store).text == (
        "undecided because it is missed, but with less training than published (encoder of 400 epochs)"
    )
    for entry, seed in itertools.product(entries, range(2)):
        add_run(entry, 0.6 if entry.method == "icm" else 0.5, seed=seed)
    assert verdict("P1", store).text == "fails so far"


def test_gain_over_a_shorter_training_does_not_count(add_run, store):
    for method, epochs in (("mixup", 100), ("icm", 300)):
        for loss in ("s-nl", "fwd", "dm", "s-exp"):
            entry = entry_of("main", method, data="mnist", tail=100.0, loss=loss)
            add_run(entry, 0.5 + 0.4 * (epochs == 300), epochs=epochs)
    assert verdict("P1", store).word == "not run"


def test_gain_range_is_the_smallest_and_the_largest(add_run, store):
    gains = {"s-nl": 0.13, "fwd": 0.21, "dm": 0.14, "s-exp": 0.15}
    value = lambda e, seed: 0.2 + gains[e.setting.loss] * (e.method == "icm") + seed / 1000  # noqa: E731
    fill(add_run, "main", value, data="cifar10", seeds=range(2))
    assert (verdict("P8", store).text, verdict("P9", store).text) == ("holds so far", "holds so far")
    for seed in range(2):
        add_run(entry_of("main", "icm", data="cifar10", tail=1.0, loss="dm"), 0.25 + seed / 1000, seed=seed)
    assert (verdict("P8", store).text, verdict("P9", store).text) == ("fails so far", "holds so far")


def test_noise_is_compared_with_the_published_ratio(add_run, add_noise, store):
    mixup = entry_of("noise", "mixup", data="cifar10", tail=100.0)
    icm = entry_of("noise", "icm", data="mnist", tail=100.0)
    add_run(mixup, 0.3, oracle_noise_ratio=0.1605), add_run(icm, 0.8, oracle_noise_ratio=0.005)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("holds", "holds")
    add_run(mixup, 0.3, oracle_noise_ratio=0.15), add_run(icm, 0.8, oracle_noise_ratio=0.012)
    assert (verdict("P3", store).word, verdict("P7", store).word) == ("fails", "fails")
    assert verdict("P3", store)[:3] == ("fails", "15.00 (1 seed)", True)
    add_noise(mixup, 0.16)  # the same seed, counted alone: this one counts
    assert verdict("P3", store).text == "holds so far"
    for seed in (1, 2):
        add_noise(mixup, 0.16, seed=seed)
    assert verdict("P3", store)[:3] == ("holds", "16.00", False)
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
    assert verdict("P12", store)[:2] == ("undecided", "flip: 60.00 (1 seed, 100 epochs)")
    assert verdict("P12", store).because == "runs cover 1 of 4 augmentations"
    fill(add_run, "augment", 0.79, mix="icm", changes=(("policy", "cutout"),))
    assert verdict("P12", store).text == "holds so far"


# --- central statements ---------------------------------------------------------------------------------------------


def test_own_tables_are_judged_by_counts_and_by_the_spread_between_settings():
    """ICM against both baselines and Mixup against none, in the 152 groups of the published tables."""
    cells = published.cells()
    places = dict.fromkeys(place[:-1] for place in cells if place[0] in ("Table 1", "Table 2", *SETUPS))
    assert len(places) == 152
    lost = [p for p in places if cells[(*p, "icm")].mean < max(cells[(*p, mix)].mean for mix in ("none", "mixup"))]
    assert len(lost) == 5  # one of them within two standard errors
    assert own_tables("C1").startswith("not in every setting: better in 147 of 152 settings; clearly better in 131, ")
    assert "clearly worse in 2 (cifar20 bias=10 s-exp, fmnist bias=5 s-nl)" in own_tables("C1")
    gains = [cells[(*p, "mixup")].mean - cells[(*p, "none")].mean for p in places]
    half = 1.976 * statistics.stdev(gains) / math.sqrt(152)  # t with 151 degrees of freedom
    assert own_tables("C2").startswith("holds: better in 92 of 152 settings")
    assert f"mean difference {statistics.fmean(gains):+.2f} ± {half:.2f}" in own_tables("C2")
    assert own_tables("C3").startswith("holds: better in 48 of 48 settings")


SETUPS = ("Table 6", "Table 7", "Table 8", "Table 9")


def test_label_ratio_of_setup_3_is_smaller_than_that_of_setup_2():
    assert label_ratio(1, 10) == pytest.approx(9.70, abs=0.005)
    assert label_ratio(100, 10) == pytest.approx(5.86, abs=0.005)
    assert label_ratio(100, 1) == pytest.approx(1.668, abs=0.0005)
    assert re.search(r"5\.86 in setup 3 .* more than 1\.67 .* less than 9\.70", own_tables("C16"))
    assert judge("C16", Results(), "ours") is None


@pytest.mark.parametrize(("icm", "word"), [(0.5, "holds"), (0.301, "undecided"), (0.2, "fails")])
def test_better_in_every_setting_counts_clear_differences(add_run, store, icm, word):
    value = lambda entry, seed: (icm if entry.method == "icm" else 0.3) + seed / 1000  # noqa: E731
    fill(add_run, "same-label", value, seeds=range(3), data="cifar10")
    found = verdict("C6", store)
    assert found.word == ("fails" if word == "fails" else "undecided")  # one of five datasets cannot show that it holds
    assert found.because.startswith("" if word == "fails" else "runs cover 1 of 5 settings")
    assert f"better in {int(icm > 0.3)} of 1 setting run, 5 in the paper" in found.evidence
    fill(add_run, "same-label", value, seeds=range(3))
    assert verdict("C6", store).word == word
    assert verdict("C6", store, "paper").text == "not run"


def test_difference_is_clear_by_the_quantile_of_t(add_run, store):
    """Three seeds each with deviation 1: the error is .816, times 2.776 for 4 degrees of freedom 2.27, not 1.63."""
    for gain, word in ((0.022, "undecided"), (0.024, "holds")):
        fill(
            add_run,
            "same-label",
            lambda e, seed: 0.3 + gain * (e.method == "icm") + seed / 100,  # noqa: B023
            seeds=range(3),
        )
        assert verdict("C6", store).word == word


def test_single_seeds_are_never_clear_without_a_pooled_deviation(add_run, store):
    for method, accuracy in (("icm", 0.1), ("same-excluded", 0.3)):
        add_run(entry_of("same-label", method, data="cifar10"), accuracy)
    assert verdict("C6", store).because == (
        "runs cover 1 of 5 settings, 0 of 1 differences are clear, 1 cannot be tested with one seed"
    )
    for seed in range(5):  # four degrees of freedom, but of another dataset
        add_run(entry_of("same-label", "icm", data="mnist"), 0.5 + seed / 1000, seed=seed)
    assert "1 cannot be tested" in verdict("C6", store).because
    for seed in range(4):  # of this one, but only three
        add_run(entry_of("intra", "intra-class"), 0.5 + seed / 1000, seed=seed)
    assert "1 cannot be tested" in verdict("C6", store).because
    add_run(entry_of("intra", "intra-class"), 0.504, seed=4)
    found = verdict("C6", store)
    assert "clearly worse in 1 (cifar10 ρ=100 s-nl)" in found.evidence
    assert (
        "deviation for settings with one seed: cifar10, resnet18: 0.16 points, 4 degrees of freedom" in found.evidence
    )
    assert found.word == "undecided", "one counterexample with one seed does not decide"
    for seed, (method, accuracy) in itertools.product(range(3), (("icm", 0.1), ("same-excluded", 0.3))):
        add_run(entry_of("same-label", method, data="cifar10"), accuracy + seed / 1000, seed=seed)
    assert verdict("C6", store).text == "fails so far"


def test_gain_of_a_method_with_one_seed_does_not_fail(add_run, store):
    for seed in range(5):
        add_run(entry_of("intra", "extra-class"), 0.3 + seed / 1000, seed=seed)
    mixup = entry_of("main", "mixup", data="cifar10", tail=100.0, loss="s-nl")
    add_run(mixup, 0.3)
    assert verdict("P4", store).text == "undecided because a method has one seed"
    add_run(mixup, 0.301, seed=1)
    assert verdict("P4", store).text == "fails so far"


def test_verdict_is_that_of_the_nearest_protocol_with_runs(add_run, store):
    fill(add_run, "main", lambda e, seed: 0.5 + 0.3 * (e.method == "icm"), "ours", data="mnist", tail=100.0)
    assert verdict_on("P1", read([store]), ["plain", "ours"])[0] == "ours"
    fill(add_run, "main", lambda e, seed: 0.5 + 0.1 * (e.method == "icm"), "plain", data="mnist", tail=100.0)
    protocol, found = verdict_on("P1", read([store]), ["plain", "ours"])
    assert (protocol, found.word) == ("plain", "fails")
    assert verdict_on("P1", read([store]), ["ours", "plain"])[1].word == "holds"
    assert verdict_on("P14", read([store]), ["plain"]) is None


def test_noise_removed_is_compared_between_simple_and_complex_datasets(add_noise, store):
    for data, ratio in (("cifar10", 0.06), ("mnist", 0.01)):
        add_noise(entry_of("noise", "mixup", data=data, tail=100.0), 0.16)
        add_noise(entry_of("noise", "icm", data=data, tail=100.0), ratio)
    assert verdict("C12", store).text == "holds so far"
    assert "cifar10 -10.00, mnist -15.00" in verdict("C12", store).evidence
    add_noise(entry_of("noise", "icm", data="mnist", tail=100.0), 0.1)
    assert verdict("C12", store).text == "fails so far"
    add_noise(entry_of("noise", "icm", data="mnist", tail=100.0), 0.01, settings=RunSettings(pretrain_epochs=400))
    add_noise(
        entry_of("noise", "icm", data="mnist", tail=100.0), 0.01, seed=1, settings=RunSettings(pretrain_epochs=400)
    )
    assert verdict("C12", store).because == "it is not like for like (encoders of 400, 800 epochs)"


def test_gradients_need_several_seeds_and_a_whole_training(add_gradients, store):
    add_gradients("mnist", steps=3, icm=0.9, epochs=1)
    assert verdict("C13", store).text == "undecided because it rests on 1 seed and 1 epoch of training"
    assert "mnist MSE 0.6757 against 0.75" in verdict("C13", store).evidence
    for seed in range(3):
        add_gradients("mnist", steps=3, icm=0.9 + seed / 100, epochs=1, seed=seed)
    assert verdict("C13", store).text == "undecided because it rests on 1 epoch of training"
    for path in store.glob("gradients-*"):
        path.unlink()
    for seed in range(2):
        add_gradients("mnist", steps=3, icm=0.5, seed=seed)
    assert verdict("C13", store).text == "undecided because it rests on 2 seeds"
    for seed in range(3):
        add_gradients("mnist", steps=3, icm=0.9 + seed / 100, seed=seed)
    assert verdict("C13", store).text == "holds"
    for seed in range(3):
        add_gradients("cifar10", steps=3, icm=1.1 + seed / 100, seed=seed)
    assert verdict("C13", store).text == "fails"
    assert verdict("C14", store).text == "not run"  # noise-free Mixup was not measured


def test_encoders_of_different_length_are_not_compared(add_noise, store):
    for group, ratio in (("", 0.03), ("mocov3", 0.1), ("byol", 0.1)):
        add_noise(entry_of("noise", "icm", data="cifar10", tail=1.0, group=group), ratio)
    assert verdict("C15", store).text == "holds so far"
    short = RunSettings(pretrain_epochs=100)
    for seed in range(2):
        add_noise(entry_of("noise", "icm", data="cifar10", tail=1.0, group="byol"), 0.1, seed=seed, settings=short)
    assert verdict("C15", store).text == ("undecided because it is not like for like (encoders of 100, 800 epochs)")


def test_verdict_on_clusters_of_a_short_encoder_is_so_far(add_noise, store):
    entry = entry_of("noise", "icm", data="mnist", tail=100.0)
    for seed in range(3):
        add_noise(entry, 0.005, seed=seed, settings=RunSettings(pretrain_epochs=400))
    assert verdict("P7", store)[:3] == ("holds", "0.50 (encoder of 400 epochs)", True)


def test_mixup_is_ineffective_by_the_spread_between_the_settings(add_run, store):
    """Four of 152 settings: gains of -20, 0, 0 and 0 have the interval -5 ± 15.9, which contains 2 points."""

    def value(gains):
        return lambda e, _: 0.5 + gains[e.setting.loss] * (e.method == "mixup")

    where = {"data": "cifar10", "tail": 100.0}
    fill(add_run, "main", value({"s-nl": -0.2, "fwd": 0.0, "dm": 0.0, "s-exp": 0.0}), **where)
    found = verdict("C2", store)
    assert found.text == "undecided because the 95 % interval of the mean difference (-5.00 ± 15.91) contains 2"
    assert "published in these settings +8.51" in found.evidence, "the paper's own difference in the same settings"
    for gain, word in ((0.0, "holds"), (-0.2, "holds"), (0.2, "fails")):
        fill(add_run, "main", value({"s-nl": gain, "fwd": gain + 0.01, "dm": gain - 0.01, "s-exp": gain}), **where)
        assert verdict("C2", store).word == word


def test_minority_classes_are_judged_at_the_ratio_of_the_paper(add_run, store):
    for method in ("icm", "micm"):
        add_run(entry_of("minority", method, tail=100.0), 0.5, tail_accuracy_last=0.0)
    assert verdict("C5", store).word == "not run"
