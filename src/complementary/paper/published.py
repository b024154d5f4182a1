"""The published numbers, which are part of the package. Names are those of our options; accuracies are in percent."""

import csv
import functools
from dataclasses import dataclass
from importlib import resources

RUNS = 3  # behind each published mean and standard deviation
TEST_RUNS = 5  # of each method in the published Welch tests
EPOCHS = 300
DATASETS = ("cifar10", "cifar20", "mnist", "kmnist", "fmnist")
LOSSES = ("s-nl", "fwd", "dm", "s-exp")
METHODS = {
    "none": "none",
    "Mix": "mixup",
    "ICM": "icm",
    "MICM": "micm",
    "Extra-Class Mixup Filter": "extra-class",
    "Intra-Class Mixup Filter": "intra-class",
}
PRINTED = {  # LaTeX label of a table -> its number in print
    "Table_addition": "Table 1",
    "Table_combined": "Table 2",
    "TableC6": "Table 3",
    "TableB21": "Table 4",
    "tab:encoder_ablation": "Table 5",
    "Table7": "Table 6",
    "Table8": "Table 7",
    "Table9": "Table 8",
    "Table10": "Table 9",
}


@dataclass(frozen=True)
class Published:
    """One number of the paper.

    Attributes:
        table: where it is printed, such as ``Table 2``.
        data: name of the dataset.
        bias: ratio of the biased complementary labels; 1 for uniform ones.
        tail: ratio of the long tail; 1 for none.
        loss: name of the loss.
        mix: name of the mixer.
        mean: in percent.
        std: standard deviation of `RUNS` runs; None where the paper gives none.
    """

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
        """Identifies the cell; no two cells share it."""
        return self.table, self.data, self.bias, self.tail, self.loss, self.mix


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, with its number if it has one.

    ``check`` and ``verdict`` compare it with the paper's own tables and with theory; '' if `claims.own_tables` does.
    """

    id: str
    short: str
    """In a few words, for a summary."""
    where: str
    text: str
    value: float | None
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
            table=PRINTED[row["table"]],
            data=row["dataset"].lower(),
            bias=float(row["rho_transition"]),
            tail=float(row["rho_longtail"]),
            loss=row["loss"].lower(),
            mix=METHODS[row["method"]],
            mean=float(row["mean"]),
            std=float(row["std"]),
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
    """Encoder -> (noise ratio, accuracy) of S-NL with ICM on balanced CIFAR-10."""
    found = {}
    for row in _read("encoders.csv"):
        place = (PRINTED[row["table"]], row["dataset"].lower(), 1.0, 1.0, "s-nl", "icm")
        noise, accuracy = float(row["noise_rate_percent"]), float(row["accuracy_percent"])
        found[row["encoder"].lower()] = (Published(*place, noise), Published(*place, accuracy))
    return found


@functools.cache
def claims() -> dict[str, Claim]:
    """The statements of the paper that results can decide, by their identifier."""
    found = [
        Claim(
            id=row["id"],
            short=row["short"],
            where=row["where"],
            text=row["claim"],
            value=float(row["value"]) if row["value"] else None,
            unit=row["unit"],
            check=row["check"],
            verdict=row["verdict"],
        )
        for row in _read("claims.csv")
    ]
    return {claim.id: claim for claim in found}
