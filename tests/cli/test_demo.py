"""``cll demo``: one short run, looked at from several sides."""

import contextlib
import io
import json
import re
from types import SimpleNamespace

import pytest
import torch

from complementary.cli.demo import MIXES, main
from complementary.config import Config
from complementary.engine.backend import one_thread
from complementary.training.task import build_task


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo ran twice in one folder, with two seeds and few epochs."""
    out, cache, screen = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("cache"), io.StringIO()
    (out / "mine.txt").write_text("kept")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(screen):
        patch.setenv("COMPLEMENTARY_CACHE", str(cache))
        for seeds in ("1", "2"):
            main(["--out", str(out), "--seeds", seeds, "--epochs", "2", "--pretrain-epochs", "1"])
    results = json.loads((out / "results.json").read_text())
    return SimpleNamespace(
        out=out, cache=cache, screen=screen.getvalue(), results=results, page=(out / "report.html").read_text()
    )


@pytest.mark.slow
def test_demo_trains_every_mixer_with_every_seed(demo):
    assert [(r["mix"], r["config"]["seed"]) for r in demo.results] == [(m, s) for s in (0, 1) for m in MIXES]
    assert all(len(r["history"]) == 2 for r in demo.results)


@pytest.mark.slow
def test_demo_page_is_self_contained(demo):
    assert demo.page.count("data:image/png;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', demo.page)
    assert len(demo.page) > 50_000


@pytest.mark.slow
def test_demo_table_and_page_show_the_stored_results(demo):
    for mix in MIXES:
        values = [100 * r["accuracy_last"] for r in demo.results if r["mix"] == mix]
        mean = f"{sum(values) / len(values):.1f}"
        assert any(line.startswith(mix) and mean in line for line in demo.screen.splitlines())
        assert mean in demo.page


@pytest.mark.slow
def test_demo_replaces_only_its_own_files(demo):
    assert (demo.out / "mine.txt").read_text() == "kept"
    assert {p.name for p in demo.out.iterdir()} == {"mine.txt", "results.json", "report.html"}


@pytest.mark.slow
def test_demo_shares_one_encoder_between_all_runs(demo):
    (encoder,) = {r["config"]["cluster"]["encoder"] for r in demo.results}
    (result,) = demo.cache.rglob("pretrain-*/result.json")
    assert encoder == f"run:{result.parent}"
    assert json.loads(result.read_text())["config"]["encoder"] == "simsiam"


@pytest.mark.slow
def test_demo_compares_the_encoder_with_raw_pixels(demo):
    runs = [r for r in demo.results if r["mix"] == "icm"]
    for r in runs:
        same = Config.of(mix="icm", clusters=50, batch=128, encoder="pixels", seed=r["config"]["seed"])
        assert (
            r["oracle_noise_ratio_pixels"]
            == build_task(same).data_summary["oracle_noise_ratio"]
            != r["oracle_noise_ratio"]
        )
    mean = sum(100 * r["oracle_noise_ratio_pixels"] for r in runs) / 2
    for text in (demo.screen, demo.page):
        assert f"{mean:.1f} ±" in text


def test_one_thread_restores_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with contextlib.suppress(KeyboardInterrupt), one_thread():
        seen = torch.get_num_threads()
        raise KeyboardInterrupt
    assert (seen, torch.get_num_threads()) == (1, 2)
    torch.set_num_threads(before)
