"""
Bags of digits, and which of them decided
=========================================

In multiple instance learning only bags have labels. Here a bag of digits is positive if it holds
two nines or more; the classifier is never told which digit is which, and still says which
instances it used.
"""

# %%
# 600 bags of 5 to 14 digits.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import hopfy.plot
from hopfy.estimators import MILClassifier, Training

images, digit = load_digits().images / 16, load_digits().target
rng, often = np.random.default_rng(0), np.where(digit == 9, 8, 1)
members = [rng.choice(len(digit), size, p=often / often.sum()) for size in rng.integers(5, 15, 600)]
bags = [images[each] for each in members]
y = np.array([(digit[each] == 9).sum() >= 2 for each in members])

# %%
# ``"2-subsets"``: each head selects exactly two instances, which is what the label is about.
clf = MILClassifier(omega="2-subsets", training=Training(max_epochs=30), random_state=0)
clf.fit(bags[:400], y[:400])
print(f"accuracy on new bags: {clf.score(bags[400:], y[400:]):.2f}")

# %%
# Three new bags. Frames are as thick as the weights; a faded digit has weight exactly zero;
# triangles mark nines.
new = range(400, 600)
positive = [i for i in new if y[i]][:2]
negative = [max((i for i in new if not y[i]), key=lambda i: len(bags[i]))]
figure, axes = plt.subplots(3, 1, figsize=(7.4, 4.2))
for ax, i in zip(axes, positive + negative, strict=True):
    weights = clf.instance_weights([bags[i]])[0]
    chance = clf.predict_proba([bags[i]])[0, 1]
    title = f"{'at least two nines' if y[i] else 'fewer'}; predicted probability {chance:.2f}"
    hopfy.plot.bag(bags[i], weights, targets=digit[members[i]] == 9, columns=14, title=title, ax=ax)
plt.show()

# %%
# Over all new bags: the weight that a digit gets, by its class.
weights = np.concatenate(clf.instance_weights([bags[i] for i in new]))
classes = digit[np.concatenate([members[i] for i in new])]
figure, ax = plt.subplots(figsize=(6.4, 2.6))
means = [weights[classes == c].mean() for c in range(10)]
ax.bar(range(10), means, color=["#8a8a8a"] * 9 + ["#009E73"])
ax.set(xlabel="digit", ylabel="mean weight", xticks=range(10), title="what the classifier looks at")
plt.show()
