"""Questions to a table of runs: mean and standard deviation over seeds, by any options."""

import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from complementary.errors import UserError, one_of
from complementary.losses import LOSSES
from complementary.mix import MIXERS
from complementary.models import MODELS
from complementary.store import OPTIONS, Index, Row, kinds

NATURAL: dict[str, list[str]] = {"loss": list(LOSSES), "mix": list(MIXERS), "model": list(MODELS)}


@dataclass(frozen=True)
class Question:
    """What is asked. ``where``: option -> values that count; all others name options, or figures (``value``)."""

    where: dict[str, list[Any]] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    value: tuple[str, ...] = ("accuracy_last",)

    @property
    def keys(self) -> tuple[str, ...]:
        """All options by which runs are grouped, in order."""
        return (*self.by, *self.rows, *self.columns)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of ``count`` values; no deviation of a single one."""

    mean: float
    deviation: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """That of one value or more."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return Spread(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only: their keys, and the spread of each value (None: nobody has it)."""

    keys: dict[str, Any]
    spreads: dict[str, Spread | None]


@dataclass(frozen=True)
class Answer:
    """The groups, in order, and the question with its blanks filled in."""

    question: Question
    groups: list[Group]

    def levels(self, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """The combinations of values that these keys have, in order."""
        found = {tuple(group.keys[name] for name in names) for group in self.groups}
        return sorted(found, key=lambda values: _ranks(self.question, names, values))


def parse_where(terms: Sequence[str]) -> dict[str, list[Any]]:
    """``["mix=icm,micm", "long-tail=100"]`` -> ``{"mix": ["icm", "micm"], "long_tail": [100.0]}``."""
    where: dict[str, list[Any]] = {}
    for term in terms:
        name, equals, values = term.partition("=")
        if not equals or not values:
            raise UserError(f"--where {term!r} cannot be read; write OPTION=VALUE or OPTION=VALUE,VALUE.")
        name = option(name)
        where.setdefault(name, []).extend(_value(name, text) for text in values.split(","))
    return where


def option(name: str) -> str:
    """The flat name of an option, however it is written (``long-tail``)."""
    return one_of("The option", name.strip().removeprefix("--").replace("-", "_"), OPTIONS)


def _value(name: str, text: str) -> Any:
    """The value that ``text`` means for this option; "none" is None where that is allowed."""
    allowed = kinds(name)
    if type(None) in allowed and text.lower() == "none":
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if {int, float, bool} & set(allowed):
        try:
            return float(text)
        except ValueError:
            raise UserError(f"--where {name}={text}: {text!r} is not a value of that option.") from None
    return text


def ask(index: Index, question: Question) -> Answer:
    """Answer a question; never by averaging over options that the question does not name."""
    rows = _chosen(index, question.where)
    for name in question.value:
        one_of("The value", name, [column for column in index.columns if column not in OPTIONS])
    if not question.keys:
        varied = tuple(name for name in OPTIONS if name != "seed" and len({row[name] for row in rows}) > 1)
        question = Question(question.where, varied or ("loss", "mix"), (), (), question.value)
    members = _members(rows, question)
    _refuse_mixtures(rows, question)
    groups = [_group(question, keys, runs) for keys, runs in members.items()]
    groups.sort(key=lambda group: _ranks(question, question.keys, tuple(group.keys.values())))
    return Answer(question, groups)


def _chosen(index: Index, where: dict[str, list[Any]]) -> list[Row]:
    rows = index.select(where)
    if not rows:
        everything = index.select()
        if not everything:
            raise UserError("There is no result of a training run here; name folders of runs, or their result.json.")
        there = "; ".join(f"{name} is {_listed(row[name] for row in everything)}" for name in where)
        raise UserError(f"No result is as --where asks; in these {len(everything)} {there}.")
    return rows


def _members(rows: Sequence[Row], question: Question) -> dict[tuple[Any, ...], list[Row]]:
    """The runs of each group."""
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[key] for key in question.keys), []).append(row)
    return members


def _varied(rows: Sequence[Row], question: Question, among: Iterable[str] = OPTIONS) -> dict[str, set[Any]]:
    """The options in which runs of one group differ, besides their seed, and the values that they have there."""
    varied: dict[str, set[Any]] = {}
    for runs in _members(rows, question).values():
        for name in among:
            values = {row[name] for row in runs}
            if len(values) > 1 and name != "seed":
                varied.setdefault(name, set()).update(values)
    return varied


def _refuse_mixtures(rows: Sequence[Row], question: Question) -> None:
    """Raise if runs of one group differ in more than their seed, naming every such option and a way out."""
    varied = _varied(rows, question)
    if not varied:
        return
    said = "; ".join(f"{name} = {_listed(values)}" for name, values in varied.items())
    choice, kept = f"--where {next(iter(varied))}=...", _narrowed(rows, question, tuple(varied))
    terms = [_term(name, values) for name, values in (question.where | kept).items()]
    if kept and None not in terms:
        pasted = shlex.join(term for term in terms if term)
        choice = f"--where {pasted} (that keeps {len(_that_have(rows, kept))} of {len(rows)} runs)"
    apart = " ".join([*question.rows, *_telling(rows, question, tuple(varied))])
    raise UserError(
        f"The rows average over {said}; choose by {choice}, or tell all runs apart by --rows {apart} (or --columns, "
        "--by)."
    )


def _telling(rows: Sequence[Row], question: Question, varied: tuple[str, ...]) -> list[str]:
    """As few of the varied options as tell all mixtures apart; of those that go together, the first."""
    needed = list(varied)
    for name in reversed(varied):
        fewer = [other for other in needed if other != name]
        if not _varied(rows, replace(question, rows=(*question.rows, *fewer)), varied):
            needed = fewer
    return needed


# --- a narrower question that has an answer -----------------------------------------------------------

Choice = dict[str, list[Any]]  # further terms of a --where, with one value each
TRIALS = 40  # first terms that are tried, from the one that keeps the most runs


def _narrowed(rows: Sequence[Row], question: Question, varied: tuple[str, ...]) -> Choice:
    """A short choice after which no group is a mixture; {} if none can be written.

    Found greedily from many first terms: the shortest that keeps more than half as many runs as the best of them.
    """
    starts = [{name: [value]} for name, value in _commonest(rows, varied)[:TRIALS]]
    found = [choice for start in starts if (choice := _completed(rows, question, start, varied))]
    counts = [len(_that_have(rows, choice)) for choice in found]
    ranked = [(len(found[i]), -count, i) for i, count in enumerate(counts) if 2 * count > max(counts)]
    return found[min(ranked)[2]] if ranked else {}


def _completed(rows: Sequence[Row], question: Question, choice: Choice, varied: tuple[str, ...]) -> Choice:
    """The choice and as many further terms as it takes, without those that are not needed after all."""
    while mixed := _varied(remaining := _that_have(rows, choice), question, varied):
        terms = _commonest(remaining, tuple(mixed))
        if not terms:
            return {}
        choice = choice | {terms[0][0]: [terms[0][1]]}
    for name in list(choice):
        fewer = {other: values for other, values in choice.items() if other != name}
        if fewer and not _varied(_that_have(rows, fewer), question, varied):
            choice = fewer
    return choice


def _commonest(rows: Sequence[Row], names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Options with a value that a --where can hold, from the one that most runs have."""
    counts = Counter((name, row[name]) for name in names for row in rows)
    return [pair for pair, _ in counts.most_common() if _term(pair[0], [pair[1]])]


def _that_have(rows: Sequence[Row], choice: Choice) -> list[Row]:
    return [row for row in rows if all(row[name] in values for name, values in choice.items())]


def _term(name: str, values: list[Any]) -> str | None:
    """``mix=icm,micm`` as `parse_where` reads it; None if it would read something else."""
    shown = [
        repr(value) if isinstance(value, float) and float(show(value)) != value else show(value) for value in values
    ]
    term = f"{name}={','.join(shown)}"
    try:
        return term if parse_where([term]) == {name: values} else None
    except UserError:
        return None


def _group(question: Question, keys: tuple[Any, ...], runs: list[Row]) -> Group:
    spreads: dict[str, Spread | None] = {}
    for name in question.value:
        values = [row[name] for row in runs if row[name] is not None]
        if any(isinstance(value, str) for value in values):
            raise UserError(f"The value {name} is not a number; choose another, such as accuracy_last.")
        spreads[name] = Spread.of(values) if values else None
    return Group(dict(zip(question.keys, keys, strict=True)), spreads)


def _ranks(question: Question, names: tuple[str, ...], values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [_rank(question, name, value) for name, value in zip(names, values, strict=True)]


def _rank(question: Question, name: str, value: Any) -> tuple[Any, ...]:
    """Where a value stands among its likes: as --where lists them, as the package does, or by size."""
    listed = question.where.get(name) or NATURAL.get(name, [])
    if value in listed:
        return (0, listed.index(value))
    return (1, value is None, isinstance(value, str), value if value is not None else 0)


def _listed(values: Any) -> str:
    return ", ".join(sorted({show(value) for value in values}))


def show(value: Any) -> str:
    """A value of an option for people, written as --where wants it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
