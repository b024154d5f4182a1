"""IDX, the format of the MNIST family: a short header, then the numbers."""

import struct

import numpy as np
from numpy.typing import NDArray

from complementary.data.files import Files
from complementary.errors import UserError

NEEDS = ("train-images?idx3-ubyte", "train-labels?idx1-ubyte", "t10k-images?idx3-ubyte", "t10k-labels?idx1-ubyte")


def parse_idx(content: bytes, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Bytes of an IDX file -> uint8 array with the given number of ``dimensions``; ``name`` is for errors."""
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise UserError(
            f"{name} is not an IDX file of bytes with {dimensions} dimensions: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, wanted 00 00 08 {dimensions:02x}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    wanted = header + int(np.prod(shape, dtype=np.uint64))
    if len(content) != wanted:
        raise UserError(f"{name} has {len(content):,} bytes, but its header promises {wanted:,}: get the file again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def decode_idx(files: Files) -> dict[str, NDArray[np.generic]]:
    """The four files of an MNIST-like set -> inputs uint8 [N, 1, H, W] and truth int64 [N] of both splits."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, content in files.items():
        split = "train" if name.startswith("train") else "test"
        if "images" in name:
            arrays[f"{split}/inputs"] = parse_idx(content, name, 3)[:, None]
        else:
            arrays[f"{split}/truth"] = parse_idx(content, name, 1).astype(np.int64)
    return arrays
