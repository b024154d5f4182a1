import subprocess
import sys

import pytest

import complementary

NAMES = [
    *("ComplementaryClassifier", "Config", "ICM", "MICM", "Mixup", "UserError", "data", "diagnose"),
    *("export", "find_answer_issues", "kmeans"),
    *("labels", "load", "losses", "mixing", "oracle", "priors", "run", "scores", "transitions"),
]


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_all_and_dir_show_the_public_names():
    assert sorted(complementary.__all__) == NAMES
    assert set(dir(complementary)) == {*NAMES, "__version__"}


@pytest.mark.parametrize("name", NAMES)
def test_public_name_can_be_imported(name):
    assert getattr(complementary, name) is not None
    exec(f"from complementary import {name}")


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        complementary.nothing  # noqa: B018


def test_modules_are_attributes_after_a_plain_import():
    code = "import complementary; print(complementary.losses.s_nl.__name__, complementary.kmeans.__module__)"
    assert in_a_new_process(code) == ["s_nl", "complementary.clusters.kmeans"]


def test_import_does_not_load_torch():
    loaded = "print('torch' in sys.modules, 'numpy' in sys.modules)"
    code = f"import sys, complementary; complementary.Config, complementary.UserError; {loaded}"
    assert in_a_new_process(code) == ["False", "False"]


@pytest.mark.parametrize(("given", "found"), [(None, "10000"), ("7", "7")])
def test_openmp_spin_count_is_set_unless_the_user_did(monkeypatch, given, found):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if given is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", given)
    assert in_a_new_process("import os, complementary; print(os.environ['GOMP_SPINCOUNT'])") == [found]
