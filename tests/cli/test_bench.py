import json

from complementary.bench import SECTIONS


def test_it_shows_tables_and_writes_json(cll, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "bench.json"
    status, out, error = cll("bench", "--quick", "--device", "cpu", "--only", "labels", "scan", "--json", file)
    assert status == 0
    assert "Drawing labels" in out
    assert "The mixing alone as things grow" in out
    assert "labels: 1000 uniform ones" in error
    assert list(json.loads(file.read_text())["sections"]) == ["labels", "scan"]


def test_help_tells_what_each_section_measures(cll, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    status, out, _ = cll("bench", "--help")
    assert status == 0
    assert all(name in out for name in SECTIONS)


def test_bad_input_is_one_sentence(cll, tmp_path):
    status, _, error = cll("bench", "--quick", "--only", "setps")
    assert status == 2
    assert error.startswith("cll bench: The section 'setps' is not known; choose one of: steps, ")
    assert cll("bench", "--quick", "--json", tmp_path)[0] == 2


def test_a_failed_section_is_shown_in_one_line(cll, monkeypatch):
    from complementary import bench

    def fail(_):
        raise ValueError("no luck")

    monkeypatch.setitem(bench.SECTIONS, "labels", bench.Section(fail, ""))
    status, out, _ = cll("bench", "--quick", "--device", "cpu", "--only", "labels")
    assert status == 0
    assert "Drawing labels: failed: ValueError: no luck" in out
