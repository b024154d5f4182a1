import itertools

import pytest

from complementary.paper.page import write_page
from complementary.paper.readings import POINTS, readings, readings_table, text_against_code
from complementary.paper.store import Results, read
from complementary.paper.studies import NO_AUGMENTATION
from tests.paper.conftest import entry_of

NAMES = {mix: f"{mix}, Adam re-created" for mix in ("none", "mixup")}
NAMES |= {"icm": "icm swapped, λ per batch, Adam re-created"}
PUBLISHED = {"none": 0.5015, "mixup": 0.5423, "icm": 0.8583}  # MNIST


@pytest.fixture
def add_reading(add_run):
    def add(data, group, seed=0, **accuracies):
        for mix, accuracy in accuracies.items():
            add_run(entry_of("as-coded", NAMES[mix], data=data, group=group), accuracy, "paper", seed)

    return add


def reading(store, data="mnist", augmentation="none", weights="swapped"):
    found = readings(read([store]))
    (one,) = [r for r in found if (r.data, r.augmentation, r.weights) == (data, augmentation, weights)]
    return one


def test_reading_reproduces_the_paper_only_if_all_three_methods_do(add_reading, store):
    add_reading("mnist", NO_AUGMENTATION, **PUBLISHED)
    assert reading(store).reproduces
    add_reading("mnist", NO_AUGMENTATION, **PUBLISHED | {"mixup": 0.60})
    one = reading(store)
    assert [one.near(mix) for mix in NAMES] == [True, False, True]
    assert (one.complete, one.reproduces) == (True, False)


def test_reading_with_a_missing_method_is_not_judged(add_reading, store):
    add_reading("mnist", "", none=0.5015)
    one = reading(store, augmentation="crop and flip")
    assert (one.complete, one.reproduces) == (False, False)
    assert [row[-1] for row in readings_table(readings(read([store]))).rows] == ["", ""]  # matched and swapped


def test_reading_is_near_within_three_points_however_many_seeds(add_reading, store):
    add_reading("mnist", "", **PUBLISHED | {"none": 0.5315, "mixup": 0.5725})
    one = reading(store, augmentation="crop and flip")
    assert [one.near(mix) for mix in NAMES] == [True, False, True]
    for seed in (1, 2):
        add_reading("mnist", "", seed=seed, none=0.5315, mixup=0.5725)
    one = reading(store, augmentation="crop and flip")
    assert [one.near(mix) for mix in NAMES] == [True, False, True]


def test_page_names_the_readings_that_reproduce_the_paper(add_reading, store):
    add_reading("mnist", NO_AUGMENTATION, **PUBLISHED)
    add_reading("cifar10", "", none=0.2241, mixup=0.3146, icm=0.3121)
    page = write_page(read([store]))
    assert "(within 3 points): mnist, augmentation none, swapped." in page
    assert "| **31.46 (1) / 31.46, +0.00** | 31.21 (1) / 36.21, -5.00 | no |" in page


def test_text_against_code_has_a_column_per_augmentation_with_the_number_of_pairs(add_reading, add_run, store):
    rows = {row[0]: row[3:] for row in text_against_code(Results()).rows}
    assert len(rows) == len(POINTS)
    assert set(itertools.chain(*rows.values())) == {"not measured"}
    add_reading("cifar10", "", icm=0.38)
    add_reading("cifar10", NO_AUGMENTATION, icm=0.35)
    for group, accuracy in (("", 0.36), (NO_AUGMENTATION, 0.25)):
        add_run(
            entry_of("as-coded", "icm matched, λ per batch, Adam re-created", data="cifar10", group=group),
            accuracy,
            "paper",
            accuracy_last=accuracy - 0.04,
        )
    rows = {row[0]: row[3:] for row in text_against_code(read([store])).rows}
    assert rows["label weights of ICM"] == ["cifar10 +2.0 (n = 1)", "cifar10 +10.0 (n = 1)"]
    assert rows["augmentation in the main tables"] == ["cifar10 +7.0 (+3.0 to +11.0, n = 2)", "not measured"]
    assert rows["reported accuracy"] == ["cifar10 +2.0 (+0.0 to +4.0, n = 2)"] * 2
    assert rows["λ"] == ["not measured"] * 2
    page = write_page(read([store]))
    assert "changes cifar10 +10.0 (n = 1) without augmentation, and cifar10 +2.0 (n = 1) with crop" not in page
    add_reading("cifar10", NO_AUGMENTATION, none=0.2, mixup=0.2)  # a complete reading
    page = write_page(read([store]))
    assert "changes cifar10 +10.0 (n = 1) without augmentation, and cifar10 +2.0 (n = 1) with crop" in page
