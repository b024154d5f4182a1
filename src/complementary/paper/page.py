"""docs/reproduction.md: what was run, and what it says about each published number and claim; and the status table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from complementary.errors import UserError
from complementary.paper import published
from complementary.paper.claims import CHECKS, judge
from complementary.paper.compare import (
    entry_results,
    heading,
    lengths,
    show_published,
    show_signed,
    tables_of,
    welch_of,
)
from complementary.paper.protocols import DIFFERENCES
from complementary.paper.published import EPOCHS, RUNS
from complementary.paper.store import Progress, Results, progress
from complementary.paper.studies import PROTOCOLS, STUDIES, Protocol, Study, plain_name, variant_name
from complementary.reports import tables
from complementary.reports.tables import Table, counted

Links = Mapping[tuple[str, Protocol], str]  # study and protocol -> the address of a figure

INTRO = f"""# Reproduction of the paper

Tables and figures of "Intra-Cluster Mixup" (Mai and Lin, TMLR 2026) are studies of `cll paper`. This page is generated
from the stored results by `cll paper page`. What was not run is blank, and there is no verdict on it.

There are two protocols. The text of the paper and its published code differ, so each follows one of them:

{DIFFERENCES}

SCEL selects an epoch without any true label. All 10,000 test images are used. The JSON file of each run contains its
whole configuration.
"""
READINGS_INTRO = """Protocol paper, S-NL at ρ = 100: best accuracy on the test set, and its difference from the
published number. A reading reproduces the paper if all methods come near. All variants: study as-coded below.
"""
SAME_LOSS = f"""With uniform labels the loss of FWD is that of S-NL plus a constant: -log((1 - p) / (K - 1)), where p is
the probability of the excluded class. Without mixing both must learn the same, except for what the published code adds
(it counts the matrix from the true labels). Published ({RUNS} runs each) and ours:
"""
CLAIMS = f"""The third column compares the paper with its own tables and with theory. The last two are computed from our
results. *So far*: from fewer than {RUNS} seeds or {EPOCHS} epochs.
"""


def write_page(results: Results, links: Links | None = None) -> str:
    """The whole page as Markdown, with figures under the tables."""
    parts = [INTRO, "## What was run\n", _overview(results)]
    parts += ["## Which reading of the method gives the published numbers?\n", _readings(results)]
    parts += ["## Two losses that are the same\n", SAME_LOSS, _same_loss(results)]
    parts += ["## Claims\n", CLAIMS, _claims(results)]
    parts += ["## Tables\n", *_all_tables(results, links or {})]
    return "\n".join(parts)


def check_page(text: str, path: Path) -> None:
    """Raise if ``path`` does not contain exactly this page."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} does not match the stored results; generate it again.")


def _markdown(*made: Table) -> str:
    return tables.markdown("", made).lstrip("\n")


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
    devices = sorted({str(row["device"]).partition(" (")[0] for row in results.rows if row.get("device")})
    hours = sum(row.get("train_seconds") or 0.0 for row in results.rows) / 3600
    low = sum(row.get("precision") == "bf16" for row in results.rows)
    first = counted(len(results.rows), "run") + f", {low} of them in bfloat16" * bool(low)
    first += f", on {' and '.join(devices)}: {hours:.1f} hours of training" * bool(devices)
    first += f"; {counted(len(results.noise), 'noise ratio')} counted without training" * bool(results.noise)
    header = ["study", "in the paper", "published numbers"]
    header += [f"{what}, {protocol}" for protocol in PROTOCOLS for what in ("settings run", "seeds", "epochs")]
    rows, waiting = [], []
    for study in STUDIES.values():
        known = [progress(study, results, protocol) for protocol in PROTOCOLS]
        if any(now.started for now in known):
            cells = [[f"{n.started} of {n.settings}", _seeds(n), ", ".join(map(str, n.epochs))] for n in known]
            rows.append(
                [study.name, study.source, str(len(study.published) or ""), *(c for each in cells for c in each)]
            )
        else:
            waiting.append(_waiting(study))
    parts = [f"{first}.\n", *([_markdown(Table("", header, rows, 2))] if rows else [])]
    parts += ["Not run:\n", "\n".join(waiting) + "\n"] if waiting else []
    return "\n".join(parts) + _origins(results)


def _waiting(study: Study) -> str:
    published_ = f", {counted(len(study.published), 'published number')}" if study.published else ""
    return f"- {study.name} ({study.source}): {study.title}; {counted(len(study.entries), 'setting')}{published_}"


def _origins(results: Results) -> str:
    """Where the clusters came from."""
    origins: dict[str, list[int]] = {}
    for place, rows in enumerate((results.rows, results.noise)):
        for row in rows:
            if row["mix"] in ("icm", "micm"):
                seed = "the seed of the run" if row["encoder_seed"] is None else f"seed {row['encoder_seed']}"
                own = f"{row['encoder']}, pretrained for {row['pretrain_epochs']} epochs with {seed}"
                name = own if row["assignments"] is None else f"`{row['assignments']}`"
                origins.setdefault(name, [0, 0])[place] += 1
    if not origins:
        return ""
    lines = []
    for name, counts in sorted(origins.items()):
        uses = [counted(n, what) for n, what in zip(counts, ("run", "noise ratio"), strict=True) if n]
        lines.append(f"- {name} ({', '.join(uses)})")
    return "\nClusters:\n\n" + "\n".join(lines) + "\n"


# --- the first question ---------------------------------------------------------------------------------------------


READINGS = {
    "none": plain_name("none", True),
    "mixup": plain_name("mixup", True),
    "icm, matched label weights": variant_name("matched", "batch", True),
    "icm, swapped label weights": variant_name("swapped", "batch", True),
}


def _readings(results: Results) -> str:
    """The main methods as in the published code, with and without augmentation, beside the published numbers."""
    study, rows = STUDIES["as-coded"], []
    found = {(each.entry.where, each.entry.method): each for each in entry_results(study, results, "paper")}
    for where in dict.fromkeys(where for where, _ in found):
        known = [found[where, method] for method in READINGS.values()]
        if any(each.ours for each in known):
            cells = [f"{100 * e.ours.mean:.2f} ({show_signed(e.difference)})" if e.ours else "" for e in known]
            rows.append([where[0], where[-1] or "crop and flip", *cells])
    if not rows:
        return "Not run yet.\n"
    return f"{READINGS_INTRO}\n{_markdown(Table('', ['data', 'augmentation', *READINGS], rows, 2))}"


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
    header = ["data", "long tail", "S-NL", "FWD", "difference", "p (Welch)", "ours: difference", "ours: epochs"]
    return _markdown(Table("", header, rows, 2))


# --- claims and tables ----------------------------------------------------------------------------------------------


def _claims(results: Results) -> str:
    rows = []
    for claim in published.claims().values():
        verdicts = [judge(claim.id, results, protocol) for protocol in PROTOCOLS]
        unit = "" if claim.unit in ("p", "ratio") else f" {claim.unit}"
        own = "" if claim.verdict == "-" else f"{claim.verdict}: {claim.check}"
        text = f"{claim.text}: {claim.value:g}{unit} ({claim.where})"
        shown = ["" if v is None else f"**{v.word}** {v.evidence}".strip() for v in verdicts]
        rows.append([claim.id, text, own, CHECKS[claim.id].rule if claim.id in CHECKS else "", *shown])
    return _markdown(Table("", ["", "claim", "against its own tables and theory", "holds if", *PROTOCOLS], rows, 6))


def _all_tables(results: Results, links: Links) -> list[str]:
    parts = []
    for study in STUDIES.values():
        for protocol in PROTOCOLS:
            if any(runs.rows for runs in results.of(study, protocol).values()):
                text = heading(study, results, protocol, only_run=True)
                made = _markdown(*tables_of(study, results, protocol, only_run=True))
                link = links.get((study.name, protocol))
                figure = [f"![{study.title}, protocol {protocol}]({link})\n"] if link else []
                parts.append("\n".join([f"### {study.name}, protocol {protocol}\n", text + "\n", made, *figure]))
    return parts or ["Nothing was run yet.\n"]
