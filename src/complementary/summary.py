"""Questions to a table of runs: mean and standard deviation over seeds, by any options."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[key] for key in question.keys), []).append(row)
    _refuse_mixtures(members.values(), question)
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


def _refuse_mixtures(groups: Any, question: Question) -> None:
    """Raise if runs of one group differ in more than their seed, naming every such option."""
    loose = [name for name in OPTIONS if name != "seed" and name not in question.keys]
    varied: dict[str, set[Any]] = {}
    for runs in groups:
        for name in loose:
            values = {row[name] for row in runs}
            if len(values) > 1:
                varied.setdefault(name, set()).update(values)
    if varied:
        said = "; ".join(f"{name} = {_listed(values)}" for name, values in varied.items())
        first = next(iter(varied))
        raise UserError(
            f"The rows average over {said}; choose by --where {first}=..., or tell them apart by --rows, --columns or "
            f"--by {first}."
        )


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
