"""docs/reproduction.md: what was run, and what it says about each published number and claim; and the status table."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from complementary.errors import UserError
from complementary.paper import precision, published
from complementary.paper.claims import CHECKS, Verdict, judge, own_tables
from complementary.paper.compare import (
    EntryResult,
    common,
    comparable,
    contrasts,
    entry_results,
    lengths,
    show_published,
    show_signed,
    tables_of,
    welch_of,
)
from complementary.paper.protocols import DIFFERENCES
from complementary.paper.published import EPOCHS, RUNS
from complementary.paper.readings import CODE, COMMIT, finding, in_short, readings, readings_table, text_against_code
from complementary.paper.store import Progress, Results, encoder_epochs, progress
from complementary.paper.studies import PROTOCOLS, STUDIES, Entry, Protocol, Study
from complementary.reports import tables
from complementary.reports.tables import Table, counted, show_spread
from complementary.sweeps.results import Row

Links = Mapping[tuple[str, Protocol], str]  # study and protocol -> the address of a figure

PAPER = "https://openreview.net/forum?id=h9PbmfznWj"
INTRO = f"""# Reproduction of the paper

This page compares our runs with the numbers and statements of [Intra-Cluster Mixup]({PAPER}) (Mai and Lin, TMLR 2026).
It is generated from the stored results by `cll paper page`; a number that was not run is blank. Runs follow one of
three protocols: *ours*, as the text of the paper says, with crop and flip; *paper*, as its published code, with crop
and flip; and *plain*, the same without crop and flip.
"""
WORDS = f"""| word | meaning |
|---|---|
| complementary label | a class that an example does *not* belong to; each example has one |
| none, mixup | no mixing; Mixup of an example with any other one, images and labels alike |
| icm, micm | Mixup with one (two) other examples of the same cluster; clusters by k-means on self-supervised features |
| extra-class, intra-class | oracles: Mixup with pairs that the true labels allow (no noisy pair; the same class) |
| same-excluded | Mixup of examples with the same complementary label |
| new-data, soft-label, hard-label | ICM of images and labels; of labels alone; with both labels in full on one image |
| group | what else differs: the network, the encoder, the augmentation |
| noise ratio | share of mixes in which a label excludes the true class of another member; needs true labels |
| s-nl, fwd, dm, s-exp | the four complementary losses of the paper |
| ρ, bias | ratio of the largest to the smallest class; ratio of the biased complementary labels (1: none) |
| setup 1, 2, 3 | long tail with uniform labels; biased labels; both |
| best on test | accuracy of the epoch that is best on the test set, as the paper reports: too high, but like for like |
| last | accuracy of the last epoch |
| selected | accuracy of the epoch that SCEL selects without true labels, on the 10 % of the labels that are held out |
| n, (n) | number of seeds |
| published | mean ± standard deviation of {RUNS} runs of {EPOCHS} epochs |
| so far | from fewer seeds, epochs or encoder epochs than published, or from a part of the settings |
| clearly, level | by more than two standard errors, by less (fewer than three seeds: with a pooled deviation) |

Protocols: *ours* follows the text of the paper, *paper* its published code with augmentation switched on, *plain* with
augmentation switched off. The text names no augmentation for the main tables; crop and flip in *ours* are our choice.

{DIFFERENCES}
"""
READINGS_INTRO = f"""The paper gives no address of its code. Code that carries its name is public in a
[repository of the first author]({CODE}) (commit {COMMIT}, no license); it differs from the text. In it, augmentation is
a switch, so it is not certain with which settings a published number was made. Runs as in that code, S-NL at
ρ = 100: best on test (seeds) / published, difference. Bold: within two standard errors. A reading reproduces the paper
only if all three methods do.
"""
NEAR_INTRO = f"""Mean of \\|ours - published\\| over the losses in points, best on test (from the lowest to the highest
difference, number of losses); with one loss its difference. Only runs of {EPOCHS} epochs.
"""
PEAKS = """The best epoch on the test set can be an early one, after which a run becomes worse. The last epoch is worse
by, on average: {}. A number that is near can therefore be that of an early peak.
"""
CODE_INTRO = """Last column: code minus text in points, mean and range over the runs that differ only in this (S-NL at
ρ = 100, best on test).
"""
SAME_LOSS = f"""With uniform labels the loss of FWD is that of S-NL plus a constant: -log((1 - p) / (K - 1)), where p is
the probability of the excluded class. Without mixing both must learn the same, except for what the published code adds
(it counts the matrix from the true labels). Published ({RUNS} runs each) and ours:
"""
CLAIMS = """Statements of the paper, judged from its own tables and from our runs. *Clearly* means by more than two
standard errors; a number that is missed by less than that is undecided. Differences are those of best on test. C:
central statements; P: statements with a number. Proposition 1 counts a term twice; what holds instead, and how noise
follows from the purity of clusters, is in the [notes](notes/theory.md).
"""
ADD = """To add runs: `cll paper run` spends a given time on the most informative open ones, `cll paper export` copies
the results, `cll paper page` makes this page again. `cll paper smoke` tries every study without a GPU.
"""
PRECISION_INTRO = """Runs on a GPU use bf16. Here the same runs were repeated with fp32 (no TF32), with the same labels,
initial weights and order of the examples; ± is the standard error of the mean difference.
"""
TABLES_INTRO = """Tables in the paper's form: **ours (seeds) / published**, best on test, in percent; -: not run, or not
published. Columns and losses without any run are left out. Figures without a study: Fig. 1 is a drawing of the method;
Fig. 8 (classes and labels of the setups) is drawn by `cll data show`.
"""


def write_page(results: Results, links: Links | None = None, with_fp32: Sequence[Row] = ()) -> str:
    """The whole page as Markdown.

    Args:
        results: what was run.
        links: figures, which are shown under the tables.
        with_fp32: runs that were repeated with fp32.
    """
    parts = [INTRO, "## In short\n", _summary(results), "## Words\n", WORDS]
    parts += ["## Which reading of the method gives the published numbers?\n", _readings(results)]
    if _differences(results):
        parts += ["### How near are all runs?\n", NEAR_INTRO, _markdown(_differences_table(results))]
        parts += [PEAKS.format(_early_peaks(results))]
    parts += ["### Where text and code differ\n", CODE_INTRO, _markdown(text_against_code(results))]
    parts += ["## Statements\n", CLAIMS, _claims(results)]
    parts += ["## Two losses that are the same\n", SAME_LOSS, _same_loss(results)]
    parts += ["## Tables and figures\n", TABLES_INTRO, *_all_studies(results, links or {})]
    parts += ["## What was run\n", _overview(results)]
    if pairs := precision.pairs(results.rows, with_fp32):
        parts += ["## What bf16 changes\n", PRECISION_INTRO, _markdown(precision.table(pairs))]
    return "\n".join(parts)


def check_page(text: str, path: Path) -> None:
    """Raise if ``path`` does not contain exactly this page."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} does not match the stored results; generate it again.")


def _markdown(*made: Table) -> str:
    return tables.markdown("", made).lstrip("\n")


# --- summary --------------------------------------------------------------------------------------------------------


def _summary(results: Results) -> str:
    """What holds, what fails and what is open, in ten lines."""
    lines = [_coverage(results)]
    if text := in_short(readings(results)):
        lines.append(f"**What augmentation changes**: {text}.")
    if text := _distances(results):
        lines.append(
            f"**Distance from the published numbers by protocol** (mean of \\|ours - published\\| in points, best on "
            f"test, numbers in parentheses; only runs of {EPOCHS} epochs; each protocol has other settings): {text}."
            f"{_like_for_like(results)}"
        )
    if reproduced := [one for one in readings(results) if one.complete]:
        names = [f"{one.data}, augmentation {one.augmentation}, {one.weights}" for one in reproduced if one.reproduces]
        lines.append(
            f"**A reading that reproduces no mixing, Mixup and ICM together**: {'; '.join(names) or 'none so far'}."
        )
    verdicts = {(c, p): judge(c, results, p) for c in published.claims() for p in PROTOCOLS}
    for word, title in WORDS_OF_VERDICTS.items():
        if text := _claims_with_verdict(verdicts, word):
            lines.append(f"**{title}**: {text}.")
    contradicted = [c for c in published.claims() if own_tables(c).startswith(("fails", "contradicts"))]
    lines.append(f"**Contradicted by the paper's own tables, or by construction**: {_named(contradicted)}.")
    unknown = {c for (c, _), verdict in verdicts.items() if verdict is not None}
    unknown -= {c for (c, _), v in verdicts.items() if v is not None and v.word in WORDS_OF_VERDICTS}
    lines.append(f"**Not run**: {_named([c for c in published.claims() if c in unknown]) or 'nothing'}.")
    lines.append("**Not available here**: the labels of CLCIFAR (48 numbers) and the images of KMNIST (56 numbers).")
    return "\n".join(f"- {line}" for line in lines) + "\n"


WORDS_OF_VERDICTS = {
    "holds": "Holds in our runs",
    "fails": "Fails in our runs",
    "undecided": "Undecided, because differences are within two standard errors",
}


def _claims_with_verdict(verdicts: Mapping[tuple[str, Protocol], Verdict | None], word: str) -> str:
    """The claims with this verdict, each with the protocols; a star means so far."""
    found: dict[str, list[str]] = {}
    for (claim, protocol), verdict in verdicts.items():
        if verdict is not None and verdict.word == word:
            found.setdefault(claim, []).append(protocol + "\\*" * verdict.so_far)
    return _named(found, {claim: f" ({', '.join(protocols)})" for claim, protocols in found.items()})


def _named(claims: Iterable[str], more: Mapping[str, str] | None = None) -> str:
    """The claims by identifier and in a few words."""
    known, more = published.claims(), more or {}
    return "; ".join(f"{claim} {known[claim].short}{more.get(claim, '')}" for claim in claims)


def _published_entries() -> dict[tuple[str, str, float, float, str, str], Entry]:
    """An entry for each published number of a table."""
    found = dict[tuple[str, str, float, float, str, str], Entry]()
    for study in STUDIES.values():
        for entry in study.entries if study.source.startswith("Table") else ():
            if entry.published and entry.published.place in published.cells():
                found.setdefault(entry.published.place, entry)
    return found


@dataclass(frozen=True)
class _Difference:
    """How far a setting is from its published number, best on test, in points."""

    protocol: Protocol
    place: tuple[str, str, float, float, str, str]
    entry: Entry
    points: float


def _differences(results: Results) -> list[_Difference]:
    """Of all settings with a published number and runs of full length, by protocol."""
    found = []
    for protocol, (place, entry) in itertools.product(PROTOCOLS, _published_entries().items()):
        assert entry.published is not None
        runs = results.find(entry.setting, protocol)
        if runs.epochs == EPOCHS and (ours := runs.spread("accuracy_best_on_test")) is not None:
            found.append(_Difference(protocol, place, entry, 100 * ours.mean - entry.published.mean))
    return found


def _distances(results: Results) -> str:
    """How far runs of full length are from the published numbers: ``plain: none 1.2 (13), mixup …; ours: …``."""
    far: dict[str, dict[str, list[float]]] = {}
    for one in _differences(results):
        far.setdefault(one.protocol, {}).setdefault(one.entry.setting.mix, []).append(abs(one.points))
    text = {
        protocol: ", ".join(f"{name} {statistics.fmean(values):.1f} ({len(values)})" for name, values in found.items())
        for protocol, found in far.items()
    }
    return "; ".join(f"{protocol}: {text}" for protocol, text in text.items())


def _like_for_like(results: Results) -> str:
    """The distances of two protocols on the numbers that have runs under both, as a sentence; '' if there are none."""
    far: dict[Protocol, dict[tuple[object, ...], float]] = {}
    for one in _differences(results):
        far.setdefault(one.protocol, {})[one.place] = abs(one.points)
    parts = []
    for a, b in itertools.combinations(far, 2):
        both = far[a].keys() & far[b].keys()
        if both:
            means = [statistics.fmean(far[protocol][place] for place in both) for protocol in (a, b)]
            parts.append(f"{means[0]:.1f} ({a}) and {means[1]:.1f} ({b}) on {len(both)}")
    return f" On the numbers that have runs under two protocols: {'; '.join(parts)}." if parts else ""


def _differences_table(results: Results) -> Table:
    """One row per protocol and setup, one column per method: the distance from the published numbers."""
    groups: dict[tuple[str, str], dict[str, list[_Difference]]] = {}
    for one in _differences(results):
        setting = one.entry.setting
        place = f"{setting.data}, ρ = {setting.tail:g}" + (f", bias {setting.bias:g}" if setting.bias > 1 else "")
        groups.setdefault((one.protocol, place), {}).setdefault(setting.mix, []).append(one)
    methods = list(dict.fromkeys(mix for found in groups.values() for mix in found))
    rows = [[*key, *(_distance_cell(found.get(mix, [])) for mix in methods)] for key, found in groups.items()]
    return Table("", ["protocol", "setup", *methods], rows, 2)


def _distance_cell(found: Sequence[_Difference]) -> str:
    """``3.4 (-3.2 to +5.0, 4)``, or with one number its difference and loss: ``-7.1 (fwd)``."""
    if len(found) < 2:
        return "".join(f"{one.points:+.1f} ({one.entry.setting.loss})" for one in found)
    points = [one.points for one in found]
    mean = statistics.fmean(map(abs, points))
    return f"{mean:.1f} ({min(points):+.1f} to {max(points):+.1f}, {len(points)})"


def _early_peaks(results: Results) -> str:
    """By how much the last epoch is worse than the best one, by method, for each protocol; '' without runs."""
    lost: dict[Protocol, dict[str, list[float]]] = {}
    for one in _differences(results):
        runs = results.find(one.entry.setting, one.protocol)
        best, last = (runs.spread(name) for name in ("accuracy_best_on_test", "accuracy_last"))
        if best is not None and last is not None:
            lost.setdefault(one.protocol, {}).setdefault(one.entry.setting.mix, []).append(
                100 * (best.mean - last.mean)
            )
    text = {
        protocol: ", ".join(f"{name} {statistics.fmean(values):.1f}" for name, values in found.items())
        for protocol, found in lost.items()
    }
    return "; ".join(f"{protocol}: {text}" for protocol, text in text.items())


def _coverage(results: Results) -> str:
    """How many published cells have a run under either protocol."""
    wanted = _published_entries()
    runs = [[results.find(entry.setting, protocol) for protocol in PROTOCOLS] for entry in wanted.values()]
    started = sum(any(each.rows for each in found) for found in runs)
    complete = sum(any(each.rows and not each.short for each in found) for found in runs)
    return (
        f"**{started} of the {len(wanted)} published numbers** have a run here, {complete} of them with {RUNS} seeds, "
        f"{EPOCHS} epochs and an encoder of 800 epochs. \\*: so far, from less than that."
    )


# --- the first question ---------------------------------------------------------------------------------------------


def _readings(results: Results) -> str:
    found = readings(results)
    if not found:
        return "Not run yet.\n"
    text = finding(found)
    return "\n".join([READINGS_INTRO, _markdown(readings_table(found)), *([f"In short: {text}.\n"] if text else [])])


# --- theory ---------------------------------------------------------------------------------------------------------


def _same_loss(results: Results) -> str:
    """S-NL and FWD without mixing, as published, and ours where both were run."""
    plain = {
        (each.entry.setting.data, each.entry.setting.tail, each.entry.setting.loss): each
        for each in entry_results(STUDIES["main"], results, "ours")
        if each.entry.method == "none"
    }
    rows = []
    for data, tail in dict.fromkeys(place[:2] for place in plain):
        pair = [plain[data, tail, loss] for loss in ("fwd", "s-nl")]
        test = welch_of(*(each.entry.published for each in pair))
        fwd, s_nl = (each.ours for each in pair)
        ours = 100 * (fwd.mean - s_nl.mean) if fwd and s_nl else None
        if test is not None and test.p is not None:
            shown = [show_published(each.entry.published) for each in reversed(pair)]
            epochs = "" if ours is None else " and ".join(map(str, lengths(pair)))
            tested = [show_signed(test.difference), f"{test.p:.2g}"]
            rows.append([data, f"{tail:g}", *shown, *tested, show_signed(ours), epochs])
    header = ["data", "ρ", "S-NL", "FWD", "difference", "p (Welch)", "ours: difference", "ours: epochs"]
    return _markdown(Table("", header, rows, 2))


# --- claims ---------------------------------------------------------------------------------------------------------


def _claims(results: Results) -> str:
    rows = []
    for claim in published.claims().values():
        verdicts = [judge(claim.id, results, protocol) for protocol in PROTOCOLS]
        unit = "" if claim.unit in ("p", "ratio") else f" {claim.unit}"
        value = "" if claim.value is None else f": {claim.value:g}{unit}"
        shown = ["" if v is None else f"**{v.text}** {v.evidence}".strip() for v in verdicts]
        rule = CHECKS[claim.id].rule if claim.id in CHECKS else "a matter of theory"
        rows.append([claim.id, f"{claim.text}{value} ({claim.where})", own_tables(claim.id), rule, *shown])
    header = ["", "statement", "its own tables and theory", "holds in our runs if", *PROTOCOLS]
    return _markdown(Table("", header, rows, len(header)))


# --- tables and figures ---------------------------------------------------------------------------------------------


def _all_studies(results: Results, links: Links) -> list[str]:
    parts, lonely = [], []
    for study in STUDIES.values():
        known = {protocol: _runs_of(study, results, protocol) for protocol in study.protocols}
        shown = [protocol for protocol, found in known.items() if _has_section(study, found, results, protocol)]
        parts += [_section(study, results, protocol, links) for protocol in shown]
        counts = [f"{protocol} {len(found)} of {len(study.entries)}" for protocol, found in known.items() if found]
        if counts and not shown:
            lonely.append(f"- {study.name} ({study.source}): {study.title}; settings run: {', '.join(counts)}")
    if lonely:
        parts.append("### Too few runs for a comparison\n\n" + "\n".join(lonely) + "\n")
    return parts or ["Nothing was run yet.\n"]


def _runs_of(study: Study, results: Results, protocol: Protocol) -> list[EntryResult]:
    """The entries that were run; of the study of gradients, those that were measured."""
    if study.runner == "gradients":
        return [EntryResult(entry, runs, {}, {}) for entry, runs in results.of(study, protocol).items() if runs.rows]
    return [each for each in entry_results(study, results, protocol) if each.ours is not None]


def _has_section(study: Study, found: Sequence[EntryResult], results: Results, protocol: Protocol) -> bool:
    """Whether something can be compared; for a study of tests, whether there is one."""
    if study.runner == "gradients":
        return bool(found)
    if study.plot == "none":
        return any(pair.ours and pair.ours.p is not None for pair in contrasts(study, results, protocol))
    return comparable(study, found)


def _section(study: Study, results: Results, protocol: Protocol, links: Links) -> str:
    title = f"### {_cited(study)}: {study.title} (study {study.name}, protocol {protocol})\n"
    made, caption = tables_of(study, results, protocol, only_run=True), _caption(study, results, protocol)
    link = links.get((study.name, protocol))
    figure = [f"![{study.title}, protocol {protocol}]({link})\n"] if link else []
    if is_printed_table(study):
        first = _markdown(printed_table(entry_results(study, results, protocol)))
        return "\n".join(
            [title, *caption, first, *figure, _folded("Last and selected epoch, differences, tests", made)]
        )
    if study.plot == "none":
        return "\n".join([title, *caption, _markdown(*made[1:]), _folded("All numbers", made[:1])])
    if study.plot == "rows":
        return "\n".join([title, *caption, *figure, _folded("All numbers, differences, tests", made)])
    rest = [_folded("Differences and tests", made[1:])] if len(made) > 1 else []
    return "\n".join([title, *caption, _markdown(*made[:1]), *figure, *rest])


def _caption(study: Study, results: Results, protocol: Protocol) -> list[str]:
    """What all settings have in common, and the note of the study."""
    shared = common(entry_results(study, results, protocol, only_run=True)) if study.runner != "gradients" else ""
    parts = [f"All: {shared}." if shared else "", study.note]
    return [text + "\n"] if (text := " ".join(filter(None, parts))) else []


def _cited(study: Study) -> str:
    return study.source if study.source[0].isupper() else "Not in the paper"


def _folded(summary: str, made: Sequence[Table]) -> str:
    """Tables that are shown on a click."""
    return f"<details markdown><summary>{summary}</summary>\n\n{_markdown(*made)}\n</details>\n"


def is_printed_table(study: Study) -> bool:
    """Whether a study is one of the tables of accuracies, with a row per loss and method."""
    return study.source.startswith("Table") and all(e.method == e.setting.mix for e in study.entries)


def printed_table(found: Sequence[EntryResult]) -> Table:
    """A table in the paper's form: rows are losses and methods, columns datasets and ratios.

    Cells are ``ours (seeds) / published``. Columns and losses without any run are left out, and empty rows.
    """
    columns = dict.fromkeys(_column(each) for each in found if each.ours is not None)
    cells = {(_column(each), each.entry.setting.loss, each.entry.method): each for each in found}
    losses = {each.entry.setting.loss for each in found if each.ours is not None}
    rows = []
    for loss, method in dict.fromkeys((each.entry.setting.loss, each.entry.method) for each in found):
        shown = [_ours_and_published(cells.get((column, loss, method))) for column in columns]
        if loss in losses and any(shown):
            rows.append([loss, method, *shown])
    return Table("", ["loss", "method", *columns], rows, 2)


def _column(each: EntryResult) -> str:
    s = each.entry.setting
    ratios = [f"ρ = {s.tail:g}"] * (s.tail > 1) + [f"bias {s.bias:g}"] * (s.bias > 1)
    return ", ".join([s.data, *(ratios or ["balanced"])])


def _ours_and_published(each: EntryResult | None) -> str:
    if each is None:
        return ""
    ours = show_spread(each.ours, True) or "-"
    short = f" [{each.runs.epochs} epochs]" if each.runs.epochs not in (None, EPOCHS) else ""
    text = "-" if each.entry.published is None else f"{each.entry.published.mean:.2f}"
    return "" if ours == text == "-" else f"{ours}{short} / {text}"


# --- what was run ---------------------------------------------------------------------------------------------------


def status(
    results: Results, stores: Sequence[Path], protocols: Sequence[Protocol] = PROTOCOLS, seeds: int | None = None
) -> str:
    """How much of each study was run under each protocol, as text; ``seeds`` are wanted of each setting."""
    rows = []
    for study in STUDIES.values():
        for protocol in protocols:
            now = progress(study, results, protocol, seeds)
            counts = [f"{now.started} of {now.settings}", f"{now.runs} of {now.wanted}", _seeds(now)]
            rows.append([study.name, protocol, *counts, f"{now.minutes:.1f}"])
    places = ", ".join(map(str, stores)) or "no folder"
    known = f"{counted(len(results.rows), 'run')} and {counted(len(results.noise), 'noise ratio')} in {places}"
    table = Table("", ["study", "protocol", "settings", "runs", "seeds", "minutes"], rows, 2)
    return tables.text(f"{known}; a run counts in every study that needs it", [table])


def _seeds(now: Progress) -> str:
    least, most = now.seeds
    return "" if not most else f"{least}" if least == most else f"{least} to {most}"


def _overview(results: Results) -> str:
    header = [
        "study",
        "in the paper",
        "published numbers run",
        *(f"settings run, {protocol}" for protocol in PROTOCOLS),
    ]
    rows, waiting = [], []
    for study in STUDIES.values():
        known = {protocol: progress(study, results, protocol) for protocol in study.protocols}
        if any(now.started for now in known.values()):
            cells = [_progress(known[protocol]) if protocol in known else "" for protocol in PROTOCOLS]
            rows.append([study.name, study.source, _published_run(study, results), *cells])
        else:
            waiting.append(_waiting(study))
    parts = [ADD, _used(results), *([_markdown(Table("", header, rows, 2))] if rows else [])]
    parts += ["Not run:\n", "\n".join(waiting) + "\n"] if waiting else []
    return "\n".join(parts) + _origins(results)


def _published_run(study: Study, results: Results) -> str:
    """How many of its published numbers have a run under some protocol: ``38 of 120``; '' if nothing was published."""
    find = results.find_noise if study.runner == "noise" else results.find
    wanted = [entry for entry in study.entries if entry.published is not None]
    run = [entry for entry in wanted if any(find(entry.setting, protocol).rows for protocol in PROTOCOLS)]
    return f"{len(run)} of {len(wanted)}" if wanted else ""


def _progress(now: Progress) -> str:
    """``32 of 160; 0 to 1 seeds; 100 or 300 epochs``."""
    if not now.started:
        return f"0 of {now.settings}"
    epochs = f"{' or '.join(map(str, now.epochs))} epochs" if now.epochs else ""
    seeds = _seeds(now) + (" seed" if now.seeds == (1, 1) else " seeds")
    return "; ".join(filter(None, [f"{now.started} of {now.settings}", seeds, epochs]))


def _used(results: Results) -> str:
    """What the runs really used: number, device, precision, length, seeds, held-out share, encoders."""
    rows = results.rows
    hours = sum(row.get("train_seconds") or 0.0 for row in rows) / 3600
    devices = sorted({str(row["device"]).partition(" (")[0] for row in rows if row.get("device")})
    first = counted(len(rows), "run")
    first += f" on {' and '.join(devices)}: {hours:.1f} hours of training" * bool(devices)
    first += f"; {counted(len(results.noise), 'noise ratio')} counted without training" * bool(results.noise)
    lines = [f"{first}."]
    if rows:
        kinds = _numbers(rows, lambda row: row.get("precision") or "not recorded")
        lines.append(f"- Precision: {kinds}; what bf16 changes is measured in the [notes](notes/speed.md).")
        lines.append(f"- Epochs: {_numbers(rows, lambda row: row['epochs'])} (published: {EPOCHS}).")
        lines.append(f"- Seeds: {_numbers(rows, _seed)} (published: {RUNS} runs each).")
        lines.append(f"- Labels held out for the selection of an epoch: {_numbers(rows, _held_out)}.")
        clustered = [row for row in rows if row["mix"] in ("icm", "micm")]
        if clustered:
            lines.append(
                f"- Epochs of the encoder behind ICM and MICM: {_numbers(clustered, _encoder)} (published: 800)."
            )
    return "\n".join(lines[:1] + [""] * (len(lines) > 1) + lines[1:]) + "\n"


def _seed(row: Row) -> str:
    return f"seed {row['seed']}"


def _held_out(row: Row) -> str:
    return f"{100 * float(row['holdout']):g} %"


def _encoder(row: Row) -> str:
    epochs = encoder_epochs(row)
    return "not known" if epochs is None else str(epochs)


def _numbers(rows: Sequence[Row], read: Callable[[Row], object]) -> str:
    """The values of the rows, each with its number of runs: ``100 (16 runs), 300 (145 runs)``."""
    values = sorted(map(read, rows), key=lambda value: (isinstance(value, str), value))
    return ", ".join(f"{value} ({counted(len(list(group)), 'run')})" for value, group in itertools.groupby(values))


def _waiting(study: Study) -> str:
    published_ = f", {counted(len(study.published), 'published number')}" if study.published else ""
    return f"- {study.name} ({study.source}): {study.title}; {counted(len(study.entries), 'setting')}{published_}"


def _origins(results: Results) -> str:
    """Where the clusters came from."""
    origins: dict[str, list[int]] = {}
    for place, rows in enumerate((results.rows, results.noise)):
        for row in rows:
            if row["mix"] in ("icm", "micm"):
                epochs = encoder_epochs(row)
                length = "" if epochs is None else f", encoder of {epochs} epochs"
                name = row["encoder"] if row["assignments"] is None else f"`{row['assignments']}`"
                origins.setdefault(f"{name}{length}", [0, 0])[place] += 1
    if not origins:
        return ""
    lines = []
    for name, counts in sorted(origins.items()):
        uses = [counted(n, what) for n, what in zip(counts, ("run", "noise ratio"), strict=True) if n]
        lines.append(f"- {name} ({', '.join(uses)})")
    return "\nClusters:\n\n" + "\n".join(lines) + "\n"
