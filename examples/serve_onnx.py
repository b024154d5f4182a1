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
    """A photo as uint8 [C, H, W]: the short side is scaled and the center cropped, as `cll data import` does."""
    photo = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    square = ImageOps.fit(photo, (width, height), Image.Resampling.LANCZOS)
    return np.atleast_3d(np.asarray(square if channels == 3 else square.convert("L"))).transpose(2, 0, 1)


(probabilities,) = session.run(None, {"inputs": np.stack([read(path) for path in sys.argv[2:]])})
for path, row in zip(sys.argv[2:], probabilities, strict=True):
    print(f"{path},{facts['classes'][row.argmax()]},{row.max():.4f}")
