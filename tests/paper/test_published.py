from collections import Counter

import pytest

from complementary.paper import published


def test_all_cells_of_the_tables_are_there():
    cells = published.cells()
    per_table = Counter(cell.table for cell in cells.values())
    assert sum(per_table.values()) == 554
    assert per_table == {
        "Table_combined": 120,
        "Table_addition": 48,
        "TableC6": 2,
        "Table7": 96,
        "Table8": 96,
        "Table9": 96,
        "Table10": 96,
    }


@pytest.mark.parametrize(
    ("place", "mean", "std"),
    [
        (("Table_combined", "cifar10", 1.0, 100.0, "s-nl", "icm"), 36.21, 0.19),
        (("Table_combined", "mnist", 1.0, 100.0, "s-nl", "icm"), 85.83, 0.19),
        (("Table_combined", "fmnist", 1.0, 1.0, "s-exp", "mixup"), 84.42, 0.21),
        (("Table_addition", "clcifar20", 1.0, 1.0, "fwd", "icm"), 35.94, 0.33),
        (("TableC6", "cifar10", 1.0, 100.0, "s-nl", "extra-class"), 37.17, 0.30),
        (("TableC6", "cifar10", 1.0, 100.0, "s-nl", "intra-class"), 48.59, 0.40),
        (("Table7", "cifar20", 3.0, 1.0, "fwd", "micm"), 45.67, 0.52),
        (("Table10", "mnist", 10.0, 50.0, "dm", "none"), 32.38, 0.46),
    ],
)
def test_numbers_are_those_of_the_paper(place, mean, std):
    cell = published.cells()[place]
    assert (cell.mean, cell.std) == (mean, std)


def test_every_number_can_be_an_accuracy():
    """A shifted column once made 37.17 a deviation."""
    assert all(5 < cell.mean < 100 and 0 < cell.std < 5 for cell in published.cells().values())


def test_alphas_encoders_and_claims():
    assert published.alphas()["cifar10"] == {"icm": 0.4, "micm": 0.2}
    assert {name: (noise.mean, accuracy.mean) for name, (noise, accuracy) in published.encoders().items()} == {
        "simsiam": (3.15, 79.13),
        "mocov3": (15.43, 60.45),
        "byol": (15.96, 61.47),
    }
    assert [claim.id for claim in published.claims()] == [f"P{n}" for n in range(1, 36)]
    assert published.claim("P7").value == "0.95"
