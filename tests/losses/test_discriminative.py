"""L-UW: the first part of L-W."""

import torch

from complementary.losses import dm, l_uw
from tests.losses.references import FIXED, FIXED_LABELS


def test_l_uw_is_l_w_without_the_weighted_term():
    s = 1 - FIXED.softmax(1)
    weighted = -(FIXED_LABELS * s / 3 * s.log_softmax(1)).sum(1)
    torch.testing.assert_close(l_uw(FIXED, FIXED_LABELS) + weighted, dm(FIXED, FIXED_LABELS))
