"""What all losses share: their signature, and checks of what they are given."""

from typing import Protocol

import torch
from torch import Tensor

from complementary.errors import UserError

SMALLEST = 1e-30  # of a probability: its logarithm and the gradient stay finite in float32


class Loss(Protocol):
    """The signature of a loss."""

    def __call__(
        self, logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None
    ) -> Tensor:
        """The loss of each example.

        Args:
            logits: [B, K].
            excluded: Complementary labels, [B, K]: one-hot, multi-hot, soft (after mixing) or zero.
            transition: Transition matrix of the labels, [K, K].
            prior: Share of each class, [K].

        Returns:
            float32 [B]; 0 for an example without a label. The sum, divided by the number of examples with a label, is
            what training minimizes.
        """
        ...


def as_float(logits: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Check the shapes, and convert both to float32: [B, K], [B, K]."""
    if logits.shape != excluded.shape or logits.ndim != 2:
        raise UserError(
            f"The logits have shape {list(logits.shape)} and the labels {list(excluded.shape)}; both must be [B, K], "
            "with one column per class. Check the number of outputs of the network."
        )
    return logits.float(), excluded.float()


def require_matrix(transition: Tensor | None, logits: Tensor, name: str) -> Tensor:
    """The transition matrix [K, K] in float32, on the device of the logits [B, K]; raises if there is none."""
    if transition is None:
        raise UserError(f"The loss {name} needs a transition matrix [K, K], such as transitions.uniform(K).")
    check_shape("transition matrix", transition, (logits.shape[1],) * 2, name)
    return transition.to(logits.device, torch.float32)


def require_prior(prior: Tensor | None, logits: Tensor, name: str) -> Tensor:
    """The class prior [K] in float32, on the device of the logits [B, K]; raises if there is none."""
    if prior is None:
        raise UserError(
            f"The loss {name} needs the class prior [K]; estimate it with priors.from_labels(excluded, transition)."
        )
    check_shape("class prior", prior, (logits.shape[1],), name)
    return prior.to(logits.device, torch.float32)


def check_shape(what: str, tensor: Tensor, wanted: tuple[int, ...], name: str) -> None:
    """Raise unless what a loss is given has a size for each column of the logits."""
    if tuple(tensor.shape) != wanted:
        raise UserError(
            f"The {what} for the loss {name} has shape {list(tensor.shape)}, but the logits have {wanted[0]} columns; "
            f"it must have shape {list(wanted)}."
        )


def per_label(excluded: Tensor) -> Tensor:
    """The labels of each example share a weight of 1; rows without a label stay zero. [B, K] -> [B, K]."""
    total = excluded.sum(1, keepdim=True)
    return excluded / torch.where(total > 0, total, 1.0)


def labeled_count(excluded: Tensor) -> Tensor:
    """The number of examples with a label, at least 1: [B, K] -> scalar."""
    return (excluded.sum(1) > 0).sum().clamp_min(1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in float32, also under autocast, where it would be bfloat16."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def complement(p: Tensor) -> Tensor:
    """1 - p without cancellation, for probabilities p [B, K] whose rows sum to 1.

    If one class has nearly all of the probability, 1 - p is 0 in float32 and so is its gradient. The sum over the other
    classes is precise, and so is its gradient.
    """
    large = p > 0.5  # at most one class of a row
    others = torch.where(large, 0.0, p).sum(1, keepdim=True)
    return torch.where(large, others, 1 - p)
