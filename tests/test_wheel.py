"""The built wheel works alone, outside the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEMO = ["demo", "--seeds", "1", "--epochs", "1", "--pretrain-epochs", "1", "--clusters", "5", "--out", "demo"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that the checkout stays clean."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [*("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"), "-w", str(out), "."]
    subprocess.run([sys.executable, *build], cwd=source, check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_wheel_contains_the_package_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"complementary", "complementary-0.1.0.dist-info"}
    assert "complementary/py.typed" in names
    assert "complementary/paper/numbers/results.csv" in names
    assert not [name for name in names if "bench" in name and name != "complementary/cli/bench.py"]


@pytest.mark.slow
def test_wheel_runs_the_demo_outside_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    pip = [*("-m", "pip", "--python", str(python), "install"), *("--quiet", "--no-deps", "--no-index", str(wheel))]
    subprocess.run([sys.executable, *pip], check=True, capture_output=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # torch and others
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept | {"COMPLEMENTARY_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def cll(*options):
        command = [tmp_path / "venv/bin/cll", *options]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    code = "import complementary; print(complementary.__file__)"
    where = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert Path(where.stdout.strip()).is_relative_to(site)
    done = cll(*DEMO)
    assert done.returncode == 0, done.stderr
    assert "micm" in done.stdout
    assert (tmp_path / "demo/report.html").exists()
    bench = cll("bench")
    assert bench.returncode == 2
    assert "Clone the repository" in bench.stderr
