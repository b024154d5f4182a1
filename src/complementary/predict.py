"""Apply the weights of a finished run to new examples."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from complementary import checkpoint, models
from complementary.augment import normalise
from complementary.errors import UserError
from complementary.estimator import as_inputs


@dataclass(frozen=True)
class Predictor:
    """A trained network with what it needs around it: class names, input shape, normalisation."""

    network: models.Network
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor

    @torch.no_grad()
    def __call__(self, inputs: Tensor, batch: int = 2048) -> Tensor:
        """Images uint8 [N, C, H, W] or vectors float32 [N, D] -> probabilities [N, K]."""
        if tuple(inputs.shape[1:]) != self.shape:
            raise UserError(
                f"The inputs have shape {list(inputs.shape[1:])} per example, but the run was trained on "
                f"{list(self.shape)}; resize or reshape them."
            )
        parts = [self.network(normalise(part, self.mean, self.std)) for part in inputs.split(batch)]
        return torch.cat(parts).float().softmax(1)


def load(folder: str | Path, weights: str = "auto") -> Predictor:
    """Load a finished run. ``weights``: ``selected`` (by SCEL), ``last``, or ``auto``: selected if there are any."""
    folder = Path(folder)
    if not (folder / "result.json").exists():
        raise UserError(f"{folder} holds no finished run (no result.json); train one with cll train --out {folder}.")
    chosen = weights if weights != "auto" else "selected" if (folder / "selected.safetensors").exists() else "last"
    tensors, record = checkpoint.read(folder / f"{chosen}.safetensors")
    shape, classes = tuple(record["shape"]), tuple(record["classes"])
    network = models.build(record["model"], shape, len(classes), max_pool=record["max_pool"])
    network.load_state_dict(tensors)
    network.eval()
    return Predictor(network, classes, shape, torch.tensor(record["mean"]), torch.tensor(record["std"]))


def read_inputs(path: str | Path) -> Tensor:
    """Read a .npy file of images uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], or vectors [N, D]."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror or problem}).") from None
    except ValueError:
        raise UserError(f"{path} is not a .npy file of plain numbers; save it with numpy.save.") from None
    return as_inputs(array)
