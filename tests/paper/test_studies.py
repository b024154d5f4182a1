import subprocess
import sys
from collections import Counter

import pytest

from complementary.errors import UserError
from complementary.paper import published
from complementary.paper.studies import NO_AUGMENTATION, RUNNERS, STUDIES, study

SIZES = {  # settings, published numbers beside them
    "as-coded": (36, 36),
    "main": (160, 120),
    "real": (48, 48),
    "annotators": (48, 0),
    "several": (12, 0),
    "intra": (2, 2),
    "encoders": (4, 3),
    "setup2-cifar": (96, 96),
    "setup2-mnist": (96, 96),
    "setup3-5": (96, 96),
    "setup3-10": (96, 96),
    "alpha": (70, 0),
    "noise": (32, 6),
    "noise-accuracy": (6, 5),
    "noise-levels": (5, 0),
    "losses": (16, 16),
    "augment": (8, 0),
    "sharing": (12, 0),
    "models": (27, 9),
    "models-tail": (36, 12),
    "clusters": (35, 0),
    "constant": (25, 0),
    "micm": (26, 10),
    "minority": (4, 0),
    "same-label": (10, 5),
    "gradients": (3, 0),
    "p-values": (40, 40),
}


def test_studies_have_the_expected_sizes():
    assert {name: (len(one.entries), len(one.published)) for name, one in STUDIES.items()} == SIZES


def test_studies_of_tables_contain_every_published_cell_once():
    tables = [one for one in STUDIES.values() if one.source.startswith("Table") and one.name != "encoders"]
    held = Counter(number.place for one in tables for number in one.published)
    assert set(held) == set(published.cells())
    assert set(held.values()) == {1}
    assert all({number.table for number in one.published} <= {one.source} for one in tables)


def test_entries_have_the_published_number_of_their_own_setting():
    for one in STUDIES.values():
        for entry in one.entries:
            if entry.published is not None:
                number, s = entry.published, entry.setting
                assert (number.data, number.tail, number.bias) == (s.data, s.tail, s.bias)
                assert (number.loss, number.mix) == (s.loss, s.mix)


def test_entries_of_a_study_have_different_names():
    for one in STUDIES.values():
        names = Counter((entry.where, entry.method) for entry in one.entries)
        assert max(names.values()) == 1, one.name


def test_pairs_name_methods_of_the_study():
    for one in STUDIES.values():
        methods = {entry.method for entry in one.entries}
        assert not one.pairs or any({a, b} <= methods for a, b in one.pairs), one.name
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


def test_as_coded_repeats_four_methods_without_augmentation():
    found = [e for e in STUDIES["as-coded"].entries if e.group == NO_AUGMENTATION]
    assert len(found) == 2 * 4
    for entry in found:
        changes = dict(entry.setting.changes)
        assert (changes["padding"], changes["flip"], changes["reset_optimizer"]) == (0, False, True)


def test_runners_other_than_training():
    assert {name: one.runner for name, one in STUDIES.items() if one.runner != "training"} == {
        "noise": "noise",
        "gradients": "gradients",
    }
    assert {one.runner for one in STUDIES.values()} == set(RUNNERS)


def test_study_of_an_unknown_name_is_an_error():
    with pytest.raises(UserError, match=r"'tabel7'.*as-coded, main, .*p-values"):
        study("tabel7")


def test_studies_import_without_torch():
    script = "import sys, complementary.paper.studies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
