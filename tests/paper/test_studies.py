from collections import Counter

import pytest

from complementary.errors import UserError
from complementary.paper import published
from complementary.paper.studies import RUNNERS, STUDIES, study

SIZES = {  # settings, published numbers beside them
    "as-coded": (28, 28),
    "main": (160, 120),
    "real": (48, 48),
    "annotators": (48, 0),
    "intra": (2, 2),
    "encoders": (4, 3),
    "setup2-cifar": (96, 96),
    "setup2-mnist": (96, 96),
    "setup3-5": (96, 96),
    "setup3-10": (96, 96),
    "alpha": (70, 0),
    "noise": (32, 6),
    "noise-accuracy": (6, 5),
    "losses": (16, 16),
    "augment": (8, 0),
    "sharing": (12, 0),
    "models": (27, 9),
    "models-tail": (36, 12),
    "clusters": (35, 0),
    "constant": (25, 0),
    "micm": (26, 10),
    "same-label": (10, 5),
    "gradients": (3, 0),
    "p-values": (40, 40),
}


def test_the_tables_hold_every_published_cell_once():
    tables = [one for one in STUDIES.values() if one.kind == "table" and one.name != "encoders"]
    held = Counter(number.place for one in tables for number in one.compared)
    assert set(held) == set(published.cells())
    assert set(held.values()) == {1}


def test_each_number_stands_beside_its_own_setting():
    for one in STUDIES.values():
        for entry in one.entries:
            if entry.published is not None:
                number, s = entry.published, entry.setting
                assert (number.data, number.tail, number.bias) == (s.data, s.tail, s.bias)
                assert (number.loss, number.mix) == (s.loss, s.mix)


def test_the_size_of_every_study():
    assert {name: (len(one.entries), len(one.compared)) for name, one in STUDIES.items()} == SIZES


def test_no_two_entries_of_a_study_are_called_the_same():
    for one in STUDIES.values():
        names = Counter((entry.where, entry.method) for entry in one.entries)
        assert max(names.values()) == 1, one.name


def test_what_is_compared_is_in_the_study():
    for one in STUDIES.values():
        methods = {entry.method for entry in one.entries}
        assert not one.pairs or one.plot == "gradients" or any({a, b} <= methods for a, b in one.pairs), one.name
    coded = STUDIES["as-coded"]
    assert {method for pair in coded.pairs for method in pair} <= {entry.method for entry in coded.entries}


def test_as_coded_crosses_label_weights_lambda_and_adam():
    found = [e for e in STUDIES["as-coded"].entries if e.setting.mix == "icm" and e.setting.data == "mnist"]
    crossed = [dict(entry.setting.changes) for entry in found if len(entry.setting.changes) == 3]
    assert {(c["label_weights"], c["lam"], c["reset_optimizer"]) for c in crossed} == {
        (weights, lam, reset) for weights in ("matched", "swapped") for lam in ("pair", "batch") for reset in (0, 1)
    }
    assert len([entry for entry in found if dict(entry.setting.changes).get("share") == "soft-label"]) == 2
    assert {entry.published.mean for entry in found} == {85.83}


def test_two_studies_train_nothing():
    assert {name: one.runner for name, one in STUDIES.items() if one.runner != "training"} == {
        "noise": "noise",
        "gradients": "gradients",
    }
    assert {one.runner for one in STUDIES.values()} == set(RUNNERS)


def test_an_unknown_study_is_one_sentence():
    with pytest.raises(
        UserError, match=r"^The study 'tabel7' is not known; choose one of: as-coded, main, .*p-values\.$"
    ):
        study("tabel7")
