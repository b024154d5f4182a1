"""Deviations of losses from references: small for right ones, large for a wrong one."""

import pytest
import torch

from benchmarks import deviations
from tests.losses import references


def test_deviation_of_a_loss_from_its_formula_is_small(monkeypatch):
    monkeypatch.setattr(deviations, "BATCHES", 5)
    assert deviations.from_reference("ure-tga", references) < 1e-4
    assert deviations.from_libcll("s-nl", references, {"s-nl": (0.4141208348, 1)}) < 1e-6
    assert deviations.from_libcll("l-uw", references, {}) is None


def test_deviation_from_another_formula_is_large(monkeypatch):
    monkeypatch.setitem(deviations.LOSSES, "s-nl", deviations.LOSSES["s-exp"])
    assert deviations.from_reference("s-nl", references) > 0.1


def test_batches_have_one_to_three_labels():
    logits, excluded, matrix, prior = deviations.random_batch(0)
    assert logits.shape == excluded.shape
    assert set(excluded.sum(1).tolist()) == {1, 2, 3}
    assert float(prior.sum()) == pytest.approx(1)
    torch.testing.assert_close(matrix.sum(1), torch.ones(len(matrix), dtype=matrix.dtype))
