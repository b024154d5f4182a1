"""A grid of configurations, read from a TOML file.

data = "digits"                 # options of all cells: flat, or by section as in config.toml
epochs = 30
seeds = 3                       # 0, 1, 2; or a list

[grid]                          # every combination of these
loss = ["s-nl", "dm"]
mix = ["none", "icm"]

[[case]]                        # options that belong together; each case is combined with the grid
long_tail = 1
[[case]]
long_tail = 100
alpha = 0.1
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complementary.config import Config, load_toml, options_of
from complementary.errors import UserError

HOMES = options_of(Config)
SECTIONS = set(HOMES.values()) - {""}
DEFAULT_NAME = ("data", "loss", "mix", "seed")  # options that name a cell in which nothing varies


@dataclass(frozen=True)
class Cell:
    """One configuration of a grid. The name lists the options that vary: ``loss=dm mix=icm seed=0``."""

    config: Config
    name: str

    @property
    def key(self) -> str:
        """The name of its folder: the first 16 digits of the configuration's hash."""
        return self.config.hash()[:16]


def read_grid(path: str | Path) -> list[Cell]:
    """Read all cells of a grid, in the order cases, [grid], seeds; the last varies fastest."""
    content = load_toml(path, "grid")
    try:
        return _make_grid(content)
    except UserError as error:
        raise UserError(f"The grid {path}: {error}") from None


def _make_grid(content: dict[str, Any]) -> list[Cell]:
    """Make all cells from the content of a grid file."""
    content = dict(content)
    axes = _axes(content.pop("grid", {}))
    cases = _cases(content.pop("case", [{}]), axes)
    seeds = _seeds(content.pop("seeds", None), {*axes, *(name for case in cases for name in case)})
    options = _base(content)
    cells: dict[str, Cell] = {}
    for case, values, seed in itertools.product(cases, itertools.product(*axes.values()), seeds):
        varied = case | dict(zip(axes, values, strict=True)) | ({} if seed is None else {"seed": seed})
        config = Config.of(**(options | varied))
        if config.training.recipe == "auto":
            raise UserError(
                "recipe = auto is not possible here: the options of a cell must be known; name a recipe.", "recipe"
            )
        shown = varied or {name: config.flat()[name] for name in DEFAULT_NAME}
        cell = Cell(config, " ".join(f"{name}={value}" for name, value in shown.items()))
        if cell.key in cells:
            raise UserError(f"two cells are the same ({cells[cell.key].name}; {cell.name}); remove one.")
        cells[cell.key] = cell
    return list(cells.values())


def _base(content: dict[str, Any]) -> dict[str, Any]:
    """The options of all cells, flat."""
    options: dict[str, Any] = {}
    for name, value in content.items():
        if name in SECTIONS and isinstance(value, dict):
            for inner in value:
                if HOMES.get(inner) != name:
                    raise UserError(f"{inner!r} is not an option of the section [{name}].")
                if inner in content:
                    found = f"{inner} is {content[inner]!r} at the top and {value[inner]!r} in [{name}]"
                    raise UserError(f"{found}, but an option can be set only once; remove one of them.")
            options |= value
        elif name not in HOMES:
            known = f"an option, one of the sections {', '.join(sorted(SECTIONS))}, or grid, case, seeds"
            raise UserError(f"{name!r} is not known; use {known}.")
        else:
            options[name] = value
    return options


def _axes(grid: object) -> dict[str, list[Any]]:
    if not isinstance(grid, dict):
        raise UserError(f"grid is {grid!r}, but it must be a table: [grid], then option = [values].")
    for name, values in grid.items():
        _check_option(name, "[grid]")
        if not isinstance(values, list):
            raise UserError(f"{name} in [grid] is {values!r}, but it must be a list of values: {name} = [{values!r}].")
        if not values:
            raise UserError(f"{name} in [grid] is an empty list; give at least one value.")
    return grid


def _cases(cases: object, axes: dict[str, list[Any]]) -> list[dict[str, Any]]:
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UserError("case must be a list of tables: [[case]], then option = value.")
    if not cases:
        raise UserError("case is an empty list; remove it or give at least one [[case]].")
    for name in (name for case in cases for name in case):
        _check_option(name, "[[case]]")
        if name in axes:
            raise UserError(f"{name} is in [grid] and in a [[case]]; keep one of them.")
    return cases


def _check_option(name: str, place: str) -> None:
    if name not in HOMES:
        raise UserError(f"{name!r} in {place} is not an option; choose from: {', '.join(HOMES)}.")


def _seeds(seeds: object, varied: set[str]) -> list[int | None]:
    """The seeds; [None] keeps the seed of the options."""
    if seeds is None:
        return [None]
    if "seed" in varied:
        raise UserError("both seed and seeds are varied; keep one of them.")
    found = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    if not isinstance(found, list) or not all(type(seed) is int for seed in found):
        raise UserError(f"seeds is {seeds!r}, but it must be a number of seeds or a list of integers.")
    if not found:
        raise UserError(f"seeds is {seeds!r}; give at least one seed.")
    return list(found)
