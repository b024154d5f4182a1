"""An encoder that is not trained any more, with everything needed to apply it to new images."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import files
from complementary.encoders.backbone import describe, extract_features, load_encoder
from complementary.encoders.seen import KEY, read_seen
from complementary.networks import Network


@dataclass(frozen=True)
class FrozenEncoder:
    """A backbone and the normalization of its images.

    Attributes:
        backbone: The network.
        shape: Shape of an image, [C, H, W].
        mean: Mean of each channel on a 0 to 1 scale, [C].
        std: Standard deviation of each channel, [C].
        mirror: Average the features of each image with those of its mirror image.
        seen: Digests of the images that it was pretrained on (see `seen`), int64 [P]; None: not known.
    """

    backbone: Network
    shape: tuple[int, ...]
    mean: Tensor
    std: Tensor
    mirror: bool = False
    seen: Tensor | None = None

    def __call__(self, images: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Images uint8 [N, C, H, W] -> unit vectors float32 [N, D], on the device."""
        mean, std = self.mean.to(device), self.std.to(device)
        return extract_features(self.backbone.to(device), images, mean, std, mirror=self.mirror)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights."""
        return files.fingerprint(self.backbone.state_dict())

    def write(self, path: Path, **origin: Any) -> None:
        """Write it to a file. ``origin``: how it was made, JSON-able."""
        record = {"shape": list(self.shape), "mean": self.mean.tolist(), "std": self.std.tolist(), **origin}
        record |= describe(self.backbone) | ({"mirror": True} if self.mirror else {})
        seen = {} if self.seen is None else {KEY: self.seen.sort().values}
        files.write_checkpoint(path, self.backbone.state_dict() | seen, record)

    @staticmethod
    def read(path: Path) -> "FrozenEncoder":
        """Read what `write` wrote."""
        record = files.read_record(path)
        with files.reading(path, "pretrain the encoder again"):
            shape = tuple(record.get("shape", ()))
            backbone = load_encoder(path, shape)  # verifies the file
            mean, std = torch.tensor(record["mean"]), torch.tensor(record["std"])
        return FrozenEncoder(backbone, shape, mean, std, bool(record.get("mirror", False)), read_seen(path))
