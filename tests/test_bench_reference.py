import random

import pytest
import torch

from complementary.augment.crop import Augment, Moves, normalise
from complementary.bench_reference import (
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
from complementary.bench_reference import mix_one_by_one as mix_plainly
from complementary.bench_setting import QUICK, Net, clustered, synthetic
from complementary.config import Config
from complementary.engine.backend import Engine
from complementary.mixing import ICM
from complementary.training.trainer import Trainer

NET = Net("cnn", 16, 1, 1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task():
    return clustered(synthetic(64, 8), 5)


def test_it_mixes_as_ours_does_for_the_same_partners_and_weights():
    source = torch.Generator().manual_seed(0)
    x, excluded = torch.randn(40, 3, 4, 4, generator=source), torch.eye(10).repeat(4, 1)
    cluster = torch.randint(12, (40,), generator=source)
    draw = ICM().draw(40, CPU, source)
    chosen, found = ICM().pick(excluded, cluster, None, draw.partner)
    assert not found.all()  # someone is alone
    partners = [int(j) if there else None for j, there in zip(chosen[:, 0], found, strict=True)]
    mixed, soft = mix_plainly(x, excluded, partners, draw.weight[:, 0].tolist())
    ours = ICM().apply(x, excluded, cluster, draw)
    torch.testing.assert_close(mixed, ours[0])
    torch.testing.assert_close(soft, ours[1])


def test_partners_are_other_members_of_the_same_cluster():
    cluster = [0, 0, 0, 1, 2, 2]
    draws = [find_partners(cluster, random.Random(seed)) for seed in range(200)]
    seen = [{draw[i] for draw in draws} for i in range(6)]
    assert seen == [{1, 2}, {0, 2}, {0, 1}, {None}, {5}, {4}]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("down", "right"), [(0, 0), (-4, 3), (4, -1)])
def test_an_image_is_transformed_as_ours_are(task, down, right, mirrored):
    moves = Moves(torch.tensor([[down]]), torch.tensor([[right]]), torch.tensor([[mirrored]]))
    raw = Augment(PADDING, True).take(task.inputs, torch.tensor([5]), moves)
    ours = normalise(raw, task.mean, task.std)[0]
    mean, std = (t.float().numpy()[:, None, None] for t in (task.mean, task.std))
    plain = transform(task.inputs[5].numpy(), down, right, mirrored, mean, std)
    torch.testing.assert_close(torch.from_numpy(plain), ours)


def test_its_settings_are_those_of_the_product(task):
    config = Config.of(model="cnn", mix="icm", holdout=0.0, batch=16)
    trainer = Trainer(config, task, Engine.choose("cpu"))
    assert trainer.augment == Augment(PADDING, True)
    assert (config.mixing.alpha, config.training.lr, config.training.weight_decay) == (ALPHA, RATE, DECAY)


def test_a_step_does_to_the_weights_what_ours_does(task, monkeypatch):
    """The same batch, partners and λ through both loops: the same loss and the same weights after."""
    trainer = Trainer(Config.of(model="cnn", mix="icm", holdout=0.0, batch=16), task, Engine.choose("cpu"))
    index = torch.arange(16)
    x, excluded = trainer.load(index, trainer.random)
    draw = ICM().draw(16, CPU, torch.Generator().manual_seed(1))
    monkeypatch.setattr(Trainer, "load", lambda *_: (x, excluded))
    monkeypatch.setattr(ICM, "draw", lambda *_: draw)
    loop = PlainLoop(NET, task, CPU, icm=True, steps=1, workers=0)
    torch.testing.assert_close(dict(loop.model.state_dict()), dict(trainer.model.state_dict()))

    chosen, found = ICM().pick(excluded, task.group[index], None, draw.partner)
    partners = [int(j) if there else None for j, there in zip(chosen[:, 0], found, strict=True)]
    weights = iter(draw.weight[:, 0].tolist())
    monkeypatch.setattr("complementary.bench_reference.find_partners", lambda *_: partners)
    monkeypatch.setattr(loop.random, "betavariate", lambda *_: next(weights))
    loss = loop.step(x, excluded, task.group[index])
    assert loss == pytest.approx(float(trainer.step(index, trainer.random)), rel=1e-5)
    plain, ours = dict(loop.model.named_parameters()), dict(trainer.model.named_parameters())
    moved = (ours["fc.weight"] - plain["fc.weight"]).abs().max()
    assert moved < 2e-4  # of steps of 1e-3


def test_a_pass_takes_every_batch_once_with_workers(task):
    loop = PlainLoop(NET, task, CPU, icm=True, steps=3, workers=2)
    assert len(loop.loader.dataset) == 48
    first, second = loop.run(), loop.run()
    assert len(first) == len(second) == 3
    assert all(0 < loss < 1 for loss in first + second)
    assert first != second


def test_in_its_own_process_it_trains_when_asked_and_ends_when_closed():
    plain = PlainProcess(NET, CPU, QUICK, steps=2, workers=0)
    assert len(plain.run("none")) == len(plain.run("icm")) == 2
    plain.close()
    assert plain.process.returncode == 0


def test_a_process_that_died_is_reported(capfd):
    plain = PlainProcess(Net("nix", 16, 1, 1), CPU, QUICK, steps=2, workers=0)
    with pytest.raises(RuntimeError, match="ended before its time"):
        plain.run("none")
    plain.close()
    assert "The model 'nix' is not known" in capfd.readouterr().err


def test_examples_come_one_at_a_time_and_augmented_anew(task):
    images = PlainImages(task, 10)
    x, excluded, cluster = images[3]
    assert (x.shape, x.dtype) == ((3, 32, 32), torch.float32)
    assert excluded.tolist() == task.excluded[3].tolist()
    assert cluster == int(task.group[3])
    assert any(not torch.equal(images[3][0], x) for _ in range(5))
