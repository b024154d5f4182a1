import random

import pytest
import torch

from benchmarks.plain_loop import (
    ALPHA,
    DECAY,
    PADDING,
    RATE,
    PlainImages,
    PlainLoop,
    PlainProcess,
    find_partners,
    transform,
)
from benchmarks.plain_loop import mix_one_by_one as mix_plainly
from benchmarks.setting import QUICK, Net, clustered, synthetic
from complementary.augment.crop import CropAndFlip, CropDraw, normalize
from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.mixing import ICM
from complementary.training.trainer import Trainer

NET = Net("cnn", 16, 1, 1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task():
    return clustered(synthetic(64, 8), 5)


def test_mix_one_by_one_equals_icm_for_the_same_partners_and_weights():
    source = torch.Generator().manual_seed(0)
    x, excluded = torch.randn(40, 3, 4, 4, generator=source), torch.eye(10).repeat(4, 1)
    cluster = torch.randint(12, (40,), generator=source)
    draw = ICM().draw(40, CPU, source)
    chosen, found = ICM().pick(excluded, cluster, None, draw.partner)
    assert not found.all()  # some examples have no partner
    partners = [int(j) if there else None for j, there in zip(chosen[:, 0], found, strict=True)]
    mixed, soft = mix_plainly(x, excluded, partners, draw.weight[:, 0].tolist())
    ours = ICM().apply(x, excluded, cluster, draw)
    torch.testing.assert_close(mixed, ours[0])
    torch.testing.assert_close(soft, ours[1])


def test_find_partners_picks_other_members_of_the_same_cluster():
    cluster = [0, 0, 0, 1, 2, 2]
    draws = [find_partners(cluster, random.Random(seed)) for seed in range(200)]
    seen = [{draw[i] for draw in draws} for i in range(6)]
    assert seen == [{1, 2}, {0, 2}, {0, 1}, {None}, {5}, {4}]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("down", "right"), [(0, 0), (-4, 3), (4, -1)])
def test_transform_equals_the_augmentation_of_the_package(task, down, right, flip):
    moves = CropDraw(torch.tensor([[down]]), torch.tensor([[right]]), torch.tensor([[flip]]))
    raw = CropAndFlip(PADDING, True).apply(task.inputs, torch.tensor([5]), moves)
    ours = normalize(raw, task.mean, task.std)[0]
    mean, std = (t.float().numpy()[:, None, None] for t in (task.mean, task.std))
    plain = transform(task.inputs[5].numpy(), down, right, flip, mean, std)
    torch.testing.assert_close(torch.from_numpy(plain), ours)


def test_plain_loop_has_the_default_settings_of_the_package(task):
    config = Config.of(model="cnn", mix="icm", holdout=0.0, batch=16)
    trainer = Trainer(config, task, Engine.choose("cpu"))
    assert trainer.augment == CropAndFlip(PADDING, True)
    assert (config.mixing.alpha, config.training.lr, config.training.weight_decay) == (ALPHA, RATE, DECAY)


def test_plain_step_updates_the_weights_as_the_trainer_does(task, monkeypatch):
    trainer = Trainer(Config.of(model="cnn", mix="icm", holdout=0.0, batch=16), task, Engine.choose("cpu"))
    index = torch.arange(16)
    x, excluded = trainer.load(index, trainer.random)
    draw = ICM().draw(16, CPU, torch.Generator().manual_seed(1))
    monkeypatch.setattr(Trainer, "load", lambda *_: (x, excluded))
    monkeypatch.setattr(ICM, "draw", lambda *_: draw)
    loop = PlainLoop(NET, task, CPU, icm=True, steps=1, workers=0)
    torch.testing.assert_close(dict(loop.model.state_dict()), dict(trainer.model.state_dict()))

    chosen, found = ICM().pick(excluded, task.cluster[index], None, draw.partner)
    partners = [int(j) if there else None for j, there in zip(chosen[:, 0], found, strict=True)]
    weights = iter(draw.weight[:, 0].tolist())
    monkeypatch.setattr("benchmarks.plain_loop.find_partners", lambda *_: partners)
    monkeypatch.setattr(loop.random, "betavariate", lambda *_: next(weights))
    loss = loop.step(x, excluded, task.cluster[index])
    assert loss == pytest.approx(float(trainer.step(index, trainer.random)), rel=1e-5)
    plain, ours = dict(loop.model.named_parameters()), dict(trainer.model.named_parameters())
    moved = (ours["fc.weight"] - plain["fc.weight"]).abs().max()
    assert moved < 2e-4  # of steps of 1e-3


def test_plain_loop_visits_every_batch_once_with_workers(task):
    loop = PlainLoop(NET, task, CPU, icm=True, steps=3, workers=2)
    assert len(loop.loader.dataset) == 48
    first, second = loop.run(), loop.run()
    assert len(first) == len(second) == 3
    assert all(0 < loss < 1 for loss in first + second)
    assert first != second


@pytest.mark.slow
def test_plain_process_trains_on_request_and_ends_when_closed():
    plain = PlainProcess(NET, CPU, QUICK, steps=2, workers=0)
    assert len(plain.run("none")) == len(plain.run("icm")) == 2
    plain.close()
    assert plain.process.returncode == 0


@pytest.mark.slow
def test_plain_process_reports_a_crash(capfd):
    plain = PlainProcess(Net("nix", 16, 1, 1), CPU, QUICK, steps=2, workers=0)
    with pytest.raises(RuntimeError, match="ended early"):
        plain.run("none")
    plain.close()
    assert "The model 'nix' is not known" in capfd.readouterr().err


def test_plain_images_are_augmented_at_every_access(task):
    images = PlainImages(task, 10)
    x, excluded, cluster = images[3]
    assert (x.shape, x.dtype) == ((3, 32, 32), torch.float32)
    assert excluded.tolist() == task.excluded[3].tolist()
    assert cluster == int(task.cluster[3])
    assert any(not torch.equal(images[3][0], x) for _ in range(5))
