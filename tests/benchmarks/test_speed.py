import json
import logging
import subprocess
import sys

import pytest

from benchmarks import speed
from benchmarks.report import text
from benchmarks.speed import SECTIONS, bench, main
from complementary.engine.backend import Engine
from complementary.errors import UserError


def fail(_):
    raise RuntimeError("out of luck\nand more")


def test_results_are_json_with_machine_versions_and_scale(caplog):
    caplog.set_level(logging.INFO, "benchmarks")
    results = bench("cpu", quick=True, only=["labels", "kmeans"])
    assert json.loads(json.dumps(results)) == results
    assert list(results["sections"]) == ["kmeans", "labels"]  # in the order of importance
    assert results["device"].startswith("cpu")
    assert results["engine"] == {"precision": "fp32", "compile": True, "deterministic": False}
    assert set(results["versions"]) == {"complementary", "python", "torch", "numpy"}
    assert results["scale"]["labels"] == 1000
    assert results["quick"] is True
    assert results["date"].endswith("+00:00")
    assert results["sections"]["labels"]["peak_bytes"] > 1_000_000
    assert [line.split(":")[0] for line in caplog.messages] == ["k-means", "labels"]


@pytest.mark.slow
def test_default_sections_run_on_a_cpu():
    results = bench("cpu", quick=True)
    assert set(results["sections"]) == set(SECTIONS) - {"packing", "no-max-pool", "stream"}
    assert [s["error"] for s in results["sections"].values() if "error" in s] == []
    ours = [row for row in results["sections"]["reference"]["rows"] if row["loop"] == "ours"]
    assert [(row["mix"], row["times_plain"] > 0) for row in ours] == [("none", True), ("icm", True)]


def test_stream_section_uses_the_precision_of_the_engine():
    results = bench(Engine.choose("cpu", "bf16"), quick=True, only=["stream"])
    (row,) = results["sections"]["stream"]["rows"]
    assert row["streamed_images_per_second"] / row["resident_images_per_second"] == row["streamed_to_resident"]
    assert results["engine"]["precision"] == "bf16"
    assert "streamed to resident" in text(results)


def test_failed_section_is_logged_and_the_others_run(monkeypatch, caplog):
    monkeypatch.setitem(SECTIONS, "kmeans", speed.Section(fail, ""))
    results = bench("cpu", quick=True, only=["kmeans", "labels"])
    assert results["sections"]["kmeans"]["error"] == "RuntimeError: out of luck"
    assert "section kmeans failed" in caplog.text
    assert "rows" in results["sections"]["labels"]


def test_finished_sections_are_kept_when_the_benchmark_is_interrupted(monkeypatch, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(SECTIONS, "scan", speed.Section(stop, ""))
    with pytest.raises(KeyboardInterrupt):
        bench("cpu", quick=True, only=["labels", "scan"], out=tmp_path / "b.json")
    assert list(json.loads((tmp_path / "b.json").read_text())["sections"]) == ["labels"]


def test_unknown_section_lists_the_choices():
    with pytest.raises(UserError, match=r"'setps'.*steps, reference"):
        bench("cpu", quick=True, only=["setps"])


@pytest.mark.slow
def test_module_needs_only_torch_and_numpy(tmp_path):
    block = "import sys; sys.modules.update(dict.fromkeys(('tyro', 'rich', 'sklearn', 'matplotlib')))"
    code = f"{block}; from benchmarks.speed import main; main(sys.argv[1:])"
    options = ["--quick", "--device", "cpu", "--only", "labels", "kmeans", "--json", str(tmp_path / "new" / "b.json")]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Drawing labels (" in done.stdout
    stored = json.loads((tmp_path / "new" / "b.json").read_text())
    assert [row["by"] for row in stored["sections"]["kmeans"]["rows"]] == ["ours"]


@pytest.mark.parametrize("option", ["--only", "--device", "--json"])
def test_main_reports_bad_input_in_one_line(capsys, tmp_path, option):
    value = str(tmp_path) if option == "--json" else "nix"
    with pytest.raises(SystemExit) as stop:
        main(["--quick", option, value])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert value in error
    assert len(error.splitlines()) == 1
