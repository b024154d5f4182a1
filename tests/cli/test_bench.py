import json

import pytest

from benchmarks import speed
from complementary.cli.bench import find_checkout
from complementary.errors import UserError


def test_bench_shows_tables_and_writes_json(cll, tmp_path):
    file = tmp_path / "bench.json"
    status, out, error = cll("bench", "--quick", "--device", "cpu", "--only", "labels", "scan", "--json", file)
    assert status == 0
    assert "Drawing labels" in out
    assert "Mixing alone" in out
    assert "labels: 1000 uniform ones" in error
    assert list(json.loads(file.read_text())["sections"]) == ["labels", "scan"]


def test_bench_help_names_every_section(cll):
    status, out, _ = cll("bench", "--help")
    assert status == 0
    assert all(name in out for name in speed.SECTIONS)


def test_bench_rejects_bad_input_with_status_2(cll, tmp_path):
    status, _, error = cll("bench", "--quick", "--only", "setps")
    assert status == 2
    assert error.startswith("cll bench: ")
    assert "'setps'" in error
    assert cll("bench", "--quick", "--json", tmp_path)[0] == 2


def test_bench_shows_a_failed_section_in_one_line(cll, monkeypatch):
    def fail(_):
        raise ValueError("no luck")

    monkeypatch.setitem(speed.SECTIONS, "labels", speed.Section(fail, ""))
    status, out, _ = cll("bench", "--quick", "--device", "cpu", "--only", "labels")
    assert status == 0
    assert "Drawing labels (failed: ValueError: no luck)" in out


def test_find_checkout_takes_the_first_place_with_benchmarks(tmp_path):
    (tmp_path / "b" / "benchmarks").mkdir(parents=True)
    (tmp_path / "b" / "benchmarks" / "speed.py").touch()
    assert find_checkout([tmp_path / "a", tmp_path / "b"]) == tmp_path / "b"


def test_find_checkout_says_where_to_get_the_benchmarks(tmp_path):
    with pytest.raises(UserError, match="Clone the repository"):
        find_checkout([tmp_path])
