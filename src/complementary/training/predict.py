"""Apply the weights of a finished run to new examples."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from complementary import files, losses, networks
from complementary.augment.crop import luminance, normalize
from complementary.data import arrays, as_inputs
from complementary.data.arrays import ExampleFile, open_npz, read_example_file, read_npy
from complementary.data.dataset import check_finite
from complementary.data.images import SUFFIXES, decode_into, find_images, image_size
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.batches import evaluation_batch
from complementary.engine.run_folder import read_result
from complementary.errors import UserError

log = logging.getLogger(__name__)
BLOCK = 2048  # examples between two lines of progress


@dataclass(frozen=True)
class Predictor:
    """A trained network with everything needed to apply it.

    Attributes:
        network: The network.
        classes: Names of the classes.
        shape: Shape of one input.
        mean: Mean of the inputs of the network, per channel [C] or feature [D].
        std: Standard deviation, as ``mean``.
        encoder: Computes the features that are the inputs of the network; None: its inputs are the examples.
        temperature: The logits are divided by it; 1: the probabilities are those of the network.
        features: Names of the features of vectors, in order, if they are known.
        decoder: How outputs become classes, if the network predicts labels (see `losses.BoundLoss.decoder`). The
            probabilities then only rank the classes.
    """

    network: networks.Network
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    encoder: FrozenEncoder | None = None
    temperature: float = 1.0
    decoder: tuple[Tensor, Tensor] | None = None
    features: tuple[str, ...] | None = None

    def to(self, device: torch.device | str) -> "Predictor":
        """Return the predictor on ``device``; its networks are moved in place."""
        self.network.to(device)
        if self.encoder is not None:
            self.encoder.backbone.to(device)
        return dataclasses.replace(self, mean=self.mean.to(device), std=self.std.to(device))

    def check(self, inputs: Tensor) -> None:
        """As `check_shape`; warn if all images are too dark, which means another range of pixels."""
        self.check_shape(inputs)
        if inputs.dtype == torch.uint8 and self.encoder is None and inputs.numel():
            largest, mean = int(inputs.max()), 255 * float(self.mean.max())
            if largest < mean:
                log.warning(
                    "The largest pixel value is %d, below the mean of the training images (%.0f). Pixels must have the "
                    "range 0 to 255.",
                    largest,
                    mean,
                )

    def check_shape(self, inputs: Tensor) -> None:
        """Raise if the inputs do not have the shape of those that the run was trained on."""
        if tuple(inputs.shape[1:]) != self.shape:
            raise UserError(
                f"The inputs have shape {list(inputs.shape[1:])} per example, but the run was trained on "
                f"{list(self.shape)}; resize or reshape them."
            )

    def __call__(self, inputs: Tensor | ArrayLike, batch: int | None = None) -> Tensor:
        """Predict class probabilities.

        Args:
            inputs: Images uint8 [N, C, H, W] or vectors float32 [N, D], on any device; or an array as in `as_inputs`.
            batch: Number of examples at a time; None: see `evaluation_batch`.

        Returns:
            Probabilities [N, K], on the device of the predictor.
        """
        inputs = inputs if isinstance(inputs, Tensor) else as_inputs(inputs)
        self.check(inputs)
        return self.apply(inputs, batch)

    @torch.no_grad()
    def apply(self, inputs: Tensor, batch: int | None = None) -> Tensor:
        """As `__call__`, for a part of inputs that were checked as a whole."""
        device = self.mean.device
        inputs = inputs if self.encoder is None else self.encoder(inputs, device)
        batch = batch or evaluation_batch(inputs, device)
        parts = [self.network(normalize(part.to(device), self.mean, self.std)) for part in inputs.split(batch)]
        return (losses.decode(torch.cat(parts).float(), self.decoder) / self.temperature).softmax(1)


def load(folder: str | Path, weights: str = "auto") -> Predictor:
    """Load a finished run.

    Args:
        folder: Folder of the run.
        weights: ``selected`` (the epoch selected by SCEL), ``last``, or ``auto``: selected if an epoch was selected.
    """
    folder = Path(folder)
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder of a finished run.")
    if not folder.exists():
        raise UserError(f"There is no folder {folder}; give the folder of a finished run.")
    if not (folder / "result.json").exists():
        raise UserError(f"{folder} does not contain a finished run (there is no result.json); resume it first.")
    if not (folder / "last.safetensors").exists() and (folder / "encoder.safetensors").exists():
        raise UserError(f"{folder} contains an encoder, not a classifier; give the folder of a training run.")
    if weights == "auto":
        weights = "last" if read_result(folder).get("selected_epoch") is None else "selected"
    path = folder / f"{weights}.safetensors"
    tensors, record = files.read_checkpoint(path)
    with files.reading(path, "train the run again"):
        shape, classes = tuple(record["shape"]), tuple(record["classes"])
        network = networks.build(record["model"], shape, len(classes), max_pool=record["max_pool"])
        network.load_state_dict(tensors)
        network.eval()
        encoder = FrozenEncoder.read(folder / "encoder.safetensors") if record.get("features") else None
        mean, std = torch.tensor(record["mean"]), torch.tensor(record["std"])
        parts = record.get("decoder")
        decoder = None if parts is None else (torch.tensor(parts[0]), torch.tensor(parts[1]))
        features = None if record.get("feature_names") is None else tuple(record["feature_names"])
    shape = shape if encoder is None else encoder.shape
    return Predictor(network, classes, shape, mean, std, encoder, decoder=decoder, features=features)


def is_image_path(path: Path) -> bool:
    """Whether ``path`` is a folder or, by its name, an image."""
    return path.is_dir() or path.name.lower().endswith(SUFFIXES)


def read_images(path: Path, shape: tuple[int, ...], fit: str = "crop") -> tuple[list[Path], Tensor, dict[int, str]]:
    """Read an image, or all images of a folder, in the same way as the import of a dataset.

    Args:
        path: The image or folder.
        shape: Shape of the images of the run, [C, S, S].
        fit: How images become square: crop or stretch.

    Returns:
        The files, the images uint8 [N, C, S, S], and for each image that cannot be read its index and the reason.
    """
    if len(shape) != 3 or shape[1] != shape[2]:
        raise UserError(
            f"The run was trained on inputs of shape {list(shape)}, not on square images; use a .npy, .npz or .csv "
            "file."
        )
    paths = find_images(path) if path.is_dir() else [path]
    pixels = np.zeros((len(paths), shape[1], shape[2], 3), np.uint8)
    decoded = decode_into(pixels, paths, fit, "reading images")
    failures = decoded.failures
    if (first := next((path for i, path in enumerate(paths) if i not in failures), None)) is not None:
        _log_conversion(first, shape, decoded.gray)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    if shape[0] == 1:
        images = luminance(images.float()).round().to(torch.uint8)
    return paths, images.contiguous(), failures


def _log_conversion(path: Path, shape: tuple[int, ...], gray: bool) -> None:
    """Log how images are converted, by the size of the first one; warn if they are unlike those of the run.

    Args:
        path: The first image.
        shape: Shape of the images of the run, [C, S, S].
        gray: Whether all images are gray.
    """
    width, height = image_size(path)
    size, to_gray = shape[1], shape[0] == 1 and not gray
    done = [f"resized to {size} x {size}"] if (width, height) != (size, size) else []
    done += ["converted to gray, as in training"] if to_gray else []
    if done:
        level = logging.WARNING if to_gray or min(width, height) < size else logging.INFO
        color = "gray" if gray else "color"
        log.log(level, "images (%s: %d x %d, %s) are %s", path.name, width, height, color, " and ".join(done))


def read_examples(path: Path, features: tuple[str, ...] | None = None) -> tuple[list[str] | None, Tensor]:
    """Read examples from a .npy, .npz or .csv file.

    Args:
        path: A file of images uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], or of vectors [N, D]. In an .npz file the
            array is called inputs, images or X (see docs/guide/data.md), or is the only one. A .csv file has one vector
            per line, and may have a first column file, id or name.
        features: Names of the columns in the order of the training data. If the file names its columns, they are
            brought into this order.

    Returns:
        The names of the examples, if the file has any, and the inputs for a `Predictor`. Those of a large .npy file are
        a view of the file on the disk.
    """
    if path.suffix.lower() not in arrays.SUFFIXES:
        raise UserError(f"{path} is not an image, a folder, or a .npy, .npz or .csv file.")
    if path.suffix.lower() == ".npy":
        inputs = read_npy(path, contiguous=False)
        if not inputs.numel():
            raise UserError(f"{path} contains no examples: its shape is {list(inputs.shape)}.")
        check_finite(str(path), inputs)
        return None, inputs
    table = _only_array(path) or read_example_file(path)
    inputs = torch.from_numpy(np.ascontiguousarray(table.in_order(features)))
    check_finite(str(path), inputs)
    numbered = [str(i) for i in range(len(inputs))]
    return (None if table.keys == numbered else table.keys), inputs


def _only_array(path: Path) -> ExampleFile | None:
    """The content of an .npz file with a single array of any name; None for other files."""
    if path.suffix.lower() != ".npz":
        return None
    found = open_npz(path, str(path))
    if len(found) != 1:
        return None
    ((name, array),) = found.items()
    inputs = as_inputs(array, f"{path}: {name}").numpy()
    return ExampleFile(path, {"train/inputs": inputs}, [str(i) for i in range(len(inputs))])
