"""MoCo v3 (Chen, Xie and He 2021): tell the other view of the same image from all others in the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.encoders.objective import WithSlowCopy, head
from complementary.models import Network


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
