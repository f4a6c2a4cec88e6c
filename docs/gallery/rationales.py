"""
The words that decided
======================

A rationale is the part of a text that a prediction is made from. The model selects a share of the
words and predicts from those: the highlight is the computation, not an explanation that was added
later.
"""

# %%
# Short reviews, written for this page. Praise and blame share all words but the adjectives.
import matplotlib.pyplot as plt
import numpy as np

from hopfy.estimators import RationaleClassifier, Training

rng = np.random.default_rng(0)
openings = ["We came on a rainy evening", "I booked a table for four", "My sister chose the place"]
openings += ["We had walked past it for years", "A colleague sent us there"]
nouns = ["soup", "bread", "waiter", "wine", "cake", "music", "garden", "owner"]
endings = ["before we took the tram home", "while the rain went on", "as the room filled up"]
endings += ["and we stayed until ten", "until the kitchen closed"]
good = ["wonderful", "lovely", "superb", "charming", "perfect", "delightful"]
bad = ["awful", "dreadful", "terrible", "dull", "disappointing", "horrible"]


def review(opinions: list[str]) -> str:
    (first, second), (one, other) = rng.choice(nouns, 2, replace=False), rng.choice(opinions, 2)
    middle = f"the {first} was {one} and the {second} {other}"
    return f"{rng.choice(openings)}, {middle} {rng.choice(endings)}."


labels = rng.choice(["praise", "blame"], 400)
texts = [review(good if label == "praise" else bad) for label in labels]
print(texts[0])

# %%
# Two ways to select 12% of the words. *Sequential k-subsets* pools the states of an LSTM, which
# has read the whole sentence, so it may look beside the word that matters. SPECTRA hides all other
# words from its predictor.
new = [
    "We came on a rainy evening, the soup was wonderful and the waiter charming as the room filled up.",
    "My sister chose the place, the music was dreadful and the cake dull while the rain went on.",
    "A colleague sent us there, the owner was awful and the bread horrible until the kitchen closed.",
    "I booked a table for four, the garden was lovely and the wine superb and we stayed until ten.",
]
how = Training(lr=0.01, max_epochs=12)
models = {}
for method in ("sequential k-subsets", "SPECTRA"):
    clf = RationaleClassifier(
        method=method, share=0.12, vectors=24, hidden=24, training=how, random_state=0
    )
    models[method] = clf.fit(texts, labels)
    print(f"{method}:")
    for found in clf.rationale(new):
        print(f"  {found.prediction}: {found}")

# %%
# In a notebook the result shows itself like this. Words without a highlight had weight exactly
# zero.
models["SPECTRA"].rationale(new)

# %%
# Which words are selected over 200 texts. The labels never said where the opinion is.
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.6))
for ax, (method, clf) in zip(axes, models.items(), strict=True):
    weights: dict[str, list[float]] = {}
    for found in clf.rationale(texts[:200]):
        for word, weight in zip(found.tokens, found.weights, strict=True):
            weights.setdefault(word, []).append(float(weight))
    often = sorted(
        ((np.mean(w), word) for word, w in weights.items() if len(w) >= 8), reverse=True
    )[:16]
    colors = ["#009E73" if word in good + bad else "#8a8a8a" for _, word in often]
    ax.barh([word for _, word in often], [share for share, _ in often], color=colors)
    ax.invert_yaxis()
    ax.set(title=method, xlabel="mean weight", xlim=(0, 1))
    ax.tick_params(axis="y", labelsize=8)
figure.suptitle("adjectives are green", fontsize=9)
plt.show()
