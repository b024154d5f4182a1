"""SimSiam against the paper's formula: D(p, z) = - p / |p| . z / |z|, with z taken as a constant."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from complementary.encoders.objectives import SimSiam
from complementary.encoders.backbone import build_body
from complementary.rng import generator

SHAPE = (1, 8, 8)


def simsiam():
    return SimSiam(*build_body("cnn", SHAPE, 0, True), width=16, bottleneck=4)


def views(count=10, seed=0):
    return torch.randn(2, count, *SHAPE, generator=generator(seed, "views"))


def distance(p, z):
    """Row by row, in float64."""
    p, z = (np.asarray(t.detach().double()) for t in (p, z))
    return np.mean([-float(a @ b) / float(np.sqrt(a @ a) * np.sqrt(b @ b)) for a, b in zip(p, z, strict=True)])


def test_the_loss_is_the_symmetric_negative_cosine():
    built = simsiam()
    z1, z2 = (built.project(v) for v in views())
    p1, p2 = built.predictor(z1), built.predictor(z2)
    assert built(*views()).item() == pytest.approx((distance(p1, z2) + distance(p2, z1)) / 2, abs=1e-6)


def test_gradients_are_those_of_the_formula_with_constant_targets():
    built = simsiam()
    exact = copy.deepcopy(built).double()
    built(*views()).backward()
    targets = [exact.project(v.double()).detach() for v in views()]
    for view, target in zip(views(), reversed(targets), strict=True):
        p = exact.predictor(exact.project(view.double()))
        unit = p / (p * p).sum(1, keepdim=True).sqrt()
        (-(unit * target / (target * target).sum(1, keepdim=True).sqrt()).sum(1).mean() / 2).backward()
    for (name, found), wanted in zip(built.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(found.grad.double(), wanted.grad, atol=2e-5, rtol=1e-3, msg=name)


def test_no_gradient_flows_through_the_target():
    """With predictions cut off, nothing is left that could learn."""

    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    built = simsiam()
    built.predictor = Cut()
    assert not built(*views()).requires_grad


def test_the_loss_is_minus_one_where_views_agree_and_one_where_they_are_opposite():
    built = simsiam()
    built.predictor = nn.Identity()
    first, _ = views()
    assert built(first, first).item() == pytest.approx(-1, abs=1e-6)
    built.predictor = nn.Sequential(nn.Linear(16, 16, bias=False))
    with torch.no_grad():
        built.predictor[0].weight.copy_(-torch.eye(16))
    assert built(first, first).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_stays_between_minus_one_and_one(seed):
    assert -1 <= simsiam()(*(100 * views(seed=seed))).item() <= 1


def test_the_recipe_is_that_of_the_paper():
    assert SimSiam.constant == "predictor"
    assert SimSiam.base_lr == 0.03
    assert SimSiam.momentum is None


def test_on_a_resnet_the_heads_are_those_of_the_paper():
    body, features = build_body("resnet18", (3, 16, 16), 0, True)
    built = SimSiam(body, features)
    widths = [m.out_features for part in (built.projector, built.predictor) for m in part if isinstance(m, nn.Linear)]
    assert widths == [2048, 2048, 512, 2048]
