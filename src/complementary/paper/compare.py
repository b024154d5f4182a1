"""Ours beside the published numbers, and Welch's test between methods. Percent everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from complementary.paper.protocols import FIGURES, NOISE, Protocol
from complementary.paper.published import RUNS, Published
from complementary.paper.store import Results, Runs
from complementary.paper.studies import Entry, Study
from complementary.reports.tables import Spread

ACCURACIES = {figure for figures in FIGURES.values() for figure in figures.values()}


@dataclass(frozen=True)
class Line:
    """One entry: its runs, the figures by the name of their column, and what was published of each."""

    entry: Entry
    runs: Runs
    figures: dict[str, Spread | None]
    published: dict[str, Published | None]

    @property
    def ours(self) -> Spread | None:
        """The figure that is compared with the paper."""
        return next(iter(self.figures.values()))

    @property
    def difference(self) -> float | None:
        """Ours less the published mean, in points; None if either is missing."""
        return self.off(next(iter(self.figures)))

    def off(self, name: str) -> float | None:
        """The same of one figure, by the name of its column."""
        spread, number = self.figures[name], self.published[name]
        return None if spread is None or number is None else 100 * spread.mean - number.mean


@dataclass(frozen=True)
class Welch:
    """Welch's test: the difference of two means in points, ``p`` (None: too few runs, or no spread), and both n."""

    difference: float
    p: float | None
    first: int
    second: int


@dataclass(frozen=True)
class Contrast:
    """Two methods of one setting: what we found, and what follows from the published means and deviations."""

    first: Line
    second: Line
    ours: Welch | None
    published: Welch | None


def figures_of(study: Study, protocol: Protocol) -> dict[str, str]:
    """Which figures of a run a study reports, by the name of their column."""
    return (NOISE if study.value == "noise" else FIGURES[protocol]) | dict(study.more)


def lines(study: Study, results: Results, protocol: Protocol) -> list[Line]:
    """All entries of a study; figures are None where nothing was run."""
    names = figures_of(study, protocol)
    return [
        Line(
            entry, runs, {name: runs.spread(figure) for name, figure in names.items()}, _published(study, entry, names)
        )
        for entry, runs in results.of(study, protocol).items()
    ]


def _published(study: Study, entry: Entry, names: dict[str, str]) -> dict[str, Published | None]:
    """The published number of each figure: an accuracy of all classes, or the noise of the mixes, or none."""
    noise = entry.published if study.value == "noise" else entry.noise
    known = dict.fromkeys(ACCURACIES, entry.published) | dict.fromkeys(NOISE.values(), noise)
    return {name: known.get(figure) for name, figure in names.items()}


def contrasts(study: Study, results: Results, protocol: Protocol) -> list[Contrast]:
    """The pairs of methods that a study compares, setting by setting; none of ours where one was trained longer."""
    figure = next(iter(figures_of(study, protocol).values()))
    known = {(line.entry.where, line.entry.method): line for line in lines(study, results, protocol)}
    found = []
    for where in dict.fromkeys(place for place, _ in known):
        for a, b in study.pairs:
            first, second = known.get((where, a)), known.get((where, b))
            if first is not None and second is not None:
                alike = first.runs.epochs == second.runs.epochs
                ours = welch(_percent(first, figure), _percent(second, figure)) if alike else None
                found.append(Contrast(first, second, ours, from_paper(first.entry.published, second.entry.published)))
    return found


def _percent(line: Line, figure: str) -> list[float]:
    return [100 * value for value in line.runs.values(figure)]


def welch(first: Sequence[float], second: Sequence[float]) -> Welch | None:
    """Welch's t-test, two-sided; None if a side is empty."""
    return _welch(Spread.of(first), Spread.of(second)) if first and second else None


def from_paper(first: Published | None, second: Published | None) -> Welch | None:
    """Welch's test from published means and deviations; None if one is missing, or if both are the same number."""
    if first is None or second is None or first == second:
        return None
    return _welch(Spread(first.mean, first.std, RUNS), Spread(second.mean, second.std, RUNS))


def _welch(a: Spread, b: Spread) -> Welch:
    from scipy import stats

    p = None
    if a.deviation is not None and b.deviation is not None and (a.deviation or b.deviation):
        numbers = (a.mean, a.deviation, a.count, b.mean, b.deviation, b.count)
        p = float(stats.ttest_ind_from_stats(*numbers, equal_var=False).pvalue)
    return Welch(a.mean - b.mean, p, a.count, b.count)
