import contextlib
import json
import re

import pytest
import torch

from complementary.cli.demo import MIXES, one_thread
from complementary.config import Config
from complementary.training.task import prepare

FAST = ("--epochs", 2, "--pretrain-epochs", 1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One cache for all tests of this file: the encoder is pretrained once."""
    folder = tmp_path_factory.getbasetemp() / "demo-cache"
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(folder))
    return folder


def test_the_demo_runs_and_its_page_stands_alone(cll, tmp_path):
    status, _, _ = cll("demo", "--out", tmp_path, "--seeds", 2, *FAST)
    assert status == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(r["mix"], r["config"]["seed"]) for r in results] == [(m, s) for s in (0, 1) for m in MIXES]
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', page), "a self-contained page fetches nothing"
    assert len(page) > 50_000


def test_table_and_page_show_the_results_that_were_stored(cll, tmp_path):
    _, out, _ = cll("demo", "--out", tmp_path, "--seeds", 2, *FAST)
    results = json.loads((tmp_path / "results.json").read_text())
    page = (tmp_path / "report.html").read_text()
    for name in MIXES:
        values = [100 * r["accuracy_last"] for r in results if r["mix"] == name]
        mean = f"{sum(values) / len(values):.1f}"
        assert any(name in line and mean in line for line in out.splitlines())
        assert mean in page


def test_a_second_demo_replaces_only_its_own_files(cll, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    for _ in range(2):
        assert cll("demo", "--out", tmp_path, "--seeds", 1, *FAST)[0] == 0
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert {p.name for p in tmp_path.iterdir()} == {"mine.txt", "results.json", "report.html"}


def test_all_seeds_share_one_simsiam_and_pixels_are_compared(cll, tmp_path, cache):
    _, out, _ = cll("demo", "--out", tmp_path, "--seeds", 2, *FAST)
    results = json.loads((tmp_path / "results.json").read_text())
    (encoder,) = {r["config"]["cluster"]["encoder"] for r in results}
    (folder,) = (cache / "stages").glob("pretrain-*")
    assert encoder == f"run:{folder}"
    assert json.loads((folder / "result.json").read_text())["config"]["encoder"] == "simsiam"
    for r in results:
        if r["mix"] == "icm":
            same = Config.of(mix="icm", clusters=50, batch=128, seed=r["config"]["seed"])
            assert r["noise_ratio_pixels"] == prepare(same).facts["oracle_noise_ratio"] != r["noise_ratio"]
    values = [100 * r["noise_ratio_pixels"] for r in results if r["mix"] == "icm"]
    for text in (out, (tmp_path / "report.html").read_text()):
        assert f"with clusters of raw pixels {sum(values) / 2:.1f} ±" in " ".join(text.split())


def test_one_thread_and_then_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with contextlib.suppress(KeyboardInterrupt), one_thread():
        seen = torch.get_num_threads()
        raise KeyboardInterrupt
    assert (seen, torch.get_num_threads()) == (1, 2)
    torch.set_num_threads(before)
