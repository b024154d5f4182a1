"""Long tail: classes of very different size, and a test set where all count the same

Animals in camera traps: 2,000 deer, 120 lynxes. Each picture has two answers, "not a ...". The data are random
vectors around five centers, as an encoder would give them. A plain classifier prefers the large classes. If small
classes should count as much, the sizes have to be known; they can be estimated from the answers.
"""

import numpy as np
import torch

from complementary import ComplementaryClassifier, labels, priors, transitions

ANIMALS = ["deer", "boar", "fox", "badger", "lynx"]
SIZES = [2000, 1000, 500, 250, 120]
random = np.random.default_rng(0)
centers = random.normal(size=(5, 8)) * 1.1


def sample(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [N, 8] and true classes [N]."""
    truth = np.repeat(np.arange(5), sizes)
    return centers[truth] + random.normal(size=(len(truth), 8)), truth


X, y = sample(SIZES)
X_test, y_test = sample([300] * 5)
uniform = transitions.uniform(5)
excluded = labels.draw(torch.from_numpy(y), uniform, per_example=2, seed=0)  # in real life, these are your answers

shares = priors.from_labels(excluded, uniform).share
print("true sizes     ", ", ".join(f"{name} {size}" for name, size in zip(ANIMALS, SIZES, strict=True)))
print("estimated sizes", ", ".join(f"{name} {s * len(y):.0f}" for name, s in zip(ANIMALS, shares, strict=True)))

for loss in ("fwd", "fwd-la"):
    model = ComplementaryClassifier(loss=loss, mix="none", epochs=30).fit(X, excluded, ANIMALS)
    right = model.predict(X_test) == np.array(ANIMALS)[y_test]
    each = " ".join(f"{name} {right[y_test == k].mean():.2f}" for k, name in enumerate(ANIMALS))
    print(f"{loss:6}: accuracy with classes of equal size {right.mean():.2f} ({each})")

# `fwd` is the usual loss; `fwd-la` shifts the logits by the estimated class sizes, so that rare classes are predicted
# more often, at the expense of the largest. With self-training, `config={"self_training": 20, "balanced": True}` does
# the same. `accuracy_estimate(X, not_y, population="balanced")` estimates this accuracy without true labels.
