"""The body of an encoder: a network without its last layer, and the features it gives.

Weights of an encoder from a file: those this package wrote, or a ResNet-18 state dict from anywhere.

An objective with its body and heads, new or begun from an encoder that is there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from complementary import files, networks
from complementary.augment.crop import normalise
from complementary.data.rows import Rows
from complementary.encoders.objectives import OBJECTIVES
from complementary.encoders.spec import EncoderSpec
from complementary.engine.batches import pieces
from complementary.errors import UserError
from complementary.networks import Network
from complementary.rng import address, seeded


def body_for(shape: tuple[int, ...]) -> str:
    """The network that ``auto`` stands for, for images of ``shape`` [C, H, W]."""
    return "resnet18" if min(shape[1:]) >= 16 else "cnn"


def build_body(name: str, shape: tuple[int, ...], seed: int, max_pool: bool) -> tuple[Network, int]:
    """A network without its last layer -> (body, number of features)."""
    body = networks.build(name, shape, 1, seed, max_pool)
    width = body.fc.in_features
    del body.fc
    return body, width


def describe(body: Network) -> dict[str, Any]:
    """What `build_body` must be told to make such a body again, besides the shape of images."""
    return {"body": body.kind, "max_pool": body.max_pool}


@torch.no_grad()
def features(
    body: Network,
    images: Tensor | Rows,
    mean: Tensor,
    std: Tensor,
    batch: int | None = None,
    tell: Callable[[int], None] = lambda done: None,
    mirror: bool = False,
) -> Tensor:
    """Unit feature vectors in evaluation mode, without augmentation: images uint8 [N, C, H, W] -> float32 [N, D].

    ``tell`` is called with the number of images done so far. ``mirror``: the mean of an image's vector and that of
    its mirror image.
    """
    body.eval()
    batch = batch or (2048 if mean.device.type == "cuda" else 256)  # on a CPU more would only take gigabytes
    parts = list[Tensor]()
    for part in pieces(images, mean.device, batch):
        seen = body.features(normalise(part, mean, std))
        if mirror:
            other = body.features(normalise(part.flip(-1), mean, std))
            seen = F.normalize(seen.float()) + F.normalize(other.float())
        parts.append(seen)
        tell(batch * len(parts))
    return F.normalize(torch.cat(parts).float())


IGNORED = ("fc.weight", "fc.bias")  # the last layer of a classifier is not part of an encoder


def load_named(encoder: EncoderSpec, shape: tuple[int, ...]) -> Network | None:
    """The encoder that ``run:FOLDER`` or ``file:WEIGHTS`` names, for images of ``shape`` [C, H, W]; None if neither."""
    if encoder.weights is None:
        return None
    return load_body(encoder.weights, shape) if encoder.kind == "run" else load_weights(encoder.weights, shape)


def load_body(path: Path, shape: tuple[int, ...]) -> Network:
    """An encoder that this package wrote; it must fit images of ``shape`` [C, H, W]."""
    if not path.exists():
        raise UserError(f"{path.parent} holds no encoder ({path.name}); give a folder that cll pretrain wrote.")
    tensors, record = files.read_checkpoint(path)
    if record.get("shape") is None or record.get("body") is None:
        raise UserError(f"{path} is not an encoder; give a folder that cll pretrain wrote.")
    if tuple(record["shape"]) != shape:
        raise UserError(f"{path} was pretrained on images of shape {record['shape']}, but these are {list(shape)}.")
    body, _ = build_body(record["body"], shape, 0, record["max_pool"])
    return _strictly(body, tensors, path)


def load_weights(path: Path, shape: tuple[int, ...]) -> Network:
    """A ResNet-18 state dict from anywhere (.safetensors, or a .pt that holds tensors only), loaded strictly.

    An encoder that this package wrote may also be of another kind: what it is stands in the file.
    """
    record = files.read_record(path)
    if "body" in record:
        return load_body(path, shape)
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"The weights {path} cannot be read ({error.strerror or error}).") from None
    except (SafetensorError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"{path} is not a state dict: {(str(error) or 'it ends early').splitlines()[0]}") from None
    except Exception as error:  # torch.load raises pickle errors of many kinds on foreign files
        raise UserError(f"{path} is not a plain state dict and was not loaded ({type(error).__name__}).") from None
    if not isinstance(tensors, dict) or not all(isinstance(k, str) for k in tensors):
        raise UserError(f"{path} is not a state dict: it holds a {type(tensors).__name__}, not tensors by name.")
    if others := [k for k, v in tensors.items() if not isinstance(v, Tensor)]:
        raise UserError(f"{path} is not a state dict: {', '.join(others)} is no tensor; save the state dict by itself.")
    kind = "cnn" if record.get("model") == "cnn" else "resnet18"
    body, _ = build_body(kind, shape, 0, record.get("max_pool", True))
    return _strictly(body, {k: v for k, v in tensors.items() if k not in IGNORED}, path)


def _strictly(body: Network, tensors: dict[str, Tensor], path: Path) -> Network:
    """Load every tensor into its place, or list each that is missing, left over or of another shape."""
    wanted = body.state_dict()
    missing = sorted(wanted.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - wanted.keys())
    odd = [k for k in wanted.keys() & tensors.keys() if wanted[k].shape != tensors[k].shape]
    shapes = [f"{k} {list(tensors[k].shape)} instead of {list(wanted[k].shape)}" for k in sorted(odd)]
    parts = {"missing": missing, "not expected": unknown, "of another shape": shapes}
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)
    if said:
        raise UserError(f"The weights in {path} do not fit the network ({said}); nothing was loaded.")
    body.load_state_dict(tensors)
    return body


def build_objective(
    encoder: str, body: str, shape: tuple[int, ...], seed: int, max_pool: bool, start: str | None = None
) -> Any:
    """The named objective for images of ``shape`` [C, H, W], all of it depending on ``seed`` only.

    ``start``: take the body from ``run:FOLDER`` or ``file:WEIGHTS``; the heads are new.
    """
    network, width = build_body(body, shape, seed, max_pool)
    if start is not None:
        network.load_state_dict(_begun(start, shape, describe(network)))
    with seeded(address(seed, "heads")):
        return OBJECTIVES[encoder](network, width)  # type: ignore[call-arg]


def _begun(start: str, shape: tuple[int, ...], wanted: dict[str, Any]) -> dict[str, Any]:
    """The weights of the body that ``start`` names, which must be of the ``wanted`` kind."""
    found = load_named(EncoderSpec.parse(start, "start"), shape)
    if found is None:
        raise UserError(f"The start {start!r} is not known; use run:FOLDER (of cll pretrain) or file:WEIGHTS.")
    if describe(found) != wanted:
        one, other = _named(describe(found)), _named(wanted)
        raise UserError(f"The encoder of --start {start} is {one}, but what is to learn is {other}; make them alike.")
    return found.state_dict()


def _named(kind: dict[str, Any]) -> str:
    pool = " without max-pool (--no-max-pool)" if not kind["max_pool"] else ""
    return f"--body {kind['body']}{pool}"
