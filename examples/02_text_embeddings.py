"""Text embeddings: tickets that are "not about billing"

A support team wants to sort tickets by topic. There is no time to read the list of topics for every ticket, but a
quick "this is not about X" is cheap. The classifier learns from embeddings of the texts and these answers. Here the
texts are made of templates, and the embedding is LSA (TF-IDF, then a truncated SVD), which needs no download. Vectors
of a sentence encoder are used in the same way: `fit(embeddings, not_y)`.
"""

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from complementary import ComplementaryClassifier

WORDS = {
    "billing": "invoice charged refund card payment twice amount bank receipt price",
    "delivery": "parcel courier late address tracking arrived box depot street lost",
    "login": "password reset account locked email code sign browser session expired",
    "product": "broken screen battery button cracked noise warranty repair spare manual",
}
FILLER = ["please", "help", "my", "the", "was", "since", "yesterday", "again", "now", "order", "hello", "thanks"]
random = np.random.default_rng(0)


def ticket(topic: str) -> str:
    """Four words of the topic among ten others; every seventh word of a topic comes from another one."""
    words = [
        random.choice(WORDS[topic if random.random() > 1 / 7 else random.choice(list(WORDS))].split()) for _ in "1234"
    ]
    return " ".join(random.permutation([*words, *random.choice(FILLER, 10)]))


topics = random.choice(list(WORDS), 3000, p=[0.4, 0.3, 0.2, 0.1])
texts = [ticket(topic) for topic in topics]
not_about = [random.choice([other for other in WORDS if other != topic]) for topic in topics]  # one answer per ticket

embedding = make_pipeline(TfidfVectorizer(), TruncatedSVD(32, random_state=0))
vectors = embedding.fit_transform(texts)
model = ComplementaryClassifier(mix="none", epochs=30, config={"self_training": 20})
model.fit(vectors[:2000], not_about[:2000])

estimate = model.accuracy_estimate(vectors[2000:], not_about[2000:])
print(f"estimated accuracy {estimate.value:.2f}, 95 % interval {estimate.low:.2f} to {estimate.high:.2f}")
print(f"true accuracy      {model.score(vectors[2000:], topics[2000:]):.2f}")
for text in ("hello the courier lost my parcel", "charged twice please refund", "my password expired again"):
    print(f"{text!r}: {model.predict(embedding.transform([text]))[0]}")

# Classes and predictions are names, because the answers are. The estimate uses the answers about 1,000 other tickets
# and no true topic; the true accuracy, which only a test set could tell, lies inside its interval. Self-training
# continues with pseudo-labels, which combine the predictions with the answers.
