"""Losses for classes of different size."""

import torch

from complementary import transitions
from complementary.losses import fwd, fwd_la, s_nl, s_nl_w
from tests.losses.references import FIXED, FIXED_LABELS

UNIFORM, EQUAL = transitions.uniform(4), torch.full((4,), 0.25)
PRIOR = torch.tensor([0.7, 0.2, 0.08, 0.02])


def test_weighted_losses_with_equal_classes_are_the_plain_ones():
    torch.testing.assert_close(s_nl_w(FIXED, FIXED_LABELS, share=EQUAL), s_nl(FIXED, FIXED_LABELS))
    torch.testing.assert_close(fwd_la(FIXED, FIXED_LABELS, UNIFORM, EQUAL), fwd(FIXED, FIXED_LABELS, UNIFORM))


def test_s_nl_w_gives_every_label_the_same_total_weight():
    rows = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])
    labels, logits = torch.eye(4)[rows], torch.zeros(8, 4)
    share = torch.bincount(rows) / 8
    for found in (s_nl_w(logits, labels), s_nl_w(logits, labels, share=share)):
        torch.testing.assert_close(found @ labels, s_nl(logits, labels).sum().expand(4) / 4)


def test_s_nl_w_of_several_labels_is_the_sum_over_labels():
    first, second = torch.eye(4)[:1], torch.eye(4)[2:3]
    parts = [s_nl_w(FIXED[:1], label, share=PRIOR) for label in (first, second)]
    torch.testing.assert_close(s_nl_w(FIXED[:1], first + second, share=PRIOR), sum(parts))


def test_s_nl_w_is_s_nl_of_uniform_labels_in_expectation_if_the_bias_belongs_to_the_labels():
    """Label k with probability proportional to w_k: after weighting, all wrong labels have nearly the same weight."""
    matrix, logits = transitions.biased(4, 3).float(), FIXED[:4]
    share = matrix.mean(0)
    weighted, plain, wanted = (torch.zeros(4) for _ in range(3))
    for k in range(4):
        label = torch.eye(4)[k].expand(4, 4)
        weighted += matrix[:, k] * s_nl_w(logits, label, share=share)
        plain += matrix[:, k] * s_nl(logits, label)
        wanted += UNIFORM[:, k].float() * s_nl(logits, label)
    assert float((weighted - wanted).abs().max()) < 0.5 * float((plain - wanted).abs().max())


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
