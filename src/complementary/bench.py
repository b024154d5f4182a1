"""Measure the speed of this machine: ``cll bench``, or ``python -m complementary.bench`` where only torch is there.

    from complementary.bench import bench
    results = bench(quick=True, only=["steps"])      # a dictionary that can be stored as JSON

A section that fails says so in one line, and the others go on. What the figures were on one H200: docs/speed.md.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from complementary import bench_parts, bench_reference, bench_stacked, bench_training
from complementary.bench_report import text
from complementary.bench_setting import CPU, GPU, QUICK, Row, Scale, Setting, held_memory, release_memory
from complementary.engine.backend import Engine, device_name, versions
from complementary.errors import UserError, one_of
from complementary.files import write_bytes

Say = Callable[[str], None]
COMPILER = ("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", "TORCHINDUCTOR_MAX_AUTOTUNE")  # what may change the kernels


@dataclass(frozen=True)
class Section:
    """One part of the benchmark: ``on`` which kinds of device it runs unless others are asked for."""

    measure: Callable[[Setting], list[Row]]
    line: str
    on: tuple[str, ...] = ("cuda", "cpu")


SECTIONS: dict[str, Section] = {  # the most important first
    "steps": Section(bench_training.steps, "images/s of none, mixup, icm, micm; seconds to the first step"),
    "reference": Section(bench_reference.reference, "ours against a plain loop, as one would usually write it"),
    "stages": Section(bench_training.stages, "milliseconds of load, mix, forward + backward, optimiser, evaluation"),
    "simsiam": Section(bench_training.simsiam, "views/s of SimSiam"),
    "packing": Section(bench_training.packing, "several trainings on one card", ("cuda",)),
    "stacking": Section(bench_stacked.stacking, "several networks as one, by grouped convolutions", ("cuda",)),
    "no-max-pool": Section(bench_training.no_max_pool, "images/s of resnet18 without its max-pool", ("cuda",)),
    "kmeans": Section(bench_parts.kmeans, "k-means, beside scikit-learn's"),
    "labels": Section(bench_parts.label_generation, "drawing a million labels"),
    "scan": Section(bench_parts.scan, "the mixing alone as batch, clusters, classes and N grow"),
    "stream": Section(bench_parts.stream, "training on images that stay in a memory map, beside resident ones", ()),
    "byol": Section(bench_training.byol, "views/s of BYOL", ("cpu",)),
    "mocov3": Section(bench_training.mocov3, "views/s of MoCo v3", ("cpu",)),  # on a GPU each compiles for long
}


def bench(
    device: str | Engine = "auto",
    quick: bool = False,
    only: Sequence[str] | None = None,
    say: Say = print,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measure -> what was found: ``sections`` has for each its ``rows``, or the ``error`` that ended it.

    ``only``: names of `SECTIONS`; by default those that pay on this kind of device. ``quick``: a few seconds, to see
    that everything runs; its figures mean nothing. ``say`` is told what is being measured. ``out``: a JSON file,
    written after every section, so that what was found is there even if the rest is stopped.
    """
    for name in only or ():
        one_of("The section", name, SECTIONS)
    engine = Engine.of(device)
    scale = QUICK if quick else GPU if engine.device.type == "cuda" else CPU
    setting, results = Setting(engine, scale, say), about(engine, scale, quick)
    for name, section in SECTIONS.items():
        if name in (only or ()) or (not only and engine.device.type in section.on):
            results["sections"][name] = run_section(name, setting)
            if out is not None:
                write_bytes(out, (json.dumps(results, indent=1) + "\n").encode())
    found: dict[str, Any] = json.loads(json.dumps(results))  # lists for tuples: the same as from a file
    return found


def about(engine: Engine, scale: Scale, quick: bool) -> dict[str, Any]:
    """What a reader must know of the figures: machine, versions, settings, date."""
    how = {"precision": engine.precision, "compile": engine.compile, "deterministic": engine.deterministic}
    return {
        "device": device_name(engine.device),
        "device_type": engine.device.type,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "engine": how,
        "compiler": {name: value for name, value in os.environ.items() if name in COMPILER},
        "scale": dataclasses.asdict(scale),
        "sections": {},
    }


def run_section(name: str, setting: Setting) -> dict[str, Any]:
    """Rows of a section, how long it took and the memory it needed; in place of rows the error, if it failed."""
    release_memory(setting.device)
    began = time.perf_counter()
    try:
        found: dict[str, Any] = {"rows": SECTIONS[name].measure(setting)}
    except Exception as error:
        lines = str(error).splitlines() or [""]
        found = {"error": f"{type(error).__name__}: {lines[0]}"}
        setting.say(f"The section {name} failed and is left out: {found['error']}")
    found["seconds"] = round(time.perf_counter() - began, 1)
    return found | {"peak_bytes": held_memory(setting.device)}


def check_file(path: Path) -> None:
    """Raise before anything is measured if the results could not be written to ``path``; make its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {path.parent} cannot be made: {error.strerror}; choose another file.") from None
    if path.is_dir():
        raise UserError(f"{path} is a folder; --json needs the name of a file, such as {path / 'bench.json'}.")


def to_stderr(line: str) -> None:
    """Tell what is going on without disturbing the tables."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """``python -m complementary.bench``: the same as ``cll bench``, with nothing but torch installed."""
    parser = argparse.ArgumentParser("python -m complementary.bench", description="Measure the speed of this machine.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--precision", default="auto", choices=("auto", "bf16", "fp32"), help="as in cll train")
    parser.add_argument("--quick", action="store_true", help="see in seconds whether all of it runs")
    parser.add_argument("--only", nargs="+", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = parser.parse_args(arguments)
    try:
        if options.json is not None:
            check_file(options.json)
        engine = Engine.choose(options.device, options.precision)
        results = bench(engine, options.quick, options.only, to_stderr, options.json)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(text(results))


if __name__ == "__main__":
    main()
