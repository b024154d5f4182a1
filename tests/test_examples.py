"""The gallery: the scripts in examples/ run, print what is stored, and the page shows them."""

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import start_cll

ROOT = Path(__file__).parent.parent
SLOW = ("03", "07", "11", "12")
TESTED_ALONE = ("01", "09")


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("make_gallery", ROOT / "docs/make_gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NUMBERED = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
ALL = sorted((ROOT / "examples").glob("*.py"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def assert_same_output(found, stored):
    """Equal up to numbers, and those up to 0.1 or 15 %, because they depend on the machine."""
    assert NUMBER.sub("#", found).split() == NUMBER.sub("#", stored).split()
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (found, stored)]
    np.testing.assert_allclose(*numbers, atol=0.1, rtol=0.15)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty folder and cache, and the arguments of a script without arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["example"])
    return tmp_path


@pytest.mark.parametrize("path", ALL, ids=[path.stem for path in ALL])
def test_example_is_shorter_than_60_lines(path):
    assert len(path.read_text().splitlines()) < 60


def test_gallery_is_numbered_without_gaps(gallery):
    assert [int(path.stem[:2]) for path in gallery.scripts()] == list(range(1, len(NUMBERED) + 1))
    assert {path.name for path in ALL} - {path.name for path in NUMBERED} == {"serve_onnx.py"}
    stored = {path.stem for path in (ROOT / "examples/output").iterdir()}
    assert stored == {path.stem for path in NUMBERED}


def test_gallery_page_shows_the_scripts_and_their_output(gallery):
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(), "run: python docs/make_gallery.py"


def test_gallery_parts_of_a_script(gallery):
    text = '"""Title\n\nWhy.\n"""\n\nimport os\n\nprint(1)\n\n# It says\n# one.\n'
    assert gallery.parts(text) == ("Title", "Why.", "import os\n\nprint(1)", "It says\none.")


@pytest.mark.parametrize("path", NUMBERED, ids=[path.stem for path in NUMBERED])
def test_gallery_scripts_say_what_the_situation_is_and_what_the_output_says(gallery, path):
    title, situation, code, meaning = gallery.parts(path.read_text())
    assert 10 < len(title) < 90
    assert len(situation) > 100
    assert len(meaning) > 80
    assert '"""' + title not in code


def test_same_output_notices_other_words_and_numbers():
    assert_same_output("accuracy 0.85, 63 found", "accuracy 0.81, 60 found")
    for other in ("accuracy 0.60, 63 found", "accuracy 0.85, 90 found", "error 0.85, 63 found", "accuracy 0.85"):
        with pytest.raises(AssertionError):
            assert_same_output(other, "accuracy 0.85, 63 found")


def marked(path):
    marks = [pytest.mark.slow] if path.stem[:2] in SLOW else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [marked(path) for path in NUMBERED if path.stem[:2] not in TESTED_ALONE])
def test_example_prints_the_stored_output(gallery, path, in_folder, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert_same_output(capsys.readouterr().out, gallery.output_of(path).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_lightning_prints_the_stored_output(gallery):
    """In its own process, because Lightning warns about the machine."""
    script = ROOT / "examples/09_lightning.py"
    assert_same_output(gallery.run(script), gallery.output_of(script).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_own_photos_are_imported_and_predicted(in_folder, capfd, monkeypatch):
    def run_forked(words, check, stderr):
        assert (words[:3], check) == ([sys.executable, "-m", "complementary"], True)
        assert start_cll(*words[3:], stderr=stderr).wait() == 0

    monkeypatch.setattr(subprocess, "run", run_forked)
    runpy.run_path(str(ROOT / "examples/01_own_photos.py"), run_name="__main__")
    start, rows = capfd.readouterr().out.split("file,class,probability\n")
    assert "1,786 train" in start
    assert "99.png" in start
    assert "lost.png" in start
    found = [row.split(",")[:2] for row in rows.split()]
    assert len(found) == 10
    assert sum(file.removesuffix(".png") == word for file, word in found) >= 7


@pytest.mark.slow
def test_own_parts_train_on_the_command_line(in_folder):
    """By module:name, and by the short names of the entry points of an installed package."""
    shutil.copy(ROOT / "examples/10_own_parts.py", in_folder / "own_parts.py")
    info = in_folder / "own_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own_parts\nVersion: 1.0\n")
    points = {"losses": "squared", "mixers": "SameAnswer", "encoders": "edges", "datasets": "stripes"}
    groups = [f"[complementary.{kind}]\nmy-{name} = own_parts:{name}\n" for kind, name in points.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    options = ["--data", "own_parts:stripes", "--loss", "own_parts:squared"]
    options += ["--mix", "my-SameAnswer", "--encoder", "my-edges", "--epochs", "2"]
    code = (
        f"from complementary import cli, data, losses\ntry:\n    cli.main(['train', *{options}, '--out', 'run'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "losses.build('my-squared')\nprint(len(data.load('my-stripes').train))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n2000\n")
    stored = (in_folder / "run/config.toml").read_text()
    assert 'loss = "own_parts:squared"' in stored
    assert 'mix = "my-SameAnswer"' in stored
