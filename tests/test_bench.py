import json
import subprocess
import sys

import pytest

from complementary import bench as module
from complementary.bench import SECTIONS, bench, main
from complementary.bench_report import text
from complementary.engine.backend import Engine
from complementary.errors import UserError


def test_what_was_found_is_json_and_says_where_and_how():
    said = []
    results = bench("cpu", quick=True, only=["labels", "kmeans"], say=said.append)
    assert json.loads(json.dumps(results)) == results
    assert list(results["sections"]) == ["kmeans", "labels"]  # in the order of importance
    assert results["device"].startswith("cpu")
    assert results["engine"] == {"precision": "fp32", "compile": True, "deterministic": False}
    assert set(results["versions"]) == {"complementary", "python", "torch", "numpy"}
    assert results["scale"]["labels"] == 1000
    assert results["quick"] is True
    assert results["date"].endswith("+00:00")
    assert results["sections"]["labels"]["peak_bytes"] > 1_000_000
    assert [line.split(":")[0] for line in said] == ["k-means", "labels"]


def test_all_of_it_runs_on_a_cpu():
    results = bench("cpu", quick=True, say=lambda _: None)
    assert set(results["sections"]) == set(SECTIONS) - {"packing", "stacking", "no-max-pool", "stream"}
    assert [s["error"] for s in results["sections"].values() if "error" in s] == []
    ours = [row for row in results["sections"]["reference"]["rows"] if row["loop"] == "ours"]
    assert [(row["mix"], row["times_plain"] > 0) for row in ours] == [("none", True), ("icm", True)]


def test_streaming_is_measured_when_asked_for_and_in_the_precision_asked_for():
    results = bench(Engine.choose("cpu", "bf16"), quick=True, only=["stream"], say=lambda _: None)
    (row,) = results["sections"]["stream"]["rows"]
    assert row["streamed_images_per_second"] / row["resident_images_per_second"] == row["streamed_to_resident"]
    assert results["engine"]["precision"] == "bf16"
    assert "streamed to resident" in text(results)


def test_a_section_that_fails_says_so_and_the_rest_goes_on(monkeypatch):
    def fail(_):
        raise RuntimeError("out of luck\nand more")

    monkeypatch.setitem(SECTIONS, "kmeans", module.Section(fail, ""))
    said = []
    results = bench("cpu", quick=True, only=["kmeans", "labels"], say=said.append)
    assert results["sections"]["kmeans"]["error"] == "RuntimeError: out of luck"
    assert said[0] == "The section kmeans failed and is left out: RuntimeError: out of luck"
    assert "rows" in results["sections"]["labels"]


def test_what_was_found_so_far_is_kept_when_the_rest_is_stopped(monkeypatch, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(SECTIONS, "scan", module.Section(stop, ""))
    with pytest.raises(KeyboardInterrupt):
        bench("cpu", quick=True, only=["labels", "scan"], say=lambda _: None, out=tmp_path / "b.json")
    assert list(json.loads((tmp_path / "b.json").read_text())["sections"]) == ["labels"]


def test_an_unknown_section_is_refused_with_the_choices():
    with pytest.raises(UserError, match="The section 'setps' is not known; choose one of: steps, reference"):
        bench("cpu", quick=True, only=["setps"])


def test_as_a_module_it_needs_neither_tyro_nor_rich_nor_scikit_learn(tmp_path):
    block = "import sys; sys.modules.update(dict.fromkeys(('tyro', 'rich', 'sklearn', 'matplotlib')))"
    code = f"{block}; from complementary.bench import main; main(sys.argv[1:])"
    options = ["--quick", "--device", "cpu", "--only", "labels", "kmeans", "--json", str(tmp_path / "new" / "b.json")]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Drawing labels (" in done.stdout
    stored = json.loads((tmp_path / "new" / "b.json").read_text())
    assert [row["by"] for row in stored["sections"]["kmeans"]["rows"]] == ["ours"]


def test_as_a_module_bad_input_is_one_sentence(capsys, tmp_path):
    for options, said in [
        (["--only", "nix"], "The section 'nix' is not known"),
        (["--device", "abacus"], "The device 'abacus' cannot be used"),
        (["--json", str(tmp_path)], "is a folder; --json needs the name of a file"),
    ]:
        with pytest.raises(SystemExit) as stop:
            main(["--quick", *options])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) == 1
