import contextlib
import json
import math
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary.data.answers import normalize_key, parse_answer, read_answers
from complementary.data.arrays import read_example_file
from complementary.errors import UserError


@pytest.fixture
def write(tmp_path):
    def to_file(text, encoding="utf-8", name="answers.csv"):
        path = tmp_path / name
        path.write_text(text, encoding=encoding)
        return path

    return to_file


def content(table):
    """Key -> (not, yes, truth), of all lines of a key together."""
    found = {}
    for answer in table.answers:
        no, yes, truth = found.setdefault(answer.key, ([], [], []))
        no += answer.no
        yes += answer.yes
        truth += [answer.truth] * bool(answer.truth and answer.truth not in truth)
    return {key: tuple(map(tuple, parts)) for key, parts in found.items()}


# --- tables with a column "not" ------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "file,not,truth\na.png,dog;cat,ship\nb.png,dog,cat\n",
        "file,not,truth\na.png,dog|cat,ship\nb.png,dog,cat\n",
        "file,not1,not2,truth\na.png,dog,cat,ship\nb.png,dog,,cat\n",
        "file,not,truth\na.png,dog,ship\nb.png,dog,cat\na.png,cat,ship\n",
        "Filename , NOT , Truth\n ./a.png , dog ; cat , ship \n\n b.png , dog , cat \n",
        "image\tnot\ttruth\na.png\tdog;cat\tship\nb.png\tdog\tcat\n",
        "file;not;truth\na.png;dog,cat;ship\nb.png;dog;cat\n",
        'file,not,truth\n"a.png","dog;cat;dog",ship\nb.png,dog,cat',
        "what,not,truth\na.png,dog;cat,ship\nb.png,dog,cat\n",
        "not,truth,file\ndog;cat,ship,a.png\ndog,cat,b.png\n",
        "file,not,truth\r\na.png,dog;cat,ship\r\nb.png,dog,cat\r\n",
        "file,not 1,not_2,truth\na.png,dog,cat,ship\nb.png,dog,,cat\n",
        "file,not,truth\na.png,!dog;!cat,ship\nb.png,not dog,cat\n",
        "file,answer,truth\na.png,not dog;cat,ship\nb.png,!dog,cat\n",
    ],
)
def test_answers_can_be_written_in_many_ways(write, logged, text):
    table = read_answers(write(text))
    assert content(table) == {"a.png": (("dog", "cat"), (), ("ship",)), "b.png": (("dog",), (), ("cat",))}
    assert table.class_names() == ["cat", "dog", "ship"]
    assert (table.has_answers, table.has_truth) == (True, True)
    assert len(logged()) == text.startswith("what"), "the column of the examples has an unusual name"


def test_answers_without_a_header(write):
    table = read_answers(write("a.png,dog,cat\nb.png,dog\n"))
    assert content(table) == {"a.png": (("dog", "cat"), (), ()), "b.png": (("dog",), (), ())}
    assert not table.has_truth


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_answers_with_other_encodings_and_backslashes(write, encoding):
    table = read_answers(write("file,not\nsub\\ä.png,Kühe\n", encoding))
    assert content(table) == {"sub/ä.png": (("Kühe",), (), ())}


def test_answers_with_true_classes_only(write):
    table = read_answers(write("file,truth\na.png,dog\n"))
    assert (table.has_answers, table.has_truth) == (False, True)


@pytest.mark.parametrize("column", ["comment", "notes", "label", "id", "nothing"])
def test_answers_log_ignored_columns(write, logged, column):
    table = read_answers(write(f"file,not,{column}\na.png,dog,7\n"))
    assert f"ignored columns: {column}" in logged()[0]
    assert content(table)["a.png"][0] == ("dog",)


def test_answers_without_a_header_warn_of_columns_that_share_no_class(write, logged):
    read_answers(write("a.png,dog,cat\nb.png,cat,dog\n"))
    assert not logged()
    assert read_answers(write("a.png,dog,ann\nb.png,cat,ann\n")).class_names() == ["ann", "cat", "dog"]
    assert "column 3 (ann) is read as classes" in logged()[0]


@pytest.mark.parametrize("missing", ["", "nan", "NaN", "<NA>"])
def test_answers_that_pandas_writes_as_missing_are_ignored(write, missing):
    table = read_answers(write(f"file,not\na.png,dog\nb.png,{missing}\nc.png,cat\n"))
    assert [answer.ignored for answer in table.answers] == [False, True, False]
    assert table.class_names() == ["cat", "dog"]


def test_parquet_with_numbers_and_missing_values_has_answers(tmp_path):
    columns = {"row": [0, 1, 2], "not": [1.0, None, 0.0], "x": [0.5, 0.7, 0.1]}
    pq.write_table(pa.table(columns), tmp_path / "answers.parquet")
    assert content(read_answers(tmp_path / "answers.parquet")) == {
        "0": (("1",), (), ()),
        "1": ((), (), ()),
        "2": (("0",), (), ()),
    }
    assert read_example_file(tmp_path / "answers.parquet").features == ("x",)


def test_answers_may_contain_line_breaks(write):
    table = read_answers(write('file,not\n"a\nb.png",dog\n"c\u2028d.png",cat\ne.png,cat\n'))
    assert {a.key: a.line for a in table.answers} == {"a\nb.png": 2, "c\u2028d.png": 4, "e.png": 5}


# --- who, when, yes and ignored ------------------------------------------------------------------


def test_answers_of_every_kind(write):
    text = (
        "file,answer,worker,timestamp\n1,not a dog,ann,1700000000\n2,!dog;!cat,bob,1700000000000\n"
        "3,yes cat,ann,2023-11-14T22:13:20Z\n4,ignore,bob,2023-11-14 22:13:20\n5,,ann,\n6,no: cat,,soon\n"
    )
    answers = read_answers(write(text)).answers
    assert [(a.no, a.yes) for a in answers] == [
        (("dog",), ()),
        (("dog", "cat"), ()),
        ((), ("cat",)),
        ((), ()),
        ((), ()),
        (("cat",), ()),
    ]
    assert [a.ignored for a in answers] == [False, False, False, True, True, False]
    assert [a.annotator for a in answers] == ["ann", "bob", "ann", "bob", "ann", ""]
    assert [a.time for a in answers[:4]] == [1.7e9] * 4
    assert all(math.isnan(a.time) for a in answers[4:])


@pytest.mark.parametrize(
    ("cell", "no", "yes"),
    [
        ("not cat", ["cat"], []),
        ("Not: polar bear", ["polar bear"], []),
        ("is not an owl", ["owl"], []),
        ("!cat;dog", ["cat", "dog"], []),
        ("not cat;yes dog", ["cat"], ["dog"]),
        ("no cat", ["cat"], []),
        ("yes, cat", [], ["cat"]),
        ("is a cat", [], ["cat"]),
        (["!cat", "!dog"], ["cat", "dog"], []),
        ("?", [], []),
        ("not nothing", ["nothing"], []),
        (None, [], []),
        (float("nan"), [], []),
    ],
)
def test_parse_answer_reads_prefixes(cell, no, yes):
    assert parse_answer(cell) == (no, yes)


@pytest.mark.parametrize("name", ["nothing", "november", "island", "yesterday", "no finding", "3", 3, 3.0, ["nothing"]])
def test_parse_answer_leaves_names_alone(name):
    wanted = "3" if name in (3, "3") else (name[0] if isinstance(name, list) else name)
    assert parse_answer(name, "not") == ([wanted], [])
    assert parse_answer(name, "yes") == ([], [wanted])


def test_answers_of_accept_and_reject_need_the_class_that_was_asked_about(write):
    table = read_answers(write("file,label,answer\n1,cat,accept\n2,cat,reject\n3,dog,ignore\n4,dog,no\n"))
    assert content(table) == {
        "1": ((), ("cat",), ()),
        "2": (("cat",), (), ()),
        "3": ((), (), ()),
        "4": (("dog",), (), ()),
    }
    with pytest.raises(UserError, match="column label"):
        read_answers(write("file,answer\n1,yes\n2,no\n"))


def test_meaning_decides_what_a_bare_name_means(write):
    path = write("file,label\na.png,dog\nb.png,cat\n")
    with pytest.raises(UserError, match="meaning") as caught:
        read_answers(path)
    assert caught.value.option == "meaning"
    assert content(read_answers(path, "not"))["a.png"] == (("dog",), (), ())
    assert content(read_answers(path, "yes"))["a.png"] == ((), ("dog",), ())
    path = write("file,answer\na.png,not dog\nb.png,cat\n")
    with pytest.raises(UserError, match=r"line 3: the answer 'cat'"):
        read_answers(path)
    assert content(read_answers(path, "yes")) == {"a.png": (("dog",), (), ()), "b.png": ((), ("cat",), ())}


def test_rules_are_columns_and_become_annotators(write, logged):
    text = "id,lf_fur,lf_wheels,comment\n1,!ship,,nice\n2,,not cat;not dog,\n3,-1,abstain,\n4,!ship,yes ship,\n"
    answers = read_answers(write(text)).answers
    assert [(a.key, a.annotator, a.no, a.yes) for a in answers] == [
        ("1", "lf_fur", ("ship",), ()),
        ("2", "lf_wheels", ("cat", "dog"), ()),
        ("3", "", (), ()),
        ("4", "lf_fur", ("ship",), ()),
        ("4", "lf_wheels", (), ("ship",)),
    ]
    assert "ignored columns: comment" in logged()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("file,not\n", "no answers"),
        ("a.png\nb.png\n", "has one column"),
        ("file,label\na.png,dog\n", "has the columns file, label; expected file"),
        ("not,truth\ndog,cat\n", "has the columns not, truth; expected file"),
        ("file,worker\na.png,7\n", "has the columns file, worker; expected file"),
        ("file,not\n,dog\n", "line 2: the column file is empty"),
        ("file,not\na.png,dog\nb.png,cat,ship\n", "line 3: 3 cells, but 2 columns"),
        ('file,not\na.png,dog\n"b.png,cat\nc.png,dog\n', "line 3: a quoted cell"),
    ],
)
def test_answers_that_are_invalid_are_refused(write, text, message):
    with pytest.raises(UserError, match=message):
        read_answers(write(text))


def test_normalize_key_compares_names():
    assert normalize_key(".\\a\\b.png") == "a/b.png"
    assert normalize_key(unicodedata.normalize("NFD", "café.png")) == "café.png"
    assert normalize_key("https://host.org/photos/a%20b.png?token=1") == "photos/a b.png"
    assert normalize_key("s3://bucket/photos/1.png") == "photos/1.png"


# --- JSON lines and exports of tools -------------------------------------------------------------


def lines(*records):
    return "\n".join(map(json.dumps, records))


def test_json_lines_have_the_same_fields(write):
    text = lines(
        {"file": "a.png", "not": ["dog", "cat"], "annotator": "ann", "time": 5},
        {"file": "b.png", "not": "dog;cat", "annotator": 7},
        {"file": "c.png", "yes": "cat"},
        {"file": "d.png"},
    )
    answers = read_answers(write(text, name="answers.jsonl")).answers
    assert [(a.no, a.yes, a.annotator) for a in answers] == [
        (("dog", "cat"), (), "ann"),
        (("dog", "cat"), (), "7"),
        ((), ("cat",), ""),
        ((), (), ""),
    ]
    assert answers[0].time == 5


def test_prodigy_labels_are_accepted_rejected_or_ignored(write):
    common = {"_input_hash": 1, "_task_hash": 2, "_session_id": "db-bob", "_view_id": "classification"}
    text = lines(
        {"image": "data:image/png;base64,AAAA", "path": "photos/1.png", "label": "cat", "answer": "reject", **common},
        {"image": "photos/2.png", "label": "cat", "answer": "accept", "_annotator_id": "db-ann", "_timestamp": 1.7e9},
        {"image": "photos/3.png", "label": "cat", "answer": "ignore", **common},
        {"text": "a text", "meta": {"id": 4}, "label": "dog", "answer": "reject", **common},
    )
    answers = read_answers(write(text, name="export.jsonl")).answers
    assert [(a.key, a.no, a.yes, a.annotator) for a in answers] == [
        ("photos/1.png", ("cat",), (), "db-bob"),
        ("photos/2.png", (), ("cat",), "db-ann"),
        ("photos/3.png", (), (), "db-bob"),
        ("4", ("dog",), (), "db-bob"),
    ]
    assert answers[1].time == 1.7e9
    with pytest.raises(UserError, match="line 1"):
        read_answers(write('{"image": "data:x", "label": "cat", "answer": "accept"}', name="export.jsonl"))


def test_prodigy_choices_exclude_the_others(write):
    options = [{"id": "cat", "text": "A cat"}, {"id": "dog", "text": "A dog"}, {"id": "ship", "text": "A ship"}]
    text = lines(
        {"image": "1.png", "options": options, "accept": ["cat"], "answer": "accept"},
        {"image": "2.png", "options": options, "accept": ["cat", "dog"], "answer": "accept"},
        {"image": "3.png", "options": options, "accept": ["cat"], "answer": "reject"},
        {"image": "4.png", "options": options, "accept": [], "answer": "accept"},
        {"image": "5.png", "options": options, "accept": ["cat"], "answer": "ignore"},
    )
    path = write(text, name="export.jsonl")
    found = [(a.no, a.yes) for a in read_answers(path).answers]
    assert found == [((), ("cat",)), ((), ("cat", "dog")), (("cat",), ()), ((), ()), ((), ())]
    asked_for_not = [(a.no, a.yes) for a in read_answers(path, "not").answers]
    assert asked_for_not[:3] == [(("cat",), ()), (("cat", "dog"), ()), ((), ("cat",))]


def annotation(choices, control="not", **more):
    result = {"id": "x", "type": "choices", "from_name": control, "to_name": "img", "value": {"choices": choices}}
    return {"id": 1, "result": [result], "was_cancelled": False, "completed_by": 10} | more


def test_label_studio_export_is_read(write):
    tasks = [
        {
            "id": 1,
            "data": {"image": "/data/upload/3/0a1b2c3d-photo%201.jpg"},
            "annotations": [
                annotation(["cat", "dog"], updated_at="2021-03-09T22:16:08.728378Z"),
                annotation(["ship"], "kind", completed_by={"id": 11, "email": "ann@x.org"}),
            ],
        },
        {
            "id": 2,
            "data": {"image": "/data/local-files/?d=photos/2.jpg"},
            "annotations": [annotation(["cat"], was_cancelled=True)],
        },
        {"id": 3, "data": {"image": "https://example.com/photos/3.jpg"}, "annotations": []},
        {"id": 4, "data": {"id": 17, "text": "some words"}, "annotations": [annotation(["!cat"], "kind")]},
    ]
    path = write(json.dumps(tasks), name="project-1.json")
    answers = read_answers(path).answers
    assert [(a.key, a.no, a.yes, a.annotator) for a in answers] == [
        ("photo 1.jpg", ("cat", "dog"), (), "10"),
        ("photo 1.jpg", (), ("ship",), "ann@x.org"),
        ("photos/2.jpg", (), (), "10"),
        ("photos/3.jpg", (), (), ""),
        ("17", ("cat",), (), "10"),
    ]
    assert answers[0].time == pytest.approx(1615328168.728378)
    assert read_answers(path, "not").answers[1].no == ("ship",)


def test_label_studio_csv_needs_the_meaning_of_its_choices(write, logged):
    path = write("image,id,choice,annotator,annotation_id,created_at,lead_time\na.jpg,1,cat,7,5,2021-03-09,2.5\n")
    with pytest.raises(UserError, match="meaning"):
        read_answers(path)
    (answer,) = read_answers(path, "not").answers
    assert (answer.key, answer.no, answer.annotator) == ("a.jpg", ("cat",), "7")
    assert "annotation_id" in logged()[-1]


def test_label_studio_short_export_is_read(write):
    tasks = [
        {
            "id": 1,
            "image": "/data/upload/1/0a1b2c3d-a.jpg",
            "not": "cat",
            "annotator": 1,
            "annotation_id": 5,
            "lead_time": 2.5,
        },
        {"id": 2, "image": "b.jpg", "not": {"choices": ["cat", "dog"]}, "annotator": 1, "annotation_id": 6},
    ]
    assert content(read_answers(write(json.dumps(tasks), name="min.json"))) == {
        "a.jpg": (("cat",), (), ()),
        "b.jpg": (("cat", "dog"), (), ()),
    }


# --- anything else -------------------------------------------------------------------------------

words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(
    lambda w: unicodedata.is_normalized("NFC", w)
)


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(words, st.lists(words, min_size=1, max_size=4, unique=True), min_size=1, max_size=6))
def test_answers_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "round-trip.csv"
    text = "file,not\n" + "".join(f"{key},{';'.join(labels)}\n" for key, labels in rows.items())
    path.write_text(text, encoding="utf-8")
    ignored = {"ignore", "ignored", "skip", "skipped"}
    wanted = {key: tuple(n for n in names if n.lower() not in ignored) for key, names in rows.items()}
    assert {key: no for key, (no, _, _) in content(read_answers(path)).items()} == wanted


cells = st.one_of(st.sampled_from(["not cat", "!dog", "yes cat", "?", "accept", "file", "not", "a.png", ""]), st.text())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
fields = st.sampled_from(
    ["file", "not", "yes", "answer", "label", "annotator", "time", "accept", "annotations", "data"]
)
results = st.lists(st.fixed_dictionaries({"value": st.one_of(values, st.fixed_dictionaries({"choices": values}))}))
tasks = st.fixed_dictionaries(
    {
        "data": st.fixed_dictionaries({"image": values}),
        "annotations": st.one_of(values, st.lists(st.fixed_dictionaries({"result": st.one_of(values, results)}))),
    }
)
prodigy = st.fixed_dictionaries({"path": cells, "answer": st.sampled_from(["accept", "reject"]), "accept": values})
records = st.one_of(st.dictionaries(fields, st.one_of(values, cells), max_size=5), tasks, prodigy)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.one_of(
        st.lists(st.lists(cells, min_size=1, max_size=4).map(",".join), max_size=5).map("\n".join),
        st.one_of(*(st.lists(each.map(json.dumps), max_size=3) for each in (records, tasks, prodigy))).map("\n".join),
        st.text(max_size=80),
    ),
    st.sampled_from(["fuzz.csv", "fuzz.jsonl"]),
    st.sampled_from(["auto", "not", "yes"]),
)
def test_answers_of_any_content_are_read_or_refused(tmp_path_factory, text, name, meaning):
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(UserError):
        table = read_answers(path, meaning)
        assert table.answers
        assert all(answer.key and all(answer.names) for answer in table.answers)
