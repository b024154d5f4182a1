import contextlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary.data.tables import is_vector, read_lines, read_records, read_text
from complementary.errors import UserError

TEXT = "file,not\ncafé.png,Ähre\nb.png,dog\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252"]
)
def test_text_is_read_in_any_usual_encoding(tmp_path, logged, encoding):
    (tmp_path / "a.csv").write_bytes(TEXT.encode(encoding))
    assert read_text(tmp_path / "a.csv") == TEXT
    assert bool(logged()) == (encoding in ("latin-1", "cp1252"))


def test_text_is_composed(tmp_path):
    (tmp_path / "a.txt").write_text("cafe\u0301", encoding="utf-8")
    assert read_text(tmp_path / "a.txt") == "café"


@pytest.mark.parametrize("content", [b"\x00\x01\x02" * 30, b"\xff\xfea", b"abc\x00def"], ids=["binary", "odd", "nul"])
def test_text_that_is_not_text_is_refused(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.csv"):
        read_text(tmp_path / "a.csv")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_separator_is_found(tmp_path, separator, header):
    rows = [["file", "not", "annotator"]] * header + [["a,b.png", "dog", "ann"], ["c.png", "cat", "bob"]]
    quoted = "\n".join(separator.join(f'"{c}"' if "," in c or separator in c else c for c in row) for row in rows)
    (tmp_path / "a.csv").write_text(quoted)
    lines = read_lines(tmp_path / "a.csv", {"file", "not"})
    assert lines.separator == separator
    assert [cells for _, cells in lines.rows] == rows


def test_separator_prefers_known_columns_over_characters_inside_cells(tmp_path):
    (tmp_path / "a.csv").write_text("file;not\na.png;dog,cat\nb,1.png;dog,ship\n")
    assert read_lines(tmp_path / "a.csv", {"file", "not"}).separator == ";"
    (tmp_path / "a.csv").write_text("a.png,dog;cat\nb.png,dog;ship\n")
    assert read_lines(tmp_path / "a.csv", {"file", "not"}).separator == ","


def test_separator_may_be_stated_as_excel_does(tmp_path):
    (tmp_path / "a.csv").write_text("sep=;\nfile;not\na,1.png;dog\n")
    assert read_lines(tmp_path / "a.csv").rows == [(2, ["file", "not"]), (3, ["a,1.png", "dog"])]


def test_line_numbers_count_line_breaks_inside_cells(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'a,b\r\n\r\n"c\r\nd",e\r\nf,g')
    assert read_lines(tmp_path / "a.csv").rows == [(1, ["a", "b"]), (3, ["c\r\nd", "e"]), (5, ["f", "g"])]


def test_csv_that_is_broken_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n" + "x" * 200_000 + ",c\n")
    with pytest.raises(UserError, match="line 2"):
        read_lines(tmp_path / "a.csv")


RECORDS = [{"file": "a.png", "not": ["dog", "cat"]}, {"file": "b.png", "not": None, "n": 3}]


@pytest.mark.parametrize("form", ["lines", "array", "indented"])
def test_records_are_read_from_json(tmp_path, form):
    text = {
        "lines": "\n\n".join(map(json.dumps, RECORDS)),
        "array": json.dumps(RECORDS),
        "indented": "\n" + json.dumps(RECORDS, indent=1),
    }[form]
    (tmp_path / "a.json").write_text(text, encoding="utf-8-sig")
    assert [record for _, record in read_records(tmp_path / "a.json")] == RECORDS
    assert [line for line, _ in read_records(tmp_path / "a.json")] == ([1, 3] if form == "lines" else [1, 2])


@pytest.mark.parametrize(
    ("text", "message"), [('{"a": 1}\n{"a":', "line 2"), ("[1, 2]", "record 1"), ("7", "record 1")]
)
def test_records_that_are_broken_are_refused(tmp_path, text, message):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        read_records(tmp_path / "a.jsonl")


def test_records_of_parquet_leave_out_vectors(tmp_path):
    columns = {"id": ["a", "b"], "not": [["dog"], None], "embedding": [[1.0, 2.0], [3.0, 4.0]]}
    columns |= {"x0": np.array([0.5, 1.5], np.float32), "time": [1.5, 2.5]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = [record for _, record in read_records(tmp_path / "a.parquet")]
    assert found == [{"id": "a", "not": ["dog"], "time": 1.5}, {"id": "b", "not": None, "time": 2.5}]
    (tmp_path / "a.parquet").write_bytes(b"PAR1 rubbish")
    with pytest.raises(UserError, match="parquet"):
        read_records(tmp_path / "a.parquet")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=200), st.sampled_from([".csv", ".jsonl", ".json", ".parquet"]))
def test_readers_raise_user_errors_only(tmp_path_factory, content, suffix):
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(content)
    for read in (read_lines, read_records):
        with contextlib.suppress(UserError):
            read(path)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("x1", True), ("sentiment", True), ("update_rate", True), ("runtime", True), ("candidate", True)]
    + [(name, False) for name in ("time", "lead_time", "time_ms", "timestamp", "date", "created_at", "not", "label 2")],
)
def test_columns_of_fractions_are_features_unless_their_name_says_a_time_or_a_label(name, wanted):
    assert is_vector(pa.field(name, pa.float64())) == wanted
