"""Self-supervised encoders: SimSiam, BYOL, MoCo v3. Each is an objective with its heads, in one short file."""

from complementary.encoders.byol import BYOL
from complementary.encoders.mocov3 import MoCoV3
from complementary.encoders.objective import Objective
from complementary.encoders.simsiam import SimSiam

ENCODERS: dict[str, type[Objective]] = {"simsiam": SimSiam, "byol": BYOL, "mocov3": MoCoV3}

__all__ = ["BYOL", "ENCODERS", "MoCoV3", "Objective", "SimSiam"]
