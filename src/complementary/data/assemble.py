"""From decoded files to the arrays of a set: labels joined to images, everything checked."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from complementary import labels as drawing
from complementary.data.cache import Array, sha256
from complementary.data.table import NamedSet
from complementary.errors import UserError
from complementary.transitions import check_transition

PARTS = ("train/inputs", "train/truth", "train/excluded", "train/names", "test/inputs", "test/truth", "transition")


def assemble(spec: NamedSet, decoded: Mapping[str, Array], base: Mapping[str, Array] | None) -> dict[str, Array]:
    """The arrays that ``spec`` itself brings, checked against the table.

    ``decoded``: what a format gave. ``base``: the arrays of the set that ``spec`` builds on, if any.
    """
    own = {key: decoded[key] for key in PARTS if key in decoded}
    classes = len(spec.classes)
    if "labels" in decoded:
        given = np.atleast_2d(decoded["labels"].T).T.astype(np.int64)
        if "names" in decoded and base is not None:
            given = given[order_by_name(decoded["names"], base["train/names"], spec.name)]
        own["train/excluded"] = multi_hot(given, classes, spec.name)
    if "transition" in decoded and base is not None:
        matrix = check_transition(torch.from_numpy(decoded["transition"]), classes, f"The matrix of {spec.name}")
        truth = torch.from_numpy(np.array(base["train/truth"]))
        own["train/excluded"] = drawing.draw(truth, matrix, seed=spec.seed).numpy()
    check(spec, {**(base or {}), **own}, own)
    return own


def multi_hot(labels: NDArray[np.int64], classes: int, name: str) -> NDArray[np.uint8]:
    """Class numbers [N, M], repeats allowed within a row -> uint8 [N, K] with a 1 for every distinct one."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"{name}: labels run from {labels.min()} to {labels.max()}; wanted 0 to {classes - 1}.")
    excluded = np.zeros((len(labels), classes), np.uint8)
    excluded[np.arange(len(labels))[:, None], labels] = 1
    return excluded


def order_by_name(given: Array, wanted: Array, name: str) -> NDArray[np.int64]:
    """Indices that bring ``given`` [N] into the order of ``wanted`` [N]; equal names pair up in order."""
    given, wanted = given.astype("S"), wanted.astype("S")
    here, there = np.argsort(given, kind="stable"), np.argsort(wanted, kind="stable")
    if len(given) != len(wanted) or not np.array_equal(given[here], wanted[there]):
        missing = len(set(wanted.tolist()) - set(given.tolist()))
        raise UserError(
            f"{name}: its {len(given):,} labels do not name the same images as the {len(wanted):,} of the base "
            f"set ({missing:,} images have none)."
        )
    order = np.empty(len(wanted), np.int64)
    order[there] = here
    return order


def check(spec: NamedSet, arrays: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Counts, shapes and label ranges as the table says, and the SHA-256 of what the set brings itself."""
    for split, count in (("train", spec.train), ("test", spec.test)):
        for part, shape in (("inputs", (count, *spec.shape)), ("truth", (count,))):
            array = arrays.get(f"{split}/{part}")
            if array is None or array.shape != shape:
                found = "nothing" if array is None else str(list(array.shape))
                raise UserError(f"{spec.name}: {split} {part} are {found}, wanted {list(shape)}.")
        truth = arrays[f"{split}/truth"].astype(np.int64)
        if not 0 <= truth.min() <= truth.max() < len(spec.classes):
            raise UserError(f"{spec.name}: true labels run from {truth.min()} to {truth.max()}.")
    excluded = own.get("train/excluded")
    if excluded is not None:
        if excluded.shape != (spec.train, len(spec.classes)):
            raise UserError(
                f"{spec.name}: labels are {list(excluded.shape)}, wanted {[spec.train, len(spec.classes)]}."
            )
        drawing.check_excluded(torch.from_numpy(excluded.astype(np.uint8)))
    if spec.base is not None and excluded is None:
        raise UserError(f"{spec.name}: the file holds no complementary labels.")
    for key, wanted in spec.sha256.items():
        found = sha256(own[key]) if key in own else "no such array"
        if found != wanted:
            raise UserError(f"{spec.name}: {key} has SHA-256 {found}, but the real set has {wanted}.")
