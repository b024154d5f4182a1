"""1 - p without cancellation: gradients against float64 where the excluded class leads by many logits."""

import pytest
import torch

from complementary import transitions
from complementary.losses import LOSSES
from complementary.losses.base import complement
from complementary.rng import generator

FOUR = ("s-nl", "s-exp", "fwd", "dm")


def test_complement_is_precise_for_probabilities_near_1():
    logits = 12 * torch.randn(2000, 6, generator=generator(0, "logits"))
    p = logits.double().softmax(1)
    wanted = p @ (1 - torch.eye(6, dtype=torch.float64))
    found = complement(logits.softmax(1)).double()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-30)
    assert bool((1 - logits.softmax(1) == 0).any())  # the plain difference loses them


@pytest.mark.parametrize(
    ("name", "lead"), [(n, v) for n in FOUR for v in (5.0, 14.0, 17.0, 19.0, 25.0)] + [("fwd", 40.0), ("fwd", 60.0)]
)
@pytest.mark.parametrize("label", [[1.0, 0, 0, 0], [0.6, 0.4, 0, 0]], ids=str)
def test_loss_gradient_is_precise_if_the_excluded_class_leads(name, lead, label):
    """Against the same formula in float64, with 1 - p as a sum over the other classes."""
    row, excluded, matrix = torch.tensor([[lead, 0, 0.5, -1]]), torch.tensor([label]), transitions.uniform(4)
    low, high = row.clone().requires_grad_(), row.double().requires_grad_()
    LOSSES[name](low, excluded, matrix).sum().backward()
    p = high.softmax(1)
    rest = p @ (1 - torch.eye(4, dtype=torch.float64))
    formula = {
        "s-nl": -torch.log(rest + 1e-6),
        "s-exp": torch.exp(1 - rest),
        "fwd": -(p @ matrix).log(),
        "dm": -rest.log_softmax(1) * (1 + rest / 3),
    }[name]
    (excluded * formula).sum().backward()
    assert float(low.grad[0, 0]) > 0
    torch.testing.assert_close(low.grad.double(), high.grad, rtol=2e-4, atol=1e-6 * float(high.grad.abs().max()))


@pytest.mark.parametrize("name", ["s-nl", "s-exp"])
def test_loss_has_the_bits_of_the_plain_formula_while_no_class_is_above_half(name):
    logits = torch.randn(200, 8, generator=generator(0, "logits")).requires_grad_()
    plain = logits.detach().clone().requires_grad_()
    p = plain.softmax(1)
    keep = p.detach().amax(1) <= 0.5
    assert 50 < int(keep.sum()) < 200
    excluded = torch.eye(8)[torch.arange(200) % 8]
    loss = LOSSES[name](logits, excluded)
    wanted = (excluded * (p.exp() if name == "s-exp" else -torch.log(1 - p + 1e-6))).sum(1)
    assert torch.equal(loss[keep], wanted[keep])
    loss[keep].sum().backward()
    wanted[keep].sum().backward()
    assert torch.equal(logits.grad, plain.grad)
