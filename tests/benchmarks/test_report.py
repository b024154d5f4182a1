import pytest

from benchmarks import report
from benchmarks.speed import SECTIONS
from complementary.reports.figures import png

MS = {"ms": 3.0, "ms_low": 2.9, "ms_high": 3.25, "rounds": 5}


def found(**sections):
    return {
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11", "complementary": "0.1.0"},
        "engine": {"precision": "bf16"},
        "date": "2026-01-01T00:00:00+00:00",
        "quick": False,
        "sections": {name: {"seconds": 1.0, "peak_bytes": 2_500_000_000} | s for name, s in sections.items()},
    }


def step(mix, rate, network="resnet18"):
    more = {"speed_to_none": 0.97, "first_step_s": 31.26, "peak_bytes": 3_000_000}
    return {"network": network, "mix": mix, "batch": 512, "images_per_second": rate} | MS | more


@pytest.fixture
def results():
    steps = [{"network": "imports", "first_step_s": 4.5}, step("none", 175_000.4), step("icm", 171_234.5)]
    loops = [{"loop": a, "times_plain": 14.0} | step("icm", 9000) for a in ("plain", "ours")]
    stages = [{"network": "resnet18", "stage": "load", "share_of_step": 0.05} | MS]
    stages += [{"network": "resnet18", "stage": "evaluate the test set", "share_of_step": None} | MS]
    packs = [
        {"network": "resnet18", "trainings": n, "images_per_second": 1e5 * n, "times_alone": n} | MS for n in (1, 2)
    ]
    parts = {"steps": steps, "reference": loops, "stages": stages, "packing": packs}
    return found(**{name: {"rows": rows} for name, rows in parts.items()})


def test_tables_cover_every_section():
    assert list(report.TABLES) == list(SECTIONS)


def test_table_shows_speed_spread_ratio_and_memory(results):
    table = next(report.tables(results))
    assert table.header[:4] == ["network", "mixing", "batch", "images/s"]
    assert table.rows[0] == ["imports", "", "", "", "", "", "4.5", ""]
    assert table.rows[2] == ["resnet18", "icm", "512", "171,234", "3.00 (2.90-3.25)", "0.97 x", "31.3", "3"]
    assert table.note == "1 s, peak memory 2,500 MB"


def test_text_is_aligned_and_names_the_machine(results):
    text = report.text(results)
    assert text.startswith("NVIDIA H200 · torch 2.11 · bf16 · complementary 0.1.0 · 2026-01-01")
    lines = text.splitlines()
    at = lines.index(next(line for line in lines if line.startswith("network   mixing")))
    column = lines[at].index("images/s")
    assert lines[at + 2][column:].startswith("175,000")
    assert "14.00 x" in text


def test_text_of_a_failed_section_is_one_line():
    text = report.text(found(labels={"error": "ValueError: no"}))
    assert text.splitlines()[-1] == "Drawing labels (failed: ValueError: no)"


def test_heading_marks_quick_results(results):
    assert "meaningless" not in report.text(results)
    assert "meaningless" in report.text(results | {"quick": True})


def test_figure_has_a_panel_for_each_measured_section(results):
    figure = report.bench_figure(results)
    titles = [axis.get_title("left") for axis in figure.axes]
    assert titles == [
        "images/s, resnet18, batch 512",
        "images/s, ours and the plain loop, resnet18",
        "milliseconds of each stage",
        "images/s in total",
    ]
    assert [bar.get_height() for bar in figure.axes[0].patches] == [175_000.4, 171_234.5]
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["plain\nicm", "ours\nicm"]
    assert png(figure).startswith(b"\x89PNG")


def test_figure_omits_missing_sections(results):
    del results["sections"]["packing"]
    results["sections"]["stages"] = {"error": "no", "seconds": 0.0, "peak_bytes": 0}
    assert len(report.bench_figure(results).axes) == 2


def test_figure_panel_shows_one_network(results):
    results["sections"]["steps"]["rows"].append(step("icm", 5.0, "cnn"))
    assert len(report.bench_figure(results).axes[0].patches) == 2
