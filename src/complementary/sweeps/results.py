"""Results of many runs: find the files, check them, select runs, and summarize them over seeds.

Every finished run is one JSON file: result.json in its folder, or a copy under any name. These files are the store;
a few hundred are read in a fraction of a second. This module does not import torch.

    >>> from complementary.sweeps.results import Query, parse_where
    >>> Query(parse_where(["mix=icm,micm", "long_tail=100"]), rows=("loss",), columns=("mix",)).where
    {'mix': ['icm', 'micm'], 'long_tail': [100.0]}
"""

import csv
import dataclasses
import glob
import json
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from complementary.config import Config, LossName, MixerName, ModelName, hints_of, options_of
from complementary.errors import UserError, one_of
from complementary.files import is_altered, reason_of
from complementary.reports import tables
from complementary.reports.tables import Spread, Table, is_percent, show_spread

OPTIONS = tuple(options_of(Config))
ENCODER_USED = "encoder_used"  # the encoder that ``encoder = auto`` found; selects and groups runs as an option does
Row = dict[str, Any]
"""One run, flat: every option, encoder_used, every metric of the result, device, config_hash and path."""


class Damaged(UserError):
    """A result file was altered or is incomplete. ``fact`` states the problem without advice."""

    def __init__(self, path: Path, reason: str) -> None:
        self.fact = f"{path} is damaged: {reason}."
        super().__init__(f"{self.fact} Restore it, delete it, or skip damaged files.", "skip_damaged")


class OtherVersion(Damaged):
    """A complete result file whose configuration has options that this version does not know."""

    def __init__(self, path: Path, options: Iterable[str]) -> None:
        named = ", ".join(sorted(options))
        self.fact = f"{path} was written by another version: this one has no option {named}."
        UserError.__init__(
            self, f"{self.fact} Read it with that version, run it again, or skip such files.", "skip_damaged"
        )


class NotAResult(UserError):
    """A JSON file that is valid, but not the result of a training run."""


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredResults:
    """The runs found in some files."""

    rows: list[Row]
    repeated: int = 0
    """How many files hold a configuration that an earlier file holds too; the first one counts."""
    skipped: list[str] = field(default_factory=list)
    """Messages about damaged files that were skipped."""

    def select(self, where: Mapping[str, Sequence[Any]]) -> list[Row]:
        """The rows whose options have one of the given values each."""
        return [row for row in self.rows if all(row[name] in values for name, values in where.items())]

    def metrics(self) -> list[str]:
        """All names in the rows that do not select or group runs."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if name not in (*OPTIONS, ENCODER_USED)]


def read_results(paths: Sequence[str | Path], skip_damaged: bool = False) -> StoredResults:
    """Read all results among ``paths``.

    Args:
        paths: Result files, folders (searched recursively), or patterns such as ``runs/*``. JSON files of another kind
            are ignored in a folder; named directly, they are an error.
        skip_damaged: Skip damaged files instead of raising `Damaged`.

    Returns:
        The runs in the order of their files; a configuration that is stored several times counts once.
    """
    found, repeated, skipped = dict[str, Row](), 0, []
    named = {Path(path) for path in paths}
    for path in find(paths):
        try:
            row = row_of(path)
        except NotAResult:
            if path in named:
                raise
        except Damaged as error:
            if not skip_damaged:
                raise
            skipped.append(error.fact)
        else:
            repeated += row["config_hash"] in found
            found.setdefault(row["config_hash"], row)
    return StoredResults(list(found.values()), repeated, skipped)


def find(paths: Iterable[str | Path]) -> list[Path]:
    """List the JSON files among files, folders (searched recursively, except hidden ones) and patterns."""
    found: dict[Path, None] = {}
    for given in paths:
        matches = sorted(glob.glob(str(given)))  # noqa: PTH207 (a pattern may be absolute)
        places = [Path(given)] if Path(given).exists() else [Path(match) for match in matches]
        if not places:
            raise UserError(f"There is no file or folder {given}; name a result, a folder of runs, or a pattern.")
        for place in places:
            found |= dict.fromkeys(_json_files(place) if place.is_dir() else [place])
    return list(found)


def _json_files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here) / name for name in sorted(names) if name.endswith(".json") and not name.startswith("."))


def read_result(path: Path) -> dict[str, Any]:
    """Read one result.json and check it.

    Raises:
        Damaged: It is not complete JSON, or its configuration does not match its hash.
        OtherVersion: Its configuration has unknown options.
        NotAResult: It is JSON of another kind.
    """
    return _read(path)[0]


def read_config(path: Path) -> Config:
    """Read the configuration of one result.json; raises as `read_result`."""
    return _read(path)[1]


def row_of(path: Path) -> Row:
    """Read one result as a flat row; lists are kept as JSON text.

    An option has the value of the configuration. A fact with the name of an option, such as the matrix that
    ``transition = estimate`` led to, has the suffix ``_used``.
    """
    result, config = _read(path)
    facts = {name: value for name, value in result.items() if name not in ("config", "data", "sha256")}
    facts |= result.get("data", {})  # facts about the examples; the option of that name is in the configuration
    facts |= {"config_hash": config.hash(), "path": str(path.resolve())}
    plain = {n: json.dumps(v) if isinstance(v, dict | list) else v for n, v in facts.items()}
    named = {f"{name}_used" if name in OPTIONS else name: value for name, value in plain.items()}
    return {**config.flat(), ENCODER_USED: None, **named}


def _read(path: Path) -> tuple[dict[str, Any], Config]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({reason_of(error)})") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"it is not complete JSON ({reason_of(error)})") from None
    stored = content.get("config") if isinstance(content, dict) else None
    if not isinstance(stored, dict) or not isinstance(stored.get("training"), dict) or "config_hash" not in content:
        if _belongs_to_sweep(path):
            raise Damaged(path, "it is JSON, but not the result of a training run")
        raise NotAResult(f"{path} is not the result of a training run; name a result.json or a folder of runs.")
    if is_altered(content):
        raise Damaged(path, "its values do not match their SHA-256")
    if not isinstance(content.get("data", {}), dict) or not isinstance(content["config_hash"], str):
        raise Damaged(path, "its data or its config_hash has another type")
    return content, _checked_config(path, content)


def _checked_config(path: Path, content: dict[str, Any]) -> Config:
    options = dict[str, Any]()
    for name, value in content["config"].items():
        options |= value if isinstance(value, dict) else {name: value}
    if unknown := set(options) - set(OPTIONS):
        raise OtherVersion(path, unknown)
    try:
        config = Config.stored(**options)
    except (UserError, TypeError) as error:
        raise Damaged(path, f"its configuration is not valid ({str(error).rstrip('.')})") from None
    complete = set(OPTIONS) <= set(options)  # otherwise an earlier version wrote it, and the hash was another
    if complete and content["config_hash"] != config.hash():
        raise Damaged(path, "its config_hash does not match its configuration")
    accuracy = content.get("accuracy_last", "missing")
    if accuracy is not None and not isinstance(accuracy, int | float):
        raise Damaged(path, f"its accuracy_last is {accuracy}, but it must be a number or null")
    return config


def _belongs_to_sweep(path: Path) -> bool:
    """Whether the path is ``SWEEP/runs/KEY/result.json``, where nothing else may be."""
    runs = path.absolute().parent.parent  # not resolved: runs may be a link to another disk
    return path.name == "result.json" and runs.name == "runs" and (runs.parent / "sweep.json").exists()


# --- queries ------------------------------------------------------------------------------------------------------

NATURAL_ORDER = {
    "loss": typing.get_args(LossName),
    "mix": typing.get_args(MixerName),
    "model": typing.get_args(ModelName),
}


@dataclass(frozen=True)
class Query:
    """What to summarize: options that select and group runs, and the metrics to average."""

    where: dict[str, list[Any]] = field(default_factory=dict)
    """Option -> values; a run counts if all of them match."""
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    """Options that make a table each."""
    value: tuple[str, ...] = ("accuracy_last",)
    """Metrics."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All options that group runs, in the order of the keys of `Summary.groups`."""
        return (*self.by, *self.rows, *self.columns)


@dataclass(frozen=True)
class Summary:
    """The spread of each metric (None: no value) in each group of runs that differ only in their seed."""

    query: Query
    """The query, completed if it named no options."""
    groups: dict[tuple[Any, ...], dict[str, Spread | None]]
    """Values of the options `Query.keys` -> metric -> spread, in order."""
    oracles: frozenset[tuple[Any, ...]] = frozenset()
    """The groups with a run that was trained with the help of true labels."""

    def levels(self, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """All combinations of values of these options, in order."""
        places = [self.query.keys.index(name) for name in names]
        found = {tuple(values[place] for place in places) for values in self.groups}
        return sorted(found, key=lambda values: _sort_key(self.query, names, values))


def summarize(results: StoredResults, query: Query) -> Summary:
    """Average the metrics over seeds, in groups of equal options.

    Raises:
        UserError: Nothing matches, a metric is unknown, or runs of one group differ in more than their seed.
    """
    rows = _matching(results, query.where)
    for name in query.value:
        one_of("The value", name, results.metrics(), "value")
    if not query.keys:
        query = dataclasses.replace(query, rows=_varied(rows) or ("loss", "mix"))
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[key] for key in query.keys), []).append(row)
    _check_only_seeds_differ(members.values())
    order = sorted(members, key=lambda values: _sort_key(query, query.keys, values))
    oracles = frozenset(key for key, runs in members.items() if any(row.get("uses_oracle") for row in runs))
    return Summary(query, {key: {name: _spread(members[key], name) for name in query.value} for key in order}, oracles)


def _matching(results: StoredResults, where: dict[str, list[Any]]) -> list[Row]:
    if not results.rows:
        raise UserError("There is no result of a training run here; name folders of runs, or their result.json.")
    rows = results.select(where)
    if not rows:
        found = "; ".join(f"{name} is {_listed(row[name] for row in results.rows)}" for name in where)
        raise UserError(f"No result matches; in the {len(results.rows)} results {found}.", "where")
    return rows


def _varied(rows: list[Row]) -> tuple[str, ...]:
    """The options other than the seed in which runs differ; also `ENCODER_USED` if one value of ``encoder`` led to
    several."""
    varied = [name for name in OPTIONS if name != "seed" and len({row[name] for row in rows}) > 1]
    used: dict[str, set[str]] = {}
    for row in rows:
        if row.get(ENCODER_USED) is not None:  # None: the run used no encoder
            used.setdefault(row["encoder"], set()).add(row[ENCODER_USED])
    return (*varied, *([ENCODER_USED] if any(len(found) > 1 for found in used.values()) else []))


def _check_only_seeds_differ(groups: Iterable[list[Row]]) -> None:
    varied: dict[str, set[Any]] = {}
    for rows in groups:
        for name in _varied(rows):
            varied.setdefault(name, set()).update(row.get(name) for row in rows)
    if varied:
        found = "; ".join(f"{name} = {_listed(values)}" for name, values in varied.items())
        raise UserError(
            f"The table would average over runs with different options: {found}. Add options to rows, columns or by, "
            "or select runs by where.",
            "where",
        )


def _spread(runs: list[Row], name: str) -> Spread | None:
    values = [row[name] for row in runs if row.get(name) is not None]
    if any(isinstance(value, str) for value in values):
        raise UserError(f"The value {name} is not a number; choose another, such as accuracy_last.", "value")
    return Spread.of(values) if values else None


def _sort_key(query: Query, names: tuple[str, ...], values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Sort each value as ``where`` lists it, else as the configuration lists it, else by size."""
    keys: list[tuple[Any, ...]] = []
    for name, value in zip(names, values, strict=True):
        listed = list(query.where.get(name) or NATURAL_ORDER.get(name, ()))
        known = (0, listed.index(value)) if value in listed else None
        keys.append(known or (1, value is None, isinstance(value, str), value if value is not None else 0))
    return keys


def parse_where(terms: Sequence[str]) -> dict[str, list[Any]]:
    """Parse ``["mix=icm,micm", "long-tail=100"]`` to ``{"mix": ["icm", "micm"], "long_tail": [100.0]}``.

    Values are separated as in CSV: one with a comma is in double quotes, and a quote inside these is doubled, as in
    ``encoder=pixels,"file:a,b.pt"``.
    """
    where: dict[str, list[Any]] = {}
    for term in terms:
        name, equals, values = term.partition("=")
        if not equals or not values:
            raise UserError(f"{term!r} is not a condition; write OPTION=VALUE or OPTION=VALUE,VALUE.", "where")
        name = option_name(name)
        where.setdefault(name, []).extend(_parse_value(name, text) for text in _split(term, values))
    return where


def _split(term: str, values: str) -> list[str]:
    """The values of a condition, without their quotes."""
    try:
        (found,) = csv.reader([values], strict=True, skipinitialspace=True)
    except (csv.Error, ValueError):
        raise UserError(
            f'The quotes in {term!r} do not match; write a value with a comma as "VALUE," and a quote in it twice, '
            "and the whole condition in single quotes for the shell.",
            "where",
        ) from None
    if "" in found:
        raise UserError(f"A value in {term!r} is empty; write OPTION=VALUE or OPTION=VALUE,VALUE.", "where")
    return found


def option_name(name: str) -> str:
    """The name of an option as the configuration writes it (``long_tail`` for ``long-tail``), or `ENCODER_USED`."""
    return one_of("The option", name.strip().lstrip("-").replace("-", "_"), (*OPTIONS, ENCODER_USED))


def _parse_value(name: str, text: str) -> Any:
    """Convert ``text`` to the type of the option; "none" is None where the option allows it."""
    hint: Any = str | None  # of `ENCODER_USED`
    if name in OPTIONS:
        section = options_of(Config)[name]
        hint = hints_of(hints_of(Config)[section] if section else Config)[name]
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in allowed and text.lower() == "none":
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if {int, float, bool} & set(allowed):
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{text!r} is not a value of the option {name}.", "where") from None
    return text


# --- tables -------------------------------------------------------------------------------------------------------


def render(summary: Summary, form: str) -> str:
    """The summary as text, markdown, latex or csv; csv has one line per group and metric in full precision.

    What used true labels is marked: groups of runs that were trained with them, and the best epoch on the test set.
    """
    if form != "csv":
        return tables.FORMATS[form](caption(summary.query), pivot(summary))
    lines = []
    for values, spreads in summary.groups.items():
        for name, spread in spreads.items():
            numbers = ("", "", 0) if spread is None else (spread.mean, spread.deviation, spread.count)
            oracle = values in summary.oracles or _needs_truth(name)
            lines.append([*map(show, values), name, *numbers, show(oracle)])
    return tables.csv([*summary.query.keys, "value", "mean", "std", "n", "oracle"], lines)


def caption(query: Query) -> str:
    """One line that says what the numbers are."""
    unit = ", in percent" if all(is_percent(name) for name in query.value) else ""
    conditions = [f"; {name} = {', '.join(map(_quoted, values))}" for name, values in query.where.items()]
    return f"{', '.join(query.value)}: mean ± standard deviation (number of seeds){unit}{''.join(conditions)}"


def pivot(summary: Summary) -> list[Table]:
    """One table per combination of ``by``, with a row per combination of ``rows`` and a column per combination of
    ``columns`` and metric."""
    query = summary.query
    columns = [(column, name) for column in summary.levels(query.columns) for name in query.value]
    header = [*query.rows, *(_column_title(query, column, name) for column, name in columns)]
    made = []
    for by in summary.levels(query.by):
        rows = []
        for row in summary.levels(query.rows):
            groups = [(*by, *row, *column) for column, _ in columns]
            spreads = [summary.groups.get(key, {}).get(name) for key, (_, name) in zip(groups, columns, strict=True)]
            if any(spreads):
                marks = [
                    " (oracle)" if s and key in summary.oracles else "" for s, key in zip(spreads, groups, strict=True)
                ]
                cells = [show_spread(s, is_percent(name)) for s, (_, name) in zip(spreads, columns, strict=True)]
                rows.append([*map(show, row), *(cell + mark for cell, mark in zip(cells, marks, strict=True))])
        title = ", ".join(f"{name} = {show(value)}" for name, value in zip(query.by, by, strict=True))
        made.append(Table(title, header, rows, len(query.rows)))
    return made


def _column_title(query: Query, column: tuple[Any, ...], name: str) -> str:
    """The values of the column's options, and the metric if there are several or nothing else."""
    named = len(query.value) > 1 or not column
    return ", ".join([*map(show, column), *([name + " (oracle)" * _needs_truth(name)] if named else [])])


def _needs_truth(metric: str) -> bool:
    """Whether a metric was chosen with the true labels of the test set, and its name does not say oracle."""
    return metric.endswith("_on_test")


def show(value: Any) -> str:
    """The value of an option, for a cell of a table."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quoted(value: Any) -> str:
    """The value of an option as `parse_where` reads it."""
    text = show(value)
    return '"' + text.replace('"', '""') + '"' if "," in text or text.startswith('"') else text


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(sorted({_quoted(value) for value in values}))
