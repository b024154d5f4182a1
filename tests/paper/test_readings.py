import pytest

from complementary.paper.page import write_page
from complementary.paper.readings import POINTS, finding, in_short, readings, readings_table, text_against_code
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
    assert (one.complete, one.reproduces, one.largest[0]) == (True, False, "mixup")


def test_reading_with_a_missing_method_is_not_judged(add_reading, store):
    add_reading("mnist", "", none=0.5015)
    one = reading(store, augmentation="crop and flip")
    assert (one.complete, one.reproduces) == (False, False)
    assert [row[-1] for row in readings_table(readings(read([store]))).rows] == ["", ""]  # matched and swapped


def test_reading_needs_less_difference_with_more_seeds(add_reading, store):
    """One point is assumed between seeds: 1.5 points are near with one seed, not with four equal ones."""
    add_reading("mnist", "", **PUBLISHED | {"none": 0.5165})
    assert reading(store, augmentation="crop and flip").near("none")
    for seed in (1, 2, 3):
        add_reading("mnist", "", seed=seed, none=0.5165)
    assert not reading(store, augmentation="crop and flip").near("none")


def test_finding_names_the_largest_exception(add_reading, store):
    assert finding(readings(Results())) == ""
    add_reading("cifar10", NO_AUGMENTATION, none=0.2188, mixup=0.2305, icm=0.3484)
    assert finding(readings(read([store]))) == ""  # one dataset
    add_reading("mnist", NO_AUGMENTATION, **PUBLISHED)
    add_reading("mnist", "", none=0.7586, mixup=0.7388, icm=0.7099)
    text = finding(readings(read([store])))
    assert "No difference is larger than 1.37 points, except for mixup on cifar10 (-8.41)" in text
    assert "cifar10: none 21.88 (22.41), mixup 23.05 (31.46), icm 34.84 (36.21)" in text
    assert text.endswith("With crop and flip instead: mnist: none 75.86, mixup 73.88, icm 70.99")
    page = write_page(read([store]))
    assert text in page
    assert in_short(readings(read([store]))) == ""  # cifar10 with crop and flip is missing
    add_reading("cifar10", "", none=0.2241, mixup=0.3146, icm=0.3621)
    told = in_short(readings(read([store])))
    assert "cifar10 3.4 without and 0.0 with crop and flip, mnist 0.0 without and 20.1 with crop and flip." in told
    page = write_page(read([store]))
    assert told in page[: page.index("## Words")]  # in the summary
    assert "| 23.05 (1) / 31.46, -8.41 | **34.84 (1) / 36.21, -1.37** | no |" in page
    assert "together**: cifar10, augmentation crop and flip, swapped; mnist, augmentation none, swapped." in page


def test_text_against_code_says_what_a_difference_changes(add_reading, store):
    rows = {row[0]: row for row in text_against_code(Results()).rows}
    assert len(rows) == len(POINTS)
    assert {row[-1] for row in rows.values()} == {"not measured"}
    add_reading("cifar10", "", icm=0.38)
    add_reading("cifar10", NO_AUGMENTATION, icm=0.35)
    rows = {row[0]: row for row in text_against_code(read([store])).rows}
    assert rows["augmentation in the main tables"][-1] == "cifar10 +3.0"
    assert rows["λ"][-1] == "not measured"
