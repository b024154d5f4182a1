"""What the entries of a table have in common, so that it can stand above them."""

from collections.abc import Callable, Sequence

from complementary.data import TABLE
from complementary.paper import published
from complementary.paper.compare import Line
from complementary.paper.protocols import COMMON, NOISE
from complementary.paper.studies import Entry
from complementary.reports.tables import counted

KEYS: dict[str, Callable[[Entry], str]] = {
    "data": lambda entry: entry.setting.data,
    "long tail": lambda entry: f"{entry.setting.tail:g}",
    "bias": lambda entry: f"{entry.setting.bias:g}",
    "loss": lambda entry: entry.setting.loss,
    "group": lambda entry: entry.group,
    "method": lambda entry: entry.method,
}
MORE_KEYS: dict[str, Callable[[Entry], str]] = {
    "mix": lambda entry: entry.setting.mix,
    "model": lambda entry: str(dict(entry.setting.changes).get("model", COMMON["model"])),
}
EPOCHS = int(published.claim("P18").value)


def varied_keys(entries: Sequence[Entry]) -> list[str]:
    """The columns that tell entries apart; data and method always stand there."""
    varied = {name for name, read in KEYS.items() if len({read(entry) for entry in entries}) > 1}
    return [name for name in KEYS if name in varied or name in ("data", "method")]


def common(found: Sequence[Line]) -> str:
    """All that holds for every line: ``cifar10, ρ = 100, uniform labels, s-nl, icm, resnet18, 300 epochs``."""
    entries = [line.entry for line in found]
    named = all(entry.method == entry.setting.mix for entry in entries)  # then a column has it
    trained = any(list(line.figures) != list(NOISE) for line in found)  # noise is the same for all losses and networks
    loss, model = ([KEYS["loss"]], [MORE_KEYS["model"]]) if trained else ([], [])
    mix = [] if named else [MORE_KEYS["mix"]]
    readers = [KEYS["data"], _tail, _labels, *loss, *mix, KEYS["group"], *model]
    values = [{read(entry) for entry in entries} for read in readers]
    said = dict.fromkeys(value for only in values if len(only) == 1 for value in only if value)
    return ", ".join([*said, *epochs_said(found)])


def _tail(entry: Entry) -> str:
    return f"ρ = {entry.setting.tail:g}"


def _labels(entry: Entry) -> str:
    """Where its complementary labels come from; "" where the name of the data says it."""
    if TABLE[entry.setting.data].labels != "truth":
        return ""
    return "uniform labels" if entry.setting.bias == 1 else f"labels biased by {entry.setting.bias:g}"


def lengths(found: Sequence[Line]) -> list[int]:
    """The epochs of the runs behind some lines, each number once."""
    return sorted({line.runs.epochs for line in found if line.runs.epochs is not None})


def epochs_said(found: Sequence[Line]) -> list[str]:
    """The epochs, if they are the same for all that was run; beside them the paper's, if they are not these."""
    known = lengths(found)
    if len(known) != 1:
        return []
    return [counted(known[0], "epoch") + ("" if known[0] == EPOCHS else f" where the paper has {EPOCHS}")]
