"""Yes and no answers: how much is a "yes" worth?

"Is this a seven?" A no excludes one class, a yes excludes all others. With ten classes and random questions, a yes is
rare: one answer in ten. Each image of a digit gets two questions about different classes.
"""

import numpy as np
from sklearn.datasets import load_digits

from complementary import ComplementaryClassifier, labels

X, y = load_digits(return_X_y=True)
random = np.random.default_rng(0)
asked = [random.permutation(10)[:2].tolist() for _ in y]  # two different classes per image
yes = [{k for k in pair if k == truth} for pair, truth in zip(asked, y, strict=True)]
no = [{k for k in pair if k != truth} for pair, truth in zip(asked, y, strict=True)]
print(f"{sum(map(len, no))} times no, {sum(map(len, yes))} times yes; the first images: no {no[:3]}")

nothing: list[set[int]] = [set() for _ in y]
for name, said_yes in (("only the no", nothing), ("yes and no", yes)):
    excluded, classes = labels.from_answers(said_yes, no, range(10))
    model = ComplementaryClassifier(mix="none", epochs=40).fit(X[:1400], excluded[:1400], classes)
    print(f"{name:11}: {excluded.sum(1).float().mean():.1f} classes excluded per image, ", end="")
    print(f"accuracy {model.score(X[1400:], y[1400:]):.3f}")

# `labels.from_answers` turns both kinds of answers into one 0/1 matrix of excluded classes [N, K]. A fifth of the
# images has a yes and with it a full label; without these, accuracy drops. Images without any answer are left out.
