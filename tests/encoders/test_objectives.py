"""Self-supervised objectives: heads, target network, and each loss against the formula of its paper."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from complementary.encoders.backbone import build_backbone
from complementary.encoders.objectives import BYOL, OBJECTIVES, MoCoV3, Objective, SimSiam, cosine, head
from complementary.rng import generator

SHAPE = (1, 8, 8)


def backbone():
    return build_backbone("cnn", SHAPE, 0, True)


def views(count=12, seed=0):
    return torch.randn(2, count, *SHAPE, generator=generator(seed, "views"))


def objective(name, **widths):
    return OBJECTIVES[name](*backbone(), width=16, **widths)


def kinds(network):
    return [type(layer) for layer in network]


# --- heads -----------------------------------------------------------------------------------------------------


def test_head_is_linear_norm_relu_and_a_last_linear():
    layers = head(5, 7, 6, 3, last_norm=False)
    assert kinds(layers) == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2 + [nn.Linear]
    assert [tuple(m.weight.shape) for m in layers if isinstance(m, nn.Linear)] == [(7, 5), (6, 7), (3, 6)]
    assert [m.bias is None for m in layers if isinstance(m, nn.Linear)] == [True, True, False]
    assert layers(torch.randn(4, 5)).shape == (4, 3)


def test_head_last_norm_has_no_scale_and_replaces_the_bias():
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
        ("mocov3", [(2048, 128), (256, 2048)], [(2048, 256), (256, 2048)], (True, False)),
    ],
)
def test_objective_heads_have_the_widths_of_the_papers(name, projector, predictor, last_norm):
    built = OBJECTIVES[name](*backbone())
    for part, widths, norm in zip((built.projector, built.predictor), (projector, predictor), last_norm, strict=True):
        assert [tuple(m.weight.shape) for m in part if isinstance(m, nn.Linear)] == widths
        assert isinstance(part[-1], nn.BatchNorm1d) == norm


def test_objectives_registry():
    assert dict(OBJECTIVES.items()) == {"simsiam": SimSiam, "byol": BYOL, "mocov3": MoCoV3}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("count", [2, 5, 12])
def test_objective_loss_is_a_finite_scalar(name, count):
    loss = objective(name)(*views(count))
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert bool(torch.isfinite(loss))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective_loss_is_symmetric_in_views_and_independent_of_order(name):
    built = objective(name)
    first, second = views()
    order = torch.randperm(12, generator=generator(0, "order"))
    loss = built(first, second)
    torch.testing.assert_close(built(second, first), loss)
    torch.testing.assert_close(built(first[order], second[order]), loss)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective_trains_every_weight_except_the_target(name):
    built = objective(name)
    built(*views()).backward()
    for parameter_name, parameter in built.named_parameters():
        if parameter_name.startswith("target"):
            assert parameter.grad is None
            assert not parameter.requires_grad
        else:
            assert parameter.grad is not None, parameter_name
            assert float(parameter.grad.abs().max()) > 0, parameter_name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_project_is_the_projector_on_the_features(name):
    built = objective(name).eval()
    x = views()[0]
    assert torch.equal(built.project(x), built.projector(built.backbone.features(x)))


def test_update_target_without_a_target_changes_nothing():
    built = objective("simsiam")
    before = copy.deepcopy(built.state_dict())
    built.update_target(torch.tensor(0.5))
    assert all(torch.equal(before[k], v) for k, v in built.state_dict().items())
    assert built.momentum is None


def test_objective_is_abstract():
    with pytest.raises((TypeError, NotImplementedError)):
        Objective(backbone()[0])(*views())


# --- cosine ----------------------------------------------------------------------------------------------------


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


def test_cosine_of_a_zero_row_and_its_gradient_are_finite():
    a = torch.zeros(3, 4, requires_grad=True)
    loss = cosine(a, torch.ones(3, 4))
    loss.backward()
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(a.grad).all())


# --- target network --------------------------------------------------------------------------------------------

WITH_TARGET = ["byol", "mocov3"]


def pairs(built):
    """(target, online) weights."""
    target = [*built.target_backbone.parameters(), *built.target_projector.parameters()]
    online = [*built.backbone.parameters(), *built.projector.parameters()]
    assert len(target) == len(online)
    return list(zip(target, online, strict=True))


def apart(name):
    """An objective whose target network differs from the online network."""
    built = objective(name)
    with torch.no_grad():
        for i, (_, online) in enumerate(pairs(built)):
            online += torch.randn(online.shape, generator=generator(i, "apart"))
    return built


@pytest.mark.parametrize("name", WITH_TARGET)
def test_target_starts_as_a_copy_of_the_online_network(name):
    built = objective(name)
    for target, online in pairs(built):
        assert torch.equal(target, online)
        assert target.data_ptr() != online.data_ptr()
    assert built.momentum == (0.99, 1.0)


@pytest.mark.parametrize("name", WITH_TARGET)
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.99, 0.999999, 1.0])
def test_update_target_is_the_ema_and_changes_nothing_else(name, momentum):
    built = apart(name)
    before = copy.deepcopy(built)
    built.update_target(torch.tensor(momentum))
    for (target, online), (old, _) in zip(pairs(built), pairs(before), strict=True):
        wanted = momentum * old.double() + (1 - momentum) * online.double()
        torch.testing.assert_close(target.double(), wanted, atol=1e-6, rtol=1e-6)
    moved = {k for k, v in built.state_dict().items() if not torch.equal(v, before.state_dict()[k])}
    names = {n for n, _ in built.named_parameters() if n.startswith("target")}
    assert moved <= names
    assert moved or momentum == 1


@pytest.mark.parametrize("name", WITH_TARGET)
def test_update_target_with_momentum_0_copies_and_1_keeps(name):
    built = apart(name)
    kept = [target.clone() for target, _ in pairs(built)]
    for _ in range(100):
        built.update_target(torch.tensor(1.0))
    for (target, _), old in zip(pairs(built), kept, strict=True):
        torch.testing.assert_close(target, old, atol=2e-6, rtol=0)
    built.update_target(torch.tensor(0.0))
    assert all(torch.equal(target, online) for target, online in pairs(built))


@pytest.mark.parametrize("name", WITH_TARGET)
def test_update_target_does_not_lose_small_steps_to_rounding(name):
    """With a momentum near 1 a step is smaller than the last digit of a weight."""
    built = apart(name)
    start = [target.double().clone() for target, _ in pairs(built)]
    for _ in range(200):
        built.update_target(torch.tensor(0.999))
    for (target, online), old in zip(pairs(built), start, strict=True):
        torch.testing.assert_close(target.double(), online + (old - online) * 0.999**200, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", WITH_TARGET)
def test_target_has_its_own_batch_norm_statistics(name):
    built = apart(name).train()
    first, second = views()
    norm, conv = built.target_backbone.norms[0], built.target_backbone.convs[0]
    wanted = torch.zeros(32)
    for view in (first, second):
        wanted = 0.9 * wanted + 0.1 * conv(view).mean((0, 2, 3))
    built(first, second)
    torch.testing.assert_close(norm.running_mean, wanted)
    assert int(norm.num_batches_tracked) == 2
    assert not torch.allclose(norm.running_mean, built.backbone.norms[0].running_mean)


@pytest.mark.parametrize("name", WITH_TARGET)
def test_target_projections_have_no_gradient(name):
    built = apart(name).eval()
    first, second = views()
    p1, p2, z1, z2 = built.predictions_and_targets(first, second)
    for view, prediction, target in ((first, p1, z1), (second, p2, z2)):
        torch.testing.assert_close(prediction, built.predictor(built.projector(built.backbone.features(view))))
        torch.testing.assert_close(target, built.target_projector(built.target_backbone.features(view)))
        assert prediction.requires_grad
        assert not target.requires_grad


# --- SimSiam: D(p, z) = - p / |p| . z / |z|, with z taken as a constant ---------------------------------------------


def simsiam():
    return SimSiam(*backbone(), width=16, bottleneck=4)


def distance(p, z):
    """Row by row, in float64."""
    p, z = (np.asarray(t.detach().double()) for t in (p, z))
    return np.mean([-float(a @ b) / float(np.sqrt(a @ a) * np.sqrt(b @ b)) for a, b in zip(p, z, strict=True)])


def test_simsiam_loss_is_the_symmetric_negative_cosine():
    built = simsiam()
    z1, z2 = (built.project(v) for v in views())
    p1, p2 = built.predictor(z1), built.predictor(z2)
    assert built(*views()).item() == pytest.approx((distance(p1, z2) + distance(p2, z1)) / 2, abs=1e-6)


def test_simsiam_gradients_are_those_of_the_formula_with_constant_targets():
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


def test_simsiam_stops_the_gradient_of_the_target():
    """Without the gradient of the predictions, none is left."""

    class Cut(nn.Module):
        def forward(self, x):
            return x.detach()

    built = simsiam()
    built.predictor = Cut()
    assert not built(*views()).requires_grad


def test_simsiam_loss_is_minus_1_for_equal_and_1_for_opposite_views():
    built = simsiam()
    built.predictor = nn.Identity()
    first, _ = views()
    assert built(first, first).item() == pytest.approx(-1, abs=1e-6)
    built.predictor = nn.Sequential(nn.Linear(16, 16, bias=False))
    with torch.no_grad():
        built.predictor[0].weight.copy_(-torch.eye(16))
    assert built(first, first).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_simsiam_loss_is_bounded(seed):
    assert -1 <= simsiam()(*(100 * views(seed=seed))).item() <= 1


def test_simsiam_settings_are_those_of_the_paper():
    assert SimSiam.constant_lr == "predictor"
    assert SimSiam.base_lr == 0.03
    assert SimSiam.momentum is None


def test_simsiam_heads_on_resnet_are_those_of_the_paper():
    network, features = build_backbone("resnet18", (3, 16, 16), 0, True)
    built = SimSiam(network, features)
    widths = [m.out_features for part in (built.projector, built.predictor) for m in part if isinstance(m, nn.Linear)]
    assert widths == [2048, 2048, 512, 2048]


# --- BYOL: |q / |q| - z / |z||^2 = 2 - 2 cos(q, z), with z from the target network ----------------------------------


def byol(out=6):
    """With a target network that differs from the online network."""
    built = BYOL(*backbone(), width=16, out=out)
    with torch.no_grad():
        for i, parameter in enumerate([*built.backbone.parameters(), *built.projector.parameters()]):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(i, "behind"))
    return built


def squared_distance(q, z):
    """Row by row, in float64: between unit vectors."""
    q, z = (np.asarray(t.detach().double()) for t in (q, z))
    unit = [(a / np.sqrt(a @ a), b / np.sqrt(b @ b)) for a, b in zip(q, z, strict=True)]
    return np.mean([float((a - b) @ (a - b)) for a, b in unit])


def test_byol_loss_is_the_distance_of_the_paper_up_to_scale_and_shift():
    built = byol()
    q1, q2, z1, z2 = built.predictions_and_targets(*views())
    both = squared_distance(q1, z2) + squared_distance(q2, z1)
    assert built(*views()).item() == pytest.approx(both / 4 - 1, abs=1e-6)


def test_byol_gradients_are_those_of_the_formula():
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
        if name.startswith("target"):
            assert found.grad is None
        else:
            torch.testing.assert_close(found.grad.double(), wanted.grad, atol=2e-5, rtol=1e-3, msg=name)


def test_byol_target_of_a_view_is_the_other_view():
    """After some training, the loss of matching images is lower than that of swapped ones."""
    built = byol()
    optimizer = torch.optim.SGD([p for p in built.parameters() if p.requires_grad], 0.1, momentum=0.9)
    first, _ = views()
    for _ in range(40):
        optimizer.zero_grad()
        built(first, first).backward()
        optimizer.step()
    assert built(first, first).item() < built(first, first.flip(0)).item() - 0.1


@pytest.mark.parametrize("seed", range(5))
def test_byol_loss_is_bounded(seed):
    assert -1 <= byol()(*(100 * views(seed=seed))).item() <= 1


# --- MoCo v3: 2 T x (- log of exp(q.k+ / T) over the sum of all exp(q.k / T)) ---------------------------------------


def moco(temperature=0.2):
    """With a target network that differs from the online network."""
    built = MoCoV3(*backbone(), width=16, out=6, temperature=temperature)
    with torch.no_grad():
        for i, parameter in enumerate([*built.backbone.parameters(), *built.projector.parameters()]):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(i, "behind"))
    return built


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
def test_mocov3_loss_is_info_nce_both_ways_times_twice_the_temperature(temperature, count):
    built = moco(temperature)
    q1, q2, k1, k2 = built.predictions_and_targets(*views(count))
    wanted = info_nce(q1, k2, temperature) + info_nce(q2, k1, temperature)
    # float32: a cross-entropy near zero is a difference of numbers near 1/temperature
    assert built(*views(count)).item() == pytest.approx(wanted, rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_mocov3_gradients_are_those_of_the_formula(temperature):
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
        if name.startswith("target"):
            assert found.grad is None
        else:
            torch.testing.assert_close(found.grad.double(), wanted.grad, atol=5e-5, rtol=2e-3, msg=name)


def test_mocov3_loss_of_equal_features_is_that_of_guessing():
    same = torch.ones(8, 5)
    assert float(moco().contrast(same, same)) == pytest.approx(0.4 * math.log(8), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.1, 0.2])
def test_mocov3_loss_is_lowest_for_matched_and_highest_for_swapped_opposite_keys(temperature):
    built, keys = moco(temperature), torch.tensor([[1.0, 0], [-1, 0]])
    least = 2 * temperature * math.log1p(math.exp(-2 / temperature))
    assert float(built.contrast(keys, keys)) == pytest.approx(least, abs=1e-6)
    assert float(built.contrast(keys, -keys)) == pytest.approx(least + 4, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_mocov3_loss_depends_on_directions_only(scale):
    q, k = torch.randn(2, 7, 5, generator=generator(0, "x"))
    torch.testing.assert_close(moco().contrast(scale * q, k / scale), moco().contrast(q, k))


@pytest.mark.parametrize("seed", range(5))
def test_mocov3_loss_is_bounded(seed):
    """Of the two terms each is at least 0 and at most 2 T log B + 4."""
    assert 0 <= moco()(*views(seed=seed)).item() <= 2 * (0.4 * math.log(10) + 4)


def test_mocov3_compares_half_precision_projections_in_float32():
    q, k = torch.randn(2, 7, 5, generator=generator(0, "x")).bfloat16()
    found = moco().contrast(q, k)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(info_nce(q, k, 0.2), rel=1e-5)


def test_mocov3_compares_in_float32_under_autocast():
    q, k = torch.randn(2, 7, 5, generator=generator(0, "x"))
    with torch.autocast("cpu", torch.bfloat16):
        found = moco().contrast(q, k)
    assert float(found) == pytest.approx(info_nce(q, k, 0.2), rel=1e-6)


def test_mocov3_predictor_ends_without_batch_norm_and_bias():
    last = moco().predictor[-1]
    assert isinstance(last, nn.Linear)
    assert last.bias is None
