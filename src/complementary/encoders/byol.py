"""BYOL (Grill et al. 2020): predict what a slowly moving copy of oneself sees in the other view."""

from torch import Tensor

from complementary.encoders.objective import WithSlowCopy, cosine, head
from complementary.models import Network


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
