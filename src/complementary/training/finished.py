"""A finished run together with its data: what its report and its export are computed from."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import data
from complementary.config import Config, read_toml
from complementary.data import Dataset
from complementary.data.selection import label_source, select, transition_matrices, validation_split
from complementary.engine.backend import choose_device
from complementary.engine.run_folder import read_result
from complementary.errors import UserError
from complementary.reports.temperature import Temperature, estimate_temperature
from complementary.reports.terminal import log_progress
from complementary.training.predict import BLOCK, Predictor, load

log = logging.getLogger(__name__)
ENOUGH = 100  # held-out examples, for an estimate that says something


@dataclass(frozen=True)
class FinishedRun:
    """A finished run and the examples that it used. M examples, K classes.

    Attributes:
        folder: The folder of the run.
        config: Its configuration.
        result: Its result.json.
        predictor: The trained network.
        dataset: The dataset.
        index: Positions of the examples in the training split, int [M].
        excluded: Their complementary labels, uint8 [M, K].
        held_out: Which of them are in the validation split, bool [M].
        transition: How labels arise, as far as is known without true labels, [K, K].
        weights: Which weights the network has: ``selected`` or ``last``.
        device: Where to compute.
    """

    folder: Path
    config: Config
    result: dict[str, Any]
    predictor: Predictor
    dataset: Dataset
    index: Tensor
    excluded: Tensor
    held_out: Tensor
    transition: Tensor
    weights: str = "last"
    device: str = "auto"

    @property
    def truth(self) -> Tensor | None:
        """True labels of the examples, int [M], if known; for oracle metrics only."""
        truth = self.dataset.train.truth
        return None if truth is None else truth[self.index]

    def probabilities(self, rows: Tensor) -> Tensor:
        """Class probabilities [R, K] of the examples at ``rows`` int [R], on the CPU."""
        return predict(self.predictor, self.dataset.train.inputs, self.index[rows], self.device)

    @property
    def errors_known(self) -> bool:
        """Whether it is known how often answers are wrong: by the transition matrix, also one that was estimated.

        A matrix with a zero diagonal says so only if the labels were drawn from it; it does not say whether people make
        mistakes.
        """
        drawn = self.config.training.transition == "auto" and label_source(self.config, self.dataset) != "given"
        return drawn or float(self.transition.diagonal().max()) > 0

    def temperature(self, probabilities: Tensor | None = None) -> Temperature | None:
        """The temperature that calibrates the network, estimated from the answers of the validation split.

        How often answers are wrong is estimated with it, unless it is known.

        Args:
            probabilities: Those of the held-out examples, [V, K], if they are at hand.

        Returns:
            The temperature; None if fewer than 100 examples with answers are held out.
        """
        held = self.held_out.nonzero()[:, 0]
        if int((self.excluded[held].sum(1) > 0).sum()) < ENOUGH:
            return None
        probabilities = self.probabilities(held) if probabilities is None else probabilities
        return estimate_temperature(self.excluded[held], probabilities, self.transition, self.errors_known)

    def test_probabilities(self) -> Tensor | None:
        """Class probabilities [T, K] of the test set, if it has true labels."""
        test = self.dataset.test
        if test is None or test.truth is None:
            return None
        return predict(self.predictor, test.inputs, torch.arange(len(test)), self.device)


def open_run(folder: str | Path, weights: str = "auto", device: str = "auto") -> FinishedRun:
    """Open a finished run and load its data.

    Args:
        folder: Folder of the run.
        weights: ``selected``, ``last`` or ``auto``, as in `complementary.load`.
        device: Where to compute.

    Raises:
        UserError: The folder is not a finished run, or its dataset is not there any more or has changed.
    """
    folder = Path(folder)
    predictor, result = load(folder, weights), read_result(folder)
    config = read_toml(folder / "config.toml", Config)
    dataset = data.load(config.dataset.data)
    if dataset.classes != predictor.classes:
        raise UserError(
            f"The dataset {config.dataset.data} has the classes {', '.join(dataset.classes)}, but the run in {folder} "
            f"was trained on {', '.join(predictor.classes)}; restore the dataset, or train again."
        )
    chosen = select(config, dataset)
    _, validation = validation_split(len(chosen.examples), config.dataset.holdout, config.seed)
    trained = result.get("data", {}).get("examples")
    if trained is not None and trained != len(chosen.examples) - len(validation):
        raise UserError(
            f"The dataset {config.dataset.data} now has {len(chosen.examples) - len(validation):,} training examples, "
            f"but the run in {folder} used {trained:,}; restore the dataset, or train again."
        )
    held_out = torch.zeros(len(chosen.examples), dtype=torch.bool)
    held_out[validation] = True
    truth = None if dataset.train.truth is None else dataset.train.truth[chosen.examples]
    stored = result.get("data", {}).get("transition")  # the matrix that was estimated in training
    transition = (
        transition_matrices(config, truth, chosen.excluded, chosen.transition)[0]
        if stored is None
        else torch.tensor(stored, dtype=torch.float64)
    )
    if weights == "auto":
        weights = "last" if result.get("selected_epoch") is None else "selected"
    return FinishedRun(
        folder,
        config,
        result,
        predictor,
        dataset,
        chosen.examples,
        chosen.excluded,
        held_out,
        transition,
        weights,
        device,
    )


def predict(predictor: Predictor, inputs: Tensor, index: Tensor, device: str = "auto") -> Tensor:
    """Class probabilities [N, K] of ``inputs`` [., ...] at ``index`` int [N], on the CPU, with progress in the log."""
    predictor.check_shape(inputs)
    predictor = predictor.to(choose_device(device))
    parts: list[Tensor] = []
    done = 0
    for part in index.split(BLOCK):
        parts.append(predictor.apply(inputs[part]).cpu())
        done += len(part)
        log_progress(log, "predicting", done, len(index))
    predictor.to("cpu")
    return torch.cat(parts) if parts else torch.zeros(0, len(predictor.classes))
