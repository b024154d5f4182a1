"""Losses for classes of different size."""

import torch

from complementary import transitions
from complementary.losses import fwd, fwd_la, s_nl, s_nl_w
from tests.losses.references import FIXED, FIXED_LABELS

UNIFORM, EQUAL = transitions.uniform(4), torch.full((4,), 0.25)
PRIOR = torch.tensor([0.7, 0.2, 0.08, 0.02])


def test_weighted_losses_with_equal_classes_are_the_plain_ones():
    torch.testing.assert_close(s_nl_w(FIXED, FIXED_LABELS, UNIFORM, EQUAL), s_nl(FIXED, FIXED_LABELS))
    torch.testing.assert_close(fwd_la(FIXED, FIXED_LABELS, UNIFORM, EQUAL), fwd(FIXED, FIXED_LABELS, UNIFORM))


def test_s_nl_w_gives_every_label_the_same_total_weight():
    share = PRIOR.double() @ UNIFORM  # of each label among the training data
    weight = s_nl_w(torch.zeros(4, 4), torch.eye(4), UNIFORM, PRIOR) / s_nl(torch.zeros(4, 4), torch.eye(4))
    torch.testing.assert_close(weight.double() * share, torch.full((4,), 0.25, dtype=torch.float64), rtol=1e-5, atol=0)


def test_fwd_la_learns_balanced_logits():
    """An input that says nothing about its class has equal logits, although the classes have different sizes."""
    share, matrix = PRIOR.double() @ UNIFORM, UNIFORM
    found = {}
    for name, loss in (("fwd", fwd), ("fwd-la", fwd_la)):
        logits = torch.zeros(1, 4, requires_grad=True)
        optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

        def closure(loss=loss, logits=logits, optimizer=optimizer):
            optimizer.zero_grad()
            losses = loss(logits.expand(4, 4), torch.eye(4), matrix, PRIOR)
            cost = (share.float() * losses).sum()
            cost.backward()
            return cost

        optimizer.step(closure)
        found[name] = logits.detach().softmax(1)[0]
    torch.testing.assert_close(found["fwd-la"], EQUAL, atol=5e-3, rtol=0)
    torch.testing.assert_close(found["fwd"], PRIOR, atol=5e-3, rtol=0)
