"""Votes of rules (labeling functions, as in Snorkel) as answers: "is class k", "not class k", or no vote."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from complementary.data.dataset import Answers
from complementary.errors import UserError


@dataclass(frozen=True)
class RuleLabels:
    """What rules say about N examples.

    Attributes:
        index: Examples with a usable result, int64 [M]; the others got no votes, or votes that cancel each other out.
        excluded: Their complementary labels, uint8 [M, K].
        answers: The single votes, with the rules as annotators; examples are numbered as in ``index``.
    """

    index: Tensor
    excluded: Tensor
    answers: Answers


def rule_labels(
    votes: ArrayLike, classes: int, negative: bool | Sequence[bool] | NDArray[np.bool_], names: Sequence[str] = ()
) -> RuleLabels:
    """Combine the votes of rules by majority, as `complementary.data.matching` combines answers.

    Args:
        votes: The class that each rule votes about, int [N, M]; -1: no vote (Snorkel's abstain).
        classes: Number of classes K.
        negative: Which rules say "not this class", bool [M]; the others say "this class". A single value holds for all.
        names: Names of the rules; default: their numbers.

    Returns:
        The labels and the single votes.

    Example:
        >>> from complementary.data.rules import rule_labels
        >>> votes = [[0, -1], [0, 1], [-1, -1]]  # the first rule says "not class 0", the second "class 1"
        >>> found = rule_labels(votes, 3, negative=[True, False])
        >>> found.index.tolist(), found.excluded.tolist()
        ([0, 1], [[1, 0, 0], [1, 0, 1]])
    """
    matrix = np.asarray(votes)
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf" or not np.array_equal(matrix, np.round(matrix)):
        raise UserError(f"votes has type {matrix.dtype} and shape {list(matrix.shape)}; expected integers [N, M].")
    if matrix.size and not -1 <= matrix.min() <= matrix.max() < classes:
        raise UserError(
            f"votes range from {int(matrix.min())} to {int(matrix.max())}; expected classes 0 to {classes - 1}, or -1 "
            "for no vote."
        )
    rules = matrix.shape[1]
    against = np.broadcast_to(np.asarray(negative, bool), (rules,)) if np.ndim(negative) == 0 else np.asarray(negative)
    names = tuple(map(str, names)) or tuple(map(str, range(rules)))
    for what, found in (("negative", against), ("names", names)):
        if len(found) != rules:
            raise UserError(f"votes has {rules} columns, but {what} has {len(found)} entries; one per rule is needed.")
    example, rule = np.nonzero(matrix >= 0)
    chosen = torch.from_numpy(matrix[example, rule].astype(np.int64))
    one_hot = torch.nn.functional.one_hot(chosen, classes).to(torch.int8)
    says_not = torch.from_numpy(np.asarray(against, bool)[rule])[:, None]
    said = torch.where(says_not, one_hot, 1 - 2 * one_hot)  # [A, K]: 1 against, -1 for, 0 nothing
    margin = torch.zeros(len(matrix), classes, dtype=torch.int64)
    margin.index_add_(0, torch.from_numpy(example), said.long())
    excluded = margin > 0
    full = excluded.all(1)
    excluded[full] = margin[full] > margin[full].amin(1, keepdim=True)
    index = excluded.any(1).nonzero()[:, 0]
    annotator = torch.from_numpy(rule.astype(np.int64))
    time = torch.full((len(example),), float("nan"), dtype=torch.float64)
    every = Answers(torch.from_numpy(example), (said > 0).to(torch.uint8), annotator, time, names)
    answers = every.take(index) if len(index) and len(every) else every
    return RuleLabels(index, excluded[index].to(torch.uint8), answers)
