"""Read the answers of annotators or rules as they come: "not a dog", "yes, a cat", ignored.

A table has one answer per line: the file (or id) of the example, the answer and, if known, who gave it and when:

    file,answer,annotator,time
    cats/001.jpg,not dog,ann,2024-05-01T10:00
    002.png,!ship;!horse,bob,2024-05-01T10:01
    003.png,yes cat,ann,2024-05-01T10:02
    004.png,ignore,bob,2024-05-01T10:03

Instead of ``answer`` there may be columns ``not`` and ``yes`` with class names, a column ``label`` with the class that
was asked about beside an ``answer`` of accept, reject or ignore, or one column per rule. The same fields may come as
JSON lines. Exports of Prodigy (JSONL) and Label Studio (JSON) are recognized.
"""

import datetime
import logging
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from complementary.data.arrays import KEY_COLUMNS
from complementary.data.tables import Record, read_lines, read_records
from complementary.errors import UserError

log = logging.getLogger(__name__)
Meaning = Literal["auto", "not", "yes"]
RECORD_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")

NOT_COLUMNS = re.compile(r"not[ _-]?\d*|excluded|complementary([ _-]?labels?)?")
YES_COLUMNS = re.compile(r"yes[ _-]?\d*|is")
ANSWER_COLUMNS = ("answer", "answers", "response", "reply", "vote")
ASKED_COLUMNS = ("label", "class", "choice", "question", "option", "category")
# "label" alone is not read: for most people it is the true class, which must never be used as a complementary label
TRUTH_COLUMNS = ("truth", "true", "class")
ANNOTATOR_COLUMNS = (
    *("annotator", "annotator_id", "worker", "worker_id", "workerid", "user", "user_id"),
    *("rater", "labeler", "completed_by", "session_id"),
)
TIME_COLUMNS = ("time", "timestamp", "date", "updated_at", "created_at", "submitted_at")
ALL_COLUMNS = {*KEY_COLUMNS, *ANSWER_COLUMNS, *ASKED_COLUMNS, *TRUTH_COLUMNS, *ANNOTATOR_COLUMNS, *TIME_COLUMNS}
ALL_COLUMNS |= {"not", "not1", "yes", "excluded", "complementary"}

NO_PREFIX = re.compile(r"(?:!|¬|(?:is\s+)?not(?:\s+an?)?[\s:]+|no[\s:,]+)\s*(\S.*)", re.IGNORECASE | re.DOTALL)
SURE_PREFIX = re.compile(r"(?:!|¬|not(?:\s+an?)?[\s:]+)\s*(\S.*)", re.IGNORECASE | re.DOTALL)  # in a column "not"
YES_PREFIX = re.compile(r"(?:yes[\s:,]+|is(?:\s+an?)?\s+)\s*(\S.*)", re.IGNORECASE | re.DOTALL)
ACCEPT = {"accept", "accepted", "yes", "y", "true", "1", "correct", "right"}
REJECT = {"reject", "rejected", "no", "n", "false", "0", "incorrect", "wrong"}
IGNORE = {"ignore", "ignored", "skip", "skipped", "?", "nan", "<na>"}  # pandas writes a missing answer as nan
ABSTAIN = IGNORE | {"", "unsure", "unknown", "abstain", "don't know", "dont know", "n/a", "na", "none", "-", "-1"}


@dataclass(frozen=True, slots=True)  # there may be millions
class Answer:
    """One answer about one example; it is ignored if it names no class.

    Attributes:
        key: Name of the example, see `normalize_key`.
        line: Line in the file.
        no: Classes that the example is not.
        yes: The class that the example is; several: one of them.
        truth: The true class, if the table gives it.
        annotator: Who gave the answer, or "".
        time: Seconds since 1970, or NaN.
    """

    key: str
    line: int
    no: tuple[str, ...] = ()
    yes: tuple[str, ...] = ()
    truth: str = ""
    annotator: str = ""
    time: float = math.nan

    @property
    def ignored(self) -> bool:
        """Whether the answer says nothing."""
        return not self.no and not self.yes

    @property
    def count(self) -> int:
        """As how many answers it counts: one per class that it excludes, and one if it says yes or nothing."""
        return len(set(self.no)) + bool(self.yes) or 1

    @property
    def where(self) -> str:
        """Its line, for reports."""
        return f" (line {self.line})" if self.line else ""

    @property
    def names(self) -> tuple[str, ...]:
        """All classes that the answer names."""
        return (*self.no, *self.yes, *([self.truth] if self.truth else []))


@dataclass(frozen=True)
class AnswerTable:
    """The answers of a file, and whether it contains answers and true classes at all."""

    answers: list[Answer]
    has_answers: bool
    has_truth: bool

    def class_names(self) -> list[str]:
        """All class names in the table, sorted."""
        return sorted({name for answer in self.answers for name in answer.names})


def read_answers(path: Path, meaning: Meaning = "auto") -> AnswerTable:
    """Read a table of answers.

    Args:
        path: A CSV (any separator), JSONL, JSON or parquet file.
        meaning: What a class name means if the file does not say so, such as in a column ``label`` or in the choices of
            Label Studio: "not" or "yes". "auto": as the names of columns say; if they do not, an error.

    Returns:
        The answers. Columns that are not used are named in a warning.
    """
    read = _read_record_file if path.suffix.lower() in RECORD_SUFFIXES else _read_csv
    table = read(path, meaning)
    if not table.answers:
        raise UserError(f"{path} contains no answers, only column names; expected a line such as: photo1.jpg,not dog")
    return table


def normalize_key(name: str) -> str:
    r"""The name of an example in the form in which names are compared.

    ``./a\b.png`` equals ``a/b.png``, NFD equals NFC, and a URL is its path.
    """
    name = unicodedata.normalize("NFC", name).strip()
    if re.match(r"[a-z][a-z0-9+.-]+://", name, re.IGNORECASE):
        name = unquote(urlsplit(name).path).lstrip("/")
    return name.replace("\\", "/").removeprefix("./")


# --- cells ---------------------------------------------------------------------------------------


class _Ambiguous(Exception):
    """A class name without "not" or "yes" where the column does not say which is meant."""


def _text(cell: Any) -> str:
    """A cell as text; missing values are empty, and 3.0 is 3."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell).strip()


def _names(cell: Any, separators: str = ";|") -> list[str]:
    """The texts in a cell: separated, in a list, or in the choices of Label Studio."""
    if isinstance(cell, dict):
        cell = cell.get("choices", list(cell.values()))
    if isinstance(cell, str):
        return [name.strip() for name in re.split(f"[{separators}]", cell) if name.strip()]
    if isinstance(cell, Iterable):
        return [text for item in cell if (text := _text(item))]
    return [text for text in [_text(cell)] if text]


def parse_answer(
    cell: Any, meaning: Literal["not", "yes"] | None = None, separators: str = ";|"
) -> tuple[list[str], ...]:
    """Parse a cell such as ``not dog``, ``!dog;!cat``, ``yes cat`` or ``ignore``.

    Args:
        cell: A text, number or list.
        meaning: What a name without such a prefix means; None: that is an error.
        separators: Characters between several names.

    Returns:
        The classes that the example is not, and those that it is.
    """
    no: list[str] = []
    yes: list[str] = []
    said = meaning
    prefix = SURE_PREFIX if meaning else NO_PREFIX  # "no finding" in a column "not" is a class
    for name in _names(cell, separators):
        if found := prefix.fullmatch(name):
            said, name = "not", found[1]
        elif found := YES_PREFIX.fullmatch(name):
            said, name = "yes", found[1]
        elif name.lower() in (IGNORE if meaning else ABSTAIN):
            continue
        if said is None:
            raise _Ambiguous(name)
        (no if said == "not" else yes).append(name)
    return list(dict.fromkeys(no)), list(dict.fromkeys(yes))


def _time(cell: Any) -> float:
    """Seconds since 1970 from a number (seconds or milliseconds) or an ISO date; NaN if it is neither."""
    text = _text(cell)
    try:
        seconds = float(text)
        return seconds / 1000 if seconds > 1e11 else seconds
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


UPLOADED = re.compile(r"(?:.*/)?upload/(?:\d+/)?[0-9a-f]{8}-(.+)", re.DOTALL)


def _stored_name(value: str) -> str:
    """The name of an example, without the prefix that Label Studio gives to uploaded and local files."""
    if "/local-files/?" in value:
        value = parse_qs(urlsplit(value).query).get("d", [value])[0]
    elif "upload/" in value and (found := UPLOADED.fullmatch(unquote(urlsplit(value).path))):
        value = found[1]
    return normalize_key(value)


# --- tables with columns -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """Positions of the columns of a table."""

    key: int
    no: list[int] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    answer: int | None = None
    asked: int | None = None  # the class that an answer of accept or reject is about
    rules: list[int] = field(default_factory=list)  # one annotator or rule each
    truth: int | None = None
    annotator: int | None = None
    time: int | None = None

    def used(self) -> set[int]:
        several = {*self.no, *self.yes, *self.rules}
        return several | {
            i for i in (self.key, self.answer, self.asked, self.truth, self.annotator, self.time) if i is not None
        }


def _read_csv(path: Path, meaning: Meaning) -> AnswerTable:
    lines = read_lines(path, ALL_COLUMNS)
    if not lines.rows:
        raise UserError(f"{path} is empty; expected lines such as: photo1.jpg,not dog")
    first = [_column(cell) for cell in lines.rows[0][1]]
    separators = ",|" if lines.separator == ";" else ";|"
    body = lines.rows
    if _is_header(first):
        del body[0]
        columns = _find_columns(path, first, [cells for _, cells in body], meaning, separators)
    else:
        width = max(len(cells) for _, cells in body)
        if width < 2:
            raise UserError(f"{path} has one column; expected a file name and an answer, such as: photo1.jpg,not dog")
        columns = _Columns(0, no=list(range(1, width)))
        _warn_about_other_columns(path, [cells for _, cells in body], width)
    return _read_rows(path, first, _consumed(body), columns, meaning, separators)


def _warn_about_other_columns(path: Path, rows: Sequence[Sequence[str]], width: int) -> None:
    """Warn if a table without names of columns has some that share no class with the first column of answers."""
    first, *others = ({_text(_cell(row, i)) for row in rows} - {""} for i in range(1, width))
    for number, found in enumerate(others, 3):
        if found and not found & first:
            log.warning(
                "%s has no line with names of columns, so column %d (%s) is read as classes. If it is something else, "
                "add such a line: file,not,annotator",
                path,
                number,
                _list(sorted(found)[:3]),
            )
            return


def _consumed(rows: list[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The rows in order; each is taken from the list, so that it is freed after use: a table may have millions."""
    rows.reverse()
    while rows:
        yield rows.pop()


def _column(name: Any) -> str:
    return _text(name).lower().lstrip("_")


def _is_header(names: Sequence[str]) -> bool:
    known = {*KEY_COLUMNS, *ANSWER_COLUMNS, "truth"}
    return names[0] in known or any(
        name in ANSWER_COLUMNS or name == "truth" or NOT_COLUMNS.fullmatch(name) or YES_COLUMNS.fullmatch(name)
        for name in names
    )


def _first(names: Sequence[str], wanted: Iterable[str], taken: Iterable[int | None] = ()) -> int | None:
    """Position of the first of the ``wanted`` names."""
    busy = set(taken)
    return next((i for name in wanted for i, found in enumerate(names) if found == name and i not in busy), None)


def _find_columns(
    path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]], meaning: Meaning, separators: str
) -> _Columns:
    """Find out what the columns mean; raise if there is no answer and no true class."""
    no = [i for i, name in enumerate(names) if NOT_COLUMNS.fullmatch(name)]
    yes = [i for i, name in enumerate(names) if YES_COLUMNS.fullmatch(name)]
    answer = None if no or yes else _first(names, ANSWER_COLUMNS)
    asked = None
    if answer is not None:
        words = {_text(_cell(row, answer)).lower() for row in rows}
        if words <= ACCEPT | REJECT | ABSTAIN and words & (ACCEPT | REJECT):
            asked = _first(names, ASKED_COLUMNS)
            if asked is None:
                raise UserError(
                    f"{path} has the columns {_list(names)}; an answer of yes or no needs a column label with the "
                    "class that was asked about."
                )
    truth = _first(names, TRUTH_COLUMNS, [asked])
    key = _first(names, KEY_COLUMNS, [*no, *yes, answer, asked, truth])
    named = key is not None
    key = 0 if key is None else key
    annotator, time = _first(names, ANNOTATOR_COLUMNS, [key]), _first(names, TIME_COLUMNS, [key])
    rules: list[int] = []
    if not (no or yes) and answer is None:
        other = [i for i in range(len(names)) if i not in (key, truth, annotator, time)]
        label = _first(names, ASKED_COLUMNS, [key, truth])
        if meaning != "auto" and label is not None:
            no, yes = ([label], []) if meaning == "not" else ([], [label])
        elif named:
            rules = [i for i in other if _is_rule([_cell(row, i) for row in rows], separators)]
    columns = _Columns(key, no, yes, answer, asked, rules, truth, annotator, time)
    if key in (*no, *yes, truth, answer) or not (no or yes or rules or truth is not None or answer is not None):
        label = _first(names, ASKED_COLUMNS)
        hint = (
            f" If {names[label]} says what an example is not, say so with meaning = not." if label is not None else ""
        )
        raise UserError(
            f"{path} has the columns {_list(names)}; expected file, and answer or not (class names).{hint}",
            None if label is None else "meaning",
        )
    ignored = [name for i, name in enumerate(names) if i not in columns.used()]
    if ignored:
        log.warning("%s: ignored columns: %s", path, _list(ignored))
    if not named:
        log.info("%s: the column %s names the examples", path, names[key] or "1")
    return columns


def _list(names: Iterable[str]) -> str:
    return ", ".join(name or "(no name)" for name in names)


def _cell(row: Sequence[Any], index: int) -> Any:
    return row[index] if index < len(row) else None


def _is_rule(cells: Iterable[Any], separators: str) -> bool:
    """Whether a column contains answers: each cell is empty, ignored or says "not" or "yes", and some say it."""
    said = False
    for cell in cells:
        try:
            no, yes = parse_answer(cell, None, separators)
        except _Ambiguous:
            return False
        said = said or bool(no or yes)
    return said


def _read_rows(
    path: Path,
    names: Sequence[str],
    rows: Iterable[tuple[int, Sequence[Any]]],
    columns: _Columns,
    meaning: Meaning,
    separators: str,
) -> AnswerTable:
    answers: list[Answer] = []
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}  # equal answers are stored once
    truth_only = not (columns.no or columns.yes or columns.rules) and columns.answer is None
    for line, row in rows:

        def text(index: int | None, row: Sequence[Any] = row) -> str:
            return "" if index is None else _text(_cell(row, index))

        if any(_text(cell) for cell in row[len(names) :]) and len(names) > max(columns.used()):
            raise UserError(
                f"{path}, line {line}: {len(row)} cells, but {len(names)} columns ({_list(names)}). Put cells that "
                "contain the separator in quotes, and several class names into one cell: dog;cat"
            )
        key = _stored_name(text(columns.key))
        truth, time = text(columns.truth), _time(text(columns.time))
        if not key:
            raise UserError(
                f"{path}, line {line}: the column {names[columns.key] or 'file'} is empty; name the example."
            )
        if columns.rules:
            given = []
            for i in columns.rules:
                no, yes = parse_answer(_cell(row, i), None, separators)
                if no or yes:
                    given.append(Answer(key, line, tuple(no), tuple(yes), truth, names[i], time))
            answers += given or [Answer(key, line, (), (), truth, "", time)]
            continue
        no, yes = [], []
        try:
            if columns.asked is not None and columns.answer is not None:
                no, yes = _accepted(text(columns.answer), _names(_cell(row, columns.asked), separators))
            elif columns.answer is not None:
                no, yes = parse_answer(_cell(row, columns.answer), None if meaning == "auto" else meaning, separators)
            for group, said in ((columns.no, "not"), (columns.yes, "yes")):
                for i in group:
                    one, other = parse_answer(_cell(row, i), said, separators)  # type: ignore[arg-type]
                    no, yes = no + one, yes + other
        except _Ambiguous as error:
            raise UserError(
                f"{path}, line {line}: the answer {str(error)!r} does not say yes or not; write 'not {error}', call "
                "the column not, or say which is meant with meaning = not or yes.",
                "meaning",
            ) from None
        parts = [tuple(dict.fromkeys(listed)) for listed in (no, yes)]
        one_no, one_yes = (shared.setdefault(part, part) for part in parts)
        answers.append(Answer(key, line, one_no, one_yes, truth, text(columns.annotator), time))
    return AnswerTable(answers, not truth_only, columns.truth is not None)


def _accepted(answer: str, asked: list[str]) -> tuple[list[str], list[str]]:
    """The meaning of accept, reject or ignore for the class that was asked about."""
    word = answer.lower()
    return (asked if word in REJECT else []), (asked if word in ACCEPT else [])


# --- records: JSON lines, Prodigy, Label Studio, parquet -----------------------------------------


def _read_record_file(path: Path, meaning: Meaning) -> AnswerTable:
    records = read_records(path)
    if not records:
        raise UserError(f"{path} is empty; expected one answer per line with fields such as file and answer.")
    if any("annotations" in record or "completions" in record for _, record in records):
        return AnswerTable(list(_label_studio(path, records, meaning)), True, False)
    if all(_text(record.get("answer")) in ("accept", "reject", "ignore") for _, record in records):
        return AnswerTable(list(_prodigy(path, records, meaning)), True, False)
    names = list(dict.fromkeys(name for _, record in records for name in record))
    lowered = [_column(name) for name in names]
    rows = [(line, [record.get(name) for name in names]) for line, record in records]
    columns = _find_columns(path, lowered, [cells for _, cells in rows], meaning, ";|")
    return _read_rows(path, lowered, rows, columns, meaning, ";|")


def _prodigy(path: Path, records: Iterable[tuple[int, Record]], meaning: Meaning) -> Iterator[Answer]:
    """Prodigy's JSONL: a label that is accepted or rejected, or options of which some are chosen (``accept``)."""
    for line, record in records:
        key = _prodigy_key(record)
        if key is None:
            raise UserError(f"{path}, line {line}: no path, file, image, id or text; name the example.")
        word = _text(record["answer"])
        chosen, options = _names(record.get("accept")), record.get("options")
        no: list[str] = []
        yes: list[str] = []
        if options or "accept" in record:  # reject: the choice is wrong; several accepted: one of them
            said = "not" if (word == "reject") != (meaning == "not") else "yes"
            if word != "ignore":
                no, yes = (chosen, []) if said == "not" else ([], chosen)
        else:
            no, yes = _accepted(word, _names(record.get("label")))
        annotator = _text(record.get("_annotator_id") or record.get("_session_id"))
        yield Answer(key, line, tuple(no), tuple(yes), "", annotator, _time(record.get("_timestamp")))


def _prodigy_key(record: Record) -> str | None:
    meta = record.get("meta")
    fields = {**(meta if isinstance(meta, dict) else {}), **record}
    for name in ("path", "file", "filename", "image", "id", "text"):
        value = _text(fields.get(name))
        if value and not value.startswith("data:"):  # an image inside the file
            return normalize_key(value)
    return None


def _objects(value: Any) -> list[Record]:
    """The objects in a list; nothing if it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _label_studio(path: Path, records: Iterable[tuple[int, Record]], meaning: Meaning) -> Iterator[Answer]:
    """Label Studio's JSON: tasks with annotations; choices mean "not" if their control is called not..., else "yes"."""
    for line, task in records:
        key = _task_key(task)
        if key is None:
            raise UserError(f"{path}, task {line}: its data has no image, text or other value; name the example.")
        annotations = _objects(task.get("annotations")) or _objects(task.get("completions"))
        if not annotations:
            yield Answer(key, line)
        for annotation in annotations:
            no: list[str] = []
            yes: list[str] = []
            for result in [] if annotation.get("was_cancelled") else _objects(annotation.get("result")):
                names = [name for value in _objects([result.get("value")]) for name in _names(value.get("choices"))]
                control = _column(result.get("from_name"))
                said = meaning if meaning != "auto" else "not" if re.match(r"not|excluded", control) else "yes"
                one, other = parse_answer(names, said)
                no, yes = no + one, yes + other
            who = annotation.get("completed_by")
            who = (who.get("email") or who.get("id")) if isinstance(who, dict) else who
            when = annotation.get("updated_at") or annotation.get("created_at")
            yield Answer(key, line, tuple(no), tuple(yes), "", _text(who), _time(when))


def _task_key(task: Record) -> str | None:
    """The file that a task shows: without the prefix of uploaded files, and with the path of local ones."""
    data = next(iter(_objects([task.get("data")])), {})
    values = [data.get(name) for name in (*KEY_COLUMNS, *data)]
    value = next((text for item in values if isinstance(item, str | int) and (text := _text(item))), None)
    return None if value is None else _stored_name(value)
