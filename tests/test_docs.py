"""Every example in a docstring of the package runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import complementary

ROOT = Path(complementary.__file__).parent


def module_name(path):
    parts = ("complementary", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


WITH_EXAMPLES = sorted(module_name(path) for path in ROOT.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8"))


def test_the_parts_that_are_used_alone_have_examples():
    wanted = {f"complementary.{name}" for name in ("labels", "losses", "mix", "rng", "transitions")}
    assert wanted <= set(WITH_EXAMPLES)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_print_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
