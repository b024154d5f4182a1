"""``cll bench``: run the benchmarks of the checkout (the folder benchmarks/, which is not part of the wheel)."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import complementary
from complementary.errors import UserError


def main(arguments: list[str]) -> None:
    """Find the benchmarks and pass the options on."""
    root = find_checkout([Path(complementary.__file__).parents[2], Path.cwd()])
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    run: Callable[..., None] = import_module("benchmarks.speed").main
    run(arguments, "cll bench")


def find_checkout(places: list[Path]) -> Path:
    """The first of the places that contains the benchmarks."""
    for root in places:
        if (root / "benchmarks" / "speed.py").is_file():
            return root
    raise UserError(
        "The benchmarks are not part of the installed package. Clone the repository and run cll bench in its folder "
        f"(looked in {' and '.join(map(str, places))})."
    )
