"""Complementary labels: how they are written and how they are drawn.

Inside the package supervision has one form, ``excluded``: a tensor [N, K] whose entry (i, k) is 1 if
example i is known *not* to be of class k.

    >>> import torch
    >>> from complementary import labels, transitions
    >>> truth = torch.tensor([0, 1, 2, 2])
    >>> excluded = labels.draw(truth, transitions.uniform(3), seed=0)
    >>> excluded.sum(1).tolist(), excluded[torch.arange(4), truth].tolist()
    ([1, 1, 1, 1], [0, 0, 0, 0])
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.rng import generator
from complementary.transitions import check_transition

PAPER_SEED = 1126


# --- drawing -------------------------------------------------------------------------------------


def draw(truth: Tensor, transition: Tensor, per_example: int = 1, seed: int = 0) -> Tensor:
    """Draw ``per_example`` distinct complementary labels for each true label.

    ``truth`` int [N], ``transition`` [K, K] -> ``excluded`` uint8 [N, K] with ``per_example`` ones a row.
    Several labels are drawn one after the other without replacement.
    """
    transition = check_transition(transition)
    classes = len(transition)
    check_classes(truth, classes, "A true label")
    truth = truth.long()  # narrower types index as masks, and overflow below
    possible = int((transition > 0).sum(1).min())
    if not 1 <= per_example <= min(possible, classes - 1):
        raise UserError(
            f"{per_example} labels per example were asked for, but with {classes} classes and this transition "
            f"matrix the number must lie between 1 and {min(possible, classes - 1)}."
        )
    source = generator(seed, "labels")
    if per_example == 1:
        return one_hot(_draw_one(truth, transition, source), classes)
    return _draw_several(truth, transition, per_example, source)


def _draw_one(truth: Tensor, transition: Tensor, source: torch.Generator) -> Tensor:
    """Inverse-CDF for all rows at once: row y of the CDF, shifted by y, makes one sorted list. -> int [N]."""
    classes = len(transition)
    shift = torch.arange(classes, dtype=torch.float64)
    cdf = transition.cumsum(1).clamp(max=1) + shift[:, None]
    point = truth + torch.rand(len(truth), dtype=torch.float64, generator=source)
    found = torch.searchsorted(cdf.flatten(), point, right=True) - truth * classes
    # rounding may step over a row's end: fall back to its last class that has any probability
    last = classes - 1 - (transition > 0).flip(1).int().argmax(1)
    return torch.minimum(found, last[truth])


def _draw_several(truth: Tensor, transition: Tensor, count: int, source: torch.Generator) -> Tensor:
    """The ``count`` largest of log T + Gumbel noise are draws without replacement. -> uint8 [N, K]."""
    classes = len(transition)
    excluded = torch.zeros(len(truth), classes, dtype=torch.uint8)
    log_transition = transition.log().float()
    for rows in torch.arange(len(truth)).split(max(1, 2**24 // classes)):  # bounded memory
        noise = -torch.empty(len(rows), classes).exponential_(generator=source).clamp_min(1e-30).log()
        chosen = (log_transition[truth[rows]] + noise).topk(count, dim=1).indices
        excluded[rows[:, None], chosen] = 1
    return excluded


def draw_as_paper(truth: Tensor, classes: int, seed: int = PAPER_SEED) -> Tensor:
    """Uniform labels exactly as the published experiments drew them: NumPy's legacy stream, in class order.

    ``truth`` int [N] -> ``excluded`` uint8 [N, K]. One Python call per example, because the stream is
    defined that way; `draw` is the fast one.
    """
    check_classes(truth, classes, "A true label")
    stream = np.random.RandomState(seed)
    others = [np.delete(np.arange(classes), k) for k in range(classes)]
    order = torch.argsort(truth, stable=True)
    labels = [stream.choice(others[int(y)], 1, replace=False)[0] for y in truth[order]]
    excluded = torch.zeros(len(truth), classes, dtype=torch.uint8)
    excluded[order, torch.from_numpy(np.asarray(labels, dtype=np.int64))] = 1
    return excluded


def marginal(transition: Tensor, per_example: int, draws: int = 20_000) -> Tensor:
    """How often each label appears for each class when ``per_example`` are drawn without replacement. [K, K].

    Rows sum to 1. For one label this is the matrix itself; for several it is estimated by drawing
    (``draws`` per class, standard error below .004): it uses the generating process only, no true labels.
    """
    if per_example == 1:
        return transition
    classes = len(transition)
    rows = [
        draw(torch.full((draws,), k), transition, per_example, seed=PAPER_SEED).double().mean(0) for k in range(classes)
    ]
    return torch.stack(rows) / per_example


# --- from the user, at the door ------------------------------------------------------------------


def to_excluded(labels: object, classes: int | None = None) -> Tensor:
    """Convert what users write to ``excluded`` uint8 [N, K], checking every entry.

    ``labels``: an int vector [N] (one label each), a list of sets or lists of class numbers (several
    each), or a 0/1 array [N, K]. ``classes``: K; by default the largest label plus one.
    """
    if hasattr(labels, "to_numpy"):  # pandas
        labels = labels.to_numpy()
    if isinstance(labels, np.ndarray) and labels.dtype == object and labels.ndim == 1:
        labels = labels.tolist()
    if isinstance(labels, (Tensor, np.ndarray)):
        array = labels.detach().cpu() if isinstance(labels, Tensor) else _as_integers(labels)
        excluded = _from_matrix(array, classes) if array.ndim == 2 else _from_vector(array, classes)
    elif isinstance(labels, Iterable):
        rows = list(labels)
        if any(_is_set(row) for row in rows):
            excluded = _from_sets(rows, classes)
        else:
            excluded = _from_vector(_as_integers(rows), classes)
    else:
        raise UserError(f"Labels must be a vector, a list of sets or a 0/1 matrix, found {type(labels).__name__}.")
    return check_excluded(excluded)


def _is_set(row: object) -> bool:
    return isinstance(row, Iterable) and not isinstance(row, (str, bytes)) and getattr(row, "ndim", 1) > 0


def check_excluded(excluded: Tensor) -> Tensor:
    """Return ``excluded`` [N, K] if every example excludes at least one class and not all of them."""
    if len(excluded) == 0:
        raise UserError(f"Labels have shape {list(excluded.shape)}; there must be at least one example, N > 0.")
    count = excluded.sum(1)
    for bad, what in (
        (count == 0, "excludes no class"),
        (count == excluded.shape[1], "excludes every class"),
    ):
        if bad.any():
            raise UserError(
                f"Example {int(bad.nonzero()[0])} {what} ({int(bad.sum())} such in all); each must exclude "
                f"between 1 and {excluded.shape[1] - 1} of the {excluded.shape[1]} classes. Fix or drop them."
            )
    return excluded


def check_classes(values: Tensor, classes: int, what: str = "A label") -> None:
    """Raise unless every entry of the int tensor ``values`` lies in 0 .. classes - 1."""
    outside = (values < 0) | (values >= classes)
    if outside.any():
        where = int(outside.nonzero()[0][0])
        found = int(values[outside][0])
        raise UserError(
            f"{what} is {found} (example {where}), but with {classes} classes it must lie in 0..{classes - 1}."
        )


def _as_integers(rows: object) -> Tensor:
    try:
        return torch.from_numpy(np.array(rows))  # a copy: torch takes no read-only or reversed array
    except (TypeError, ValueError):
        raise UserError(
            "Labels must be whole numbers, 0 to K-1; found something else among them. Number your classes first."
        ) from None


def _from_vector(vector: Tensor, classes: int | None) -> Tensor:
    if vector.ndim != 1 or len(vector) == 0:
        raise UserError(f"Labels have shape {list(vector.shape)}; wanted one label per example, [N] with N > 0.")
    if vector.is_floating_point():
        if not bool((torch.isfinite(vector) & (vector == vector.round())).all()):
            raise UserError(
                "Labels must be whole numbers (class indices); found a fraction, NaN or infinity among them."
            )
        vector = vector.long()
    return one_hot(vector.long(), classes or int(vector.max()) + 1)


def _from_matrix(matrix: Tensor, classes: int | None) -> Tensor:
    if classes is not None and matrix.shape[1] != classes:
        raise UserError(
            f"A label matrix with {matrix.shape[1]} columns was given for {classes} classes; it needs one 0/1 "
            "column per class. For several class numbers per row pass a list of sets instead."
        )
    if not bool(((matrix == 0) | (matrix == 1)).all()):
        raise UserError(
            "A label matrix must hold only 0 and 1, one column per class. For several class numbers per row "
            "pass a list of sets instead."
        )
    return matrix.to(torch.uint8)


def _from_sets(rows: list[Iterable[int]], classes: int | None) -> Tensor:
    for i, row in enumerate(rows):
        if not _is_set(row):
            raise UserError(f"Example {i} is {row!r}, but others are sets; give every example a set of whole numbers.")
    listed = [list(row) for row in rows]
    for i, row in enumerate(listed):
        if any(_is_set(label) for label in row):
            raise UserError(f"Example {i} holds {row}; a set must hold whole numbers (class indices) only.")
        if len(set(row)) < len(row):
            raise UserError(
                f"Example {i} lists a class twice ({row}); give each class once, or, if this is a 0/1 matrix, "
                "pass it as an array."
            )
    flat = _as_integers([label for row in listed for label in row]) if any(listed) else torch.zeros(0)
    if len(flat) and flat.is_floating_point():
        raise UserError("Labels must be whole numbers (class indices); found fractions among them.")
    owner = torch.arange(len(listed)).repeat_interleave(torch.tensor([len(row) for row in listed]))
    classes = classes or (int(flat.max()) + 1 if len(flat) else 1)
    _check_owned(flat.long(), owner, classes)
    excluded = torch.zeros(len(listed), classes, dtype=torch.uint8)
    excluded[owner, flat.long()] = 1
    return excluded


def _check_owned(flat: Tensor, owner: Tensor, classes: int) -> None:
    outside = (flat < 0) | (flat >= classes)
    if outside.any():
        found, example = int(flat[outside][0]), int(owner[outside][0])
        raise UserError(
            f"A label is {found} (example {example}), but with {classes} classes it must lie in 0..{classes - 1}."
        )


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Int labels [N] -> uint8 [N, K]; every label is checked."""
    check_classes(labels, classes)
    excluded = torch.zeros(len(labels), classes, dtype=torch.uint8)
    excluded[torch.arange(len(labels)), labels.long()] = 1
    return excluded
