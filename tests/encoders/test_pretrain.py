"""Pretraining on the digits, with networks so narrow that a step takes a few milliseconds."""

import functools
import json
import math
import time
from dataclasses import replace

import pytest
import torch

from complementary import data, files
from complementary.augment.views import NUMBERS
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset, Split
from complementary.data.selection import select
from complementary.encoders import pretrain
from complementary.encoders.backbone import build_backbone, describe, extract_features
from complementary.encoders.objectives import OBJECTIVES, MoCoV3, Objective, cosine, head
from complementary.encoders.pretrain import Pretrainer, build_objective, two_views, views_for
from complementary.errors import UserError
from complementary.rng import generator
from tests.helpers import PRETRAIN_FILES, narrow_networks, run_files
from tests.processes import kill_until_finished

CPU = torch.device("cpu")
STEPS = 1437 // 128
WITH_TARGET = ["byol", "mocov3"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    narrow_networks(monkeypatch)


def small(encoder="mocov3", **options):
    return PretrainConfig(encoder=encoder, **{"batch": 128, "epochs": 2, "backbone": "cnn"} | options)


def started(config, dataset=None):
    return Pretrainer(config, dataset or data.load(config.data), CPU)


def finish(trainer):
    while not trainer.done:
        trainer.advance()
    return trainer


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --- schedules ----------------------------------------------------------------------------------------


def schedule(config):
    """Learning rates of both groups and the momentum, as each step sees them."""
    trainer, seen = started(config), []
    trainer.run_step = lambda index, source: (
        seen.append((*(g["lr"] for g in trainer.optimizer.param_groups), float(trainer.momentum))) or torch.zeros(())
    )
    trainer.scores = dict
    finish(trainer)
    return trainer, list(zip(*seen, strict=True))


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("lr", [None, 0.7])
def test_lr_is_a_half_cosine_scaled_to_256_images(encoder, lr):
    trainer, (rates, *_) = schedule(small(encoder, lr=lr, epochs=3))
    base = (0.03 if encoder == "simsiam" else 0.12) if lr is None else lr
    total = 3 * STEPS
    wanted = [base * 128 / 256 * (1 + math.cos(math.pi * t / total)) / 2 for t in range(total)]
    assert rates == pytest.approx(wanted)
    assert trainer.optimizer.param_groups[0]["momentum"] == 0.9


def test_lr_of_the_simsiam_predictor_is_constant():
    trainer, (falling, constant, _) = schedule(small("simsiam"))
    assert set(constant) == {0.03 / 2}
    assert falling[-1] < 0.01 * falling[0]
    held = {id(p) for p in trainer.optimizer.param_groups[1]["params"]}
    assert held == {id(p) for p in trainer.objective.predictor.parameters()}


@pytest.mark.parametrize("encoder", WITH_TARGET)
def test_target_momentum_rises_from_99_percent_to_1(encoder):
    trainer, (_, momentum) = schedule(small(encoder, epochs=3))
    total = 3 * STEPS
    wanted = [1 - 0.01 * (1 + math.cos(math.pi * t / total)) / 2 for t in range(total)]
    assert momentum == pytest.approx(wanted, abs=1e-7)
    assert len(trainer.optimizer.param_groups) == 1


@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_optimizer_has_every_weight_once_except_the_target(encoder):
    trainer = started(small(encoder, weight_decay=0.25))
    held = [id(p) for group in trainer.optimizer.param_groups for p in group["params"]]
    names = [n for n, p in trainer.objective.named_parameters() if id(p) in held]
    assert len(held) == len(set(held)) == len(names)
    assert set(names) == {n for n, _ in trainer.objective.named_parameters() if not n.startswith("target")}
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.25}


@pytest.mark.parametrize("encoder", WITH_TARGET)
def test_step_updates_the_target_after_the_weights(encoder):
    trainer = started(small(encoder))
    for _ in range(3):
        old = [p.clone() for p in trainer.objective.target_backbone.parameters()]
        trainer.advance()
        m = float(trainer.momentum)
        for target, before, online in zip(
            trainer.objective.target_backbone.parameters(), old, trainer.objective.backbone.parameters(), strict=True
        ):
            torch.testing.assert_close(target, m * before + (1 - m) * online, atol=1e-6, rtol=1e-5)


# --- resuming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("stop", [4, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (0, STEPS, STEPS + 3))])
def test_resume_from_a_checkpoint_is_bitwise_equal(tmp_path, encoder, stop):
    config = small(encoder, head=36, batch=32)
    whole, half, resumed = (started(config) for _ in range(3))
    assert whole.steps_per_epoch == STEPS
    for _ in range(stop):
        half.advance()
    files.write_checkpoint(tmp_path / "c.safetensors", *half.state())
    resumed.restore(*files.read_checkpoint(tmp_path / "c.safetensors"))
    for trainer in (whole, resumed):
        finish(trainer)
    assert whole.history == resumed.history
    assert same(whole.tensors(), resumed.tensors())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_resume_after_random_kills_is_bitwise_equal(tmp_path, encoder, in_child):
    config = small(encoder, epochs=3)
    begun = time.monotonic()
    pretrain.pretrain(config, tmp_path / "alone", device="cpu")
    length = time.monotonic() - begun
    again = functools.partial(pretrain.pretrain, config, tmp_path / "killed", resume=True, device="cpu")
    kills = kill_until_finished(
        lambda: in_child(lambda: again(checkpoint_seconds=0)),
        tmp_path / "killed",
        lambda kills: length * (0.2 + 0.1 * kills),
    )
    assert kills >= 2
    assert run_files(tmp_path / "killed", PRETRAIN_FILES) == run_files(tmp_path / "alone", PRETRAIN_FILES)


# --- results ------------------------------------------------------------------------------------------------------


def test_pretrain_writes_its_files(tmp_path):
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


def test_pretrain_stores_the_trained_backbone(tmp_path):
    pretrain.pretrain(small(), tmp_path, device="cpu")
    tensors, record = files.read_checkpoint(tmp_path / "encoder.safetensors")
    assert record["body"] == "cnn"
    assert record["shape"] == [1, 8, 8]
    assert record["config"] == small().hash()
    backbone, _ = build_backbone(record["body"], tuple(record["shape"]), 99, record["max_pool"])
    tensors.pop("pretraining_images")
    backbone.load_state_dict(tensors)
    trainer, images = finish(started(small())), data.load("digits").test.inputs
    mean, std = torch.tensor(record["mean"]), torch.tensor(record["std"])
    found = extract_features(backbone, images, mean, std)
    torch.testing.assert_close(
        found, extract_features(trainer.objective.backbone, images, trainer.mean, trainer.std), atol=1e-5, rtol=0
    )


def test_pretraining_depends_on_the_seed_and_not_on_true_labels():
    digits = data.load("digits")
    wrong = replace(digits, train=replace(digits.train, truth=digits.train.truth.flip(0)))
    none = replace(digits, train=replace(digits.train, truth=None))
    torch.manual_seed(5)
    first, *others = (finish(started(small(epochs=1), d)).tensors() for d in (digits, digits, wrong, none))
    assert all(same(first, other) for other in others)
    assert not same(first, finish(started(small(epochs=1, seed=1))).tensors())


def test_probe_only_on_request_and_with_truth():
    assert "oracle_knn" not in finish(started(small(epochs=1))).history[0]
    digits = data.load("digits")
    for dataset in (replace(digits, train=replace(digits.train, truth=None)), replace(digits, test=None)):
        assert finish(started(small(epochs=1, probe_every=1), dataset)).history[0]["oracle_knn"] is None


@pytest.mark.slow
def test_pretraining_improves_the_knn_accuracy(monkeypatch):
    """Only 230 steps, so the target network has to follow faster than usual."""
    monkeypatch.setattr(MoCoV3, "momentum", (0.9, 1.0))
    monkeypatch.setitem(OBJECTIVES, "mocov3", functools.partial(MoCoV3, width=256, out=128))
    trainer = started(small(epochs=10, batch=64, lr=0.1, weight_decay=0.0, min_scale=0.5))
    before = trainer.knn()
    finish(trainer)
    assert trainer.knn() > before + 0.05
    losses = [row["loss"] for row in trainer.history]
    assert losses[-1] < losses[4] < losses[0]


# --- which images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"subset": "first"}, {"head": 100, "seed": 1}], ids=str)
@pytest.mark.parametrize("ratio", [1.0, 10.0])
def test_pretraining_of_a_long_tail_uses_the_images_of_the_run(options, ratio):
    digits = data.load("digits")
    chosen, _, _ = select(Config.of(long_tail=ratio, **options), digits)
    trainer = started(small(long_tail=ratio, **options))
    assert torch.equal(trainer.rows.whole(), digits.train.inputs[chosen])
    assert torch.equal(trainer.chosen, chosen)
    assert trainer.examples == len(chosen) < 1437 or (ratio == 1 and "head" not in options)


def test_probe_of_a_long_tail_uses_the_truth_of_its_images():
    """With the labels of other images the accuracy would be at chance, 0.1."""
    assert started(small(long_tail=3.0)).knn() > 0.3


def test_pretrainer_rejects_vectors():
    vectors = Split(torch.randn(300, 2, generator=generator(0, "x")), torch.arange(300) % 3)
    dataset = Dataset("blobs", vectors, None, ("a", "b", "c"), (0.0, 0.0), (1.0, 1.0))
    with pytest.raises(UserError, match="blobs holds vectors"):
        started(small(), dataset)


def test_pretrainer_rejects_a_batch_larger_than_the_dataset():
    with pytest.raises(UserError, match="1437 images") as caught:
        started(small(batch=1438))
    assert caught.value.option == "batch"
    with pytest.raises(UserError, match="326 images"):
        started(small(long_tail=100.0, batch=512))
    started(small(batch=1437))


@pytest.mark.parametrize(("shape", "backbone"), [((1, 8, 8), "cnn"), ((3, 15, 40), "cnn"), ((3, 16, 16), "resnet18")])
def test_backbone_auto_depends_on_the_size(shape, backbone):
    images = torch.zeros(4, *shape, dtype=torch.uint8)
    dataset = Dataset("plain", Split(images), None, ("a",), (0.5,) * shape[0], (0.5,) * shape[0])
    assert started(small(batch=4, backbone="auto"), dataset).objective.backbone.kind == backbone


def test_views_follow_the_configuration_and_the_dataset():
    digits = data.load("digits")
    assert views_for(small(), digits).flip == 0
    assert views_for(small(), replace(digits, flip=True)).flip == 0.5
    assert views_for(small(flip=True), digits).flip == 0.5
    assert views_for(small(flip=False), replace(digits, flip=True)).flip == 0
    views = views_for(small(min_scale=0.3, jitter=0.1, grayscale=0.4, blur=0.5, solarize=0.6), digits)
    assert (views.min_scale, views.jitter, views.grayscale, views.blur, views.solarize) == (0.3, 0.1, 0.4, 0.5, 0.6)


# --- views and gauge ----------------------------------------------------------------------------------------------


def test_two_views_are_different_and_normalized():
    trainer, seen = started(small()), []
    images = trainer.rows.whole()[:64]
    first, second = (torch.rand(NUMBERS, 64, generator=generator(i, "views")) for i in range(2))
    see = lambda a, b: seen.extend((a, b)) or torch.zeros(())  # noqa: E731
    two_views(see, trainer.views, images, first, second, trainer.mean, trainer.std)
    drawn_by = (trainer.views.draw(64, (8, 8), CPU, generator(i, "views")) for i in range(2))
    for found, drawn in zip(seen, drawn_by, strict=True):
        wanted = (trainer.views.apply(images, drawn) - trainer.mean[:, None, None]) / trainer.std[:, None, None]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    draws = []
    trainer.loss = lambda objective, views, images, a, b, *_: (
        draws.extend((a, b)) or objective(*torch.randn(2, 128, 1, 8, 8))
    )
    trainer.advance()
    assert not torch.equal(*draws)


def with_projections(z):
    """A pretraining whose projections are ``z``, image by image."""
    trainer = started(small())
    trainer.objective.project = lambda x: z[: len(x)]
    return trainer


@pytest.mark.parametrize(("shared", "low", "high"), [(0.0, 0.97, 1.03), (1.0, 0.6, 0.8), (100.0, 0.0, 0.02)])
def test_gauge_is_1_for_isotropic_and_0_for_equal_projections(shared, low, high):
    z = torch.randn(1024, 64, generator=generator(0, "z")) + shared
    assert low <= with_projections(z).gauge() <= high
    assert with_projections(7 * z).gauge() == pytest.approx(with_projections(z).gauge(), abs=1e-5)
    unit = z / z.norm(dim=1, keepdim=True)
    assert with_projections(z).gauge() == pytest.approx(float(unit.std(0).mean()) / (1 / 64**0.5), abs=1e-5)


def test_gauge_uses_images_of_the_whole_dataset():
    """A long tail is sorted by class: its first thousand images may be of one class."""
    digits = data.load("digits")
    images = torch.cat([digits.train.inputs[:1].expand(1200, -1, -1, -1), digits.train.inputs])
    trainer = started(small(), replace(digits, train=Split(images)))
    assert trainer.gauge() > 0.3 * started(small()).gauge()


class Collapsing(Objective):
    """Attraction without predictor, stopped gradient or negatives: a constant is optimal."""

    base_lr = 2.0

    def __init__(self, backbone, width):
        super().__init__(backbone)
        self.projector = head(width, 32, 16, last_norm=False)

    def forward(self, first, second):
        return -cosine(self.project(first), self.project(second))


def test_collapse_stops_the_run_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "simsiam", Collapsing)
    with pytest.raises(UserError, match=r"collapsed: at epoch \d+"):
        pretrain.pretrain(small("simsiam", epochs=8), tmp_path, device="cpu", checkpoint_seconds=0)
    assert {"checkpoint.safetensors", "metrics.jsonl"} <= {p.name for p in tmp_path.iterdir()}
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "encoder.safetensors").exists()


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("batch", [128, 1437])
def test_collapse_is_not_reported_for_healthy_runs(encoder, batch):
    assert len(finish(started(small(encoder, batch=batch, epochs=4))).history) == 4


def test_nan_stops_the_run_and_names_the_step(tmp_path):
    with pytest.raises(UserError, match=r"epoch 1, step \d+"):
        pretrain.pretrain(small(lr=1e30), tmp_path, device="cpu")
    assert not (tmp_path / "encoder.safetensors").exists()


# --- start from an encoder ----------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    """A folder of cll pretrain, with half precision weights."""
    backbone, _ = build_backbone("cnn", (3, 16, 16), 7, True)
    tensors = {k: v.half() if v.is_floating_point() else v for k, v in backbone.state_dict().items()}
    files.write_checkpoint(tmp_path / "encoder.safetensors", tensors, describe(backbone) | {"shape": [3, 16, 16]})
    return tmp_path, tensors


def built(encoder="simsiam", **options):
    return build_objective(small(encoder, **options), (3, 16, 16))


@pytest.mark.parametrize("encoder", OBJECTIVES)
@pytest.mark.parametrize("kind", ["run", "file"])
def test_start_loads_the_backbone_and_makes_new_heads(stored, encoder, kind):
    folder, tensors = stored
    start = built(encoder, start=f"run:{folder}" if kind == "run" else f"file:{folder / 'encoder.safetensors'}")
    for name, value in start.backbone.state_dict().items():
        torch.testing.assert_close(value, tensors[name].to(value.dtype), rtol=0, atol=0)
    other = built(encoder).state_dict()
    assert any(not torch.equal(v, other[k]) for k, v in start.state_dict().items() if k.startswith("backbone."))
    heads = [k for k in other if k.startswith(("projector", "predictor"))]
    assert heads
    assert all(torch.equal(start.state_dict()[k], other[k]) for k in heads), "new heads depend on the seed only"


@pytest.mark.parametrize("encoder", WITH_TARGET)
def test_start_also_sets_the_target(stored, encoder):
    start = built(encoder, start=f"run:{stored[0]}")
    assert same(start.target_backbone.state_dict(), start.backbone.state_dict())


def test_start_rejects_another_backbone(stored):
    with pytest.raises(UserError, match=r"cnn.*resnet18 without max-pool") as caught:
        built(start=f"run:{stored[0]}", backbone="resnet18", max_pool=False)
    assert caught.value.option == "start"


@pytest.mark.parametrize("start", ["simsiam", "run:", "file:", "nowhere", "embeddings:z.npy"])
def test_start_rejects_other_specs(start):
    with pytest.raises(UserError, match="run:FOLDER"):
        built(start=start)


def test_start_rejects_a_folder_without_an_encoder(tmp_path):
    with pytest.raises(UserError, match="has no encoder"):
        built(start=f"run:{tmp_path}")
