"""The results of many runs: plain files first, an index on top.

Every finished run is one JSON file (result.json in its folder, or a copy under any name): they are the store. To answer
questions they are read into an SQLite table, because that comes with Python. The table is a cache: it is made anew
whenever a file changed, and may be deleted at any time. Only an index of our own is ever replaced by it.

    columns of ``runs``: every option by its flat name, every figure of the result, device, config_hash, path
"""

import contextlib
import glob
import hashlib
import json
import os
import re
import sqlite3
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import complementary
from complementary.config import Config, configure
from complementary.data.cache import cache_root
from complementary.errors import UserError
from complementary.settings import later_options, options_of

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
    except OSError as problem:
        raise Damaged(path, f"it cannot be read ({problem.strerror})") from None
    except ValueError as problem:
        raise Damaged(path, f"it is not whole JSON ({problem})") from None
    stored = content.get("config") if isinstance(content, dict) else None
    if not isinstance(stored, dict) or not isinstance(stored.get("training"), dict) or "config_hash" not in content:
        if _is_of_sweep(path):
            raise Damaged(path, "it is whole JSON, but not the result of a training run")
        raise Foreign(f"{path} is not the result of a training run; give a result.json, or a folder of runs.")
    config = _config(path, stored)
    known = set(OPTIONS) - set(_flat(stored)) <= set(later_options(Config))  # else it is of an earlier version
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
        return configure(**_flat(stored))
    except UserError as problem:
        raise Damaged(path, f"its configuration cannot be read by this version ({str(problem).rstrip('.')})") from None


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
        except (OSError, sqlite3.Error) as problem:
            if named:
                raise UserError(f"The index {file} cannot be written ({problem}); choose another --index.") from None
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
            except Damaged as problem:
                if not self._skip:
                    raise
                skipped.append(str(problem))
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
    except sqlite3.DatabaseError as problem:
        return f"a file of {size:,} bytes that SQLite cannot read ({problem})"


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
