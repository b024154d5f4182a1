"""Join examples and answers, and decide which classes are excluded where several answers disagree.

Each annotator has one vote per example and class; an answer that contradicts an earlier one of the same annotator
replaces it, and a repeated one counts once. An answer without a name is a vote of its own. A class is excluded if more
votes are against it than for it; "yes, a cat" is for cat and against all others. If all classes would be excluded,
those with the fewest votes against them are kept.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from complementary.data.answers import Answer, AnswerTable, normalize_key
from complementary.data.dataset import Answers
from complementary.data.problems import Problems
from complementary.errors import UserError
from complementary.labels import unknown_class


@dataclass(frozen=True)
class Matched:
    """Examples with valid answers.

    Attributes:
        index: Positions of the examples, int64 [M].
        excluded: Complementary labels, uint8 [M, K], or None if the table has true classes only.
        truth: True classes, int64 [M], or None.
        answers: The answers that count, or None if there is one per example and nothing else is known about it.
        counts: How many answers there were, and what happened to them.
    """

    index: NDArray[np.int64]
    excluded: NDArray[np.uint8] | None
    truth: NDArray[np.int64] | None
    answers: Answers | None = None
    counts: dict[str, int] = field(default_factory=dict)


def match(keys: Sequence[str], table: AnswerTable, classes: Sequence[str], problems: Problems, what: str) -> Matched:
    """Find, check and combine the answers about each example.

    Args:
        keys: Names of the examples. The table may give the whole name, only its last part or that without the suffix if
            it is unique, or additional parent folders.
        table: The answers.
        classes: Names of the classes.
        problems: Where problems are recorded.
        what: What the examples are called there ("train images").
    """
    names = [normalize_key(key) for key in keys]
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in table.answers:
        groups[answer.key].append(answer)
    owners = _find_owners(names, groups)
    if names and not owners:
        raise UserError(
            f"None of the {len(groups):,} names in the table is one of the {len(names):,} {what}: the table has "
            f"{next(iter(groups))!r}, the examples are called {keys[0]!r}. Give the folder that the names refer to."
        )
    repeated = {name for name, count in Counter(names).items() if count > 1}
    number = {name: k for k, name in enumerate(classes)}
    index, truths, used_answers = list[int](), list[str](), list[list[Answer]]()
    excluded = np.zeros((len(names), len(classes)), np.uint8)  # of those found, in order; there may be millions
    counts: Counter[str] = Counter()
    for i, (key, name) in enumerate(zip(keys, names, strict=True)):
        if name in repeated:
            problems.add(f"{what} with the same name", key)
        elif name not in owners:
            problems.add(f"{what} without an answer", key, "unlabeled")
        elif (combined := _combine(key, groups[owners[name]], table, number, problems, counts)) is not None:
            excluded[len(index), combined.excluded] = 1
            index.append(i)
            truths.append(combined.truth)
            used_answers.append(combined.answers)
    used = set(owners.values())
    for name, group in groups.items():
        if name not in used:
            problems.add(f"answers that match none of the {what}", name + group[0].where, "unmatched")
    truth = np.array([number[name] for name in truths], np.int64) if table.has_truth else None
    answers = _table_of(used_answers, number) if table.has_answers else None
    known = excluded[: len(index)] if table.has_answers else None
    return Matched(np.array(index, np.int64), known, truth, answers, dict(counts))


def _find_owners(names: Sequence[str], groups: dict[str, list[Answer]]) -> dict[str, str]:
    """Example name -> key of its answers: by the whole name, else if one name is the unique end of the other."""
    owners = {name: name for name in names if name in groups}
    last_parts = Counter(name.rpartition("/")[2] for name in names)
    for name in names:  # the table gives only the last part
        last = name.rpartition("/")[2]
        if name not in owners and last_parts[last] == 1 and last in groups:
            owners[name] = last
    known, candidates = set(names), defaultdict(list)
    for key in groups:  # the table gives folders above the imported one
        end = key
        while end not in known and "/" in end:
            end = end.partition("/")[2]
        if end in known and end not in owners:
            candidates[end].append(key)
    owners |= {name: found[0] for name, found in candidates.items() if len(found) == 1}
    if len(owners) < len(known):
        owners |= _find_similar([name for name in names if name not in owners], set(groups) - set(owners.values()))
    return owners


def _find_similar(names: Sequence[str], keys: set[str]) -> dict[str, str]:
    """Names that differ from one key only in the suffix that the table leaves out, or in upper and lower case."""
    by_key = defaultdict(list)
    for key in keys:
        by_key[key.casefold()].append(key)
    owners: dict[str, str] = {}
    for whole, suffix in ((True, True), (True, False), (False, True), (False, False)):
        by_name = defaultdict(list)
        for name in names:
            part = name.casefold() if whole else name.casefold().rpartition("/")[2]
            by_name[part if suffix else part.rpartition(".")[0]].append(name)
        found = {end: name[0] for end, name in by_name.items() if len(name) == 1 == len(by_key.get(end, ()))}
        owners = {name: by_key[end][0] for end, name in found.items()} | owners
    return owners


# --- several answers about an example ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combined:
    """What the answers about an example say: numbers of excluded classes, true class or "", and answers that count."""

    excluded: list[int]
    truth: str
    answers: list[Answer]


def _combine(
    key: str, group: list[Answer], table: AnswerTable, number: dict[str, int], problems: Problems, counts: Counter[str]
) -> Combined | None:
    """Check and combine the answers about an example; None if it has to be left out."""
    if not _is_valid(key, group, table, number, problems):
        return None
    truth = next((answer.truth for answer in group if answer.truth), "")
    if not table.has_answers:
        return Combined([], truth, [])
    if len(group) == 1 and not group[0].yes and 0 < len(group[0].no) < len(number):  # the most frequent case
        counts["answers"] += group[0].count
        return Combined([number[name] for name in dict.fromkeys(group[0].no)], truth, group)
    if all(not math.isnan(answer.time) for answer in group):
        group = sorted(group, key=lambda answer: answer.time)
    counts["answers"] += sum(answer.count for answer in group)
    counts["ignored"] += sum(answer.ignored for answer in group)
    kept: dict[Any, list[tuple[Answer, dict[int, int]]]] = {}  # by annotator
    statements: Counter[tuple[Any, ...]] = Counter()
    for place, answer in enumerate(group):
        if answer.ignored:
            continue
        said, earlier = _statement(answer, number), kept.setdefault(answer.annotator or place, [])
        agreeing = [each for each in earlier if all(each[1].get(k, sign) == sign for k, sign in said.items())]
        counts["changed"] += len(agreeing) < len(earlier)
        repeated = any(each[1] == said for each in agreeing)
        statement = tuple(sorted(said.items()))
        counts["repeats"] += repeated or (not answer.annotator and statements[statement] > 0)
        statements[statement] += not answer.annotator
        earlier[:] = agreeing if repeated else [*agreeing, (answer, said)]
    used = [answer for each in kept.values() for answer, _ in each]
    votes = [{k: sign for _, said in each for k, sign in said.items()} for each in kept.values()]
    if not used:
        problems.add("examples whose answers are all ignored", key + group[0].where, "note")
        return None
    excluded = _decide(key, votes, list(number), problems, counts)
    return None if excluded is None else Combined(excluded, truth, used)


def _statement(answer: Answer, number: dict[str, int]) -> dict[int, int]:
    """What an answer says about each class: 1 (not this one) or -1 (this one, or one of these)."""
    said = {k: (-1 if name in answer.yes else 1) for name, k in number.items()} if answer.yes else {}
    return said | {number[name]: 1 for name in answer.no}


def _decide(
    key: str, votes: list[dict[int, int]], classes: list[str], problems: Problems, counts: Counter[str]
) -> list[int] | None:
    """The numbers of the classes that a majority excludes; None if nothing is left."""
    margin: Counter[int] = Counter()
    signs: dict[int, set[int]] = defaultdict(set)
    for vote in votes:
        for k, sign in vote.items():
            margin[k] += sign
            signs[k].add(sign)
    excluded = [k for k, votes_against in margin.items() if votes_against > 0]
    contested, what = [k for k, both in signs.items() if len(both) > 1], "both excluded and confirmed"
    if len(excluded) == len(classes):
        least = min(margin.values())
        excluded = [k for k in excluded if margin[k] > least]
        if not excluded:
            problems.add("examples whose answers exclude every class", key, "left out")
            return None
        contested, what = [k for k in margin if margin[k] == least], "excluded, as all classes are, but least often"
    if contested:
        counts["contradictions"] += 1
        kept = ", ".join(name for k, name in enumerate(classes) if k not in set(excluded))
        names = ", ".join(classes[k] for k in sorted(contested))
        text = f"{key}: {names} {what}; possible by majority: {kept}"
        problems.add("examples with contradictory answers (majority decides)", text, "note")
    if not excluded:
        problems.add("examples whose answers cancel each other out", key, "left out")
        return None
    return excluded


def _is_valid(key: str, group: list[Answer], table: AnswerTable, number: dict[str, int], problems: Problems) -> bool:
    before = problems.count("error")
    for answer in group:
        for name in dict.fromkeys(answer.names):
            if name not in number:
                problems.add("unknown class names", f"{key}{answer.where}: {unknown_class(name, list(number))}")
        if both := set(answer.no) & set(answer.yes):
            problems.add("answers that say yes and not", f"{key}{answer.where}: {', '.join(sorted(both))}")
    truths = {answer.truth for answer in group if answer.truth}
    if table.has_truth and not truths:
        problems.add("rows without a true class", key + group[0].where)
    if len(truths) > 1:
        problems.add("rows with contradictory true classes", f"{key} (line {group[0].line} and later)")
    return problems.count("error") == before


def _table_of(groups: list[list[Answer]], number: dict[str, int]) -> Answers | None:
    """The answers about all examples, ``groups`` [M], as one table."""
    if all(len(group) == 1 and not group[0].annotator and math.isnan(group[0].time) for group in groups):
        return None
    answers = [(m, answer) for m, group in enumerate(groups) for answer in group]
    annotators = tuple(sorted({a.annotator for _, a in answers if a.annotator}))
    place = {name: i for i, name in enumerate(annotators)}
    excluded = np.zeros((len(answers), len(number)), np.uint8)
    for row, (_, answer) in zip(excluded, answers, strict=True):
        row[[k for k, sign in _statement(answer, number).items() if sign > 0]] = 1
    return Answers(
        torch.tensor([m for m, _ in answers], dtype=torch.int64),
        torch.from_numpy(excluded),
        torch.tensor([place.get(a.annotator, -1) for _, a in answers], dtype=torch.int64),
        torch.tensor([a.time for _, a in answers], dtype=torch.float64),
        annotators,
    )
