"""The examples in docstrings, README and guide run, and the documentation is complete."""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import complementary
from tests.processes import run_cll
from tests.test_layers import STOREYS

PACKAGE = Path(complementary.__path__[0])
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]


# --- docstrings ---------------------------------------------------------------------------------------------------


def module_name(path):
    parts = ("complementary", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


WITH_EXAMPLES = sorted(module_name(path) for path in PACKAGE.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8"))


def test_public_modules_have_examples():
    wanted = {f"complementary.{name}" for name in ("estimator", "labels", "losses", "mixing", "transitions")}
    assert wanted <= set(WITH_EXAMPLES)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples_print_their_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


# --- code blocks of README and guide ------------------------------------------------------------------------------
#
# ```python and ```bash blocks are run in order, in one folder per page. A ```text block after a python block is its
# output. Before a block, a comment may say <!-- not run: REASON --> or <!-- file: NAME --> (write it to this file).

BLOCK = re.compile(r"(?:^<!-- (?P<comment>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"\d+\.\d+")


class Block(NamedTuple):
    line: int
    language: str
    code: str
    output: str | None
    skip: str | None
    file: str | None


def blocks_of(text):
    found = list(BLOCK.finditer(text))
    for match, after in zip(found, [*found[1:], None], strict=True):
        follows = after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
        kind, _, value = (match["comment"] or "").partition(":")
        yield Block(
            line=text[: match.start("code")].count("\n"),
            language=match["language"],
            code=match["code"],
            output=after["code"] if after is not None and follows else None,
            skip=value.strip() if kind == "not run" else None,
            file=value.strip() if kind == "file" else None,
        )


def same_text(found, wanted):
    """Equal up to the last digits of fractions, which depend on the machine."""
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (found, wanted)]
    words = [NUMBER.sub("#", text).split() for text in (found, wanted)]
    return words[0] == words[1] and np.allclose(*numbers, atol=0.02)


def run_python(block, names, capsys):
    capsys.readouterr()
    exec(compile(block.code, f"line {block.line}", "exec"), names)
    if block.output is not None:
        assert same_text(capsys.readouterr().out, block.output)


def run_bash(block, folder):
    commands = [shlex.split(line, comments=True) for line in block.code.splitlines()]
    if not all(is_plain_cll(words) for words in commands):
        return run_shell(block, folder)
    for words in commands:
        done = run_cll(*words[1:], cwd=folder)
        assert done.returncode == 0, f"line {block.line}: {done.stderr}"
    return None


def is_plain_cll(words):
    """Whether a line is a call of the command without anything that only a shell understands."""
    return words[:1] == ["cll"] and not set("".join(words)) & set("|&;<>()$`*?[]{}~!\\\n")


def run_shell(block, folder):
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", block.code]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PATH": tools}, capture_output=True, text=True)
    assert done.returncode == 0, f"line {block.line}: {done.stderr}"


def test_blocks_of_reads_comments_and_output():
    text = "\n".join(
        [
            *("a", "", "<!-- not run: GPU -->", "```bash", "x", "```", ""),
            *("```python", "y", "```", "", "```text", "z", "```", "<!-- file: a.b -->", "```toml", "```", ""),
        ]
    )
    bash, python, _, toml = blocks_of(text)
    assert (bash.line, bash.language, bash.code, bash.skip) == (4, "bash", "x\n", "GPU")
    assert (python.output, python.skip) == ("z\n", None)
    assert (toml.file, toml.code) == ("a.b", "")


def test_plain_cll_has_nothing_for_a_shell():
    assert is_plain_cll(shlex.split("cll train --out runs/x  # then; more", comments=True))
    assert not any(is_plain_cll(shlex.split(line)) for line in ("ls", "cll data list | head", "cll data list > a", ""))


def test_same_text_ignores_small_differences_of_fractions():
    assert same_text("accuracy: 0.832\n", "accuracy: 0.83")
    assert not same_text("accuracy: 0.93", "accuracy: 0.83")
    assert not same_text("accuracy: 0.83", "error: 0.83")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_blocks_that_are_not_run_give_a_reason(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- not run -->" not in text
    assert all(block.skip is None or len(block.skip) > 5 for block in blocks_of(text))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_code_blocks_run(page, tmp_path, monkeypatch, capsys, forked_workers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "results").symlink_to(ROOT / "results")
    np.save(tmp_path / "images.npy", np.zeros((3, 8, 8), np.uint8))  # what the reader has
    names = {"__name__": "__main__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.file is not None:
            Path(block.file).write_text(block.code, encoding="utf-8")
        elif block.skip is None and block.language == "python":
            run_python(block, names, capsys)
        elif block.skip is None and block.language == "bash":
            run_bash(block, tmp_path)


# --- the site -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ComplementaryClassifier" in (tmp_path / "reference/estimator/index.html").read_text(encoding="utf-8")


def test_floor_plan_of_contributing_shows_the_storeys():
    plan = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    rows = [re.sub(r"^ \| (.{30})\|.*", r"\1", line) for line in plan.splitlines() if not line.startswith(" +")]
    shown = [tuple(row.split("  ")) for row in (re.sub(r" {3,}.*", "", row.strip()) for row in rows)]
    assert shown == list(reversed(STOREYS))
