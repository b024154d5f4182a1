"""Tables for the screen: which datasets there are, and how many examples and labels each class has."""

from pathlib import Path

import torch

from complementary.data import cache
from complementary.data.dataset import Dataset
from complementary.data.extras import rich_or_none
from complementary.data.progress import size
from complementary.data.table import TABLE


def print_sets(root: Path) -> None:
    """Print every named set, then every imported one, with where it came from if the cache has it."""
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
    except cache.Damaged as problem:
        return (name, *[""] * 5, f"damaged: {problem}")
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


def print_counts(dataset: Dataset) -> None:
    """Print, for every class, how many examples are of it and how many are labelled as not of it."""
    split, classes = dataset.train, len(dataset.classes)
    truth = ["?"] * classes
    if split.truth is not None:
        truth = [f"{n:,}" for n in torch.bincount(split.truth, minlength=classes).tolist()]
    excluded = ["-"] * classes
    if split.excluded is not None:
        excluded = [f"{n:,}" for n in split.excluded.sum(0, dtype=torch.long).tolist()]
    held = ["-"] * classes
    if dataset.test is not None and dataset.test.truth is not None:
        held = [f"{n:,}" for n in torch.bincount(dataset.test.truth, minlength=classes).tolist()]
    print_table(
        ("class", "train", "labelled “not”", "test"), list(zip(dataset.classes, truth, excluded, held, strict=True))
    )


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table: drawn by rich where it is installed, in plain columns otherwise."""
    make, console = rich_or_none("rich.table.Table"), rich_or_none("rich.console.Console")
    if make is None or console is None:
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        for row in [header, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = make(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(header):
        numeric = i > 0 and all(row[i].replace(",", "").isdigit() or row[i] in "?-" for row in rows)
        table.add_column(title, justify="right" if numeric else "left", no_wrap=i < len(header) - 1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    screen = console(markup=False, highlight=False)
    if not screen.is_terminal:
        screen.width = 120  # a file or pipe has no width of its own, and rich would take 80
    screen.print(table)
