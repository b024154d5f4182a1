"""Networks: linear, MLP, a small CNN and ResNet-18. Each computes logits [B, K] and, with `features`, vectors [B, D].

ResNet-18 has the state-dict keys of torchvision, so that weights can be exchanged. Instead of the 7 x 7 stem it has a
3 x 3 stem of stride 1, which suits small images.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary.engine.max_pool import max_pool
from complementary.errors import UserError, one_of
from complementary.rng import address, seeded


class Network(nn.Module, ABC):
    """A backbone and one linear layer.

    Attributes:
        kind: Name of the network, which `build` takes.
        max_pool: Whether the stem has a max-pool.
        largest_batch: Images whose features are computed at a time, at most; large intermediate values need fewer.
        fc: The linear layer.
    """

    kind: str
    max_pool: bool = True
    largest_batch: int = 1 << 20
    fc: nn.Linear

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Inputs [B, ...] -> features [B, D], the input of ``fc``."""

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [B, ...] -> logits [B, K]."""
        logits: Tensor = self.fc(self.features(x))
        return logits


class Linear(Network):
    """One linear layer on the flattened input."""

    kind = "linear"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(math.prod(shape), classes)

    def features(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, D]: the flattened input itself."""
        return x.flatten(1)


class MLP(Network):
    """One hidden layer of 500 ReLU units on the flattened input, as in the paper."""

    kind = "mlp"

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 500) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), hidden)
        self.fc = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, 500]."""
        return F.relu(self.hidden(x.flatten(1)))


class SmallCNN(Network):
    """Three 3 x 3 convolutions with batch norm and a global average, for small images and CPUs."""

    kind = "cnn"

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 32) -> None:
        super().__init__()
        widths = [shape[0], width, 2 * width, 4 * width]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.fc = nn.Linear(widths[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 128]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x))
            x = F.relu(F.max_pool2d(x, 2) if min(x.shape[2:]) > 4 else x)  # pooling before ReLU computes less
        return x.mean((2, 3))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        """[B, inner, H, W] -> [B, outer, H / stride, W / stride]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(Network):
    """ResNet-18 (He et al. 2015) for small images: 3 x 3 stem of stride 1, with or without the max-pool."""

    kind = "resnet18"

    def __init__(self, shape: tuple[int, ...], classes: int, max_pool: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.max_pool = max_pool
        self.layer1, self.layer2 = _stage(64, 64, 1), _stage(64, 128, 2)
        self.layer3, self.layer4 = _stage(128, 256, 2), _stage(256, 512, 2)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 512]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = max_pool(x) if self.max_pool else x
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


def _stage(inner: int, outer: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inner, outer, stride), BasicBlock(outer, outer, 1))


class Ensemble(Network):
    """Several networks of the same kind, which are trained and applied together. Its logits are their mean.

    Args:
        members: The networks.
    """

    def __init__(self, members: Sequence[Network]) -> None:
        super().__init__()
        self.members: Sequence[Network] = nn.ModuleList(members)  # type: ignore[assignment]
        self.kind, self.max_pool = f"{len(members)}x{members[0].kind}", members[0].max_pool

    def features(self, x: Tensor) -> Tensor:
        """Inputs [B, ...] -> features of all members side by side."""
        return torch.cat([member.features(x) for member in self.members], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [B, ...] -> mean of the logits, [B, K]."""
        return torch.stack([member(x) for member in self.members]).mean(0)


MODELS = ("linear", "mlp", "cnn", "resnet18")


def build(name: str, shape: tuple[int, ...], classes: int, seed: int = 0, max_pool: bool = True) -> Network:
    """Build a network.

    Args:
        name: linear, mlp, cnn or resnet18; 2xcnn is an `Ensemble` of two networks with the same initial weights.
        shape: Shape of an input, [C, H, W] or [D].
        classes: Number of classes K.
        seed: The initial weights depend on nothing else.
        max_pool: Whether the stem of resnet18 has a max-pool.
    """
    count, times, member = name.partition("x")
    if times and count.isdigit() and int(count) >= 1:
        return Ensemble([build(member, shape, classes, seed, max_pool) for _ in range(int(count))])
    one_of("The model", name, MODELS, "model")
    if name in ("cnn", "resnet18") and len(shape) != 3:
        raise UserError(
            f"The model {name} needs images [C, H, W], but the inputs have shape {list(shape)}; use mlp or linear.",
            "model",
        )
    with seeded(address(seed, "init")):
        if name == "resnet18":
            return ResNet18(shape, classes, max_pool)
        if name == "cnn":
            return SmallCNN(shape, classes)
        return MLP(shape, classes) if name == "mlp" else Linear(shape, classes)


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """EMA of weights and batch-norm statistics, in place: average = decay * average + (1 - decay) * network."""
    old, new = ([*n.parameters(), *n.buffers()] for n in (average, network))
    averaged = [(a, b) for a, b in zip(old, new, strict=True) if a.is_floating_point()]
    torch._foreach_lerp_([a for a, _ in averaged], [b for _, b in averaged], 1 - decay)
    for a, b in zip(old, new, strict=True):
        if not a.is_floating_point():  # number of batches
            a.copy_(b)
