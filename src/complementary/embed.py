"""From images to the unit vectors that are clustered: by an encoder, by pixels, or from a file.

| ``--encoder`` | what is clustered |
|---|---|
| ``pixels`` | the raw inputs (also for vectors) |
| ``random`` | features of an untrained network: a control |
| ``simsiam``, ``byol``, ``mocov3`` | features of that encoder, pretrained first if that was not done yet |
| ``run:FOLDER`` | the encoder that ``cll pretrain --out FOLDER`` left |
| ``file:WEIGHTS`` | an encoder of ours or a ResNet-18 state dict (.safetensors, .pt; torchvision's names), strictly |
| ``embeddings:Z.npy`` | vectors computed elsewhere, one row per training example |
"""

import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from complementary import checkpoint, stages
from complementary.assignments import digest
from complementary.data import Dataset
from complementary.data.screen import to_stderr
from complementary.device import choose_device
from complementary.encoders import ENCODERS
from complementary.encoders.body import body_for, build_body, features
from complementary.errors import UserError
from complementary.models import Network
from complementary.pretrain import PretrainConfig, chosen_images, pretrain
from complementary.rows import Rows, rows_of

LONG = 5000  # from so many examples on, embedding and clustering take seconds: they are kept for the next run
IGNORED = ("fc.weight", "fc.bias")  # the last layer of a classifier is not part of an encoder


@dataclass(frozen=True)
class Source:
    """What an encoder needs to know of a run: its subset of the data, its seed, and how long to pretrain."""

    encoder: str
    long_tail: float = 1.0
    head: int | None = None
    draws: Any = "addressed"
    seed: int = 0
    pretrain_epochs: int = 800
    device: str = "auto"


def embed(source: Source, dataset: Dataset, chosen: Tensor, progress: Any = None) -> Tensor:
    """Unit vectors float32 [M, D] of the training examples at ``chosen`` int [M], on the CPU."""
    kind, _, path = source.encoder.partition(":")
    if kind == "embeddings" and path:
        return F.normalize(read_embeddings(path, len(dataset.train))[chosen])
    return _encode(source, dataset, rows_of(dataset.train.inputs, chosen), progress)


def embed_test(source: Source, dataset: Dataset) -> Tensor | None:
    """The same of the test examples, float32 [T, D]; None without any, or where vectors come from a file."""
    if dataset.test is None or source.encoder.startswith("embeddings:"):
        return None
    return _encode(source, dataset, Rows(dataset.test.inputs), None)


def _encode(source: Source, dataset: Dataset, inputs: Rows, progress: Any) -> Tensor:
    """inputs [N, ...] -> unit vectors float32 [N, D], on the CPU."""
    if source.encoder == "pixels":
        return F.normalize(inputs.whole().flatten(1).float())

    def make() -> Tensor:
        device = choose_device(source.device)
        body = find_body(source, dataset, progress).to(device)
        body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the layout that is fastest
        if len(inputs) >= LONG:
            to_stderr(f"embedding {len(inputs):,} images by {source.encoder}")
        mean, std = (torch.tensor(t, device=device) for t in (dataset.mean, dataset.std))
        return features(body, inputs, mean, std, tell=_teller(len(inputs))).cpu()

    known = _identity(source, dataset, inputs) if len(inputs) >= LONG else None
    return make() if known is None else stages.features(known | {"features": 1}, make)


def _teller(total: int) -> Callable[[int], None]:
    """Says every quarter of a minute how far an embedding of ``total`` images is, and how long the rest takes."""
    started = said = time.monotonic()

    def tell(done: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= 15 and done < total:
            left = timedelta(seconds=round((now - started) / done * (total - done)))
            to_stderr(f"embedded {done:,} of {total:,} images, about {left} left")
            said = now

    return tell


def identity(source: Source, dataset: Dataset, chosen: Tensor) -> dict[str, Any] | None:
    """All that decides the vectors of `embed`, JSON-able; None where there is no such encoder.

    Files count by their content, not by their name; so do the examples at ``chosen`` int [M].
    """
    return _identity(source, dataset, rows_of(dataset.train.inputs, chosen), chosen)


def _identity(source: Source, dataset: Dataset, inputs: Rows, chosen: Tensor | None = None) -> dict[str, Any] | None:
    try:
        encoder = _content(source, dataset, chosen)
    except (OSError, UserError):
        return None  # `embed` will say what is wrong
    return {"encoder": encoder, "inputs": digest(inputs), "mean": list(dataset.mean), "std": list(dataset.std)}


def _content(source: Source, dataset: Dataset, chosen: Tensor | None) -> str:
    """A text that is another whenever the encoder is."""
    kind, _, path = source.encoder.partition(":")
    if source.encoder in ("pixels", "random"):
        return f"{kind} {source.seed if kind == 'random' else ''}"
    if kind == "embeddings" and path:
        return f"{kind} {digest(read_embeddings(path, len(dataset.train))[chosen])}"
    if kind in ("run", "file") and path:
        return f"{kind} {stages.file_digest(Path(path) / 'encoder.safetensors' if kind == 'run' else Path(path))}"
    return stage_folder(_wanted(source, dataset), dataset).name


def find_body(source: Source, dataset: Dataset, progress: Any = None) -> Network:
    """The network that ``source.encoder`` names, pretrained if it must be."""
    kind, _, path = source.encoder.partition(":")
    if dataset.train.inputs.ndim != 4:
        raise UserError(f"The set {dataset.name} holds vectors; encoders learn from images. Use --encoder pixels.")
    shape = tuple(dataset.train.inputs.shape[1:])
    if kind == "random" and not path:
        return build_body(body_for(shape), shape, source.seed, True)[0]
    if kind == "run" and path:
        return load_body(Path(path) / "encoder.safetensors", shape)
    if kind == "file" and path:
        return load_weights(Path(path), shape)
    if source.encoder in ENCODERS:
        return load_body(pretrained(source, dataset, progress) / "encoder.safetensors", shape)
    known = ", ".join(["pixels", "random", *ENCODERS, "run:FOLDER", "file:WEIGHTS", "embeddings:Z.npy"])
    raise UserError(f"The encoder {source.encoder!r} is not known; use one of: {known}.")


def pretrained(source: Source, dataset: Dataset, progress: Any = None) -> Path:
    """The folder of this encoder among the cached stages; made or resumed if it is not finished."""
    return stage(_wanted(source, dataset), dataset, source.device, progress)


def _wanted(source: Source, dataset: Dataset) -> PretrainConfig:
    wanted = PretrainConfig(
        data=dataset.name,
        long_tail=source.long_tail,
        head=source.head,
        draws=source.draws,
        encoder=source.encoder,
        epochs=source.pretrain_epochs,
        seed=source.seed,
    )
    return replace(wanted, batch=min(wanted.batch, len(chosen_images(wanted, dataset))))


def stage_folder(config: PretrainConfig, dataset: Dataset) -> Path:
    """Where the encoder of ``config`` is kept."""
    images = rows_of(dataset.train.inputs, chosen_images(config, dataset))
    # a name is not enough: two files of the user's may share one
    return stages.place(f"pretrain-{config.hash()[:16]}-{digest(images)[:16]}")


def stage(config: PretrainConfig, dataset: Dataset, device: str = "auto", progress: Any = None) -> Path:
    """The cached folder of this encoder; made, resumed or waited for if it is not finished."""
    folder = stage_folder(config, dataset)
    result = folder / "result.json"
    if result.exists():
        return folder
    with stages.alone(folder.name, f"pretraining {config.encoder} on the same images"):
        if not result.exists():
            count = len(chosen_images(config, dataset))
            to_stderr(f"pretraining {config.encoder} on {count:,} images, {config.epochs} epochs, in {folder}")
        pretrain(config, folder, resume=True, device=device, progress=progress, dataset=dataset)
    return folder


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
    body, _ = build_body("resnet18", shape, 0, record.get("max_pool", True))
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


def read_embeddings(path: str | Path, count: int) -> Tensor:
    """A .npy table float [N, D] with one row for each of ``count`` training examples."""
    try:
        with Path(path).open("rb") as file:  # by itself, np.load leaves a broken archive open
            table = torch.from_numpy(np.load(file, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        raise UserError(f"The embeddings {path} cannot be read as a .npy table of numbers: {problem}.") from None
    if table.ndim != 2 or len(table) != count:
        raise UserError(
            f"The embeddings {path} have shape {list(table.shape)}; wanted one row per training example, [{count}, D]."
        )
    return table
