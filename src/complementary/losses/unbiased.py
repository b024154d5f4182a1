"""Unbiased risk estimators (URE) as training losses: Ishida, Niu, Menon and Sugiyama 2019, Complementary-Label Learning
for Arbitrary Losses and Models. The ordinary loss is the cross-entropy.

With the inverse of the transition matrix T, the risk is a sum over classes k of partial risks

    R_k = mean over examples of (t T^-1)_k (-log p_k),

each of which estimates a number that is not negative. On a batch it often is negative, and minimizing it then overfits.

| name | what is done |
|---|---|
| free | the sum of all R_k is minimized as it is |
| NN | negative R_k are left out: the sum of max(0, R_k) |
| GA | if any R_k is negative, the gradient ascends the negative ones; otherwise it descends the sum |

NN and GA are decided on the batch. They are ordinary per-example losses, because every R_k is a mean of contributions
of examples, and the decision is a constant factor per class (0, 1 or -1). Value and gradient are right without any
change to the training loop. In several processes, each decides on its own part of the batch.

With ``share``, the share of each label in the training set, the examples of a label are averaged first and then
weighted by that share, as published. Without it, the share in the batch counts. Both are unbiased, but the second adds
the noise of counting labels to every R_k: at the start of training, some R_k is then negative in most batches, and GA
ascends nearly always.

These are the formulas of the paper (Theorem 1, and its algorithm for GA). Implementations differ:

- The authors' code (github.com/takashiishida/comp) weights the loss of class j by the share of label j where Theorem 1
  has that of the label of the examples. Both are the same if all labels are equally frequent. Its GA multiplies R_k by
  the number of labels k in the batch, so that it ascends more strongly, by about B / K.
- libcll splits the risk by complementary label, not by class, before it clips: other values for NN and GA, the same for
  free.
"""

import torch
from torch import Tensor

from complementary import transitions
from complementary.errors import UserError
from complementary.losses.base import as_float, check_shape, labeled_count, multiply, per_label, require_matrix


def invert(transition: Tensor, name: str = "ure-t") -> Tensor:
    """The inverse of a transition matrix [K, K], float32 [K, K].

    Args:
        transition: T.
        name: The loss that needs it, for the message.

    Raises:
        UserError: The labels do not determine the classes, because T is singular.
    """
    matrix = transition.double().cpu()
    if (rank := transitions.rank(matrix)) < len(matrix):
        raise UserError(
            f"The loss {name} needs the inverse of the transition matrix, but the matrix is singular (rank {rank} of "
            f"{len(matrix)}): the labels do not determine the classes. Use a loss without a matrix, such as s-nl, or "
            "another matrix.",
            "transition",
        )
    inverse: Tensor = torch.linalg.inv(matrix).to(transition.device, torch.float32)
    return inverse


def ure(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    share: Tensor | None = None,
) -> Tensor:
    """Unbiased risk for uniform labels, not corrected (free).

    Args:
        logits: [B, K].
        excluded: Complementary labels, [B, K]; several labels of an example share a weight of 1.
        transition: Not used.
        prior: Not used.
        share: Share of each label in the training set, [K]; None: in the batch.

    Returns:
        The loss of each example, float32 [B]; it can be negative.
    """
    return _contributions(logits, excluded, _uniform(logits), share).sum(1)


def ure_nn(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    share: Tensor | None = None,
) -> Tensor:
    """Non-negative risk for uniform labels (NN). Arguments as `ure`."""
    return _without_negative(_contributions(logits, excluded, _uniform(logits), share), excluded)


def ure_ga(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    share: Tensor | None = None,
) -> Tensor:
    """Gradient ascent for uniform labels (GA). Arguments as `ure`; the value is that of the objective descended."""
    return _ascend_negative(_contributions(logits, excluded, _uniform(logits), share), excluded)


def ure_t(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    inverse: Tensor | None = None,
    share: Tensor | None = None,
) -> Tensor:
    """Unbiased risk for any invertible transition matrix, not corrected.

    Args:
        logits: [B, K].
        excluded: Complementary labels, [B, K]; several labels of an example share a weight of 1.
        transition: Transition matrix T of the labels, [K, K]; required.
        prior: Not used.
        inverse: T^-1 [K, K], if it is known (see `invert`).
        share: Share of each label in the training set, [K]; None: in the batch.

    Returns:
        The loss of each example, float32 [B]; it can be negative.
    """
    return _contributions(logits, excluded, _inverse(logits, transition, inverse, "ure-t"), share).sum(1)


def ure_tnn(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    inverse: Tensor | None = None,
    share: Tensor | None = None,
) -> Tensor:
    """Non-negative risk for any invertible transition matrix (TNN). Arguments as `ure_t`."""
    corrected = _inverse(logits, transition, inverse, "ure-tnn")
    return _without_negative(_contributions(logits, excluded, corrected, share), excluded)


def ure_tga(
    logits: Tensor,
    excluded: Tensor,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    *,
    inverse: Tensor | None = None,
    share: Tensor | None = None,
) -> Tensor:
    """Gradient ascent for any invertible transition matrix (TGA). Arguments as `ure_t`."""
    corrected = _inverse(logits, transition, inverse, "ure-tga")
    return _ascend_negative(_contributions(logits, excluded, corrected, share), excluded)


def _uniform(logits: Tensor) -> Tensor:
    """The inverse of the uniform matrix, 1 - (K - 1) on the diagonal, else 1: [K, K]."""
    classes = logits.shape[1]
    return 1 - (classes - 1) * torch.eye(classes, device=logits.device)


def _inverse(logits: Tensor, transition: Tensor | None, inverse: Tensor | None, name: str) -> Tensor:
    if inverse is not None:
        return inverse
    matrix = require_matrix(transition, logits, name)
    return invert(transitions.check_transition(matrix).to(matrix.device), name)


def _contributions(logits: Tensor, excluded: Tensor, inverse: Tensor, share: Tensor | None) -> Tensor:
    """What each example contributes to each partial risk: [B, K]."""
    f, t = as_float(logits, excluded)
    check_shape("inverse of the transition matrix", inverse, (f.shape[1],) * 2, "ure")
    weight = per_label(t)
    if share is not None:
        found = weight.sum(0) / labeled_count(t)  # the share in the batch
        weight = weight * (share.to(f.device) / torch.where(found > 0, found, 1.0))
    return multiply(weight, inverse) * -f.log_softmax(1)


def _partial_risks(parts: Tensor, excluded: Tensor) -> Tensor:
    """R_k of the batch, without gradient: [B, K] -> [K]."""
    return parts.detach().sum(0) / labeled_count(excluded)


def _without_negative(parts: Tensor, excluded: Tensor) -> Tensor:
    return (parts * (_partial_risks(parts, excluded) > 0)).sum(1)


def _ascend_negative(parts: Tensor, excluded: Tensor) -> Tensor:
    negative = _partial_risks(parts, excluded) < 0
    factor = torch.where(negative.any(), -negative.float(), 1.0)
    return (parts * factor).sum(1)
