"""Slow references of all losses, written from the formulas of the papers with Python numbers; and fixed batches.

A reference takes a batch of logits, labels, the matrix and the prior, and returns the mean over examples with a label.
"""

import math

import numpy as np
import torch

from complementary import transitions


def softmax(row):
    top = max(row)
    parts = [math.exp(v - top) for v in row]
    return [p / sum(parts) for p in parts]


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def softplus(z):
    return math.log1p(math.exp(-abs(z))) + max(z, 0)


def count(ts):
    return max(1, sum(sum(t) > 0 for t in ts))


def per_example(loss):
    """A reference of a batch from that of one example (row, t, matrix, prior)."""
    return lambda rows, ts, matrix, prior: (
        sum(loss(row, t, matrix, prior) for row, t in zip(rows, ts, strict=True)) / count(ts)
    )


def per_label(loss):
    """A reference of a batch from that of one label (row, k, matrix, prior)."""
    return per_example(
        lambda row, t, matrix, prior: sum(t[k] * loss(row, k, matrix, prior) for k in range(len(t)) if t[k])
    )


def through(row, matrix):
    p = softmax(row)
    return [sum(p[y] * matrix[y][k] for y in range(len(p))) for k in range(len(p))]


def dm(row, k, *_):
    s = [1 - p for p in softmax(row)]
    log_q = math.log(softmax(s)[k])
    return -log_q - s[k] * log_q / (len(row) - 1)


def pc(row, k, *_):
    """Ishida et al. 2017, equations 10 and 12 with the sigmoid loss: M1 = K (K - 1) / 2, M2 = K - 1."""
    classes = len(row)
    loss = sum(sigmoid(-(row[j] - row[k])) for j in range(classes) if j != k)
    return (classes - 1) * loss - classes * (classes - 1) / 2 + (classes - 1)


def op_w(row, k, *_):
    p, q = softmax(row), softmax([-v for v in row])
    return -(p[k] * softmax([1 / v for v in q])[k] + 1e-6) * math.log(q[k])


def mcl(g, factor):
    """Feng et al. 2020, Section 4.2: a factor (K - 1) / s, and g of the probability of the classes not excluded."""

    def loss(row, t, *_):
        if sum(t) == 0:
            return 0.0
        inside = sum((1 - tk) * pk for tk, pk in zip(t, softmax(row), strict=True))
        return factor * (len(row) - 1) / sum(t) * g(inside)

    return per_example(loss)


def partial_risks(rows, ts, matrix):
    """Ishida et al. 2019, Theorem 1, for any matrix: the summands R_k, with the shares of labels in the batch."""
    inverse, classes = np.linalg.inv(np.array(matrix)), len(matrix)
    risks = [0.0] * classes
    for row, t in zip(rows, ts, strict=True):
        loss = [-math.log(p) for p in softmax(row)]
        for k in range(classes):
            risks[k] += sum(t[j] / (sum(t) or 1) * inverse[j][k] for j in range(classes)) * loss[k] / count(ts)
    return risks


def uniform(classes):
    return [[0.0 if i == j else 1 / (classes - 1) for j in range(classes)] for i in range(classes)]


def ure(join, given):
    return lambda rows, ts, matrix, prior: join(partial_risks(rows, ts, matrix if given else uniform(len(matrix))))


def nn(risks):
    return sum(max(0.0, r) for r in risks)


def ga(risks):
    return -sum(min(0.0, r) for r in risks) if min(risks) < 0 else sum(risks)


def scarce(rows, ts, matrix, prior):
    """Wang et al. 2024, equation 11: negative-unlabeled learning of every class with the logistic loss."""
    labeled = [(row, t) for row, t in zip(rows, ts, strict=True) if sum(t) > 0]
    total = 0.0
    for k, pi in enumerate(prior):
        weight = sum(t[k] for _, t in labeled) or 1
        mean = {sign: sum(t[k] * softplus(sign * row[k]) for row, t in labeled) / weight for sign in (1, -1)}
        unlabeled = sum(softplus(-row[k]) for row, _ in labeled) / max(1, len(labeled))
        total += (1 - pi) * mean[1] + abs(unlabeled - (1 - pi) * mean[-1])
    return total


def s_nl_w(rows, ts, matrix, prior):
    """Weights inverse to the shares of labels in the batch; several labels of an example share a weight of 1."""
    classes = len(matrix)
    share = [sum(t[k] / (sum(t) or 1) for t in ts) / count(ts) for k in range(classes)]
    plain = [[-math.log(1 - p + 1e-6) for p in softmax(row)] for row in rows]
    terms = [
        t[k] * loss[k] / (classes * share[k]) for t, loss in zip(ts, plain, strict=True) for k in range(classes) if t[k]
    ]
    return sum(terms) / count(ts)


def fwd_la(row, k, matrix, prior):
    return -math.log(through([v + math.log(p) for v, p in zip(row, prior, strict=True)], matrix)[k])


SLOW = {
    "s-nl": per_label(lambda row, k, *_: -math.log(1 - softmax(row)[k] + 1e-6)),
    "s-exp": per_label(lambda row, k, *_: math.exp(softmax(row)[k])),
    "fwd": per_label(lambda row, k, matrix, _: -math.log(max(through(row, matrix)[k], 1e-8))),
    "dm": per_label(dm),
    "l-uw": per_label(lambda row, k, *_: -math.log(softmax([1 - p for p in softmax(row)])[k])),
    "s-lin": per_label(lambda row, k, *_: softmax(row)[k]),
    "s-gce": per_label(lambda row, k, *_: (1 - (1 - softmax(row)[k]) ** 0.7) / 0.7),
    "pc": per_label(pc),
    "op": per_label(lambda row, k, *_: -math.log(softmax([-v for v in row])[k])),
    "op-w": per_label(op_w),
    "mcl-mae": mcl(lambda inside: 1 - inside, 2),
    "mcl-exp": mcl(lambda inside: math.exp(-inside), 1),
    "mcl-log": mcl(lambda inside: -math.log(inside), 1),
    "ure": ure(sum, given=False),
    "ure-nn": ure(nn, given=False),
    "ure-ga": ure(ga, given=False),
    "ure-t": ure(sum, given=True),
    "ure-tnn": ure(nn, given=True),
    "ure-tga": ure(ga, given=True),
    "cpe-i": per_label(lambda row, k, *_: -math.log(softmax(row)[k])),
    "cpe-f": per_label(lambda row, k, matrix, _: -math.log(through(row, matrix)[k] + 1e-6)),
    "cpe-t": per_label(lambda row, k, matrix, _: -math.log(through(row, matrix)[k] + 1e-6)),
    "scarce": scarce,
    "s-nl-w": s_nl_w,
    "fwd-la": per_label(fwd_la),
}

KINDS = {
    "one-hot": [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]],
    "multi-hot": [[0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 1, 0, 1]],
    "soft": [[0, 0.3, 0.7, 0, 0], [0.1, 0.2, 0.3, 0.4, 0], [0.5, 0, 0, 0, 0]],
    "some without": [[0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]],
    "zero": [[0.0] * 5] * 3,
}
LOGITS = torch.tensor([[0.5, -1, 2, 0, 1], [3, 0, -3, 1, -1], [0.1, 0.2, 0, 0, 0.3]])
MATRIX = transitions.biased(5, 10)
PRIOR = torch.tensor([0.4, 0.3, 0.1, 0.15, 0.05])

# the batch whose values under libcll's formulas are written down in the tests
FIXED = torch.tensor(
    [[0.5, -1, 2, 0], [3, 0, -3, 1], [0, 0, 0, 0], [1.5, 2.5, -0.5, 0.25], [-2, -1, 1, 2], [0.1, 0.2, 0.3, 0.4]]
)
FIXED_LABELS = torch.nn.functional.one_hot(torch.tensor([1, 0, 3, 2, 0, 1]), 4)


def mean(losses, excluded):
    """The mean over examples with a label, as training takes it."""
    return losses.sum() / (excluded.sum(1) > 0).sum().clamp_min(1)
