from collections import Counter

import pytest

from complementary.paper import published


def test_cells_of_all_tables_are_there():
    per_table = Counter(cell.table for cell in published.cells().values())
    assert sum(per_table.values()) == 554
    assert per_table == {
        "Table 1": 48,
        "Table 2": 120,
        "Table 3": 2,
        "Table 6": 96,
        "Table 7": 96,
        "Table 8": 96,
        "Table 9": 96,
    }


@pytest.mark.parametrize(
    ("place", "mean", "std"),
    [
        (("Table 2", "cifar10", 1.0, 100.0, "s-nl", "icm"), 36.21, 0.19),
        (("Table 2", "mnist", 1.0, 100.0, "s-nl", "icm"), 85.83, 0.19),
        (("Table 2", "fmnist", 1.0, 1.0, "s-exp", "mixup"), 84.42, 0.21),
        (("Table 1", "clcifar20", 1.0, 1.0, "fwd", "icm"), 35.94, 0.33),
        (("Table 3", "cifar10", 1.0, 100.0, "s-nl", "extra-class"), 37.17, 0.30),
        (("Table 3", "cifar10", 1.0, 100.0, "s-nl", "intra-class"), 48.59, 0.40),
        (("Table 6", "cifar20", 3.0, 1.0, "fwd", "micm"), 45.67, 0.52),
        (("Table 9", "mnist", 10.0, 50.0, "dm", "none"), 32.38, 0.46),
    ],
)
def test_cells_are_those_of_the_paper(place, mean, std):
    cell = published.cells()[place]
    assert (cell.mean, cell.std) == (mean, std)


def test_cells_can_all_be_accuracies():
    """A shifted column once made 37.17 a deviation."""
    assert all(5 < cell.mean < 100 and 0 < cell.std < 5 for cell in published.cells().values())


def test_alphas_and_encoders_are_those_of_the_paper():
    assert published.alphas()["cifar10"] == {"icm": 0.4, "micm": 0.2}
    assert {name: (noise.mean, accuracy.mean) for name, (noise, accuracy) in published.encoders().items()} == {
        "simsiam": (3.15, 79.13),
        "mocov3": (15.43, 60.45),
        "byol": (15.96, 61.47),
    }


def test_claims_are_read_with_their_values():
    assert list(published.claims()) == [f"{kind}{n}" for kind in "CP" for n in range(1, 17)]
    assert published.claims()["C1"].value is None
    assert published.claims()["P7"].value == 0.95
