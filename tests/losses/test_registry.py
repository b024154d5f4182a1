"""The table of methods: in step with the options, and used by checks and documentation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from complementary.config import Config, LossName, MixerName, RecipeName
from complementary.errors import UserError
from complementary.losses.registry import HEADER, LOSS_METHODS, METHODS, as_json, check, markdown, method_of, row

DOCS = Path(__file__).parents[2] / "docs"


def test_registry_and_options_name_the_same_losses():
    assert tuple(LOSS_METHODS) == get_args(LossName)


def test_registry_has_the_recipes_that_are_methods():
    recipes = {name for name, method in METHODS.items() if method.kind == "recipe"}
    assert recipes <= set(get_args(RecipeName))
    assert recipes == {"self-training", "pocr", "plnl"}


def test_registry_names_mixers_that_exist():
    assert {mix for method in METHODS.values() for mix in method.mixers} <= set(get_args(MixerName))


def test_registry_does_not_import_torch():
    code = "import sys; from complementary.losses.registry import METHODS; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_rows_fit_the_header():
    assert {len(row(method)) for method in METHODS.values()} == {len(HEADER)}
    assert len({method.title for method in METHODS.values()}) == len(METHODS)
    json.dumps(as_json())


@pytest.mark.parametrize("kind", ["loss", "recipe"])
def test_documentation_shows_the_table(kind):
    """If this fails: python -c "from complementary.losses.registry import markdown; print(markdown('loss'))"."""
    assert markdown(kind) in (DOCS / "guide" / "methods.md").read_text()


def test_check_warns_if_unbiasedness_needs_uniform_labels():
    assert "ure-tnn" in check(Config.of(loss="ure-nn"), "biased:10")
    assert check(Config.of(loss="ure-nn"), "uniform") is None
    assert check(Config.of(loss="ure-tnn"), "biased:10") is None
    assert check(Config.of(loss="s-nl"), "biased:10") is None


@pytest.mark.parametrize(
    "options", [{"self_training": 5, "inputs": "features"}, {"recipe": "pocr"}, {"recipe": "plnl"}], ids=str
)
def test_check_refuses_targets_from_probabilities_of_labels(options):
    with pytest.raises(UserError, match="cpe-i") as error:
        check(Config.of(loss="cpe-i", **options), "uniform")
    assert error.value.option == "loss"
    assert check(Config.of(loss="s-nl", **options), "uniform") is None


def test_method_of_an_unknown_loss_is_an_error_of_the_option():
    with pytest.raises(UserError, match="nonsense") as error:
        method_of("nonsense")
    assert error.value.option == "loss"
    with pytest.raises(UserError, match="no_such_module"):
        method_of("no_such_module:loss")
