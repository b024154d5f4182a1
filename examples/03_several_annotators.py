"""Several annotators: who is careless?

Three people answer yes or no about handwritten digits. Each is asked about one class per image. "Yes" excludes all
other classes, "no" only the one asked about. One of them is always right, one is wrong now and then, and one often
clicks the wrong button. Train on all answers, then ask how often each annotator is wrong.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold, cross_val_predict

from complementary import ComplementaryClassifier, labels, scores, transitions

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
CARELESS = {"ann": 0.0, "bob": 0.02, "eve": 0.10}  # how often each gives the opposite answer

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)

yes: list[set[str]] = [set() for _ in y]
no: list[set[str]] = [set() for _ in y]
answers, who, example, wrong = [], [], [], []
for i, truth in enumerate(y):
    for name, asked in zip(CARELESS, rng.permutation(10), strict=False):  # three different classes
        says_yes = (asked == truth) != (rng.random() < CARELESS[name])
        (yes if says_yes else no)[i].add(NAMES[asked])
        answers.append(np.arange(10) != asked if says_yes else np.arange(10) == asked)
        who.append(name)
        example.append(i)
        wrong.append(says_yes != (asked == truth))

usable = np.array([len(said) < 2 for said in yes])  # two annotators said yes to different classes: leave these out
excluded, classes = labels.from_answers(
    [said for said, use in zip(yes, usable, strict=True) if use],
    [said for said, use in zip(no, usable, strict=True) if use],
    list(NAMES),
)

model = ComplementaryClassifier(mix="none", epochs=15, batch=128)
model.fit(X[usable], excluded, classes)
print(f"{usable.sum()} of {len(y)} images; predictions are names: {', '.join(model.predict(X[:3]))}")

# the answers of an image must not influence the probabilities that judge them: cross-fitting
folds = KFold(3, shuffle=True, random_state=0)
probabilities = model.predict_proba(X)  # for the images that were left out
probabilities[usable] = cross_val_predict(model, X[usable], excluded.numpy(), cv=folds, method="predict_proba")
print(f"accuracy of the cross-fitted predictions: {(probabilities.argmax(1) == y).mean():.2f}")

judged = torch.from_numpy(probabilities[example])
rates = scores.annotator_error_rates(torch.from_numpy(np.array(answers)), who, judged, transitions.uniform(10))
for person, rate in rates.items():
    truly = np.mean([error for error, each in zip(wrong, who, strict=True) if each == person])
    print(f"{person}: wrong in {rate.value:.3f} ± {rate.error:.3f} of {rate.answers} answers (truly {truly:.3f})")

# No true label is used for the rates; the last column compares them with the truth. The answers of `cll data import`
# keep their annotators, and `cll report` shows this table for a run.
