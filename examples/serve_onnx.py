"""Classify photos with an exported run, without this package: python serve_onnx.py model.onnx photo.jpg ..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
channels, height, width = facts["shape"]


def read(path: str) -> np.ndarray:
    """A photo of any size as uint8 [1, C, H, W]; the graph crops its center and resizes it."""
    opened = Image.open(path)
    opened.draft("RGB", (2 * width, 2 * height))  # reads large JPEG files faster, as `cll data import` does
    photo = ImageOps.exif_transpose(opened).convert("RGB" if channels == 3 else "L")
    return np.atleast_3d(np.asarray(photo)).transpose(2, 0, 1)[None]


for path in sys.argv[2:]:
    try:
        ((row,),) = session.run(None, {"inputs": read(path)})
    except OSError as error:  # not an image, or a damaged one
        print(f"{path}: {error}", file=sys.stderr)
        continue
    print(f"{path},{facts['classes'][row.argmax()]},{row.max():.4f}")
