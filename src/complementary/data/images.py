"""Decode image files of any size and kind into square uint8 arrays, in parallel."""

import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary.errors import UserError, import_optional
from complementary.reports.terminal import log_progress

log = logging.getLogger(__name__)
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FITS = ("crop", "stretch")
PER_TASK = 32
GRAY_TOLERANCE = 2  # levels that the channels of a gray image may differ: lossy WebP is off by one


def find_images(folder: Path) -> list[Path]:
    """All image files in ``folder`` and its subfolders, sorted; hidden files and folders are skipped."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; expected a folder of images, or a .npz, .npy or .csv file.")
    found: list[Path] = []
    visited: set[Path] = set()
    for home, folders, files in os.walk(folder, followlinks=True):
        real = Path(home).resolve()
        if real in visited:  # a link to a parent folder would never end
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(home, f) for f in files if not f.startswith(".") and f.lower().endswith(SUFFIXES)]
    if not found:
        raise UserError(f"{folder} contains no images ({', '.join(SUFFIXES)}).")
    return sorted(found)


def decode_image(path: Path, size: int, fit: str = "crop") -> tuple[NDArray[np.uint8], bool]:
    """Decode one file -> (uint8 [size, size, 3], whether it is gray). Applies EXIF; puts transparency on white.

    ``fit``: "crop" scales the short side to ``size`` and crops the center; "stretch" ignores the aspect ratio.
    """
    image, ops = _pillow(), import_optional("PIL.ImageOps", "Decoding images")
    if not path.is_file():  # a broken link, or a pipe, which would block forever
        raise OSError("no such file")
    with image.open(path) as opened:
        opened.draft("RGB", (2 * size, 2 * size))  # lets JPEG skip detail far below the target size
        pixels = to_square(ops.exif_transpose(opened), size, fit)
    return pixels, bool(np.ptp(pixels, axis=2).max() <= GRAY_TOLERANCE)


def to_square(picture: Any, size: int, fit: str = "crop") -> NDArray[np.uint8]:
    """Convert an image of Pillow, of any mode and size, to uint8 [size, size, 3]; ``fit`` as in `decode_image`.

    Rows are resized first, then columns. In one call, the order (and some pixels) would depend on Pillow's version.
    """
    rgb, lanczos = _to_rgb(picture), _pillow().Resampling.LANCZOS
    width, height = rgb.size
    left, top = ((side - min(rgb.size)) / 2 if fit == "crop" else 0 for side in rgb.size)
    narrow = rgb.resize((size, height), lanczos, (left, 0, width - left, height))
    return np.asarray(narrow.resize((size, size), lanczos, (0, top, size, height - top)))


def _pillow() -> Any:
    return import_optional("PIL.Image", "Decoding images")


def _to_rgb(opened: Any) -> Any:
    """Any Pillow mode to RGB; 16-bit gray is scaled, because a plain conversion clips it."""
    image = _pillow()
    if opened.mode == "F":
        raise ValueError("floating-point pixels")
    if opened.mode.startswith("I"):
        values = np.asarray(opened).astype(np.int64)
        scaled = values // 257 if values.max(initial=0) > 255 or ";16" in opened.mode else values
        opened = image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    if opened.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in opened.info:
        above = opened.convert("RGBA")
        opened = image.alpha_composite(image.new("RGBA", above.size, "white"), above)
    return opened.convert("RGB")


def image_size(path: Path) -> tuple[int, int]:
    """Width and height of an image in pixels, from the beginning of its file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _pillow().open(path) as opened:
            width, height = opened.size
    return width, height


@dataclass(frozen=True)
class Decoded:
    """The outcome of `decode_into`."""

    failures: dict[int, str]  # index of an image that cannot be decoded -> reason
    gray: bool  # whether all decoded images are gray


def decode_into(target: NDArray[np.uint8], paths: Sequence[Path], fit: str, what: str) -> Decoded:
    """Decode ``paths`` into ``target`` uint8 [N, S, S, 3] with one thread per core. ``what`` names the progress bar."""
    failures: dict[int, str] = {}
    colored: list[int] = []
    _pillow()  # if it is missing: one error, not one per image

    def decode(indices: Iterable[int]) -> None:
        for index in indices:
            try:
                target[index], gray = decode_image(paths[index], target.shape[1], fit)
            except Exception as error:  # Pillow's plugins raise all kinds of errors
                failures[index] = _reason(error)
            else:
                if not gray:
                    colored.append(index)

    groups = [range(i, min(i + PER_TASK, len(paths))) for i in range(0, len(paths), PER_TASK)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata and large images
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow releases the GIL while it decodes
            for group, _ in zip(groups, pool.map(decode, groups), strict=True):
                log_progress(log, what, group.stop, len(paths))
    return Decoded(dict(sorted(failures.items())), not colored)


def _reason(error: Exception) -> str:
    known = {
        "UnidentifiedImageError": "not an image",
        "DecompressionBombError": "too many pixels (178,956,970 at most)",
    }
    return known.get(type(error).__name__) or " ".join((str(error) or type(error).__name__).split())
