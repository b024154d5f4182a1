"""Measure the speed of this machine: ``cll bench`` in a checkout, or ``python -m benchmarks`` with only torch.

    from benchmarks.speed import bench
    results = bench(quick=True, only=["steps"])      # a dictionary that can be stored as JSON

A section that fails is reported in one line, and the others still run. Results on one H200: docs/notes/speed.md.
"""

import argparse
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import parts, plain_loop, training
from benchmarks.report import text
from benchmarks.setting import CPU, GPU, QUICK, Row, Scale, Setting, log, release_memory, reserved_memory
from complementary import files
from complementary.engine.backend import Engine, device_name, versions
from complementary.errors import UserError, one_of

COMPILER = ("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", "TORCHINDUCTOR_MAX_AUTOTUNE")  # they may change the kernels


@dataclass(frozen=True)
class Section:
    """One part of the benchmark. ``on``: the device types it runs on by default."""

    measure: Callable[[Setting], list[Row]]
    summary: str
    on: tuple[str, ...] = ("cuda", "cpu")


SECTIONS: dict[str, Section] = {  # the most important first
    "steps": Section(training.steps, "images/s of none, mixup, icm, micm; seconds to the first step"),
    "reference": Section(plain_loop.reference, "this package against a plain training loop"),
    "stages": Section(training.stages, "milliseconds of load, mix, forward + backward, optimizer, evaluation"),
    "simsiam": Section(training.simsiam, "views/s of SimSiam"),
    "packing": Section(training.packing, "several trainings on one GPU", ("cuda",)),
    "no-max-pool": Section(training.no_max_pool, "images/s of resnet18 without max-pool", ("cuda",)),
    "kmeans": Section(parts.kmeans, "k-means, and scikit-learn's for comparison"),
    "labels": Section(parts.label_generation, "drawing a million labels"),
    "scan": Section(parts.scan, "mixing alone for growing batch, clusters, classes and examples"),
    "stream": Section(parts.stream, "training on images in a memory map, and on resident ones", ()),
    "byol": Section(training.byol, "views/s of BYOL", ("cpu",)),
    "mocov3": Section(training.mocov3, "views/s of MoCo v3", ("cpu",)),  # both compile for long on a GPU
}


def bench(
    device: str | Engine = "auto", quick: bool = False, only: Sequence[str] | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Run the benchmark.

    Args:
        device: Device name, or an engine with its precision.
        quick: Check in a few seconds that every section runs. The numbers are meaningless.
        only: Names of `SECTIONS`. Default: those that are useful on this type of device.
        out: JSON file, written after every section, so that an interrupted benchmark keeps its results.

    Returns:
        Machine, versions, settings and ``sections``: for each its ``rows``, or the ``error`` that ended it.
    """
    for name in only or ():
        one_of("The section", name, SECTIONS)
    engine = Engine.of(device)
    scale = QUICK if quick else GPU if engine.device.type == "cuda" else CPU
    setting, results = Setting(engine, scale), about(engine, scale, quick)
    for name, section in SECTIONS.items():
        if name in (only or ()) or (not only and engine.device.type in section.on):
            results["sections"][name] = run_section(name, setting)
            if out is not None:
                files.atomic_write(out, json.dumps(results, indent=1) + "\n")
    found: dict[str, Any] = json.loads(json.dumps(results))  # lists for tuples, as when read from a file
    return found


def about(engine: Engine, scale: Scale, quick: bool) -> dict[str, Any]:
    """The machine, versions, settings and date of a benchmark."""
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
    """Rows of a section (or its error), its duration and the memory it needed."""
    release_memory(setting.device)
    began = time.perf_counter()
    try:
        found: dict[str, Any] = {"rows": SECTIONS[name].measure(setting)}
    except Exception as error:
        lines = str(error).splitlines() or [""]
        found = {"error": f"{type(error).__name__}: {lines[0]}"}
        log.warning("The section %s failed and is left out: %s", name, found["error"])
    found["seconds"] = round(time.perf_counter() - began, 1)
    return found | {"peak_bytes": reserved_memory(setting.device)}


def check_file(path: Path) -> None:
    """Raise before anything is measured if the results cannot be written to ``path``; create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {path.parent} cannot be created: {error.strerror}; choose another file.") from None
    if path.is_dir():
        raise UserError(f"{path} is a folder; --json needs the name of a file, such as {path / 'bench.json'}.")


def main(arguments: list[str] | None = None, prog: str = "python -m benchmarks") -> None:
    """The command line."""
    sections = "; ".join(f"{name}: {section.summary}" for name, section in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog,
        description="Measure training, pretraining, k-means and mixing on this machine; compare with a plain loop.",
    )
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda, cuda:1 ...")
    parser.add_argument("--precision", default="auto", choices=("auto", "bf16", "fp32"), help="as in cll train")
    parser.add_argument("--quick", action="store_true", help="check in seconds that everything runs")
    parser.add_argument("--only", nargs="+", metavar="SECTION", help=f"measure only these: {sections}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    options = parser.parse_args(arguments)
    progress = logging.StreamHandler(sys.stderr)
    log.addHandler(progress)
    log.setLevel(logging.INFO)
    try:
        if options.json is not None:
            check_file(options.json)
        engine = Engine.choose(options.device, options.precision)
        results = bench(engine, options.quick, options.only, options.json)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    finally:
        log.removeHandler(progress)
    print(text(results))


if __name__ == "__main__":
    main()
