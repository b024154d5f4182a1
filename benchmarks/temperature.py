"""How well the temperature of a model is estimated from complementary labels of which some are wrong.

    python -m benchmarks.temperature --out results/temperature.json

The model is calibrated except for a factor T on its logits, by which they should be divided. Two estimators: the mean
of the posterior (`reports.temperature`), which exports use, and the maximum of the likelihood of temperature and rate
of wrong answers (`reports.answers`). Reported is the root mean square error of log T over draws, and how often the 95 %
interval of the first one contains T.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import labels, transitions
from complementary.files import atomic_write
from complementary.reports.answers import estimate_answer_noise, with_errors
from complementary.reports.temperature import estimate_temperature

CLASSES = 5
SETTINGS = ((150, 2, 8.0), (500, 2, 8.0), (2000, 1, 6.0))  # examples, answers per example, spread of the logits
RATES, TEMPERATURES = (0.0, 0.05, 0.15), (0.6, 1.0, 1.05, 1.6)


def simulate(
    examples: int, answers: int, spread: float, rate: float, temperature: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Complementary labels [N, K], a share ``rate`` of them wrong, and the probabilities [N, K] of the model."""
    source = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(examples, CLASSES, generator=source, dtype=torch.float64)
    truth = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    excluded = labels.draw(truth, with_errors(transitions.uniform(CLASSES), rate), answers, seed)
    return excluded, (logits * temperature).softmax(1)


def measure(examples: int, answers: int, spread: float, rate: float, temperature: float, draws: int) -> dict[str, Any]:
    """Errors of both estimators in one setting."""
    matrix, errors, hits = transitions.uniform(CLASSES), dict[str, list[float]](posterior=[], maximum=[]), 0
    for seed in range(draws):
        excluded, probabilities = simulate(examples, answers, spread, rate, temperature, seed)
        found = estimate_temperature(excluded, probabilities, matrix)
        hits += found.low <= temperature <= found.high
        errors["posterior"].append(math.log(found.value / temperature))
        maximum = estimate_answer_noise(excluded, probabilities, matrix).temperature
        errors["maximum"].append(math.log(maximum / temperature))
    squares = {name: round(math.sqrt(sum(e * e for e in values) / draws), 3) for name, values in errors.items()}
    setting = {"examples": examples, "answers": answers, "rate": rate, "temperature": temperature, "draws": draws}
    return setting | squares | {"coverage": round(hits / draws, 3)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Root mean square errors as Markdown: posterior (maximum), coverage."""
    temperatures = sorted({row["temperature"] for row in rows})
    lines = [
        "| examples, answers per example | wrong answers | " + " | ".join(f"T = {t:g}" for t in temperatures) + " |"
    ]
    lines.append("|---" * (2 + len(temperatures)) + "|")
    for key in dict.fromkeys((row["examples"], row["answers"], row["rate"]) for row in rows):
        own = {r["temperature"]: r for r in rows if (r["examples"], r["answers"], r["rate"]) == key}
        cells = [f"{own[t]['posterior']:.2f} ({own[t]['maximum']:.2f}), {100 * own[t]['coverage']:.0f} %" for t in own]
        lines.append(f"| {key[0]:,}, {key[1]} | {100 * key[2]:.0f} % | " + " | ".join(cells) + " |")
    unchanged = [f"{abs(math.log(t)):.2f}" for t in temperatures]
    return "\n".join([*lines, "| not calibrated | | " + " | ".join(unchanged) + " |"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulation, write its results and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the file of results, JSON")
    parser.add_argument("--draws", type=int, default=40)
    options = parser.parse_args(arguments)
    rows = [
        measure(*setting, rate, temperature, options.draws)
        for setting in SETTINGS
        for rate in RATES
        for temperature in TEMPERATURES
    ]
    atomic_write(options.out, json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
