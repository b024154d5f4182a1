"""Pictures of any size and kind to square uint8 arrays, many at a time."""

import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complementary.errors import UserError
from complementary.reports.terminal import bar, need, pillow_image

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FITS = ("crop", "stretch")
AT_A_TIME = 32
GREY = 2  # levels that the channels of a grey picture may differ: lossy WebP is off by one


def find_pictures(folder: Path) -> list[Path]:
    """All pictures in ``folder`` and its subfolders, sorted; hidden files and folders are passed over."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; wanted a folder of pictures, or a .npz, .npy or .csv of features.")
    found: list[Path] = []
    seen: set[Path] = set()
    for home, folders, files in os.walk(folder, followlinks=True):
        real = Path(home).resolve()
        if real in seen:  # a link back to a folder above would never end
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(home, f) for f in files if not f.startswith(".") and f.lower().endswith(SUFFIXES)]
    if not found:
        raise UserError(f"{folder} holds no pictures ({', '.join(SUFFIXES)}).")
    return sorted(found)


def decode_picture(path: Path, size: int, fit: str = "crop") -> tuple[NDArray[np.uint8], bool]:
    """One picture -> uint8 [size, size, 3], and whether it is grey.

    Turned as its EXIF note says, laid on white where it is transparent. ``fit``: "crop" scales the short
    side to ``size`` and cuts the middle out; "stretch" squeezes the whole picture into the square.
    """
    image, ops = pillow_image(), need("PIL.ImageOps", "Decoding pictures")
    if not path.is_file():  # a dead link; or a pipe, which would be waited on for ever
        raise OSError("there is no such file")
    with image.open(path) as opened:
        opened.draft("RGB", (2 * size, 2 * size))  # lets JPEG skip detail far below the wanted size
        picture = _to_rgb(ops.exif_transpose(opened))
    if fit == "crop":
        square = ops.fit(picture, (size, size), image.Resampling.LANCZOS)
    else:
        square = picture.resize((size, size), image.Resampling.LANCZOS)
    pixels = np.asarray(square)
    return pixels, bool(np.ptp(pixels, axis=2).max() <= GREY)


def _to_rgb(picture: Any) -> Any:
    """Any mode of Pillow to RGB; 16-bit greys are scaled, where a plain conversion would clip them."""
    image = pillow_image()
    if picture.mode == "F":
        raise ValueError("its pixels are fractions")
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        scaled = values // 257 if values.max(initial=0) > 255 or ";16" in picture.mode else values
        picture = image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        above = picture.convert("RGBA")
        picture = image.alpha_composite(image.new("RGBA", above.size, "white"), above)
    return picture.convert("RGB")


@dataclass(frozen=True)
class Decoded:
    """``failures``: index -> reason. ``grey``: whether every picture that was read is grey."""

    failures: dict[int, str]
    grey: bool


def decode_into(target: NDArray[np.uint8], paths: Sequence[Path], fit: str, what: str) -> Decoded:
    """Decode all ``paths`` into ``target`` [N, S, S, 3] with as many threads as there are cores."""
    failures: dict[int, str] = {}
    colourful: list[int] = []
    pillow_image()  # say that it is missing once, not once per picture

    def decode(indices: Iterable[int]) -> int:
        done = 0
        for index in indices:
            done += 1
            try:
                target[index], grey = decode_picture(paths[index], target.shape[1], fit)
            except Exception as error:  # Pillow's plugins fail in their own ways; each is one line of the report
                failures[index] = _reason(error)
            else:
                if not grey:
                    colourful.append(index)
        return done

    groups = [range(i, min(i + AT_A_TIME, len(paths))) for i in range(0, len(paths), AT_A_TIME)]
    with bar(what, len(paths)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata and large pictures: neither is a problem
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow releases the GIL while it decodes
            for done in pool.map(decode, groups):
                advance(done)
    return Decoded(dict(sorted(failures.items())), not colourful)


def _reason(problem: Exception) -> str:
    known = {
        "UnidentifiedImageError": "not a picture",
        "DecompressionBombError": "too many pixels (178,956,970 at most)",
    }
    if type(problem).__name__ in known:
        return known[type(problem).__name__]
    return " ".join((str(problem) or type(problem).__name__).split())
