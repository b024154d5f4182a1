"""Weights of an encoder from a file: those this package wrote, or a ResNet-18 state dict from anywhere."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from complementary import checkpoint
from complementary.encoders.body import build_body
from complementary.errors import UserError
from complementary.models import Network

IGNORED = ("fc.weight", "fc.bias")  # the last layer of a classifier is not part of an encoder


def load_named(name: str, shape: tuple[int, ...]) -> Network | None:
    """The encoder that ``run:FOLDER`` or ``file:WEIGHTS`` names, for images of ``shape`` [C, H, W]; None if neither."""
    kind, _, path = name.partition(":")
    if kind == "run" and path:
        return load_body(Path(path) / "encoder.safetensors", shape)
    return load_weights(Path(path), shape) if kind == "file" and path else None


def load_body(path: Path, shape: tuple[int, ...]) -> Network:
    """An encoder that this package wrote; it must fit images of ``shape`` [C, H, W]."""
    if not path.exists():
        raise UserError(f"{path.parent} holds no encoder ({path.name}); give a folder that cll pretrain wrote.")
    tensors, record = checkpoint.read(path)
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
    record = checkpoint.record_of(path)
    if "body" in record:
        return load_body(path, shape)
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except OSError as problem:
        raise UserError(f"The weights {path} cannot be read ({problem.strerror or problem}).") from None
    except (SafetensorError, RuntimeError, ValueError, EOFError, KeyError) as problem:
        raise UserError(f"{path} is not a state dict: {(str(problem) or 'it ends early').splitlines()[0]}") from None
    except Exception as problem:  # torch.load raises pickle errors of many kinds on foreign files
        raise UserError(f"{path} is not a plain state dict and was not loaded ({type(problem).__name__}).") from None
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
