"""SimSiam (Chen and He 2021): two views, a predictor, a stopped gradient; no negatives, no slow copy."""

from typing import ClassVar

from torch import Tensor

from complementary.encoders.objective import Objective, cosine, head
from complementary.models import Network


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
