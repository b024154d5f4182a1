"""What all objectives share: heads, the cosine, the slow copy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from complementary.encoders.objectives import BYOL, OBJECTIVES, MoCoV3, SimSiam
from complementary.encoders.backbone import build_body
from complementary.encoders.objectives import Objective, cosine, head
from complementary.networks import Network
from complementary.rng import generator

SHAPE = (1, 8, 8)


def views(count=12, seed=0):
    return torch.randn(2, count, *SHAPE, generator=generator(seed, "views"))


def objective(name, **widths):
    body, width = build_body("cnn", SHAPE, 0, True)
    return OBJECTIVES[name](body, width, width=16, **widths)


def kinds(network):
    return [type(layer) for layer in network]


# --- heads --------------------------------------------------------------------------------------------


def test_a_head_is_linear_norm_relu_and_a_last_linear():
    layers = head(5, 7, 6, 3, last_norm=False)
    assert kinds(layers) == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2 + [nn.Linear]
    assert [tuple(m.weight.shape) for m in layers if isinstance(m, nn.Linear)] == [(7, 5), (6, 7), (3, 6)]
    assert [m.bias is None for m in layers if isinstance(m, nn.Linear)] == [True, True, False]
    assert layers(torch.randn(4, 5)).shape == (4, 3)


def test_a_last_norm_has_no_scale_and_makes_the_bias_before_it_needless():
    layers = head(5, 7, 3, last_norm=True)
    assert kinds(layers) == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    assert layers[3].bias is None
    assert not layers[4].affine
    assert layers[1].affine
    out = layers(torch.randn(64, 5, generator=generator(0, "x")))
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(0, unbiased=False), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("name", "projector", "predictor", "last_norm"),
    [
        ("simsiam", [(512, 128), (512, 512)], [(128, 512), (512, 128)], (True, False)),
        ("byol", [(2048, 128), (256, 2048)], [(2048, 256), (256, 2048)], (False, False)),
        ("mocov3", [(2048, 128), (256, 2048)], [(2048, 256), (256, 2048)], (True, True)),
    ],
)
def test_heads_have_the_widths_of_the_papers(name, projector, predictor, last_norm):
    built = OBJECTIVES[name](*build_body("cnn", SHAPE, 0, True))
    for part, widths, norm in zip((built.projector, built.predictor), (projector, predictor), last_norm, strict=True):
        assert [tuple(m.weight.shape) for m in part if isinstance(m, nn.Linear)] == widths
        assert isinstance(part[-1], nn.BatchNorm1d) == norm


def test_every_encoder_is_in_the_table():
    assert dict(OBJECTIVES.items()) == {"simsiam": SimSiam, "byol": BYOL, "mocov3": MoCoV3}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("count", [2, 5, 12])
def test_the_loss_is_a_finite_scalar_for_any_batch(name, count):
    loss = objective(name)(*views(count))
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert bool(torch.isfinite(loss))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_does_not_depend_on_which_view_is_first_or_on_the_order_of_the_images(name):
    built = objective(name)
    first, second = views()
    order = torch.randperm(12, generator=generator(0, "order"))
    loss = built(first, second)
    torch.testing.assert_close(built(second, first), loss)
    torch.testing.assert_close(built(first[order], second[order]), loss)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_weight_but_the_slow_copys_learns(name):
    built = objective(name)
    built(*views()).backward()
    for parameter_name, parameter in built.named_parameters():
        if parameter_name.startswith("slow"):
            assert parameter.grad is None
            assert not parameter.requires_grad
        else:
            assert parameter.grad is not None, parameter_name
            assert float(parameter.grad.abs().max()) > 0, parameter_name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_project_is_the_projector_on_the_bodys_features(name):
    built = objective(name).eval()
    x = views()[0]
    assert torch.equal(built.project(x), built.projector(built.body.features(x)))


def test_an_objective_without_a_slow_copy_follows_nothing():
    built = objective("simsiam")
    before = copy.deepcopy(built.state_dict())
    built.follow(torch.tensor(0.5))
    assert all(torch.equal(before[k], v) for k, v in built.state_dict().items())
    assert built.momentum is None


def test_an_objective_must_say_what_its_loss_is():
    with pytest.raises((TypeError, NotImplementedError)):
        Objective(build_body("cnn", SHAPE, 0, True)[0])(*views())


# --- cosine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosine_is_the_mean_over_rows_in_float32(dtype):
    a, b = torch.randn(2, 6, 5, generator=generator(1, "x")).to(dtype)
    rows = [
        float(np.dot(u, v) / np.linalg.norm(u) / np.linalg.norm(v))
        for u, v in zip(*(t.double().numpy() for t in (a, b)), strict=True)
    ]
    found = cosine(a, b)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(np.mean(rows), abs=1e-6)


def test_cosine_of_a_zero_row_is_finite_and_so_is_its_gradient():
    a = torch.zeros(3, 4, requires_grad=True)
    loss = cosine(a, torch.ones(3, 4))
    loss.backward()
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(a.grad).all())


# --- the slow copy ------------------------------------------------------------------------------------

SLOW = ["byol", "mocov3"]


def pairs(built):
    """(slow, fast) weights."""
    slow = [*built.slow_body.parameters(), *built.slow_projector.parameters()]
    fast = [*built.body.parameters(), *built.projector.parameters()]
    assert len(slow) == len(fast)
    return list(zip(slow, fast, strict=True))


def apart(name):
    """An objective whose slow copy is elsewhere."""
    built = objective(name)
    with torch.no_grad():
        for i, (_, fast) in enumerate(pairs(built)):
            fast += torch.randn(fast.shape, generator=generator(i, "apart"))
    return built


@pytest.mark.parametrize("name", SLOW)
def test_the_slow_copy_starts_equal_and_apart_in_memory(name):
    built = objective(name)
    for slow, fast in pairs(built):
        assert torch.equal(slow, fast)
        assert slow.data_ptr() != fast.data_ptr()
    assert built.momentum == (0.99, 1.0)


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.99, 0.999999, 1.0])
def test_following_is_the_moving_average_and_touches_nothing_else(name, momentum):
    built = apart(name)
    before = copy.deepcopy(built)
    built.follow(torch.tensor(momentum))
    for (slow, fast), (old, _) in zip(pairs(built), pairs(before), strict=True):
        wanted = momentum * old.double() + (1 - momentum) * fast.double()
        torch.testing.assert_close(slow.double(), wanted, atol=1e-6, rtol=1e-6)
    moved = {k for k, v in built.state_dict().items() if not torch.equal(v, before.state_dict()[k])}
    names = {n for n, _ in built.named_parameters() if n.startswith("slow")}
    assert moved <= names
    assert moved or momentum == 1


@pytest.mark.parametrize("name", SLOW)
def test_momentum_none_copies_and_momentum_one_keeps(name):
    built = apart(name)
    kept = [slow.clone() for slow, _ in pairs(built)]
    for _ in range(100):
        built.follow(torch.tensor(1.0))
    for (slow, _), old in zip(pairs(built), kept, strict=True):
        torch.testing.assert_close(slow, old, atol=2e-6, rtol=0)
    built.follow(torch.tensor(0.0))
    assert all(torch.equal(slow, fast) for slow, fast in pairs(built))


@pytest.mark.parametrize("name", SLOW)
def test_many_small_steps_are_not_lost_in_rounding(name):
    """A momentum near 1 moves the copy by less than its last digit a step; it must arrive all the same."""
    built = apart(name)
    start = [slow.double().clone() for slow, _ in pairs(built)]
    for _ in range(200):
        built.follow(torch.tensor(0.999))
    for (slow, fast), old in zip(pairs(built), start, strict=True):
        torch.testing.assert_close(slow.double(), fast + (old - fast) * 0.999**200, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SLOW)
def test_the_slow_copys_batch_norm_counts_what_the_slow_copy_sees(name):
    built = apart(name).train()
    first, second = views()
    norm, conv = built.slow_body.norms[0], built.slow_body.convs[0]
    wanted = torch.zeros(32)
    for view in (first, second):
        wanted = 0.9 * wanted + 0.1 * conv(view).mean((0, 2, 3))
    built(first, second)
    torch.testing.assert_close(norm.running_mean, wanted)
    assert int(norm.num_batches_tracked) == 2
    assert not torch.allclose(norm.running_mean, built.body.norms[0].running_mean)


@pytest.mark.parametrize("name", SLOW)
def test_targets_come_from_the_slow_copy_and_carry_no_gradient(name):
    built = apart(name).eval()
    first, second = views()
    p1, p2, z1, z2 = built.predictions_and_targets(first, second)
    for view, prediction, target in ((first, p1, z1), (second, p2, z2)):
        torch.testing.assert_close(prediction, built.predictor(built.projector(built.body.features(view))))
        torch.testing.assert_close(target, built.slow_projector(built.slow_body.features(view)))
        assert prediction.requires_grad
        assert not target.requires_grad


def test_a_body_is_a_network_without_its_last_layer():
    body, width = build_body("resnet18", (3, 32, 32), 0, True)
    assert isinstance(body, Network)
    assert width == 512
    assert not hasattr(body, "fc")
