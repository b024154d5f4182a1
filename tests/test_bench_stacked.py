"""Networks side by side as one compute what each of them does alone."""

import dataclasses

import pytest
import torch

from complementary import bench_stacked
from complementary import networks as models
from complementary.bench_setting import QUICK, Net, Setting
from complementary.bench_stacked import Stacked
from complementary.engine.backend import Engine
from complementary.rng import generator


@pytest.mark.parametrize(("kind", "max_pool"), [("cnn", True), ("resnet18", True), ("resnet18", False)])
@pytest.mark.parametrize("training", [True, False])
def test_stacked_networks_give_the_logits_and_gradients_of_each(kind, max_pool, training):
    networks = [models.build(kind, (3, 16, 16), 4, seed, max_pool).double().train(training) for seed in range(3)]
    for seed, net in enumerate(networks):  # statistics that tell them apart
        net.bn1.running_mean.fill_(seed / 10) if kind == "resnet18" else net.norms[0].running_mean.fill_(seed / 10)
    x = torch.randn(6, 3, 3, 16, 16, generator=generator(0, "x"), dtype=torch.float64)  # images, networks, channels ...
    stacked = Stacked(networks).train(training)
    alone = torch.stack([net(x[:, i]) for i, net in enumerate(networks)], 1)
    found = stacked(x.flatten(1, 2))
    torch.testing.assert_close(found, alone, atol=1e-9, rtol=1e-9)
    alone.square().sum().backward(), found.square().sum().backward()
    first = [net.conv1 if kind == "resnet18" else net.convs[0] for net in networks]
    wide = stacked.body.conv1 if kind == "resnet18" else stacked.body.convs[0]
    wanted = torch.cat([conv.weight.grad for conv in first])
    torch.testing.assert_close(wide.weight.grad, wanted, atol=1e-9, rtol=1e-6)


def test_both_ways_are_timed():
    tiny = dataclasses.replace(QUICK, networks=(Net("cnn", 8, 2, 2),), packs=(1, 2, 3))
    rows = bench_stacked.stacking(Setting(Engine.choose("cpu"), tiny, lambda _: None))
    assert [(row["trainings"], row["how"]) for row in rows] == [(2, "apart"), (2, "stacked")]
    assert rows[0]["times_apart"] == 1
    assert all(row["images_per_second"] > 0 for row in rows)
