"""The table of methods on the command line."""

import json

from complementary.losses.registry import METHODS, markdown


def test_methods_lists_every_method(cll):
    status, out, error = cll("methods")
    assert (status, error) == (0, "")
    assert {line.split()[0] for line in out.splitlines() if line} >= set(METHODS)
    assert "further recipes: auto (" in out


def test_methods_json_has_every_assumption(cll):
    found = json.loads(cll("methods", "--json")[1])
    assert [entry["name"] for entry in found] == list(METHODS)
    assert {entry["name"]: entry["matrix"] for entry in found}["ure-tga"] == "inverted"


def test_methods_can_be_selected_by_their_assumption(cll):
    found = json.loads(cll("methods", "--json", "--labels", "any")[1])
    assert {entry["labels"] for entry in found} == {"any"}
    assert "fwd" in {entry["name"] for entry in found}


def test_methods_prints_the_tables_of_the_documentation(cll):
    assert markdown("loss") in cll("methods", "--markdown")[1]


def test_unknown_loss_is_one_line(cll):
    status, out, error = cll("train", "--data", "digits", "--loss", "nonsense", "--out", "unused")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "nonsense" in error
    assert "ure-tga" in error
    assert "--loss" in error
