"""Wrong answers: find those to send back

Every image of a digit has three answers, and for five percent of the images one of them excludes the true class:
somebody said "not a four" about a four. Which ones? The classifier must not have seen the answer that it judges, so
its probabilities are cross-fitted. `find_answer_issues` then follows the conventions of cleanlab: indices of
suspicious examples, the worst first.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold, cross_val_predict

from complementary import ComplementaryClassifier, find_answer_issues

X, y = load_digits(return_X_y=True)
random = np.random.default_rng(0)
three = np.array([random.permutation(9)[:3] + 1 for _ in y])
not_y = (y[:, None] + three) % 10  # three different answers per image, all of them right ...
wrong = random.random(len(y)) < 0.05
not_y[wrong, 0] = y[wrong]  # ... and now one of them is wrong for 5 % of the images
excluded = np.zeros((len(y), 10), np.uint8)
excluded[np.arange(len(y))[:, None], not_y] = 1

model = ComplementaryClassifier(mix="none", epochs=25, batch=128, holdout=0)
folds = KFold(3, shuffle=True, random_state=0)
probabilities = cross_val_predict(model, X, excluded, cv=folds, method="predict_proba")
found = find_answer_issues(excluded, probabilities, return_indices_ranked_by="posterior")

print(f"{wrong.sum()} images have a wrong answer; {len(found)} are suspicious")
print(f"of those, {wrong[found].mean():.2f} are truly wrong; among the first 20, {wrong[found[:20]].mean():.2f}")
print(f"share of the wrong answers that were found: {wrong[found].sum() / wrong.sum():.2f}")

# The list is short enough to look through. `cll report` shows the same answers with their pictures and writes them as a
# CSV file to send back to the annotators.
