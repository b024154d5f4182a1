"""Biased answers: people exclude some classes far more often than others

Asked what a picture is not, people name what comes to mind first: here the first of five classes is named six times
as often as the last. Losses for uniform answers take this for information about the pictures. The transition matrix
says how answers arise from the true class, and it can be estimated without any true label. The data are random
vectors around five centers.
"""

import numpy as np
import torch

from complementary import ComplementaryClassifier, labels, transitions

random = np.random.default_rng(0)
centers = random.normal(size=(5, 8)) * 1.2
y = random.integers(0, 5, 8000)
X = centers[y] + random.normal(size=(8000, 8))
truth = transitions.biased(5, ratio=6)
excluded = labels.draw(torch.from_numpy(y), truth, seed=0)  # in real life, these are your answers
train, test = slice(4000), slice(4000, None)

print("share of each answer:", np.round(excluded.float().mean(0).numpy(), 2))
for name, loss, matrix in (("taken as uniform", "s-nl", "uniform"), ("matrix estimated", "fwd", "estimate")):
    model = ComplementaryClassifier(loss=loss, transition=matrix, mix="none", epochs=10, config={"estimate_epochs": 5})
    model.fit(X[train], excluded[train])
    claimed = model.accuracy_estimate(X[test], excluded[test])
    print(f"{name}: accuracy {model.score(X[test], y[test]):.2f}, estimated from answers {claimed.value:.2f} ", end="")
    print(f"(95 % interval {claimed.low:.2f} to {claimed.high:.2f})")

error = np.abs(model.transition_ - truth.numpy()).max()
print(f"largest error of the estimated matrix: {error:.2f}; its first row: {np.round(model.transition_[0], 2)}")

# The first line is a warning sign: with classes of equal size and uniform answers, all shares would be near 0.2. With
# the wrong matrix, the classifier avoids the class that is excluded most, and the interval of its estimated accuracy
# misses the truth. With the estimated matrix, the classifier is better, and the interval contains the truth but is
# wide, because it includes the error of the matrix. If you know the matrix, pass it: `transition="matrix:FILE.csv"`.
