"""BYOL against the paper's formula: |q / |q| - z / |z||^2 = 2 - 2 cos(q, z), with z from the slow copy."""

import copy

import numpy as np
import pytest
import torch

from complementary.encoders.objectives import BYOL
from complementary.encoders.backbone import build_body
from complementary.rng import generator

SHAPE = (1, 8, 8)


def byol(out=6):
    """With a slow copy that has already fallen behind."""
    built = BYOL(*build_body("cnn", SHAPE, 0, True), width=16, out=out)
    with torch.no_grad():
        for i, parameter in enumerate([*built.body.parameters(), *built.projector.parameters()]):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(i, "behind"))
    return built


def views(count=10, seed=0):
    return torch.randn(2, count, *SHAPE, generator=generator(seed, "views"))


def squared_distance(q, z):
    """Row by row, in float64: between unit vectors."""
    q, z = (np.asarray(t.detach().double()) for t in (q, z))
    unit = [(a / np.sqrt(a @ a), b / np.sqrt(b @ b)) for a, b in zip(q, z, strict=True)]
    return np.mean([float((a - b) @ (a - b)) for a, b in unit])


def test_the_loss_is_the_papers_distance_up_to_scale_and_shift():
    built = byol()
    q1, q2, z1, z2 = built.predictions_and_targets(*views())
    both = squared_distance(q1, z2) + squared_distance(q2, z1)
    assert built(*views()).item() == pytest.approx(both / 4 - 1, abs=1e-6)


def test_gradients_are_those_of_the_formula():
    built = byol()
    exact = copy.deepcopy(built).double()
    built(*views()).backward()
    q1, q2, z1, z2 = exact.predictions_and_targets(*views().double())
    loss = 0
    for q, z in ((q1, z2), (q2, z1)):
        difference = q / q.norm(dim=1, keepdim=True) - z / z.norm(dim=1, keepdim=True)
        loss = loss + difference.square().sum(1).mean() / 4
    loss.backward()
    for (name, found), wanted in zip(built.named_parameters(), exact.parameters(), strict=True):
        if name.startswith("slow"):
            assert found.grad is None
        else:
            torch.testing.assert_close(found.grad.double(), wanted.grad, atol=2e-5, rtol=1e-3, msg=name)


def test_the_target_of_a_view_is_the_other_view():
    """Targets of equal views are predictions' own; the loss of swapped images is worse after a little training."""
    built = byol()
    optimizer = torch.optim.SGD([p for p in built.parameters() if p.requires_grad], 0.1, momentum=0.9)
    first, _ = views()
    for _ in range(40):
        optimizer.zero_grad()
        built(first, first).backward()
        optimizer.step()
    assert built(first, first).item() < built(first, first.flip(0)).item() - 0.1


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_stays_between_minus_one_and_one(seed):
    assert -1 <= byol()(*(100 * views(seed=seed))).item() <= 1
