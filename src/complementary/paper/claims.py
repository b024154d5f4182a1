"""The paper's statements, judged by code from the runs of a store. Nothing here knows a result of ours."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from complementary.config import Config
from complementary.data import TABLE
from complementary.paper import published
from complementary.paper.compare import contrasts, lines
from complementary.paper.protocols import FIGURES, Protocol, Setting, alpha_of, config_of, examples
from complementary.paper.published import LOSSES, Claim
from complementary.paper.store import Results, Runs
from complementary.paper.studies import MIXES, STUDIES
from complementary.reports.tables import counted

Word = Literal["holds", "fails", "holds so far", "fails so far", "not run yet", "cannot be checked here", "a setting"]


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim; ``rule``: when it holds, ``evidence``: the numbers that decided.

    So far: from fewer seeds or epochs than the published ones.
    """

    word: Word
    evidence: str
    rule: str


Check = Callable[[Results, Protocol], Verdict]


def judge(claim: Claim, results: Results, protocol: Protocol) -> Verdict:
    """The verdict on one claim under one protocol."""
    return CHECKS[claim.id](results, protocol)


JOINS: dict[str, Callable[[list[float]], float]] = {"mean": statistics.fmean, "smallest": min, "largest": max}

# --- gains of one mixer over another ------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """The gain of mixer ``first`` over ``second``, joined over settings by ``join``, is at least what is claimed."""

    id: str
    data: str
    tails: Sequence[float]
    first: str = "icm"
    second: str = "mixup"
    losses: Sequence[str] = LOSSES
    join: Literal["mean", "smallest", "largest"] = "mean"

    def __call__(self, results: Results, protocol: Protocol) -> Verdict:
        """Needs all of the settings."""
        claimed = float(published.claim(self.id).value)
        rule = f"the {self.join} gain of {self.first} over {self.second} is at least {claimed:g} points, when rounded"
        places = [(tail, loss) for tail in self.tails for loss in self.losses]
        found = {place: self._pair(results, protocol, *place) for place in places}
        figure = next(iter(FIGURES[protocol].values()))
        gains = {place: gain for place, pair in found.items() if (gain := _gain(pair, figure)) is not None}
        said = ", ".join(f"{loss} ρ={tail:g}: {gain:+.2f}" for (tail, loss), gain in gains.items())
        said += _how([runs for place in gains for runs in found[place]])
        if len(gains) < len(places):
            return _open(results, self.data, f"{len(gains)} of {len(places)} gains known. {said}".rstrip(), rule)
        holds = JOINS[self.join]([*gains.values()]) >= claimed - 0.5
        return Verdict(_word(holds, [runs for pair in found.values() for runs in pair]), said, rule)

    def _pair(self, results: Results, protocol: Protocol, tail: float, loss: str) -> tuple[Runs, Runs]:
        first, second = (Setting(self.data, loss, mix, float(tail)) for mix in (self.first, self.second))
        return results.find(first, protocol), results.find(second, protocol)


def _gain(pair: tuple[Runs, Runs], figure: str) -> float | None:
    first, second = (runs.spread(figure) for runs in pair)
    if first is None or second is None or pair[0].epochs != pair[1].epochs:
        return None
    return 100 * (first.mean - second.mean)


def _word(holds: bool, runs: Sequence[Runs]) -> Word:
    """As firm as the runs behind it."""
    seeds, epochs = (int(published.claim(id).value) for id in ("P21", "P18"))
    if all(len(one.seeds) >= seeds and (one.epochs or 0) >= epochs for one in runs):
        return "holds" if holds else "fails"
    return "holds so far" if holds else "fails so far"


def _how(runs: Sequence[Runs]) -> str:
    """How many seeds and epochs stand behind a verdict."""
    if not runs:
        return ""
    seeds, epochs = min(len(one.seeds) for one in runs), sorted({one.epochs for one in runs if one.epochs})
    length = f", {' or '.join(map(str, epochs))} epoch{'' if epochs == [1] else 's'}" if epochs else ""
    return f" (at least {counted(seeds, 'seed')}{length})"


def _open(results: Results, data: str, evidence: str, rule: str) -> Verdict:
    """Not enough runs: because nobody made them yet, or because the labels of ``data`` are by humans and not here."""
    missing = TABLE[data].labels == "human" and not any(row["data"] == data for row in results.rows)
    return Verdict("cannot be checked here", f"no run on {data} is here", rule) if missing else _later(evidence, rule)


def _later(evidence: str, rule: str) -> Verdict:
    return Verdict("not run yet", evidence, rule)


# --- other figures ------------------------------------------------------------------------------------


def _noise(id: str, setting: Setting, slack: float, below: bool = False) -> Check:
    claimed = float(published.claim(id).value)
    rule = f"our noise ratio is {'at most' if below else 'within'} {slack:g} points {'above' if below else 'of'} it"

    def check(results: Results, protocol: Protocol) -> Verdict:
        spread = results.noise(setting, protocol).spread("noise_ratio")
        if spread is None:
            return _later("", rule)
        off = 100 * spread.mean - claimed
        holds = off <= slack if below else abs(off) <= slack
        return Verdict("holds" if holds else "fails", f"{100 * spread.mean:.2f} (n = {spread.count})", rule)

    return check


def _p_below(id: str, data: Sequence[str]) -> Check:
    limit, runs = float(published.claim(id).value), int(published.claim("P22").value)
    rule = f"icm beats mixup with p < {limit:g} (Welch, {runs} runs each or more) in every setting of {', '.join(data)}"

    def check(results: Results, protocol: Protocol) -> Verdict:
        pairs = contrasts(STUDIES["p-values"], results, protocol)
        tests = [pair.ours for pair in pairs if pair.first.entry.setting.data in data]
        whole = [test for test in tests if test is not None and min(test.first, test.second) >= runs]
        known = [(test.p, test.difference) for test in whole if test.p is not None]
        bad = [p for p, difference in known if p >= limit or difference < 0]
        said = f"{len(known) - len(bad)} of {len(known)} tests, of {len(tests)} wanted"
        if bad:
            return Verdict("fails", f"{said}; the largest p is {max(p for p, _ in known):.3g}", rule)
        return Verdict("holds", said, rule) if len(known) == len(tests) else _later(said, rule)

    return check


def _augmented(results: Results, protocol: Protocol) -> Verdict:
    rule = "ICM reaches at least 78 % with one of the augmentations"
    found = [line for line in lines(STUDIES["augment"], results, protocol) if line.entry.method == "icm"]
    known = {line.entry.group: 100 * line.ours.mean for line in found if line.ours is not None}
    runs = [line.runs for line in found if line.ours is not None]
    said = ", ".join(f"{name}: {value:.2f}" for name, value in known.items()) + _how(runs)
    if known and max(known.values()) >= 78:
        return Verdict(_word(True, runs), said, rule)
    return Verdict(_word(False, runs), said, rule) if len(known) == len(found) else _later(said, rule)


def _ratio(id: str, column: str, tail: float, bias: float, slack: float) -> Check:
    claimed = float(published.claim(id).value)
    rule = f"the ratio of the largest to the smallest count, CIFAR-10, is within {slack:g} of it"

    def check(results: Results, protocol: Protocol) -> Verdict:
        for loss in LOSSES:
            for mix in MIXES:
                setting = Setting("cifar10", loss, mix, tail, bias)
                rows = [*results.find(setting, protocol).rows, *results.noise(setting, protocol).rows]
                for text in (row[column] for row in rows if row.get(column)):
                    counts = json.loads(text)
                    ratio = max(counts) / max(1, min(counts))
                    return Verdict("holds" if abs(ratio - claimed) <= slack else "fails", f"{ratio:.3f}", rule)
        return _later("", rule)

    return check


def _chosen(name: str, methods: Callable[[Setting], str], rule: str) -> Check:
    """The chosen value of a sweep is the best one, for each dataset and mixer."""

    def check(results: Results, protocol: Protocol) -> Verdict:
        found: dict[tuple[object, ...], dict[str, float]] = {}
        wanted: dict[tuple[object, ...], str] = {}
        runs: list[Runs] = []
        for line in lines(STUDIES[name], results, protocol):
            wanted[line.entry.where] = methods(line.entry.setting)
            if line.ours is not None:
                found.setdefault(line.entry.where, {})[line.entry.method] = line.ours.mean
                runs.append(line.runs)
        whole = {where: values for where, values in found.items() if wanted[where] in values and len(values) > 1}
        best = {where: max(values, key=lambda method: values[method]) for where, values in whole.items()}
        good = sum(best[where] == wanted[where] for where in best)
        said = f"best in {good} of {len(best)} sweeps" if best else ""
        said += "".join(f"; {where[0]} {where[-1]}: {best[where]}" for where in best if best[where] != wanted[where])
        said += _how(runs) if best else ""
        if good < len(best):
            return Verdict(_word(False, runs), said, rule)
        return Verdict(_word(True, runs), said, rule) if len(best) == len(wanted) else _later(said, rule)

    return check


def _setting(read: Callable[[Config], object], setting: Setting | None = None) -> Check:
    where = setting or Setting("cifar10", "s-nl", "icm", 100.0)
    return lambda results, protocol: Verdict("a setting", f"here {read(config_of(where, protocol))}", "")


def _listed(*values: object) -> Check:
    return lambda results, protocol: Verdict("a setting", f"here {' | '.join(map(str, values))}", "")


def _levels(study: str, name: str) -> list[str]:
    return sorted({f"{getattr(entry.setting, name):g}" for entry in STUDIES[study].entries}, key=float)


def _alpha(setting: Setting) -> str:
    return f"alpha={alpha_of(setting):g}"


def _values(study: str) -> list[str]:
    return list(dict.fromkeys(entry.method for entry in STUDIES[study].entries))


CHECKS: dict[str, Check] = {
    "P1": Gain("P1", "mnist", (100,)),
    "P2": Gain("P2", "cifar10", (1, 100)),
    "P3": _noise("P3", Setting("cifar10", "s-nl", "mixup", 100.0), 0.5),
    "P4": Gain("P4", "cifar10", (100,), "extra-class", "mixup", ("s-nl",)),
    "P5": Gain("P5", "cifar10", (100,), "intra-class", "extra-class", ("s-nl",)),
    "P6": _noise("P6", Setting("mnist", "s-nl", "mixup", 100.0), 0.5),
    "P7": _noise("P7", Setting("mnist", "s-nl", "icm", 100.0), 0.05, below=True),
    "P8": Gain("P8", "cifar10", (1, 100), join="smallest"),
    "P9": Gain("P9", "cifar10", (1, 100), join="largest"),
    "P10": _p_below("P10", ("cifar10", "clcifar10")),
    "P11": _p_below("P11", ("cifar10", "clcifar10", "mnist")),
    "P12": _augmented,
    "P13": Gain("P13", "clcifar10", (1,)),
    "P14": _ratio("P14", "oracle_class_counts", 100.0, 1.0, 10.0),
    "P15": _ratio("P15", "label_counts", 100.0, 1.0, 0.05),
    "P16": _ratio("P16", "label_counts", 1.0, 10.0, 0.5),
    "P17": _setting(lambda c: c.training.batch),
    "P18": _setting(lambda c: c.training.epochs),
    "P19": _setting(lambda c: c.training.lr),
    "P20": _setting(lambda c: c.training.weight_decay),
    "P21": _listed(STUDIES["main"].seeds),
    "P22": _listed(STUDIES["p-values"].seeds),
    "P23": _chosen("clusters", lambda _: "K=50", "K = 50 is the best of our sweep on every dataset"),
    "P24": _chosen("constant", lambda _: "C=30", "C = 30 is the best of our sweep on every dataset"),
    "P25": _chosen("alpha", _alpha, "the chosen alpha is the best of our sweep for every dataset and mixer"),
    "P26": _setting(lambda c: c.cluster.pretrain_epochs),
    "P27": _listed("SGD 1e-4"),
    "P28": _setting(lambda c: c.training.epochs),
    "P29": _setting(lambda c: f"{examples(c):,} of MNIST", Setting("mnist")),
    "P30": _setting(lambda c: f"{examples(c):,}", Setting("cifar10")),
    "P31": _listed("all 10,000"),
    "P32": _listed(*_levels("main", "tail")),
    "P33": _listed(*_levels("setup2-cifar", "bias")),
    "P34": _listed(*_levels("setup3-5", "tail")),
    "P35": _listed(*_levels("setup3-5", "bias"), *_levels("setup3-10", "bias")),
}
