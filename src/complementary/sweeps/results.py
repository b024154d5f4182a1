"""The results of many runs: plain files first, an index on top.

Every finished run is one JSON file (result.json in its folder, or a copy under any name): they are the store. To answer
questions they are read into an SQLite table, because that comes with Python. The table is a cache: it is made anew
whenever a file changed, and may be deleted at any time. Only an index of our own is ever replaced by it.

    columns of ``runs``: every option by its flat name, every figure of the result, device, config_hash, path

Questions to a table of runs: mean and standard deviation over seeds, by any options.
"""

import contextlib
import glob
import hashlib
import json
import os
import re
import shlex
import sqlite3
import statistics
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import complementary
from complementary.config import Config, options_of
from complementary.data.cache import cache_root
from complementary.errors import UserError, one_of
from complementary.losses import LOSSES
from complementary.mixing import MIXERS
from complementary.networks import MODELS

OPTIONS = tuple(options_of(Config))
LAYOUT = 2
TABLES = {"runs", "about"}
KEY = re.compile("[0-9a-f]{16}")  # the folder of a cell in a sweep
Row = dict[str, Any]


def kinds(option: str) -> tuple[Any, ...]:
    """The types that an option may have: ``(bool, NoneType)`` for flip."""
    home = options_of(Config)[option]
    hint = typing.get_type_hints(typing.get_type_hints(Config)[home] if home else Config)[option]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


SWITCHES = tuple(name for name in OPTIONS if bool in kinds(name))


class Damaged(UserError):
    """A file of the store is not what a run wrote; ``fact`` says so without what to do."""

    def __init__(self, path: Path, why: str) -> None:
        self.fact = f"{path} is damaged: {why}."
        super().__init__(f"{self.fact} Put back a good copy, delete it, or pass --skip-damaged.")


class Foreign(UserError):
    """A JSON file that is whole, but not the result of a run."""


# --- reading ------------------------------------------------------------------------------------------


def find(paths: Iterable[str | Path]) -> list[Path]:
    """All JSON files among files, folders (searched through; hidden ones are not) and patterns such as ``runs/*``."""
    found: dict[Path, None] = {}
    for given in paths:
        matches = sorted(glob.glob(str(given)))  # noqa: PTH207 (a pattern may be absolute)
        places = [Path(given)] if Path(given).exists() else [Path(match) for match in matches]
        if not places:
            raise UserError(f"There is no file or folder {given}; name a result, a folder of runs, or a pattern.")
        for place in places:
            found |= dict.fromkeys(_inside(place) if place.is_dir() else [place])
    return list(found)


def _inside(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here) / name for name in sorted(files) if name.endswith(".json") and not name.startswith("."))


def read_result(path: Path) -> dict[str, Any]:
    """The content of a result.json, checked."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise Damaged(path, f"it is not whole JSON ({error})") from None
    stored = content.get("config") if isinstance(content, dict) else None
    if not isinstance(stored, dict) or not isinstance(stored.get("training"), dict) or "config_hash" not in content:
        if _is_of_sweep(path):
            raise Damaged(path, "it is whole JSON, but not the result of a training run")
        raise Foreign(f"{path} is not the result of a training run; give a result.json, or a folder of runs.")
    config = _config(path, stored)
    known = set(OPTIONS) <= set(_flat(stored))  # else it is of an earlier version
    if known and content.get("config_hash") != config.hash():
        raise Damaged(path, "its config_hash does not belong to its configuration")
    accuracy = content.get("accuracy_last", "missing")
    if accuracy is not None and not isinstance(accuracy, int | float):
        raise Damaged(path, f"its accuracy_last is {accuracy}, but it must be a number or null")
    result: dict[str, Any] = content
    return result


def _is_of_sweep(path: Path) -> bool:
    """Whether this is the result of a cell, ``runs/KEY/result.json``: nothing else may stand there."""
    cell = path.absolute().parent  # not resolved: runs may be a link to a larger disk
    of_sweep = KEY.fullmatch(cell.name) or (cell.parent.parent / "sweep.json").exists()
    return path.name == "result.json" and cell.parent.name == "runs" and bool(of_sweep)


def _config(path: Path, stored: dict[str, Any]) -> Config:
    try:
        return Config.of(**_flat(stored))
    except UserError as error:
        raise Damaged(path, f"its configuration cannot be read by this version ({str(error).rstrip('.')})") from None


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    """One level of sections taken away."""
    inner = [value for value in nested.values() if isinstance(value, dict)]
    top = {name: value for name, value in nested.items() if not isinstance(value, dict)}
    return {name: value for section in [top, *inner] for name, value in section.items()}


def row_of(path: Path) -> Row:
    """One result as a flat row. Options of today that the run did not know have their defaults."""
    result = read_result(path)
    config = _config(path, result.pop("config"))
    facts = result.pop("data", {})  # of the examples; the option of that name is in the configuration
    figures = result | facts | {"config_hash": config.hash(), "path": str(path.resolve())}
    return _flat(asdict(config)) | {name: _plain(value) for name, value in figures.items()}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


# --- the index ----------------------------------------------------------------------------------------


class Index:
    """The runs among ``paths`` as a table; use it in a ``with`` block.

    ``repeated``: how many files held a configuration that another one had already given; of those the first
    counts. ``skipped``: the sentences of damaged files, if ``skip_damaged`` let them pass. ``file``: where to keep
    the table, if not in the cache; what is there already must be such a table.
    """

    def __init__(self, paths: Sequence[str | Path], skip_damaged: bool = False, file: Path | None = None) -> None:
        if file is not None:
            _refuse_other(file)
        self._files = find(paths)
        self._named = {Path(p) for p in paths}
        self._skip = skip_damaged
        self._database = self._open(file or _usual_file(paths, skip_damaged), named=file is not None)
        about = dict(self._database.execute("SELECT name, value FROM about"))
        self.repeated, self.skipped = int(about["repeated"]), list[str](json.loads(about["skipped"]))
        self.columns = [row[1] for row in self._database.execute("PRAGMA table_info(runs)")]

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def select(self, where: Mapping[str, Sequence[Any]] | None = None) -> list[Row]:
        """The rows whose columns have one of the given values, in the order of their files."""
        terms, values = ["1"], list[Any]()
        for name, allowed in (where or {}).items():
            known = [value for value in allowed if value is not None]
            terms.append(f"({_quoted(name)} IN ({', '.join('?' * len(known))})")
            terms[-1] += f" OR {_quoted(name)} IS NULL)" if None in allowed else ")"
            values += known
        found = self._database.execute(f"SELECT * FROM runs WHERE {' AND '.join(terms)} ORDER BY rowid", values)
        return [_with_switches(dict(zip(self.columns, row, strict=True))) for row in found]

    def _open(self, file: Path, named: bool) -> sqlite3.Connection:
        """The table in ``file`` if it is up to date, else a new one, put there if that is possible.

        ``named``: the user wants it there. Otherwise a cache that cannot be written costs only time.
        """
        seal = self._seal()
        with contextlib.suppress(sqlite3.Error):
            if file.exists():
                database = sqlite3.connect(file)
                with contextlib.suppress(sqlite3.Error):
                    if database.execute("SELECT value FROM about WHERE name = 'seal'").fetchone() == (seal,):
                        return database
                database.close()
        database = sqlite3.connect(":memory:")
        self._fill(database, seal)
        try:
            _keep(database, file)
        except (OSError, sqlite3.Error) as error:
            if named:
                raise UserError(f"The index {file} cannot be written ({error}); choose another --index.") from None
        return database

    def _seal(self) -> str:
        """Another one whenever a file or what is made of it changed."""
        stats = [(str(path.resolve()), path.stat().st_mtime_ns, path.stat().st_size) for path in self._files]
        decides = [LAYOUT, complementary.__version__, OPTIONS, asdict(Config()), stats]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def _fill(self, database: sqlite3.Connection, seal: str) -> None:
        rows, skipped = self._rows()
        unique: dict[str, Row] = {}
        for row in rows:
            unique.setdefault(row["config_hash"], row)
        names = list(dict.fromkeys([*OPTIONS, *(name for row in rows for name in row)]))
        database.execute(f"CREATE TABLE runs ({', '.join(_quoted(name) for name in names)})")
        holes = ", ".join("?" * len(names))
        values = ([row.get(name) for name in names] for row in unique.values())
        database.executemany(f"INSERT INTO runs VALUES ({holes})", values)
        about = {"seal": seal, "repeated": str(len(rows) - len(unique)), "skipped": json.dumps(skipped)}
        database.execute("CREATE TABLE about (name, value)")
        database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        database.commit()

    def _rows(self) -> tuple[list[Row], list[str]]:
        rows, skipped = [], []
        for path in self._files:
            try:
                rows.append(row_of(path))
            except Foreign:
                if path in self._named:
                    raise  # somebody meant this very file
            except Damaged as error:
                if not self._skip:
                    raise
                skipped.append(str(error))
        return rows, skipped


def _with_switches(row: Row) -> Row:
    """SQLite keeps True as 1."""
    return row | {name: bool(row[name]) for name in SWITCHES if row[name] is not None}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _usual_file(paths: Sequence[str | Path], skip: bool) -> Path:
    places = json.dumps([sorted(str(Path(path).resolve()) for path in paths), skip])
    return cache_root() / "index" / f"{hashlib.sha256(places.encode()).hexdigest()[:16]}.sqlite"


def _refuse_other(file: Path) -> None:
    """Raise if there is something else than an index of ours, which would be lost."""
    if not file.exists():
        return
    found = "a folder" if file.is_dir() else _tables(file)
    if found != TABLES:
        said = found if isinstance(found, str) else f"a database with the tables {', '.join(sorted(found)) or '(none)'}"
        raise UserError(
            f"--index {file} is there already, and is not an index of runs but {said}; it was left as it is. Name a "
            "new file, such as all.sqlite, or move that one away."
        )


def _tables(file: Path) -> set[str] | str:
    """The tables and views of a database, or what the file is otherwise; it is only looked at."""
    if not file.is_file() or not (size := file.stat().st_size):
        return "an empty file" if file.is_file() else "no plain file"
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            names = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type <> 'index'")}
            if names == TABLES and not database.execute("SELECT 1 FROM about WHERE name = 'seal'").fetchone():
                return "a database of another program"
            return names
    except sqlite3.DatabaseError as error:
        return f"a file of {size:,} bytes that SQLite cannot read ({error})"


def _keep(database: sqlite3.Connection, file: Path) -> None:
    """Put a copy of the table into ``file``, in one step."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(draft)) as copy:
            database.backup(copy)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


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
