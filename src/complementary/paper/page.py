"""docs/reproduction.md: what was run, what it says of each published number and claim. All of it from a store."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from complementary.errors import UserError
from complementary.paper import published
from complementary.paper.captions import common, lengths
from complementary.paper.claims import judge
from complementary.paper.compare import Line, from_paper, lines
from complementary.paper.protocols import PROTOCOLS, Protocol
from complementary.paper.render import entries_table, heading, show_published, tables_of
from complementary.paper.store import Amount, Results, progress
from complementary.paper.studies import STUDIES, Study, as_coded_method
from complementary.reports import tables
from complementary.reports.tables import Table, counted

Links = Mapping[tuple[str, Protocol], str]  # study and protocol -> the address of a picture

INTRO = """# The paper, reproduced

Every table and figure of "Intra-Cluster Mixup" (Mai and Lin, TMLR 2026) is a study of `cll paper`. This page is made
from the stored results by `cll paper page{options}`. What was not run is blank, and no verdict on it is given.

Two protocols. **ours**: the method as the paper writes it; labels, held-out part and initial weights vary with the
seed, and so do clusters unless they are stored ones; reported are the last epoch and the one that SCEL chose without
any true label, on all 10,000 test images. **paper**: what its published code did (`mix.AS_CODED`, labels of NumPy seed
1126, Adam re-created every epoch), with the best epoch on the test set. Each run's JSON file holds its whole
configuration.
"""
NEAR = 1.0  # points from the published number that count as reproduced
CLAIMS = """The third column checks the paper against its own tables and theory. The last two are computed from our
runs, by the rules below the table.
"""


def write_page(
    results: Results,
    stores: Sequence[Path] = (),
    amount: Amount | None = None,
    links: Links | None = None,
    options: str = "",
) -> str:
    """The whole page as Markdown; ``links``: pictures that stand under the tables, ``options``: how it was made."""
    intro = INTRO.format(options=options)
    parts = [intro, "## What was run\n", _overview(results, stores, amount or Amount())]
    parts += ["## Which reading of the method gives the published numbers?\n", _question(results)]
    parts += ["## Two losses that are one\n", _twins(results)]
    parts += ["## Claims\n", CLAIMS, _claims(results), _rules(results)]
    parts += ["## Tables\n", *_all_tables(results, links or {}), _left(results)]
    return "\n".join(parts)


def _markdown(found: Sequence[Table]) -> str:
    return tables.markdown("", found).lstrip("\n")


# --- what was run -------------------------------------------------------------------------------------


def _overview(results: Results, stores: Sequence[Path], amount: Amount) -> str:
    devices = sorted({str(row["device"]).partition(" (")[0] for row in results.rows if row.get("device")})
    spent = sum(row.get("train_seconds") or 0.0 for row in results.rows) / 3600
    first = counted(len(results.rows), "run") + (
        f" on {', '.join(devices)}, {spent:.1f} hours of training." if devices else "."
    )
    first += f" {counted(len(results.measured), 'noise ratio')}, counted without training." if results.measured else ""
    header = ["study", "in the paper", "published numbers"]
    header += [f"{what}, {protocol}" for protocol in PROTOCOLS for what in ("settings run", "seeds", "epochs")]
    rows = [_row(study, results, stores, amount) for study in STUDIES.values()]
    return f"{first}\n\n" + _markdown([Table("", header, rows, 2)]) + _origins(results)


def _row(study: Study, results: Results, stores: Sequence[Path], amount: Amount) -> list[str]:
    row = [study.name, study.source, str(len(study.compared) or "")]
    for protocol in PROTOCOLS:
        now = progress(study, results, protocol, amount, stores)
        least, most = now.seeds
        seeds = "" if not now.started else f"{least}" if least == most else f"{least} to {most}"
        row += [f"{now.started} of {now.entries}", seeds, ", ".join(map(str, now.epochs))]
    return row


def _origins(results: Results) -> str:
    """Where the clusters came from."""
    origins: dict[str, list[int]] = {}
    for place, rows in enumerate((results.rows, results.measured)):
        for row in rows:
            if row["mix"] in ("icm", "micm"):
                seed = "the run's seed" if row["encoder_seed"] is None else f"seed {row['encoder_seed']}"
                own = f"{row['encoder']}, pretrained for {row['pretrain_epochs']} epochs with {seed}"
                name = own if row["assignments"] is None else f"`{row['assignments']}`"
                origins.setdefault(name, [0, 0])[place] += 1
    if not origins:
        return ""
    said = [
        f"{name} ({', '.join(counted(n, what) for n, what in zip(counts, ('run', 'noise ratio'), strict=True) if n)})"
        for name, counts in sorted(origins.items())
    ]
    return f"\nClusters: {'; '.join(said)}.\n"


# --- the first question -------------------------------------------------------------------------------


def _question(results: Results) -> str:
    """The variants of ICM, and which of them come near the published number."""
    said = []
    for protocol in PROTOCOLS:
        found = [line for line in lines(STUDIES["as-coded"], results, protocol) if line.ours is not None]
        for data in dict.fromkeys(line.entry.setting.data for line in found):
            said.append(_nearest([line for line in found if line.entry.setting.data == data], protocol))
    return "\n".join(said) if said else "Not run yet: `cll paper as-coded`.\n"


def _nearest(found: Sequence[Line], protocol: Protocol) -> str:
    table, where = _markdown([entries_table(found, ["method"], list(found[0].figures))]), common(found)
    ranked = sorted(
        (
            (abs(line.difference), line)
            for line in found
            if line.entry.setting.mix == "icm" and line.difference is not None
        ),
        key=lambda pair: pair[0],
    )
    if not ranked:
        return f"Protocol {protocol}, {where}:\n\n{table}"
    near = "; ".join(f"**{line.entry.method}**" for off, line in ranked if off <= NEAR) or "none"
    off, best = ranked[0][1].difference, ranked[0][1].entry
    wanted = best.published.mean if best.published else "-"
    said = f"Protocol {protocol}, {where}: within {NEAR:g} point of {wanted}: {near}. Nearest: {best.method}"
    said += f" ({off:+.2f})"
    return f"{said}, of {len(ranked)} that were run.{_sharing(found)}\n\n{table}"


def _sharing(found: Sequence[Line]) -> str:
    """How much of the gain is the sharing of labels, and how much the mixing of images."""
    known = {line.entry.method: 100 * line.ours.mean for line in found if line.ours is not None}
    said, plain = "", known.get("none, Adam re-created")
    for weights in ("matched", "swapped"):
        shared = known.get(f"labels shared only, {weights}")
        mixed = known.get(as_coded_method(weights, "batch", True))
        if plain is not None and shared is not None and mixed is not None:
            said += (
                f" Over no mixing, with {weights} weights: labels shared, images left alone {shared - plain:+.2f} "
                f"points; images mixed as well {mixed - plain:+.2f}."
            )
    return said


# --- theory -------------------------------------------------------------------------------------------

TWINS = """With uniform labels the loss of FWD is that of S-NL plus a constant: -log((1 - p) / (K - 1)), p being the
probability of the excluded class. Without mixing both must learn the same, up to what the published code adds (it
counts the matrix from the true labels). Published, three runs each:
"""


def _twins(results: Results) -> str:
    """S-NL and FWD without mixing, as published, and ours where both were run."""
    ours = {
        (line.entry.setting.data, line.entry.setting.tail, line.entry.setting.loss): line
        for line in lines(STUDIES["main"], results, "ours")
        if line.entry.method == "none"
    }
    rows = []
    for data, tail in dict.fromkeys(place[:2] for place in ours):
        pair = [ours[data, tail, loss] for loss in ("fwd", "s-nl")]
        test = from_paper(*(line.entry.published for line in pair))
        found = [line.ours for line in pair]
        both = f"{100 * (found[0].mean - found[1].mean):+.2f}" if found[0] and found[1] else ""
        if test is not None and test.p is not None:
            shown = [show_published(line.entry.published) for line in reversed(pair)]
            epochs = " and ".join(map(str, lengths(pair))) if both else ""
            rows.append([data, f"{tail:g}", *shown, f"{test.difference:+.2f}", f"{test.p:.2g}", both, epochs])
    header = ["data", "long tail", "S-NL", "FWD", "difference", "p (Welch)", "ours: difference", "ours: epochs"]
    return TWINS + "\n" + _markdown([Table("", header, rows, 2)])


# --- claims -------------------------------------------------------------------------------------------


def _claims(results: Results) -> str:
    rows = []
    for claim in published.claims():
        unit = "" if claim.unit in ("-", "p", "ratio") else f" {claim.unit}"
        verdicts = [judge(claim, results, protocol) for protocol in PROTOCOLS]
        shown = [f"{'' if v.word == 'a setting' else f'**{v.word}** '}{v.evidence}".strip() for v in verdicts]
        own = "" if claim.verdict == "-" else f"{claim.verdict}: {claim.check}"
        rows.append([claim.id, f"{claim.text}: {claim.value}{unit} ({claim.where})", own, *shown])
    return _markdown([Table("", ["", "claim", "against its own tables and theory", *PROTOCOLS], rows, 5)])


def _rules(results: Results) -> str:
    rules = [(claim.id, judge(claim, results, "ours").rule) for claim in published.claims()]
    firm = f"{published.claim('P21').value} seeds or {published.claim('P18').value} epochs"
    said = "; ".join(f"{id}: {rule}" for id, rule in rules if rule)
    return f"*So far*: from fewer than the published {firm}. Holds if: {said}.\n"


# --- tables -------------------------------------------------------------------------------------------


def _all_tables(results: Results, links: Links) -> list[str]:
    said = []
    for study in STUDIES.values():
        for protocol in PROTOCOLS:
            parts = [_tables(study, results, protocol), _picture(study, protocol, links)]
            if any(parts):
                said.append("\n".join([f"### {study.name}, protocol {protocol}\n", *filter(None, parts)]))
    return said or ["Nothing was run yet.\n"]


def _tables(study: Study, results: Results, protocol: Protocol) -> str:
    known = any(runs.rows for runs in results.of(study, protocol).values())
    if not known or study.plot == "gradients":
        return ""
    found = _markdown(tables_of(study, results, protocol, only_run=True))
    return f"{heading(study, results, protocol, only_run=True)}\n\n{found}"


def _picture(study: Study, protocol: Protocol, links: Links) -> str:
    link = links.get((study.name, protocol))
    return f"![{study.title}, protocol {protocol}]({link})\n" if link else ""


def _left(results: Results) -> str:
    """What nobody ran yet, under either protocol."""
    left = []
    for study in STUDIES.values():
        known = [results.of(study, protocol) for protocol in PROTOCOLS]
        missing = sum(not any(runs[entry].rows for runs in known) for entry in study.entries)
        if missing and study.plot != "gradients":
            left.append(f"{study.name} ({missing} of {len(study.entries)} settings)")
    return f"## Left to run\n\n{', '.join(left)}.\n" if left else "Every setting was run at least once.\n"


def check_page(text: str, path: Path, options: str = "") -> None:
    """Raise if ``path`` does not hold exactly this page; ``options``: with which it is made."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{path} is not what the store gives; make it anew with 'cll paper page --out {path}{options}'."
        )
