"""Named sets, from the cache or from the first source that has them."""

import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from complementary.data import cache, drafts
from complementary.data.assemble import assemble
from complementary.data.cache import Array, Stored
from complementary.data.dataset import Dataset, Split
from complementary.data.download import Unreachable
from complementary.data.progress import Say
from complementary.data.sources import sources, user_folder
from complementary.data.statistics import channel_moments
from complementary.data.table import TABLE, NamedSet
from complementary.errors import UserError


def obtain(spec: NamedSet, root: Path, folder: Path | None, say: Say, again: bool = False) -> Stored:
    """Return the set from the cache, or get it into the cache first. ``folder``: see `user_folder`.

    ``again``: get it even if the cache has it; the old version counts until the new one is whole.
    """
    held = None if again else _sound(spec, root, say)
    if held is None:
        folder = user_folder(folder)
        base = obtain(TABLE[spec.base], root, folder, say).arrays if spec.base else None
        with drafts.lock(root, spec.name, say):
            held = None if again else _sound(spec, root, say)  # another process may have been faster
            if held is None:
                _get(spec, root, folder, base, say)
                held = cache.read(root, spec.name)
    assert held is not None  # it was read or written just now
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


def _sound(spec: NamedSet, root: Path, say: Say) -> Stored | None:
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
    say(f"{spec.name}: in the cache {root}, from {held.manifest['source']}")
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
    mean, std = channel_moments(arrays["train/inputs"])
    return {
        "source": source,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
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
