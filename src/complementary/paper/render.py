"""Studies as tables: our mean ± deviation (n) beside the published one, the difference, and Welch's tests."""

import csv
import io
from collections.abc import Callable, Sequence

from complementary.paper.captions import KEYS, MORE_KEYS, common, lengths, varied_keys
from complementary.paper.compare import Contrast, Line, Welch, contrasts, figures_of, lines
from complementary.paper.protocols import Protocol
from complementary.paper.published import RUNS, Published
from complementary.paper.store import Results
from complementary.paper.studies import Study
from complementary.reports import tables
from complementary.reports.tables import Table, show_spread


def render(study: Study, results: Results, protocol: Protocol, form: str, only_run: bool = False) -> str:
    """A study in one of the forms text, markdown, latex and csv; ``only_run``: as in `tables_of`, but for csv."""
    if form == "csv":
        return as_csv(study, results, protocol)
    return FORMATS[form](heading(study, results, protocol, only_run), tables_of(study, results, protocol, only_run))


def not_run(study: Study, protocol: Protocol) -> str:
    """What to say of a study of which there is no run yet."""
    named = study.name if protocol == study.protocol else f"{study.name} --protocol {protocol}"
    return (
        f"Nothing of {study.name} was run under the protocol {protocol} yet; run it with 'cll paper {named}', or see "
        f"its settings and the published numbers with 'cll paper show {named} --blank'."
    )


def heading(study: Study, results: Results, protocol: Protocol, only_run: bool = False) -> str:
    """What the numbers are, in one line, with all that the settings of `tables_of` have in common."""
    note, shared = f" {study.note}" if study.note else "", common(_lines(study, results, protocol, only_run))
    return (
        f"{study.title} ({study.source}), protocol {protocol}{f' ({shared})' if shared else ''}: mean ± standard "
        f"deviation (number of seeds), in percent; blank: not run, or not published.{note}"
    )


def tables_of(study: Study, results: Results, protocol: Protocol, only_run: bool = False) -> list[Table]:
    """The entries, and the tests between methods; ``only_run``: leave out settings of which nothing was run."""
    found = _lines(study, results, protocol, only_run)
    pairs = [pair for pair in contrasts(study, results, protocol) if pair.ours is not None or not only_run]
    keys, figures = varied_keys([line.entry for line in found]), list(figures_of(study, protocol))
    made = [entries_table(found, keys, figures)] if found else []
    return [*made, _tests(pairs, keys, figures[0])] if pairs else made


def _lines(study: Study, results: Results, protocol: Protocol, only_run: bool) -> list[Line]:
    found = lines(study, results, protocol)
    known = {line.entry.where for line in found if line.runs.rows or not only_run}
    return [line for line in found if line.entry.where in known]


def entries_table(found: Sequence[Line], keys: list[str], figures: list[str]) -> Table:
    """A row for each line: what ``keys`` tell of it, our ``figures``, the published numbers, perhaps the epochs."""
    several, noise = len(lengths(found)) > 1, any(line.entry.noise for line in found)
    header = [*keys, *figures, *(["published noise"] if noise else []), "published", f"{figures[0]} - published"]
    rows = []
    for line in found:
        numbers = [show_spread(line.figures[name], True) for name in figures]
        numbers += [show_published(line.entry.noise)] if noise else []
        numbers += [show_published(line.entry.published), _signed(line.difference)]
        numbers += [str(line.runs.epochs or "")] if several else []
        rows.append([*(KEYS[key](line.entry) for key in keys), *numbers])
    return Table("", [*header, *(["epochs"] if several else [])], rows, len(keys))


def _tests(pairs: Sequence[Contrast], keys: list[str], figure: str) -> Table:
    keys = [key for key in keys if key != "method"]
    header = [*keys, "compared", "difference", "p (Welch)", "n", "published", f"p from published, n = {RUNS}"]
    rows = []
    for pair in pairs:
        entry = pair.first.entry
        name = f"{entry.method} - {pair.second.entry.method}"
        mine, paper = _shown(pair.ours), _shown(pair.published)
        rows.append([*(KEYS[key](entry) for key in keys), name, *mine, *paper[:2]])
    title = f"Difference of means ({figure}) in points, and Welch's two-sided test"
    return Table(title, header, rows, len(keys) + 1)


def _shown(test: Welch | None) -> list[str]:
    if test is None:
        return ["", "", ""]
    return [_signed(test.difference), show_p(test.p), f"{test.first}, {test.second}"]


def show_p(p: float | None) -> str:
    """A p-value with four digits; "" where there is none."""
    return "" if p is None else f"{p:.4g}"


def show_published(number: Published | None) -> str:
    """``36.21 ± 0.19``."""
    if number is None:
        return ""
    return f"{number.mean:.2f}" + ("" if number.std is None else f" ± {number.std:.2f}")


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def as_csv(study: Study, results: Results, protocol: Protocol) -> str:
    """One line per entry and figure, in percent and full precision: for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = ["mean", "std", "n", "epochs", "published_mean", "published_std", "difference"]
    readers = KEYS | MORE_KEYS
    writer.writerow(["study", "protocol", *(key.replace(" ", "_") for key in readers), "figure", *numbers])
    for line in lines(study, results, protocol):
        for name, spread in line.figures.items():
            number = line.published[name]
            std = None if spread is None or spread.deviation is None else 100 * spread.deviation
            ours = ("", "", 0) if spread is None else (100 * spread.mean, std, spread.count)
            paper = ("", "") if number is None else (number.mean, number.std)
            place = [study.name, protocol, *(read(line.entry) for read in readers.values()), name]
            writer.writerow([*place, *ours, line.runs.epochs, *paper, line.off(name)])
    return out.getvalue()


FORMATS: dict[str, Callable[[str, Sequence[Table]], str]] = {
    "text": tables.text,
    "markdown": tables.markdown,
    "latex": tables.latex,
}
