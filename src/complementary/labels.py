"""Complementary labels: conversion, checks and random draws.

The package stores complementary labels in one form, ``excluded``: a tensor [N, K] whose entry (i, k) is 1 if example i
is known *not* to be of class k.

    >>> import torch
    >>> from complementary import labels, transitions
    >>> truth = torch.tensor([0, 1, 2, 2])
    >>> excluded = labels.draw(truth, transitions.uniform(3), seed=0)
    >>> excluded.sum(1).tolist(), excluded[torch.arange(4), truth].tolist()
    ([1, 1, 1, 1], [0, 0, 0, 0])
"""

import difflib
import logging
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from complementary.errors import UserError
from complementary.rng import generator
from complementary.transitions import check_transition

PAPER_SEED = 1126
NOT_PREFIX = re.compile(r"(?:!|¬|not\s+(?:an?\s+)?)\s*(\S.*)", re.IGNORECASE | re.DOTALL)
YES_PREFIX = re.compile(r"yes[\s:,]+\S.*", re.IGNORECASE | re.DOTALL)
MAX_INFERRED = 20_000  # classes; a larger label is taken for a mistake unless the number of classes is given
MAX_WITH_GAPS = 1_000  # classes, if some of them never occur
FEWEST_LABELS = 5  # per class, or K-1 if that is more; with fewer, even good features would not help
ENOUGH_LABELS = 10  # per class: if all classes were equally frequent, each would occur
SOME_LABELS = 3  # per class: if all classes were equally frequent, about 1 in 20 would not occur
LISTED = 12  # labels in a message
log = logging.getLogger(__name__)
DISTINCT_ROWS = 20  # a column of a table with as many different names names the examples, not classes
SIGNS = (-1, 1)  # the usual numbers of two classes
MISSING_TEXTS = ("nan", "<NA>")  # how pandas writes a missing label as text

# --- random draws -----------------------------------------------------------------------------------------------------


def draw(truth: Tensor, transition: Tensor, per_example: int = 1, seed: int = 0) -> Tensor:
    """Draw complementary labels.

    Args:
        truth: True labels, int [N].
        transition: Probability of each label given the true one, [K, K].
        per_example: Number of labels per example; several are drawn one after the other without replacement.
        seed: The seed.

    Returns:
        ``excluded``, uint8 [N, K] with ``per_example`` ones per row.
    """
    transition = check_transition(transition)
    classes = len(transition)
    check_classes(truth, classes, "A true label")
    truth = truth.long()  # uint8 would index as a mask, and narrow types overflow below
    possible = int((transition > 0).sum(1).min())
    if not 1 <= per_example <= min(possible, classes - 1):
        raise UserError(
            f"The option per_example is {per_example}, but with {classes} classes and this transition matrix it must "
            f"be between 1 and {min(possible, classes - 1)}.",
            "per_example",
        )
    source = generator(seed, "labels")
    if per_example == 1:
        return one_hot(_draw_one(truth, transition, source), classes)
    return _draw_several(truth, transition, per_example, source)


def _draw_one(truth: Tensor, transition: Tensor, source: torch.Generator) -> Tensor:
    """Invert the CDFs of all classes with one search: the rows of the CDF, row y shifted by y, are one sorted list."""
    classes = len(transition)
    shift = torch.arange(classes, dtype=torch.float64)
    cdf = transition.cumsum(1).clamp(max=1) + shift[:, None]
    point = truth + torch.rand(len(truth), dtype=torch.float64, generator=source)
    found = torch.searchsorted(cdf.flatten(), point, right=True) - truth * classes
    # rounding may step over the end of a row: use the last class with a positive probability instead
    last = classes - 1 - (transition > 0).flip(1).int().argmax(1)
    return torch.minimum(found, last[truth])


def _draw_several(truth: Tensor, transition: Tensor, count: int, source: torch.Generator) -> Tensor:
    """Draw without replacement: the ``count`` largest of log T + Gumbel noise. uint8 [N, K]."""
    classes = len(transition)
    excluded = torch.zeros(len(truth), classes, dtype=torch.uint8)
    log_transition = transition.log().float()
    for rows in torch.arange(len(truth)).split(max(1, 2**24 // classes)):  # bounded memory
        noise = -torch.empty(len(rows), classes).exponential_(generator=source).clamp_min(1e-30).log()
        chosen = (log_transition[truth[rows]] + noise).topk(count, dim=1).indices
        excluded[rows[:, None], chosen] = 1
    return excluded


def draw_as_paper(truth: Tensor, classes: int, seed: int = PAPER_SEED) -> Tensor:
    """Draw one uniform label per example exactly as the published experiments did.

    They use NumPy's legacy generator, with one call per example in class order. `draw` is much faster.

    Args:
        truth: True labels, int [N].
        classes: Number of classes K.
        seed: The seed.

    Returns:
        ``excluded``, uint8 [N, K].
    """
    check_classes(truth, classes, "A true label")
    stream = np.random.RandomState(seed)
    others = [np.delete(np.arange(classes), k) for k in range(classes)]
    order = torch.argsort(truth, stable=True)
    labels = [stream.choice(others[int(y)], 1, replace=False)[0] for y in truth[order]]
    excluded = torch.zeros(len(truth), classes, dtype=torch.uint8)
    excluded[order, torch.from_numpy(np.asarray(labels, dtype=np.int64))] = 1
    return excluded


def marginal(transition: Tensor, per_example: int) -> Tensor:
    """Distribution of a label if several are drawn without replacement. It is exact, not simulated.

    Drawing one after the other without replacement is a race: label k arrives after an exponential time of rate
    T[y, k], and the first ``per_example`` arrivals are drawn. Label k is among them if, when it arrives, fewer than
    ``per_example`` others have arrived. Their number has a Poisson binomial distribution; the integral over the time is
    a sum over a grid of its logarithm, which is accurate to 1e-9 or better.

    Args:
        transition: Distribution of the first label, [K, K].
        per_example: Number of labels per example.

    Returns:
        How often each label appears for each class, float64 [K, K]; rows sum to 1. For one label it is ``transition``
        itself.
    """
    if per_example == 1:
        return transition
    transition = check_transition(transition)
    return torch.stack([_inclusion(row, per_example) for row in transition]) / per_example


def _inclusion(chance: Tensor, count: int) -> Tensor:
    """Probability of each label to be among ``count`` labels drawn without replacement: [K] -> float64 [K]."""
    found = torch.zeros_like(chance)
    possible = chance.nonzero()[:, 0]
    rate = chance[possible]
    step, last = 0.25, float(torch.log(50 / rate.min()))
    grid = torch.arange(-40.0, last + step, step, dtype=torch.float64)
    time = grid.exp()  # [G]
    arrived = -torch.expm1(-time[:, None] * rate)  # [G, J]: probability that a label has arrived
    none = torch.zeros(len(time), count, dtype=torch.float64)
    none[:, 0] = 1
    before, after = [none], [none]  # distribution of the number of arrivals among the labels before and after each
    for j in range(len(rate) - 1):
        before.append(_one_more(before[-1], arrived[:, j]))
        after.append(_one_more(after[-1], arrived[:, len(rate) - 1 - j]))
    after.reverse()
    for j, (b, a) in enumerate(zip(before, after, strict=True)):
        fewer = (b * a.cumsum(1).flip(1)).sum(1)  # [G]: fewer than count others have arrived
        density = rate[j] * time * torch.exp(-rate[j] * time)  # of the logarithm of the time
        found[possible[j]] = step * (density * fewer).sum()
    return found


def _one_more(distribution: Tensor, chance: Tensor) -> Tensor:
    """Add an event of probability ``chance`` [G] to the distribution of a count, [G, count] -> [G, count]."""
    grown = distribution * (1 - chance)[:, None]
    grown[:, 1:] += distribution[:, :-1] * chance[:, None]
    return grown


# --- conversion and checks --------------------------------------------------------------------------------------------


def to_excluded(labels: object, classes: int | Sequence[Hashable] | None = None) -> Tensor:
    """Convert complementary labels to ``excluded`` and check every entry.

    Args:
        labels: As in `encode`.
        classes: As in `encode`.

    Returns:
        ``excluded``, uint8 [N, K].
    """
    return encode(labels, classes).excluded


class Encoded(NamedTuple):
    """Complementary labels and the classes of their columns.

    Attributes:
        excluded: uint8 [N, K]; a 1 means "not this class".
        classes: The class of each column: names, or the numbers 0 to K-1.
    """

    excluded: Tensor
    classes: tuple[Hashable, ...]


def encode(labels: object, classes: int | Sequence[Hashable] | None = None) -> Encoded:
    """Convert complementary labels in any form to ``excluded``, and find out which classes there are.

    Args:
        labels: The classes that the examples do not belong to, as numbers from 0 or as names: a vector [N] (one per
            example), a list of sets or lists (several per example), or a 0/1 array [N, K]. Also a pandas Series of
            numbers, names, categories or lists, a DataFrame of names (several columns), or one of 0/1 whose columns are
            the classes. If all labels begin with "not " or "!", that is removed: "not cat" is the same as "cat".
        classes: The classes in the order of the columns, or their number K. None: for names, the categories of a pandas
            Series, the columns of a DataFrame of 0/1, else all names, sorted; for numbers, 0 to the largest one. It is
            required if some of these numbers do not occur although there are ten labels per class, or most of them
            although there are three.

    Returns:
        The labels and the classes.

    Example:
        >>> from complementary import labels
        >>> excluded, classes = labels.encode([{"cat", "dog"}, {"ship"}, {"cat"}])
        >>> classes, excluded.tolist()
        (('cat', 'dog', 'ship'), [[1, 1, 0], [0, 0, 1], [1, 0, 0]])
    """
    if classes is not None and (classes if isinstance(classes, int) else len(classes)) < 2:
        raise UserError(f"classes is {classes!r}, but there must be at least two classes.", "classes")
    labels, found = _plain(labels)
    names = found if classes is None or isinstance(classes, int) else _check_names(classes)
    if found is not None and names is not None and isinstance(labels, Tensor):
        labels = _order_columns(labels, found, names)
    count = classes if isinstance(classes, int) else None if names is None else len(names)
    if count is not None and names is not None and count != len(names):
        shown = _quoted(names)
        raise UserError(
            f"The labels have {len(names)} classes ({shown}), but classes is {count}; they must match.", "classes"
        )
    if isinstance(labels, list):
        rows = [list(row) if _is_set(row) else row for row in labels]
        _check_missing(rows)
        if names is None and count in (None, 2) and _are_signs(rows):
            names, count = SIGNS, 2
        if any(isinstance(label, str) for row in rows for label in (row if isinstance(row, list) else [row])):
            return _from_names(rows, names, count)
        if names is not None and not any(isinstance(name, str) for name in names):  # other numbers, such as 10, 20, 30
            return _from_names(rows, names, count)
        _check_positions(names)
        several = any(isinstance(row, list) for row in rows)
        excluded = _from_sets(labels, count) if several else _from_vector(_as_tensor(labels), count)
    elif isinstance(labels, Tensor):
        if labels.ndim == 1 and labels.dtype != torch.bool and _are_integers(labels):
            labels = labels.long()
            if names is None and count in (None, 2) and tuple(labels.unique().tolist()) == SIGNS:
                names, count = SIGNS, 2
            if names is not None and not any(isinstance(name, str) for name in names):
                return _from_names(labels.tolist(), names, count)
            _check_positions(names)
        excluded = _from_matrix(labels, count) if labels.ndim == 2 else _from_vector(labels, count)
    else:
        raise UserError(f"Labels must be a vector, a list of sets or a 0/1 matrix, found {type(labels).__name__}.")
    return Encoded(check_excluded(excluded), names or tuple(range(excluded.shape[1])))


def _are_signs(rows: list[Any]) -> bool:
    """Whether the labels, one per example or a list of them, are -1 and 1, and both occur."""
    flat = [label for row in rows for label in (row if isinstance(row, list) else [row])]
    known = all(isinstance(x, (int, float, np.integer, np.floating)) and x in SIGNS for x in flat)
    return known and {int(x) for x in flat} == set(SIGNS)


def _are_integers(values: Tensor) -> bool:
    """Whether all values are integers, such as 2 or 2.0."""
    return not values.is_floating_point() or bool((torch.isfinite(values) & (values == values.round())).all())


def _order_columns(matrix: Tensor, columns: tuple[Hashable, ...], classes: tuple[Hashable, ...]) -> Tensor:
    """The columns of a 0/1 DataFrame, [N, K], in the order of the classes."""
    if set(columns) == set(classes):
        return matrix[:, [columns.index(name) for name in classes]]
    raise UserError(
        f"The labels have the columns {_quoted(columns)}, but the classes are {_quoted(classes)}; keep one column for "
        "each class, with the same name, or pass an array whose columns are in the order of the classes."
    )


def _quoted(names: Sequence[Hashable]) -> str:
    """The first names, in quotes if they are text: ``'0'`` is not ``0``."""
    return ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")


def _check_missing(rows: list[Any]) -> None:
    """Raise if an example has no label."""
    for i, row in enumerate(rows):
        if type(row) not in (int, list) and _is_missing(row):
            raise _no_label(i, row)


def _no_label(example: int, label: object) -> UserError:
    return UserError(f"Example {example} has no label ({label!r}); leave such examples out of X and not_y.")


def _check_positions(names: tuple[Hashable, ...] | None) -> None:
    """Raise if numbers as labels may mean positions of the classes, or their names, which are other numbers."""
    texts = [name for name in names or () if isinstance(name, str) and name.isdecimal()]
    wrong = next((k for k, name in enumerate(texts) if int(name) != k), None)
    if names and wrong is not None and len(texts) == len(names):
        raise UserError(
            f"The labels are numbers, but the classes are the texts {_quoted(names)}: {int(texts[wrong])} may mean the "
            f"class {texts[wrong]!r} or a position. Pass labels and classes both as text, or both as numbers.",
            "classes",
        )


def _plain(labels: Any) -> tuple[Any, tuple[Hashable, ...] | None]:
    """Labels as a tensor or a list, and the classes if the labels name them (pandas)."""
    names = None
    if hasattr(labels, "columns") and hasattr(labels, "to_numpy"):  # DataFrame
        columns, labels = tuple(labels.columns), _zeros_and_ones(labels.to_numpy())
        _check_columns(columns, labels)
        if labels.dtype.kind in "biuf":
            names = None if columns == tuple(range(len(columns))) else _check_names(columns)  # 0 to K-1: not named
        else:
            return [[label for label in row if not _is_missing(label)] for row in labels.tolist()], None
    elif hasattr(labels, "cat") and hasattr(labels.cat, "categories"):  # Series of categories
        categories = labels.cat.categories.tolist()
        usual = all(isinstance(name, str) and not NOT_PREFIX.fullmatch(name) for name in categories)
        names = _check_names(categories) if usual else None
        labels = labels.tolist()
    elif hasattr(labels, "to_numpy"):  # Series
        labels = labels.to_numpy()
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if isinstance(labels, np.ndarray):
        labels = labels.tolist() if labels.dtype.kind in "OU" and labels.ndim in (1, 2) else _as_tensor(labels)
    elif isinstance(labels, Tensor):
        labels = labels.detach().cpu()
    elif isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)):
        labels = list(labels)
    return labels, names


def _zeros_and_ones(cells: Any) -> Any:
    """The cells of a DataFrame [N, M]; as numbers if all are 0 and 1, whatever the type of the columns."""
    first = next((cell for cell in cells.flat if not _is_missing(cell)), None)
    if cells.dtype.kind in "biuf" or not _is_zero_or_one(first):  # names of classes: nothing more to look at
        return cells
    missing = np.array([[_is_missing(cell) for cell in row] for row in cells.tolist()])
    if not all(_is_zero_or_one(cell) for cell in cells[~missing]):
        return cells
    if missing.any():
        row, column = np.argwhere(missing)[0]
        raise UserError(
            f"The labels are a table of 0 and 1, but row {row}, column {column} is missing; fill such cells first, for "
            "example with fillna(0): not excluded."
        )
    return cells.astype(np.uint8)


def _check_columns(columns: tuple[Hashable, ...], cells: Any) -> None:
    """Raise if some columns of a DataFrame, cells [N, M], are not labels, such as names of files or scores."""
    if cells.dtype.kind in "iuf":
        for name, column in zip(columns, cells.T, strict=True):
            if len(wrong := column[(column != 0) & (column != 1)]):
                raise UserError(
                    f"The column {name!r} of the labels contains {wrong[0]:g}, but a table of numbers must contain "
                    "only 0 and 1, one column per class. Leave out other columns; pass a column of class numbers alone."
                )
        return
    firsts = [next((cell for cell in column if not _is_missing(cell)), None) for column in cells.T]
    texts = [name for name, first in zip(columns, firsts, strict=True) if isinstance(first, str)]
    others = [name for name, first in zip(columns, firsts, strict=True) if not isinstance(first, str | None)]
    if texts and others:
        raise UserError(
            f"The labels have columns of names ({_quoted(texts)}) and of other values ({_quoted(others)}); keep only "
            "the columns that contain labels."
        )
    for name, column in zip(columns, cells.T, strict=True):
        if len(texts) > 1 and len(column) >= DISTINCT_ROWS and len(set(map(str, column))) == len(column):
            raise UserError(
                f"The column {name!r} of the labels has a different name in each of its {len(column)} rows, so it "
                "does not contain classes. Keep only the columns that contain labels."
            )
    kinds = [{cell for cell in column if not _is_missing(cell)} for column in cells.T]
    for name, found in zip(columns[1:], kinds[1:], strict=True):
        if found and not any(found & other for other in kinds if other is not found):
            log.warning(
                "The column %r of the labels shares no class with the others, and is read as classes: %s. If it is "
                "something else, leave it out.",
                name,
                _quoted(sorted(map(str, found))[:3]),
            )


def _is_zero_or_one(cell: object) -> bool:
    return isinstance(cell, (int, float, np.generic)) and cell in (0, 1)


def _is_missing(label: object) -> bool:
    """None, NaN, pandas' NA or an empty text."""
    if isinstance(label, str):
        return not label
    return label is None or (isinstance(label, float) and label != label) or str(label) == "<NA>"


def _check_names(names: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The names of classes as a tuple; each must be there once."""
    listed = tuple(name.item() if isinstance(name, np.generic) else name for name in names)
    repeated = (
        sorted({str(name) for name in listed if listed.count(name) > 1}) if len(set(listed)) < len(listed) else []
    )
    if repeated:
        raise UserError(f"classes contains {', '.join(repeated)} more than once; list each class once.", "classes")
    return listed


def _from_names(rows: list[Any], names: tuple[Hashable, ...] | None, count: int | None) -> Encoded:
    """Labels by name: one per example, or a list of them; ``names``: all classes, if known."""
    example: list[int] = []
    flat: list[Hashable] = []
    for i, row in enumerate(rows):
        for label in row if isinstance(row, list) else [row]:
            if not isinstance(label, Hashable):
                raise UserError(f"Example {i} contains {label!r}, but a set must contain names of classes only.")
            if _is_missing(label) or (names is None and label in MISSING_TEXTS):
                raise _no_label(i, label)
            if isinstance(label, float) and label.is_integer():
                label = int(label)
            if names is None and not isinstance(label, str):
                raise UserError(f"Example {i} is {label!r}, but other labels are names; use names or numbers only.")
            example.append(i)
            flat.append(label)
    flat = _without_not(flat, names)
    if names is None:
        _check_negations({label for label in flat if isinstance(label, str)})
        names = tuple(sorted({str(label) for label in flat}))
        if count is not None and count != len(names):
            raise UserError(
                f"The labels name {len(names)} classes, but classes is {count}; pass the list of all names instead.",
                "classes",
            )
    number = {name: k for k, name in enumerate(names)}
    for i, label in zip(example, flat, strict=True):
        if label not in number:
            raise UserError(f"Example {i}: {unknown_class(label, names)}", "classes")
    excluded = torch.zeros(len(rows), len(names), dtype=torch.uint8)
    excluded[torch.tensor(example, dtype=torch.long), torch.tensor([number[x] for x in flat], dtype=torch.long)] = 1
    return Encoded(check_excluded(excluded), names)


def _without_not(flat: list[Hashable], names: tuple[Hashable, ...] | None) -> list[Hashable]:
    """The class names in answers such as ``not cat`` or ``!cat``, if all labels are written so; else the labels."""
    distinct = {label: NOT_PREFIX.fullmatch(label) if isinstance(label, str) else None for label in set(flat)}
    if names is not None and all(label in names for label in distinct):
        return flat
    if all(distinct.values()):
        return [distinct[label][1] for label in flat]  # type: ignore[index]
    if any(distinct.values()) and all(found or YES_PREFIX.fullmatch(str(label)) for label, found in distinct.items()):
        raise UserError("Some labels say yes and some say not; convert them first with labels.from_answers(yes, no).")
    return flat


def _check_negations(names: set[str]) -> None:
    """Raise if some labels are written as ``cat`` and others as ``not cat``; two classes may be called so."""
    for name in sorted(names) if len(names) > 2 else ():
        if (found := NOT_PREFIX.fullmatch(name)) and found[1] in names:
            raise UserError(
                f"Some labels are {found[1]!r} and others {name!r}. A label names a class that the example does not "
                'belong to, with or without "not"; write all of them in the same way, or pass classes.'
            )


def unknown_class(name: object, classes: Sequence[Hashable]) -> str:
    """A sentence about a class name that is not known, with the most similar one."""
    if (same := next((k for k in classes if str(k) == str(name)), None)) is not None:  # 0 and '0'
        return (
            f"the label {name!r} is {_kind(name)}, but the class {same!r} is {_kind(same)}; convert the labels or the "
            "classes, so that both are of the same type."
        )
    if (whole := str(name).removesuffix(".0")) in map(str, classes):  # pandas writes 2 as 2.0 beside missing values
        return f"the class {name!r} is not known; did you mean {whole!r}?"
    similar = difflib.get_close_matches(str(name).casefold(), [str(k).casefold() for k in classes], 1, 0.6)
    if similar:
        nearest = next(str(k) for k in classes if str(k).casefold() == similar[0])
        return f"the class {name!r} is not known; did you mean {nearest!r}?"
    shown = ", ".join(map(str, classes[:12])) + (" …" if len(classes) > 12 else "")
    return f"the class {name!r} is not known; the classes are {shown}."


def _kind(label: object) -> str:
    if isinstance(label, str):
        return "text"
    return "a number" if isinstance(label, int | float) else f"of type {type(label).__name__}"


def from_answers(
    yes: Sequence[object] | None = None,
    no: Sequence[object] | None = None,
    classes: int | Sequence[Hashable] | None = None,
) -> Encoded:
    """Convert answers of both kinds, "it is a cat" and "it is not a dog", to complementary labels.

    Args:
        yes: For each example the class that it is, or a set of classes of which it is one; None or an empty set: no
            such answer. A single class excludes the K-1 others.
        no: For each example the class or the set of classes that it is not; None or an empty set: no such answer.
        classes: The classes, or their number; None: all that occur, sorted.

    Returns:
        The labels and the classes.

    Example:
        >>> from complementary import labels
        >>> excluded, classes = labels.from_answers(yes=["cat", None, None], no=[None, {"dog"}, {"cat", "ship"}])
        >>> classes, excluded.tolist()
        (('cat', 'dog', 'ship'), [[0, 1, 1], [0, 1, 0], [1, 0, 1]])
    """
    given = [list(answers) for answers in (yes, no) if answers is not None]
    if not given or len({len(answers) for answers in given}) > 1:
        raise UserError(
            f"yes and no have {' and '.join(str(len(a)) for a in given) or 'no'} answers; give one or both."
        )
    positive, negative = ([_label_set(a) for a in (answers or [None] * len(given[0]))] for answers in (yes, no))
    if classes is None:
        found: set[Any] = set().union(*positive, *negative)
        if found == set(SIGNS):
            classes = SIGNS
        elif any(isinstance(label, str) for label in found):
            classes = sorted(map(str, found))
        else:
            numbers: list[Any] = [k for answer in (*positive, *negative) for k in answer]
            _check_largest(max(numbers, default=0))
            classes = _infer_classes(torch.tensor(numbers).long())
    everything = set(range(classes)) if isinstance(classes, int) else set(classes)
    for i, (one, other) in enumerate(zip(positive, negative, strict=True)):
        if one & other:
            name = sorted(map(str, one & other))[0]
            raise UserError(f"Example {i} is answered with yes and with no for {name}; correct one of the two answers.")
        if unknown := [k for k in one if k not in everything]:
            raise UserError(f"Example {i}: {unknown_class(unknown[0], sorted(everything, key=str))}", "classes")
    rows = [(everything - one if one else set()) | other for one, other in zip(positive, negative, strict=True)]
    return encode(rows, classes)


def _label_set(answer: Any) -> set[Hashable]:
    """The names or numbers in an answer; numbers as integers."""
    found: set[Hashable] = set()
    for label in answer if _is_set(answer) else [answer]:
        if _is_missing(label):
            continue
        if isinstance(label, float | np.number) and float(label).is_integer():
            label = int(label)
        if not isinstance(label, str | int):
            raise UserError(f"The answer {answer!r} is not a class: expected a name, a number or a set of them.")
        found.add(label)
    return found


def _is_set(row: object) -> bool:
    return isinstance(row, Iterable) and not isinstance(row, (str, bytes)) and getattr(row, "ndim", 1) > 0


def check_excluded(excluded: Tensor) -> Tensor:
    """Raise unless every example excludes at least one class and not all of them.

    Args:
        excluded: Complementary labels, 0/1 [N, K].

    Returns:
        ``excluded`` itself.
    """
    if len(excluded) == 0:
        raise UserError(f"Labels have shape {list(excluded.shape)}; there must be at least one example, N > 0.")
    count, classes = excluded.sum(1), excluded.shape[1]
    if classes < 2 and bool((count > 0).all()):
        raise UserError(
            "The labels name one class; at least two are needed. Pass all of them: classes=[...].", "classes"
        )
    for bad, what in ((count == 0, "no class"), (count == classes, "every class")):
        if bad.any():
            raise UserError(
                f"Example {int(bad.nonzero()[0])} excludes {what} ({int(bad.sum())} such examples); each must exclude "
                f"between 1 and {classes - 1} of the {classes} classes. Correct or remove them."
            )
    return excluded


def describe_rare_labels(excluded: Tensor, classes: Sequence[str]) -> str | None:
    """Describe classes that are hardly ever excluded, which is usually a mistake in the labels.

    Little or nothing contradicts a model that always predicts such a class. Typical causes are labels that start at 1
    and misspelled class names.

    Args:
        excluded: Complementary labels, 0/1 [N, K].
        classes: Names of the K classes.

    Returns:
        A sentence, or None if every class is excluded at least a twentieth as often as the average class.
    """
    counts = excluded.sum(0, dtype=torch.long).tolist()
    average = sum(counts) / len(counts)
    rare = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < average / 20]
    if not rare:
        return None
    more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
    hint = (
        " Do the labels start at 1 instead of 0?"
        if counts[0] == 0 and classes[0] in ("0", "1")
        else " Is a name misspelled?"
    )
    return (
        f"Labels exclude some classes rarely or never (average: {average:.0f} times): {', '.join(rare[:5])}{more}. A "
        f"model that always predicts such a class is hardly ever contradicted.{hint}"
    )


def describe_few_labels(excluded: Tensor) -> str | None:
    """Say if there are too few labels to learn from.

    If all examples of a class could be told from the others, n labels of them, drawn uniformly, would leave a share of
    about exp(-n / (K-1)) of the other classes possible. With n = K-1 this is a third.

    Args:
        excluded: Complementary labels, 0/1 [N, K].

    Returns:
        Two sentences, or None if there are at least `FEWEST_LABELS` and K-1 labels per class.
    """
    classes, found = excluded.shape[1], int(excluded.sum())
    wanted = classes * max(FEWEST_LABELS, classes - 1)
    if found >= wanted:
        return None
    return (
        f"There {'is' if found == 1 else 'are'} only {found:,} label{'' if found == 1 else 's'} for training with "
        f"{classes} classes, so the classifier may be hardly better than chance. Use at least {wanted:,}, "
        f"{wanted // classes} per class."
    )


def check_classes(values: Tensor, classes: int, what: str = "A label", examples: Tensor | None = None) -> None:
    """Raise unless every label is between 0 and K - 1.

    Args:
        values: Labels, int [M].
        classes: Number of classes K.
        what: Start of error messages.
        examples: The example that each label belongs to, int [M]; None: one label per example.
    """
    outside = (values < 0) | (values >= classes)
    if outside.any():
        place = int(outside.nonzero()[0])
        example = place if examples is None else int(examples[place])
        raise UserError(
            f"{what} is {int(values[place])} (example {example}), but with {classes} classes it must be between 0 and "
            f"{classes - 1}."
        )


def _as_tensor(rows: object) -> Tensor:
    try:
        return torch.from_numpy(np.array(rows))  # a copy: torch takes no read-only or reversed array
    except (TypeError, ValueError):
        raise UserError("Labels must be integers from 0 to K-1 or names of classes, but some are neither.") from None


def _from_vector(vector: Tensor, classes: int | None) -> Tensor:
    if vector.ndim != 1 or len(vector) == 0:
        raise UserError(f"Labels have shape {list(vector.shape)}, but there must be one label per example, [N].")
    _check_integers(vector, torch.arange(len(vector)))
    return one_hot(vector.long(), classes or _infer_classes(vector.long()))


def _check_integers(values: Tensor, example: Tensor) -> None:
    """Raise unless all labels are integers, such as 2 or 2.0.

    Args:
        values: Labels, [M].
        example: The example that each belongs to, int [M].
    """
    if _are_integers(values):
        return
    bad = int((~(torch.isfinite(values) & (values == values.round()))).nonzero()[0])
    i, value = int(example[bad]), float(values[bad])
    if math.isnan(value):
        raise _no_label(i, value)
    raise UserError(f"Labels must be integers (class indices), but example {i} has the label {value:g}.")


def _infer_classes(found: Tensor) -> int:
    """Number of classes if the labels, int [M], are class indices; these are dense: gaps and huge labels are errors."""
    largest = int(found.max()) if len(found) else 0
    if (gaps := describe_gaps(found)) is not None:
        values = found.unique().tolist()
        names = str(values) if len(values) <= LISTED else "[...]"
        raise UserError(
            f"The labels are {gaps}. If they are names of classes, pass classes={names}; if there are {largest + 1} "
            f"classes, pass classes={largest + 1}.",
            "classes",
        )
    _check_largest(largest)
    return largest + 1


def _check_largest(largest: int) -> None:
    """Raise if the largest label is too large for a class index."""
    if largest >= MAX_INFERRED:
        raise UserError(
            f"The largest label is {largest}, which would mean {largest + 1} classes. Labels must be class indices, 0 "
            "to K-1; number the classes, or pass the number of classes."
        )


def describe_gaps(found: Tensor) -> str | None:
    """Describe numbers that can hardly be class indices, because classes would never occur although they should.

    Years, 10, 20 and 30, or numbers from 1 are names of classes. A class should occur if there are `ENOUGH_LABELS` per
    class, and most classes should with `SOME_LABELS`. With fewer labels, gaps are accepted, but not if there would be
    more than `MAX_WITH_GAPS` classes.

    Args:
        found: Class indices, int [M].

    Returns:
        The end of a sentence about the labels, or None if all classes occur, or if there are too few labels to tell.
    """
    values = found.unique()
    if not len(values) or int(values[0]) < 0:  # negative labels are reported elsewhere
        return None
    classes = int(values[-1]) + 1
    missing = classes - len(values)
    needed = ENOUGH_LABELS if 2 * missing <= classes else SOME_LABELS
    if not missing or (len(found) < needed * classes and classes <= MAX_WITH_GAPS):
        return None
    shown = ", ".join(map(str, values[:LISTED].tolist())) + (", …" if len(values) > LISTED else "")
    return f"{shown}. As class indices, which start at 0, they leave {missing} of {classes} classes without a label"


def _from_matrix(matrix: Tensor, classes: int | None) -> Tensor:
    if classes is not None and matrix.shape[1] != classes:
        raise UserError(
            f"The label matrix has {matrix.shape[1]} columns, but there are {classes} classes and it must have one 0/1 "
            "column per class. To pass several class indices per row, use a list of sets."
        )
    if not bool(((matrix == 0) | (matrix == 1)).all()):
        raise UserError(
            "A label matrix must contain only 0 and 1, one column per class. To pass several class indices per row, "
            "use a list of sets."
        )
    return matrix.to(torch.uint8)


def _from_sets(rows: list[Iterable[int]], classes: int | None) -> Tensor:
    for i, row in enumerate(rows):
        if not _is_set(row):
            raise UserError(f"Example {i} is {row!r}, but others are sets; use a set of class indices for each.")
    listed = [list(row) for row in rows]
    for i, row in enumerate(listed):
        if any(_is_set(label) for label in row):
            raise UserError(f"Example {i} is {row}, but a set must contain integers (class indices) only.")
        if len(set(row)) < len(row):
            raise UserError(
                f"Example {i} lists a class twice ({row}); list each class once. If this is a row of a 0/1 matrix, "
                "pass the matrix as an array."
            )
    flat = _as_tensor([label for row in listed for label in row]) if any(listed) else torch.zeros(0)
    example = torch.arange(len(listed)).repeat_interleave(torch.tensor([len(row) for row in listed]))
    _check_integers(flat, example)
    classes = classes or _infer_classes(flat.long())
    check_classes(flat.long(), classes, examples=example)
    excluded = torch.zeros(len(listed), classes, dtype=torch.uint8)
    excluded[example, flat.long()] = 1
    return excluded


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Convert one label per example to ``excluded``, with a check: int [N] -> uint8 [N, K]."""
    check_classes(labels, classes)
    excluded = torch.zeros(len(labels), classes, dtype=torch.uint8)
    excluded[torch.arange(len(labels)), labels.long()] = 1
    return excluded
