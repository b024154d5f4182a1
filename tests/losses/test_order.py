"""Order-preserving losses: classes that are excluded less often get larger logits."""

import torch

from complementary import transitions
from complementary.losses import op, op_w


def minimizer(loss, shares):
    """The logits at which the mean loss is minimal if label k has the probability shares[k]."""
    logits = torch.zeros(1, len(shares), requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.05)
    for _ in range(400):
        optimizer.zero_grad()
        cost = sum(
            p * loss(logits, torch.eye(len(shares))[k : k + 1]).sum() for k, p in enumerate(shares.tolist()) if p > 0
        )
        cost.backward()
        optimizer.step()
    return logits.detach()[0]


def test_op_orders_classes_by_how_rarely_they_are_excluded():
    posterior = torch.tensor([0.5, 0.3, 0.15, 0.05])
    shares = (posterior.double() @ transitions.uniform(4)).float()
    found = minimizer(op, shares)
    assert found.argsort(descending=True).tolist() == [0, 1, 2, 3]
    torch.testing.assert_close((-found).softmax(0), shares, atol=1e-3, rtol=0)  # it estimates the label's distribution


def test_op_w_is_small_for_labels_that_are_already_unlikely():
    logits, label = torch.tensor([[4.0, 0.0, 0.0]]), torch.eye(3)
    losses = op_w(logits.expand(3, 3), label)
    assert float(losses[0]) > 100 * float(losses[1])
