"""What an encoder's objective is, and the heads and slow copies that objectives share."""

import copy
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from complementary.models import Network


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
