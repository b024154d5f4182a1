import dataclasses
import json
import os
import sqlite3

import pytest

from complementary.config import Config
from complementary.errors import UserError
from complementary.sweeps.results import OPTIONS, Damaged, Foreign, Index, find, read_result
from complementary.training.run import run


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def put(tmp_path):
    """Write a result as a run would -> its path."""

    def write(name, accuracy=0.5, **options):
        config = Config.of(**options)
        content = {"accuracy_last": accuracy, "train_seconds": 2.0, "data": {"examples": 9}, "device": "cpu"}
        content |= {"config": dataclasses.asdict(config), "config_hash": config.hash()}
        path = tmp_path / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return path

    return write


def test_a_real_run_is_a_flat_row(tmp_path, quick):
    result = run(quick, tmp_path / "x")
    with Index([tmp_path]) as index:
        (row,) = index.select()
    assert row["data"] == "digits"
    assert row["mix"] == "icm"
    assert row["clusters"] == 20
    assert row["accuracy_last"] == result["accuracy_last"]
    assert row["examples"] == result["data"]["examples"]
    assert json.loads(row["per_class_accuracy_last"]) == result["per_class_accuracy_last"]
    assert row["config_hash"] == result["config_hash"]
    assert set(OPTIONS) <= set(row)


def test_files_folders_and_patterns_are_found_once_each_and_hidden_folders_are_not(put, tmp_path):
    a, b, c = put("a.json"), put("deep/b/result.json"), put("deep/c.json")
    put(".hidden/d.json")
    (tmp_path / "results" / "note.txt").write_text("")
    root = tmp_path / "results"
    assert find([root]) == [a, c, b]
    assert find([root / "deep" / "*", a, root]) == [b, c, a]
    with pytest.raises(UserError, match=r"There is no file or folder .*zzz"):
        find([root / "zzz*"])


def test_a_configuration_that_is_stored_twice_counts_once(put, tmp_path):
    put("a.json", 0.1), put("b.json", 0.9), put("c.json", 0.3, seed=1)
    with Index([tmp_path / "results"]) as index:
        assert [row["accuracy_last"] for row in index.select()] == [0.1, 0.3]
        assert index.repeated == 1


def test_rows_are_chosen_by_value_also_none_and_switches(put, tmp_path):
    put("a.json", flip=True), put("b.json", flip=False), put("c.json", long_tail=10.0)
    with Index([tmp_path / "results"]) as index:
        assert [row["flip"] for row in index.select({"flip": [True, None]})] == [True, None]
        assert [row["flip"] for row in index.select({"flip": [None]})] == [None]
        assert [row["long_tail"] for row in index.select({"long_tail": [10], "flip": [None]})] == [10.0]


# --- the index is only a cache ------------------------------------------------------------------------


def read(paths, **how):
    with Index(paths, **how) as index:
        return [row["accuracy_last"] for row in index.select()]


def test_the_index_is_used_as_it_is_while_no_file_changed(put, tmp_path, monkeypatch):
    put("a.json", 0.1)
    assert read([tmp_path / "results"]) == [0.1]
    monkeypatch.setattr("complementary.sweeps.results.row_of", None)  # whoever reads a file now, fails
    assert read([tmp_path / "results"]) == [0.1]


def test_the_index_follows_files_that_change_come_and_go(put, tmp_path):
    where = [tmp_path / "results"]
    a = put("a.json", 0.1)
    assert read(where) == [0.1]
    stamp = a.stat()
    put("a.json", 0.2)  # as long as before
    os.utime(a, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert read(where) == [0.2]
    put("b.json", 0.3, seed=1)
    assert read(where) == [0.2, 0.3]
    a.unlink()
    assert read(where) == [0.3]


@pytest.mark.parametrize("harm", ["delete", "garble", "empty", "forbid"])
def test_the_index_may_be_lost_at_any_time(put, tmp_path, harm):
    put("a.json", 0.1)
    assert read([tmp_path / "results"]) == [0.1]
    (file,) = (tmp_path / "cache" / "index").iterdir()
    if harm == "garble":
        file.write_bytes(b"no database" * 100)
    elif harm == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
    if harm == "forbid":
        file.parent.rmdir()
        file.parent.write_text("in the way")
    assert read([tmp_path / "results"]) == [0.1]


def test_the_index_can_be_kept_for_questions_of_ones_own(put, tmp_path):
    put("a.json", 0.1, loss="dm"), put("b.json", 0.3, loss="dm", seed=1)
    with Index([tmp_path / "results"], file=tmp_path / "all.sqlite"):
        pass
    database = sqlite3.connect(tmp_path / "all.sqlite")
    assert database.execute("SELECT loss, avg(accuracy_last) FROM runs GROUP BY loss").fetchall() == [("dm", 0.2)]
    database.close()


@pytest.mark.parametrize("what", ["text", "nothing", "folder", "database", "more tables", "other seal"])
def test_nothing_but_an_index_is_replaced_by_one(put, tmp_path, what):
    put("a.json", 0.1)
    file, where = tmp_path / "precious", [tmp_path / "results"]
    if what == "folder":
        file.mkdir()
    elif what in ("text", "nothing"):
        file.write_text("lr = 0.1\n" if what == "text" else "")
    elif what == "more tables":
        read(where, file=file)
    if what in ("database", "more tables", "other seal"):
        database = sqlite3.connect(file)
        database.execute("CREATE TABLE mine (thought)")
        if what == "other seal":
            database.execute("ALTER TABLE mine RENAME TO runs")
            database.execute("CREATE TABLE about (name, value)")
        database.commit()
        database.close()
    before = file.read_bytes() if file.is_file() else None
    put("b.json", 0.2, seed=1)
    with pytest.raises(UserError, match=r"precious is there already, and is not an index of runs but a"):
        read(where, file=file)
    assert (file.read_bytes() if file.is_file() else None) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "precious", "results"}  # no draft either


def test_an_index_of_ones_own_choice_that_cannot_be_written_is_a_sentence(put, tmp_path):
    put("a.json", 0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"all.sqlite cannot be written .*; choose another --index"):
        read([tmp_path / "results"], file=tmp_path / "file" / "all.sqlite")


# --- damage -------------------------------------------------------------------------------------------


def alter(path, **changes):
    content = json.loads(path.read_text())
    content |= changes
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-40]), "it is not whole JSON"),
        (lambda p: p.write_bytes(b""), "it is not whole JSON"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "it is not whole JSON"),
        (lambda p: p.write_text(p.read_text().replace('"alpha": 0.4', '"alpha": 0.5')), "config_hash does not belong"),
        (lambda p: p.write_text(p.read_text().replace('"alpha": 0.4', '"alpha": "x"')), "configuration cannot be read"),
        (lambda p: alter(p, accuracy_last="high"), "accuracy_last is high"),
    ],
)
def test_a_damaged_file_is_named_and_can_be_skipped(put, tmp_path, harm, said):
    put("good.json", 0.1, seed=1)
    bad = put("bad.json", 0.2)
    harm(bad)
    with pytest.raises(Damaged, match=said) as problem:
        read([tmp_path / "results"])
    assert str(bad) in str(problem.value)
    assert "--skip-damaged" in str(problem.value)
    for _ in range(2):  # also from the cache
        with Index([tmp_path / "results"], skip_damaged=True) as index:
            assert [row["accuracy_last"] for row in index.select()] == [0.1]
            assert len(index.skipped) == 1


def test_json_of_another_kind_is_passed_over_in_a_folder_but_not_by_name(put, tmp_path):
    put("a.json", 0.1)
    other = tmp_path / "results" / "encoder.json"
    other.write_text('{"loss_last": 1, "config": {"data": "digits"}}')
    assert read([tmp_path / "results"]) == [0.1]
    with pytest.raises(Foreign, match=r"encoder.json is not the result of a training run"):
        read([other])


@pytest.mark.parametrize("content", ["{}", "[1, 2]", "null", '{"config": {}}'])
@pytest.mark.parametrize("sweep", [True, False])
def test_json_of_another_kind_is_damage_where_a_sweep_has_its_results(put, tmp_path, content, sweep, monkeypatch):
    put("sweep/runs/0123456789abcdef/result.json", 0.1)
    bad = put(f"sweep/runs/{'any-name' if sweep else 'fedcba9876543210'}/result.json", 0.2, seed=1)
    bad.write_text(content)
    if sweep:
        (tmp_path / "results/sweep/sweep.json").write_text("{}")
    for place in (tmp_path, bad.parent.parent, bad):
        with pytest.raises(Damaged, match=r"result.json is damaged: it is whole JSON, but not the result of a train"):
            read([place])
    monkeypatch.chdir(bad.parent)
    with pytest.raises(Damaged):
        read(["result.json"])
    assert read([tmp_path], skip_damaged=True) == [0.1]


def test_a_result_json_of_another_kind_elsewhere_is_passed_over(put, tmp_path):
    """Such as that of an encoder, which `cll pretrain` leaves in runs/ too."""
    put("runs/digits-icm-0/result.json", 0.1)
    put("runs/digits-simsiam-0/result.json", 0.2, seed=1).write_text('{"loss_last": 1}')
    assert read([tmp_path]) == [0.1]


def test_options_that_came_later_do_not_hide_that_a_configuration_was_changed(put):
    path = put("old.json", 0.7)
    content = json.loads(path.read_text())
    del content["config"]["dataset"]["inputs"]
    path.write_text(json.dumps(content))
    assert read_result(path)["accuracy_last"] == 0.7
    content["config"]["training"]["lr"] = 0.5
    path.write_text(json.dumps(content))
    with pytest.raises(Damaged, match="config_hash does not belong"):
        read_result(path)


def test_a_result_of_an_earlier_version_lacks_options_and_is_still_the_same_configuration(put, tmp_path):
    path = put("old.json", 0.7)
    put("new.json", 0.8)
    content = json.loads(path.read_text())
    del content["config"]["mixing"]["clean_pass"]
    path.write_text(json.dumps(content | {"config_hash": "as it was then"}))
    assert read_result(path)["accuracy_last"] == 0.7
    with Index([path.parent]) as index:
        assert index.repeated == 1
        assert index.select()[0]["clean_pass"] is False


def test_json_that_holds_a_configuration_but_no_result_is_passed_over(put, tmp_path):
    path = put("run.json", 0.7)
    content = json.loads(path.read_text())
    (path.parent / "bench.json").write_text(json.dumps({"config": content["config"], "rows": []}))
    with Index([path.parent]) as index:
        assert len(index.select()) == 1
