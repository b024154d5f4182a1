"""Self-supervised encoders: SimSiam, BYOL, MoCo v3. Each is an objective with its heads, in one short file."""

from complementary.encoders.objectives import BYOL, MoCoV3, Objective, SimSiam

ENCODERS: dict[str, type[Objective]] = {"simsiam": SimSiam, "byol": BYOL, "mocov3": MoCoV3}

__all__ = ["BYOL", "ENCODERS", "MoCoV3", "Objective", "SimSiam"]
