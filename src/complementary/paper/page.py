"""docs/reproduction.md: what was run, and what it says about each published number and claim; and the status table."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from complementary.errors import UserError
from complementary.paper import published
from complementary.paper.claims import (
    CHECKS,
    Verdict,
    compared,
    groups_of,
    judge,
    mean_of,
    own_tables,
    published_there,
    verdict_on,
)
from complementary.paper.compare import (
    BEST,
    EntryResult,
    common,
    comparable,
    conditions,
    contrasts,
    entry_results,
    lengths,
    show_published,
    show_signed,
    tables_of,
    welch_of,
)
from complementary.paper.distances import (
    NEAR_CHANCE,
    Distance,
    baselines,
    by_dataset,
    distances,
    like_for_like,
    mean_distance,
    nearest,
    published_entries,
)
from complementary.paper.protocols import CLUSTERED, DIFFERENCES
from complementary.paper.published import EPOCHS, RUNS
from complementary.paper.readings import CODE, COMMIT, NEAR, readings, readings_table, text_against_code
from complementary.paper.store import LEAST_FREEDOM, Progress, Results, Runs, progress
from complementary.paper.studies import PROTOCOLS, STUDIES, Protocol, Study
from complementary.reports import tables
from complementary.reports.tables import Table, counted, show_spread

Links = Mapping[tuple[str, Protocol], str]  # study and protocol -> the address of a figure

PAPER = "https://openreview.net/forum?id=h9PbmfznWj"
INTRO = f"""# Reproduction of the paper

This page compares our runs with the numbers and statements of [Intra-Cluster Mixup]({PAPER}) (Mai and Lin, TMLR 2026).
The paper trains classifiers from *complementary labels*: each label names one class that an example does not belong
to. Its method *ICM* mixes pairs of examples from the same cluster. The baselines are *none* (no mixing) and *Mixup*.
Accuracies are those of the best epoch on the test set, as in the paper. The page is generated from the stored results
by `cll paper page`; a number that was not run is blank.

Runs follow one of three protocols ([details](#words)):

- *plain*: as the published code, without augmentation.
- *paper*: as the published code, with crop and flip.
- *ours*: as the text of the paper, but with crop and flip, which the text does not mention, and with 10 % of the labels
  held out, which the paper does not do.
"""
WORDS = f"""| word | meaning |
|---|---|
| complementary label | a class that an example does *not* belong to; each example has one |
| none, mixup | no mixing; Mixup of an example with any other one, images and labels alike |
| icm, micm | Mixup with one (two) other examples of the same cluster; clusters by k-means on self-supervised features |
| extra-class, intra-class | oracles: Mixup with pairs that the true labels allow (no noisy pair; the same class) |
| same-excluded | Mixup of examples with the same complementary label |
| new-data, soft-label, hard-label | ICM of images and labels; of labels alone; with both labels in full on one image |
| λ | the weight of the own image in a mix; the partner has 1 - λ |
| matched, swapped label weights | the own label has weight λ, like the image (text), or 1 - λ (code) |
| Adam kept, re-created | one optimizer for the whole training; a new one, without moments, in every epoch (code) |
| group | what else differs: the network, the encoder, the augmentation |
| noise ratio | share of mixes in which a label excludes the true class of another member; needs true labels |
| draws | of a gradient: how often the complementary labels are drawn anew to measure its bias and variance |
| s-nl, fwd, dm, s-exp | the four complementary losses of the paper |
| ρ, bias | ratio of the largest to the smallest class; ratio of the biased complementary labels (1: none) |
| setup 1, 2, 3 | long tail with uniform labels; biased labels; both |
| best on test | accuracy of the epoch that is best on the test set, as the paper reports: too high, but like for like |
| last | accuracy of the last epoch |
| SCEL | a score that needs no true labels: how well a model predicts held-out complementary labels |
| selected | accuracy of the epoch with the best SCEL |
| n, (n) | number of seeds |
| published | mean ± standard deviation of {RUNS} runs of {EPOCHS} epochs |
| near chance | published accuracy of at most {NEAR_CHANCE:g} times that of guessing, which every method reaches |
| so far | from fewer seeds, epochs or encoder epochs than published, or from a part of the settings |
| clear | the 95 % interval of the difference (Welch) does not contain 0 |

{DIFFERENCES}
"""
READINGS_INTRO = f"""The paper gives no address of its code. Code that carries its name is public in a
[repository of the first author]({CODE}) (commit {COMMIT}, no license); it differs from the text. In it, augmentation is
a switch, so it is not certain with which settings a published number was made. Runs as in that code, S-NL at
ρ = 100: best on test (seeds) / published, difference. Bold: at most {NEAR:g} points away. A reading reproduces the
paper only if all three methods do. {{}}
"""
NEAR_INTRO = f"""Mean of \\|ours - published\\| in points, best on test (number of settings). Runs of {EPOCHS} epochs
only. Encoder epochs: of the encoders behind ICM and MICM; published: {CLUSTERED["pretrain_epochs"]}. Last column: by
how much the last epoch is worse than the best one. Where this is large, a number that is near can be an early peak.
"""
CODE_INTRO = """Effect: code minus text in points, mean (range, n: pairs of settings that differ only in this). S-NL at
ρ = 100, best on test. Runs: {}. The effect of the augmentation is crop and flip minus none.
"""
CLAIMS = f"""Each statement of the paper has one verdict. It is that of the protocol that comes nearest to the published
accuracies without mixing and has runs of it (in this order: {{}}).
C: central statements; P: statements with a number.

- Differences are those of best on test; ± is half of a 95 % interval.
- A difference is *clear* if its 95 % interval (Welch) does not contain 0. If a method has one seed, the deviation
  between seeds is pooled from all settings of the same dataset and network, whatever their protocol, if these have at
  least {LEAST_FREEDOM} degrees of freedom; otherwise nothing is clear.
- The interval of a mean over settings comes from the spread between the settings.
- *Fails* needs several seeds, or several settings, and trainings as long as the published ones.
"""
DETAILS = """Rules, and the numbers under all protocols. Proposition 1 counts a term twice; what holds instead, and how
noise follows from the purity of clusters, is in the [notes](notes/theory.md).
"""
SAME_LOSS = f"""With the uniform matrix, the loss of FWD is that of S-NL plus the constant log(K - 1): it is
-log((1 - p) / (K - 1)), where p is the probability of the excluded class. Both have the same gradient, with mixed
labels too, because their weights have the sum 1. Under the protocol ours, both therefore learn the same, up to rounding
and the 1e-6 that S-NL adds to 1 - p. {{}} Under the protocols plain and paper the losses differ: the published code
counts the matrix of FWD from the true labels, and mixes only the own label.

No mixing, published ({RUNS} runs each) and ours:
"""
ADD = """To add runs: `cll paper run` spends a given time on the most informative open ones, `cll paper export` copies
the results, `cll paper page` makes this page again. `cll paper smoke` tries every study without a GPU.
"""
TABLES_INTRO = """Tables in the paper's form: **ours (seeds) / published**, best on test, in percent; -: not run, or not
published. Columns and losses without any run are left out. Figures without a study: Fig. 1 is a drawing of the method;
Fig. 8 (classes and labels of the setups) is drawn by `cll data show`.
"""


def write_page(results: Results, links: Links | None = None) -> str:
    """The whole page as Markdown; ``links``: figures, which are shown under the tables."""
    found = distances(results)
    order = nearest(found)
    parts = [INTRO, "## In short\n", summary(results, found)]
    parts += ["## Statements\n", CLAIMS.format(", ".join(order)), *_claims(results, order)]
    parts += ["## Which reading of the method gives the published numbers?\n", _readings(results)]
    if found:
        parts += ["### How near are all runs?\n", NEAR_INTRO, _markdown(by_dataset(found)), _near_chance(found)]
    parts += ["### Where text and code differ\n", CODE_INTRO.format(_coded(results))]
    parts += [_markdown(text_against_code(results)), "## Words\n", WORDS]
    parts += ["## Two losses that are the same\n", SAME_LOSS.format(_identical(results)), _same_loss(results)]
    parts += ["## Tables and figures\n", TABLES_INTRO, *_all_studies(results, links or {}, order)]
    parts += ["## What was run\n", _overview(results)]
    return "\n".join(parts)


def check_page(text: str, path: Path) -> None:
    """Raise if ``path`` does not contain exactly this page."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} does not match the stored results; generate it again.")


def _markdown(*made: Table) -> str:
    return tables.markdown("", made).lstrip("\n")


# --- summary --------------------------------------------------------------------------------------------------------


def summary(results: Results, found: Sequence[Distance]) -> str:
    """What holds, what fails and what is open, in about ten lines."""
    order = nearest(found)
    lines = [_gain_of_icm(results, order[0]), _gain_of_icm(results, "ours") if order[0] != "ours" else ""]
    lines += [_baselines(found), _distance_of_icm(found, order[0]), _reproduced(results)]
    verdicts = {claim: verdict_on(claim, results, order) for claim in published.claims()}
    for word, title in WORDS_OF_VERDICTS.items():
        of_word = [c for c, one in verdicts.items() if one is not None and one[1].word == word]
        starred = {c: "\\*" for c, one in verdicts.items() if one is not None and one[1].so_far and word != "undecided"}
        lines.append(f"**{title}**: {_named(of_word, starred)}." if of_word else "")
    contradicted = [c for c in published.claims() if own_tables(c).startswith(CONTRADICTED)]
    lines.append(f"**Not supported by the paper's own tables**: {_named(contradicted)}.")
    return "\n".join(f"- {line}" for line in [*lines, _coverage(results)] if line) + "\n"


UNKNOWN = ("not run", "cannot be checked")
CONTRADICTED = ("fails", "contradicts", "not in every setting", "not clear")
WORDS_OF_VERDICTS = {
    "holds": "Statements that hold (\\*: so far)",
    "fails": "Statements that fail (\\*: so far)",
    "undecided": "Undecided, for reasons that the next section gives",
    "not run": "Not run",
    "cannot be checked": "Cannot be checked here",
}
CONDITIONS = {"plain": "without augmentation", "paper": "with crop and flip", "ours": "with crop and flip (ours)"}


def _gain_of_icm(results: Results, protocol: Protocol) -> str:
    """In how many settings ICM is better than both baselines, and by how much; '' without runs."""
    pairs = CHECKS["C1"].options["pairs"]
    found = compared(pairs, results, protocol)
    if not found:
        return ""
    groups, printed = groups_of(found), published_there(pairs, results, protocol)
    not_better = [group[0].place for group in groups if min(one.points for one in group) <= 0]
    but = f" (not in {', '.join(not_better)})" if not_better else ""
    there = f"; the paper has {printed.points:.1f} in the same settings" if printed else ""
    mean = mean_of(groups)
    ends = [mean.points + sign * (mean.margin or 0.0) for sign in (-1, 1)]
    interval = "" if mean.margin is None else f" (95 % interval over the settings: {ends[0]:.1f} to {ends[1]:.1f})"
    return (
        f"**ICM {CONDITIONS[protocol]}** is better than both Mixup and no mixing in {len(groups) - len(not_better)} of "
        f"{counted(len(groups), 'setting')}{but}. On average it gains {mean.points:.1f} points over "
        f"them{interval}{there}. Runs: {conditions([each for _, both, _ in found for each in both])}."
    )


def _baselines(found: Sequence[Distance]) -> str:
    """How far no mixing is from the published numbers under each protocol; '' without runs."""
    parts = [
        f"{protocol} {mean_distance(of):.1f} ({counted(len(of), 'setting')})"
        for protocol, of in baselines(found).items()
    ]
    both = like_for_like([one for one in found if one.entry.setting.mix == "none"])
    return (
        f"**Runs {CONDITIONS[nearest(found)[0]]} come nearest to the paper**: mean distance from the published "
        f"accuracies without mixing, in points: {', '.join(parts)}. Two protocols in the same settings: "
        f"{both or 'not run'}."
        if parts
        else ""
    )


def _distance_of_icm(found: Sequence[Distance], protocol: Protocol) -> str:
    """How far ICM is from the published numbers, by dataset and length of the encoder; '' without runs."""
    groups: dict[tuple[str, int | None], list[Distance]] = {}
    for one in found:
        if (one.protocol, one.entry.setting.mix) == (protocol, "icm"):
            groups.setdefault((one.entry.setting.data, one.encoder), []).append(one)
    parts = [
        f"{data} {mean_distance(of):.1f} ({counted(len(of), 'setting')}, encoder of {epochs} epochs)"
        for (data, epochs), of in groups.items()
    ]
    return (
        f"**Distance of ICM itself, {CONDITIONS[protocol]}**, in points: {', '.join(parts)}; the paper has encoders of "
        f"{CLUSTERED['pretrain_epochs']} epochs."
        if parts
        else ""
    )


def _reproduced(results: Results) -> str:
    """Which readings of the method reproduce the paper, and the effect of the label weights; '' without any."""
    complete = [one for one in readings(results) if one.complete]
    names = [f"{one.data}, augmentation {one.augmentation}, {one.weights}" for one in complete if one.reproduces]
    effects = next(row[3:] for row in text_against_code(results).rows if row[0].startswith("label weights"))
    return (
        "**Readings of the text and the code that reproduce no mixing, Mixup and ICM together** (within "
        f"{NEAR:g} points): {'; '.join(names) or 'none so far'}. The code swaps the label weights of ICM; in points, "
        f"this changes {effects[1]} without augmentation, and {effects[0]} with crop and flip."
        if complete
        else ""
    )


def _named(claims: Iterable[str], more: Mapping[str, str] | None = None) -> str:
    """The claims by identifier and in a few words."""
    known, more = published.claims(), more or {}
    return "; ".join(f"{claim} {known[claim].short}{more.get(claim, '')}" for claim in claims)


def _near_chance(found: Sequence[Distance]) -> str:
    """How many compared numbers are near chance, where a small distance means nothing."""
    trivial = sum(one.trivial for one in found)
    return (
        f"{trivial} of {len(found)} compared numbers are near chance (at most {NEAR_CHANCE:g} times the accuracy of "
        "guessing). Every method reaches them, so that they match trivially; one column leaves them out. Two protocols "
        f"in the same settings, all methods: {like_for_like(found) or 'not run'}.\n"
    )


def _coverage(results: Results) -> str:
    """How many published cells have a run under some protocol, and which datasets are missing."""
    wanted = published_entries()
    runs = [[results.find(entry.setting, protocol) for protocol in PROTOCOLS] for entry in wanted.values()]
    started = sum(any(each.rows for each in found) for found in runs)
    complete = sum(any(each.rows and not each.short for each in found) for found in runs)
    known = {row["data"] for row in results.rows}
    missing: dict[str, int] = {}
    for entry in wanted.values():
        if entry.setting.data not in known:
            missing[entry.setting.data] = missing.get(entry.setting.data, 0) + 1
    none = ", ".join(f"{data} ({count} numbers)" for data, count in missing.items())
    return (
        f"**Coverage**: {started} of the {len(wanted)} published accuracies have a run here, {complete} of them with "
        f"{RUNS} seeds, {EPOCHS} epochs and an encoder of {CLUSTERED['pretrain_epochs']} epochs. No run: {none}."
    )


# --- the first question ---------------------------------------------------------------------------------------------


def _readings(results: Results) -> str:
    found = readings(results)
    if not found:
        return "Not run yet.\n"
    return "\n".join([READINGS_INTRO.format(f"Runs: {_coded(results)}."), _markdown(readings_table(found))])


def _coded(results: Results) -> str:
    """The conditions of the runs of the study as-coded."""
    return conditions(list(results.of(STUDIES["as-coded"], "paper").values())) or "none yet"


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


def _identical(results: Results) -> str:
    """In how many settings of Fig. 11 all seeds have exactly the same accuracy with both losses, by network."""
    known = entry_results(STUDIES["models-tail"], results, "ours")
    values = {(e.entry.setting.loss, e.entry.group, e.entry.method): e.runs.values(BEST) for e in known}
    parts = []
    for model in dict.fromkeys(e.entry.group for e in known):
        pairs = [
            (v, values["fwd", model, mix]) for (loss, of, mix), v in values.items() if (loss, of) == ("s-nl", model)
        ]
        if pairs := [(a, b) for a, b in pairs if a and len(a) == len(b)]:
            parts.append(f"{sum(a == b for a, b in pairs)} of {len(pairs)} ({model})")
    return f"In Fig. 11, these pairs of rows have exactly the same accuracies: {', '.join(parts)}." if parts else ""


# --- claims ---------------------------------------------------------------------------------------------------------


def _claims(results: Results, order: Sequence[Protocol]) -> list[str]:
    """The verdicts, and folded the rules and the numbers under all protocols."""
    rows, details = [], []
    for claim in published.claims().values():
        unit = "" if claim.unit in ("p", "ratio") else f" {claim.unit}"
        value = "" if claim.value is None else f": {claim.value:g}{unit}"
        one = verdict_on(claim.id, results, order)
        said = "a matter of theory" if one is None else _verdict(*one)
        rows.append([claim.id, f"{claim.text}{value} ({claim.where})", own_tables(claim.id), said])
        rule = CHECKS[claim.id].rule if claim.id in CHECKS else ""
        alike: dict[Verdict, list[str]] = {}
        for protocol in order:
            if (verdict := judge(claim.id, results, protocol)) is not None and verdict.word not in UNKNOWN:
                alike.setdefault(verdict, []).append(protocol)
        details += [[claim.id, rule, ", ".join(of), f"**{v.text}**: {v.evidence}"] for v, of in alike.items()]
    made = [_markdown(Table("", ["", "statement", "its own tables and theory", "our runs"], rows, 4))]
    if details:
        table = Table("", ["", "holds if", "protocol", "verdict and numbers"], details, 4)
        made += [DETAILS, _folded("All verdicts and numbers", [table])]
    return made


def _verdict(protocol: Protocol, verdict: Verdict) -> str:
    if verdict.word in UNKNOWN:
        return f"{verdict.word}: {verdict.evidence}" if verdict.word != "not run" else "not run"
    return f"**{verdict.text}** ({protocol}): {verdict.brief or verdict.evidence}"


# --- tables and figures ---------------------------------------------------------------------------------------------


def _all_studies(results: Results, links: Links, order: Sequence[Protocol]) -> list[str]:
    """A section for each study and protocol that can be compared, the nearest protocol first."""
    parts = []
    for study in STUDIES.values():
        for protocol in sorted(study.protocols, key=order.index):
            if _has_section(study, _runs_of(study, results, protocol), results, protocol):
                parts.append(_section(study, results, protocol, links))
    return parts or ["Nothing can be compared yet.\n"]


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
    """What all settings have in common, the conditions of the runs, and the note of the study."""
    known = list(results.of(study, protocol).values())
    shared = common(entry_results(study, results, protocol, only_run=True)) if study.runner != "gradients" else ""
    parts = [f"All: {shared}." if shared else "", f"Runs: {conditions(known)}.", study.note]
    return [" ".join(filter(None, parts)) + "\n"]


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
    rows = []
    for study in STUDIES.values():
        known = {protocol: progress(study, results, protocol) for protocol in study.protocols}
        cells = [f"{known[p].started} of {known[p].settings}" if p in known else "" for p in PROTOCOLS]
        rows.append([study.name, study.source, study.title, _published_run(study, results), *cells])
    header = ["study", "in the paper", "title", "published numbers run", *(f"settings run, {p}" for p in PROTOCOLS)]
    return "\n".join([ADD, _used(results), _markdown(Table("", header, rows, 3))])


def _published_run(study: Study, results: Results) -> str:
    """How many of its published numbers have a run under some protocol: ``38 of 120``; '' if nothing was published."""
    find = results.find_noise if study.runner == "noise" else results.find
    wanted = [entry for entry in study.entries if entry.published is not None]
    run = [entry for entry in wanted if any(find(entry.setting, protocol).rows for protocol in PROTOCOLS)]
    return f"{len(run)} of {len(wanted)}" if wanted else ""


def _used(results: Results) -> str:
    """What the runs really used: number, device, precision, length, seeds, held-out share, encoders."""
    rows = results.rows
    hours = sum(row.get("train_seconds") or 0.0 for row in rows) / 3600
    devices = sorted({str(row["device"]).partition(" (")[0] for row in rows if row.get("device")})
    first = counted(len(rows), "run")
    first += f" on {' and '.join(devices)}: {hours:.1f} hours of training" * bool(devices)
    first += f"; {counted(len(results.noise), 'noise ratio')} counted without training" * bool(results.noise)
    more = f" {conditions([Runs(tuple(rows))])}." if rows else ""
    return f"{first}.{more} What bf16 changes is measured in the [notes](notes/speed.md).\n"
