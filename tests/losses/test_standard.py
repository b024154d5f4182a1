"""Forward correction: a proper loss; the four losses of the ICM paper are in the table."""

import pytest
import torch

from complementary import transitions
from complementary.losses import LOSSES, dm, fwd, s_exp, s_nl
from complementary.rng import dirichlet, generator


def test_standard_losses_have_the_names_of_the_paper():
    assert list(LOSSES.items())[:4] == [("s-nl", s_nl), ("s-exp", s_exp), ("fwd", fwd), ("dm", dm)]


@pytest.mark.parametrize("matrix", [transitions.uniform(5), transitions.noisy(5, 0.3), transitions.biased(5, 10)])
def test_fwd_is_minimal_at_the_true_class(matrix):
    """Proper loss: averaged over the labels of class 2, no prediction has a smaller loss than certainty of class 2."""
    grid = torch.cat([torch.eye(5)[2:3], dirichlet(1.0, (500, 5), torch.device("cpu"), generator(0, "grid"))])
    logits = grid.clamp_min(1e-9).log()
    cost = sum(float(matrix[2, k]) * fwd(logits, torch.eye(5)[k].expand(501, 5), matrix) for k in range(5))
    assert float(cost[0]) <= float(cost[1:].min()) + 1e-5
