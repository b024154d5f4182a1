"""SCARCE: Wang, Ishida, Zhang, Niu and Sugiyama 2024, Learning with Complementary Labels Revisited: The
Selected-Completely-at-Random Setting Is More Practical."""

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.losses.base import as_float, labeled_count, require_prior


def scarce(logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """One-versus-rest logistic loss from negative and unlabeled examples, corrected by the absolute value.

    Every class k is a binary problem. Examples with the label "not k" are negative, all examples together unlabeled:

        sum_k (1 - prior_k) mean_{not k} loss(-f_k) + | mean loss(f_k) - (1 - prior_k) mean_{not k} loss(f_k) |

    with loss(z) = log(1 + exp(-z)). It assumes that "not k" is given to examples of all other classes with the same
    probability, which may differ between the k. No matrix is needed, but the class prior is; the published code and
    libcll have 1/K written in. The sign of each absolute value is decided on the batch.

    Args:
        logits: f, [B, K].
        excluded: Complementary labels, [B, K]; one or several per example.
        transition: Not used.
        prior: Share of each class, [K]; required.

    Returns:
        The loss of each example, float32 [B]; their sum over the number of labeled examples is the risk above.
    """
    f, t = as_float(logits, excluded)
    rest = 1 - require_prior(prior, f, "scarce")
    count, present = labeled_count(t), (t.sum(1, keepdim=True) > 0).float()
    total = t.sum(0)
    share = t / torch.where(total > 0, total, 1.0) * rest  # [B, K]: (1 - prior_k) mean_{not k}
    positive, negative = F.softplus(-f), F.softplus(f)
    difference = positive * (present / count - share)  # summed over examples: what the absolute value is taken of
    sign = torch.where(difference.detach().sum(0) < 0, -1.0, 1.0)
    return count * (negative * share + sign * difference).sum(1)
