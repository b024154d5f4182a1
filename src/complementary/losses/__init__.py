"""Losses for complementary labels, as plain functions.

Every loss is ``f(logits [B, K], excluded [B, K], transition=None) -> [B]``. The rows of ``excluded`` may be one-hot
(one label), multi-hot (several labels), soft (after mixing) or zero (the loss is 0). All losses compute in float32,
whatever the type of the logits; values and gradients are finite for all finite logits.

    >>> import torch
    >>> from complementary.losses import s_nl
    >>> logits, excluded = torch.zeros(1, 4), torch.tensor([[0., 1., 0., 0.]])
    >>> s_nl(logits, excluded)          # -log(1 - 1/4)
    tensor([0.2877])
"""

from complementary.losses.standard import LOSSES, Loss, dm, fwd, s_exp, s_nl

__all__ = ["LOSSES", "Loss", "dm", "fwd", "s_exp", "s_nl"]
