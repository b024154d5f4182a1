"""Losses for complementary labels, as plain functions.

Every loss is ``f(logits [B, K], excluded [B, K], transition=None, prior=None) -> [B]``. The rows of ``excluded`` may be
one-hot (one label), multi-hot (several labels), soft (after mixing) or zero (the loss is 0). All losses compute in
float32, whatever the type of the logits; values and gradients are finite for all finite logits.

    >>> import torch
    >>> from complementary.losses import s_nl
    >>> logits, excluded = torch.zeros(1, 4), torch.tensor([[0., 1., 0., 0.]])
    >>> s_nl(logits, excluded)          # -log(1 - 1/4)
    tensor([0.2877])

`LOSSES` has all of them by name, and `METHODS` what each assumes. `build` binds one to the matrix and the prior that it
needs, checks them once, and returns a module ``(logits, excluded) -> [B]``:

    >>> from complementary import losses, transitions
    >>> loss = losses.build("ure-tga", transitions.biased(4, 10))
    >>> loss(logits, excluded).shape
    torch.Size([1])

The names are imported on first use, so that commands which only list methods start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from complementary.losses.base import Loss
    from complementary.losses.bound import BoundLoss, apply, build, decode
    from complementary.losses.cpe import cpe_f, cpe_i, cpe_t, nearest_row
    from complementary.losses.discriminative import l_uw
    from complementary.losses.mcl import mcl_exp, mcl_log, mcl_mae
    from complementary.losses.negative_unlabeled import scarce
    from complementary.losses.order import op, op_w
    from complementary.losses.pairwise import pc
    from complementary.losses.registry import METHODS, Method
    from complementary.losses.robust import s_gce, s_lin
    from complementary.losses.standard import dm, fwd, s_exp, s_nl
    from complementary.losses.table import LOSSES
    from complementary.losses.unbiased import ure, ure_ga, ure_nn, ure_t, ure_tga, ure_tnn
    from complementary.losses.weighted import fwd_la, s_nl_w

_HOMES = {
    "base": ("Loss",),
    "bound": ("BoundLoss", "apply", "build", "decode"),
    "cpe": ("cpe_f", "cpe_i", "cpe_t", "nearest_row"),
    "discriminative": ("l_uw",),
    "mcl": ("mcl_exp", "mcl_log", "mcl_mae"),
    "order": ("op", "op_w"),
    "negative_unlabeled": ("scarce",),
    "pairwise": ("pc",),
    "registry": ("METHODS", "Method"),
    "robust": ("s_gce", "s_lin"),
    "standard": ("dm", "fwd", "s_exp", "s_nl"),
    "table": ("LOSSES",),
    "unbiased": ("ure", "ure_ga", "ure_nn", "ure_t", "ure_tga", "ure_tnn"),
    "weighted": ("fwd_la", "s_nl_w"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LOSSES",
    "METHODS",
    "BoundLoss",
    "Loss",
    "Method",
    "apply",
    "build",
    "cpe_f",
    "cpe_i",
    "cpe_t",
    "decode",
    "dm",
    "fwd",
    "fwd_la",
    "l_uw",
    "mcl_exp",
    "mcl_log",
    "mcl_mae",
    "nearest_row",
    "op",
    "op_w",
    "pc",
    "s_exp",
    "s_gce",
    "s_lin",
    "s_nl",
    "s_nl_w",
    "scarce",
    "ure",
    "ure_ga",
    "ure_nn",
    "ure_t",
    "ure_tga",
    "ure_tnn",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
