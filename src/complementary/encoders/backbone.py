"""The backbone of an encoder: a network without its last layer. Building, loading, and computing features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from complementary import files, networks
from complementary.augment.crop import normalize
from complementary.data.rows import Rows
from complementary.encoders.external import ExternalBackbone, rebuild
from complementary.encoders.patches import PatchNetwork
from complementary.encoders.seen import KEY
from complementary.encoders.spec import EncoderSpec
from complementary.engine.backend import no_capture
from complementary.engine.batches import chunks, evaluation_batch
from complementary.errors import UserError
from complementary.networks import Network

CLASSIFIER = ("fc.weight", "fc.bias")  # the last layer of a classifier is not part of an encoder


def default_backbone(shape: tuple[int, ...]) -> str:
    """The backbone that ``auto`` stands for, for images of ``shape`` [C, H, W]."""
    return "resnet18" if min(shape[1:]) >= 16 else "cnn"


def build_backbone(name: str, shape: tuple[int, ...], seed: int, max_pool: bool) -> tuple[Network, int]:
    """Build a network without its last layer.

    Args:
        name: ``cnn`` or ``resnet18``.
        shape: Shape of an image, [C, H, W].
        seed: Determines the initial weights.
        max_pool: Whether the stem of ``resnet18`` has a max-pool.

    Returns:
        The network, and the number of its features.
    """
    backbone = networks.build(name, shape, 1, seed, max_pool)
    width = backbone.fc.in_features
    del backbone.fc
    return backbone, width


def describe(backbone: Network) -> dict[str, Any]:
    """What it takes to build the same network again, besides the shape: the record of an encoder file."""
    record: dict[str, Any] = {"body": backbone.kind, "max_pool": backbone.max_pool}  # "body": as in stored files
    if isinstance(backbone, PatchNetwork):
        record["patches"] = backbone.settings
    return record | ({"external": backbone.settings} if isinstance(backbone, ExternalBackbone) else {})


@torch.no_grad()
def extract_features(
    backbone: Network,
    images: Tensor | Rows,
    mean: Tensor,
    std: Tensor,
    *,
    batch: int | None = None,
    mirror: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Compute features in evaluation mode, without augmentation.

    Args:
        backbone: The network.
        images: uint8 [N, C, H, W].
        mean: Mean of each channel on a 0 to 1 scale, [C]; it decides the device.
        std: Standard deviation of each channel, [C].
        batch: Images at a time; None: see `evaluation_batch`.
        mirror: Average the features of each image with those of its mirror image.
        progress: Called with the number of images done.

    Returns:
        Unit vectors, float32 [N, D], on the device of ``mean``.
    """
    backbone.eval()
    batch = batch or min(evaluation_batch(images, mean.device), backbone.largest_batch)
    parts = list[Tensor]()
    for part in chunks(images, mean.device, batch):
        with no_capture():
            features = backbone.features(normalize(part, mean, std))
            if mirror:
                mirrored = backbone.features(normalize(part.flip(-1), mean, std))
                features = F.normalize(features.float()) + F.normalize(mirrored.float())
        parts.append(features)
        progress(min(batch * len(parts), len(images)))
    return F.normalize(torch.cat(parts).float())


# --- loading ----------------------------------------------------------------------------------------------------------


def load_backbone(encoder: EncoderSpec, shape: tuple[int, ...]) -> Network:
    """Load the encoder that ``run:FOLDER`` or ``file:WEIGHTS`` names, for images of ``shape`` [C, H, W]."""
    if encoder.weights is None:
        raise UserError(f"The encoder {encoder} has no file of weights; use run:FOLDER or file:WEIGHTS.", "encoder")
    return load_encoder(encoder.weights, shape) if encoder.kind == "run" else load_weights(encoder.weights, shape)


def load_encoder(path: Path, shape: tuple[int, ...]) -> Network:
    """Load an encoder that this package wrote, for images of ``shape`` [C, H, W]."""
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}; give the folder of a finished cll pretrain.", "encoder")
    tensors, record = files.read_checkpoint(path)
    tensors.pop(KEY, None)  # not weights
    if record.get("shape") is None or record.get("body") is None:
        raise UserError(f"{path} is not an encoder; give the folder of a finished cll pretrain.", "encoder")
    if record["shape"] != list(shape):
        raise UserError(f"{path} is for images of shape {record['shape']}, but these are {list(shape)}.", "encoder")
    with files.reading(path, "pretrain the encoder again", "encoder"):
        if "external" in record:
            return _load_strictly(rebuild(record), tensors, path)
        if "patches" in record:
            return _load_strictly(PatchNetwork(shape, record["patches"]), tensors, path)
        backbone, _ = build_backbone(record["body"], shape, 0, record["max_pool"])
        return _load_strictly(backbone, tensors, path)


def load_weights(path: Path, shape: tuple[int, ...]) -> Network:
    """Load a ResNet-18 state dict with the names of torchvision, for images of ``shape`` [C, H, W].

    Encoders and classifiers of this package may also have another backbone; their files say which.

    Args:
        path: A .safetensors file, or a .pt file that holds nothing but tensors. Code in it is never run.
        shape: Shape of an image.
    """
    record = files.read_record(path)
    if "body" in record:
        return load_encoder(path, shape)
    tensors = _read_state_dict(path)
    name = "cnn" if record.get("model") == "cnn" else "resnet18"
    backbone, _ = build_backbone(name, shape, 0, bool(record.get("max_pool", True)))
    return _load_strictly(backbone, {k: v for k, v in tensors.items() if k not in CLASSIFIER}, path)


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"The weights {path} cannot be read ({error.strerror or error}).", "encoder") from None
    except (SafetensorError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = (str(error) or "unexpected end of file").splitlines()[0]
        raise UserError(f"{path} is not a state dict: {reason}", "encoder") from None
    except Exception as error:  # torch.load raises many kinds of pickle errors
        kind = type(error).__name__
        raise UserError(f"{path} is not a plain state dict and was not loaded ({kind}).", "encoder") from None
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        kind = type(tensors).__name__
        raise UserError(f"{path} is not a state dict: it holds a {kind}, not tensors by name.", "encoder")
    if others := [name for name, value in tensors.items() if not isinstance(value, Tensor)]:
        raise UserError(
            f"{path} is not a state dict: {', '.join(others)} is not a tensor; save the state dict alone.",
            "encoder",
        )
    return tensors


def _load_strictly(backbone: Network, tensors: dict[str, Tensor], path: Path) -> Network:
    """Load all tensors, or raise with a list of those that are missing, unexpected or of another shape."""
    wanted = backbone.state_dict()
    odd = sorted(k for k in wanted.keys() & tensors.keys() if wanted[k].shape != tensors[k].shape)
    problems = {
        "missing": sorted(wanted.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - wanted.keys()),
        "of another shape": [f"{k} {list(tensors[k].shape)} instead of {list(wanted[k].shape)}" for k in odd],
    }
    if any(problems.values()):
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems.items() if names)
        raise UserError(f"The weights {path} do not fit the network ({listed}); nothing was loaded.", "encoder")
    backbone.load_state_dict(tensors)
    return backbone
