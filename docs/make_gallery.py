"""Write docs/guide/gallery.md from the numbered scripts in examples/ and their stored output.

python docs/make_gallery.py                   # the page
python docs/make_gallery.py --run 02 06       # first run these scripts (no number: all) and store their output
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES, PAGE = ROOT / "examples", ROOT / "docs/guide/gallery.md"
HEAD = """# Gallery

<!-- written by docs/make_gallery.py; edit the scripts in examples/ instead -->

Short complete scripts, one per situation, with what they print. They need no download, and take a few seconds on one
core (1 and 11: a minute). They are in the folder `examples/` of the repository.
"""


def scripts() -> list[Path]:
    """The numbered scripts, in order."""
    return sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))


def output_of(script: Path) -> Path:
    """The file with the stored output of a script."""
    return EXAMPLES / "output" / f"{script.stem}.txt"


def parts(text: str) -> tuple[str, str, str, str]:
    """A script -> its title, the situation, the code, and what the output says (the comment at the end)."""
    tree = ast.parse(text)
    title, _, situation = (ast.get_docstring(tree) or "").partition("\n")
    lines = text.rstrip().splitlines()
    end = len(lines)
    while lines[end - 1].startswith("#"):
        end -= 1
    code = "\n".join(lines[tree.body[0].end_lineno or 0 : end]).strip()
    return title, situation.strip(), code, "\n".join(line.removeprefix("# ") for line in lines[end:])


def section(script: Path) -> str:
    """The part of the page about one script."""
    title, situation, code, meaning = parts(script.read_text(encoding="utf-8"))
    printed = output_of(script).read_text(encoding="utf-8").rstrip()
    not_run = "<!-- not run: tests/test_examples.py runs the script -->"
    return (
        f"## {int(script.stem[:2])}. {title}\n\n{situation}\n\n`examples/{script.name}`:\n\n"
        f"{not_run}\n```python\n{code}\n```\n\n```text\n{printed}\n```\n\n{meaning}\n"
    )


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(section, scripts())])


def run(script: Path) -> str:
    """Run a script in an empty folder with an empty cache and one thread -> what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"COMPLEMENTARY_CACHE": f"{folder}/.cache", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script)]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.replace(folder, ".")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", nargs="*", metavar="NUMBER", help="run these scripts first; no number: all")
    numbers = parser.parse_args().run
    for script in scripts():
        if numbers is not None and (not numbers or script.stem[:2] in numbers):
            output_of(script).parent.mkdir(exist_ok=True)
            output_of(script).write_text(run(script), encoding="utf-8")
            print(script.name, flush=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
