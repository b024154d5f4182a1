"""Self-supervised objectives: SimSiam, BYOL and MoCo v3, each a backbone with its heads and its loss.

- SimSiam (Chen and He 2021): two views, a predictor and a stopped gradient; no negatives and no target network.
- BYOL (Grill et al. 2020): predict the projection of the other view by a target network, an EMA of the online network.
- MoCo v3 (Chen, Xie and He 2021): find the other view of an image among all images of the batch.
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
    """A backbone with the heads of a self-supervised loss. Only the backbone is kept after training.

    Attributes:
        backbone: The network that is pretrained.
        projector: Maps its features to projections.
        constant_lr: Name of the module whose learning rate does not decay (the predictor of SimSiam); None: none.
        base_lr: Learning rate per 256 images.
        momentum: Momentum of the target network at the start and at the end; None: no target network.
    """

    constant_lr: ClassVar[str | None] = None
    base_lr: ClassVar[float] = 0.03
    momentum: ClassVar[tuple[float, float] | None] = None
    projector: nn.Sequential

    def __init__(self, backbone: Network) -> None:
        super().__init__()
        self.backbone = backbone

    @abstractmethod
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views of the same images, each [B, C, H, W] -> the loss, a scalar."""

    def project(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] -> projections [B, D]; the collapse gauge measures their spread."""
        projected: Tensor = self.projector(self.backbone.features(x))
        return projected

    def update_target(self, momentum: Tensor) -> None:
        """Move the target network, if there is one, towards the online network; ``momentum`` is a scalar tensor."""
        return


class _WithTarget(Objective):
    """An objective with a target network: an EMA of backbone and projector (BYOL, MoCo v3)."""

    base_lr: ClassVar[float] = 0.12
    momentum: ClassVar[tuple[float, float] | None] = (0.99, 1.0)

    def __init__(self, backbone: Network, projector: nn.Sequential, predictor: nn.Sequential) -> None:
        super().__init__(backbone)
        self.projector, self.predictor = projector, predictor
        self.target_backbone, self.target_projector = copy.deepcopy(backbone), copy.deepcopy(projector)
        for parameter in [*self.target_backbone.parameters(), *self.target_projector.parameters()]:
            parameter.requires_grad_(False)

    def predictions_and_targets(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Two views -> the online predictions of each, then the target projections of each; all [B, D]."""
        p1, p2 = (self.predictor(self.project(view)) for view in (first, second))
        with torch.no_grad():
            z1, z2 = (self.target_projector(self.target_backbone.features(view)) for view in (first, second))
        return p1, p2, z1, z2

    @torch.no_grad()
    def update_target(self, momentum: Tensor) -> None:
        """EMA of the weights; the batch-norm statistics of the target network are its own.

        target = momentum * target + (1 - momentum) * online
        """
        target: list[Tensor] = [*self.target_backbone.parameters(), *self.target_projector.parameters()]
        online: list[Tensor] = [*self.backbone.parameters(), *self.projector.parameters()]
        # three calls instead of a lerp, which would wait for the device to read the momentum
        torch._foreach_sub_(target, online)
        torch._foreach_mul_(target, momentum)
        torch._foreach_add_(target, online)


def head(*widths: int, last_norm: bool, last_bias: bool = True) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between.

    Args:
        widths: Features before the first layer, and after each layer.
        last_norm: Whether a batch norm without scale and shift follows the last layer.
        last_bias: Whether the last layer has a bias if no batch norm follows it.
    """
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths[:-1]):
        layers += [nn.Linear(inner, outer, bias=False), nn.BatchNorm1d(outer), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias and not last_norm))
    if last_norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Mean cosine similarity of rows, in float32. [B, D], [B, D] -> scalar."""
    return nn.functional.cosine_similarity(a.float(), b.float(), dim=1).mean()


class SimSiam(Objective):
    """Negative cosine similarity between the prediction of one view and the projection of the other.

    Heads as in the paper for CIFAR, in proportion to the D features of the backbone: projector D-4D-4D, predictor
    4D-D-4D (2048 and 512 on ResNet-18) with a constant learning rate. The loss lies between -1 (views agree) and 1.
    """

    constant_lr: ClassVar[str | None] = "predictor"

    def __init__(
        self, backbone: Network, features: int, width: int | None = None, bottleneck: int | None = None
    ) -> None:
        super().__init__(backbone)
        width, bottleneck = width or 4 * features, bottleneck or features
        self.projector = head(features, width, width, last_norm=True)
        self.predictor = head(width, bottleneck, width, last_norm=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views, each [B, C, H, W] -> scalar."""
        z1, z2 = self.project(first), self.project(second)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return -(cosine(p1, z2.detach()) + cosine(p2, z1.detach())) / 2


class BYOL(_WithTarget):
    """Negative cosine similarity between the online prediction and the target projection, between -1 and 1.

    Projector D-2048-256, predictor 256-2048-256; the momentum of the target network rises from .99 to 1.
    """

    def __init__(self, backbone: Network, features: int, width: int = 2048, out: int = 256) -> None:
        projector = head(features, width, out, last_norm=False)
        super().__init__(backbone, projector, head(out, width, out, last_norm=False))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views, each [B, C, H, W] -> scalar."""
        p1, p2, z1, z2 = self.predictions_and_targets(first, second)
        return -(cosine(p1, z2) + cosine(p2, z1)) / 2


class MoCoV3(_WithTarget):
    """Symmetric InfoNCE between online predictions and target projections, with the batch as negatives.

    Projector D-2048-256 with a batch norm at the end, predictor 256-2048-256 with neither batch norm nor bias at the
    end (as in the published code for ResNets), temperature .2; the momentum of the target network rises from .99 to 1.
    The loss is a cross-entropy over the batch times twice the temperature, as in the paper.
    """

    def __init__(
        self, backbone: Network, features: int, width: int = 2048, out: int = 256, temperature: float = 0.2
    ) -> None:
        projector = head(features, width, out, last_norm=True)
        super().__init__(backbone, projector, head(out, width, out, last_norm=False, last_bias=False))
        self.temperature = temperature

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Two views, each [B, C, H, W] -> scalar."""
        p1, p2, z1, z2 = self.predictions_and_targets(first, second)
        return self.contrast(p1, z2) + self.contrast(p2, z1)

    def contrast(self, query: Tensor, key: Tensor) -> Tensor:
        """Cross-entropy of finding key i for query i among all keys, in float32. [B, D], [B, D] -> scalar."""
        with torch.autocast(query.device.type, enabled=False):  # otherwise the product would be bfloat16
            similarity = F.normalize(query.float()) @ F.normalize(key.float()).T / self.temperature  # [B, B]
        same = torch.arange(len(query), device=query.device)
        return F.cross_entropy(similarity, same) * 2 * self.temperature


OBJECTIVES: dict[str, type[Objective]] = {"simsiam": SimSiam, "byol": BYOL, "mocov3": MoCoV3}
