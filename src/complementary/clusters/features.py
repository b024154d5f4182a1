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
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.clusters import cache
from complementary.config import PretrainConfig
from complementary.data import Dataset
from complementary.data.rows import Rows, rows_of
from complementary.encoders.backbone import body_for, build_body, features, load_body, load_named
from complementary.encoders.pretrain import chosen_images, pretrain
from complementary.encoders.spec import EncoderSpec
from complementary.engine.backend import choose_device
from complementary.errors import UserError
from complementary.files import fingerprint_file, fingerprint_rows
from complementary.networks import Network
from complementary.reports.terminal import Pace, to_stderr

LONG = 5000  # from so many examples on, embedding and clustering take seconds: they are kept for the next run


@dataclass(frozen=True)
class Source:
    """What an encoder needs to know of a run: its subset of the data, its seed, and how long to pretrain."""

    encoder: EncoderSpec
    long_tail: float = 1.0
    head: int | None = None
    subset: Literal["seed", "first"] = "seed"
    seed: int = 0
    pretrain_epochs: int = 800
    device: str = "auto"
    mirror: bool = False


def embed(source: Source, dataset: Dataset, chosen: Tensor, progress: Any = None) -> Tensor:
    """Unit vectors float32 [M, D] of the training examples at ``chosen`` int [M], on the CPU."""
    if source.encoder.kind == "embeddings":
        return F.normalize(read_embeddings(source.encoder, len(dataset.train))[chosen])
    return _encode(source, dataset, rows_of(dataset.train.inputs, chosen), progress)


def embed_test(source: Source, dataset: Dataset) -> Tensor | None:
    """The same of the test examples, float32 [T, D]; None without any, or where vectors come from a file."""
    if dataset.test is None or source.encoder.kind == "embeddings":
        return None
    return _encode(source, dataset, Rows(dataset.test.inputs), None)


def _encode(source: Source, dataset: Dataset, inputs: Rows, progress: Any) -> Tensor:
    """inputs [N, ...] -> unit vectors float32 [N, D], on the CPU."""
    if source.encoder.kind == "pixels":
        return F.normalize(inputs.whole().flatten(1).float())

    def make() -> Tensor:
        device = choose_device(source.device)
        body = find_body(source, dataset, progress).to(device)
        body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the layout that is fastest
        if len(inputs) >= LONG:
            to_stderr(f"embedding {len(inputs):,} images by {source.encoder}")
        mean, std = (torch.tensor(t, device=device) for t in (dataset.mean, dataset.std))
        return features(body, inputs, mean, std, tell=teller("embedded", len(inputs)), mirror=source.mirror).cpu()

    known = _identity(source, dataset, inputs) if len(inputs) >= LONG else None
    return make() if known is None else cache.features(known | {"features": 1}, make)


def teller(did: str, total: int) -> Callable[[int], None]:
    """Says from time to time how many of ``total`` examples are ``did``, and how long the rest takes."""
    started, pace = time.monotonic(), Pace()

    def tell(done: int) -> None:
        if done < total and pace.due():
            left = timedelta(seconds=round((time.monotonic() - started) / done * (total - done)))
            to_stderr(f"{did} {done:,} of {total:,} images, about {left} left")

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
    known = {
        "encoder": encoder,
        "inputs": fingerprint_rows(inputs),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }
    return known | ({"mirror": True} if source.mirror else {})


def _content(source: Source, dataset: Dataset, chosen: Tensor | None) -> str:
    """A text that is another whenever the encoder is."""
    kind = source.encoder.kind
    if kind in ("pixels", "random"):
        return f"{kind} {source.seed if kind == 'random' else ''}"
    if kind == "embeddings":
        return f"{kind} {fingerprint_rows(read_embeddings(source.encoder, len(dataset.train))[chosen])}"
    if source.encoder.weights is not None:
        return f"{kind} {fingerprint_file(source.encoder.weights)}"
    return stage_folder(_wanted(source, dataset), dataset).name


def find_body(source: Source, dataset: Dataset, progress: Any = None) -> Network:
    """The network that ``source.encoder`` names, pretrained if it must be."""
    if dataset.train.inputs.ndim != 4:
        raise UserError(f"The set {dataset.name} holds vectors; encoders learn from images. Use --encoder pixels.")
    shape = tuple(dataset.train.inputs.shape[1:])
    if source.encoder.kind == "random":
        return build_body(body_for(shape), shape, source.seed, True)[0]
    if (stored := load_named(source.encoder, shape)) is not None:
        return stored
    return load_body(pretrained(source, dataset, progress) / "encoder.safetensors", shape)


def pretrained(source: Source, dataset: Dataset, progress: Any = None) -> Path:
    """The folder of this encoder among the cached stages; made or resumed if it is not finished."""
    return stage(_wanted(source, dataset), dataset, source.device, progress)


def _wanted(source: Source, dataset: Dataset) -> PretrainConfig:
    wanted = PretrainConfig.of(
        data=dataset.name,
        long_tail=source.long_tail,
        head=source.head,
        subset=source.subset,
        encoder=source.encoder.kind,
        epochs=source.pretrain_epochs,
        seed=source.seed,
    )
    return replace(wanted, batch=min(wanted.batch, len(chosen_images(wanted, dataset))))


def stage_folder(config: PretrainConfig, dataset: Dataset) -> Path:
    """Where the encoder of ``config`` is kept."""
    images = rows_of(dataset.train.inputs, chosen_images(config, dataset))
    # a name is not enough: two files of the user's may share one
    return cache.place(f"pretrain-{config.hash()[:16]}-{fingerprint_rows(images)[:16]}")


def stage(config: PretrainConfig, dataset: Dataset, device: str = "auto", progress: Any = None) -> Path:
    """The cached folder of this encoder; made, resumed or waited for if it is not finished."""
    folder = stage_folder(config, dataset)
    result = folder / "result.json"
    if result.exists():
        return folder
    with cache.alone(folder.name, f"pretraining {config.encoder} on the same images"):
        if not result.exists():
            count = len(chosen_images(config, dataset))
            to_stderr(f"pretraining {config.encoder} on {count:,} images, {config.epochs} epochs, in {folder}")
        pretrain(config, folder, resume=True, device=device, progress=progress, dataset=dataset)
    return folder


def read_embeddings(encoder: EncoderSpec, count: int) -> Tensor:
    """A .npy table float [N, D] with one row for each of ``count`` training examples."""
    path = encoder.path
    assert path is not None
    try:
        with path.open("rb") as file:  # by itself, np.load leaves a broken archive open
            table = torch.from_numpy(np.load(file, allow_pickle=False)).float()
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"The embeddings {path} cannot be read as a .npy table of numbers: {error}.") from None
    if table.ndim != 2 or len(table) != count:
        raise UserError(
            f"The embeddings {path} have shape {list(table.shape)}; wanted one row per training example, [{count}, D]."
        )
    return table
