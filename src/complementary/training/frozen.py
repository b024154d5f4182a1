"""What the network is shown: inputs as they are, or the features of an encoder that does not learn any more.

A linear layer on the features of an encoder that saw no label at all learns in seconds, and from complementary labels
often better than a deep network does (docs/encoders.md).
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from complementary import files
from complementary.clusters import cache
from complementary.clusters.features import FeatureExtractor
from complementary.encoders.backbone import describe, extract_features, load_encoder
from complementary.errors import UserError
from complementary.networks import Network


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder for images of ``shape`` [C, H, W], with their mean and std [C]; ``mirror`` as in `features`."""

    body: Network
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    mirror: bool = False

    def __call__(self, images: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Images uint8 [N, C, H, W] -> features float32 [N, D], on the device."""
        mean, std = self.mean.to(device), self.std.to(device)
        return extract_features(self.body.to(device), images, mean, std, mirror=self.mirror)

    @functools.cached_property
    def mark(self) -> Tensor:
        """A number, int64 [], that is another one for other weights: what a checkpoint remembers of it."""
        return torch.tensor(int(files.fingerprint(self._tensors(), "")[:15], 16))

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().contiguous() for name, value in self.body.state_dict().items()}

    def write(self, path: Path) -> None:
        """Keep it, as ``cll pretrain`` keeps an encoder.

        The many runs of a sweep share one file on the disk: a link to it, where the disk has such.
        """
        record: dict[str, Any] = {"shape": list(self.shape), "mean": self.mean.tolist(), "std": self.std.tolist()}
        record |= describe(self.body) | ({"mirror": True} if self.mirror else {})
        tensors = self._tensors()
        name = cache.stage_name("lens", record | {"weights": files.fingerprint(tensors, "")})
        shared = cache.stage_path(f"{name}.safetensors")
        try:
            with cache.stage_lock(name, "storing the same encoder"):
                shared.parent.mkdir(parents=True, exist_ok=True)
                if not shared.exists():
                    files.write_checkpoint(shared, tensors, record)
            path.unlink(missing_ok=True)
            os.link(shared, path)
        except (OSError, UserError):  # another disk, a cache that cannot be written, a system without links
            files.write_checkpoint(path, tensors, record)

    @staticmethod
    def read(path: Path) -> "FrozenEncoder":
        """The one that `write` kept."""
        record = files.read_record(path)
        shape = tuple(record.get("shape", ()))
        body = load_encoder(path, shape)  # says so if the file is not whole
        mean, std = torch.tensor(record["mean"]), torch.tensor(record["std"])
        return FrozenEncoder(body, shape, mean, std, record.get("mirror", False))


class Seen(NamedTuple):
    """Examples as the network sees them: rows ``places`` int [M] of ``source`` [N, ...], those of the test [T, ...].

    mean, std: how they are normalised, [C] or [D]. lens: what they were seen through, if anything.
    """

    source: Tensor
    places: Tensor
    test: Tensor | None
    mean: Tensor
    std: Tensor
    lens: FrozenEncoder | None = None


def look(extractor: FeatureExtractor) -> Seen:
    """The training examples and all test examples of a run, as the option ``inputs`` says."""
    config, dataset, chosen = extractor.config, extractor.dataset, extractor.chosen
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    if config.dataset.inputs == "raw":
        return Seen(dataset.train.inputs, chosen, None if dataset.test is None else dataset.test.inputs, mean, std)
    vectors, shape = extractor.train, tuple(dataset.train.inputs.shape[1:])
    lens = FrozenEncoder(extractor.backbone(), shape, mean, std, extractor.mirror)
    spread = vectors.std(0)
    spread = torch.where(spread > 1e-8, spread, 1.0)
    places = torch.arange(len(vectors))
    return Seen(vectors, places, extractor.test(), vectors.mean(0), spread, lens)
