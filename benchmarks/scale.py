"""Time and memory of import, clustering, training and prediction with large data, at sizes that double or quadruple.

    python -m benchmarks.scale images 50000 200000 --out results/scale/images.json
    python -m benchmarks.scale vectors 500000 2000000 --out results/scale/vectors.json
    python -m benchmarks.scale vectors 10000000 --no-csv --out results/scale/vectors-10m.json
    python -m benchmarks.scale images 20000 60000 1000000 --only predict --out results/scale/predict.json
    python -m benchmarks.scale images 20000 --only predict --encoder patches --out results/scale/predict-patches.json
    python -m benchmarks.scale vectors 500000 2000000 10000000 --only predict --out results/scale/predict-vectors.json
    python -m benchmarks.scale --page results/scale/*.json

Data are generated in a temporary folder and deleted afterwards. Every stage is a command in its own process with one
thread. CPU seconds are those of the process, so that they mean the same on a busy machine. Private memory is what the
process needs; the rest of its resident memory are pages of mapped files, which the system drops when it needs them.
"""

import argparse
import csv
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from complementary import files
from complementary.clusters.kmeans import LARGE

CLASSES, DIMENSIONS, SIDE = 10, 64, 32
BLOCK = 100_000
SMALL = 5000  # examples of the training before a measurement of prediction only
NAMES = [f"class {k}" for k in range(CLASSES)]


@dataclasses.dataclass(frozen=True)
class Stage:
    """A command and what it did.

    Attributes:
        name: Name in the tables.
        command: The words after ``cll``.
        seconds: Wall-clock time; other processes may share the cores.
        cpu_seconds: CPU time of the process, user and system.
        private_mb: Peak of the memory that belongs to the process alone, sampled every 20 ms.
        resident_mb: Peak of the resident memory, with mapped files.
    """

    name: str
    command: tuple[str, ...]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    private_mb: float = 0.0
    resident_mb: float = 0.0


# --- data ------------------------------------------------------------------------------------------


def labels_of(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """True classes [N] and one uniform complementary label each [N]."""
    random = np.random.default_rng(0)
    truth = random.integers(0, CLASSES, count)
    return truth, (truth + random.integers(1, CLASSES, count)) % CLASSES


def write_table(path: Path, names: Iterator[str], not_y: NDArray[np.int64]) -> None:
    """Write a CSV of answers: ``file,not``."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("file", "not"))
        table.writerows(zip(names, (NAMES[k] for k in not_y.tolist()), strict=True))


def write_images(folder: Path, count: int, as_files: bool = True) -> None:
    """Write images with a pattern per class and noise.

    Args:
        folder: Where to write: all pixels as ``new.npy``, the first ones with labels as ``small.npz``.
        count: Number of images.
        as_files: Also write JPEG files, 1,000 per subfolder, and the answers.
    """
    truth, not_y = labels_of(count)
    patterns = np.random.default_rng(1).integers(60, 196, (CLASSES, 4, 4, 3)).repeat(8, 1).repeat(8, 2)
    pixels = np.lib.format.open_memmap(folder / "new.npy", "w+", np.uint8, (count, SIDE, SIDE, 3))

    def write(start: int) -> None:
        rows = slice(start, min(start + 1000, count))
        noise = np.random.default_rng((2, start)).normal(0, 40, (rows.stop - start, SIDE, SIDE, 3))
        pixels[rows] = (patterns[truth[rows]] + noise).clip(0, 255)
        if not as_files:
            return
        home = folder / "photos" / f"{start // 1000:04}"
        home.mkdir(parents=True)
        for i in range(start, rows.stop):
            Image.fromarray(pixels[i]).save(home / f"{i}.jpg", quality=90)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(0, count, 1000)))
    pixels.flush()
    np.savez(folder / "small.npz", inputs=pixels[:SMALL], not_y=not_y[:SMALL], classes=NAMES)
    if not as_files:
        return
    write_table(folder / "answers.csv", (f"{i // 1000:04}/{i}.jpg" for i in range(count)), not_y)
    write_table(folder / "rows.csv", map(str, range(count)), not_y)


def write_vectors(folder: Path, count: int, with_csv: bool = True, with_labels: bool = True) -> None:
    """Write vectors float32 [N, 64] around a center per class.

    Args:
        folder: Where to write: all vectors as ``new.npy``, the first ones with labels as ``small.npz``.
        count: Number of vectors.
        with_csv: Also write the answers as CSV.
        with_labels: Also write all vectors with their labels as ``all.npz``.
    """
    truth, not_y = labels_of(count)
    centers = np.random.default_rng(1).normal(size=(CLASSES, DIMENSIONS)).astype(np.float32) * 0.5
    vectors = np.lib.format.open_memmap(folder / "new.npy", "w+", np.float32, (count, DIMENSIONS))
    for start in range(0, count, BLOCK):
        part = truth[start : start + BLOCK]
        noise = np.random.default_rng((2, start)).standard_normal((len(part), DIMENSIONS), np.float32)
        vectors[start : start + BLOCK] = centers[part] + noise
    vectors.flush()
    np.savez(folder / "small.npz", inputs=vectors[:SMALL], not_y=not_y[:SMALL], classes=NAMES)
    if with_labels:
        np.savez(folder / "all.npz", inputs=vectors, not_y=not_y.astype(np.uint8), classes=NAMES)
    if with_csv and with_labels:
        write_table(folder / "answers.csv", map(str, range(count)), not_y)


def stages(kind: str, folder: Path, with_csv: bool = True) -> list[Stage]:
    """The commands that are measured, in order."""
    new, table, clusters, out = (folder / name for name in ("new.npy", "answers.csv", "clusters.safetensors", "run"))
    k_means = ("--encoder", "pixels", "--clusters", "50", "--restarts", "1")
    icm = ("--mix", "icm", "--assignments", clusters, "--epochs", "1", "--out", out)
    model = "cnn" if kind == "images" else "mlp"
    commands: dict[str, tuple[object, ...]] = {}
    if kind == "images":
        photos = ("data", "import", folder / "photos", "--labels", table, "--size", SIDE, "--out", "large")
        commands["import a folder of JPEG files"] = photos
        rows = ("data", "import", new, "--labels", folder / "rows.csv", "--out", "rows")
        commands["import .npy and a CSV of answers"] = rows
    elif with_csv:
        commands["import .npy and a CSV of answers"] = ("data", "import", new, "--labels", table, "--out", "large")
    if kind == "vectors":
        both = ("data", "import", folder / "all.npz", "--replace", "--out", "large")
        commands["import one .npz with labels"] = both
    commands["k-means, 50 clusters, 1 start"] = ("cluster", "--data", "large", *k_means, "--out", clusters)
    commands[f"train one epoch ({model}, ICM)"] = ("train", "--data", "large", "--model", model, *icm)
    commands["predict"] = ("predict", out, new, "--out", folder / "predicted.csv")
    return [Stage(name, tuple(map(str, words))) for name, words in commands.items()]


def prediction_stages(kind: str, folder: Path, encoder: str | None) -> list[Stage]:
    """A training on a few examples, with features of the encoder if one is given, and the prediction of all."""
    model: tuple[str, ...] = ("--model", "cnn" if kind == "images" else "mlp")
    model = model if encoder is None else ("--inputs", "features", "--encoder", encoder)
    small, out = folder / "small.npz", folder / "run"
    train = ("train", "--data", small, "--mix", "none", "--epochs", 1, *model, "--out", out)
    predict = ("predict", out, folder / "new.npy", "--out", folder / "predicted.csv")
    name = "predict" if encoder is None else f"predict, features of {encoder}"
    return [Stage("", tuple(map(str, train))), Stage(name, tuple(map(str, predict)))]


# --- measurement -----------------------------------------------------------------------------------


def measure(stage: Stage, cache: Path) -> Stage:
    """Run the command with one thread and say what it took."""
    own = {"COMPLEMENTARY_CACHE": str(cache), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "complementary", *stage.command]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    private = [0.0]
    watch = threading.Thread(target=_watch, args=(process.pid, private), daemon=True)
    watch.start()
    assert process.stderr is not None
    with process.stderr:
        messages = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{messages.decode()}")
    watch.join()
    return dataclasses.replace(
        stage,
        seconds=round(time.perf_counter() - started, 1),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 1),
        private_mb=round(private[0] / 1e3),
        resident_mb=round(usage.ru_maxrss / 1e3),
    )


def _watch(process: int, peak: list[float]) -> None:
    """Keep the highest RssAnon (kB) of a process in ``peak`` until it ends."""
    status = Path(f"/proc/{process}/status")
    while True:
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            peak[0] = max(peak[0], float(lines["RssAnon"].split()[0]))
        except (OSError, KeyError):  # it has ended
            return
        time.sleep(0.02)


def run(
    kind: str,
    count: int,
    place: Path | None = None,
    with_csv: bool = True,
    only: str | None = None,
    encoder: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Generate data, measure the stages, delete the data. After each stage, yield what is known so far.

    Args:
        kind: images or vectors.
        count: Number of examples.
        place: Where to put the data; None: the folder for temporary files.
        with_csv: Whether to import a CSV of answers, too.
        only: ``predict``: only the prediction, by a network that was trained on a few of the examples.
        encoder: Encoder of that network; None: it is a CNN.
    """
    with tempfile.TemporaryDirectory(dir=place, prefix="scale-") as name:
        folder = Path(name)
        if kind == "images":
            write_images(folder, count, as_files=only is None)
        else:
            write_vectors(folder, count, with_csv, with_labels=only is None)
        measured = list[dict[str, Any]]()
        for stage in stages(kind, folder, with_csv) if only is None else prediction_stages(kind, folder, encoder):
            row = dataclasses.asdict(measure(stage, folder / "cache"))
            if not row["name"]:
                continue
            print(f"{count:,} {kind}: {row}", file=sys.stderr, flush=True)
            measured.append({key: value for key, value in row.items() if key != "command"})
            yield {"kind": kind, "count": count, "stages": measured}


def describe_machine() -> dict[str, Any]:
    """What the numbers depend on."""
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": model[0] if model else platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


# --- the tables of docs/guide/scale.md ---------------------------------------------------------------


def tables(records: list[dict[str, Any]]) -> str:
    """Tables in Markdown, one per kind: CPU time and private memory of each stage at each size.

    The last column is the target. What was not measured there is on the straight line through the two largest sizes,
    unless the line would mislead: k-means changes its method at `LARGE` points, and the memory of training on images is
    that of the evaluation in batches.
    """
    return "\n\n".join(
        _table([size for record in records for size in record["sizes"] if size["kind"] == kind], target)
        for kind, target in TARGETS.items()
        if any(size["kind"] == kind for record in records for size in record["sizes"])
    )


def _table(sizes: list[dict[str, Any]], target: int) -> str:
    found: dict[int, dict[str, Any]] = {}
    for size in sizes:
        found.setdefault(size["count"], {}).update({stage["name"]: stage for stage in size["stages"]})
    counts, kind = sorted({*found, target}), sizes[0]["kind"]
    rows = [f"| stage | {' | '.join(f'{count:,} {kind}' for count in counts)} |", "|---" * (1 + len(counts)) + "|"]
    names = dict.fromkeys(name for count in sorted(found) for name in found[count])
    for name in sorted(names, key=lambda name: (name.startswith("predict"), len(name) * name.startswith("predict"))):
        measured = {count: found[count][name] for count in counts if name in found.get(count, {})}
        cells = [_cell(measured[count]) if count in measured else _ahead(name, measured, count) for count in counts]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(stage: dict[str, Any]) -> str:
    return f"{stage['cpu_seconds']:,.0f} s, {stage['private_mb'] / 1e3:.1f} GB"


def _ahead(name: str, measured: dict[int, dict[str, Any]], target: int) -> str:
    """The value at ``target`` on the line through the two largest sizes; empty if there is none, or it is between."""
    if len(measured) < 2 or target < max(measured):
        return ""
    n, m = sorted(measured)[-2:]
    if name.startswith("k-means") and m <= LARGE < target:
        return "not measured"
    a, b = measured[n], measured[m]
    ahead = {key: b[key] + (b[key] - a[key]) / (m - n) * (target - m) for key in ("cpu_seconds", "private_mb")}
    return f"*{ahead['cpu_seconds']:,.0f} s*" if "(cnn" in name else f"*{_cell(ahead)}*"


TARGETS = {"images": 1_000_000, "vectors": 10_000_000}


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print the tables of stored results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", nargs="?", choices=list(TARGETS))
    parser.add_argument("counts", nargs="*", type=int, help="numbers of examples")
    parser.add_argument("--csv", default=True, action=argparse.BooleanOptionalAction, help="vectors: import a CSV, too")
    parser.add_argument("--only", choices=["predict"], help="measure the prediction only")
    parser.add_argument("--encoder", help="encoder of the network that predicts; otherwise it is a CNN")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--folder", type=Path, help="where to put the data while it is measured")
    parser.add_argument("--page", nargs="+", type=Path, help="print the tables of these files instead")
    options = parser.parse_args(arguments)
    if options.page:
        print(tables([json.loads(path.read_text()) for path in options.page]))
        return
    if not options.kind or not options.counts:
        parser.error("name images or vectors, and numbers of examples")
    sizes: dict[int, dict[str, Any]] = {}
    for count in options.counts:
        for found in run(options.kind, count, options.folder, options.csv, options.only, options.encoder):
            sizes[count] = found
            record = {"machine": describe_machine(), "sizes": list(sizes.values())}
            if options.out is not None:
                files.atomic_write(options.out, json.dumps(record, indent=1) + "\n")
    if options.out is None:
        print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
