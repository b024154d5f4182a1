"""Verdicts on the paper's statements, computed from stored results alone.

A verdict is "so far" if it rests on fewer seeds or epochs than the published numbers. Statements without a check here
follow from the setup; only theory can confirm or refute them.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from complementary.data.registry import REGISTRY
from complementary.paper import published
from complementary.paper.compare import METRICS, contrasts, entry_results
from complementary.paper.published import EPOCHS, LOSSES, RUNS, TEST_RUNS
from complementary.paper.store import Results, Runs
from complementary.paper.studies import STUDIES, Protocol, Setting
from complementary.reports.tables import counted

Word = Literal["holds", "fails", "holds so far", "fails so far", "not run", "cannot be checked"]


class Verdict(NamedTuple):
    """What the results say about a claim, and the numbers behind it."""

    word: Word
    evidence: str = ""


class Check(NamedTuple):
    """When a claim holds, in words and as a function (claimed value, results, protocol, **options) -> Verdict."""

    rule: str
    function: Callable[..., Verdict]
    options: dict[str, Any]


def judge(claim: str, results: Results, protocol: Protocol) -> Verdict | None:
    """The verdict on one claim, such as ``P1``, under one protocol; None if results cannot decide it."""
    if claim not in CHECKS:
        return None
    check = CHECKS[claim]
    return check.function(published.claims()[claim].value, results, protocol, **check.options)


def _word(holds: bool, runs: Sequence[Runs]) -> Word:
    if all(len(one.seeds) >= RUNS and (one.epochs or 0) >= EPOCHS for one in runs):
        return "holds" if holds else "fails"
    return "holds so far" if holds else "fails so far"


def _basis(runs: Sequence[Runs]) -> str:
    """How many seeds and epochs a verdict rests on."""
    if not runs:
        return ""
    seeds, epochs = min(len(one.seeds) for one in runs), sorted({one.epochs for one in runs if one.epochs})
    length = f", {' or '.join(map(str, epochs))} epochs" if epochs else ""
    return f" (at least {counted(seeds, 'seed')}{length})"


JOINS: dict[str, Callable[[Sequence[float]], float]] = {"mean": statistics.fmean, "smallest": min, "largest": max}


def _gain(
    claimed: float,
    results: Results,
    protocol: Protocol,
    data: str,
    tails: Sequence[float],
    first: str = "icm",
    second: str = "mixup",
    losses: Sequence[str] = LOSSES,
    join: str = "mean",
) -> Verdict:
    """The gain of one mixer over another, joined over losses and long tails, is at least the claimed one (rounded)."""
    gains, used, metric = dict[str, float](), list[Runs](), next(iter(METRICS[protocol].values()))
    for tail in tails:
        for loss in losses:
            pair = [results.find(Setting(data, loss, mix, float(tail)), protocol) for mix in (first, second)]
            a, b = (runs.spread(metric) for runs in pair)
            if a is not None and b is not None and pair[0].epochs == pair[1].epochs:
                gains[f"{loss} ρ={tail:g}"] = 100 * (a.mean - b.mean)
                used += pair
    evidence = ", ".join(f"{place}: {gain:+.2f}" for place, gain in gains.items()) + _basis(used)
    wanted = len(tails) * len(losses)
    if len(gains) == wanted:
        return Verdict(_word(JOINS[join](list(gains.values())) >= claimed - 0.5, used), evidence)
    if REGISTRY[data].labels == "human" and not any(row["data"] == data for row in results.rows):
        return Verdict("cannot be checked", f"the labels of {data} are not available here")
    return Verdict("not run", f"{len(gains)} of {wanted} gains known. {evidence}".rstrip())


def _noise(
    claimed: float,
    results: Results,
    protocol: Protocol,
    data: str,
    mix: str,
    above: float,
    below: float = float("inf"),
) -> Verdict:
    """The noise ratio at ρ = 100 is at most ``above`` points above the claimed one, and ``below`` points below it."""
    spread = results.find_noise(Setting(data, "s-nl", mix, 100.0), protocol).spread("oracle_noise_ratio")
    if spread is None:
        return Verdict("not run")
    holds = -below <= 100 * spread.mean - claimed <= above
    return Verdict("holds" if holds else "fails", f"{100 * spread.mean:.2f} (n = {spread.count})")


def _p_values(claimed: float, results: Results, protocol: Protocol, data: Sequence[str]) -> Verdict:
    """ICM is better than Mixup with p below the claimed one in every setting; one counterexample decides."""
    pairs = contrasts(STUDIES["p-values"], results, protocol)
    tests = [pair.ours for pair in pairs if pair.first.entry.setting.data in data]
    complete = [test for test in tests if test is not None and min(test.first, test.second) >= TEST_RUNS]
    known = [(test.p, test.difference) for test in complete if test.p is not None]
    failed = [p for p, difference in known if p >= claimed or difference < 0]
    evidence = f"{len(known) - len(failed)} of {len(known)} tests, {len(tests)} wanted"
    if failed:
        return Verdict("fails", f"{evidence}; the largest p is {max(p for p, _ in known):.3g}")
    return Verdict("holds" if len(known) == len(tests) else "not run", evidence)


def _augmented(claimed: float, results: Results, protocol: Protocol, slack: float) -> Verdict:
    """ICM reaches nearly the claimed accuracy with one of the augmentations."""
    found = [each for each in entry_results(STUDIES["augment"], results, protocol) if each.entry.method == "icm"]
    known = {each.entry.group: 100 * each.ours.mean for each in found if each.ours is not None}
    runs = [each.runs for each in found if each.ours is not None]
    evidence = ", ".join(f"{name}: {value:.2f}" for name, value in known.items()) + _basis(runs)
    if known and max(known.values()) >= claimed - slack:
        return Verdict(_word(True, runs), evidence)
    return Verdict(_word(False, runs) if len(known) == len(found) else "not run", evidence)


BOTH = {"data": "cifar10", "tails": (1, 100)}
ONE = {"data": "cifar10", "tails": (100,), "losses": ("s-nl",)}
DRAW = 0.66  # two standard deviations of the noise ratio over draws of the labels, at ρ = 100

CHECKS: dict[str, Check] = {
    "P1": Check("mean gain over the losses at ρ = 100 at least 29.5", _gain, {"data": "mnist", "tails": (100,)}),
    "P2": Check("mean gain over the losses and both ρ at least 9.5", _gain, BOTH),
    "P3": Check(
        f"within {DRAW} (2 standard deviations of one draw)",
        _noise,
        {"data": "cifar10", "mix": "mixup", "above": DRAW, "below": DRAW},
    ),
    "P4": Check(
        "gain of extra-class over mixup at least 6.5", _gain, ONE | {"first": "extra-class", "second": "mixup"}
    ),
    "P5": Check(
        "gain of intra-class over extra-class at least 10.5",
        _gain,
        ONE | {"first": "intra-class", "second": "extra-class"},
    ),
    "P6": Check(
        f"within {DRAW} (2 standard deviations of one draw)",
        _noise,
        {"data": "mnist", "mix": "mixup", "above": DRAW, "below": DRAW},
    ),
    "P7": Check("at most 0.05 above", _noise, {"data": "mnist", "mix": "icm", "above": 0.05}),
    "P8": Check("smallest gain over the losses and both ρ at least 12.5", _gain, BOTH | {"join": "smallest"}),
    "P9": Check("largest gain over the losses and both ρ at least 19.5", _gain, BOTH | {"join": "largest"}),
    "P10": Check("every p of icm over mixup below 0.001", _p_values, {"data": ("cifar10", "clcifar10")}),
    "P11": Check("every p of icm over mixup below 0.05", _p_values, {"data": ("cifar10", "clcifar10", "mnist")}),
    "P12": Check("at least 78 with one of the augmentations", _augmented, {"slack": 2.0}),
    "P13": Check("mean gain over the losses, balanced, at least 9.5", _gain, {"data": "clcifar10", "tails": (1,)}),
}
