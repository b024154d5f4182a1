"""Networks: keys and shapes of torchvision, stem and max-pool of the paper, weights that depend on the seed only."""

import copy

import pytest
import torch
import torch.nn.functional as F

from complementary import networks
from complementary.errors import UserError
from complementary.rng import generator

NORM = {"weight": 1, "bias": 1, "running_mean": 1, "running_var": 1, "num_batches_tracked": 0}


def expected_resnet18(channels, classes):
    """torchvision.models.resnet18's state dict as {key: shape}, with a 3 x 3 stem."""
    wanted = {"conv1.weight": (64, channels, 3, 3)}

    def norm(name, width):
        wanted.update({f"{name}.{key}": (width,) * axes for key, axes in NORM.items()})

    norm("bn1", 64)
    inner = 64
    for layer, width in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            wanted[f"{name}.conv1.weight"] = (width, inner, 3, 3)
            norm(f"{name}.bn1", width)
            wanted[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if layer > 1 and block == 0:
                wanted[f"{name}.downsample.0.weight"] = (width, inner, 1, 1)
                norm(f"{name}.downsample.1", width)
            inner = width
    wanted["fc.weight"] = (classes, 512)
    wanted["fc.bias"] = (classes,)
    return wanted


@pytest.mark.parametrize("channels", [1, 3])
def test_resnet18_has_the_state_dict_keys_of_torchvision(channels):
    found = networks.build("resnet18", (channels, 32, 32), 10).state_dict()
    wanted = expected_resnet18(channels, 10)
    assert len(wanted) == 122
    assert list(found) == list(wanted)
    assert {key: tuple(value.shape) for key, value in found.items()} == wanted


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        # torchvision's 11,689,512 with a 3 x 3 stem (9,408 -> 1,728) and 10 classes (513,000 -> 5,130)
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18", (1, 28, 28), 10, 11_172_810),
        ("linear", (3, 32, 32), 10, 30_730),
        ("mlp", (1, 28, 28), 10, 784 * 500 + 500 + 5010),
        ("cnn", (1, 8, 8), 10, 9 * (32 + 32 * 64 + 64 * 128) + 2 * (32 + 64 + 128) + 1290),
    ],
)
def test_build_parameter_counts(name, shape, classes, count):
    assert sum(p.numel() for p in networks.build(name, shape, classes).parameters()) == count


def slow_resnet18(state, x, max_pool):
    """ResNet-18 in evaluation mode, from its weights and functional operations."""

    def conv_norm(x, conv, norm, stride, padding):
        x = F.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=padding)
        return F.batch_norm(x, *(state[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")))

    x = conv_norm(x, "conv1", "bn1", 1, 1).relu()
    if max_pool:
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = conv_norm(x, f"{name}.conv1", f"{name}.bn1", stride, 1).relu()
            y = conv_norm(y, f"{name}.conv2", f"{name}.bn2", 1, 1)
            if stride == 2:
                x = conv_norm(x, f"{name}.downsample.0", f"{name}.downsample.1", 2, 0)
            x = (x + y).relu()
    return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("max_pool", [True, False])
def test_resnet18_matches_a_functional_reference(max_pool):
    net = networks.build("resnet18", (3, 16, 16), 7, seed=2, max_pool=max_pool)
    x = torch.randn(4, 3, 16, 16, generator=generator(0, "x"))
    with torch.no_grad():
        net.train()(x)  # so that the running statistics are not 0 and 1
        torch.testing.assert_close(net.eval()(x), slow_resnet18(net.state_dict(), x, max_pool), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("max_pool", "side"), [(True, 16), (False, 32)])
def test_resnet18_max_pool_halves_the_feature_map(max_pool, side):
    net = networks.build("resnet18", (1, 32, 32), 10, max_pool=max_pool)
    seen = []
    net.layer1.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    net.layer4.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    with torch.no_grad():
        net(torch.zeros(2, 1, 32, 32))
    assert seen == [(2, 64, side, side), (2, 512, side // 8, side // 8)]


CASES = [("linear", (3, 8, 8), 192), ("linear", (5,), 5), ("mlp", (5,), 500), ("mlp", (1, 8, 8), 500)]
CASES += [("cnn", (1, 8, 8), 128), ("cnn", (3, 32, 20), 128), ("cnn", (1, 2, 2), 128), ("resnet18", (3, 8, 8), 512)]


@pytest.mark.parametrize(("name", "shape", "width"), CASES)
def test_forward_is_fc_of_features_and_all_weights_get_gradients(name, shape, width):
    net = networks.build(name, shape, 4)
    x = torch.randn(3, *shape, generator=generator(0, "x"))
    net.eval()
    features = net.features(x)
    assert features.shape == (3, width)
    torch.testing.assert_close(net(x), features @ net.fc.weight.T + net.fc.bias)
    net.train()(x).square().sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in net.parameters())


@pytest.mark.parametrize("name", networks.MODELS)
def test_build_depends_on_the_seed_only(name):
    before = torch.random.get_rng_state()
    first = networks.build(name, (1, 8, 8), 4, seed=5).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    again = networks.build(name, (1, 8, 8), 4, seed=5).state_dict()
    other = networks.build(name, (1, 8, 8), 4, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_resnet18_weights_do_not_depend_on_the_max_pool():
    with_pool, without = (networks.build("resnet18", (1, 8, 8), 4, max_pool=m).state_dict() for m in (True, False))
    assert all(torch.equal(with_pool[key], without[key]) for key in with_pool)


def test_build_does_not_seed_the_gpu(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    networks.build("linear", (4,), 2)
    assert seeded == []


def test_resnet18_initialization_is_he_normal():
    state = networks.build("resnet18", (3, 32, 32), 10).state_dict()
    for key, value in state.items():
        if value.ndim == 4:
            wanted = (2 / (value.shape[0] * value.shape[2] * value.shape[3])) ** 0.5
            assert float(value.std()) == pytest.approx(wanted, rel=0.1), key


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
@pytest.mark.parametrize("shape", [(64,), (8, 8)])
def test_build_refuses_vectors_for_convolutions(name, shape):
    with pytest.raises(UserError, match=rf"{name} needs images.*\[{shape[0]}"):
        networks.build(name, shape, 4)


def test_build_refuses_an_unknown_model():
    with pytest.raises(UserError, match=r"resnet50.*linear, mlp, cnn, resnet18"):
        networks.build("resnet50", (3, 32, 32), 10)


def test_ensemble_averages_the_logits_of_its_members():
    pair = networks.build("2xcnn", (1, 8, 8), 3)
    assert (pair.kind, len(pair.members)) == ("2xcnn", 2)
    with torch.no_grad():
        for weight in pair.members[1].parameters():
            weight.mul_(2)
    x = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(pair(x), (pair.members[0](x) + pair.members[1](x)) / 2)
    assert pair.features(x).shape == (4, 256)
    networks.build(pair.kind, (1, 8, 8), 3).load_state_dict(pair.state_dict())


def test_update_average_of_weights_and_statistics():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    average = copy.deepcopy(network).requires_grad_(False)
    before = [value.clone() for value in average.state_dict().values()]
    network(torch.randn(8, 3))
    with torch.no_grad():
        network[0].weight += 1
    networks.update_average(average, network, 0.9)
    for old, new, found in zip(before, network.state_dict().values(), average.state_dict().values(), strict=True):
        wanted = 0.9 * old + 0.1 * new if old.is_floating_point() else new
        torch.testing.assert_close(found, wanted)
    assert not any(weight.requires_grad for weight in average.parameters()), "no graph of the training is kept"
