"""Verdicts on the paper's statements, from its own tables and from our runs.

Statements C1 to C16 are the paper's central ones, P1 to P16 those with a number. Differences are those of the best
epoch on the test set, as published. A difference counts as clear if it is larger than two standard errors; with fewer
than three seeds, the deviation is that of other settings of the same network with several seeds. A verdict is "so far"
if it rests on fewer seeds, epochs or encoder epochs than the published numbers, or on a part of the settings.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from complementary import long_tail, transitions
from complementary.data.registry import REGISTRY
from complementary.paper import published
from complementary.paper.compare import BEST, LAST, contrasts, entry_results
from complementary.paper.published import DATASETS, LOSSES, RUNS, TEST_RUNS
from complementary.paper.store import GRADIENT_METRICS, GRADIENT_SCALE, Results, Runs
from complementary.paper.studies import MNIST_FAMILY, STUDIES, Entry, Protocol, Setting
from complementary.reports.tables import counted

Word = Literal["holds", "fails", "undecided", "not run", "cannot be checked"]
CLEAR = 2.0  # standard errors
TABLES = ("main", "real", "setup2-cifar", "setup2-mnist", "setup3-5", "setup3-10")
CIFAR = ("cifar10", "cifar20", "clcifar10", "clcifar20")


class Verdict(NamedTuple):
    """What the results say about a claim, and the numbers behind it."""

    word: Word
    evidence: str = ""
    so_far: bool = False

    @property
    def text(self) -> str:
        """The word, with *so far* where the runs are short."""
        return f"{self.word} so far" if self.so_far and self.word in ("holds", "fails", "undecided") else self.word


class Check(NamedTuple):
    """When a claim holds, in words and as a function (claimed value, results, protocol, **options) -> Verdict."""

    rule: str
    function: Callable[..., Verdict]
    options: dict[str, Any]


def judge(claim: str, results: Results, protocol: Protocol) -> Verdict | None:
    """The verdict on one claim, such as ``C1``, under one protocol; None if results cannot decide it."""
    if claim not in CHECKS:
        return None
    check = CHECKS[claim]
    if protocol == "plain" and claim in NOT_FOR_PLAIN:
        return None
    return check.function(published.claims()[claim].value, results, protocol, **check.options)


# --- differences and their errors -----------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A difference of two means in points, with its standard error."""

    place: str
    points: float
    error: float

    @property
    def sign(self) -> int:
        """1 or -1 if it is clear, else 0."""
        return 0 if abs(self.points) <= CLEAR * self.error else int(math.copysign(1, self.points))


Pair = tuple[str, Entry, Entry]  # a label, and the two entries that are compared


def _pairs(studies: Iterable[str], first: str, second: str, keep: Callable[[Entry], bool] = bool) -> list[Pair]:
    """Two methods, in every setting of some studies that has both."""
    found = []
    for name in studies:
        known = {(entry.where, entry.method): entry for entry in STUDIES[name].entries if keep(entry)}
        for (where, method), entry in known.items():
            other = known.get((where, second))
            if method == first and other is not None:
                found.append((_label(entry), entry, other))
    return found


def _label(entry: Entry) -> str:
    return entry.name.removesuffix(f" {entry.method}")


def _published_difference(pair: Pair) -> Difference | None:
    label, first, second = pair
    a, b = first.published, second.published
    if a is None or b is None or a == b:
        return None
    return Difference(label, a.mean - b.mean, math.hypot(a.std or 0.0, b.std or 0.0) / math.sqrt(RUNS))


def _our_difference(
    pair: Pair, results: Results, protocol: Protocol, metric: str = BEST
) -> tuple[Difference, list[Runs]] | None:
    """The difference between two entries, and their runs; None unless both were run with the same length."""
    label, *entries = pair
    runs = [results.find(entry.setting, protocol) for entry in entries]
    a, b = (each.spread(metric) for each in runs)
    if a is None or b is None or runs[0].epochs != runs[1].epochs:
        return None
    error = math.hypot(*(_error(each, metric, results) for each in runs))
    return Difference(label, 100 * (a.mean - b.mean), error), runs


def _error(runs: Runs, metric: str, results: Results) -> float:
    """The standard error of a mean in points; with fewer than three seeds the deviation is a pooled one."""
    spread = runs.spread(metric)
    assert spread is not None
    own = spread.deviation if spread.count >= RUNS else None
    deviation = results.seed_deviation(metric, runs.rows[0]["model"]) if own is None else own
    return 100 * deviation / math.sqrt(spread.count)


def _so_far(runs: Sequence[Runs]) -> bool:
    return any(each.short for each in runs)


def _basis(runs: Sequence[Runs]) -> str:
    """What the verdict rests on, if that is less than behind the published numbers."""
    few = dict.fromkeys(itertools.chain.from_iterable(each.short for each in runs))
    return f" ({', '.join(few)})" if few else ""


# --- the central statements: one method is better than another ------------------------------------------------------


def _counts(groups: Iterable[Sequence[Difference]]) -> tuple[int, int, int]:
    """The number of groups that are clearly better in all differences, neither, and clearly worse in one."""
    signs = [min(difference.sign for difference in group) for group in groups]
    return signs.count(1), signs.count(0), signs.count(-1)


def _in_words(groups: Sequence[Sequence[Difference]]) -> str:
    better, level, worse = _counts(groups)
    every = [difference.points for group in groups for difference in group]
    below = [d.place for group in groups for d in group if d.sign < 0]
    named = f" ({', '.join(dict.fromkeys(below))})" if 0 < len(set(below)) <= 5 else ""
    return (
        f"{counted(len(groups), 'setting')}: clearly better in {better}, level in {level}, clearly worse in {worse}"
        f"{named}; mean difference {statistics.fmean(every):+.2f}"
    )


def _decide(groups: Sequence[Sequence[Difference]], every: bool, part: bool = False) -> Word:
    """The verdict; ``part``: these are a part of the settings, so their mean also varies with which ones were run."""
    better, _, worse = _counts(groups)
    if every:
        return "fails" if worse else "holds" if better == len(groups) else "undecided"
    all_of = [difference for group in groups for difference in group]
    points = [difference.points for difference in all_of]
    error = math.sqrt(sum(d.error**2 for d in all_of)) / len(all_of)
    if part and len(points) > 1:
        error = max(error, statistics.stdev(points) / math.sqrt(len(points)))
    mean = Difference("", statistics.fmean(points), error)
    return "undecided" if not mean.sign else "holds" if mean.sign > 0 else "fails"


def _by_group(known: Iterable[Difference]) -> list[list[Difference]]:
    groups: dict[str, list[Difference]] = {}
    for difference in known:
        groups.setdefault(difference.place, []).append(difference)
    return list(groups.values())


def _better(
    _: float | None,
    results: Results,
    protocol: Protocol,
    pairs: Callable[[], list[Pair]],
    every: bool,
    metric: str = BEST,
) -> Verdict:
    """One method is better than others: in every setting, or on average."""
    wanted = pairs()
    found = [one for pair in wanted if (one := _our_difference(pair, results, protocol, metric)) is not None]
    if not found:
        return Verdict("not run")
    groups, runs = _by_group(difference for difference, _ in found), [each for _, both in found for each in both]
    part = len(found) < len(wanted)
    all_of = f" of {len({pair[0] for pair in wanted})}" if part else ""
    evidence = _in_words(groups).replace(":", f"{all_of}:", 1) + _basis(runs)
    if metric == BEST:
        ran = [pair for pair in wanted if _our_difference(pair, results, protocol) is not None]
        printed = [d.points for pair in ran if (d := _published_difference(pair)) is not None]
        if printed and part:
            evidence += f"; published there {statistics.fmean(printed):+.2f}"
        last = [one for pair in wanted if (one := _our_difference(pair, results, protocol, LAST)) is not None]
        evidence += f"; at the last epoch {statistics.fmean(d.points for d, _ in last):+.2f}" if last else ""
    return Verdict(_decide(groups, every, part), evidence, part or _so_far(runs))


def own_tables(claim: str) -> str:
    """What the paper's own tables, or theory, say about a statement; '' if they say nothing."""
    known = published.claims()[claim]
    if known.check:
        return known.check if known.verdict == "-" else f"{known.verdict}: {known.check}"
    if claim == "C16":
        return _setup_3()
    if claim == "C15":
        noise = {name: pair[0].mean for name, pair in published.encoders().items()}
        return "holds: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in noise.items())
    check = CHECKS[claim]
    differences = [one for pair in check.options["pairs"]() if (one := _published_difference(pair)) is not None]
    if not differences:
        return "no number is printed"
    groups = _by_group(differences)
    return f"{_decide(groups, check.options['every'])}: {_in_words(groups)}"


def label_ratio(tail: float, bias: float, head: int = 5000, classes: int = 10) -> float:
    """Expected ratio of the most to the least frequent complementary label, under a long tail and biased labels."""
    sizes = long_tail.class_sizes(head, tail, classes)
    matrix = transitions.uniform(classes) if bias == 1 else transitions.biased(classes, bias)
    expected = [sum(size * float(matrix[i, k]) for i, size in enumerate(sizes)) for k in range(classes)]
    return max(expected) / min(expected)


def _setup_3() -> str:
    return (
        "fails by construction: the expected ratio of the most to the least frequent label is "
        f"{label_ratio(1, 10):.2f} in setup 2 (bias 10) and {label_ratio(100, 10):.2f} in setup 3 (bias 10, ρ = 100). "
        "The large classes cannot have themselves as complementary label, which reduces the bias"
    )


def _across_groups(study: str, method: str, first: str, second: str) -> list[Pair]:
    """One method in two groups of a study."""
    known = {entry.group: entry for entry in STUDIES[study].entries if entry.method == method}
    return [(f"{method}: {first} - {second}", known[first], known[second])]


def _noise_removed(_: float | None, results: Results, protocol: Protocol) -> Verdict:
    """The noise ratio falls by more points on each simple dataset than on each complex one, at the same ρ."""
    parts, runs, holds = [], list[Runs](), list[bool]()
    for tail in (100.0, 1.0):
        removed = {}
        for data in DATASETS:
            pair = [results.find_noise(Setting(data, "s-nl", mix, tail), protocol) for mix in ("mixup", "icm")]
            a, b = (each.spread("oracle_noise_ratio") for each in pair)
            if a is not None and b is not None:
                removed[data], runs = 100 * (a.mean - b.mean), runs + pair
        simple = [value for data, value in removed.items() if data in MNIST_FAMILY]
        complex_ = [value for data, value in removed.items() if data not in MNIST_FAMILY]
        if simple and complex_:
            holds.append(min(simple) > max(complex_))
            parts.append(f"ρ = {tail:g}: " + ", ".join(f"{data} -{value:.2f}" for data, value in removed.items()))
    if not parts:
        return Verdict("not run")
    word: Word = "holds" if all(holds) else "undecided" if any(holds) else "fails"
    return Verdict(word, "; ".join(parts) + _basis(runs), True)


def _gradients(
    _: float | None, results: Results, protocol: Protocol, first: str, second: str, metrics: Sequence[str]
) -> Verdict:
    """The metric, relative to |f|², is clearly lower in the mean over all measurements, on every dataset.

    Both methods were measured on the same batches and weights, so the error is that of the mean of their differences.
    """
    parts, signs = [], list[int]()
    for entry, runs in results.of(STUDIES["gradients"], protocol).items():
        measured = [each for each in runs.measurements() if each["target"] == "clean"]
        for metric in metrics if {first, second} <= {each["method"] for each in measured} else ():
            a, b = (
                [m[metric] / m[GRADIENT_SCALE] for m in measured if m["method"] == name] for name in (first, second)
            )
            points = [x - y for x, y in zip(a, b, strict=True)]
            error = statistics.stdev(points) / math.sqrt(len(points)) if len(points) > 1 else math.inf
            signs.append(Difference("", statistics.fmean(points), error).sign)
            means = f"{statistics.fmean(a):.4g} against {statistics.fmean(b):.4g}"
            parts.append(f"{entry.setting.data} {GRADIENT_METRICS[metric]} {means}")
    if not parts:
        return Verdict("not run")
    word: Word = "fails" if 1 in signs else "holds" if set(signs) == {-1} else "undecided"
    return Verdict(word, f"relative to |f|²: {', '.join(parts)}", True)


def _encoders(_: float | None, results: Results, protocol: Protocol) -> Verdict:
    """The noise of ICM with the clusters of SimSiam is the lowest."""
    base = Setting("cifar10", "s-nl", "icm")
    settings = {name: base if name == "simsiam" else base.with_(encoder=name) for name in published.encoders()}
    runs = {name: results.find_noise(setting, protocol) for name, setting in settings.items()}
    known = {name: each.spread("oracle_noise_ratio") for name, each in runs.items()}
    ratios = {name: 100 * spread.mean for name, spread in known.items() if spread is not None}
    if len(ratios) < len(settings):
        return Verdict("not run")
    basis = ", ".join(f"{name} {ratio:.2f}{_basis([runs[name]])}" for name, ratio in ratios.items())
    word: Word = "holds" if min(ratios, key=lambda name: ratios[name]) == "simsiam" else "fails"
    return Verdict(word, basis, _so_far(list(runs.values())))


# --- statements with a number ---------------------------------------------------------------------------------------


def _gain(
    claimed: float,
    results: Results,
    protocol: Protocol,
    data: str,
    tails: Sequence[float],
    first: str = "icm",
    second: str = "mixup",
    losses: Sequence[str] = LOSSES,
    join: Literal["mean", "smallest", "largest"] = "mean",
) -> Verdict:
    """A gain, joined over losses and long tails, reaches the claimed one (rounded).

    Undecided if it does not, but the claimed one is within two standard errors.
    """
    gains, used = list[Difference](), list[Runs]()
    places = list(itertools.product(tails, losses))
    for tail, loss in places:
        a, b = (Entry(Setting(data, loss, mix, float(tail)), mix) for mix in (first, second))
        found = _our_difference((f"{loss} ρ={tail:g}", a, b), results, protocol)
        if found is not None:
            gains.append(found[0])
            used += found[1]
    shown = ", ".join(f"{gain.place}: {gain.points:+.2f}" for gain in gains)
    if len(gains) == len(places):
        joined = _join(gains, join)
        evidence = f"{join} {joined.points:+.2f} ± {joined.error:.2f} ({shown}){_basis(used)}"
        short = claimed - 0.5 - joined.points
        word: Word = "holds" if short <= 0 else "undecided" if short <= CLEAR * joined.error else "fails"
        return Verdict(word, evidence, _so_far(used))
    if REGISTRY[data].labels == "human" and not any(row["data"] == data for row in results.rows):
        return Verdict("cannot be checked", f"the labels of {data} are not available here")
    return Verdict("not run", f"{len(gains)} of {len(places)} gains known. {shown}{_basis(used)}".rstrip())


def _join(gains: Sequence[Difference], join: str) -> Difference:
    if join == "mean":
        error = math.sqrt(sum(gain.error**2 for gain in gains)) / len(gains)
        return Difference("", statistics.fmean(gain.points for gain in gains), error)
    return (min if join == "smallest" else max)(gains, key=lambda gain: gain.points)


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
    runs = results.find_noise(Setting(data, "s-nl", mix, 100.0), protocol)
    spread = runs.spread("oracle_noise_ratio")
    if spread is None:
        return Verdict("not run")
    holds = -below <= 100 * spread.mean - claimed <= above
    return Verdict("holds" if holds else "fails", f"{100 * spread.mean:.2f}{_basis([runs])}", _so_far([runs]))


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
        return Verdict("holds", evidence, _so_far(runs))
    return Verdict("fails" if len(known) == len(found) else "not run", evidence, _so_far(runs))


# --- all checks -----------------------------------------------------------------------------------------------------


def _simple_models(*data: str) -> Callable[[Entry], bool]:
    return lambda entry: entry.group in ("linear", "mlp") and entry.setting.data in data


def _on(*data: str) -> Callable[[Entry], bool]:
    return lambda entry: entry.setting.data in data


NOT_FOR_PLAIN = ("C8", "P12", "C12", "C15", "P3", "P6", "P7")  # about augmentation, or noise, which it does not change
BOTH = {"data": "cifar10", "tails": (1, 100)}
ONE = {"data": "cifar10", "tails": (100,), "losses": ("s-nl",)}
DRAW = 0.66  # two standard deviations of the noise ratio over draws of the labels, at ρ = 100
IN_EVERY = "clearly better in every setting; fails if clearly worse in one"
ON_AVERAGE = "clearly better on average"
ICM_PAIRS = (("icm", "mixup"), ("icm", "none"))

CHECKS: dict[str, Check] = {
    "C1": Check(
        IN_EVERY, _better, {"pairs": lambda: [p for both in ICM_PAIRS for p in _pairs(TABLES, *both)], "every": True}
    ),
    "C2": Check(
        "no mixing is clearly better than Mixup, on average",
        _better,
        {"pairs": lambda: _pairs(TABLES, "none", "mixup"), "every": False},
    ),
    "C3": Check(ON_AVERAGE, _better, {"pairs": lambda: _pairs(TABLES, "micm", "icm", _on(*CIFAR)), "every": False}),
    "C4": Check(
        ON_AVERAGE, _better, {"pairs": lambda: _pairs(TABLES, "icm", "micm", _on(*MNIST_FAMILY)), "every": False}
    ),
    "C5": Check(
        "clearly better on the last third of the classes, on average",
        _better,
        {
            "pairs": lambda: _pairs(("minority",), "micm", "icm"),
            "every": False,
            "metric": "tail_accuracy_last",
        },
    ),
    "C6": Check(IN_EVERY, _better, {"pairs": lambda: _pairs(("same-label",), "icm", "same-excluded"), "every": True}),
    "C7": Check(
        IN_EVERY,
        _better,
        {
            "pairs": lambda: [
                pair for other in ("soft-label", "hard-label") for pair in _pairs(("sharing",), "new-data", other)
            ],
            "every": True,
        },
    ),
    "C8": Check(
        "clearly worse than with flip and crop alone",
        _better,
        {"pairs": lambda: _across_groups("augment", "icm", "flip", "cutout"), "every": True},
    ),
    "C9": Check(
        IN_EVERY,
        _better,
        {"pairs": lambda: _pairs(("models",), "icm", "none", _simple_models("mnist", "kmnist")), "every": True},
    ),
    "C10": Check(
        "no mixing is clearly better in every setting",
        _better,
        {"pairs": lambda: _pairs(("models",), "none", "icm", _simple_models("fmnist")), "every": True},
    ),
    "C11": Check(
        f"than no mixing {IN_EVERY}", _better, {"pairs": lambda: _pairs(("models-tail",), "icm", "none"), "every": True}
    ),
    "C12": Check(
        "more points on each dataset of the MNIST family than on each CIFAR set, at ρ = 100 and 1; undecided if at one",
        _noise_removed,
        {},
    ),
    "C13": Check(
        "all three clearly lower on every dataset, relative to |f|²; fails if one is clearly higher",
        _gradients,
        {"first": "icm", "second": "mixup", "metrics": tuple(GRADIENT_METRICS)},
    ),
    "C14": Check(
        "clearly lower on every dataset, relative to |f|²; fails if clearly higher on one",
        _gradients,
        {"first": "mixup-noise-free", "second": "mixup", "metrics": ("oracle_mse",)},
    ),
    "C15": Check("the lowest of the three", _encoders, {}),
    "P1": Check("mean gain over the losses at ρ = 100 reaches 29.5", _gain, {"data": "mnist", "tails": (100,)}),
    "P2": Check("mean gain over the losses and both ρ reaches 9.5", _gain, BOTH),
    "P3": Check(
        f"within {DRAW} (2 standard deviations of one draw)",
        _noise,
        {"data": "cifar10", "mix": "mixup", "above": DRAW, "below": DRAW},
    ),
    "P4": Check("gain of extra-class over mixup reaches 6.5", _gain, ONE | {"first": "extra-class"}),
    "P5": Check(
        "gain of intra-class over extra-class reaches 10.5",
        _gain,
        ONE | {"first": "intra-class", "second": "extra-class"},
    ),
    "P6": Check(
        f"within {DRAW} (2 standard deviations of one draw)",
        _noise,
        {"data": "mnist", "mix": "mixup", "above": DRAW, "below": DRAW},
    ),
    "P7": Check("at most 0.05 above", _noise, {"data": "mnist", "mix": "icm", "above": 0.05}),
    "P8": Check("smallest gain over the losses and both ρ reaches 12.5", _gain, BOTH | {"join": "smallest"}),
    "P9": Check("largest gain over the losses and both ρ reaches 19.5", _gain, BOTH | {"join": "largest"}),
    "P10": Check("every p of icm over mixup below 0.001", _p_values, {"data": ("cifar10", "clcifar10")}),
    "P11": Check("every p of icm over mixup below 0.05", _p_values, {"data": ("cifar10", "clcifar10", "mnist")}),
    "P12": Check("at least 78 with one of the augmentations", _augmented, {"slack": 2.0}),
    "P13": Check("mean gain over the losses, balanced, reaches 9.5", _gain, {"data": "clcifar10", "tails": (1,)}),
}
