"""Which images an encoder was pretrained on: an estimate for new images must not be measured on them.

An encoder file of this package has a digest of every image of its pretraining. Held-out examples are compared with
these digests, so it does not matter under which name, in which order or in which subset the images were used.
"""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from complementary import files
from complementary.data.rows import Rows
from complementary.errors import UserError

KEY = "pretraining_images"
"""Name of the digests in an encoder file."""


def image_digests(images: Tensor | Rows) -> Tensor:
    """Digests of images [N, C, H, W] by their content, int64 [N]; equal images have equal digests."""
    found = [_digest(row.tobytes()) for part in images.split(4096) for row in part.cpu().contiguous().numpy()]
    return torch.tensor(found, dtype=torch.int64)


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def were_seen(images: Tensor | Rows, seen: Tensor) -> Tensor:
    """Which of the images [N, C, H, W] are among those with the digests ``seen`` int64 [P], bool [N]."""
    return torch.isin(image_digests(images), seen)


def read_seen(path: Path) -> Tensor | None:
    """Digests of the images that the encoder in a file was pretrained on, int64 [P]; None: the file does not say."""
    if not files.read_record(path):
        return None
    seen = files.read_checkpoint(path)[0].get(KEY)
    if seen is not None and (seen.ndim != 1 or seen.dtype != torch.int64):
        found = f"{seen.dtype} of shape {list(seen.shape)}"
        raise UserError(
            f"{path} is damaged: {KEY} is {found}, not int64 digests; pretrain the encoder again.", "encoder"
        )
    return seen
