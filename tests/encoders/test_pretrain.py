"""Pretraining on the digits, with heads narrow enough that a step takes a few milliseconds."""

import functools
import json
import math
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import torch

from complementary import data, files, networks
from complementary.augment.views import NUMBERS
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset, Split
from complementary.data.selection import select
from complementary.encoders import pretrain
from complementary.encoders.objectives import OBJECTIVES, MoCoV3, Objective
from complementary.encoders.backbone import build_body, features
from complementary.encoders.objectives import cosine, head
from complementary.encoders.pretrain import Pretrainer, two_views, views_for
from complementary.errors import UserError
from complementary.rng import generator

CPU = torch.device("cpu")
STEPS = 1437 // 128
SLOW = ["byol", "mocov3"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    for name, width in (("simsiam", {"bottleneck": 8}), ("byol", {"out": 16}), ("mocov3", {"out": 16})):
        monkeypatch.setitem(OBJECTIVES, name, functools.partial(OBJECTIVES[name], width=32, **width))
    monkeypatch.setattr(networks, "SmallCNN", functools.partial(networks.SmallCNN, width=8))


def small(encoder="mocov3", **options):
    return PretrainConfig(encoder=encoder, **{"batch": 128, "epochs": 2, "body": "cnn"} | options)


def started(config, dataset=None):
    return Pretrainer(config, dataset or data.load(config.data), CPU)


def finish(job):
    while not job.done:
        job.advance()
    return job


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --- schedules ----------------------------------------------------------------------------------------


def schedule(config):
    """Learning rates of both groups and the momentum, as each step sees them."""
    job, seen = started(config), []
    job.run_step = lambda index, source: (
        seen.append((*(g["lr"] for g in job.optimizer.param_groups), float(job.momentum))) or torch.zeros(())
    )
    job.scores = dict
    finish(job)
    return job, list(zip(*seen, strict=True))


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("lr", [None, 0.7])
def test_the_rate_falls_by_a_half_cosine_from_its_value_per_256_images(encoder, lr):
    job, (rates, *_) = schedule(small(encoder, lr=lr, epochs=3))
    base = (0.03 if encoder == "simsiam" else 0.12) if lr is None else lr
    total = 3 * STEPS
    wanted = [base * 128 / 256 * (1 + math.cos(math.pi * t / total)) / 2 for t in range(total)]
    assert rates == pytest.approx(wanted)
    assert job.optimizer.param_groups[0]["momentum"] == 0.9


def test_the_predictor_of_simsiam_keeps_its_rate():
    job, (falling, constant, _) = schedule(small("simsiam"))
    assert set(constant) == {0.03 / 2}
    assert falling[-1] < 0.01 * falling[0]
    held = {id(p) for p in job.optimizer.param_groups[1]["params"]}
    assert held == {id(p) for p in job.objective.predictor.parameters()}


@pytest.mark.parametrize("encoder", SLOW)
def test_the_momentum_of_the_slow_copy_rises_from_99_percent_to_one(encoder):
    job, (_, momentum) = schedule(small(encoder, epochs=3))
    total = 3 * STEPS
    wanted = [1 - 0.01 * (1 + math.cos(math.pi * t / total)) / 2 for t in range(total)]
    assert momentum == pytest.approx(wanted, abs=1e-7)
    assert len(job.optimizer.param_groups) == 1


@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_the_optimiser_holds_every_weight_that_learns_once_and_the_slow_copy_never(encoder):
    job = started(small(encoder, weight_decay=0.25))
    held = [id(p) for group in job.optimizer.param_groups for p in group["params"]]
    names = [n for n, p in job.objective.named_parameters() if id(p) in held]
    assert len(held) == len(set(held)) == len(names)
    assert set(names) == {n for n, _ in job.objective.named_parameters() if not n.startswith("slow")}
    assert {group["weight_decay"] for group in job.optimizer.param_groups} == {0.25}


@pytest.mark.parametrize("encoder", SLOW)
def test_a_step_moves_the_slow_copy_after_the_weights(encoder):
    job = started(small(encoder))
    for _ in range(3):
        old = [p.clone() for p in job.objective.slow_body.parameters()]
        job.advance()
        m = float(job.momentum)
        for slow, before, fast in zip(
            job.objective.slow_body.parameters(), old, job.objective.body.parameters(), strict=True
        ):
            torch.testing.assert_close(slow, m * before + (1 - m) * fast, atol=1e-6, rtol=1e-5)


# --- resuming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("stop", [0, 4, STEPS, STEPS + 3])
def test_a_job_goes_on_bit_by_bit_from_its_checkpoint(tmp_path, encoder, stop):
    whole, half = started(small(encoder)), started(small(encoder))
    for _ in range(stop):
        half.advance()
    files.write_checkpoint(tmp_path / "c.safetensors", *half.state())
    resumed = started(small(encoder))
    resumed.restore(*files.read_checkpoint(tmp_path / "c.safetensors"))
    for job in (whole, resumed):
        finish(job)
    assert whole.history == resumed.history
    assert same(whole.tensors(), resumed.tensors())


def contents(folder):
    return {name: (folder / name).read_bytes() for name in ("encoder.safetensors", "metrics.jsonl", "config.toml")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_random_kills_leave_no_trace(tmp_path, encoder, in_child):
    config = small(encoder, epochs=3)
    begun = time.monotonic()
    pretrain.pretrain(config, tmp_path / "alone", device="cpu")
    length = time.monotonic() - begun
    moments, kills = random.Random(1126), 0
    while not (tmp_path / "killed" / "result.json").exists():
        child = in_child(
            lambda: pretrain.pretrain(config, tmp_path / "killed", resume=True, device="cpu", checkpoint_seconds=0)
        )
        time.sleep(length * (0.2 + 0.1 * kills) * moments.random() + 0.02)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), "a resumed run must not fail"
        kills += status == signal.SIGKILL
    assert kills >= 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


# --- what a run leaves --------------------------------------------------------------------------------


def test_a_run_writes_what_it_promises(tmp_path):
    result = pretrain.pretrain(small(probe_every=2, epochs=3), tmp_path, device="cpu")
    assert {p.name for p in tmp_path.iterdir()} == {
        "config.toml", "metrics.jsonl", "result.json", "encoder.safetensors", ".lock"
    }  # fmt: skip
    assert result == json.loads((tmp_path / "result.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert ["oracle_knn" in row for row in rows] == [False, True, True], "every second epoch, and the last"
    assert all({"loss", "lr", "gauge"} <= row.keys() for row in rows)
    assert result["oracle_knn"] == rows[-1]["oracle_knn"]
    assert (result["loss_last"], result["gauge_last"]) == (rows[-1]["loss"], rows[-1]["gauge"])
    assert result["images"] == 1437
    assert result["views_per_second"] > 0
    assert result["config"] == vars(small(probe_every=2, epochs=3))


def test_the_stored_body_gives_the_features_of_the_trained_one(tmp_path):
    pretrain.pretrain(small(), tmp_path, device="cpu")
    tensors, record = files.read_checkpoint(tmp_path / "encoder.safetensors")
    assert record["body"] == "cnn"
    assert record["shape"] == [1, 8, 8]
    assert record["config"] == small().hash()
    body, _ = build_body(record["body"], tuple(record["shape"]), 99, record["max_pool"])
    body.load_state_dict(tensors)
    job, images = finish(started(small())), data.load("digits").test.inputs
    mean, std = torch.tensor(record["mean"]), torch.tensor(record["std"])
    found = features(body, images, mean, std)
    torch.testing.assert_close(found, features(job.objective.body, images, job.mean, job.std), atol=1e-5, rtol=0)


def test_the_seed_decides_everything_and_true_labels_nothing():
    digits = data.load("digits")
    wrong = replace(digits, train=replace(digits.train, truth=digits.train.truth.flip(0)))
    none = replace(digits, train=replace(digits.train, truth=None))
    torch.manual_seed(5)
    first, *others = (finish(started(small(epochs=1), d)).tensors() for d in (digits, digits, wrong, none))
    assert all(same(first, other) for other in others)
    assert not same(first, finish(started(small(epochs=1, seed=1))).tensors())


def test_no_probe_unless_asked_and_none_without_truth():
    assert "oracle_knn" not in finish(started(small(epochs=1))).history[0]
    digits = data.load("digits")
    for dataset in (replace(digits, train=replace(digits.train, truth=None)), replace(digits, test=None)):
        assert finish(started(small(epochs=1, probe_every=1), dataset)).history[0]["oracle_knn"] is None


def test_learning_beats_the_random_body(monkeypatch):
    """230 steps: a slow copy that follows faster than usual makes up for it."""
    monkeypatch.setattr(MoCoV3, "momentum", (0.9, 1.0))
    monkeypatch.setitem(OBJECTIVES, "mocov3", functools.partial(MoCoV3, width=256, out=128))
    job = started(small(epochs=10, batch=64, lr=0.1, weight_decay=0.0, smallest=0.5))
    before = job.knn()
    finish(job)
    assert job.knn() > before + 0.05
    losses = [row["loss"] for row in job.history]
    assert losses[-1] < losses[4] < losses[0]


# --- which images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"draws": "paper"}, {"head": 100, "seed": 1}], ids=str)
@pytest.mark.parametrize("ratio", [1.0, 10.0])
def test_a_long_tail_is_pretrained_on_exactly_the_images_of_its_run(options, ratio):
    digits = data.load("digits")
    chosen, _, _ = select(Config.of(long_tail=ratio, **options), digits)
    job = started(small(long_tail=ratio, **options))
    assert torch.equal(job.rows.whole(), digits.train.inputs[chosen])
    assert torch.equal(job.chosen, chosen)
    assert job.examples == len(chosen) < 1437 or (ratio == 1 and "head" not in options)


def test_the_probe_of_a_long_tail_uses_the_truth_of_its_own_images():
    """Labels of other images would give chance, a tenth."""
    assert started(small(long_tail=3.0)).knn() > 0.3


def test_vectors_are_refused():
    vectors = Split(torch.randn(300, 2, generator=generator(0, "x")), torch.arange(300) % 3)
    dataset = Dataset("blobs", vectors, None, ("a", "b", "c"), (0.0, 0.0), (1.0, 1.0))
    with pytest.raises(UserError, match="The set blobs holds vectors, and encoders learn from images"):
        started(small(), dataset)


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(
        UserError, match="There are 1437 images, fewer than one batch of 1438; pass --batch 1437 or less"
    ):
        started(small(batch=1438))
    with pytest.raises(UserError, match="There are 326 images, fewer than one batch of 512"):
        started(small(long_tail=100.0, batch=512))
    started(small(batch=1437))


@pytest.mark.parametrize(("shape", "body"), [((1, 8, 8), "cnn"), ((3, 15, 40), "cnn"), ((3, 16, 16), "resnet18")])
def test_auto_chooses_a_body_that_suits_the_size(shape, body):
    images = torch.zeros(4, *shape, dtype=torch.uint8)
    dataset = Dataset("plain", Split(images), None, ("a",), (0.5,) * shape[0], (0.5,) * shape[0])
    assert started(small(batch=4, body="auto"), dataset).body_name == body


def test_mirroring_is_left_to_the_set_unless_told():
    digits = data.load("digits")
    assert views_for(small(), digits).flip == 0
    assert views_for(small(), replace(digits, flip=True)).flip == 0.5
    assert views_for(small(flip=True), digits).flip == 0.5
    assert views_for(small(flip=False), replace(digits, flip=True)).flip == 0
    views = views_for(small(smallest=0.3, jitter=0.1, grey=0.4, blur=0.5, solarise=0.6), digits)
    assert (views.smallest, views.jitter, views.grey, views.blur, views.solarise) == (0.3, 0.1, 0.4, 0.5, 0.6)


# --- features, views, gauge ---------------------------------------------------------------------------


def test_features_are_unit_vectors_whatever_the_batch():
    job, images = started(small()), data.load("digits").test.inputs
    job.advance()
    z = features(job.objective.body.train(), images, job.mean, job.std)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.ones(360))
    for batch in (1, 7, 360):
        torch.testing.assert_close(features(job.objective.body, images, job.mean, job.std, batch), z, atol=1e-5, rtol=0)


def test_the_networks_see_two_different_normalised_views():
    job, seen = started(small()), []
    images = job.rows.whole()[:64]
    first, second = (torch.rand(NUMBERS, 64, generator=generator(i, "views")) for i in range(2))
    see = lambda a, b: seen.extend((a, b)) or torch.zeros(())  # noqa: E731
    two_views(see, job.views, images, first, second, job.mean, job.std)
    drawn_by = (job.views.draw(64, (8, 8), CPU, generator(i, "views")) for i in range(2))
    for found, drawn in zip(seen, drawn_by, strict=True):
        wanted = (job.views.apply(images, drawn) - job.mean[:, None, None]) / job.std[:, None, None]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    draws = []
    job.loss = lambda objective, views, images, a, b, *_: (
        draws.extend((a, b)) or objective(*torch.randn(2, 128, 1, 8, 8))
    )
    job.advance()
    assert not torch.equal(*draws)


def with_projections(z):
    """A job whose projections are ``z``, image by image."""
    job = started(small())
    job.objective.project = lambda x: z[: len(x)]
    return job


@pytest.mark.parametrize(("shared", "low", "high"), [(0.0, 0.97, 1.03), (1.0, 0.6, 0.8), (100.0, 0.0, 0.02)])
def test_the_gauge_is_one_for_even_directions_and_none_where_all_are_alike(shared, low, high):
    z = torch.randn(1024, 64, generator=generator(0, "z")) + shared
    assert low <= with_projections(z).gauge() <= high
    assert with_projections(7 * z).gauge() == pytest.approx(with_projections(z).gauge(), abs=1e-5)
    unit = z / z.norm(dim=1, keepdim=True)
    assert with_projections(z).gauge() == pytest.approx(float(unit.std(0).mean()) / (1 / 64**0.5), abs=1e-5)


def test_the_gauge_looks_at_images_of_the_whole_set():
    """A long tail comes in class order: its first thousand images are of one class."""
    digits = data.load("digits")
    images = torch.cat([digits.train.inputs[:1].expand(1200, -1, -1, -1), digits.train.inputs])
    job = started(small(), replace(digits, train=Split(images)))
    assert job.gauge() > 0.3 * started(small()).gauge()


class Collapsing(Objective):
    """Attraction without predictor, stopped gradient or negatives: the best solution is a constant."""

    base_lr = 2.0

    def __init__(self, body, width):
        super().__init__(body)
        self.projector = head(width, 32, 16, last_norm=False)

    def forward(self, first, second):
        return -cosine(self.project(first), self.project(second))


def test_a_collapse_stops_the_run_with_a_sentence_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "simsiam", Collapsing)
    with pytest.raises(
        UserError, match=r"The encoder collapsed: at epoch \d+ all images have nearly the same features"
    ):
        pretrain.pretrain(small("simsiam", epochs=8), tmp_path, device="cpu", checkpoint_seconds=0)
    assert {"checkpoint.safetensors", "metrics.jsonl"} <= {p.name for p in tmp_path.iterdir()}
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "encoder.safetensors").exists()


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("batch", [128, 1437])
def test_a_healthy_run_is_not_called_a_collapse_even_with_one_step_an_epoch(encoder, batch):
    assert len(finish(started(small(encoder, batch=batch, epochs=4))).history) == 4


def test_nan_stops_the_run_and_names_the_step(tmp_path):
    with pytest.raises(UserError, match=r"NaN or infinite at epoch 1, step \d+ .*Try a lower --lr"):
        pretrain.pretrain(small(lr=1e30), tmp_path, device="cpu")
    assert not (tmp_path / "encoder.safetensors").exists()
