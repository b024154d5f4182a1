"""Verdicts on the paper's statements, from its own tables and from our runs.

Statements C1 to C16 are the paper's central ones, P1 to P16 those with a number. Differences are those of the best
epoch on the test set, as published. `page.CLAIMS` states the rules. One counterexample decides only if both methods
have several seeds. A verdict is "so far" if it rests on fewer seeds, epochs or encoder epochs than the published
numbers, or on a part of the settings.
"""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from complementary import long_tail, transitions
from complementary.data.registry import REGISTRY
from complementary.paper import published
from complementary.paper.compare import BEST, LAST, contrasts, entry_results, margin, margin_of_mean
from complementary.paper.published import DATASETS, EPOCHS, LOSSES, RUNS, TEST_RUNS
from complementary.paper.store import GRADIENT_METRICS, GRADIENT_SCALE, Pooled, Results, Runs
from complementary.paper.studies import MNIST_FAMILY, STUDIES, Entry, Protocol, Setting
from complementary.reports.tables import Spread, counted

Word = Literal["holds", "fails", "undecided", "not run", "cannot be checked"]
TABLES = ("main", "real", "setup2-cifar", "setup2-mnist", "setup3-5", "setup3-10")
CIFAR = ("cifar10", "cifar20", "clcifar10", "clcifar20")


class Verdict(NamedTuple):
    """What the results say about a claim, and the numbers behind it."""

    word: Word
    evidence: str = ""
    so_far: bool = False
    because: str = ""
    """Why it is undecided."""
    brief: str = ""
    """The evidence in a few words; '' if it is short."""

    @property
    def text(self) -> str:
        """``holds so far``, ``undecided because ...``."""
        if self.word == "undecided":
            return f"undecided because {self.because}"
        return f"{self.word} so far" if self.so_far and self.word in ("holds", "fails") else self.word


class Check(NamedTuple):
    """When a claim holds, in words and as a function (claimed value, results, protocol, **options) -> Verdict."""

    rule: str
    function: Callable[..., Verdict]
    options: dict[str, Any]


def judge(claim: str, results: Results, protocol: Protocol) -> Verdict | None:
    """The verdict on one claim, such as ``C1``, under one protocol; None if results cannot decide it."""
    if claim not in CHECKS or (protocol == "plain" and claim in NOT_FOR_PLAIN):
        return None
    check = CHECKS[claim]
    return check.function(published.claims()[claim].value, results, protocol, **check.options)


def verdict_on(claim: str, results: Results, order: Sequence[Protocol]) -> tuple[Protocol, Verdict] | None:
    """The verdict under the first of these protocols with runs of the claim, and that protocol."""
    known = [(protocol, v) for protocol in order if (v := judge(claim, results, protocol)) is not None]
    return next((one for one in known if one[1].word != "not run"), known[0] if known else None)


def _conclude(word: Word, evidence: str, runs: Sequence[Runs], because: str = "", part: bool = False) -> Verdict:
    """A verdict, which is not "fails" if the runs are shorter than the published ones."""
    shorter = list(dict.fromkeys(itertools.chain.from_iterable(each.shorter for each in runs)))
    if word == "fails" and shorter:
        word, because = "undecided", f"it is missed, but with less training than published ({', '.join(shorter)})"
    return Verdict(word, evidence, part or _so_far(runs), because)


# --- differences and their errors -----------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A difference of two means in points, with half of its 95 % interval (None: not known)."""

    place: str
    points: float
    margin: float | None
    own: bool = True
    """Whether both means have several seeds."""

    @property
    def sign(self) -> int:
        """1 or -1 if it is clear, else 0."""
        if self.margin is None or abs(self.points) <= self.margin:
            return 0
        return 1 if self.points > 0 else -1

    @property
    def shown(self) -> str:
        """``+3.38 ± 1.20``."""
        return f"{self.points:+.2f}" + ("" if self.margin is None else f" ± {self.margin:.2f}")


Pair = tuple[str, Entry, Entry]  # a label, and the two entries that are compared
Compared = tuple[Difference, list[Runs], Pooled | None]


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
    half = margin(Spread(a.mean, a.std, RUNS), Spread(b.mean, b.std, RUNS))
    return Difference(label, a.mean - b.mean, half)


def our_difference(pair: Pair, results: Results, protocol: Protocol, metric: str = BEST) -> Compared | None:
    """The difference between two entries, their runs, and the pooled deviation if it was used.

    None unless both were run with the same length.
    """
    label, *entries = pair
    runs = [results.find(entry.setting, protocol) for entry in entries]
    a, b = (each.spread(metric) for each in runs)
    if a is None or b is None or runs[0].epochs != runs[1].epochs:
        return None
    own, row = min(a.count, b.count) > 1, runs[0].rows[0]
    pooled = None if own else results.pooled(metric, row["data"], row["model"])
    half = margin(a, b, pooled)
    return Difference(label, 100 * (a.mean - b.mean), None if half is None else 100 * half, own), runs, pooled


def _so_far(runs: Sequence[Runs]) -> bool:
    return any(each.short for each in runs)


def _basis(runs: Sequence[Runs]) -> str:
    """What the verdict rests on, if that is less than behind the published numbers."""
    few = dict.fromkeys(itertools.chain.from_iterable(each.short for each in runs))
    return f" ({'some with ' * (len(runs) > 1)}{', '.join(few)})" if few else ""


# --- the central statements: one method is better than another ------------------------------------------------------

Groups = list[list[Difference]]  # the differences of each setting: to one other method, or to several


def _by_group(known: Iterable[Difference]) -> Groups:
    groups: dict[str, list[Difference]] = {}
    for difference in known:
        groups.setdefault(difference.place, []).append(difference)
    return list(groups.values())


def mean_of(groups: Groups) -> Difference:
    """The mean over the settings, with the interval of the spread between them; of a single one its own interval."""
    points = [statistics.fmean(one.points for one in group) for group in groups]
    if len(groups) == 1 and len(groups[0]) == 1:
        return groups[0][0]
    return Difference("", statistics.fmean(points), margin_of_mean(points))


def in_words(groups: Groups, wanted: int | None = None) -> str:
    """``better in 19 of 20 settings (clearly in 12), clearly worse in 1 of 20 (mnist fwd); mean difference +14.54``."""
    lowest = [min(group, key=lambda one: (one.sign, one.points)) for group in groups]
    better = sum(min(one.points for one in group) > 0 for group in groups)
    clear, worse = (sum(one.sign == sign for one in lowest) for sign in (1, -1))
    named = list(dict.fromkeys(one.place for one in lowest if one.sign < 0))
    settings = counted(len(groups), "setting") + (f" run, {wanted} in the paper" if wanted else "")
    return (
        f"better in {better} of {settings}; clearly better in {clear}, clearly worse in {worse}"
        + (f" ({', '.join(named)})" if 0 < len(named) <= 5 else "")
        + f"; mean difference {mean_of(groups).shown}"
    )


def _every(groups: Groups, wanted: int | None = None) -> tuple[Word, str]:
    """Whether all settings are clearly better; ``wanted``: how many there are, if not all were run."""
    signs = [min(one.sign for one in group) for group in groups]
    if any(one.sign < 0 and one.own for group in groups for one in group):
        return "fails", ""
    if set(signs) == {1} and wanted is None:
        return "holds", ""
    unknown = sum(any(one.margin is None for one in group) for group in groups)
    reasons = [f"runs cover {len(groups)} of {wanted} settings"] * (wanted is not None)
    reasons += [f"{signs.count(1)} of {len(groups)} differences are clear"] * (signs.count(1) < len(groups))
    reasons += [f"{unknown} cannot be tested with one seed"] * (unknown > 0)
    return "undecided", ", ".join(reasons)


def _average(groups: Groups, wanted: int | None = None) -> tuple[Word, str]:
    """Whether the mean over the settings is clearly above 0."""
    mean = mean_of(groups)
    if mean.margin is None or not mean.own:
        return "undecided", f"{counted(len(groups), 'setting')} with one seed cannot be tested"
    if not mean.sign:
        return "undecided", f"the 95 % interval of the mean difference ({mean.shown}) contains 0"
    return ("holds" if mean.sign > 0 else "fails"), ""


def _ineffective(groups: Groups, wanted: int | None = None) -> tuple[Word, str]:
    """Whether the mean over the settings is clearly below `GAIN`."""
    mean = mean_of(groups)
    above = Difference("", mean.points - GAIN, mean.margin)
    if not above.sign:
        return "undecided", f"the 95 % interval of the mean difference ({mean.shown}) contains {GAIN:g}"
    return ("fails" if above.sign > 0 else "holds"), ""


Decision = Callable[[Groups, int | None], tuple[Word, str]]


def compared(pairs: Iterable[Pair], results: Results, protocol: Protocol, metric: str = BEST) -> list[Compared]:
    """The differences of all pairs that were run."""
    return [one for pair in pairs if (one := our_difference(pair, results, protocol, metric)) is not None]


def groups_of(found: Iterable[Compared]) -> Groups:
    """The differences of each setting."""
    return _by_group(one[0] for one in found)


def _better(
    _: float | None,
    results: Results,
    protocol: Protocol,
    pairs: list[Pair],
    decide: Decision,
    metric: str = BEST,
) -> Verdict:
    """One method is better than others: in every setting, or on average."""
    found = compared(pairs, results, protocol, metric)
    if not found:
        return NOT_RUN
    groups, runs = groups_of(found), [each for _, both, _ in found for each in both]
    wanted = len({pair[0] for pair in pairs}) if len(found) < len(pairs) else None
    evidence = brief = in_words(groups, wanted)
    if metric == BEST:
        printed = published_there(pairs, results, protocol)
        evidence += f"; published in these settings {printed.shown}" if printed and wanted else ""
        last = compared(pairs, results, protocol, LAST)
        evidence += f"; at the last epoch {mean_of(groups_of(last)).shown}" if last else ""
    origins = dict.fromkeys(pooled.origin for _, _, pooled in found if pooled is not None)
    evidence += f"; deviation for settings with one seed: {', '.join(origins)}" if origins else ""
    word, because = decide(groups, wanted)
    verdict = _conclude(word, evidence + _basis(runs), runs, because, wanted is not None)
    return verdict._replace(brief=brief + _basis(runs))


def published_there(pairs: Iterable[Pair], results: Results, protocol: Protocol) -> Difference | None:
    """The published mean difference in the settings that were run; None without any."""
    ran = [pair for pair in pairs if our_difference(pair, results, protocol) is not None]
    known = [one for pair in ran if (one := _published_difference(pair)) is not None]
    return mean_of(_by_group(known)) if known else None


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
    differences = [one for pair in check.options["pairs"] if (one := _published_difference(pair)) is not None]
    if not differences:
        return "no number is printed"
    groups = _by_group(differences)
    word, _ = check.options["decide"](groups, None)
    in_every = check.options["decide"] is _every
    said = {"undecided": "not clear"} | ({"fails": "not in every setting"} if in_every else {})
    return f"{said.get(word, word)}: {in_words(groups)}"


def label_ratio(tail: float, bias: float, head: int = 5000, classes: int = 10) -> float:
    """Expected ratio of the most to the least frequent complementary label, under a long tail and biased labels."""
    sizes = long_tail.class_sizes(head, tail, classes)
    matrix = transitions.uniform(classes) if bias == 1 else transitions.biased(classes, bias)
    expected = [sum(size * float(matrix[i, k]) for i, size in enumerate(sizes)) for k in range(classes)]
    return max(expected) / min(expected)


def _setup_3() -> str:
    both, tail, bias = label_ratio(100, 10), label_ratio(100, 1), label_ratio(1, 10)
    return (
        "half right, by construction: the expected ratio of the most to the least frequent label is "
        f"{both:.2f} in setup 3 (bias 10, ρ = 100). That is more than {tail:.2f} with the long tail alone (setup 1), "
        f"and less than {bias:.2f} with the bias alone (setup 2), because an example cannot have its own class as label"
    )


def _noise_removed(_: float | None, results: Results, protocol: Protocol) -> Verdict:
    """The noise ratio falls by more points on each simple dataset than on each complex one, at the same ρ."""
    parts, runs, holds = [], list[Runs](), list[bool]()
    for tail in (100.0, 1.0):
        removed = {}
        for data in DATASETS:
            pair = [results.find_noise(Setting(data, "s-nl", mix, tail), protocol) for mix in ("mixup", "icm")]
            a, b = (each.spread(NOISE_RATIO) for each in pair)
            if a is not None and b is not None:
                removed[data], runs = 100 * (a.mean - b.mean), runs + pair
        simple = [value for data, value in removed.items() if data in MNIST_FAMILY]
        complex_ = [value for data, value in removed.items() if data not in MNIST_FAMILY]
        if simple and complex_:
            holds.append(min(simple) > max(complex_))
            parts.append(f"ρ = {tail:g}: " + ", ".join(f"{data} -{value:.2f}" for data, value in removed.items()))
    if not parts:
        return NOT_RUN
    word: Word = "holds" if all(holds) else "undecided" if any(holds) else "fails"
    because = _unlike(runs) or f"it holds at {holds.count(True)} of {len(holds)} long tails"
    return _conclude("undecided" if _unlike(runs) else word, "; ".join(parts) + _basis(runs), runs, because, True)


def _unlike(runs: Sequence[Runs]) -> str:
    """Why noise ratios cannot be compared: their encoders were trained for different times; '' if they can."""
    lengths = sorted(set[int]().union(*(each.encoder_epochs for each in runs)))
    shown = ", ".join(map(str, lengths))
    return f"it is not like for like (encoders of {shown} epochs)" * (len(lengths) > 1)


def _gradients(
    _: float | None, results: Results, protocol: Protocol, first: str, second: str, metrics: Sequence[str]
) -> Verdict:
    """The metric, relative to |f|², is clearly lower on every dataset, in the mean over a training of full length.

    Both methods are measured on the same batches and weights; the spread is that of their differences between seeds.
    """
    parts, differences, few = [], list[Difference](), dict[str, None]()
    for entry, runs in results.of(STUDIES["gradients"], protocol).items():
        if not {first, second} <= {each["method"] for each in runs.measurements()}:
            continue
        lacking = [f"{counted(runs.epochs, 'epoch')} of training"] if runs.epochs and runs.epochs < EPOCHS else []
        few |= dict.fromkeys([counted(len(runs.seeds), "seed")] * (len(runs.seeds) < RUNS) + lacking)
        for metric in metrics:
            a, b = (_by_seed(runs, name, metric) for name in (first, second))
            points = [x - y for x, y in zip(a, b, strict=True)]
            differences.append(Difference("", statistics.fmean(points), margin_of_mean(points)))
            means = f"{statistics.fmean(a):.4g} against {statistics.fmean(b):.4g}"
            parts.append(f"{entry.setting.data} {GRADIENT_METRICS[metric]} {means}")
    if not parts:
        return NOT_RUN
    signs = {one.sign for one in differences}
    word: Word = "fails" if 1 in signs else "holds" if signs == {-1} else "undecided"
    because = f"it rests on {' and '.join(few)}" if few else "not all differences are clear"
    return Verdict("undecided" if few else word, f"relative to |f|²: {', '.join(parts)}", bool(few), because)


def _by_seed(runs: Runs, method: str, metric: str) -> list[float]:
    """The mean over the measurements of each seed, relative to |f|²."""
    every = [Runs((row,)).measurements() for row in runs.rows]
    alike = [[m for m in found if (m["target"], m["method"]) == ("clean", method)] for found in every]
    return [statistics.fmean(m[metric] / m[GRADIENT_SCALE] for m in measured) for measured in alike]


def _encoders(_: float | None, results: Results, protocol: Protocol) -> Verdict:
    """The noise of ICM with the clusters of SimSiam is the lowest, with encoders of the same length."""
    base = Setting("cifar10", "s-nl", "icm")
    settings = {name: base if name == "simsiam" else base.with_(encoder=name) for name in published.encoders()}
    runs = {name: results.find_noise(setting, protocol) for name, setting in settings.items()}
    known = {name: each.spread(NOISE_RATIO) for name, each in runs.items()}
    ratios = {name: 100 * spread.mean for name, spread in known.items() if spread is not None}
    if len(ratios) < len(settings):
        return NOT_RUN
    basis = ", ".join(f"{name} {ratio:.2f}{_basis([runs[name]])}" for name, ratio in ratios.items())
    every, unlike = list(runs.values()), _unlike(list(runs.values()))
    word: Word = "holds" if min(ratios, key=lambda name: ratios[name]) == "simsiam" else "fails"
    return _conclude("undecided" if unlike else word, basis, every, unlike)


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

    Undecided if it does not, but its 95 % interval contains the claimed one.
    """
    gains, used = list[Difference](), list[Runs]()
    places = list(itertools.product(tails, losses))
    for tail, loss in places:
        a, b = (Entry(Setting(data, loss, mix, float(tail)), mix) for mix in (first, second))
        found = our_difference((f"{loss} ρ={tail:g}", a, b), results, protocol)
        if found is not None:
            gains.append(found[0])
            used += found[1]
    if not gains:
        missing = REGISTRY[data].labels == "human" and not any(row["data"] == data for row in results.rows)
        return Verdict("cannot be checked", f"the labels of {data} are not available here") if missing else NOT_RUN
    joined = mean_of([[gain] for gain in gains]) if join == "mean" else _extreme(gains, join)
    shown = ", ".join(f"{gain.place}: {gain.points:+.2f}" for gain in gains)
    evidence = (f"{join} {joined.shown} ({shown})" if len(places) > 1 else joined.shown) + _basis(used)
    above = Difference("", joined.points - (claimed - 0.5), joined.margin)
    if len(gains) < len(places):
        return Verdict("undecided", evidence, True, f"runs cover {len(gains)} of {len(places)} settings")
    if above.margin is None or not joined.own:
        return Verdict("undecided", evidence, True, "a method has one seed")
    if above.points < 0 and not above.sign:
        return Verdict("undecided", evidence, _so_far(used), f"the 95 % interval contains {claimed - 0.5:g}")
    return _conclude("holds" if above.points >= 0 else "fails", evidence, used)


def _extreme(gains: Sequence[Difference], join: str) -> Difference:
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
    spread = runs.spread(NOISE_RATIO)
    if spread is None:
        return NOT_RUN
    holds = -below <= 100 * spread.mean - claimed <= above
    return _conclude("holds" if holds else "fails", f"{100 * spread.mean:.2f}{_basis([runs])}", [runs])


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
    if not known:
        return NOT_RUN
    evidence = ", ".join(f"{name}: {value:.2f}" for name, value in known.items()) + _basis(runs)
    if max(known.values()) >= claimed - slack:
        return _conclude("holds", evidence, runs)
    if len(known) < len(found):
        return Verdict("undecided", evidence, True, f"runs cover {len(known)} of {len(found)} augmentations")
    return _conclude("fails", evidence, runs)


# --- all checks -----------------------------------------------------------------------------------------------------


def _small(*data: str) -> Callable[[Entry], bool]:
    return lambda entry: entry.group in ("linear", "mlp") and entry.setting.data in data


def _on(*data: str) -> Callable[[Entry], bool]:
    return lambda entry: entry.setting.data in data


def _check(
    rule: str,
    decide: Decision,
    studies: Sequence[str],
    first: str,
    *others: str,
    keep: Callable[[Entry], bool] = bool,
    metric: str = BEST,
) -> Check:
    """Whether a method is better than others in some studies."""
    pairs = [pair for other in others for pair in _pairs(studies, first, other, keep)]
    return Check(rule, _better, {"pairs": pairs, "decide": decide, "metric": metric})


NOT_FOR_PLAIN = ("C8", "P12")  # about augmentation
NOISE_RATIO = "oracle_noise_ratio"
NOT_RUN = Verdict("not run")
BOTH = {"data": "cifar10", "tails": (1, 100)}
ONE = {"data": "cifar10", "tails": (100,), "losses": ("s-nl",)}
DRAW = 0.66  # two standard deviations of the noise ratio over draws of the labels, at ρ = 100
WITHIN = f"within {DRAW} (2 standard deviations of one draw)"
GAIN = 2.0  # points: Mixup is ineffective if it gains less
IN_EVERY = "clearly better in every setting; fails if clearly worse in one, with several seeds"
ON_AVERAGE = "clearly better on average"
_FLIP_AND_CUTOUT = {e.group: e for e in STUDIES["augment"].entries if e.method == "icm"}
_CUTOUT = [("icm: flip - cutout", _FLIP_AND_CUTOUT["flip"], _FLIP_AND_CUTOUT["cutout"])]

CHECKS: dict[str, Check] = {
    "C1": _check(IN_EVERY, _every, TABLES, "icm", "mixup", "none"),
    "C2": _check(f"the mean gain is clearly below {GAIN:g} points", _ineffective, TABLES, "mixup", "none"),
    "C3": _check(ON_AVERAGE, _average, TABLES, "micm", "icm", keep=_on(*CIFAR)),
    "C4": _check(ON_AVERAGE, _average, TABLES, "icm", "micm", keep=_on(*MNIST_FAMILY)),
    "C5": _check(
        "clearly better on the last third of the classes, at ρ = 10 as in the paper",
        *(_average, ("minority",), "micm", "icm"),
        keep=lambda entry: entry.setting.tail == 10,
        metric="tail_accuracy_last",
    ),
    "C6": _check(IN_EVERY, _every, ("same-label",), "icm", "same-excluded"),
    "C7": _check(IN_EVERY, _every, ("sharing",), "new-data", "soft-label", "hard-label"),
    "C8": Check("clearly worse than with flip and crop alone", _better, {"pairs": _CUTOUT, "decide": _every}),
    "C9": _check(IN_EVERY, _every, ("models",), "icm", "none", keep=_small("mnist", "kmnist")),
    "C10": _check(
        "no mixing is clearly better in every setting", _every, ("models",), "none", "icm", keep=_small("fmnist")
    ),
    "C11": _check(f"than no mixing {IN_EVERY}", _every, ("models-tail",), "icm", "none"),
    "C12": Check(
        "more points on each dataset of the MNIST family than on each CIFAR set, at ρ = 100 and 1, encoders alike",
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
    "C15": Check("the lowest of the three, with encoders of the same length", _encoders, {}),
    "P1": Check("mean gain over the losses at ρ = 100 reaches 29.5", _gain, {"data": "mnist", "tails": (100,)}),
    "P2": Check("mean gain over the losses and both ρ reaches 9.5", _gain, BOTH),
    "P3": Check(WITHIN, _noise, {"data": "cifar10", "mix": "mixup", "above": DRAW, "below": DRAW}),
    "P4": Check("gain of extra-class over mixup reaches 6.5", _gain, ONE | {"first": "extra-class"}),
    "P5": Check("gain over extra-class reaches 10.5", _gain, ONE | {"first": "intra-class", "second": "extra-class"}),
    "P6": Check(WITHIN, _noise, {"data": "mnist", "mix": "mixup", "above": DRAW, "below": DRAW}),
    "P7": Check("at most 0.05 above", _noise, {"data": "mnist", "mix": "icm", "above": 0.05}),
    "P8": Check("smallest gain over the losses and both ρ reaches 12.5", _gain, BOTH | {"join": "smallest"}),
    "P9": Check("largest gain over the losses and both ρ reaches 19.5", _gain, BOTH | {"join": "largest"}),
    "P10": Check("every p of icm over mixup below 0.001", _p_values, {"data": ("cifar10", "clcifar10")}),
    "P11": Check("every p of icm over mixup below 0.05", _p_values, {"data": ("cifar10", "clcifar10", "mnist")}),
    "P12": Check("at least 78 with one of the augmentations", _augmented, {"slack": 2.0}),
    "P13": Check("mean gain over the losses, balanced, reaches 9.5", _gain, {"data": "clcifar10", "tails": (1,)}),
}
