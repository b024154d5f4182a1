"""A loss together with the matrix and the prior that it needs, as training uses it."""

import inspect
import math

import torch
from torch import Tensor, nn

from complementary import transitions
from complementary.errors import UserError, load_plugin
from complementary.losses.base import Loss, check_shape
from complementary.losses.cpe import START, nearest_row
from complementary.losses.registry import LOSS_METHODS, Method, method_of
from complementary.losses.table import LOSSES
from complementary.losses.unbiased import invert
from complementary.losses.weighted import FLOOR


class BoundLoss(nn.Module):
    """A loss of logits and labels alone: ``(logits [B, K], excluded [B, K]) -> [B]``.

    It holds the matrix, its inverse and the prior on the device of the training. A matrix that is learned is its
    parameter.

    Args:
        function: The loss.
        method: What it assumes.
        transition: The transition matrix, [K, K].
        prior: Share of each class, [K].
        share: Share of each label in the training set, [K]; used if the loss has a parameter of that name.
    """

    transition: Tensor | None
    inverse: Tensor | None
    prior: Tensor | None
    share: Tensor | None

    def __init__(
        self,
        function: Loss,
        method: Method,
        transition: Tensor | None = None,
        prior: Tensor | None = None,
        share: Tensor | None = None,
    ) -> None:
        super().__init__()
        if method.matrix != "not used" and transition is None:
            raise UserError(
                f"The loss {method.name} needs a transition matrix [K, K], such as transitions.uniform(K).",
                "transition",
            )
        if method.prior and prior is None:
            raise UserError(
                f"The loss {method.name} needs the class prior [K]; estimate it with priors.from_labels(excluded, "
                "transition).",
                "prior",
            )
        if method.matrix != "not used":
            transitions.check_transition(transition)  # type: ignore[arg-type]
        if method.prior:
            _check_prior(prior, method.name)  # type: ignore[arg-type]
        self.function, self.method = function, method
        self.register_buffer("transition", None if transition is None else transition.float(), persistent=False)
        self.register_buffer("prior", None if prior is None else prior.float(), persistent=False)
        inverted = invert(transition, method.name) if method.matrix == "inverted" and transition is not None else None
        self.register_buffer("inverse", inverted, persistent=False)
        used = share is not None and "share" in _keywords(function)
        self.register_buffer("share", share.float() if used and share is not None else None, persistent=False)
        self.learned: nn.Parameter | None = None
        if method.matrix == "learned" and transition is not None:
            self.learned = nn.Parameter(transition.float().clamp_min(START).log())

    def forward(self, logits: Tensor, excluded: Tensor) -> Tensor:
        """The loss of each example: [B, K], [B, K] -> float32 [B]."""
        matrix = self.transition if self.learned is None else self.learned.softmax(1)
        return self.function(logits, excluded, matrix, self.prior, **self.keywords())

    def keywords(self) -> dict[str, Tensor]:
        """What the loss takes beyond the common arguments: ``inverse`` and ``share``."""
        found = {"inverse": self.inverse, "share": self.share}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def log_prior(self) -> Tensor | float:
        """What is added to the logits to predict the training data, [K]: 0, unless they describe equal classes."""
        if not self.method.adjusted or self.prior is None:
            return 0.0
        return self.prior.clamp_min(FLOOR).log()

    def label_matrix(self, transition: Tensor) -> Tensor:
        """The matrix that turns softmax(logits) into the distribution of the label, [K, K].

        Args:
            transition: The matrix if the logits are those of classes, [K, K].
        """
        if self.learned is not None:
            return self.learned.detach().softmax(1)
        if self.method.decoding == "nearest row" and self.method.matrix == "for decoding":
            return torch.eye(len(transition), device=transition.device)
        return transition

    def decoder(self) -> tuple[Tensor, Tensor] | None:
        """How logits become classes: the matrix that gives the distribution of the label, and the rows that it is
        compared with, [K, K] each. None: the largest logit is the class."""
        if self.method.decoding == "largest logit" or self.transition is None:
            return None
        rows = self.transition if self.learned is None else self.learned.detach().softmax(1)
        return self.label_matrix(self.transition), rows

    def decode(self, logits: Tensor) -> Tensor:
        """Scores of the classes, [N, K] -> [N, K]; the largest is the prediction."""
        return decode(logits, self.decoder())


def _check_prior(prior: Tensor, name: str) -> None:
    """Raise unless the prior [K] is a distribution."""
    total = float(prior.double().sum())
    if prior.ndim != 1 or not math.isclose(total, 1, abs_tol=1e-3) or not bool((prior >= 0).all()):
        raise UserError(
            f"The class prior for the loss {name} has shape {list(prior.shape)} and sums to {total:g}; it must have "
            "one share for each class, none of them negative, and sum to 1.",
            "prior",
        )


def decode(logits: Tensor, decoder: tuple[Tensor, Tensor] | None) -> Tensor:
    """Scores of the classes as a `BoundLoss.decoder` says; the logits themselves if it is None. [N, K] -> [N, K]."""
    if decoder is None:
        return logits
    matrix, rows = (part.to(logits.device, torch.float32) for part in decoder)
    check_shape("transition matrix", rows, (logits.shape[1],) * 2, "of this network")
    return nearest_row(logits.float().softmax(1) @ matrix, rows)


def build(
    loss: str | Loss,
    transition: Tensor | None = None,
    prior: Tensor | None = None,
    share: Tensor | None = None,
) -> BoundLoss:
    """Bind a loss to the matrix and the prior that it needs.

    Args:
        loss: A name of `LOSSES`, the name of an entry point in the group ``complementary.losses``, ``module:function``,
            or a function with the signature of `Loss`. It may have an attribute ``method``, a `registry.Method`.
        transition: Transition matrix of the labels, [K, K].
        prior: Share of each class, [K].
        share: Share of each label in the training set, [K].

    Returns:
        A module without parameters, unless the loss learns its matrix.
    """
    transition, prior, share = (None if x is None else torch.as_tensor(x) for x in (transition, prior, share))
    if isinstance(loss, str):
        method = method_of(loss)
        function: Loss = LOSSES[loss] if loss in LOSSES else load_plugin("losses", loss)
    else:
        name = getattr(loss, "__name__", type(loss).__name__)
        known = {id(function): LOSS_METHODS[key] for key, function in LOSSES.items()}
        method = known.get(id(loss), getattr(loss, "method", Method(name, name, "not of this package")))
        function = loss
    return BoundLoss(_adapted(function, method), method, transition, prior, share)


def _adapted(function: Loss, method: Method) -> Loss:
    """A function that takes logits and labels only, or these and the matrix, gets no more than it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not known for every callable
        return function
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return function
    taken = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if taken < 2:
        raise UserError(
            f"The loss {method.name} must take logits [B, K] and labels [B, K], but it takes {taken} arguments."
        )
    if taken >= 4:
        return function

    def with_fewer(
        logits: Tensor, excluded: Tensor, transition: Tensor | None = None, prior: Tensor | None = None
    ) -> Tensor:
        return function(logits, excluded) if taken == 2 else function(logits, excluded, transition)

    return with_fewer


def _keywords(function: Loss) -> set[str]:
    """Names of the keyword-only parameters of a loss."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in parameters if p.kind == p.KEYWORD_ONLY}


def apply(bound: BoundLoss, logits: Tensor, excluded: Tensor) -> Tensor:
    """Call a bound loss. A pure function, which is compiled once for all losses."""
    losses: Tensor = bound(logits, excluded)
    return losses
