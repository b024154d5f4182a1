"""``cll methods``."""

import json
from dataclasses import dataclass
from typing import Literal

import tyro

from complementary.cli.options import parse
from complementary.errors import plugin_names
from complementary.losses.registry import HEADER, METHODS, as_json, markdown, row
from complementary.reports.terminal import print_table


@dataclass(frozen=True)
class Methods:
    """List every loss and recipe, and what each assumes.

    Example: cll methods --labels any
    """

    labels: Literal["all", "uniform", "random", "any"] = "all"
    """Only methods with this assumption about labels. any: no assumption, because they use the transition matrix."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print JSON."""
    markdown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the tables of the documentation."""


def main(arguments: list[str]) -> None:
    """The command ``cll methods``."""
    options = parse(Methods, arguments, "cll methods")
    chosen = [m for m in METHODS.values() if options.labels in ("all", m.labels)]
    if options.json:
        names = {m.name for m in chosen}
        print(json.dumps([entry for entry in as_json() if entry["name"] in names], indent=1))
        return
    if options.markdown:
        print(markdown("loss"), markdown("recipe"), sep="\n", end="")
        return
    for kind in ("loss", "recipe"):
        print(f"values of the option {kind}:")
        print_table(HEADER, [row(method) for method in chosen if method.kind == kind])
        print()
    print("further recipes: auto (chosen for the data and the device), icm (mixes within clusters), features (a linear")
    print("layer on a frozen encoder).")
    own = {kind: plugin_names(kind) for kind in ("losses", "mixers", "encoders", "datasets")}
    if any(own.values()):
        print("plug-ins: " + "; ".join(f"{kind} {', '.join(names)}" for kind, names in own.items() if names))
    print("labels: uniform (every wrong class is equally likely), random (label k is equally likely for all classes")
    print("but k; labels may differ in frequency), any.")
    print("matrix: the transition matrix. prior: that of the classes, estimated from the training labels.")
