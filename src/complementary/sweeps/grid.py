"""A grid of configurations, read from a TOML file.

data = "digits"                 # options for all cells: flat, or by section as in config.toml
epochs = 30
seeds = 3                       # 0, 1, 2; or a list

[grid]                          # every combination of these
loss = ["s-nl", "dm"]
mix = ["none", "icm"]

[[case]]                        # options that belong together; the combinations run over the cases too
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
USUAL = ("data", "loss", "mix", "seed")  # the name of a cell in which nothing varies


@dataclass(frozen=True)
class Cell:
    """One configuration of a grid, and the options that tell it from the others: ``loss=dm mix=icm seed=0``."""

    config: Config
    name: str

    @property
    def key(self) -> str:
        """The name of its folder: 16 hexadecimal digits."""
        return self.config.hash()[:16]


def read_grid(path: str | Path) -> list[Cell]:
    """All cells of the grid, in the order cases, [grid], seeds; the last varies fastest."""
    content = load_toml(path, "grid")
    try:
        return make_grid(content)
    except UserError as error:
        raise UserError(f"The grid {path}: {error}") from None


def make_grid(content: dict[str, Any]) -> list[Cell]:
    """The same from the content of such a file."""
    content = dict(content)
    axes = _axes(content.pop("grid", {}))
    cases = _cases(content.pop("case", [{}]), axes)
    linked = {name for case in cases for name in case}
    seeds = _seeds(content.pop("seeds", None), {*axes, *linked})
    base = Config.of(**_base(content))
    cells: dict[str, Cell] = {}
    for case, values, seed in itertools.product(cases, itertools.product(*axes.values()), seeds):
        varied = case | dict(zip(axes, values, strict=True)) | ({} if seed is None else {"seed": seed})
        config = base.with_(**varied)
        cell = Cell(config, _name(varied or {name: config.flat()[name] for name in USUAL}))
        if cell.key in cells:
            raise UserError(f"two cells are the same ({cells[cell.key].name}; {cell.name}); drop one.")
        cells[cell.key] = cell
    return list(cells.values())


def _name(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


def _base(content: dict[str, Any]) -> dict[str, Any]:
    """The options for all cells, flat."""
    options: dict[str, Any] = {}
    for name, value in content.items():
        if name in SECTIONS and isinstance(value, dict):
            for inner in value:
                if HOMES.get(inner) != name:
                    raise UserError(f"{inner!r} in [{name}] is not an option there.")
            options |= value
        elif name not in HOMES:
            known = f"an option, one of the sections {', '.join(sorted(SECTIONS))}, or grid, case, seeds"
            raise UserError(f"{name!r} is not known; wanted {known}.")
        else:
            options[name] = value
    return options


def _axes(grid: object) -> dict[str, list[Any]]:
    if not isinstance(grid, dict):
        raise UserError(f"grid is {grid!r}, but it must be a table: [grid], then option = [values].")
    for name, values in grid.items():
        _known(name, "[grid]")
        if not isinstance(values, list):
            raise UserError(f"{name} in [grid] is {values!r}, but it must be a list of values: {name} = [{values!r}].")
        if not values:
            raise UserError(f"{name} in [grid] is an empty list, so that no cell is left; give at least one value.")
    return grid


def _cases(cases: object, axes: dict[str, list[Any]]) -> list[dict[str, Any]]:
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UserError("case must be a list of tables: [[case]], then option = value.")
    if not cases:
        raise UserError("case is an empty list, so that no cell is left; drop it or give at least one [[case]].")
    for name in (name for case in cases for name in case):
        _known(name, "[[case]]")
        if name in axes:
            raise UserError(f"{name} stands both in [grid] and in a [[case]]; keep one of them.")
    return cases


def _known(name: str, place: str) -> None:
    if name not in HOMES:
        raise UserError(f"{name!r} in {place} is not an option; choose from: {', '.join(HOMES)}.")


def _seeds(seeds: object, varied: set[str]) -> list[int | None]:
    """The seeds; [None] where the file has none, and then they are as the options say."""
    if seeds is None:
        return [None]
    if "seed" in varied:
        raise UserError("seed is varied already, and there is seeds too; keep one of them.")
    counted = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    if not isinstance(counted, list) or not all(type(seed) is int for seed in counted):
        raise UserError(f"seeds is {seeds!r}, but it must be a number of seeds or a list of whole numbers.")
    if not counted:
        raise UserError(f"seeds is {seeds!r}, so that no cell is left; ask for at least one.")
    return list(counted)
