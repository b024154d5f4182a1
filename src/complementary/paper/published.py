"""The published numbers, which come with the package; names are those of our options, accuracies in percent."""

import csv
import functools
from dataclasses import dataclass
from importlib import resources

RUNS = 3  # of each published mean and deviation
DATASETS = ("cifar10", "cifar20", "mnist", "kmnist", "fmnist")
LOSSES = ("s-nl", "fwd", "dm", "s-exp")
METHODS = {"none": "none", "Mix": "mixup", "ICM": "icm", "MICM": "micm"} | {
    "Extra-Class Mixup Filter": "extra-class",
    "Intra-Class Mixup Filter": "intra-class",
}


@dataclass(frozen=True)
class Published:
    """One number of the paper, in percent. ``table``: its LaTeX label; ``std`` is None where it gives none."""

    table: str
    data: str
    bias: float
    tail: float
    loss: str
    mix: str
    mean: float
    std: float | None = None

    @property
    def place(self) -> tuple[str, str, float, float, str, str]:
        """Where it stands; no two cells share it."""
        return self.table, self.data, self.bias, self.tail, self.loss, self.mix


@dataclass(frozen=True)
class Claim:
    """A statement of the paper; ``check`` and ``verdict``: against its own tables and theory, not against our runs."""

    id: str
    where: str
    text: str
    value: str
    unit: str
    check: str
    verdict: str


def _read(name: str) -> list[dict[str, str]]:
    text = (resources.files(__package__) / "numbers" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


@functools.cache
def cells() -> dict[tuple[str, str, float, float, str, str], Published]:
    """All 554 cells of the accuracy tables, by their place."""
    found = [
        Published(
            row["table"],
            row["dataset"].lower(),
            float(row["rho_transition"]),
            float(row["rho_longtail"]),
            row["loss"].lower(),
            METHODS[row["method"]],
            float(row["mean"]),
            float(row["std"]),
        )
        for row in _read("results.csv")
    ]
    return {cell.place: cell for cell in found}


@functools.cache
def alphas() -> dict[str, dict[str, float]]:
    """Dataset -> mixer -> the mixing parameter that the paper chose."""
    columns = {"icm": "alpha_beta_ICM", "micm": "alpha_dirichlet_MICM"}
    return {
        row["dataset"].lower(): {mix: float(row[column]) for mix, column in columns.items()}
        for row in _read("alpha.csv")
    }


@functools.cache
def encoders() -> dict[str, tuple[Published, Published]]:
    """Encoder -> (noise of the mixes, accuracy) of S-NL + ICM on balanced CIFAR-10."""
    found = {}
    for row in _read("encoders.csv"):
        place = (row["table"], row["dataset"].lower(), 1.0, 1.0, "s-nl", "icm")
        noise, accuracy = float(row["noise_rate_percent"]), float(row["accuracy_percent"])
        found[row["encoder"].lower()] = (Published(*place, noise), Published(*place, accuracy))
    return found


@functools.cache
def claims() -> tuple[Claim, ...]:
    """All statements of the paper that somebody could check."""
    names = ("id", "where", "claim", "value", "unit", "check_against_tables_or_theory", "verdict")
    return tuple(Claim(*(row[name] for name in names)) for row in _read("claims.csv"))


def claim(id: str) -> Claim:
    """One of them."""
    return next(found for found in claims() if found.id == id)
