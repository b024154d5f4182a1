import json
import re
from importlib import import_module

import numpy as np
import pytest
import torch

from complementary.clusters import assignments
from complementary.clusters.assign import clusters_of, points_of
from complementary.clusters.features import Source, embed_test
from complementary.clusters.judge import encoder_report
from complementary.config import Config, PretrainConfig
from complementary.data import load
from complementary.data.selection import select
from complementary.encoders.pretrain import pretrain

FAST = ("--clusters", 20, "--restarts", 1)
DIGITS = load("digits")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "150")  # no figure is broken over two lines
    monkeypatch.chdir(tmp_path)


def figures(out):
    """The printed table: name -> value."""
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def number(text):
    return float(text.split()[0])


def self_contained(path):
    markup = path.read_text(encoding="utf-8")
    assert markup.startswith("<!doctype html>")
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)', markup))
    assert not re.search(r"href=|https?://|<script|<link|@import|url\(", markup)
    return markup


def vectors(path, **more):
    """Three tight groups of vectors, with complementary labels."""
    source = np.random.default_rng(0)
    truth = np.arange(900) % 3
    points = 5 * np.eye(3)[truth] + source.normal(size=(900, 3)) * 0.1
    np.savez(path, features=points, not_y=(truth + source.integers(1, 3, 900)) % 3, **more)
    return truth


def test_the_figures_are_printed(cll):
    status, out, _ = cll("cluster", *FAST, "--per-example", 5)
    assert status == 0
    found = figures(out)
    assert re.fullmatch(r"20, of \d+ to \d+ examples, 0 of one example", found["clusters"])
    oracle = number(found["same-class partners (oracle)"])
    value, error = map(float, re.findall(r"[\d.]+", found["same-class partners, estimated without true labels"]))
    assert abs(value - oracle) < 3 * error < 30
    assert 70 < oracle < number(found["purity (oracle)"]) <= 100
    noise = [number(found[f"{name} (oracle)"]) for name in ("noisy mixes of Mixup", "of ICM", "of MICM")]
    assert noise[1] < noise[2] < noise[0]
    assert len(found) == 7


def test_nothing_is_written_unless_asked(cll, tmp_path):
    assert cll("cluster", *FAST)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_the_file_holds_what_training_would_use(cll, tmp_path):
    options = ("--long-tail", 5, "--seed", 3, "--head", 90)
    status, out, _ = cll("cluster", *FAST, *options, "--out", tmp_path / "c.safetensors")
    assert status == 0
    config = Config.of(clusters=20, restarts=1, long_tail=5.0, seed=3, head=90)
    chosen, _, _ = select(config, DIGITS)
    assert f"Assignment of {len(chosen):,} examples: {tmp_path / 'c.safetensors'}" in out
    found, record = assignments.read(tmp_path / "c.safetensors", DIGITS.train.inputs[chosen])
    assert torch.equal(found, clusters_of(config, DIGITS, chosen))
    made_by = record["made_by"]
    assert record["clusters"] == 20
    assert (made_by["data"], made_by["encoder"], made_by["long_tail"], made_by["seed"]) == ("digits", "pixels", 5, 3)


def test_a_stored_assignment_is_judged_and_stored_again(cll, tmp_path):
    """Also one of more clusters than a byte can number, whatever --clusters says by default."""
    home = torch.arange(1437) % 400
    assignments.write(tmp_path / "big", home, 400, DIGITS.train.inputs, {})
    status, out, _ = cll("cluster", "--assignments", tmp_path / "big", "--out", tmp_path / "copy", "--report", "r.html")
    assert status == 0
    assert figures(out)["clusters"] == "400, of 3 to 4 examples, 0 of one example"
    found, record = assignments.read(tmp_path / "copy", DIGITS.train.inputs)
    assert torch.equal(found, home)
    assert record["clusters"] == 400
    assert "How many" not in self_contained(tmp_path / "r.html"), "there is nothing to cluster by"
    assert "Recommended" not in out


def test_the_report_is_one_page_that_fetches_nothing(cll, tmp_path):
    command = ("cluster", *FAST, "--per-example", 5, "--report", tmp_path / "r.html")
    status, out, _ = cll(*command, "--try-clusters", 1, 5, 10, 1000)
    assert status == 0
    markup = self_contained(tmp_path / "r.html")
    assert markup.count("<img") == 2
    for name, value in figures(out).items():
        assert f"<td>{name}</td><td>{value}</td>" in markup
    recommended = re.search(r"Recommended number of clusters \(without true labels\): (\d+)", out).group(1)
    assert f"{recommended} (recommended)" in markup
    assert recommended in ("5", "10"), "1 and 1,000 of 1,437 are no choice"
    assert f"Report: {tmp_path / 'r.html'}" in out


def test_without_a_number_to_try_the_report_has_no_comparison(cll, tmp_path):
    status, out, _ = cll("cluster", *FAST, "--report", tmp_path / "r.html", "--try-clusters", 1)
    assert status == 0
    assert "Recommended" not in out
    assert "How many" not in self_contained(tmp_path / "r.html")


def test_nothing_is_overwritten_and_nothing_computed_first(cll, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("it began to work")

    monkeypatch.setattr(import_module("complementary.cli.cluster"), "select", refuse)
    (tmp_path / "old").write_text("precious")
    for options in (("--out", "old"), ("--report", "old"), ("--out", "new", "--report", "old"), ("--json", "old")):
        status, _, error = cll("cluster", *FAST, *options)
        assert status == 2
        assert error.strip() == "cll cluster: old exists already; choose another name."
    for option in ("--out", "--report", "--json"):
        status, _, error = cll("cluster", *FAST, option, "nowhere/new")
        assert status == 2
        assert error.strip() == "cll cluster: There is no folder nowhere for new; make it first."
    assert (tmp_path / "old").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_vectors_without_truth_are_clustered_and_no_oracle_is_mentioned(cll, tmp_path):
    truth = vectors(tmp_path / "v.npz")
    out_file, page = tmp_path / "c", tmp_path / "r.html"
    command = ("cluster", "--data", tmp_path / "v.npz", "--clusters", 3, "--out", out_file, "--report", page)
    status, out, _ = cll(*command, "--try-clusters", 2, 3, 6)
    assert status == 0
    assert "oracle" not in out.lower()
    assert figures(out)["clusters"] == "3, of 300 to 300 examples, 0 of one example"
    value, error = map(float, re.findall(r"[\d.]+", figures(out)["same-class partners, estimated without true labels"]))
    assert abs(value - 100) < 3 * error < 30
    assert "Recommended number of clusters (without true labels): 3" in out
    markup = self_contained(page)
    assert "oracle" not in markup.lower()
    assert markup.count("<img") == 1, "vectors are not drawn"
    home, _ = assignments.read(out_file)
    assert len({(int(k), int(y)) for k, y in zip(home, truth, strict=True)}) == 3


def test_vectors_with_truth_have_oracle_figures(cll, tmp_path):
    vectors(tmp_path / "v.npz", truth=np.arange(900) % 3)
    found = figures(cll("cluster", "--data", tmp_path / "v.npz", "--clusters", 3)[1])
    assert found["same-class partners (oracle)"] == "100.00 %"
    assert found["purity (oracle)"] == "100.00 %"
    assert number(found["of ICM (oracle)"]) == 0


def test_the_encoder_of_a_run_serves(cll, tmp_path):
    pretrain(PretrainConfig(epochs=1, batch=256), tmp_path / "run", device="cpu")
    status, out, _ = cll("cluster", *FAST, "--encoder", f"run:{tmp_path / 'run'}", "--out", tmp_path / "c")
    assert status == 0
    assert number(figures(out)["same-class partners (oracle)"]) > 20
    assert assignments.read(tmp_path / "c", DIGITS.train.inputs)[1]["made_by"]["encoder"] == f"run:{tmp_path / 'run'}"


def test_labels_that_tell_nothing_are_not_scored(cll):
    """Ten classes and a tenth of the labels wrong: each label is as likely whatever the class."""
    status, out, _ = cll("cluster", *FAST, "--labels", "noisy:0.1", "--report", "r.html", "--try-clusters", 5, 10)
    assert status == 0
    assert "Recommended number of clusters (without true labels): too uncertain to tell; the paper uses 50" in out
    found = figures(out)
    assert found["same-class partners, estimated without true labels"] == "cannot be told from these labels"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "imaginary"], "The dataset 'imaginary' is not known"),
        (["--encoder", "clip"], "The encoder 'clip' is not known"),
        (["--encoder", "embeddings:nowhere.npy"], "The embeddings nowhere.npy cannot be read"),
        (["--encoder", "run:nowhere"], "nowhere holds no encoder (encoder.safetensors)"),
        (["--assignments", "nowhere"], "nowhere of cluster assignments; make one"),
        (["--clusters", "5000"], "5000 clusters were asked for, but there are 1437 points"),
        (["--clusters", "0"], "there are none; pass --clusters 50"),
        (["--probe", "--try-clusters", "0"], "The option try-clusters is 0, but it must be at least 1"),
        (["--batch", "0"], "The option batch is 0, but it must be at least 2"),
        (["--data", "v.npz", "--encoder", "simsiam"], "The set v holds vectors; encoders learn from images"),
        (["--data", "v.npz", "--labels", "uniform"], "has no true labels, which drawing labels needs"),
        (["--data", "v.npz", "--long-tail", "3"], "A long tail needs true labels"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(cll, tmp_path, options, said):
    vectors(tmp_path / "v.npz")
    status, _, error = cll("cluster", *options, "--restarts", 1, "--out", "c")
    assert status == 2
    *_, sentence = error.splitlines()  # before it, --probe says what it does
    assert sentence.startswith("cll cluster: ")
    assert said in sentence
    assert not (tmp_path / "c").exists()


# --- the encoder ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["pixels", "random"])
def test_the_probe_gives_every_figure_of_the_encoder(cll, tmp_path, encoder):
    command = ("cluster", *FAST, "--encoder", encoder, "--long-tail", 3, "--seed", 2, "--batch", 128)
    probing = ("--labels", "biased:3", "--probe", "--try-clusters", 5, 20, "--json", "e.json")
    status, out, _ = cll(*command, *probing)
    assert status == 0
    config = Config.of(clusters=20, restarts=1, encoder=encoder, long_tail=3.0, seed=2, labels="biased:3")
    chosen, generating, excluded = select(config, DIGITS)
    wanted, _ = encoder_report(
        points_of(config, DIGITS, chosen),
        DIGITS.train.truth[chosen],
        embed_test(Source(encoder, seed=2), DIGITS),
        DIGITS.test.truth,
        excluded,
        (5, 20),
        batch=128,
        seed=2,
        restarts=1,
        transition=generating,
    )
    found = json.loads((tmp_path / "e.json").read_text())
    made_by = found.pop("made_by")
    assert found == wanted
    assert (made_by["encoder"], made_by["long_tail"], made_by["seed"], made_by["batch"]) == (encoder, 3, 2, 128)
    shown = figures(out.partition("The encoder")[2])
    assert number(shown["kNN accuracy, k = 200 (oracle)"]) == round(100 * wanted["oracle_knn"], 2)
    noise = [f"{100 * c['oracle_noise_icm_as_coded']:.2f}" for c in wanted["clusterings"]]
    assert shown["ICM as coded (oracle)"].split("  ")[0] == noise[0]
    assert shown["ICM as coded (oracle)"].endswith(noise[1])


@pytest.mark.parametrize("columns", ["100", None])
def test_the_probe_says_what_it_does_and_fits_100_columns(cll, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS")
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    numbers = (5, 10, 15, 20, 25, 30, 35, 40)
    status, out, error = cll("cluster", *FAST, "--probe", "--try-clusters", *numbers)
    assert status == 0
    assert error.splitlines() == [
        "judging 20 clusters of 1,437 examples",
        "probing the encoder by kNN and a linear layer",
        *(f"judging {k} clusters of 1,437 examples" for k in numbers),
    ]
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    heads = [line.split() for line in lines if line.split()[:1] == ["clusters"]]
    assert heads[1:] == [["clusters", *map(str, numbers[:7])], ["clusters", "40"]]
    broken = [line for line in lines if line.count("(oracle)") == 1 and not re.search(r"\d( %)?\s*$", line)]
    assert broken == []


def test_that_many_images_are_embedded_is_said_once_and_only_if_they_are(cll, monkeypatch):
    monkeypatch.setattr(import_module("complementary.clusters.features"), "LONG", 1)
    asked = ("cluster", *FAST, "--encoder", "random", "--probe", "--try-clusters", 5)
    assert [line for line in cll(*asked)[2].splitlines() if "embed" in line] == [
        "embedding 1,437 images by random",
        "embedding 360 images by random",  # of the test set, for the probe
    ]
    assert "embed" not in cll(*asked)[2]  # they are kept


def test_figures_asked_for_as_json_are_probed_for(cll, tmp_path):
    status, out, _ = cll("cluster", *FAST, "--try-clusters", 5, 2000, "--json", "e.json")
    assert status == 0
    assert "kNN accuracy" in out
    assert [c["clusters"] for c in json.loads((tmp_path / "e.json").read_text())["clusterings"]] == [5]


def test_a_stored_assignment_is_judged_without_an_encoder(cll, tmp_path):
    home = torch.arange(1437) % 40
    assignments.write(tmp_path / "a", home, 40, DIGITS.train.inputs, {})
    status, out, _ = cll("cluster", "--assignments", "a", "--json", "e.json")
    assert status == 0
    assert "kNN" not in out
    (only,) = json.loads((tmp_path / "e.json").read_text())["clusterings"]
    assert only["clusters"] == 40
    assert only["oracle_noise_icm_as_coded"] < only["oracle_noise_icm"] == pytest.approx(0.19, abs=0.03)


def test_vectors_without_truth_are_probed_without_an_oracle(cll, tmp_path):
    vectors(tmp_path / "v.npz")
    status, out, _ = cll("cluster", "--data", "v.npz", "--clusters", 3, "--probe", "--try-clusters", 3)
    assert status == 0
    assert "oracle" not in out.lower()
    assert "same-class partners, estimated" in out


def test_clusters_that_are_kept_need_no_encoder(cll, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("complementary.clusters.assign"), "LONG", 1)
    first = cll("cluster", *FAST)
    assert first[2] == "clustering 1,437 images into 20 clusters\n"

    def refuse(*_):
        raise AssertionError("it was embedded again")

    monkeypatch.setattr(import_module("complementary.clusters.assign"), "embed", refuse)
    assert cll("cluster", *FAST) == (0, first[1], "")


def test_spectral_clusters_say_so_in_page_and_file(cll, tmp_path):
    status, out, _ = cll("cluster", *FAST, "--clustering", "spectral", "--report", "r.html", "--out", "a.safetensors")
    assert status == 0
    assert "k-means on the neighbour graph" in self_contained(tmp_path / "r.html")
    record = assignments.read(tmp_path / "a.safetensors")[1]
    assert record["made_by"]["clustering"] == "spectral"
    plain = figures(cll("cluster", *FAST)[1])
    name = "same-class partners (oracle)"
    assert number(figures(out)[name]) > number(plain[name])


def test_clusters_from_a_file_keep_what_made_them(cll, tmp_path):
    cll("cluster", *FAST, "--clustering", "spectral", "--out", "a.safetensors")
    status, _, _ = cll("cluster", "--assignments", "a.safetensors", "--out", "b.safetensors")
    assert status == 0
    first, second = (assignments.read(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]
    status, _, err = cll("cluster", "--assignments", "a.safetensors", "--clustering", "spectral")
    assert status != 0
    assert "left out: the clusters come from a file" in err
