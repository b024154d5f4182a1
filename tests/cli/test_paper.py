"""``cll paper``; a study of the digits stands in for the real ones."""

import subprocess
import sys

import pytest
import torch

from complementary.cli.paper import USAGE
from complementary.clusters import features
from complementary.clusters.assign import write_assignment
from complementary.data import load
from complementary.paper.plan import Plan
from complementary.paper.store import measurement_files, read_measurement
from complementary.paper.studies import STUDIES
from tests.paper.conftest import (  # noqa: F401
    _digits_alphas,
    _own_cache,
    add_gradients,
    add_noise,
    add_run,
    entry_of,
    noisy,
    store,
    tiny,
)

SMALL = ("--epochs", 1, "--workers", 1)
CLUSTERS = (torch.arange(1437) % 10, 10, load("digits").train.inputs, {})


def line_of(text, name):
    (line,) = [line.split() for line in text.splitlines() if line.startswith(name)]
    return " ".join(line)


@pytest.mark.slow
def test_paper_runs_shows_exports_and_pages_a_study(cll, tiny, tmp_path):  # noqa: F811
    status, out, _ = cll("paper", "tiny", "--seeds", 2, *SMALL, "--plot", "first.png")
    assert status == 0
    assert "s-nl, mlp, 1 epoch (the paper: 300)): mean" in out
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")
    assert "6 of 6 cells done" in out
    assert out.count(" (2)") == 3 * 3
    status, out, _ = cll("paper", "tiny", "--seeds", 1, "--protocol", "paper", "--where", "mix=icm", *SMALL)
    assert (status, "1 of 1 cell" in out) == (0, True)

    status, out, _ = cll("paper", "export")
    assert (status, out.split(" results in ")[0]) == (0, "7")
    assert len(list((tmp_path / "results" / "paper").glob("digits-rho1-s-nl-*.json"))) == 7
    shown = cll("paper", "show", "tiny", "--format", "markdown", "--store", "results/paper")
    assert shown[0] == 0
    assert shown[1] == cll("paper", "show", "tiny", "--format", "markdown", "--store", "runs/paper")[1]
    assert shown[1].count("50.00 ± 0.50") == 3

    status, out, _ = cll("paper", "status", "--seeds", 3, "--protocol", "ours", "--epochs", 1)
    assert (status, line_of(out, "tiny").rpartition(" ")[0]) == (0, "tiny ours 3 of 3 6 of 9 2")
    assert cll("paper", "show", "tiny", "--plot", "tiny.png", "--out", "tiny.txt")[:2] == (0, "Table: tiny.txt\n")
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    page = ("paper", "page", "--out", "page.md", "--store", "results/paper")
    assert cll(*page)[:2] == (0, "page.md\n")
    text = (tmp_path / "page.md").read_text()
    assert "| tiny | nowhere | Digits | 3 of 3 | 3 of 3 | 1 of 3 | 0 of 3 |" in text
    assert "|\n\n![Digits, protocol ours](paper/tiny-ours.png)\n" in text
    assert [path.name for path in (tmp_path / "paper").iterdir()] == ["tiny-ours.png"]
    assert cll(*page, "--check")[0] == 0
    (tmp_path / "page.md").write_text("")
    assert cll(*page, "--check")[0] == 2


@pytest.mark.slow
def test_paper_smoke_runs_every_study_on_the_digits(cll, tmp_path):
    status, out, _ = cll("paper", "smoke")
    lines = out.splitlines()
    assert (status, len(lines)) == (0, len(STUDIES) + 1)
    assert [line.partition(":")[0] for line in lines[:-1]] == list(STUDIES)
    assert [line for line in lines[:-1] if not line.endswith("figure")] == ["p-values: 2 runs, table"]
    assert not (tmp_path / "runs").exists()


def test_paper_smoke_names_a_study_that_fails(cll, monkeypatch):
    monkeypatch.setattr("complementary.sweeps.worker.run", lambda *_, **__: 1 / 0)
    status, _, error = cll("paper", "smoke", "intra")
    assert (status, "The study intra failed" in error, "ZeroDivisionError" in error) == (2, True, True)


@pytest.mark.slow
def test_paper_run_spends_the_time_on_open_runs(cll, tiny, tmp_path):  # noqa: F811
    budget = ("paper", "run", "--device", "cpu", "--seeds", 2, "--pack", 1, *SMALL)
    status, _, error = cll(*budget, "--minutes", 5)
    assert (status, "No run on a CPU was measured yet" in error) == (2, True)
    cll("paper", "tiny", "--seeds", 1, "--where", "mix=none", "--device", "cpu", *SMALL)
    status, out, _ = cll(*budget, "--minutes", 5, "--dry-run")
    assert (status, out.splitlines()[0].startswith("6 runs in about 0 minutes, 1 side by side")) == (0, True)
    assert "plain seed=0" in out
    assert out.count("no run yet") == 4, "two seeds of each method without a run under any protocol"
    assert "Not in the cache: cifar10, " in out
    assert len(list((tmp_path / "runs" / "paper" / "runs").iterdir())) == 1
    status, _, error = cll(*budget, "--minutes", 0.1)  # the start alone takes longer
    assert (status, "less than the shortest open run" in error, "(--minutes)" in error) == (2, True, True)
    status, out, _ = cll(*budget, "--minutes", 5)
    assert (status, "6 of 6 cells done, 0 failed" in out) == (0, True)
    status, _, error = cll(*budget, "--minutes", 5)
    assert (status, "Nothing is open" in error) == (2, True)


def test_paper_run_that_is_faster_than_planned_goes_on(cll, tiny, monkeypatch):  # noqa: F811
    cll("paper", "tiny", "--seeds", 1, "--where", "mix=none", "--device", "cpu", *SMALL)
    monkeypatch.setattr("complementary.paper.plan.fit", lambda runs, *_: Plan(tuple(runs[:1]), 0.1))
    status, out, _ = cll("paper", "run", "--device", "cpu", "--seeds", 1, *SMALL, "--minutes", 5)
    assert (status, out.splitlines()[0].startswith("1 run in about")) == (0, True)
    assert "3 of 3 cells done, 0 failed" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_paper_run_without_a_gpu_says_what_it_would_take(cll, tiny, store, add_run):  # noqa: F811
    add_run(tiny.entries[0], 0.3, images_per_second=100.0)
    asked = ("paper", "run", "--minutes", 100, "--out", store)
    status, out, error = cll(*asked)
    assert (status, out, "no GPU here. 9 runs are open" in error, "a GPU" in error) == (2, "", True, True)
    status, out, _ = cll(*asked, "--dry-run")
    assert (status, "at the speed measured on a GPU" in out) == (0, True)


def test_paper_noise_is_counted_without_training(cll, noisy, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(features, "pretrain", lambda *_, **__: pytest.fail("something was pretrained"))
    status, out, error = cll("paper", "noisy", "--seeds", 2, "--epochs", 7)
    assert status == 0
    assert error.count("noisy mixes") == 4
    assert error.splitlines()[-1].startswith("warning: skipped digits icm: ")
    assert "Digits (nowhere), protocol ours" in out
    assert out.count(" (2)") == 2
    assert [path.name for path in (tmp_path / "runs" / "paper").iterdir()] == ["noise"]
    assert cll("paper", "noisy", "--seeds", 1, "--out", "elsewhere")[0] == 0
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["noise"]
    status, out, error = cll("paper", "noisy", "--seeds", 3)  # one more seed, whatever the epochs
    assert (error.count("noisy mixes"), out.count(" (3)")) == (2, 2)

    assert cll("paper", "export")[1].startswith("6 results in results/paper")
    shown = cll("paper", "show", "noisy", "--format", "markdown", "--store", "results/paper")
    assert shown == cll("paper", "show", "noisy", "--format", "markdown")  # from both places, each once
    assert shown[1].count(" (3) | 50.00 ± 0.50 |") == 2
    out = cll("paper", "status", "--protocol", "ours")[1]
    assert "0 runs and 6 noise ratios in runs/paper, results/paper;" in out
    assert line_of(out, "noisy").startswith("noisy ours 2 of 3 6 of 9 0 to 3")
    assert cll("paper", "show", "noisy", "--plot", "noisy.png")[0] == 0
    assert (tmp_path / "noisy.png").read_bytes().startswith(b"\x89PNG")


def test_paper_noise_uses_stored_clusters_by_default(cll, noisy, tmp_path):  # noqa: F811
    folder, asked = tmp_path / "results" / "clusters", ("--seeds", 1, "--where", "encoder=simsiam")
    folder.mkdir(parents=True)
    write_assignment(folder / "digits-rho1-simsiam-k10.safetensors", *CLUSTERS)
    status, _, error = cll("paper", "noisy", *asked)
    assert (status, error.count("noisy mixes")) == (0, 1)
    assert "results/clusters" in error
    (path,) = measurement_files([tmp_path / "runs"], "noise")
    assert read_measurement(path)["assignments"] == "results/clusters/digits-rho1-simsiam-k10.safetensors"
    assert cll("paper", "noisy", *asked, "--assignments-from", folder, "--dry-run")[2] == ""  # named by the user
    assert "results/clusters" not in cll("paper", "intra", "--dry-run")[2]


def test_paper_noise_without_any_ratio_is_an_error(cll, noisy):  # noqa: F811
    status, _, error = cll("paper", "noisy", "--seeds", 1, "--where", "encoder=simsiam")
    assert (status, "digits icm" in error) == (2, True)


def test_paper_list_and_help(cll):
    status, out, _ = cll("paper", "list")
    assert status == 0
    assert out.count("\n") == 4 + len(STUDIES)
    assert "Table 2" in out
    assert cll("paper", "list", "--help")[1] == cll("paper", "--help")[1] == USAGE + "\n"
    status, out, _ = cll("paper")
    assert (status, out.startswith("usage: cll paper list")) == (2, True)


def test_paper_list_does_not_import_torch():
    script = "import sys\nfrom complementary.cli.paper import main\nmain(['list'])\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, capture_output=True).returncode == 0


def test_paper_dry_run_lists_every_run_once(cll, tmp_path):
    status, out, _ = cll("paper", "as-coded", "--dry-run", "--seeds", 2, "--where", "data=mnist")
    lines = out.splitlines()
    assert (status, len(lines), len(set(lines))) == (0, 36, 36)
    assert lines[0].endswith("mnist ρ=100 s-nl none, Adam kept paper seed=0")  # its own protocol
    status, out, _ = cll("paper", "main", "losses", "--dry-run", "--seeds", 1)
    assert len(out.splitlines()) == 160
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("tabel1",), ("'tabel1'", "as-coded, main, ")),
        (("show", "tabel1"), ("'tabel1'",)),
        (("--seeds", 2), ("cll paper list",)),
        (("main", "--seeds", 0), ("seeds is 0", "(--seeds)")),
        (("main", "--workers", 0), ("workers is 0", "(--workers)")),
        (("main", "--where", "colour=red"), ("'colour'",)),
        (("main", "--where", "data=digits"), ("data=digits", "(--where)")),
        (("main", "--assignments-from", "nowhere"), ("nowhere", "(--assignments-from)")),
        (("show", "main", "--store", "nowhere"), ("nowhere",)),
        (("show", "main"), ("'cll paper main'", "'cll paper show main --blank'")),
        (("show", "main", "--protocol", "paper", "--out", "x"), ("'cll paper main --protocol paper'",)),
        (("export",), ("runs/paper", "(--store)")),
        (("list", "--foo"), ("--foo",)),
        (("run", "--minutes", 0), ("minutes is 0", "(--minutes)")),
        (("run", "--minutes", -1), ("minutes is -1", "(--minutes)")),
        (("run", "--minutes", 5, "--on", "ray"), ("on is ray", "(--on)")),
        (("run", "--minutes", 5), ("No run on a GPU was measured",)),
        (("main", "losses", "--plot", "x.png"), ("2 were named", "(--plot)")),
        (("page", "--out", "page.md"), ("runs/paper", "results/paper", "(--store)")),
    ],
)
def test_paper_bad_input_is_one_line(cll, arguments, parts):
    status, out, error = cll("paper", *arguments)
    assert (status, out) == (2, "")
    assert error.startswith("cll paper: ")
    assert error.count("\n") == 1
    for part in parts:
        assert part in error


def test_paper_names_a_damaged_file_and_can_skip_it(cll, store):  # noqa: F811
    (store / "bad.json").write_text("{")
    for verb in (("show", "intra", "--blank"), ("status",), ("page", "--out", "page.md")):
        status, _, error = cll("paper", *verb, "--store", store)
        assert (status, f"{store / 'bad.json'} is damaged" in error) == (2, True)
    status, out, error = cll("paper", "show", "intra", "--store", store, "--skip-damaged", "--blank")
    assert (status, "37.17 ± 0.30" in out) == (0, True)
    assert "skipped" in error


VERBS = {
    "run": ("run", "--minutes", 5, "--out"),
    "status": ("status", "--store"),
    "page": ("page", "--out", "page.md", "--store"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_paper_refuses_a_folder_of_other_code(cll, store, verb, tmp_path):  # noqa: F811
    (store / "log.json").write_text('{"loss": 0.3, "step": 7}')
    (store / "model.ckpt").write_text("x")
    status, out, error = cll("paper", *VERBS[verb], store)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f"({VERBS[verb][-1]})" in error
    found, wanted = f"{store} holds 2 files, such as log.json, but no result of this package", "name a folder that cll"
    assert found in error
    assert wanted in error
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_paper_tells_results_of_another_version_from_damaged_ones(cll, store, add_run, add_noise, verb):  # noqa: F811
    path = add_run(entry_of("intra", "intra-class"), 0.5)
    path.write_text(path.read_text().replace('"batch"', '"batch_size"'))
    status, _, error = cll("paper", *VERBS[verb], store)
    assert (status, error.count("\n"), "is damaged" in error) == (2, 1, False)
    assert f"{path.name} was written by another version: this one has no option batch_size." in error
    path.write_text(path.read_text()[:-9])
    status, _, error = cll("paper", *VERBS[verb], store)
    assert (status, error.count("\n"), f"{path.name} is damaged" in error, "version" in error) == (2, 1, True, False)
    assert ("--skip-damaged" in error) == (verb != "run"), "advice that the command has an option for"
    path.unlink()
    noise = add_noise(entry_of("noise", "mixup", data="cifar10", tail=1.0), 0.5)
    noise.write_text(noise.read_text().replace('"batch"', '"batch_size"'))
    status, _, error = cll("paper", *VERBS[verb], store)
    assert (status, "was written by another version" in error) == (2, True)


def test_paper_page_creates_its_folder(cll, store, add_run, tmp_path):  # noqa: F811
    add_run(entry_of("intra", "intra-class"), 0.5)
    page = ("paper", "page", "--store", store)
    assert cll(*page, "--out", "new/folder/page.md")[:2] == (0, "new/folder/page.md\n")
    assert (tmp_path / "new" / "folder" / "page.md").is_file()
    assert cll(*page, "--out", "new/folder/page.md", "--check")[0] == 0
    (tmp_path / "file").write_text("")
    status, out, error = cll(*page, "--out", "file/page.md")
    assert (status, out, error.count("\n"), "cannot be created" in error) == (2, "", 1, True)
    status, _, error = cll(*page, "--out", "other/page.md", "--check")
    assert (status, "other/page.md does not match" in error, (tmp_path / "other").exists()) == (2, True, False)


def test_paper_show_has_what_was_run_or_everything(cll, store, add_run, tmp_path):  # noqa: F811
    add_run(entry_of("main", "icm", data="mnist", tail=1.0, loss="dm"), 0.5)
    show = ("paper", "show", "main", "--store", store)
    status, out, error = cll(*show)
    assert (status, error) == (0, "")
    assert "50.00 (1)" in out
    assert "fmnist" not in out
    assert "fmnist" in cll(*show, "--blank")[1]
    assert "fmnist" in cll(*show, "--format", "csv")[1]
    assert "37.17 ± 0.30" in cll("paper", "show", "intra", "--blank", "--store", store)[1]
    status, out, error = cll(*show, "--plot", "x.png")  # one method cannot be compared
    assert (status, "50.00 (1)" in out, "main" in error) == (2, True, True)
    assert not (tmp_path / "x.png").exists()


def test_paper_show_gradients_is_a_table(cll, store, add_gradients):  # noqa: F811
    add_gradients("mnist")
    status, out, _ = cll("paper", "show", "gradients", "--store", store)
    assert (status, line_of(out, "mnist  clean   icm")) == (0, "mnist clean icm 3 1 2 0.75 0.25 0.5 1 300 16 cpu")
    out = cll("paper", "status", "--store", store, "--protocol", "ours")[1]
    assert line_of(out, "gradients") == "gradients ours 1 of 3 1 of 3 0 to 1 2.0"


def test_paper_studies_have_a_title_in_the_list(cll):
    out = cll("paper", "list")[1]
    assert all(study.title in out for study in STUDIES.values())
