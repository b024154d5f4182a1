"""``cll paper`` as a user meets it; a study of the digits stands in for the real ones."""

import pytest
import torch

from complementary.cli.paper import USAGE
from complementary.clusters import assignments, features
from complementary.data import load
from complementary.paper import noise
from complementary.paper.studies import STUDIES
from tests.paper.conftest import _digits_alphas, _own_cache, entry_of, fake, noisy, store, tiny  # noqa: F401

SMALL = ("--epochs", 1, "--workers", 1)
CLUSTERS = (torch.arange(1437) % 10, 10, load("digits").train.inputs, {})


def test_a_study_is_run_shown_exported_and_put_on_the_page(cll, tiny, tmp_path):  # noqa: F811
    status, said, error = cll("paper", "tiny", "--seeds", 1, *SMALL, "--plot", "first.png")
    assert (status, error) == (0, "")
    assert "s-nl, mlp, 1 epoch where the paper has 300): mean" in said
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 3 cells are done, 0 failed: runs/paper" in said
    assert "Digits (nowhere), protocol ours" in said
    assert said.count(" (1)") == 3 * 2
    status, said, _ = cll("paper", "tiny", "--seeds", 2, *SMALL)  # goes on: one more seed
    assert status == 0
    assert said.count("done\n") == 3
    assert said.count(" (2)") == 3 * 2
    status, said, _ = cll("paper", "tiny", "--seeds", 1, "--protocol", "paper", "--where", "mix=icm", *SMALL)
    assert (status, "1 of 1 cells are done" in said) == (0, True)

    status, said, _ = cll("paper", "export")
    assert (status, said.split(" results in ")[0]) == (0, "7")
    assert len(list((tmp_path / "results" / "paper").glob("digits-rho1-s-nl-*.json"))) == 7
    shown = cll("paper", "show", "tiny", "--format", "markdown", "--store", "results/paper")
    assert shown[0] == 0
    assert shown[1] == cll("paper", "show", "tiny", "--format", "markdown", "--store", "runs/paper")[1]
    assert shown[1].count("50.00 ± 0.50") == 3

    status, said, _ = cll("paper", "status", "--seeds", 3, "--protocol", "ours", "--epochs", 1)
    assert status == 0
    (line,) = [line.split() for line in said.splitlines() if line.startswith("tiny")]
    assert line[:10] == ["tiny", "ours", "3", "of", "3", "6", "of", "9", "2", "to"]
    assert cll("paper", "show", "tiny", "--plot", "tiny.png", "--out", "tiny.txt")[:2] == (0, "Table: tiny.txt\n")
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    assert cll("paper", "page", "--out", "page.md", "--store", "results/paper") == (0, "page.md\n", "")
    assert "| tiny | nowhere | 3 | 3 of 3 | 2 | 1 | 1 of 3 | 0 to 1 | 1 |" in (tmp_path / "page.md").read_text()
    assert cll("paper", "page", "--out", "page.md", "--store", "results/paper", "--check")[0] == 0
    drawn = ("paper", "page", "--out", "page.md", "--store", "results/paper", "--plots", "pictures/paper")
    status, _, error = cll(*drawn, "--check")
    assert (status, error.endswith("'cll paper page --out page.md --plots pictures/paper'.\n")) == (2, True)
    assert not (tmp_path / "pictures").exists()
    assert cll(*drawn)[0] == 0
    assert sorted(path.name for path in (tmp_path / "pictures/paper").iterdir()) == ["tiny-ours.png", "tiny-paper.png"]
    assert "|\n\n![Digits, protocol ours](pictures/paper/tiny-ours.png)\n" in (tmp_path / "page.md").read_text()
    assert cll(*drawn, "--check")[0] == 0


def test_noise_is_counted_without_any_training(cll, noisy, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(features, "pretrain", lambda *_, **__: pytest.fail("something was pretrained"))
    status, said, error = cll("paper", "noisy", "--seeds", 2, "--epochs", 7)
    assert status == 0
    assert error.startswith("left out: digits icm: no stored clusters of simsiam fit these images, and no simsiam of ")
    assert error.count("\n") == 1
    assert [line.split(": ")[0] for line in said.splitlines()[:4]] == [
        f"digits s-nl {mix} ours seed={seed}" for seed in (0, 1) for mix in ("mixup", "icm")
    ]
    assert "Digits (nowhere), protocol ours" in said
    assert said.count(" (2)") == 2
    assert [path.name for path in (tmp_path / "runs" / "paper").iterdir()] == ["noise"]
    status, said, _ = cll("paper", "noisy", "--seeds", 3)  # goes on: one more seed, whatever the epochs
    assert (said.count("noisy mixes"), said.count(" (3)")) == (2, 2)

    assert cll("paper", "export")[1].startswith("6 results in results/paper")
    shown = cll("paper", "show", "noisy", "--format", "markdown", "--store", "results/paper")
    assert shown == cll("paper", "show", "noisy", "--format", "markdown")  # from both places, each once
    assert shown[1].count(" (3) | 50.00 ± 0.50 |") == 2
    said = cll("paper", "status", "--protocol", "ours")[1]
    assert "0 runs and 6 noise ratios in runs/paper, results/paper;" in said
    (line,) = [line.split() for line in said.splitlines() if line.startswith("noisy")]
    assert " ".join(line) == "noisy ours 2 of 3 6 of 9 0 to 3 0.0 0"
    assert cll("paper", "show", "noisy", "--plot", "noisy.png")[0] == 0
    assert (tmp_path / "noisy.png").read_bytes().startswith(b"\x89PNG")
    assert cll("paper", "page", "--out", "page.md")[0] == 0
    assert "| noisy | nowhere | 3 | 2 of 3 | 0 to 3 |  | 0 of 3 |  |  |" in (tmp_path / "page.md").read_text()


def test_noise_of_which_nothing_can_be_counted_is_one_sentence(cll, noisy):  # noqa: F811
    asked = ("paper", "noisy", "--where", "encoder=simsiam")
    status, said, error = cll(*asked)
    assert (status, said) == (2, "")
    assert error.startswith("cll paper: No noise ratio could be counted; left out: digits icm: no stored clusters of ")
    assert error.count("\n") == 1
    assert cll("paper", "noisy", "--device", "cuda:99")[0] == 2
    status, said, _ = cll("paper", "noisy", "--dry-run", "--seeds", 1)
    assert (status, len(said.splitlines())) == (0, 3)
    status, said, _ = cll(*asked, "--pretrain", "--pretrain-epochs", 1, "--seeds", 1)
    assert (status, said.count("noisy mixes")) == (0, 1)


@pytest.mark.usefixtures("noisy", "tiny")
def test_noise_takes_the_stored_clusters_of_a_checkout_and_says_so(cll, tmp_path):
    folder, asked = tmp_path / "results" / "clusters", ("--seeds", 1, "--where", "encoder=simsiam")
    folder.mkdir(parents=True)
    assignments.write(folder / "digits-rho1-simsiam-k10.safetensors", *CLUSTERS)
    status, said, error = cll("paper", "noisy", *asked)
    assert (status, said.count("noisy mixes")) == (0, 1)
    assert error == (
        "stored clusters are taken from results/clusters, where they fit; --assignments-from names another folder\n"
    )
    (path,) = noise.files([tmp_path / "runs"])
    settings = noise.read(path)["settings"]
    assert settings["cluster"]["assignments"] == "results/clusters/digits-rho1-simsiam-k10.safetensors"
    assert cll("paper", "noisy", *asked, "--assignments-from", folder, "--dry-run")[2] == ""  # it was named
    assert cll("paper", "tiny", "--dry-run")[2] == ""  # trainings take what they are told to


def test_the_list_and_the_help(cll):
    status, said, _ = cll("paper", "list")
    assert status == 0
    assert said.count("\n") == 4 + 24
    assert "Table_combined" in said
    assert cll("paper", "list", "--help")[1] == cll("paper", "--help")[1]
    assert {"cll paper noise", "cll paper gradients"} <= {line[7:].partition(" [")[0] for line in USAGE.splitlines()}
    status, said, _ = cll("paper")
    assert (status, said.startswith("usage: cll paper list")) == (2, True)


def test_a_dry_run_lists_every_run_once_and_makes_none(cll, tmp_path):
    status, said, _ = cll("paper", "as-coded", "--dry-run", "--seeds", 2, "--where", "data=mnist")
    lines = said.splitlines()
    assert (status, len(lines), len(set(lines))) == (0, 28, 28)
    assert lines[0].endswith("mnist ρ=100 s-nl none, Adam kept paper seed=0")  # made for the protocol paper
    status, said, _ = cll("paper", "main", "losses", "--dry-run", "--seeds", 1)
    assert len(said.splitlines()) == 160
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tabel1",), "cll paper: The study 'tabel1' is not known; choose one of: as-coded, main, "),
        (("show", "tabel1"), "cll paper: The study 'tabel1' is not known; choose one of: "),
        (("--seeds", 2), "cll paper: Name a study, such as: cll paper main; cll paper list shows them."),
        (("main", "--seeds", 0), "cll paper: The option seeds is 0, but it must be at least 1."),
        (("main", "--workers", 0), "cll paper: The option workers is 0, but it must be at least 1."),
        (("main", "--where", "colour=red"), "cll paper: The option 'colour' is not known"),
        (("main", "--where", "data=digits"), "cll paper: No cell of the study is as --where asks (data=digits)"),
        (("main", "--assignments-from", "nowhere"), "cll paper: There is no folder nowhere to take clusters from."),
        (("show", "main", "--store", "nowhere"), "cll paper: There is no store nowhere;"),
        (("show", "main", "--plot", "x.png"), "cll paper: Nothing of the study main was run under the protocol ours"),
        (("export",), "cll paper: There is no store runs/paper;"),
        (("list", "--foo"), "cll paper: cll paper list has no options, but --foo was given; leave that out."),
        (("main", "losses", "--plot", "x.png"), "cll paper: --plot draws one study, but 2 were named;"),
        (("page", "--out", "no/page.md"), "cll paper: no/page.md cannot be written"),
        (("page", "--check", "--out", "page.md"), "cll paper: page.md is not what the store gives;"),
    ],
)
def test_bad_input_is_one_sentence(cll, arguments, sentence):
    status, said, error = cll("paper", *arguments)
    assert (status, said) == (2, "")
    assert error.startswith(sentence)
    assert error.count("\n") == 1


def test_a_damaged_file_is_named_and_can_be_left_out(cll, store):  # noqa: F811
    (store / "bad.json").write_text("{")
    for verb in (("show", "intra"), ("status",), ("page", "--out", "page.md")):
        status, _, error = cll("paper", *verb, "--store", store)
        assert (status, f"{store / 'bad.json'} is damaged" in error) == (2, True)
    status, said, error = cll("paper", "show", "intra", "--store", store, "--skip-damaged", "--blank")
    assert (status, "37.17 ± 0.30" in said) == (0, True)
    assert error.startswith("left out: ")
    assert error.endswith("Nothing of intra was run under the protocol ours yet.\n")


def test_a_study_of_which_nothing_was_run_is_one_sentence_unless_blank_tables_are_asked_for(cll, store, tmp_path):  # noqa: F811
    show = ("paper", "show", "intra", "--store", store)
    sentence = (
        "Nothing of intra was run under the protocol ours yet; run it with 'cll paper intra', or see its settings and "
        "the published numbers with 'cll paper show intra --blank'.\n"
    )
    for asked in ((), ("--only-run",), ("--format", "markdown")):
        assert cll(*show, *asked) == (0, sentence, "")
    assert "'cll paper intra --protocol paper'" in cll(*show, "--protocol", "paper")[1]
    assert cll(*show, "--out", "x.txt") == (2, "", f"cll paper: {sentence}")
    assert not (tmp_path / "x.txt").exists()
    for asked, seen in ((("--blank",), "37.17 ± 0.30"), (("--format", "csv"), ",37.17,0.3,")):
        status, said, error = cll(*show, *asked)
        assert (status, error) == (0, "Nothing of intra was run under the protocol ours yet.\n")
        assert seen in said
    assert cll(*show, "--blank", "--out", "x.txt")[:2] == (0, "Table: x.txt\n")
    assert "37.17 ± 0.30" in (tmp_path / "x.txt").read_text()


def test_p_values_of_single_runs_are_a_table_without_a_picture(cll, store, fake, tmp_path):  # noqa: F811
    for entry in STUDIES["p-values"].entries[:2]:
        fake(entry, 0.5)
    status, said, error = cll("paper", "show", "p-values", "--store", store, "--plot", "x.png")
    assert (status, "50.00 (1)" in said) == (2, True)
    assert error.startswith("cll paper: No test of the study p-values can be made under the protocol ours yet")
    assert "each needs 2 seeds or more" in error
    assert not (tmp_path / "x.png").exists()


def test_gradients_are_in_the_status(cll, store):  # noqa: F811
    said = cll("paper", "status", "--store", store, "--protocol", "ours")[1]
    (line,) = [line.split() for line in said.splitlines() if line.startswith("gradients")]
    assert line == ["gradients", "ours", "0", "of", "3", "0", "of", "3", "0.0", "unknown"]


def test_what_was_run_of_a_study_can_be_shown_alone(cll, store, fake):  # noqa: F811
    fake(entry_of("intra", "intra-class", data="cifar10", tail=100.0), 0.5)
    show = ("paper", "show", "intra", "--store", store)
    status, said, error = cll(*show, "--only-run")
    assert (status, error) == (0, "")
    assert "intra-class" in said
    assert "50.00 (1)" in cll(*show)[1]
