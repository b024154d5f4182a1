"""Complementary probability estimates: decoding by the nearest row of the matrix."""

import torch

from complementary import losses, transitions
from complementary.losses import nearest_row
from tests.losses.references import FIXED

BIASED = transitions.biased(4, 10)


def test_nearest_row_finds_the_class_from_the_exact_distribution_of_its_labels():
    for matrix in (BIASED, transitions.noisy(4, 0.1), transitions.uniform(4)):
        assert nearest_row(matrix, matrix).argmax(1).tolist() == [0, 1, 2, 3]
        assert nearest_row(matrix, matrix).diagonal().abs().max() == 0


def test_decoding_equals_that_of_libcll():
    """Predictions of libcll's test_step at these logits with this matrix, evaluated once."""
    found = {name: losses.build(name, BIASED).decode(FIXED).argmax(1).tolist() for name in ("cpe-i", "cpe-f")}
    assert found == {"cpe-i": [0, 1, 0, 0, 0, 0], "cpe-f": [2, 0, 3, 3, 3, 3]}


def test_decoding_with_the_uniform_matrix_is_the_largest_or_smallest_logit():
    uniform = transitions.uniform(4)
    distinct = FIXED[[0, 3, 4, 5]]
    assert torch.equal(losses.build("cpe-f", uniform).decode(distinct).argmax(1), distinct.argmax(1))
    estimate = (-distinct).softmax(1)  # of a distribution over labels that nearly excludes the first class most often
    assert torch.equal(nearest_row(estimate, uniform.float()).argmax(1), estimate.argmin(1))


def test_cpe_t_learns_the_matrix():
    """From a wrong start, with certain predictions, the matrix becomes the distribution of the labels."""
    start, truth = transitions.uniform(4), transitions.biased(4, 10)
    loss = losses.build("cpe-t", start)
    assert [name for name, _ in loss.named_parameters()] == ["learned"]
    logits = 20 * torch.eye(4).repeat_interleave(4, 0)  # every class with every label
    labels, weight = torch.eye(4).repeat(4, 1), truth.float().flatten()
    optimizer = torch.optim.Adam(loss.parameters(), 0.1)
    for _ in range(300):
        optimizer.zero_grad()
        (weight * loss(logits, labels)).sum().backward()
        optimizer.step()
    matrix, rows = loss.decoder()
    torch.testing.assert_close(matrix, truth.float(), atol=2e-3, rtol=0)
    assert torch.equal(matrix, rows)
    assert loss.decode(logits).argmax(1).tolist() == [k for k in range(4) for _ in range(4)]
