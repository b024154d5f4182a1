"""Into production: export to ONNX and serve it without this package

A classifier for images of digits is trained and exported. The graph contains normalization, network and softmax, and
its metadata the class names. The export compares the graph in onnxruntime with the classifier. Then
`examples/serve_onnx.py`, which imports onnxruntime, NumPy and Pillow only, classifies image files.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from complementary import ComplementaryClassifier, export

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

digits, random = load_digits(), np.random.default_rng(0)
images = (digits.images * 15).astype(np.uint8)  # [N, 8, 8]
not_y = [[WORDS[(truth + 1 + k) % 10] for k in random.permutation(9)[:3]] for truth in digits.target]

model = ComplementaryClassifier(mix="none", epochs=40, flip=False).fit(images[10:], not_y[10:], WORDS)
files = export(model.predictor_, "exported")
print({kind: str(path) for kind, path in files.items()})

for i in (0, 4, 6):
    Image.fromarray(images[i]).save(f"{WORDS[i]}.png")  # images 0 to 9 show the digits 0 to 9, and were not trained on
server = Path(__file__).parent / "serve_onnx.py"
command = [sys.executable, str(server), str(files["onnx"]), "zero.png", "four.png", "six.png"]
print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")

# Each line is a file, its class and the probability. `cll export RUN --onnx` does the same for a run folder, with
# calibrated probabilities, and writes a model card with what the model rests on.
