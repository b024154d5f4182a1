"""Tables in text files, JSON and parquet: encodings, separators, line numbers.

Text may be UTF-8, UTF-16 or UTF-32, with or without a byte order mark; other bytes are read as Windows-1252 (which
contains the characters of Latin-1) with a warning. The separator of a CSV (comma, semicolon, tab or bar) is found from
its first lines.
"""

import codecs
import csv
import io
import json
import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complementary.errors import UserError, import_optional

log = logging.getLogger(__name__)
SEPARATORS = (",", "\t", ";", "|")  # where several fit, the first is used
SNIFFED_LINES = 50
SNIFFED_BYTES = 2**16
NO_FEATURE = re.compile(
    r"(^|[_ -])(time|date|timestamp|datetime)([_ -]|$)|_at$"
    r"|^(not|yes|excluded|complementary|answer|label|class|truth|true)[ _-]?\d*$",
    re.IGNORECASE,
)  # names of columns
MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

# --- bytes and text ------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """Read a file; raise a `UserError` if that fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).") from None


def read_text(path: Path) -> str:
    """Read text in any usual encoding, in Unicode form NFC (macOS writes NFD)."""
    content = read_bytes(path)
    encoding = _encoding(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        if encoding != "utf-8":
            raise UserError(f"{path} is damaged: it begins like {encoding} text, but is not.") from None
        text = content.decode("cp1252", errors="replace")
        log.warning("%s is not UTF-8; it was read as Windows-1252 (Latin-1). Check names with accents.", path)
    if "\0" in text:
        raise UserError(f"{path} is not text (it contains NUL bytes); save it as CSV or JSON in UTF-8.")
    return unicodedata.normalize("NFC", text)


def _encoding(content: bytes) -> str:
    """From the byte order mark, or from where the zero bytes of plain letters are."""
    for mark, name in MARKS:
        if content.startswith(mark):
            return name
    head = content[: 2000 - 2000 % 2]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if len(content) % 2 == 0 and max(even, odd) > len(head) / 4 and min(even, odd) == 0:
        return "utf-16-le" if odd > even else "utf-16-be"
    return "utf-8"


# --- CSV -----------------------------------------------------------------------------------------


Row = tuple[int, list[str]]  # line number, cells


@dataclass(frozen=True)
class Lines:
    """The rows of a CSV, and its separator. Empty rows are left out."""

    rows: list[Row]
    separator: str


def read_lines(path: Path, known: Collection[str] = ()) -> Lines:
    """Read a CSV.

    Args:
        path: The file.
        known: Names of columns, in lower case; the separator that shows most of them in the first row is used.
    """
    text = read_text(path)
    stated = re.match(r"sep=(.)\r?\n", text, re.IGNORECASE)  # Excel's first line
    separator = stated[1] if stated else _separator(text, known)
    rows = list(_rows(io.StringIO(text, newline=""), separator, path))
    if text.count('"') % 2 and rows and any("\n" in cell for cell in rows[-1][1]):
        raise UserError(f"{path}, line {rows[-1][0]}: a quoted cell begins here and does not end; close the quote.")
    return Lines(rows[1:] if stated else rows, separator)


def stream_rows(path: Path, known: Collection[str] = ()) -> Iterator[Row]:
    """The rows of a CSV, one at a time: the memory needed does not depend on the size of the file.

    Encoding and separator are found from the beginning of the file, as in `read_lines`.
    """
    try:
        with path.open("rb") as file:
            head = file.read(SNIFFED_BYTES)
        encoding = _encoding(head)
        separator = _separator(head.decode(encoding, errors="ignore"), known)
        with path.open(encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="") as file:
            lines = (line if line.isascii() else unicodedata.normalize("NFC", line) for line in file)
            yield from _rows(lines, separator, path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).") from None
    except UnicodeError as error:
        raise UserError(f"{path} is not {encoding.upper()} text ({error}); save it as UTF-8.") from None


def _rows(lines: Iterable[str], separator: str, path: Path) -> Iterator[Row]:
    line, reader = 1, csv.reader(lines, delimiter=separator)  # a quoted cell may contain line breaks
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {line}: invalid CSV ({error}).") from None


def _separator(text: str, known: Collection[str]) -> str:
    head = text.splitlines(keepends=True)[:SNIFFED_LINES]
    best, best_score = SEPARATORS[0], (0, False)
    for separator in SEPARATORS:
        try:
            rows = [row for row in csv.reader(head, delimiter=separator) if row]
        except csv.Error:
            continue
        if not rows:
            continue
        columns = sum(cell.strip().lower() in known for cell in rows[0]) if len(rows[0]) > 1 else 0
        score = columns, all(len(row) > 1 for row in rows)
        if score > best_score:
            best, best_score = separator, score
    return best


# --- records -------------------------------------------------------------------------------------

Record = dict[str, Any]


def read_records(path: Path) -> list[tuple[int, Record]]:
    """Read a table of records with named fields: ``.jsonl``, ``.ndjson``, ``.json`` or ``.parquet``.

    Returns:
        The line of each record (its number from 1, if the file has no lines) and its fields.
    """
    if path.suffix.lower() == ".parquet":
        table = read_parquet(path)
        texts = [field.name for field in table.schema if not is_vector(field)]
        return list(enumerate(table.select(texts).to_pylist(), 1))
    text = read_text(path)
    stripped = text.lstrip()
    if stripped.startswith("["):
        found = _parse(stripped, path, 1)
        records = list(enumerate(found, 1))
    else:
        lines = text.split("\n")  # not splitlines: JSON may contain other line breaks
        records = [(number, _parse(line, path, number)) for number, line in enumerate(lines, 1) if line.strip()]
    for number, record in records:
        if not isinstance(record, dict):
            shown = json.dumps(record)[:40]
            raise UserError(f"{path}, record {number}: expected an object with fields such as file, found {shown}.")
    return records


def is_vector(column: Any) -> bool:
    """Whether a column of pyarrow contains (a part of) the vector of an example: fractions, or lists of them.

    Times are none, and neither are labels: class numbers with missing values are stored as fractions.
    """
    types = import_optional("pyarrow.types", "Reading parquet files")
    kind = getattr(column.type, "value_type", column.type)
    return bool(types.is_floating(kind)) and not NO_FEATURE.search(column.name)


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"{path}, line {line + getattr(error, 'lineno', 1) - 1}"
        raise UserError(
            f"{where}: invalid JSON ({getattr(error, 'msg', error)}); expected one object per line."
        ) from None


def read_parquet(path: Path) -> Any:
    """Read a parquet file as a table of pyarrow."""
    parquet = import_optional("pyarrow.parquet", "Reading parquet files")
    content = read_bytes(path)
    try:
        return parquet.read_table(io.BytesIO(content))
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as parquet ({reason}).") from None
