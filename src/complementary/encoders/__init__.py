"""Self-supervised encoders: specification, backbone, objectives (SimSiam, BYOL, MoCo v3) and pretraining."""
