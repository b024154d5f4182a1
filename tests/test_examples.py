"""The scripts in examples/ run and print plausible results."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def run(name, tmp_path):
    environment = os.environ | {"COMPLEMENTARY_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, FOLDER / name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_is_shorter_than_60_lines(path):
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.slow
def test_own_loop_learns_from_complementary_labels(tmp_path):
    accuracy, noise = map(float, re.findall(r"0\.\d+", run("own_loop.py", tmp_path)))
    assert accuracy > 0.8
    assert noise < 0.05


@pytest.mark.slow
def test_own_images_predicts_the_class_of_new_images(tmp_path):
    rows = run("own_images.py", tmp_path).split("file,class,probability\n")[1].split()
    assert [row.rsplit(",", 1)[0] for row in rows] == ["blue.png,blue", "green.png,green", "red.png,red"]


@pytest.mark.slow
def test_encoder_and_icm_lowers_the_noise_ratio(tmp_path):
    rows = [line.split() for line in run("encoder_and_icm.py", tmp_path).splitlines()[1:]]
    noise = {(mix, encoder): float(value) for mix, encoder, value, _ in rows}
    assert max(noise["icm", "pixels"], noise["icm", "simsiam"]) < noise["mixup", "pixels"] / 2
    assert all(float(row[3]) > 0.6 for row in rows)


@pytest.mark.slow
def test_own_parts_train_in_python_and_on_the_command_line(tmp_path):
    printed = run("own_parts.py", tmp_path)
    assert printed.startswith("__main__:squared")
    assert float(re.search(r"0\.\d+", printed)[0]) > 0.8
    parts = {"--data": "stripes", "--loss": "squared", "--mix": "SameSide", "--encoder": "edges"}
    options = [word for option, name in parts.items() for word in (option, f"own_parts:{name}")]
    command = [sys.executable, "-m", "complementary", "train", *options, "--epochs", "2", "--out", "run"]
    environment = os.environ | {"PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'loss = "own_parts:squared"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.slow
def test_lightning_loop_learns_from_complementary_labels(tmp_path):
    pytest.importorskip("lightning")
    assert float(re.findall(r"0\.\d+", run("lightning_loop.py", tmp_path))[-1]) > 0.45


@pytest.mark.slow
def test_annotators_finds_the_careless_one(tmp_path):
    found = re.findall(r"wrong in (\S+) ± \S+ of 1797 answers \(truly (\S+)\)", run("annotators.py", tmp_path))
    (ann, _), (bob, _), (eve, _) = found
    assert all(abs(float(estimate) - float(truth)) < 0.025 for estimate, truth in found)
    assert float(ann) < float(bob) < float(eve)
