"""``cll cluster``."""

import json
import re

import numpy as np
import pytest
import torch

from complementary.clusters import cache
from complementary.clusters.assign import clusters_of, read_assignment, write_assignment
from complementary.clusters.features import FeatureExtractor
from complementary.clusters.judge import judge, probe
from complementary.config import Config, PretrainConfig
from complementary.data import load
from complementary.data.selection import select
from complementary.encoders.pretrain import pretrain

FAST = ("--clusters", 20, "--restarts", 1)
DIGITS = load("digits")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("complementary.clusters.judge.PAIRS", 5000)
    monkeypatch.chdir(tmp_path)


def metrics(out):
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


def test_cluster_prints_the_metrics(cll):
    status, out, _ = cll("cluster", *FAST, "--per-example", 5)
    assert status == 0
    found = metrics(out)
    assert re.fullmatch(r"20, of \d+ to \d+ examples, 0 of one example", found["clusters"])
    oracle = number(found["same-class partners (oracle)"])
    value, error = map(float, re.findall(r"[\d.]+", found["same-class partners, estimated without true labels"]))
    assert abs(value - oracle) < 3 * error < 30
    assert 70 < oracle < number(found["purity (oracle)"]) <= 100
    noise = [number(found[f"{name} (oracle)"]) for name in ("noisy mixes of Mixup", "of ICM", "of MICM")]
    assert noise[1] < noise[2] < noise[0]
    assert len(found) == 7


def test_cluster_writes_nothing_by_default(cll, tmp_path):
    assert cll("cluster", *FAST)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_cluster_out_holds_the_clusters_of_the_training(cll, tmp_path):
    options = ("--long-tail", 5, "--seed", 3, "--head", 90)
    status, out, _ = cll("cluster", *FAST, *options, "--out", tmp_path / "c.safetensors")
    assert status == 0
    config = Config.of(clusters=20, restarts=1, long_tail=5.0, seed=3, head=90)
    chosen, _, _ = select(config, DIGITS)
    assert f"Assignment of {len(chosen):,} examples: {tmp_path / 'c.safetensors'}" in out
    found, record = read_assignment(tmp_path / "c.safetensors", DIGITS.train.inputs[chosen])
    assert torch.equal(found, clusters_of(FeatureExtractor(config, DIGITS, chosen)))
    made_by = record["made_by"]
    assert record["clusters"] == 20
    assert (made_by["data"], made_by["encoder"], made_by["long_tail"], made_by["seed"]) == ("digits", "pixels", 5, 3)


def test_cluster_judges_and_copies_a_stored_assignment(cll, tmp_path):
    """Also with more clusters than a byte can hold, whatever the default of --clusters."""
    assignment = torch.arange(1437) % 400
    write_assignment(tmp_path / "big", assignment, 400, DIGITS.train.inputs, {})
    status, out, _ = cll("cluster", "--assignments", tmp_path / "big", "--out", tmp_path / "copy", "--report", "r.html")
    assert status == 0
    assert metrics(out)["clusters"] == "400, of 3 to 4 examples, 0 of one example"
    found, record = read_assignment(tmp_path / "copy", DIGITS.train.inputs)
    assert torch.equal(found, assignment)
    assert record["clusters"] == 400
    assert "How many" not in self_contained(tmp_path / "r.html"), "without features there is no comparison"
    assert "Recommended" not in out


def test_cluster_report_is_one_page_that_fetches_nothing(cll, tmp_path):
    command = ("cluster", *FAST, "--per-example", 5, "--report", tmp_path / "r.html")
    status, out, _ = cll(*command, "--try-clusters", 1, 5, 10, 1000)
    assert status == 0
    markup = self_contained(tmp_path / "r.html")
    assert markup.count("<img") == 2
    for name, value in metrics(out).items():
        assert f"<td>{name}</td><td>{value}</td>" in markup
    recommended = re.search(r"Recommended number of clusters \(without true labels\): (\d+)", out).group(1)
    assert f"{recommended} (recommended)" in markup
    assert recommended in ("5", "10"), "1 and 1,000 clusters of 1,437 examples are left out"
    assert f"Report: {tmp_path / 'r.html'}" in out


def test_cluster_report_without_numbers_to_try_has_no_comparison(cll, tmp_path):
    status, out, _ = cll("cluster", *FAST, "--report", tmp_path / "r.html", "--try-clusters", 1)
    assert status == 0
    assert "Recommended" not in out
    assert "How many" not in self_contained(tmp_path / "r.html")


def test_cluster_checks_its_files_before_it_computes(cll, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("it started to compute")

    monkeypatch.setattr("complementary.data.load", refuse)
    (tmp_path / "old").write_text("precious")
    for options in (("--out", "old"), ("--report", "old"), ("--out", "new", "--report", "old"), ("--json", "old")):
        status, _, error = cll("cluster", *FAST, *options)
        assert status == 2
        assert "old exists" in error
    for option in ("--out", "--report", "--json"):
        status, _, error = cll("cluster", *FAST, option, "nowhere/new")
        assert status == 2
        assert "no folder nowhere" in error
    assert (tmp_path / "old").read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_cluster_of_vectors_without_truth_has_no_oracle(cll, tmp_path):
    truth = vectors(tmp_path / "v.npz")
    out_file, page = tmp_path / "c", tmp_path / "r.html"
    command = ("cluster", "--data", tmp_path / "v.npz", "--clusters", 3, "--out", out_file, "--report", page)
    status, out, _ = cll(*command, "--try-clusters", 2, 3, 6)
    assert status == 0
    assert "oracle" not in out.lower()
    assert metrics(out)["clusters"] == "3, of 300 to 300 examples, 0 of one example"
    value, error = map(float, re.findall(r"[\d.]+", metrics(out)["same-class partners, estimated without true labels"]))
    assert abs(value - 100) < 3 * error < 30
    assert "Recommended number of clusters (without true labels): 3" in out
    markup = self_contained(page)
    assert "oracle" not in markup.lower()
    assert markup.count("<img") == 1, "there are no images of vectors"
    assignment, _ = read_assignment(out_file)
    assert len({(int(k), int(y)) for k, y in zip(assignment, truth, strict=True)}) == 3


def test_vectors_with_truth_have_oracle_metrics(cll, tmp_path):
    vectors(tmp_path / "v.npz", truth=np.arange(900) % 3)
    found = metrics(cll("cluster", "--data", tmp_path / "v.npz", "--clusters", 3)[1])
    assert found["same-class partners (oracle)"] == "100.00 %"
    assert found["purity (oracle)"] == "100.00 %"
    assert number(found["of ICM (oracle)"]) == 0


@pytest.mark.slow
def test_cluster_with_the_encoder_of_a_run(cll, tmp_path):
    pretrain(PretrainConfig(epochs=1, batch=256), tmp_path / "run", device="cpu")
    status, out, _ = cll("cluster", *FAST, "--encoder", f"run:{tmp_path / 'run'}", "--out", tmp_path / "c")
    assert status == 0
    assert number(metrics(out)["same-class partners (oracle)"]) > 20
    assert read_assignment(tmp_path / "c", DIGITS.train.inputs)[1]["made_by"]["encoder"] == f"run:{tmp_path / 'run'}"


def test_cluster_does_not_score_uninformative_labels(cll):
    """Ten classes and a tenth of the labels wrong: every label is equally likely for all classes."""
    status, out, _ = cll("cluster", *FAST, "--labels", "noisy:0.1", "--report", "r.html", "--try-clusters", 5, 10)
    assert status == 0
    assert "Recommended number of clusters (without true labels): unknown" in out
    found = metrics(out)
    assert found["same-class partners, estimated without true labels"] == "not possible with these labels"


@pytest.mark.parametrize(
    ("options", "found", "flag"),
    [
        (["--data", "imaginary"], "imaginary", None),
        (["--encoder", "clip"], "'clip'", "--encoder"),
        (["--encoder", "embeddings:nowhere.npy"], "nowhere.npy", "--encoder"),
        (["--encoder", "run:nowhere"], "nowhere has no encoder.safetensors", "--encoder"),
        (["--assignments", "nowhere"], "nowhere", "--assignments"),
        (["--clusters", "5000"], "1437 points", "--clusters"),
        (["--clusters", "0"], "clusters is 0", "--clusters"),
        (["--probe", "--try-clusters", "0"], "0", "--try-clusters"),
        (["--batch", "0"], "0", "--batch"),
        (["--inputs", "features"], "inputs", "--inputs"),
        (["--data", "v.npz", "--encoder", "simsiam"], "holds vectors", "--encoder"),
        (["--data", "v.npz", "--labels", "uniform"], "no true labels", None),
        (["--data", "v.npz", "--long-tail", "3"], "true labels", None),
    ],
)
def test_cluster_rejects_bad_input(cll, tmp_path, options, found, flag):
    vectors(tmp_path / "v.npz")
    status, _, error = cll("cluster", *options, "--restarts", 1, "--out", "c")
    assert status == 2
    *_, message = error.splitlines()
    assert message.startswith("cll cluster: ")
    assert found in message
    assert flag is None or message.endswith(f"({flag})")
    assert not (tmp_path / "c").exists()


def test_cluster_of_images_without_an_encoder_warns(cll, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "photos.npz", images=images, not_y=np.arange(60) % 3)
    status, _, error = cll("cluster", "--data", "photos.npz", "--clusters", 3, "--out", "c")
    assert status == 0
    assert error.count("raw pixels") == 1
    assert error.startswith("warning:")
    assert read_assignment(tmp_path / "c")[1]["made_by"]["encoder"] == "pixels", "auto is resolved in the file"
    assert "raw pixels" not in cll("cluster", "--data", "photos.npz", "--clusters", 3, "--encoder", "pixels")[2]


# --- the encoder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["pixels", pytest.param("random", marks=pytest.mark.slow)])
def test_probe_writes_the_metrics_of_every_number_of_clusters(cll, tmp_path, encoder):
    command = ("cluster", *FAST, "--encoder", encoder, "--long-tail", 3, "--seed", 2, "--batch", 128, "--probe")
    status, out, _ = cll(*command, "--try-clusters", 5, 20, "--json", "e.json")
    assert status == 0
    config = Config.of(encoder=encoder, restarts=1, long_tail=3.0, seed=2)
    chosen, transition, excluded = select(config, DIGITS)
    extractor, truth = FeatureExtractor(config, DIGITS, chosen), DIGITS.train.truth[chosen]
    wanted = probe(extractor.train, truth, extractor.test(), DIGITS.test.truth)
    assignments = [clusters_of(extractor, k) for k in (5, 20)]
    judgments = [judge(a, excluded, transition, truth, 128, as_coded=True).to_json() for a in assignments]
    found = json.loads((tmp_path / "e.json").read_text())
    made_by = found.pop("made_by")
    assert found == wanted | {"clusterings": judgments}
    assert (made_by["encoder"], made_by["long_tail"], made_by["seed"], made_by["batch"]) == (encoder, 3, 2, 128)
    shown = metrics(out.partition("The encoder")[2])
    assert number(shown["kNN accuracy, k = 200 (oracle)"]) == round(100 * wanted["oracle_knn"], 2)
    assert shown["ICM as coded (oracle)"].split() == [f"{100 * j['oracle_noise_icm_as_coded']:.2f}" for j in judgments]


def test_probe_logs_its_work_and_fits_100_columns(cll):
    numbers = (5, 10, 15, 20, 25, 30, 35, 40)
    status, out, error = cll("cluster", *FAST, "--probe", "--try-clusters", *numbers)
    assert status == 0
    assert error.count("evaluating") == 1 + len(numbers)
    assert error.count("probing the encoder") == 1
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    heads = [line.split() for line in lines if line.split()[:1] == ["clusters"]]
    assert heads[1:] == [["clusters", *map(str, numbers[:7])], ["clusters", "40"]]


def test_features_of_many_images_are_computed_once(cll, monkeypatch):
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 1)
    command = ("cluster", *FAST, "--encoder", "random", "--probe", "--try-clusters", 5)
    lines = [line for line in cll(*command)[2].splitlines() if "computing features" in line]
    assert [re.findall(r"[\d,]+(?= images)", line) for line in lines] == [["1,437"], ["360"]], "training and test set"
    assert "computing features" not in cll(*command)[2]


def test_json_implies_probe(cll, tmp_path):
    status, out, _ = cll("cluster", *FAST, "--try-clusters", 5, 2000, "--json", "e.json")
    assert status == 0
    assert "kNN accuracy" in out
    assert [c["clusters"] for c in json.loads((tmp_path / "e.json").read_text())["clusterings"]] == [5]


def test_probe_of_a_stored_assignment_needs_no_encoder(cll, tmp_path):
    write_assignment(tmp_path / "a", torch.arange(1437) % 40, 40, DIGITS.train.inputs, {})
    status, out, _ = cll("cluster", "--assignments", "a", "--json", "e.json")
    assert status == 0
    assert "kNN" not in out
    (only,) = json.loads((tmp_path / "e.json").read_text())["clusterings"]
    assert only["clusters"] == 40
    assert only["oracle_noise_icm_as_coded"] < only["oracle_noise_icm"] == pytest.approx(0.19, abs=0.03)


def test_probe_of_vectors_without_truth_has_no_oracle(cll, tmp_path):
    vectors(tmp_path / "v.npz")
    status, out, _ = cll("cluster", "--data", "v.npz", "--clusters", 3, "--probe", "--try-clusters", 3)
    assert status == 0
    assert "(oracle)" not in out
    assert "same-class partners, estimated" in out


def test_cluster_uses_cached_clusters(cll, monkeypatch):
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 1)
    first = cll("cluster", *FAST)
    assert "clustering 1,437 images into 20 clusters" in first[2]

    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(FeatureExtractor, "_extract", refuse)
    status, out, error = cll("cluster", *FAST)
    assert (status, out) == (0, first[1])
    assert "clustering" not in error


@pytest.mark.slow
def test_cluster_spectral_is_named_in_report_and_file(cll, tmp_path):
    status, out, _ = cll("cluster", *FAST, "--clustering", "spectral", "--report", "r.html", "--out", "a.safetensors")
    assert status == 0
    assert "k-means on the neighbor graph" in self_contained(tmp_path / "r.html")
    assert read_assignment(tmp_path / "a.safetensors")[1]["made_by"]["clustering"] == "spectral"
    plain = metrics(cll("cluster", *FAST)[1])
    name = "same-class partners (oracle)"
    assert number(metrics(out)[name]) > number(plain[name])


def test_cluster_keeps_how_stored_clusters_were_made(cll, tmp_path):
    cll("cluster", *FAST, "--clustering", "spectral", "--out", "a.safetensors")
    assert cll("cluster", "--assignments", "a.safetensors", "--out", "b.safetensors")[0] == 0
    first, second = (read_assignment(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]
    status, _, error = cll("cluster", "--assignments", "a.safetensors", "--clustering", "spectral")
    assert status == 2
    assert "(--clustering)" in error


# --- comparing encoders -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compare_names_the_better_encoder(cll, tmp_path):
    """Pixels of digits against vectors of noise; the oracle probe agrees."""
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).normal(size=(1437, 16)))
    noise = f"embeddings:{tmp_path / 'noise.npy'}"
    options = ("--per-example", 3, "--compare", noise, "pixels", "--json", tmp_path / "out.json")
    status, out, _ = cll("cluster", "--data", "digits", *options)
    assert status == 0
    assert "pixels is the best encoder" in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["winner"] == "pixels"
    assert [row["name"] for row in content["encoders"]] == ["pixels", noise]


@pytest.mark.parametrize("options", [["--compare", "pixels", "pixels"], ["--compare", "pixels", "--out", "x"]])
def test_compare_with_odd_options_is_one_line(cll, options):
    status, _, error = cll("cluster", *options)
    assert (status, error.strip().count("\n")) == (2, 0)
    assert "(--compare)" in error
