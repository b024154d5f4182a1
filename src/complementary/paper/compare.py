"""Our numbers beside the published ones, Welch's test between methods, and both as tables. Everything in percent."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from complementary.paper.protocols import COMMON, labels_are_given
from complementary.paper.published import EPOCHS, RUNS, Published
from complementary.paper.store import GRADIENT_METRICS, GRADIENT_SCALE, Pooled, Results, Runs
from complementary.paper.studies import NOISE, Entry, Protocol, Study
from complementary.reports import tables
from complementary.reports.tables import Spread, Table, counted, show_spread

GRADIENT_CONDITIONS = ("epochs", "draws", "device")  # of a measurement, beside the numbers
METRICS: dict[Protocol, dict[str, str]] = {
    "ours": {"best on test": "accuracy_best_on_test", "last": "accuracy_last", "selected": "accuracy_selected"},
    "paper": {"best on test": "accuracy_best_on_test", "last": "accuracy_last"},
    "plain": {"best on test": "accuracy_best_on_test", "last": "accuracy_last"},
}
"""Metrics that are reported, by the title of their column. The first one is what the paper reports: the accuracy of the
best epoch on the test set. Only this one is compared with published numbers."""
BEST, LAST = METRICS["paper"].values()


@dataclass(frozen=True)
class EntryResult:
    """One entry of a study: its runs, and for each column our number and the published one."""

    entry: Entry
    runs: Runs
    spreads: dict[str, Spread | None]
    published: dict[str, Published | None]

    @property
    def ours(self) -> Spread | None:
        """The number that is compared with the paper; None if nothing was run."""
        return next(iter(self.spreads.values()))

    @property
    def difference(self) -> float | None:
        """Ours minus the published mean, in points; None if either is missing."""
        return self.difference_of(next(iter(self.spreads)))

    def difference_of(self, column: str) -> float | None:
        """The same for one column."""
        spread, number = self.spreads[column], self.published[column]
        return None if spread is None or number is None else 100 * spread.mean - number.mean


def metrics_of(study: Study, protocol: Protocol) -> dict[str, str]:
    """The metrics that a study reports, by the title of their column."""
    return (NOISE if study.runner == "noise" else METRICS[protocol]) | dict(study.more)


def entry_results(study: Study, results: Results, protocol: Protocol, only_run: bool = False) -> list[EntryResult]:
    """The entries of a study; numbers are None where nothing was run.

    ``only_run`` leaves out settings of which no method was run.
    """
    metrics, known = metrics_of(study, protocol), results.of(study, protocol)
    started = {entry.where for entry, runs in known.items() if runs.rows}
    return [
        EntryResult(
            entry=entry,
            runs=runs,
            spreads={column: runs.spread(metric) for column, metric in metrics.items()},
            published=_published(study, entry, metrics),
        )
        for entry, runs in known.items()
        if entry.where in started or not only_run
    ]


def _published(study: Study, entry: Entry, metrics: dict[str, str]) -> dict[str, Published | None]:
    """The published number for each column: an accuracy, a noise ratio, or none."""
    noise = entry.published if study.runner == "noise" else entry.noise
    known = {BEST: entry.published} | dict.fromkeys(NOISE.values(), noise)
    return {column: known.get(metric) for column, metric in metrics.items()}


def comparable(study: Study, found: Sequence[EntryResult]) -> bool:
    """Whether enough settings among ``found``, which were run, have at least two methods (three values of a sweep)."""
    counts = Counter(each.entry.where for each in found)
    least = 3 if study.plot == "lines" else 2
    return sum(count >= least for count in counts.values()) >= (2 if study.across else 1)


# --- Welch's test ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WelchTest:
    """Difference of two means in points, two-sided p (None: too few runs, or no spread), and both numbers of runs."""

    difference: float
    p: float | None
    first: int
    second: int


@dataclass(frozen=True)
class Contrast:
    """Two methods of one setting: the test on our runs, and the one on the published means and deviations.

    ``last`` is our difference at the last epoch, in points.
    """

    first: EntryResult
    second: EntryResult
    ours: WelchTest | None
    last: float | None
    published: WelchTest | None


def contrasts(study: Study, results: Results, protocol: Protocol) -> list[Contrast]:
    """The pairs of methods that a study compares, for each setting. Runs of different length are not compared."""
    metric = next(iter(metrics_of(study, protocol).values()))
    known = {(found.entry.where, found.entry.method): found for found in entry_results(study, results, protocol)}
    pairs = []
    for where in dict.fromkeys(where for where, _ in known):
        for a, b in study.pairs:
            first, second = known.get((where, a)), known.get((where, b))
            if first is not None and second is not None:
                ours, last = (_compared(first.runs, second.runs, name) for name in (metric, LAST))
                published = welch_of(first.entry.published, second.entry.published)
                pairs.append(Contrast(first, second, ours, None if last is None else last.difference, published))
    return pairs


def _compared(first: Runs, second: Runs, metric: str) -> WelchTest | None:
    """Welch's test between runs of the same length, in points."""
    if first.epochs != second.epochs:
        return None
    return welch(*([100 * value for value in runs.values(metric)] for runs in (first, second)))


def welch(first: Sequence[float], second: Sequence[float]) -> WelchTest | None:
    """Welch's t-test, two-sided; None if a sample is empty."""
    return _welch(Spread.of(first), Spread.of(second)) if first and second else None


def welch_of(first: Published | None, second: Published | None) -> WelchTest | None:
    """Welch's test from published means and deviations; None if one is missing, or if both are the same number."""
    if first is None or second is None or first == second:
        return None
    return _welch(Spread(first.mean, first.std, RUNS), Spread(second.mean, second.std, RUNS))


def _welch(a: Spread, b: Spread) -> WelchTest:
    from scipy import stats  # slow to import

    p = None
    if a.deviation is not None and b.deviation is not None and (a.deviation or b.deviation):
        numbers = (a.mean, a.deviation, a.count, b.mean, b.deviation, b.count)
        p = float(stats.ttest_ind_from_stats(*numbers, equal_var=False).pvalue)
    return WelchTest(a.mean - b.mean, p, a.count, b.count)


def margin(a: Spread, b: Spread, pooled: Pooled | None = None) -> float | None:
    """Half the 95 % interval of the difference of two means (Welch); ``pooled``: used if one has a single value."""
    if a.deviation is not None and b.deviation is not None:
        parts = [(spread.deviation**2 / spread.count, spread.count - 1) for spread in (a, b) if spread.deviation]
        total = sum(variance for variance, _ in parts)
        freedom = total**2 / sum(variance**2 / count for variance, count in parts) if parts else 1.0
    elif pooled is not None:
        total, freedom = pooled.deviation**2 * (1 / a.count + 1 / b.count), float(pooled.freedom)
    else:
        return None
    return _quantile(freedom) * math.sqrt(total)


def margin_of_mean(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of a mean, from the deviation of the values; None for a single one."""
    if len(values) < 2:
        return None
    return _quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def _quantile(freedom: float) -> float:
    from scipy import stats  # slow to import

    return float(stats.t.ppf(0.975, freedom))


# --- captions: what all entries of a table have in common -------------------------------------------------------------

KEYS: dict[str, Callable[[Entry], str]] = {
    "data": lambda entry: entry.setting.data,
    "long tail": lambda entry: f"{entry.setting.tail:g}",
    "bias": lambda entry: f"{entry.setting.bias:g}",
    "loss": lambda entry: entry.setting.loss,
    "group": lambda entry: entry.group,
    "method": lambda entry: entry.method,
}
MORE_KEYS: dict[str, Callable[[Entry], str]] = {
    "mix": lambda entry: entry.setting.mix,
    "model": lambda entry: str(dict(entry.setting.changes).get("model", COMMON["model"])),
}


def common(found: Sequence[EntryResult]) -> str:
    """What holds for all of them: ``cifar10, ρ = 100, uniform labels, s-nl, icm, resnet18, 300 epochs``."""
    entries = [each.entry for each in found]
    named = all(entry.method == entry.setting.mix for entry in entries)  # then there is a column for it
    trained = any(list(each.spreads) != list(NOISE) for each in found)  # loss and network do not change the noise
    readers: list[Callable[[Entry], str]] = [KEYS["data"], _long_tail, _labels]
    readers += [KEYS["loss"]] * trained + [MORE_KEYS["mix"]] * (not named)
    readers += [KEYS["group"]] + [MORE_KEYS["model"]] * trained
    values = [{read(entry) for entry in entries} for read in readers]
    shared = dict.fromkeys(value for only in values if len(only) == 1 for value in only if value)
    return ", ".join([*shared, *_common_length(found)])


def _long_tail(entry: Entry) -> str:
    return f"ρ = {entry.setting.tail:g}"


def _labels(entry: Entry) -> str:
    """The origin of the complementary labels; '' where the name of the data says it."""
    if labels_are_given(entry.setting.data):
        return ""
    return "uniform labels" if entry.setting.bias == 1 else f"labels biased by {entry.setting.bias:g}"


def lengths(found: Sequence[EntryResult]) -> list[int]:
    """The different numbers of epochs."""
    return sorted({each.runs.epochs for each in found if each.runs.epochs is not None})


def _common_length(found: Sequence[EntryResult]) -> list[str]:
    known = lengths(found)
    if len(known) != 1:
        return []
    return [counted(known[0], "epoch") + ("" if known[0] == EPOCHS else f" (the paper: {EPOCHS})")]


def conditions(known: Sequence[Runs]) -> str:
    """How runs were made: ``bf16; 100 or 300 epochs; encoder of 400 epochs; 10 % held out; 1 to 3 seeds``."""
    rows = [row for runs in known for row in runs.rows]
    if not rows:
        return ""
    seeds = sorted({len(runs.seeds) for runs in known if runs.rows})
    parts = [" and ".join(sorted({str(row["precision"]) for row in rows if row.get("precision")}))]
    epochs = sorted({row["epochs"] for row in rows if row["epochs"] is not None})
    if epochs and epochs != [EPOCHS]:
        parts.append(" or ".join([*map(str, epochs[:-1]), counted(epochs[-1], "epoch")]))
    encoders = sorted(set[int]().union(*(runs.encoder_epochs for runs in known)))
    parts += [f"encoder of {' or '.join(map(str, encoders))} epochs"] * bool(encoders)
    held = sorted({100 * float(row["holdout"]) for row in rows if row["epochs"] is not None and "target" not in row})
    parts += [f"{' or '.join(f'{share:g}' for share in held)} % held out"] * bool(held)
    parts += [(f"{seeds[0]} to " * (len(seeds) > 1)) + counted(seeds[-1], "seed")]
    return "; ".join(filter(None, parts))


# --- tables ---------------------------------------------------------------------------------------------------------


def render(study: Study, results: Results, protocol: Protocol, form: str, only_run: bool = False) -> str:
    """A study as text, markdown, latex or csv; ``only_run`` as in `entry_results` (not for csv)."""
    if form == "csv":
        return _as_csv(study, results, protocol)
    return tables.FORMATS[form](
        heading(study, results, protocol, only_run), tables_of(study, results, protocol, only_run)
    )


def heading(study: Study, results: Results, protocol: Protocol, only_run: bool = False) -> str:
    """One line that says what the numbers are, with what all settings have in common."""
    note = f" {study.note}" if study.note else ""
    if study.runner == "gradients":
        return f"{study.title} ({study.source}), protocol {protocol}: means over all measurements.{note}"
    shared = common(entry_results(study, results, protocol, only_run))
    return (
        f"{study.title} ({study.source}), protocol {protocol}{f' ({shared})' if shared else ''}: mean ± standard "
        f"deviation (number of seeds), in percent; blank: not run, or not published.{note}"
    )


def tables_of(study: Study, results: Results, protocol: Protocol, only_run: bool = False) -> list[Table]:
    """The entries, and the tests between methods."""
    if study.runner == "gradients":
        return [_gradients_table(study, results, protocol)]
    found = entry_results(study, results, protocol, only_run)
    pairs = [pair for pair in contrasts(study, results, protocol) if pair.ours is not None or not only_run]
    varied = {key for key, read in KEYS.items() if len({read(each.entry) for each in found}) > 1}
    keys = [key for key in KEYS if key in varied or key in ("data", "method")]
    columns = list(metrics_of(study, protocol))
    made = [entries_table(found, keys, columns)] if found else []
    return [*made, _tests_table(pairs, keys, columns[0])] if pairs else made


def entries_table(found: Sequence[EntryResult], keys: list[str], columns: list[str]) -> Table:
    """A table with one row per entry; ``keys`` are names in `KEYS`, ``columns`` the titles of our metrics."""
    several, noise = len(lengths(found)) > 1, any(each.entry.noise for each in found)
    published = noise or any(each.entry.published for each in found)
    header = [*keys, *columns, *["published noise"] * noise, *["published", f"{columns[0]} - published"] * published]
    rows = []
    for each in found:
        numbers = [show_spread(each.spreads[column], True) for column in columns]
        numbers += [show_published(each.entry.noise)] * noise
        numbers += [show_published(each.entry.published), show_signed(each.difference)] * published
        numbers += [str(each.runs.epochs or "")] * several
        rows.append([*(KEYS[key](each.entry) for key in keys), *numbers])
    return Table("", [*header, *["epochs"] * several], rows, len(keys))


def _tests_table(pairs: Sequence[Contrast], keys: list[str], column: str) -> Table:
    keys = [key for key in keys if key != "method"]
    header = [*keys, "compared", "difference", "p (Welch)", "n", "difference, last epoch"]
    header += ["published", f"p from published, n = {RUNS}"]
    rows = []
    for pair in pairs:
        entry = pair.first.entry
        name = f"{entry.method} - {pair.second.entry.method}"
        numbers = [*_shown(pair.ours), show_signed(pair.last), *_shown(pair.published)[:2]]
        rows.append([*(KEYS[key](entry) for key in keys), name, *numbers])
    title = f"Difference of means ({column}) in points, and Welch's two-sided test"
    return Table(title, header, rows, len(keys) + 1)


def _shown(test: WelchTest | None) -> list[str]:
    if test is None:
        return ["", "", ""]
    return [show_signed(test.difference), show_p(test.p), f"{test.first}, {test.second}"]


def show_p(p: float | None) -> str:
    """A p-value with four digits; '' for None."""
    return "" if p is None else f"{p:.4g}"


def show_signed(value: float | None) -> str:
    """A difference with its sign and two decimals; '' for None."""
    return "" if value is None else f"{value:+.2f}"


def show_published(number: Published | None) -> str:
    """``36.21 ± 0.19``; '' for None."""
    if number is None:
        return ""
    return f"{number.mean:.2f}" + ("" if number.std is None else f" ± {number.std:.2f}")


def _gradients_table(study: Study, results: Results, protocol: Protocol) -> Table:
    rows = []
    for entry, runs in results.of(study, protocol).items():
        measured = runs.measurements()
        how = [", ".join(dict.fromkeys(str(row[name]) for row in runs.rows)) for name in GRADIENT_CONDITIONS]
        for target, method in dict.fromkeys((each["target"], each["method"]) for each in measured):
            alike = [each for each in measured if (each["target"], each["method"]) == (target, method)]
            means = [statistics.fmean(each[metric] for each in alike) for metric in GRADIENT_METRICS]
            relative = [statistics.fmean(e[metric] / e[GRADIENT_SCALE] for e in alike) for metric in GRADIENT_METRICS]
            numbers = [f"{mean:.4g}" for mean in (*means, *relative)]
            rows.append([entry.setting.data, target, method, *numbers, str(len(runs.seeds)), *how])
    titles = [*GRADIENT_METRICS.values(), *(f"{title} / |f|²" for title in GRADIENT_METRICS.values())]
    return Table("", ["data", "target", "method", *titles, "seeds", *GRADIENT_CONDITIONS], rows, 3)


def _as_csv(study: Study, results: Results, protocol: Protocol) -> str:
    """One line per entry and metric, in percent and full precision."""
    readers, lines = KEYS | MORE_KEYS, []
    for each in entry_results(study, results, protocol):
        for column, spread in each.spreads.items():
            number = each.published[column]
            std = None if spread is None or spread.deviation is None else 100 * spread.deviation
            ours = ("", "", 0) if spread is None else (100 * spread.mean, std, spread.count)
            paper = ("", "") if number is None else (number.mean, number.std)
            place = [study.name, protocol, *(read(each.entry) for read in readers.values()), column]
            lines.append([*place, *ours, each.runs.epochs, *paper, each.difference_of(column)])
    keys = [key.replace(" ", "_") for key in readers]
    numbers = ["mean", "std", "n", "epochs", "published_mean", "published_std", "difference"]
    return tables.csv(["study", "protocol", *keys, "metric", *numbers], lines)
