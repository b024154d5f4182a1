"""All losses by name."""

from complementary.losses.base import Loss
from complementary.losses.cpe import cpe_f, cpe_i, cpe_t
from complementary.losses.discriminative import l_uw
from complementary.losses.mcl import mcl_exp, mcl_log, mcl_mae
from complementary.losses.negative_unlabeled import scarce
from complementary.losses.order import op, op_w
from complementary.losses.pairwise import pc
from complementary.losses.robust import s_gce, s_lin
from complementary.losses.standard import dm, fwd, s_exp, s_nl
from complementary.losses.unbiased import ure, ure_ga, ure_nn, ure_t, ure_tga, ure_tnn
from complementary.losses.weighted import fwd_la, s_nl_w

LOSSES: dict[str, Loss] = {
    "s-nl": s_nl,
    "s-exp": s_exp,
    "fwd": fwd,
    "dm": dm,
    "l-uw": l_uw,
    "s-lin": s_lin,
    "s-gce": s_gce,
    "pc": pc,
    "op": op,
    "op-w": op_w,
    "mcl-mae": mcl_mae,
    "mcl-exp": mcl_exp,
    "mcl-log": mcl_log,
    "ure": ure,
    "ure-nn": ure_nn,
    "ure-ga": ure_ga,
    "ure-t": ure_t,
    "ure-tnn": ure_tnn,
    "ure-tga": ure_tga,
    "cpe-i": cpe_i,
    "cpe-f": cpe_f,
    "cpe-t": cpe_t,
    "scarce": scarce,
    "s-nl-w": s_nl_w,
    "fwd-la": fwd_la,
}
"""Losses by the name that the option ``loss`` has for them. What each assumes is in `registry.METHODS`."""
