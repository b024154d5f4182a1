"""MoCo v3 against the paper's formula: 2 T x (- log of exp(q.k+ / T) over the sum of all exp(q.k / T))."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from complementary.encoders.objectives import MoCoV3
from complementary.encoders.backbone import build_body
from complementary.rng import generator

SHAPE = (1, 8, 8)


def moco(temperature=0.2):
    """With a slow copy that has already fallen behind."""
    built = MoCoV3(*build_body("cnn", SHAPE, 0, True), width=16, out=6, temperature=temperature)
    with torch.no_grad():
        for i, parameter in enumerate([*built.body.parameters(), *built.projector.parameters()]):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(i, "behind"))
    return built


def views(count=10, seed=0):
    return torch.randn(2, count, *SHAPE, generator=generator(seed, "views"))


def info_nce(queries, keys, temperature):
    """Query by query, in float64."""
    q, k = (np.asarray(t.detach().double()) for t in (queries, keys))
    losses = []
    for i, query in enumerate(q):
        cosines = [float(query @ key) / math.sqrt(query @ query) / math.sqrt(key @ key) for key in k]
        losses.append(logsumexp(np.array(cosines) / temperature) - cosines[i] / temperature)
    return 2 * temperature * float(np.mean(losses))


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
@pytest.mark.parametrize("count", [2, 10])
def test_the_loss_is_info_nce_both_ways_times_twice_the_temperature(temperature, count):
    built = moco(temperature)
    q1, q2, k1, k2 = built.predictions_and_targets(*views(count))
    wanted = info_nce(q1, k2, temperature) + info_nce(q2, k1, temperature)
    # float32: a cross-entropy near zero is a difference of numbers near 1/temperature
    assert built(*views(count)).item() == pytest.approx(wanted, rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_gradients_are_those_of_the_formula(temperature):
    built = moco(temperature)
    exact = copy.deepcopy(built).double()
    built(*views()).backward()
    q1, q2, k1, k2 = exact.predictions_and_targets(*views().double())
    loss = 0
    for q, k in ((q1, k2), (q2, k1)):
        logits = (q / q.norm(dim=1, keepdim=True)) @ (k / k.norm(dim=1, keepdim=True)).T / temperature
        loss = loss + 2 * temperature * (logits.logsumexp(1) - logits.diagonal()).mean()
    loss.backward()
    for (name, found), wanted in zip(built.named_parameters(), exact.parameters(), strict=True):
        if name.startswith("slow"):
            assert found.grad is None
        else:
            torch.testing.assert_close(found.grad.double(), wanted.grad, atol=5e-5, rtol=2e-3, msg=name)


def test_the_loss_of_features_that_are_all_alike_is_that_of_guessing():
    same = torch.ones(8, 5)
    assert float(moco().contrast(same, same)) == pytest.approx(0.4 * math.log(8), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.1, 0.2])
def test_the_least_loss_is_reached_by_opposite_keys_and_the_greatest_by_confusing_them(temperature):
    built, keys = moco(temperature), torch.tensor([[1.0, 0], [-1, 0]])
    least = 2 * temperature * math.log1p(math.exp(-2 / temperature))
    assert float(built.contrast(keys, keys)) == pytest.approx(least, abs=1e-6)
    assert float(built.contrast(keys, -keys)) == pytest.approx(least + 4, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_only_directions_count(scale):
    q, k = torch.randn(2, 7, 5, generator=generator(0, "x"))
    torch.testing.assert_close(moco().contrast(scale * q, k / scale), moco().contrast(q, k))


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_stays_within_its_bounds(seed):
    """Of the two terms each is at least 0 and at most 2 T log B + 4."""
    assert 0 <= moco()(*views(seed=seed)).item() <= 2 * (0.4 * math.log(10) + 4)


def test_half_precision_projections_are_compared_in_full():
    q, k = torch.randn(2, 7, 5, generator=generator(0, "x")).bfloat16()
    found = moco().contrast(q, k)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(info_nce(q, k, 0.2), rel=1e-5)
