"""What an encoder's objective is, and the heads and slow copies that objectives share.

SimSiam (Chen and He 2021): two views, a predictor, a stopped gradient; no negatives, no slow copy.

BYOL (Grill et al. 2020): predict what a slowly moving copy of oneself sees in the other view.

MoCo v3 (Chen, Xie and He 2021): tell the other view of the same image from all others in the batch.
"""

import copy
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complementary.networks import Network


class Objective(nn.Module, ABC):
    """A network with the heads that its self-supervised loss needs.

    ``body`` is what remains when training is over. ``constant`` names the part whose learning rate does not
    decay (SimSiam's predictor), if any. ``base_lr``: learning rate per 256 images. ``momentum``: of the slow
    copy, at the start and at the end; None if there is none.
    """

    constant: ClassVar[str | None] = None
    base_lr: ClassVar[float] = 0.03
    momentum: ClassVar[tuple[float, float] | None] = None
    projector: nn.Sequential

    def __init__(self, body: Network) -> None:
        super().__init__()
        self.body = body

    @abstractmethod
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views of the same images, each [B, C, H, W] -> the loss, a scalar."""

    def project(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] -> projections [B, D]: what the collapse gauge looks at."""
        projected: Tensor = self.projector(self.body.features(x))
        return projected

    def follow(self, momentum: Tensor) -> None:
        """Move the slow copy, if there is one, towards the network; ``momentum`` is a scalar on the device."""
        return


class WithSlowCopy(Objective):
    """An objective whose targets come from a slowly following copy of body and projector (BYOL, MoCo v3)."""

    base_lr: ClassVar[float] = 0.12
    momentum: ClassVar[tuple[float, float] | None] = (0.99, 1.0)

    def __init__(self, body: Network, projector: nn.Sequential, predictor: nn.Sequential) -> None:
        super().__init__(body)
        self.projector, self.predictor = projector, predictor
        self.slow_body, self.slow_projector = copy.deepcopy(body), copy.deepcopy(projector)
        for parameter in [*self.slow_body.parameters(), *self.slow_projector.parameters()]:
            parameter.requires_grad_(False)

    def predictions_and_targets(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Two views -> predictions of each, then the slow copy's projections of each; all [B, D]."""
        p1, p2 = (self.predictor(self.project(view)) for view in (first, second))
        with torch.no_grad():
            z1, z2 = (self.slow_projector(self.slow_body.features(view)) for view in (first, second))
        return p1, p2, z1, z2

    @torch.no_grad()
    def follow(self, momentum: Tensor) -> None:
        """slow = momentum x slow + (1 - momentum) x fast, for weights; its batch-norm statistics are its own."""
        slow: list[Tensor] = [*self.slow_body.parameters(), *self.slow_projector.parameters()]
        fast: list[Tensor] = [*self.body.parameters(), *self.projector.parameters()]
        # three calls instead of a lerp, which would wait for the device to read the momentum
        torch._foreach_sub_(slow, fast)
        torch._foreach_mul_(slow, momentum)
        torch._foreach_add_(slow, fast)


def head(*widths: int, last_norm: bool) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between; the last gets a norm without scale if ``last_norm``."""
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths[:-1]):
        layers += [nn.Linear(inner, outer, bias=False), nn.BatchNorm1d(outer), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=not last_norm))
    if last_norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Mean cosine similarity of rows, in float32. [B, D], [B, D] -> scalar."""
    return nn.functional.cosine_similarity(a.float(), b.float(), dim=1).mean()


class SimSiam(Objective):
    """Negative cosine similarity between the prediction of one view and the projection of the other.

    Heads as in the paper for CIFAR, in proportion to the body's D features: projector D-4D-4D, predictor 4D-D-4D
    (2048 and 512 on ResNet-18) with a constant learning rate. The loss lies between -1 (views agree) and 1.
    """

    constant: ClassVar[str | None] = "predictor"

    def __init__(self, body: Network, features: int, width: int | None = None, bottleneck: int | None = None) -> None:
        super().__init__(body)
        width, bottleneck = width or 4 * features, bottleneck or features
        self.projector = head(features, width, width, last_norm=True)
        self.predictor = head(width, bottleneck, width, last_norm=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views, each [B, C, H, W] -> scalar."""
        z1, z2 = self.project(first), self.project(second)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return -(cosine(p1, z2.detach()) + cosine(p2, z1.detach())) / 2


class BYOL(WithSlowCopy):
    """Negative cosine similarity between the prediction and the slow copy's projection, between -1 and 1.

    Projector D-2048-256, predictor 256-2048-256; the slow copy's momentum rises from .99 to 1.
    """

    def __init__(self, body: Network, features: int, width: int = 2048, out: int = 256) -> None:
        projector = head(features, width, out, last_norm=False)
        super().__init__(body, projector, head(out, width, out, last_norm=False))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views, each [B, C, H, W] -> scalar."""
        p1, p2, z1, z2 = self.predictions_and_targets(first, second)
        return -(cosine(p1, z2) + cosine(p2, z1)) / 2


class MoCoV3(WithSlowCopy):
    """Symmetric InfoNCE between predictions and the slow copy's projections, with the batch as negatives.

    Projector D-2048-256, predictor 256-2048-256, temperature .2; the slow copy's momentum rises from .99
    to 1. The loss is a cross-entropy over the batch times twice the temperature, as in the paper.
    """

    def __init__(self, body: Network, features: int, width: int = 2048, out: int = 256, temperature: float = 0.2):
        projector = head(features, width, out, last_norm=True)
        super().__init__(body, projector, head(out, width, out, last_norm=True))
        self.temperature = temperature

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views, each [B, C, H, W] -> scalar."""
        p1, p2, z1, z2 = self.predictions_and_targets(first, second)
        return self.contrast(p1, z2) + self.contrast(p2, z1)

    def contrast(self, query: Tensor, key: Tensor) -> Tensor:
        """Cross-entropy of finding key i for query i among all keys. [B, D], [B, D] -> scalar."""
        similarity = F.normalize(query.float()) @ F.normalize(key.float()).T / self.temperature  # [B, B]
        same = torch.arange(len(query), device=query.device)
        return F.cross_entropy(similarity, same) * 2 * self.temperature


OBJECTIVES: dict[str, type[Objective]] = {"simsiam": SimSiam, "byol": BYOL, "mocov3": MoCoV3}
