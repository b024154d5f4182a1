"""Named sets, from the cache or from the first source that has them, each checked against the table."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from complementary import labels as drawing
from complementary.data import cache, drafts
from complementary.data.arrays import multi_hot
from complementary.data.cache import Array, Stored, sha256
from complementary.data.dataset import Dataset, Split, moments
from complementary.data.screen import Say, need
from complementary.data.sources import Unreachable, sources, user_folder
from complementary.data.table import TABLE, NamedSet
from complementary.errors import UserError
from complementary.transitions import check_transition

PARTS = ("train/inputs", "train/truth", "train/excluded", "train/names", "test/inputs", "test/truth", "transition")


def obtain(spec: NamedSet, root: Path, folder: Path | None, say: Say, again: bool = False) -> Stored:
    """Return the set from the cache, or get it into the cache first. ``folder``: see `user_folder`.

    ``again``: get it even if the cache has it; the old version counts until the new one is whole.
    """
    held = None if again else _told(spec, root, say)
    if held is None:
        folder = user_folder(folder)
        base = obtain(TABLE[spec.base], root, folder, say).arrays if spec.base else None
        with drafts.lock(root, spec.name, say):
            held = None if again else _told(spec, root, say)  # another process may have been faster
            if held is None:
                _get(spec, root, folder, base, say)
                held = cache.read(root, spec.name)
    assert held is not None  # it was read or written just now
    return held


def _told(spec: NamedSet, root: Path, say: Say) -> Stored | None:
    held = cached(spec, root, say)
    if held is not None:
        say(f"{spec.name}: in the cache {root}, from {held.manifest['source']}")
    return held


def to_dataset(stored: Stored, base: Mapping[str, Array] | None) -> Dataset:
    """A cached set as tensors over its memory maps; ``base`` gives the arrays it does not bring itself."""
    facts, arrays = stored.manifest, {**(base or {}), **stored.arrays}
    return Dataset(
        name=facts["name"],
        train=_split(arrays, "train"),
        test=_split(arrays, "test") if "test/inputs" in arrays else None,
        classes=tuple(facts["classes"]),
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        flip=facts["flip"],
        head=facts["head"],
    )


def _split(arrays: Mapping[str, Array], split: str) -> Split:
    def tensor(part: str) -> torch.Tensor | None:
        array = arrays.get(f"{split}/{part}")
        return None if array is None else torch.from_numpy(array)

    inputs = tensor("inputs")
    assert inputs is not None  # every writer puts them
    return Split(inputs, tensor("truth"), tensor("excluded"))


def cached(spec: NamedSet, root: Path, say: Say) -> Stored | None:
    """The set as the cache has it; None if it is missing, damaged or not what today's table says it is."""
    try:
        held = cache.read(root, spec.name)
    except cache.Damaged as problem:
        say(f"{spec.name}: {problem} Getting it anew.")
        return None
    if held is None:
        return None
    known = held.manifest["arrays"]
    if any(key not in known or known[key]["sha256"] != wanted for key, wanted in spec.sha256.items()):
        say(f"{spec.name}: the cache holds another version than this package knows; getting it anew")
        return None
    return held


def _get(spec: NamedSet, root: Path, folder: Path | None, base: Mapping[str, Array] | None, say: Say) -> None:
    """Try every source in turn; the first whose arrays pass the table's checks is written to the cache."""
    scratch = root / "downloads" / spec.name
    with drafts.disk_errors(root):
        scratch.mkdir(parents=True, exist_ok=True)
    failures = []
    for words, reader in sources(spec, folder, scratch):
        say(f"{spec.name}: trying {words}")
        try:
            with drafts.disk_errors(root):  # downloads land in the cache too
                arrays = assemble(spec, reader(), base)
        except drafts.Unwritable:
            raise
        except UserError as problem:
            say(f"{spec.name}:   {problem}")
            failures.append(words)
            if not isinstance(problem, Unreachable):
                _empty(scratch)
            continue
        with drafts.writing(root, spec.name) as draft:
            for key, array in arrays.items():
                draft.put(key, array)
            drafts.commit(root, spec.name, draft, _facts(spec, words, {**(base or {}), **arrays}))
        shutil.rmtree(scratch, ignore_errors=True)
        say(f"{spec.name}: written to the cache {root}")
        return
    if not any(scratch.iterdir()):
        scratch.rmdir()
    raise UserError(_nowhere(spec, failures))


def _empty(scratch: Path) -> None:
    """Throw away files that came whole and are wrong, so that the next try does not meet them again."""
    for path in scratch.iterdir():
        if path.is_file() and path.suffix != ".part":
            path.unlink()


def _facts(spec: NamedSet, source: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    mean, std = moments(arrays["train/inputs"])
    return {
        "source": source,
        "base": spec.base,
        "classes": list(spec.classes),
        "mean": list(spec.mean),
        "std": list(spec.std),
        "measured": {"mean": mean, "std": std},
        "flip": spec.flip,
        "head": spec.head,
    }


def _nowhere(spec: NamedSet, tried: list[str]) -> str:
    files = list(dict.fromkeys(place for place, _ in spec.places if place != "."))
    wanted = files[0] if len(files) == 1 else f"one of {', '.join(files)}"
    what = f"could not be had from {' or '.join(tried)} (why not is said above)" if tried else "has no address"
    return f"{spec.name} {what}; put {wanted} into a folder and name it with --from FOLDER or COMPLEMENTARY_DATA."


# --- from decoded files to the arrays of a set -----------------------------------------------------


def assemble(spec: NamedSet, decoded: Mapping[str, Array], base: Mapping[str, Array] | None) -> dict[str, Array]:
    """The arrays that ``spec`` itself brings, checked against the table.

    ``decoded``: what a format gave. ``base``: the arrays of the set that ``spec`` builds on, if any.
    """
    own = {key: decoded[key] for key in PARTS if key in decoded}
    classes = len(spec.classes)
    if "labels" in decoded:
        given = decoded["labels"]
        if "names" in decoded and base is not None:
            given = given[order_by_name(decoded["names"], base["train/names"], spec.name)]
        own["train/excluded"] = multi_hot(given, classes, spec.name)
    if "transition" in decoded and base is not None:
        matrix = check_transition(torch.from_numpy(decoded["transition"]), classes, f"The matrix of {spec.name}")
        truth = torch.from_numpy(np.array(base["train/truth"]))
        own["train/excluded"] = drawing.draw(truth, matrix, seed=spec.seed).numpy()
    check(spec, {**(base or {}), **own}, own)
    return own


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


def digits() -> Dataset:
    """Scikit-learn's handwritten digits, which need no download; every fifth is for testing.

    1,437 train and 360 test images, uint8 [N, 1, 8, 8].
    """
    source = need("sklearn.datasets", "The set digits").load_digits()
    images = torch.from_numpy(np.rint(source.images * (255 / 16)).astype(np.uint8))[:, None]
    truth = torch.from_numpy(source.target).long()
    test = torch.arange(len(images)) % 5 == 0
    train, held = (Split(images[part].contiguous(), truth[part]) for part in (~test, test))
    spec = TABLE["digits"]
    return Dataset(spec.name, train, held, spec.classes, spec.mean, spec.std, spec.flip)
